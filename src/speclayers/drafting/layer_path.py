"""Which blocks to skip so that a token's state at the top changes least: CLaSp's dynamic programme.

Source: arXiv 2505.24196, section 3.3 and algorithm 1. Its equation 1 says argmin of the cosine; meant is the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

RunBlock = Callable[[int, Tensor], Tensor]
"""Runs one block, counted from 1, over states (rows, width) that enter it, each as if it were alone."""


class LayerPath(NamedTuple):
    """A way through the blocks.

    Args:
        skipped: Blocks that it skips, ascending.
        cosine: Of its state at the top with the full model's.
        layer_passes: Passes of a block that finding it took.
        rows: States run over in them.
    """

    skipped: tuple[int, ...]
    cosine: float
    layer_passes: int
    rows: int


def find_path(states: Tensor, run: RunBlock, skipped: int, free: AbstractSet[int]) -> LayerPath:
    """Skip blocks one way that a dynamic programme finds good.

    g(i, j) is the best state after i blocks of which j are skipped: that of the two below it that is more alike to
    the full model's x_i, block i skipped or run; on a tie it is skipped. g(i, 0) is x_i. States from which
    exactly `skipped` skips cannot be reached are left out. A choice looks at depth i alone, so the result need not
    be the best of all ways.

    Args:
        states: The full model's states (N + 1, width) of one token: what enters block 1, then what each block gives,
            the last one before the final norm.
        run: Runs one block.
        skipped: Blocks to skip.
        free: Blocks that may be skipped, counted from 1; at least `skipped`.
    """
    n_layers = len(states) - 1
    best = states.new_empty(skipped + 1, states.shape[-1])  # row j: g(i, j)
    best[0] = states[0]
    skips = torch.zeros(n_layers + 1, skipped + 1, dtype=torch.bool, device=states.device)
    most, left, sizes = 0, len(free), list[int]()
    for block in range(1, n_layers + 1):
        left -= block in free
        least = max(1, skipped - left)
        ran = run(block, best[least : most + 1]) if least <= most else best[:0]
        sizes.append(len(ran))
        if block in free:
            most = min(skipped, most + 1)
            passed = best[least - 1 : most].clone()
            skips[block, least : most + 1] = _skip(passed, ran, states[block])
            unrun = passed[len(ran) :]  # where all blocks so far are skipped there is nothing else
            chosen = skips[block, least : most + 1, None]
            best[least : most + 1] = torch.where(chosen, passed, torch.cat((ran, unrun)))
        else:
            best[least : most + 1] = ran
        best[0] = states[block]
    cosine = float(_cosine(best[skipped], states[-1]))
    passes = sum(size > 0 for size in sizes)
    return LayerPath(_back(skips.tolist(), skipped), cosine, passes, sum(sizes))


def _skip(passed: Tensor, ran: Tensor, full: Tensor) -> Tensor:
    """Return where the state passed on is at least as alike to the full model's (width,) as the one run, if any."""
    skip = torch.ones(len(passed), dtype=torch.bool, device=passed.device)
    skip[: len(ran)] = _cosine(ran, full) <= _cosine(passed[: len(ran)], full)
    return skip


def _cosine(states: Tensor, full: Tensor) -> Tensor:
    # in float64: norms reach 2.5e4, whose squares overflow float16
    return normalize(states.double(), dim=-1) @ normalize(full.double(), dim=-1)


def _back(skips: list[list[bool]], skipped: int) -> tuple[int, ...]:
    """Follow the choices down from the top, from which `skipped` blocks are skipped."""
    path = []
    for block in range(len(skips) - 1, 0, -1):
        if skips[block][skipped]:
            path.append(block)
            skipped -= 1
    return tuple(reversed(path))
