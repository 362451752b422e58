"""A key-value cache that is written in place and can be compacted after tree verification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from speclayers.errors import UserError
from speclayers.targets.target import Target


class _PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one block, in buffers (batch, kv_heads, capacity, head_dim)."""

    # transformers' DynamicLayer concatenates the whole past at every step; here a step writes its own rows.
    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.is_initialized = False
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_empty(batch, heads, self.capacity, key_states.shape[-1])
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise ValueError(f"cache holds {self.capacity} tokens; {end} were written")
        keys, values = self._buffers()
        keys[:, :, self.length : end] = key_states
        values[:, :, self.length : end] = value_states
        self.length = end
        return keys[:, :, :end], values[:, :, :end]

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None or self.values is None:
            raise ValueError("the cache has not been written yet")
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    def reset(self) -> None:
        self.length = 0

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:  # an absolute length in older versions of transformers
            raise ValueError(f"crop takes a negative count; found {tokens_to_remove}")
        self.length += tokens_to_remove

    def keep_rows(self, start: int, rows: torch.Tensor) -> None:
        end = start + len(rows)
        for buffer in self._buffers():
            buffer[:, :, start:end] = buffer[:, :, rows.to(buffer.device)]  # copied before anything is overwritten
        self.length = end

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if not self.is_initialized:
            return
        count = len(indices)
        for buffer in (buffers := self._buffers()):
            buffer[:count, :, : self.length] = buffer[indices.to(buffer.device), :, : self.length]
        self.keys, self.values = (buffer[:count] for buffer in buffers)


class PreallocatedCache(Cache):
    """A transformers cache with room for a fixed number of tokens; batch size and device come from its first use.

    Args:
        target: The model whose keys and values it holds.
        capacity: Tokens per sequence, padding and draft nodes included.
        rows: How many of them are rows of a verifying pass, which may share positions.

    Raises:
        UserError: The model has blocks that keep no keys and values of every position, or attends in a
            window shorter than the sequence.
    """

    def __init__(self, target: Target, capacity: int, rows: int = 0) -> None:
        """Prepare the blocks' buffers; they are allocated at the first forward pass."""
        window = attention_window(target)
        if window is not None and capacity - rows > window:
            raise UserError(
                f"{target.name}: a sequence of {capacity - rows} tokens exceeds its sliding window of {window}; "
                "lower max_prompt_tokens or max_new_tokens"
            )
        self._blocks = [_PreallocatedLayer(capacity) for _ in range(target.n_layers)]
        super().__init__(layers=list(self._blocks))
        self.capacity = capacity
        self._verified = 0

    # Inside a session blocks may be skipped, block 0 among them, so the longest one says where the next row stands.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of rows in the blocks that hold most."""
        return max(block.length for block in self._blocks)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many columns a mask has with `query_length` rows more, and the first one's position."""
        return self.get_seq_length() + query_length, 0

    @contextmanager
    def session(self) -> Iterator[None]:
        """Lend the cache: rows that some or all blocks append inside are forgotten at its end, also after an exception.

        Rows from before the session cannot be cropped inside it.
        """
        lengths = [block.length for block in self._blocks]
        outer, self._verified = self._verified, max(lengths)
        try:
            yield
        finally:
            for block, length in zip(self._blocks, lengths, strict=True):
                block.length = length
            self._verified = outer

    def crop_to(self, length: int) -> None:
        """Forget everything from position `length` on."""
        current = self.get_seq_length()
        if not self._verified <= length <= current:
            raise ValueError(f"cannot crop a cache of {current} tokens to {length}")
        for block in self._blocks:
            block.length = min(block.length, length)  # a skipped block holds fewer

    def keep_rows(self, start: int, rows: torch.Tensor) -> None:
        """Compact the tail: move `rows` to start, start + 1, … and forget the other rows from `start` on.

        Args:
            start: First position of the tail.
            rows: Positions (n,) in the cache, ascending, none below `start`.
        """
        rows = rows.to(torch.long)
        bounded = len(rows) == 0 or (int(rows[0]) >= start and int(rows[-1]) < self.get_seq_length())
        if not bounded or bool((rows.diff() <= 0).any()):
            raise ValueError(f"rows {rows.tolist()} do not ascend within {start} … {self.get_seq_length() - 1}")
        if torch.equal(rows.cpu(), torch.arange(start, start + len(rows))):
            self.crop_to(start + len(rows))
            return
        for block in self._blocks:
            block.keep_rows(start, rows)


def attention_window(target: Target) -> int | None:
    """Return how many tokens back a model's blocks see; None where all see the whole text.

    Raises:
        UserError: The model has blocks that keep no keys and values of every position.
    """
    config = target.text_config
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise UserError(
            f"{target.name}: {target.manifest.architecture} has {unknown[0]} layers, which are not supported"
        )
    window: int | None = getattr(config, "sliding_window", None)
    return window if not kinds or "sliding_attention" in kinds else None
