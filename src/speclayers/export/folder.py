"""A trained head as the folder that an engine serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from speclayers.drafting.head import HeadConfig
from speclayers.drafting.tensor_files import CONFIG_FILE, WEIGHTS_FILE, write_tensors
from speclayers.errors import UserError
from speclayers.export.card import Measured, card
from speclayers.export.embedding import EMBEDDING, target_embedding
from speclayers.export.engine import BLOCK, Served, ServedTarget, engine_format
from speclayers.export.layer_ids import ENGINES, layer_ids
from speclayers.export.padding import pad
from speclayers.export.preflight import PADDED, REFUSED, Fit, fit
from speclayers.files import write_json, write_text
from speclayers.specs import ExportSpec
from speclayers.targets.staging import replaced_folder
from speclayers.targets.target import DTYPES

CARD_FILE = "README.md"
VOCABULARY = ("d2t", "t2d")


def export_head(
    engine: str,
    head: HeadConfig,
    tensors: Mapping[str, Tensor],
    target: ServedTarget,
    folder: Path,
    spec: ExportSpec,
    measured: Sequence[Measured] = (),
) -> Fit:
    """Write a head's folder for an engine; it appears whole or not at all.

    Args:
        engine: A key of ENGINES.
        head: The head's config.
        tensors: Its weights, as `Eagle3Head.state_dict` names them.
        target: The model that it drafts for.
        folder: Folder to write.
        spec: Precision of the weights, and how many tokens to draft in a row.
        measured: What was measured of the head, for the model card.

    Raises:
        UserError: The engine cannot serve the head, or the folder cannot be written.
    """
    found = fit(engine, head, target)
    if found.verdict == REFUSED:
        raise UserError(f"{ENGINES[engine].name} cannot serve this head: {'; '.join(found.reasons)}")
    about = engine_format(engine)
    given, weights = pad(head, tensors, found.layers) if found.verdict == PADDED else (head, dict(tensors))
    served = Served(given, layer_ids(engine, given.layers, target.layers), spec.dtype, spec.speculative_tokens, target)
    with replaced_folder(folder) as staging:
        named = _named(weights, head, about.block, DTYPES[spec.dtype])
        if about.stores_embedding:
            named[EMBEDDING] = _embedding(target).to(DTYPES[spec.dtype])
        write_tensors(staging / WEIGHTS_FILE, named, {"format": "pt"})
        write_json(staging / CONFIG_FILE, about.config(served))
        command = about.serve(folder.as_posix(), served)
        write_text(staging / CARD_FILE, card(head, found, target, spec.dtype, command, measured))
    return found


def _embedding(target: ServedTarget) -> Tensor:
    found = target_embedding(target.folder)
    if found is None:
        raise UserError(f"{target.folder}: holds no tensor {EMBEDDING}, which belongs to this engine's folder")
    return found


def _named(weights: Mapping[str, Tensor], head: HeadConfig, block: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights as the engine names them, floating ones in its precision."""
    # Where the head drafts every token, engines expect no mapping.
    dropped = VOCABULARY if head.draft_vocabulary == head.vocabulary else ()
    return {
        name.replace(f"{BLOCK}.", f"{block}."): tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
        if name not in dropped
    }
