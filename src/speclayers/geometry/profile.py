"""The entropy profile of one layer: pooled and per prompt, of every subset, with and without sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from speclayers.config import GeometryConfig, Preprocessing
from speclayers.geometry.entropy import (
    effective_rank,
    eigenvalues,
    entropies_without,
    entropy_of,
    information_flow_spectrum,
    no_spread,
    preprocess,
    principal_rows,
    require_spread,
)
from speclayers.geometry.jackknife import interval
from speclayers.geometry.tokens import SUBSETS, RowSets


class EntropyRow(NamedTuple):
    """A row of the ENTROPY table."""

    layer: int
    subset: str
    sinks_kept: bool
    alpha: float
    preprocessing: str
    sample_id: str | None
    n_tokens: int
    entropy: float
    share_of_ln_n: float
    share_of_maximum: float | None
    information_flow: float
    ci_low: float | None
    ci_high: float | None
    effective_rank: float | None


class _Pooled(NamedTuple):
    """One order's entropy of a subset, with limits where a jackknife makes sense, and the effective rank."""

    entropy: float
    low: float | None
    high: float | None
    effective_rank: float


def layer_profile(
    layer: int, states: np.ndarray, sets: RowSets, alphas: Sequence[float], config: GeometryConfig
) -> Iterator[EntropyRow]:
    """Compute all entropies of one layer.

    A prompt of fewer than two rows in a subset has no row of its own there.

    Args:
        layer: Layer index.
        states: All rows of the dump, (tokens, width).
        sets: Rows that count.
        alphas: Rényi orders.
        config: Preprocessing, where centring is over the rows of the matrix at hand; and whether to add what
            information_flow computes.

    Raises:
        UserError: The layer is constant.
    """
    how = config.preprocessing
    for subset, sinks_kept in product(SUBSETS, (False, True)):
        rows = sets.subset(subset, sinks_kept)
        chosen = states[rows]
        prepared = preprocess(chosen, how)
        require_spread(chosen, prepared, layer)
        pooled = (
            _pooled(prepared, alphas)
            if sinks_kept
            else _pooled_with_limits(prepared, sets.block_of(rows), alphas, how == "centre")
        )
        theirs = _information_flow(chosen, alphas, config)
        for alpha, found, other in zip(alphas, pooled, theirs, strict=True):
            shares = _shares(found.entropy, *chosen.shape)
            limits = (found.low, found.high, found.effective_rank)
            head = (layer, subset, sinks_kept, alpha, how, None, len(rows))
            yield EntropyRow(*head, found.entropy, *shares, float(other), *limits)
        for prompts, own in _by_length(sets.prompt[rows]):
            spectra = prompt_spectra(chosen[own], how)
            theirs = _information_flow(chosen[own], alphas, config)
            for alpha, others in zip(alphas, theirs, strict=True):
                by_prompt = zip(prompts, entropy_of(spectra, alpha), np.broadcast_to(others, len(prompts)), strict=True)
                for prompt, value, other in by_prompt:
                    shares = _shares(float(value), own.shape[1], chosen.shape[1])
                    head = (layer, subset, sinks_kept, alpha, how, sets.prompts[prompt], own.shape[1])
                    yield EntropyRow(*head, float(value), *shares, float(other), None, None, None)


def _shares(entropy: float, rows: int, width: int) -> tuple[float, float | None]:
    """Return an entropy over ln n, n two or more, and over the most it can be, unless that is zero."""
    most = float(np.log(min(rows, width)))
    return entropy / float(np.log(rows)), entropy / most if most > 0 else None


def _information_flow(states: np.ndarray, alphas: Sequence[float], config: GeometryConfig) -> list[np.ndarray]:
    """Return what information_flow computes of states (..., n, width), (...) for each order; NaN if not asked."""
    if not config.information_flow:
        return [np.array(np.nan)] * len(alphas)
    spectrum = information_flow_spectrum(states)
    return [entropy_of(spectrum, alpha) for alpha in alphas]


def _pooled(prepared: np.ndarray, alphas: Sequence[float]) -> list[_Pooled]:
    """Return the entropy for each order; where sinks are kept a jackknife would judge single rows."""
    spectrum = eigenvalues(prepared)
    rank = effective_rank(spectrum)
    return [_Pooled(float(entropy_of(spectrum, alpha)), None, None, rank) for alpha in alphas]


def _pooled_with_limits(
    prepared: np.ndarray, block: np.ndarray, alphas: Sequence[float], recentre: bool
) -> list[_Pooled]:
    """Return entropy, lower and upper limit for each order."""
    principal = principal_rows(prepared)
    spectrum = np.square(principal).sum(axis=0)
    without = entropies_without(principal, block, alphas, recentre)
    sizes = np.unique(block, return_counts=True)[1]
    rank = effective_rank(spectrum)
    found = []
    for order, alpha in enumerate(alphas):
        value = entropy_of(spectrum, alpha)
        limits = interval(value, without[:, order], sizes)
        found.append(_Pooled(float(value), float(limits.low), float(limits.high), rank))
    return found


def _by_length(prompt: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Group prompts with equally many rows, two or more; rows of a prompt lie together.

    Yields:
        Prompts (p,) and where their rows lie (p, n).
    """
    starts = np.flatnonzero(np.diff(prompt, prepend=-1))
    lengths = np.diff(starts, append=len(prompt))
    for length in np.unique(lengths[lengths >= 2]):
        first = starts[lengths == length]
        yield prompt[first], first[:, None] + np.arange(length)


def prompt_spectra(states: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Return the eigenvalues of prompts' Gram matrices, all zero where a prompt's rows do not differ.

    Args:
        states: Rows of prompts of equal length, (prompts, n, width).
        how: Preprocessing.

    Returns:
        (prompts, min(n, width)).
    """
    prepared = preprocess(states, how)
    return np.where(no_spread(states, prepared)[:, None], 0, eigenvalues(prepared))
