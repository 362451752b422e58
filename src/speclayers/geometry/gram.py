"""Similarity of all pairs of layers on any blocks of prompts, from the inner products of their Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speclayers.errors import UserError
from speclayers.geometry.products import inner_products
from speclayers.geometry.rows import Rows

_ROUNDING = 1e-12


@dataclass(frozen=True)
class RowSums:
    """Per row, the diagonal of every layer's Gram matrix and its sum over each block of columns.

    Args:
        diagonal: K_ii, (layers, n).
        sums: Σ_{j in block} K_ij, (layers, n, blocks).
        block: Block of each row, (n,).
    """

    diagonal: np.ndarray
    sums: np.ndarray
    block: np.ndarray


@dataclass(frozen=True)
class GramSums:
    """All that every Gram statistic of any union of blocks needs, exactly.

    Args:
        products: <K_a, K_b> over rows of one block and columns of another, (layers, layers, blocks, blocks),
            for Gram matrices of unit trace over all rows.
        rows: Diagonals and row sums.
        recentre: Whether the statistics centre over the rows that are kept.
    """

    products: np.ndarray
    rows: RowSums
    recentre: bool

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.products.shape[-1])

    @property
    def block_sizes(self) -> np.ndarray:
        """Rows of each block, (blocks,)."""
        return np.bincount(self.rows.block, minlength=self.n_blocks)


def row_sums(rows: Rows, n_blocks: int) -> RowSums:
    """Compute diagonals and block-wise row sums, a layer at a time.

    Args:
        rows: Rows of the subset.
        n_blocks: Number of blocks; some may have no row here.
    """
    found = [layer_row_sums(rows.layer(layer), rows.block, n_blocks) for layer in range(rows.n_layers)]
    return join_row_sums(found, rows.block)


def layer_row_sums(z: np.ndarray, block: np.ndarray, n_blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one layer's diagonal, (n,), and block-wise row sums, (n, blocks).

    Args:
        z: Z of unit trace, (n, width).
        block: Block of each row, (n,).
        n_blocks: Number of blocks.
    """
    members = (block == np.arange(n_blocks)[:, None]).astype(np.float64)
    return np.square(z).sum(axis=1), z @ (members @ z).T


def join_row_sums(found: Sequence[tuple[np.ndarray, np.ndarray]], block: np.ndarray) -> RowSums:
    """Join what `layer_row_sums` gave for layer after layer."""
    return RowSums(np.stack([diagonal for diagonal, _ in found]), np.stack([sums for _, sums in found]), block)


def gram_sums(rows: Rows, n_blocks: int, products: np.ndarray | None = None) -> GramSums:
    """Compute all sums of a subset.

    Args:
        rows: Rows of the subset.
        n_blocks: Number of blocks.
        products: What `inner_products` gave for them; computed here when not given.
    """
    found = inner_products(rows, n_blocks) if products is None else products
    return GramSums(found, row_sums(rows, n_blocks), rows.how == "centre")


class Similarity(NamedTuple):
    """What a union of blocks says about every pair of layers, each (layers, layers).

    Args:
        gram: Q, the inner products of the unit-trace Gram matrices.
        debiased: CKA by HSIC₁.
        biased: CKA.
    """

    gram: np.ndarray
    debiased: np.ndarray
    biased: np.ndarray


def similarity(sums: GramSums, kept: np.ndarray | None = None) -> Similarity:
    """Compute Q and CKA on the rows of some blocks, centred anew over them, without any approximation.

    HSIC₁: Song et al., "Feature selection via dependence maximization", JMLR 13 (2012), equation 5. It and
    the centred products need tr(KL), 1ᵀK1, K1 and the diagonals only; over a union of blocks these are sums
    of what is kept by block and by row. Both are blind to a shift of the rows, hence to the old centring.

    Args:
        sums: Sums of the subset.
        kept: Which blocks count, (blocks,) bool; all when not given.

    Returns:
        NaN where a layer does not vary over these rows. Debiased CKA is also NaN where a layer's HSIC₁ with
        itself is not positive: too few rows differ for an estimate.

    Raises:
        UserError: Fewer than four rows are left.
    """
    weight = np.ones(sums.n_blocks) if kept is None else kept.astype(np.float64)
    rows = weight[sums.rows.block] > 0
    n = int(rows.sum())
    if n < 4:
        raise UserError(f"activations: {n} tokens are left without one block of prompts, expected at least 4")
    diagonal = sums.rows.diagonal[:, rows]
    row = sums.rows.sums[:, rows] @ weight  # (layers, n)
    cross = (sums.products @ weight) @ weight  # tr(K_a K_b), (layers, layers)
    total = row.sum(axis=1)
    centred = cross - 2 / n * (row @ row.T) + np.outer(total, total) / n**2
    trace = diagonal.sum(axis=1) - (total / n if sums.recentre else 0)
    return Similarity(
        gram=(centred if sums.recentre else cross) / np.outer(_positive(trace), _positive(trace)),
        debiased=_normalised(_hsic1(cross, row, diagonal)),
        biased=_normalised(centred),
    )


def _hsic1(cross: np.ndarray, row: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Return n (n − 3) HSIC₁ of all pairs of layers from Gram matrices whose diagonals are then set to zero."""
    n = row.shape[1]
    off_row = row - diagonal
    off_total = off_row.sum(axis=1)
    products = cross - diagonal @ diagonal.T
    correction = np.outer(off_total, off_total) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (off_row @ off_row.T)
    return np.asarray(products + correction)


def _normalised(hsic: np.ndarray) -> np.ndarray:
    own = _positive(np.diagonal(hsic))
    return np.asarray(hsic / np.sqrt(np.outer(own, own)))


def _positive(values: np.ndarray) -> np.ndarray:
    """Return values with NaN for what is not positive beyond rounding; everything here is of order one at most."""
    return np.where(values > _ROUNDING, values, np.nan)


def without_each_block(sums: GramSums) -> tuple[Similarity, np.ndarray]:
    """Compute Q and CKA without each block that has rows, for the jackknife.

    Args:
        sums: Sums of the subset.

    Returns:
        The statistics, each (blocks with rows, layers, layers), and the rows of those blocks.
    """
    present = np.flatnonzero(sums.block_sizes)
    parts = [similarity(sums, np.arange(sums.n_blocks) != block) for block in present]
    stacked = Similarity(*(np.stack(values) for values in zip(*parts, strict=True)))
    return stacked, sums.block_sizes[present]


def renyi2(gram: np.ndarray, layers: Sequence[int]) -> float:
    """Return E₂(S) = −ln(Σ_{a,b∈S} Q_ab / |S|²), exact for any layer set.

    Args:
        gram: Q, (layers, layers).
        layers: The set.
    """
    chosen = np.asarray(layers)
    return float(-np.log(gram[np.ix_(chosen, chosen)].mean()))
