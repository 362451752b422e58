"""Configs of heads that other software wrote, read into this project's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from speclayers.drafting.head import HeadConfig
from speclayers.errors import UserError
from speclayers.export.layer_ids import layers_of_ids
from speclayers.files import read_json
from speclayers.targets.manifest import Manifest

SPECULATORS = "speculators_model_type"
"""Key by which a config of the speculators package is known."""


class ForeignConfig(BaseModel):
    """What is read of a head's config.json in the layout of EAGLE, SGLang, SpecForge, vLLM or speculators."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    num_hidden_layers: int = 1
    vocab_size: int
    draft_vocab_size: int | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    max_position_embeddings: int
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    eagle_config: dict[str, Any] | None = None

    def layers(self) -> tuple[int, ...] | None:
        """Return the layers that its ids mean, in their order; None where it names none."""
        if self.eagle_aux_hidden_state_layer_ids:
            return layers_of_ids("vllm", self.eagle_aux_hidden_state_layer_ids)
        nested = (self.eagle_config or {}).get("eagle_aux_hidden_state_layer_ids")
        return layers_of_ids("sglang", nested) if nested else None

    def rotary(self) -> dict[str, Any]:
        """Return the rotary embedding as transformers 5 names it; base 10000 where the config names none."""
        given = dict(self.rope_parameters or self.rope_scaling or {})
        kind = given.pop("type", "default")  # as configs of transformers 4 call it
        return {"rope_type": kind, "rope_theta": self.rope_theta or 10000.0} | given


def read_foreign(path: Path) -> ForeignConfig:
    """Read a head's config.json.

    Raises:
        UserError: The file is missing, a field is missing or wrong, or it describes no EAGLE-3 head.
    """
    raw = read_json(path)
    if SPECULATORS in raw:
        raw = _of_speculators(raw, path)
    nested = raw.get("eagle_config") or {}
    if "norm_before_fc" in nested:
        raw = raw | {"norm_before_fc": nested["norm_before_fc"]}
    try:
        return ForeignConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _of_speculators(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    if raw[SPECULATORS] != "eagle3":
        raise UserError(f"{path}: {SPECULATORS} is '{raw[SPECULATORS]}', expected 'eagle3'")
    if "norm_before_residual" not in raw:
        raise UserError(
            f"{path}: norm_before_residual is missing, which speculators reads as false and vLLM as true; write it"
        )
    return {**raw.get("transformer_layer_config", {}), **{k: v for k, v in raw.items() if v is not None}}


def head_config_of(
    found: ForeignConfig, layers: Sequence[int] | None, key: str, path: Path, manifest: Manifest
) -> HeadConfig:
    """Return the config of a head as this project describes it; its draft vocabulary is not known yet.

    Args:
        found: What its config.json says.
        layers: Layers that the user names, which count before those of the config.
        key: Key of the user's config, for messages.
        path: The head's config.json, for messages.
        manifest: The target that it shall draft for.

    Raises:
        UserError: The head is another model's, or its layers are unknown or impossible.
    """
    model = f"{manifest.name} has"
    for name, value, expected in (
        ("hidden_size", found.hidden_size, manifest.width),
        ("target_hidden_size", found.target_hidden_size or manifest.width, manifest.width),
        ("vocab_size", found.vocab_size, manifest.vocabulary),
    ):
        if value != expected:
            raise UserError(f"{path}: {name} is {value}, but {model} {expected}; the head is another model's")
    if found.num_hidden_layers != 1:
        raise UserError(f"{path}: num_hidden_layers is {found.num_hidden_layers}, expected 1")
    read = layers if layers is not None else found.layers()
    if read is None:
        raise UserError(f"{key}.layers: is not given, and {path} names no layers; say which layers the head reads")
    if len(set(read)) < len(read):
        raise UserError(f"{key}: layers {list(read)} name a layer twice")
    if outside := [layer for layer in read if not 0 <= layer <= manifest.layers]:
        raise UserError(f"{key}: reads layer {outside[0]}, but {model} layers 0 to {manifest.layers}")
    return HeadConfig(
        kind="pretrained",
        layers=tuple(sorted(read)),  # every engine hands states over in ascending order
        width=found.hidden_size,
        heads=found.num_attention_heads,
        kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        mlp_width=found.intermediate_size,
        vocabulary=found.vocab_size,
        draft_vocabulary=found.draft_vocab_size or found.vocab_size,
        rope_parameters=found.rotary(),
        rms_norm_eps=found.rms_norm_eps,
        activation=found.hidden_act,
        max_positions=found.max_position_embeddings,
        norm_before_residual=found.norm_before_residual,
        norm_before_fc=found.norm_before_fc,
        fc_norm=found.fc_norm,
        norm_output=found.norm_output,
        target=manifest.name,
        target_hash=manifest.target_hash,
        template_hash=manifest.template_hash,
        seed=0,
        fingerprint="",
        vocabulary_hash="",
        coverage=None,
    )
