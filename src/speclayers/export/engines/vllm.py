"""The flat layout of vLLM."""

from __future__ import annotations

import json
from typing import Any

from speclayers.drafting.head import HeadConfig
from speclayers.export.engine import BLOCK, FLAGS, Format, Served, ServedTarget, flat_config, only_silu

CAPTURED = frozenset(
    (
        *("AfmoeForCausalLM", "ApertusForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        *("Ernie4_5ForCausalLM", "Gemma4ForCausalLM", "GlmMoeDsaForCausalLM", "GptOssForCausalLM"),
        *("GraniteForCausalLM", "GraniteMoeForCausalLM", "Llama4ForCausalLM", "LlamaForCausalLM"),
        *("MiMoForCausalLM", "MiniCPMForCausalLM", "MiniMaxM2ForCausalLM", "MistralForCausalLM"),
        *("NemotronHForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        *("Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"),
    )
)
"""Targets that declare `SupportsEagle3` in 0.33.0."""


def _config(served: Served) -> dict[str, Any]:
    return flat_config(served, FLAGS) | {
        "eagle_aux_hidden_state_layer_ids": served.ids,
        "num_aux_hidden_states": len(served.ids),  # the ids alone do not set the width of fc
    }


def _limits(head: HeadConfig, target: ServedTarget) -> list[str]:
    return only_silu(head)


def _notes(head: HeadConfig, target: ServedTarget) -> list[str]:
    return []


def _serve(folder: str, served: Served) -> str:
    config = {"method": "eagle3", "model": folder, "num_speculative_tokens": served.speculative_tokens}
    return f"vllm serve {served.target.name} --dtype {served.dtype} \\\n  --speculative-config '{json.dumps(config)}'"


FORMAT = Format(
    read="vLLM 0.33.0",
    since="0.33.0",
    block=BLOCK,
    architectures=CAPTURED,
    stores_embedding=False,
    flags=frozenset(FLAGS),
    config=_config,
    limits=_limits,
    notes=_notes,
    serve=_serve,
)
