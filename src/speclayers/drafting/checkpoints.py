"""Checkpoints of a training: one safetensors file each, so that none is ever half of something.

Weights, the optimiser's state, the step and the table are all there is to a training: the schedule, the order of
the sequences and the place in it are functions of the step and the seed, and nothing random is drawn on the way.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from speclayers.drafting.tensor_files import write_tensors

KEPT = 2
"""The newest checkpoints that are kept: should one be damaged, the one before it serves."""

logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """How far a training has come.

    Args:
        step: Optimiser steps done.
        log: (rows, columns) fp64, the training table so far.
    """

    step: int
    log: Tensor


def save_checkpoint(
    folder: Path, key: str, head: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: Checkpoint
) -> None:
    """Write a checkpoint and delete all but the newest ones.

    Args:
        folder: Folder of this training's checkpoints.
        key: What the training learns from; a checkpoint of another key is never used.
        head: Its weights are saved.
        optimiser: Its state is saved.
        checkpoint: Step and table.

    Raises:
        UserError: The file cannot be written.
    """
    tensors = {"log": checkpoint.log}
    for name, parameter in head.named_parameters():
        tensors[f"head/{name}"] = parameter
        for entry, value in optimiser.state[parameter].items():
            tensors[f"{entry}/{name}"] = value
    path = folder / f"step-{checkpoint.step:07d}.safetensors"
    write_tensors(path, tensors, {"key": key, "step": str(checkpoint.step)})
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()


def restore_checkpoint(folder: Path, key: str, head: nn.Module, optimiser: torch.optim.Optimizer) -> Checkpoint | None:
    """Bring head and optimiser to the newest readable checkpoint; say which, and delete what is of no use.

    Left in place, a damaged checkpoint or another training's would count among the newest, and push out good ones.

    Args:
        folder: Folder of this training's checkpoints.
        key: What the training learns from.
        head: Its weights are replaced.
        optimiser: Its state is replaced.

    Returns:
        Step and table, or None when there is no usable checkpoint.
    """
    for path in _newest_first(folder):
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
        except (SafetensorError, OSError) as error:
            logger.warning("warning: checkpoint %s is damaged (%s); trying the one before it", path.name, error)
            path.unlink(missing_ok=True)
            continue
        if metadata.get("key") != key:
            logger.warning("warning: checkpoint %s belongs to another training; deleted", path.name)
            path.unlink()
            continue
        _apply(tensors, head, optimiser)
        logger.info("continuing after step %s", metadata["step"])
        return Checkpoint(int(metadata["step"]), tensors["log"])
    return None


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of named weights; part of the key of a training that starts from them."""
    tensors = {name: weights[name].detach().cpu().contiguous() for name in sorted(weights)}
    return hashlib.sha256(save(tensors)).hexdigest()[:16]


def _apply(tensors: dict[str, Tensor], head: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    entries = {name.split("/")[0] for name in tensors} - {"log", "head"}
    for name, parameter in head.named_parameters():
        with torch.no_grad():
            parameter.copy_(tensors[f"head/{name}"])
        state = {entry: f"{entry}/{name}" for entry in entries if f"{entry}/{name}" in tensors}
        optimiser.state[parameter] = {entry: tensors[key].to(parameter.device) for entry, key in state.items()}


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)
