"""The layout of SGLang, which SpecForge writes, too."""

from __future__ import annotations

from typing import Any

from speclayers.drafting.head import HeadConfig
from speclayers.export.engine import BLOCK, Format, Served, ServedTarget, flat_config, only_silu
from speclayers.export.layer_ids import layer_ids

CAPTURED = frozenset(
    (
        *("ApertusForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
        *("Gemma3ForCausalLM", "Gemma4ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
        *("GptOssForCausalLM", "Llama4ForCausalLM", "LlamaForCausalLM", "MiniMaxM2ForCausalLM"),
        *("Ministral3ForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM"),
        *("Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"),
    )
)
"""Targets with `set_eagle3_layers_to_capture` in 0.5.14 and 0.5.23."""


def _config(served: Served) -> dict[str, Any]:
    head = served.head
    # SpecForge takes norm_output for the norm before the LM head, which is on by default: not written where false.
    flags = [flag for flag in ("norm_before_fc", "fc_norm", "norm_output") if flag != "norm_output" or head.norm_output]
    return flat_config(served, flags) | {
        "num_aux_hidden_states": len(served.ids),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": served.ids, "use_aux_hidden_state": True},
        # vLLM reads these first, and would take the nested ones for its own convention
        "eagle_aux_hidden_state_layer_ids": layer_ids("vllm", head.layers, served.target.layers),
        "pretraining_tp": 1,  # SpecForge asks for it
    }


def _limits(head: HeadConfig, target: ServedTarget) -> list[str]:
    return only_silu(head)


def _notes(head: HeadConfig, target: ServedTarget) -> list[str]:
    return ["norm_before_fc: in 0.5.23, not in 0.5.14"] if head.norm_before_fc else []


def _serve(folder: str, served: Served) -> str:
    drafted = served.speculative_tokens
    return (
        f"python -m sglang.launch_server --model-path {served.target.name} --dtype {served.dtype} \\\n"
        f"  --speculative-algorithm EAGLE3 --speculative-draft-model-path {folder} \\\n"
        f"  --speculative-num-steps {drafted} --speculative-eagle-topk 1 --speculative-num-draft-tokens {drafted + 1}"
    )


FORMAT = Format(
    read="SGLang 0.5.23",
    since="0.5.14",
    block=BLOCK,
    architectures=CAPTURED,
    stores_embedding=False,
    flags=frozenset({"norm_before_fc", "fc_norm", "norm_output"}),
    config=_config,
    limits=_limits,
    notes=_notes,
    serve=_serve,
)
