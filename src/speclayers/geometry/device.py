"""Where the heavy products are formed: numpy on the processor, or torch in fp64 on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from speclayers.config import DeviceName
from speclayers.errors import UserError


class Device(Protocol):
    """Moves arrays to where they are multiplied, and back.

    What lies there is used only by what numpy arrays and torch tensors share: `@`, `+=`, `swapaxes`, `reshape`, slices.
    """

    def put(self, values: np.ndarray) -> Any:
        """Return the values where they are multiplied."""

    def get(self, values: Any) -> np.ndarray:
        """Return values as a numpy array."""


class Processor:
    """The processor: arrays stay as they are."""

    def put(self, values: np.ndarray) -> np.ndarray:
        """Return the values themselves."""
        return values

    def get(self, values: np.ndarray) -> np.ndarray:
        """Return the values themselves."""
        return values


class TorchDevice:
    """A device of torch.

    Args:
        name: What torch calls it.
    """

    def __init__(self, name: str) -> None:
        """Import torch."""
        import torch  # only here: a study on the processor needs no torch

        self._from_numpy = torch.from_numpy
        self._device = torch.device(name)

    def put(self, values: np.ndarray) -> Any:
        """Return a tensor on the device."""
        return self._from_numpy(values).to(self._device)

    def get(self, values: Any) -> np.ndarray:
        """Return a tensor's values as a numpy array."""
        return np.asarray(values.cpu().numpy())


PROCESSOR = Processor()


def open_device(name: DeviceName) -> Device:
    """Return the device that the config asks for.

    Args:
        name: `geometry.device`.

    Raises:
        UserError: It asks for CUDA, and torch or the device is missing.
    """
    if name == "cpu":
        return PROCESSOR
    try:
        import torch
    except ImportError:
        raise UserError("geometry.device: found cuda, which needs torch; install it, or set cpu") from None
    if not torch.cuda.is_available():
        raise UserError("geometry.device: found cuda, but torch sees no CUDA device here; set cpu, or ask for a GPU")
    return TorchDevice("cuda")
