"""A head that other software trained, read from the folder that an engine serves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from speclayers.config import PretrainedHead
from speclayers.drafting.head import Eagle3Head, HeadConfig, head_from_tensors
from speclayers.drafting.tensor_files import CONFIG_FILE, read_tensors
from speclayers.drafting.vocabulary import vocabulary_hash
from speclayers.errors import UserError
from speclayers.export.embedding import EMBEDDING, target_embedding
from speclayers.export.engine import BLOCK
from speclayers.export.foreign import head_config_of, read_foreign
from speclayers.export.padding import FC, without_padding
from speclayers.targets.fetch import hub_snapshot
from speclayers.targets.manifest import Manifest

UNUSED = (EMBEDDING, "verifier_norm.weight", "verifier_lm_head.weight")
"""Tensors of the target that some software stores with a head."""

PICKLED = (".bin", ".pt", ".pth", ".pkl")

logger = logging.getLogger(__name__)


def head_folder(source: PretrainedHead, key: str) -> Path:
    """Return the folder of a head, fetched from the hub where it lies there.

    Args:
        source: Where it comes from.
        key: Key of the user's config, for messages.

    Raises:
        UserError: The folder does not exist, or the repository cannot be fetched.
    """
    if source.repo is not None:
        return hub_snapshot(key, source.repo, source.revision, ("*.safetensors", "*.json"))
    folder = Path(source.path or "")
    if not folder.is_dir():
        raise UserError(f"{key}.path: {folder} is no folder")
    return folder


def import_head(folder: Path, layers: Sequence[int] | None, key: str, target: Path, manifest: Manifest) -> Eagle3Head:
    """Read a head in the layout of EAGLE, SGLang, SpecForge, vLLM or speculators.

    Args:
        folder: Folder with config.json and safetensors.
        layers: Layers that it reads; those of its config.json when not given.
        key: Key of the user's config, for messages.
        target: Folder of the model that it drafts for.
        manifest: What that model is.

    Raises:
        UserError: A file or tensor is missing or broken, or the head does not fit the model.
    """
    weights = _weights(folder, key)
    path = folder / CONFIG_FILE
    config = head_config_of(read_foreign(path), layers, key, path, manifest)
    _check_embedding(weights, target, folder)
    tensors = {
        name.removeprefix("model.").replace("layers.0.", f"{BLOCK}."): tensor
        for name, tensor in weights.items()
        if name not in UNUSED and not name.endswith("rotary_emb.inv_freq")
    }
    _check_fusion(config, tensors, folder, key)
    tensors |= _vocabulary(config, tensors, folder)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{folder}: tensor {name} holds values that are not finite")
    ids = tensors["d2t"] + torch.arange(config.draft_vocabulary)
    config = config.model_copy(update={"vocabulary_hash": vocabulary_hash(ids)})
    lean, tensors = without_padding(config, tensors)
    logger.info("reads layers %s of %s, drafts %d tokens", list(lean.layers), manifest.name, lean.draft_vocabulary)
    if lean.layers != config.layers:
        spare = sorted(set(config.layers) - set(lean.layers))
        logger.info("layers %s are padding, multiplied with zero, and left out", spare)
    return head_from_tensors(lean, tensors, folder)


def _weights(folder: Path, key: str) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        found = f"{pickled[0]}, which is pickle and may run code" if pickled else "no weights"
        raise UserError(f"{key}: {folder} holds {found}; expected .safetensors")
    return {name: tensor for file in files for name, tensor in read_tensors(file).items()}


def _check_fusion(config: HeadConfig, tensors: dict[str, Tensor], folder: Path, key: str) -> None:
    """Refuse an fc of another number of layers in words, before its shape is compared."""
    if FC not in tensors:
        raise UserError(f"{folder}: tensor {FC} is missing")
    read = tensors[FC].shape[1] / config.width
    if read != len(config.layers):
        raise UserError(
            f"{key}: layers {list(config.layers)} are {len(config.layers)}, but {FC} of {folder} reads {read:g} of"
            f" width {config.width}"
        )


def _vocabulary(config: HeadConfig, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Return d2t and t2d, checked against each other; the whole vocabulary where a head drafts all of it."""
    size = config.draft_vocabulary
    if "d2t" not in tensors:
        if size != config.vocabulary:
            raise UserError(f"{folder}: tensor d2t is missing, though the head drafts {size} of {config.vocabulary}")
        return {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": torch.ones(size, dtype=torch.bool)}
    d2t = tensors["d2t"].long()
    if d2t.shape != (size,):
        raise UserError(f"{folder}: tensor d2t has shape {tuple(d2t.shape)}, expected ({size},)")
    ids = d2t + torch.arange(size)
    if ids[0] < 0 or ids[-1] >= config.vocabulary or bool((ids.diff() <= 0).any()):
        raise UserError(
            f"{folder}: d2t plus its index must ascend within 0 to {config.vocabulary - 1}; are these ids, not offsets?"
        )
    members = torch.zeros(config.vocabulary, dtype=torch.bool)
    members[ids] = True
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool(), members):
        raise UserError(f"{folder}: t2d marks other tokens than d2t names")
    return {"d2t": d2t, "t2d": members}


def _check_embedding(weights: dict[str, Tensor], target: Path, folder: Path) -> None:
    """Refuse a head with embeddings that are not the target's: it was trained for another model, or trained them."""
    stored = next((tensor for name, tensor in weights.items() if name.endswith(EMBEDDING)), None)
    if stored is None:
        return
    own = target_embedding(target)
    if own is None:
        return
    rounded = {own.dtype, stored.dtype} & {torch.float16, torch.bfloat16}
    tolerance = 1e-2 if rounded else 1e-5
    if own.shape != stored.shape or not torch.allclose(
        own.float(), stored.float(), rtol=tolerance, atol=tolerance / 10
    ):
        raise UserError(
            f"{folder}: {EMBEDDING} is not the target's; the head is another model's, or has embeddings of its own,"
            " which are not supported"
        )
