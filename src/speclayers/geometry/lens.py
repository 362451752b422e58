"""Logit-lens entropy: how uncertain the model would be if it read its prediction off each layer.

A mean over tokens of entropies over the *vocabulary*; not the matrix entropy, which is one number of a whole set of
tokens and knows no vocabulary. The two can move against each other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from speclayers.geometry.dump import read_lens
from speclayers.geometry.jackknife import interval
from speclayers.geometry.tokens import RowSets

_log = logging.getLogger(__name__)


class LensRows(NamedTuple):
    """Lens entropies of the sampled tokens that count.

    Args:
        values: (rows, layers) nats.
        block: Block of each row, (rows,).
    """

    values: np.ndarray
    block: np.ndarray

    def mean(self, kept: np.ndarray | None = None) -> np.ndarray:
        """Return the mean over tokens, (layers,) nats; NaN where there is none.

        Args:
            kept: Which blocks count, (blocks,) bool; all when not given.
        """
        values = self.values if kept is None else self.values[kept[self.block]]
        return values.mean(axis=0) if len(values) else np.full(self.values.shape[1], np.nan)


def lens_rows(parts: Sequence[Path], sets: RowSets, n_layers: int) -> LensRows:
    """Read the sampled tokens of a dump that are responses and no sinks.

    Args:
        parts: Parquet files of the dump, in order.
        sets: Rows that count.
        n_layers: Number of decoder blocks N.
    """
    rows, values = read_lens(parts, n_layers)
    counts = np.isin(rows, sets.rows["all"])
    return LensRows(values[counts], sets.block_of(rows[counts]))


def lens_profile(found: LensRows, n_blocks: int) -> pd.DataFrame:
    """Return the mean of each layer with limits by the block jackknife, columns of LENS.

    Args:
        found: Lens entropies.
        n_blocks: Number of blocks of prompts.
    """
    sizes = np.bincount(found.block, minlength=n_blocks)
    present = np.flatnonzero(sizes)
    value = found.mean()
    low = high = np.full(len(value), np.nan)
    if len(present) >= 2:
        without = np.stack([found.mean(np.arange(n_blocks) != block) for block in present])
        low, high = interval(value, without, sizes[present])
    elif not len(present):
        _log.warning("no token was read out at every layer: lens entropy is left empty (geometry.lens_tokens)")
    return pd.DataFrame(
        {
            "layer": np.arange(len(value)),
            "n_tokens": len(found.values),
            "lens_entropy": value,
            "ci_low": low,
            "ci_high": high,
        }
    )
