"""Matrix entropy of one layer and of layer sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from speclayers.config import Preprocessing
from speclayers.errors import UserError

_ROUNDING = 1e-24  # a centred trace below this share of the rows' own squares is rounding, not spread
_GRAM_ROUNDING = 1e-13  # the same where the Gram matrix itself was centred, which loses more digits
_SMALLEST = 1e-14  # share of the trace below which an eigenvalue is taken for this much


def preprocess(rows: np.ndarray, how: Preprocessing, mean: np.ndarray | None = None) -> np.ndarray:
    """Return rows as the Gram matrix takes them, in fp64.

    `centre_row_norm` is what Skean et al. (arXiv 2502.02013) do; `none` is arXiv 2510.06477.

    Args:
        rows: States, (..., n, width), any precision; leading axes are treated apart.
        how: Centre over tokens, scale each row to unit length, both in this order, or neither.
        mean: What is subtracted, (..., 1, width), when the rows are a part of a larger set; their own mean otherwise.
    """
    rows = rows.astype(np.float64)  # squares of fp16 states overflow: upcast before any product
    if how in ("centre", "centre_row_norm"):
        rows -= rows.mean(axis=-2, keepdims=True) if mean is None else mean
    if how in ("row_norm", "centre_row_norm"):
        norms = np.linalg.norm(rows, axis=-1, keepdims=True)
        rows /= np.where(norms > 0, norms, 1)
    return rows


def eigenvalues(rows: np.ndarray, route: Literal["smaller", "gram", "covariance"] = "smaller") -> np.ndarray:
    """Return the eigenvalues of ZZᵀ that can differ from zero.

    Args:
        rows: Z, (..., n, width), preprocessed.
        route: Gram matrix (n × n), covariance (width × width), or the smaller of them.

    Returns:
        (..., n) or (..., width), none negative.
    """
    gram = route == "gram" or (route == "smaller" and rows.shape[-2] <= rows.shape[-1])
    turned = np.swapaxes(rows, -1, -2)
    product = rows @ turned if gram else turned @ rows
    return np.clip(np.linalg.eigvalsh(product), 0, None)


def information_flow_spectrum(rows: np.ndarray) -> np.ndarray:
    """Return the eigenvalues that the package information_flow takes the entropy of, for comparison only.

    As read in its public code (OFSkean/information_flow, `compute_entropy` and `normalize`) and in that of repitl,
    which it calls: rows are centred, then scaled to unit length; of the smaller of Gram matrix and covariance,
    negative *entries* are set to zero; of what is left, eigenvalues above zero count. Without its negative
    entries the matrix is no Gram matrix any more: the values exceed S, and differ between the two matrices.

    Args:
        rows: States, (..., n, width). A row at the mean stays zero here; there it becomes NaN.

    Returns:
        (..., min(n, width)), none negative.
    """
    prepared = preprocess(rows, "centre_row_norm")
    turned = np.swapaxes(prepared, -1, -2)
    product = turned @ prepared if rows.shape[-2] > rows.shape[-1] else prepared @ turned
    return np.clip(np.linalg.eigvalsh(np.clip(product, 0, None)), 0, None)


def gram_spectra(gram: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Return the eigenvalues of Gram matrices after preprocessing, from those of rows as they are.

    Args:
        gram: XXᵀ of unprocessed rows, (..., n, n); where `how` centres, rows may have been shifted.
        how: Preprocessing.

    Returns:
        (..., n), none negative, all zero where the rows do not differ.
    """
    size = np.trace(gram, axis1=-2, axis2=-1)
    if how in ("centre", "centre_row_norm"):
        rows = gram.mean(axis=-1, keepdims=True)
        gram = gram - rows - np.swapaxes(rows, -1, -2) + rows.mean(axis=-2, keepdims=True)
    flat = np.trace(gram, axis1=-2, axis2=-1) <= _GRAM_ROUNDING * size
    if how in ("row_norm", "centre_row_norm"):
        norms = np.sqrt(np.clip(np.diagonal(gram, axis1=-2, axis2=-1), 0, None))
        norms = np.where(norms > 0, norms, 1)
        gram = gram / (norms[..., :, None] * norms[..., None, :])
    return np.where(flat[..., None], 0, np.clip(np.linalg.eigvalsh(gram), 0, None))


def entropy_of(weights: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    """Return the Rényi entropy of spectra; Shannon's for α = 1.

    Args:
        weights: Eigenvalues, (..., r), none negative; each spectrum is normalised to sum one. One without
            weight has no direction and entropy 0.
        alpha: Rényi order, above 0.

    Returns:
        (...) nats.
    """
    total = weights.sum(axis=-1, keepdims=True)
    p = np.where(total > 0, weights / np.where(total > 0, total, 1), 0)
    if alpha == 1:
        return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1))
    powers = np.where(p > 0, p, 0) ** alpha
    sums = powers.sum(axis=-1)
    return np.asarray(np.log(np.where(sums > 0, sums, 1)) / (1 - alpha))


def matrix_entropy(rows: np.ndarray, alpha: float = 1.0, how: Preprocessing = "centre") -> float:
    """Return S_α of one layer's rows.

    Args:
        rows: States, (n, width).
        alpha: Rényi order; 1 is Shannon.
        how: What is done to the rows first.

    Returns:
        Nats, at most ln min(n, width); 0 where no row differs from another.
    """
    prepared = preprocess(rows, how)
    return 0.0 if no_spread(rows, prepared) else float(entropy_of(eigenvalues(prepared), alpha))


def no_spread(rows: np.ndarray, prepared: np.ndarray) -> np.ndarray:
    """Tell whether preprocessed rows are zero up to rounding.

    Args:
        rows: States, (..., n, width).
        prepared: The same, preprocessed.

    Returns:
        (...) bool.
    """
    return np.asarray(squares(prepared) <= _ROUNDING * squares(rows))


def principal_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows in the axes that diagonalise their covariance: column k has the squared sum λ_k.

    Args:
        rows: Z, (n, width), preprocessed.

    Returns:
        (n, min(n, width)).
    """
    if len(rows) <= rows.shape[1]:
        values, vectors = np.linalg.eigh(rows @ rows.T)
        return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))
    return np.asarray(rows @ np.linalg.eigh(rows.T @ rows)[1])


def entropies_without(principal: np.ndarray, block: np.ndarray, alphas: Sequence[float], recentre: bool) -> np.ndarray:
    """Return the entropies without each block, without an eigendecomposition for each.

    In the principal axes of all rows, the covariance of what is left is a diagonal plus a small rest. The
    diagonal is taken exactly, the rest to second order: for tr f it adds half the sum over k ≠ l of
    (f'(p_k) − f'(p_l)) / (p_k − p_l) times the squared entry (Daleckii and Krein; Bhatia, "Matrix Analysis",
    theorem V.3.3), at the p of all rows. Exact for α = 2;
    coarser below 1, where small eigenvalues weigh most.

    Args:
        principal: Rows in principal axes, (n, r).
        block: Block of each row, (n,).
        alphas: Rényi orders.
        recentre: Whether rows are centred over tokens, hence anew over those left.

    Returns:
        (blocks that have rows, orders) nats; NaN where the rows left do not differ.
    """
    spectrum, total = np.square(principal).sum(axis=0), principal.sum(axis=0)
    spectrum = np.maximum(spectrum, _SMALLEST * spectrum.sum())
    second_order = [_divided_differences(spectrum / spectrum.sum(), alpha) for alpha in alphas]
    found = []
    for each in np.unique(block):
        gone = principal[block == each]
        if recentre:
            left = len(principal) - len(gone)
            gone = np.concatenate([gone, (total - gone.sum(axis=0))[None] / np.sqrt(left)])
        rest = gone.T @ gone
        diagonal = np.maximum(spectrum - np.diagonal(rest), _SMALLEST * spectrum.sum())
        if diagonal.sum() <= 1e-12 * spectrum.sum():
            found.append([np.nan] * len(alphas))
            continue
        np.fill_diagonal(rest, 0)
        rest /= diagonal.sum()
        np.square(rest, out=rest)
        p = diagonal / diagonal.sum()
        corrections = [0.5 * float(np.vdot(weights, rest)) for weights in second_order]
        found.append([_corrected(p, alpha, more) for alpha, more in zip(alphas, corrections, strict=True)])
    return np.array(found)


def _corrected(p: np.ndarray, alpha: float, correction: float) -> float:
    """Return the entropy of a spectrum whose sum of f(p) is off by a correction."""
    if alpha == 1:
        return float(-(p * np.log(p)).sum() + correction)
    return float(np.log((p**alpha).sum() + correction) / (1 - alpha))


def _divided_differences(p: np.ndarray, alpha: float) -> np.ndarray:
    """Return (f'(p_k) − f'(p_l)) / (p_k − p_l), (r, r), and f'' where both are close.

    f is −p ln p for α = 1 and p^α otherwise.
    """
    if alpha == 1:
        slope, curvature = -np.log(p), -1 / p
    else:
        slope, curvature = alpha * p ** (alpha - 1), alpha * (alpha - 1) * p ** (alpha - 2)
    difference = p[:, None] - p
    close = np.abs(difference) <= 1e-6 * p[:, None]
    difference[close] = 1
    return np.where(close, curvature[:, None], (slope[:, None] - slope) / difference)


def unit_trace_gram(rows: np.ndarray, layer: int, how: Preprocessing = "centre") -> np.ndarray:
    """Return K = ZZᵀ / tr(ZZᵀ) of one layer.

    Args:
        rows: States, (n, width).
        layer: Layer index, for the message.
        how: What is done to the rows first.

    Raises:
        UserError: The layer's rows do not differ.
    """
    prepared = preprocess(rows, how)
    require_spread(rows, prepared, layer)
    gram = prepared @ prepared.T
    return np.asarray(gram / np.trace(gram))


class ConstantLayerError(UserError):
    """The rows of a layer do not differ, so that they have no entropy."""


def require_spread(rows: np.ndarray, prepared: np.ndarray, layer: int) -> None:
    """Refuse a layer whose rows do not differ.

    Raises:
        ConstantLayerError: The trace of its Gram matrix is zero.
    """
    spread, size = squares(prepared), squares(rows)
    refuse_constant(float(spread), float(size), len(rows), layer)


def squares(rows: np.ndarray) -> np.ndarray:
    """Return the sum of squares of rows, (...) from (..., n, width), in fp64."""
    return np.asarray(np.einsum("...nd,...nd->...", rows, rows, dtype=np.float64))


def refuse_constant(spread: float, size: float, tokens: int, layer: int) -> None:
    """Refuse a layer whose rows do not differ.

    Args:
        spread: Sum of squares of the preprocessed rows.
        size: Sum of squares of the rows as they are.
        tokens: Number of rows, for the message.
        layer: Layer index, for the message.

    Raises:
        ConstantLayerError: The spread is rounding.
    """
    if spread <= _ROUNDING * size:
        raise ConstantLayerError(
            f"activations: layer {layer} is constant over its {tokens} tokens; expected rows that differ"
        )


def set_entropy(grams: Sequence[np.ndarray], alpha: float = 1.0) -> float:
    """Return E(S), the entropy of layers concatenated after scaling each to unit trace.

    Args:
        grams: Unit-trace Gram matrices of the layers, each (n, n).
        alpha: Rényi order; 1 is Shannon.

    Returns:
        Nats; for Shannon between the mean of the layers' entropies and that mean + ln |S|.
    """
    mixture = sum(grams[1:], start=grams[0].copy()) / len(grams)
    return float(entropy_of(np.clip(np.linalg.eigvalsh(mixture), 0, None), alpha))


def effective_rank(spectrum: np.ndarray) -> float:
    """Return exp of the entropy of the normalised *singular values* (Roy and Vetterli, EUSIPCO 2007).

    Not the exponential of the matrix entropy, which weighs squared singular values.

    Args:
        spectrum: Eigenvalues of ZZᵀ, the squares of Z's singular values, (r,).
    """
    return float(np.exp(entropy_of(np.sqrt(spectrum))))
