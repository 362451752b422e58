"""The layout of EAGLE's own code (SafeAILab/EAGLE, arXiv 2503.01840)."""

from __future__ import annotations

from typing import Any

from speclayers.drafting.head import HeadConfig
from speclayers.export.engine import BLOCK, Format, Served, ServedTarget, flat_config
from speclayers.export.layer_ids import eagle_layers


def _config(served: Served) -> dict[str, Any]:
    # No target_hidden_size: with that key the code leaves the embedding at its random start.
    # The ids are not read there; they are written for people, for vLLM, and for reading the folder back.
    return flat_config(served, ()) | {"eagle_aux_hidden_state_layer_ids": served.ids}


def _limits(head: HeadConfig, target: ServedTarget) -> list[str]:
    found = []
    if (kind := head.rope_parameters.get("rope_type", "default")) != "default":
        found.append(f"rotary embedding '{kind}': its config takes plain ones only, or scaling of base 10000")
    if head.heads * head.head_dim != head.width:
        found.append(
            f"{head.heads} heads of width {head.head_dim} do not make the width {head.width}: its attention has no"
            " head_dim of its own"
        )
    return found


def _notes(head: HeadConfig, target: ServedTarget) -> list[str]:
    found = []
    if head.layers != (default := eagle_layers(target.layers)):
        found.append(
            f"it captures layers {list(default)} whatever a config says: write {list(head.layers)} in place of its"
            " indices in eagle/model/modeling_*_kv.py, or acceptance collapses"
        )
    if not target.has_index:
        found.append(
            "it reads the embedding by model.safetensors.index.json, which the target's folder lacks: write one whose"
            " weight_map names the file of model.embed_tokens.weight"
        )
    if target.tokenizer_class == "TokenizersBackend":
        found.append(
            "its newest transformers, 4.53.3, knows no tokenizer class TokenizersBackend: write"
            " PreTrainedTokenizerFast into the target's tokenizer_config.json"
        )
    if not target.legacy_rope:
        found.append(
            "that transformers reads a rotary base of 10000 from the target's config.json, which holds rope_parameters"
            " only: write rope_theta beside them, or its answers are not the target's"
        )
    return found


def _serve(folder: str, served: Served) -> str:
    return f"python -m eagle.application.webui --ea-model-path {folder} --base-model-path {served.target.name}"


FORMAT = Format(
    read="SafeAILab/EAGLE cb7e084 (2026-02-19)",
    since="commit cb7e084",
    block=BLOCK,
    architectures=frozenset({"LlamaForCausalLM", "Qwen3ForCausalLM"}),
    stores_embedding=False,
    flags=frozenset(),
    config=_config,
    limits=_limits,
    notes=_notes,
    serve=_serve,
)
