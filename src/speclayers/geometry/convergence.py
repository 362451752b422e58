"""How entropy and similarity settle as tokens are added: whether the calibration was large enough."""

from __future__ import annotations

import numpy as np
import pandas as pd

from speclayers.geometry.gram import GramSums, similarity
from speclayers.geometry.tokens import FEWEST_ROWS

STEPS = 8


def convergence(sums: GramSums) -> pd.DataFrame:
    """Measure growing numbers of blocks of prompts, each containing the one before; all come out of the block sums.

    Args:
        sums: Gram sums of the filtered rows by block.

    Returns:
        Columns of CONVERGENCE, for up to STEPS sizes; those of fewer than FEWEST_ROWS rows are left out.
    """
    frames = []
    for blocks in np.unique(np.ceil(sums.n_blocks * np.arange(1, STEPS + 1) / STEPS).astype(int)):
        kept = np.arange(sums.n_blocks) < blocks  # prompts are dealt to blocks at random: the first are a sample
        tokens = int(sums.block_sizes[kept].sum())
        if tokens < FEWEST_ROWS:
            continue
        found = similarity(sums, kept)
        next_one = np.append(np.diagonal(found.debiased, offset=1), np.nan)
        rows = {"layer": np.arange(len(found.gram)), "n_blocks": blocks, "n_tokens": tokens}
        frames.append(pd.DataFrame(rows | {"entropy": -np.log(np.diagonal(found.gram)), "cka_next": next_one}))
    return pd.concat(frames)
