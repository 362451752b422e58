"""The layout of the speculators package, which vLLM serves without further options."""

from __future__ import annotations

from typing import Any

from speclayers.drafting.head import HeadConfig
from speclayers.export.engine import FLAGS, Format, Served, ServedTarget, legacy_rope, llama_config, only_silu
from speclayers.export.engines import vllm


def _config(served: Served) -> dict[str, Any]:
    head = served.head
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": head.draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": served.ids,
        "target_hidden_size": None,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": served.dtype,
        **{flag: getattr(head, flag) for flag in FLAGS},  # the package and vLLM disagree about defaults
        "transformer_layer_config": {
            **llama_config(head),
            "rope_parameters": dict(head.rope_parameters),
            "rope_theta": legacy_rope(head)["rope_theta"],  # for readers older than transformers 5
            "num_aux_hidden_states": len(served.ids),  # vLLM takes the width of fc from here
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": served.speculative_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": served.target.name, "architectures": [served.target.architecture]},
        },
    }


def _limits(head: HeadConfig, target: ServedTarget) -> list[str]:
    return only_silu(head)


def _notes(head: HeadConfig, target: ServedTarget) -> list[str]:
    return []


def _serve(folder: str, served: Served) -> str:
    return f"vllm serve {folder} --dtype {served.dtype}"


FORMAT = Format(
    read="speculators 0.9.0, vLLM 0.33.0",
    since="0.9.0",
    block="layers.0",
    architectures=vllm.CAPTURED,
    stores_embedding=True,  # without it the package's from_pretrained leaves the embedding unset, silently
    flags=frozenset(FLAGS),
    config=_config,
    limits=_limits,
    notes=_notes,
    serve=_serve,
)
