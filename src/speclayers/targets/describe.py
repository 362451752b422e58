"""Reading what a model folder holds, and refusing what the study cannot use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from speclayers.errors import UserError
from speclayers.targets.anatomy import find_anatomy
from speclayers.targets.manifest import MANIFEST, PLAIN_FORMAT, Manifest, file_hash

PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt"}


BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, StrictDataclassError)
"""What transformers raises over config and tokenizer files that are broken or hold nonsense."""


class Provenance(NamedTuple):
    """Where a folder's files come from.

    Args:
        source: The source as in the config.
        revision: Commit or package version.
        licence: Licence of the weights.
    """

    source: dict[str, Any]
    revision: str | None = None
    licence: str | None = None


def describe_folder(folder: Path, name: str, provenance: Provenance, trust_remote_code: bool = False) -> Manifest:
    """Describe a model folder without loading its weights.

    Args:
        folder: Folder with config, safetensors and tokenizer.
        name: Name in the registry.
        provenance: Where its files come from.
        trust_remote_code: Whether Python code in the folder may run.

    Raises:
        UserError: A file is missing or broken, or the model is of a kind that cannot be studied.
    """
    _check_weights(folder, name)
    loading = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    model = _empty_model(folder, name, loading)
    tokenizer = _load_tokenizer(folder, name, loading)
    anatomy = find_anatomy(model)
    config = model.config.get_text_config()
    vocabulary, width = _weight_of(anatomy.lm_head).shape
    if len(tokenizer) > vocabulary:
        raise UserError(f"models.{name}: its tokenizer has {len(tokenizer)} tokens, its model only {vocabulary}")
    stop_ids = _stop_ids(folder, name, config, tokenizer)
    template = tokenizer.chat_template
    return Manifest(
        name=name,
        source=provenance.source,
        revision=provenance.revision,
        files={p.name: file_hash(p) for p in sorted(folder.iterdir()) if p.is_file() and p.name != MANIFEST},
        architecture=type(model).__name__,
        layers=len(anatomy.blocks),
        width=width,
        vocabulary=vocabulary,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(getattr(model.config, "dtype", None) or torch.float32).removeprefix("torch."),
        context=_context(name, config),
        tied=_weight_of(anatomy.lm_head) is _weight_of(anatomy.embedding),
        tokenizer_hash=_tokenizer_hash(folder),
        template_hash=_text_hash(template if isinstance(template, str) else json.dumps(template or PLAIN_FORMAT)),
        has_chat_template=template is not None,
        pad_token_id=stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        stop_ids=stop_ids,
        licence=provenance.licence,
    )


def _check_weights(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(
            f"models.{name}: no config.json among its files; expected a folder as save_pretrained writes it"
        )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
        found = f"found only {pickled[0]}, which is pickle and may run code" if pickled else "found none"
        raise UserError(f"models.{name}: no weights as .safetensors: {found}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"models.{name}: {index.name} is broken; expected JSON with a weight_map") from None
        missing = sorted(listed - {path.name for path in weights})
        if missing:
            raise UserError(f"models.{name}: {missing[0]} is missing; {index.name} lists it")
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise UserError(f"models.{name}: {path.name} is no readable safetensors file ({error})") from None


def _empty_model(folder: Path, name: str, loading: dict[str, Any]) -> Any:
    """Build the model's structure without memory for its weights."""
    try:
        config = AutoConfig.from_pretrained(folder, **loading)
    except BROKEN as error:
        raise UserError(f"models.{name}: config.json cannot be read: {_first_line(error)}") from None
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UserError(f"models.{name}: {kind} is an encoder-decoder; only decoder-only models can be studied")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"models.{name}: its weights are quantised; expected float32, bfloat16 or float16")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=loading["trust_remote_code"])
    except ValueError as error:
        raise UserError(f"models.{name}: {kind} is no causal language model: {_first_line(error)}") from None


def _load_tokenizer(folder: Path, name: str, loading: dict[str, Any]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, **loading)
    except BROKEN as error:
        raise UserError(f"models.{name}: its tokenizer cannot be loaded: {_first_line(error)}") from None


def _stop_ids(folder: Path, name: str, config: Any, tokenizer: Any) -> list[int]:
    """Collect the end tokens that the generation config, the config and the tokenizer name."""
    named = [config.eos_token_id, tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        # Chat models list their end-of-turn tokens here and nowhere else.
        try:
            named.append(GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
        except BROKEN as error:
            raise UserError(f"models.{name}: generation_config.json cannot be read: {_first_line(error)}") from None
    found = {
        int(token) for entry in named if entry is not None for token in (entry if isinstance(entry, list) else [entry])
    }
    if not found:
        raise UserError(f"models.{name}: neither config nor tokenizer names an end token (eos_token_id)")
    return sorted(found)


def _context(name: str, config: Any) -> int:
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise UserError(f"models.{name}: its config names no max_position_embeddings; such models are not supported")
    return context


def _weight_of(module: nn.Module) -> torch.Tensor:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _tokenizer_hash(folder: Path) -> str:
    if (folder / "tokenizer.json").is_file():
        return file_hash(folder / "tokenizer.json")
    names = ("*.model", "vocab*", "merges*")
    paths = sorted(path for pattern in names for path in folder.glob(pattern))
    return _text_hash("".join(file_hash(path) for path in paths))


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
