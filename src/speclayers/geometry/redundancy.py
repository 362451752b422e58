"""Which blocks CKA calls redundant: those whose input and output are most alike."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def redundant_blocks(cka: np.ndarray, count: int, free: Collection[int]) -> tuple[int, ...]:
    """Choose blocks to leave out so that least similarity is lost.

    A run of blocks a + 1 … b that is left out hands layer a's states to a block that is used to layer b's, and costs
    1 − CKA(a, b). Exactly `count` blocks are left out at the least total cost, by dynamic programming over all ways.
    Of equal ways the one with shorter runs is taken, from the top down.

    Args:
        cka: Similarity of every pair of layers (N + 1, N + 1), layer 0 the embedding.
        count: Blocks to leave out, at most those in `free`.
        free: Blocks that may be left out, counted from 1.

    Returns:
        The blocks, ascending.
    """
    n_layers = len(cka) - 1
    # cost[b, j]: least cost of the first b blocks with j left out, block b kept (or b = 0); run[b, j]: blocks left out
    # right before it. A kept block at place N + 1 stands for the top.
    cost = np.full((n_layers + 2, count + 1), np.inf)
    run = np.zeros((n_layers + 2, count + 1), dtype=int)
    cost[0, 0] = 0.0
    for block in range(1, n_layers + 2):
        for length in range(block):
            if length and block - length not in free:
                break  # a longer run would leave it out, too
            before = block - 1 - length
            price = 1 - cka[before, block - 1] if length else 0.0
            for left_out in range(length, count + 1):
                total = cost[before, left_out - length] + price
                if total < cost[block, left_out]:
                    cost[block, left_out], run[block, left_out] = total, length
    blocks: list[int] = []
    block, left_out = n_layers + 1, count
    while block > 0:
        length = int(run[block, left_out])
        blocks += range(block - length, block)
        block, left_out = block - 1 - length, left_out - length
    return tuple(sorted(blocks))
