"""Running single blocks of a target over several states that all stand at one position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Forward, replaced_forwards
from speclayers.targets.target import Target


class _Call(NamedTuple):
    forward: Forward
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class BlockRows:
    """Runs blocks over rows that stand at one position, each row as if it were alone there.

    Args:
        most: Most rows of a pass.
        calls: By block, its forward function and the arguments of a pass of `most` rows.
        cache: The target's cache.
        length: Rows in the cache before a pass.
    """

    def __init__(self, most: int, calls: dict[int, _Call], cache: PreallocatedCache, length: int) -> None:
        """Keep what the passes need."""
        self._most, self._calls, self._cache, self._length = most, calls, cache, length

    def run(self, block: int, states: Tensor) -> Tensor:
        """Run one block, counted from 1, over states (rows, width) that enter it.

        Returns:
            What it gives for each (rows, width).
        """
        forward, args, kwargs = self._calls[block]
        rows = len(states)
        if rows > self._most:
            raise ValueError(f"{rows} rows where at most {self._most} were announced")
        output: Tensor = forward(states[None], *_first(args, rows, self._most), **_first(kwargs, rows, self._most))
        self._cache.crop_to(self._length)
        return output[0].to(states.device)  # blocks may lie on several devices


@contextmanager
def rows_at_last_token(target: Target, cache: PreallocatedCache, most: int) -> Iterator[BlockRows]:
    """Run blocks at the position of the last token in the cache, as if it had not been run there yet.

    Every row sees what stands before that token, and itself; neither the other rows nor the token's own keys and
    values. So rows cost one pass, not one each, and no key or value of the prefix is copied
    (CLaSp, arXiv 2505.24196, section 3.4).

    Args:
        target: The model.
        cache: Its cache, with room for `most` rows more; it is left as it was.
        most: Most rows of a pass.
    """
    with cache.session():
        yield _prepared(target, cache, most)


def _prepared(target: Target, cache: PreallocatedCache, most: int) -> BlockRows:
    """Let the model's body make the arguments of its blocks, which differ between families, and keep them."""
    length = int(cache.get_seq_length())
    # The last token's own row stays where it is, hidden by the mask: taking it out and back would copy it.
    mask = torch.full((1, 1, most, length + most), torch.finfo(target.dtype).min, dtype=target.dtype)
    mask[..., : length - 1] = 0
    mask[0, 0, :, length:].fill_diagonal_(0)
    calls: dict[int, _Call] = {}

    def kept(block: int, module: nn.Module) -> Forward:
        forward = module.forward

        def keep(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            calls[block] = _Call(forward, args, kwargs)
            return hidden_states

        return keep

    blocks = {module: kept(block, module) for block, module in enumerate(target.anatomy.blocks, start=1)}
    ids = torch.zeros(1, most, dtype=torch.long, device=target.device)
    with replaced_forwards(blocks):
        target.anatomy.body(
            input_ids=ids,
            position_ids=torch.full((1, most), length - 1, device=target.device),
            attention_mask=mask.to(target.device),
            cache=cache,
            use_cache=True,
        )
    return BlockRows(most, calls, cache, length)


def _first(value: Any, rows: int, most: int) -> Any:
    """Cut a block's arguments down to their first rows: the mask, and what has a value for each row."""
    if isinstance(value, dict):
        return {key: _first(part, rows, most) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_first(part, rows, most) for part in value)
    if not isinstance(value, Tensor) or rows == most:
        return value
    if value.ndim == 4:
        return value[:, :, :rows, : value.shape[-1] - most + rows]
    return value[:, :rows]
