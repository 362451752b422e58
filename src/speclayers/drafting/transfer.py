"""Moving a head to other layers: another head's weights as the start, and a share of its training."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from speclayers.config import DraftConfig
from speclayers.drafting.head import Eagle3Head, head_from_tensors, read_head_config
from speclayers.drafting.tensor_files import CONFIG_FILE, WEIGHTS_FILE, read_tensors
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.targets.target import Target


def start_weights(folder: Path, name: HeadName, target: Target) -> dict[str, Tensor]:
    """Return the weights that a moved head starts from.

    Layers keep their places: what fc learnt of the lowest layer is applied to the lowest new one, and so on.

    Args:
        folder: Folder of the head that is moved.
        name: Name of the moved head.
        target: The model of both.

    Raises:
        UserError: The folder holds another head than the one named, or one of another target.
    """
    config = read_head_config(folder / CONFIG_FILE)
    found = HeadName(layers=config.layers, seed=config.seed, kind=config.kind)
    if not name.start or found != name.origin() or config.started_from is not None:
        expected = name.origin() if name.start else "none, as the name says nothing of a start"
        moved = f", moved from {config.started_from}" if config.started_from else ""
        raise UserError(f"--start: {folder} holds head {found}{moved}; {name} expects {expected}")
    if config.target_hash != target.manifest.target_hash:
        raise UserError(f"--start: {folder} was trained for {config.target}; train it again for {target.name}")
    head = head_from_tensors(config, read_tensors(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)
    return {key: parameter.detach() for key, parameter in head.named_parameters()}


def moved_settings(draft: DraftConfig, name: HeadName) -> DraftConfig:
    """Return the settings of a moved head's training, which is its share of a whole one."""
    return share_of_training(draft, name.percent) if name.start else draft


def share_of_training(draft: DraftConfig, percent: int) -> DraftConfig:
    """Return the settings of some per cent of a training: of its steps or tokens, one at least, and of the warm-up."""
    lengths = {"steps": draft.steps, "warmup_steps": draft.warmup_steps, "tokens": draft.tokens}
    part = {key: round(length * percent / 100) for key, length in lengths.items() if length is not None}
    least = {key: 1 for key in ("steps", "tokens") if percent and part.get(key) == 0}
    return draft.model_copy(update=part | least)


def record_start(head: Eagle3Head, name: HeadName) -> None:
    """Write into a moved head's config what it started from, and how much training followed."""
    if name.start:
        update = {"started_from": str(name.origin()), "percent": name.percent}
        head.config = head.config.model_copy(update=update)
