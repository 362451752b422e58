"""Files of tensors that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from speclayers.errors import UserError
from speclayers.files import atomic_path


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
