"""What an engine's file says of it, and what of a target the engines ask."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speclayers.drafting.head import HeadConfig
from speclayers.errors import UserError
from speclayers.export.layer_ids import ENGINES
from speclayers.files import read_json
from speclayers.targets.manifest import Manifest


class ServedTarget(NamedTuple):
    """What engines need to know of the model that a head drafts for.

    Args:
        name: How an engine is told which model: the hub's repository, or a folder.
        folder: Folder of the fetched model.
        architecture: Class of the model.
        layers: Number of decoder blocks N.
        tied: Whether embedding and LM head share their weights.
        has_index: Whether its folder holds an index of its weight files.
        tokenizer_class: What its tokenizer_config.json names; none where there is no such file.
        legacy_rope: Whether its config.json names the rotary embedding as transformers before 5 read it.
        stop_ids: Tokens that end an answer.
        pad_token_id: Token that fills batches.
        licence: Licence of its weights, where known.
    """

    name: str
    folder: Path
    architecture: str
    layers: int
    tied: bool
    has_index: bool
    tokenizer_class: str | None
    legacy_rope: bool
    stop_ids: tuple[int, ...]
    pad_token_id: int
    licence: str | None


class Served(NamedTuple):
    """A head as an engine gets it.

    Args:
        head: Its sizes, the padding included.
        ids: The engine's own ids of its layers, ascending.
        dtype: Precision of the weights, as transformers names it.
        speculative_tokens: Tokens to draft in a row.
        target: The model that it drafts for.
    """

    head: HeadConfig
    ids: list[int]
    dtype: str
    speculative_tokens: int
    target: ServedTarget


class Format(NamedTuple):
    """An engine's folder of a head; its layer ids are in layer_ids.

    Args:
        read: Version of the engine's code that all of this was read from.
        since: Oldest version that was read and serves it.
        block: Name of the decoder layer among the tensors.
        architectures: Targets whose states the engine captures.
        stores_embedding: Whether the target's embedding belongs to the folder.
        flags: Norms that the engine knows, by their names in HeadConfig.
        config: Makes config.json.
        limits: Says why a head cannot be served for reasons of the engine's own.
        notes: Says what must be done besides, so that it is served right.
        serve: Makes the command that serves a folder.
    """

    read: str
    since: str
    block: str
    architectures: frozenset[str]
    stores_embedding: bool
    flags: frozenset[str]
    config: Callable[[Served], dict[str, Any]]
    limits: Callable[[HeadConfig, ServedTarget], list[str]]
    notes: Callable[[HeadConfig, ServedTarget], list[str]]
    serve: Callable[[str, Served], str]


BLOCK = "midlayer"
"""Name of the decoder layer among a head's tensors, as in EAGLE's code."""

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Flags of HeadConfig by which engines differ; all are off in EAGLE-3's own heads."""


def engine_format(engine: str) -> Format:
    """Return what an engine's file says of it.

    Raises:
        UserError: There is no engine of this name.
    """
    if engine not in ENGINES:
        raise UserError(f"engine '{engine}' is unknown; known are {', '.join(ENGINES)}")
    found: Format = importlib.import_module(f"speclayers.export.engines.{engine}").FORMAT
    return found


def served_target(folder: Path, manifest: Manifest) -> ServedTarget:
    """Describe a fetched model as engines see it.

    Args:
        folder: Folder of the fetched model.
        manifest: What it is.

    Raises:
        UserError: Its config.json or tokenizer_config.json is broken.
    """
    tokenizer = folder / "tokenizer_config.json"
    return ServedTarget(
        name=manifest.source["repo"] if manifest.source["kind"] == "hub" else folder.as_posix(),
        folder=folder,
        architecture=manifest.architecture,
        layers=manifest.layers,
        tied=manifest.tied,
        has_index=bool(list(folder.glob("*.index.json"))),
        tokenizer_class=read_json(tokenizer).get("tokenizer_class") if tokenizer.exists() else None,
        legacy_rope="rope_parameters" not in (config := read_json(folder / "config.json")) or "rope_theta" in config,
        stop_ids=tuple(manifest.stop_ids),
        pad_token_id=manifest.pad_token_id,
        licence=manifest.licence,
    )


def llama_config(head: HeadConfig) -> dict[str, Any]:
    """Return the fields of a Llama config that every layout shares; the rotary embedding is not among them."""
    return {
        "model_type": "llama",
        "hidden_size": head.width,
        "intermediate_size": head.mlp_width,
        "num_hidden_layers": 1,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_dim,
        "hidden_act": head.activation,
        "rms_norm_eps": head.rms_norm_eps,
        "max_position_embeddings": head.max_positions,  # a smaller one would end drafting early
        "vocab_size": head.vocabulary,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def legacy_rope(head: HeadConfig) -> dict[str, Any]:
    """Return the rotary embedding as configs before transformers 5 name it, which later ones read, too."""
    scaling = {key: value for key, value in head.rope_parameters.items() if key != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default"
    return {"rope_theta": head.rope_parameters["rope_theta"], "rope_scaling": None if plain else scaling}


def flat_config(served: Served, keys: Sequence[str]) -> dict[str, Any]:
    """Return config.json of the layout that EAGLE, SGLang and vLLM share.

    Args:
        served: The head.
        keys: Flags that are written.
    """
    head, target = served.head, served.target
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **llama_config(head),
        **legacy_rope(head),
        "draft_vocab_size": head.draft_vocabulary,
        "bos_token_id": None,
        "eos_token_id": target.stop_ids[0] if len(target.stop_ids) == 1 else list(target.stop_ids),
        "pad_token_id": target.pad_token_id,
        "torch_dtype": served.dtype,
        "use_cache": True,
        **{key: getattr(head, key) for key in keys},
    }


def only_silu(head: HeadConfig) -> list[str]:
    """Return the reason why an engine that knows no other activation refuses a head; nothing where it does not."""
    return [] if head.activation == "silu" else [f"activation {head.activation}: it knows silu only"]
