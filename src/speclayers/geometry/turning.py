"""Where the representation turns: scores between neighbouring layers, turning points, blocks."""

from __future__ import annotations

import numpy as np

from speclayers.config import TurningScore

_HALF_WIDTH = 3  # layers on either side under the checkerboard


def turning_scores(cka: np.ndarray, how: TurningScore = "cka") -> np.ndarray:
    """Return the turning score between each layer and the next.

    `novelty` is Foote's checkerboard ("Automatic audio segmentation using a measure of audio novelty",
    ICME 2000), cut at the ends and divided by its cells: mean CKA within both sides minus that across.

    Args:
        cka: CKA of all pairs, (N + 1, N + 1).
        how: `cka` is 1 − CKA(l, l + 1); `row_difference` the mean of |row_l − row_{l+1}|.

    Returns:
        (N,), for l = 0 … N − 1.
    """
    if how == "cka":
        return 1 - np.diagonal(cka, offset=1)
    if how == "row_difference":
        return np.asarray(np.abs(np.diff(cka, axis=0)).mean(axis=1))
    return np.array([_novelty(cka, layer) for layer in range(len(cka) - 1)])


def _novelty(cka: np.ndarray, layer: int) -> float:
    before = slice(max(0, layer + 1 - _HALF_WIDTH), layer + 1)
    after = slice(layer + 1, layer + 1 + _HALF_WIDTH)
    within = np.concatenate([cka[before, before].ravel(), cka[after, after].ravel()]).mean()
    return float(within - cka[before, after].mean())


def turning_points(scores: np.ndarray) -> np.ndarray:
    """Mark local maxima above the mean by more than one standard deviation.

    Args:
        scores: Turning scores, (N,), NaN where unknown. On a plateau the first counts; an end needs to beat its
            one neighbour.

    Returns:
        (N,) bool.
    """
    known = scores[~np.isnan(scores)]
    if not known.size:
        return np.zeros(len(scores), bool)
    padded = np.concatenate([[-np.inf], np.nan_to_num(scores, nan=-np.inf), [-np.inf]])
    highest = (scores > padded[:-2]) & (scores >= padded[2:])
    return np.asarray(highest & (scores > known.mean() + known.std()))


def layer_blocks(points: np.ndarray) -> np.ndarray:
    """Number the runs of layers between turning points.

    Args:
        points: Turning points, (N,); one at l separates l from l + 1.

    Returns:
        Block of each layer 0 … N, (N + 1,), from 0.
    """
    return np.concatenate([[0], np.cumsum(points)])
