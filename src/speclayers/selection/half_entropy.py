"""Shannon entropy of one layer on part of the blocks of prompts, without an eigendecomposition for each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from speclayers.geometry.entropy import entropy_of, principal_rows

_SMALLEST = 1e-15  # share of the trace below which an axis counts as empty
_HELD_BYTES = 2**27


class BlockMoments(NamedTuple):
    """What the entropy of any union of blocks of one layer's rows needs, in the principal axes of all rows.

    Args:
        squares: Squared sums of each block's rows along each axis, (blocks, r).
        sums: Sums of each block's rows along each axis, (blocks, r).
        mixing: Σ_{k≠l} C_kl C'_kl / m(p_k, p_l) of each two blocks' covariances C and C', (blocks, blocks), with p
            the spectrum of all rows and m the logarithmic mean.
        sizes: Rows of each block, (blocks,).
        recentre: Whether rows are centred anew over those that are kept.
    """

    squares: np.ndarray
    sums: np.ndarray
    mixing: np.ndarray
    sizes: np.ndarray
    recentre: bool

    def entropy(self, kept: np.ndarray) -> float:
        """Return Shannon's S of the rows of some blocks, to second order; NaN where they do not differ.

        In the principal axes of all rows, the covariance of a part is a diagonal plus a rest. The diagonal is
        taken exactly, the rest to second order at the spectrum of all rows (Daleckii and Krein; Bhatia, "Matrix
        Analysis", theorem V.3.3), where −p ln p has the divided difference −1 / m(p_k, p_l). It is a quadratic
        form in the blocks that are kept, so that every half-sample comes out of one small matrix. Centring anew
        enters the diagonal only; its other part, of the order of one over the kept blocks, is left out.

        Args:
            kept: Which blocks count, (blocks,) bool.
        """
        weight = kept.astype(np.float64)
        diagonal = weight @ self.squares
        if self.recentre:
            diagonal = diagonal - np.square(weight @ self.sums) / max(1.0, weight @ self.sizes)
        diagonal = np.clip(diagonal, 0, None)
        trace = diagonal.sum()
        if trace <= 1e-12 * self.squares.sum():
            return float("nan")
        return float(entropy_of(diagonal) - 0.5 * weight @ self.mixing @ weight / trace**2)


def block_moments(rows: np.ndarray, block: np.ndarray, n_blocks: int, recentre: bool) -> BlockMoments:
    """Compute the moments of one layer.

    Args:
        rows: Z of unit trace, (n, width), preprocessed.
        block: Block of each row, (n,).
        n_blocks: Number of blocks; some may have no row here.
        recentre: Whether rows are centred over tokens, hence anew over those kept.
    """
    principal = principal_rows(rows)
    members = [principal[block == each] for each in range(n_blocks)]
    return BlockMoments(
        squares=np.stack([np.square(part).sum(axis=0) for part in members]),
        sums=np.stack([part.sum(axis=0) for part in members]),
        mixing=_mixing(members, np.square(principal).sum(axis=0)),
        sizes=np.bincount(block, minlength=n_blocks),
        recentre=recentre,
    )


def _mixing(members: Sequence[np.ndarray], spectrum: np.ndarray) -> np.ndarray:
    """Sum over some axes at a time, so that memory does not hold a covariance for each block."""
    axes = len(spectrum)
    p = np.maximum(spectrum / spectrum.sum(), _SMALLEST)
    found = np.zeros((len(members), len(members)))
    step = max(1, _HELD_BYTES // (8 * axes * len(members)))
    for start in range(0, axes, step):
        some = slice(start, min(start + step, axes))
        scale = 1 / np.sqrt(_logarithmic_mean(p[:, None], p[some]))
        scale[np.arange(axes)[some], np.arange(scale.shape[1])] = 0  # the diagonal is taken exactly
        scaled = np.stack([(scale * (part.T @ part[:, some])).ravel() for part in members])
        found += scaled @ scaled.T
    return found


def _logarithmic_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (a − b) / (ln a − ln b), and the mean where both are close."""
    difference = a - b
    close = np.abs(difference) <= 1e-6 * np.maximum(a, b)
    return np.asarray(np.where(close, (a + b) / 2, difference / np.where(close, 1, np.log(a) - np.log(b))))
