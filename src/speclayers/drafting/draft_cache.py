"""What a draft head remembers of the slots it has run over."""

from __future__ import annotations

import torch
from torch import Tensor


class DraftCache:
    """Preallocated keys and values of the head's one decoder layer.

    Args:
        shape: (batch, kv_heads, capacity, head_dim); the capacity is the most rows that it can hold.
        like: A tensor whose device and precision the buffers take.
    """

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        """Allocate the buffers."""
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.capacity = shape[2]
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new rows behind the held ones and return all.

        Args:
            keys: (batch, kv_heads, t, head_dim).
            values: The same shape.

        Raises:
            ValueError: The rows do not fit (a bug of the caller).
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"draft cache of {self.capacity} rows cannot hold {end}")
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def crop_to(self, length: int) -> None:
        """Forget every row from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"draft cache holds {self.length} rows and cannot be cropped to {length}")
        self.length = length
