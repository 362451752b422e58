"""Files of tensors: written whole or not at all, and read into a module that they fit exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speclayers.errors import UserError
from speclayers.files import atomic_path
from speclayers.targets.target import Target

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
"""Files in the folder of anything that drafts with weights of its own."""


def folder_of(weights: Path, config: Path) -> Path:
    """Return the folder of both files.

    Raises:
        UserError: They lie in different ones, or have other names.
    """
    folder = weights.parent
    if (weights, config) != (folder / WEIGHTS_FILE, folder / CONFIG_FILE):
        raise UserError(f"--output, --config: expected {WEIGHTS_FILE} and {CONFIG_FILE} in one folder")
    return folder


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file.

    Args:
        path: The file.
        tensors: By name, on any device.
        metadata: Goes into its header.

    Raises:
        UserError: The file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata=dict(metadata))
        except SafetensorError as error:  # how the library tells what the system refused, such as a full disk
            raise UserError(f"{path}: cannot be written: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        UserError: The file is missing or broken.
    """
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: file is missing") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: is no readable safetensors file ({error}); delete it and run again") from None
    return tensors


def fill(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Set all weights and buffers of a module.

    Args:
        module: Of the sizes that its config says.
        tensors: By name.
        source: The file they come from, for messages.

    Raises:
        UserError: A tensor is missing, unknown or has another shape.
    """
    expected = module.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise UserError(f"{source}: tensor {name} is missing")
        if name not in expected:
            raise UserError(f"{source}: tensor {name} is unknown to a head of these sizes")
        found, wanted = tuple(tensors[name].shape), tuple(expected[name].shape)
        if found != wanted:
            raise UserError(f"{source}: tensor {name} has shape {found}, expected {wanted}")
    module.load_state_dict(tensors)


def refuse_other_target(folder: Path, name: str, target_hash: str, target: Target) -> None:
    """Check that weights were trained for a target.

    Args:
        folder: Where they lie, for messages.
        name: Name of the target that they were trained for.
        target_hash: Hash of its files.
        target: The target that they shall draft for.

    Raises:
        UserError: They were trained for another one.
    """
    expected = target.manifest.target_hash
    if target_hash != expected:
        raise UserError(
            f"{folder}: this head was trained for {name} ({target_hash[:12]}), not for "
            f"{target.name} ({expected[:12]}); train it again for this target"
        )
