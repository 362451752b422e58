"""How τ, its differences and the speed-up are estimated: bootstrap over questions, over seeds, Holm. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]
Metric = Literal["tau_question", "tau_pooled"]

SEEDS_FOR_LAYERS = 3
"""From this many training seeds on, a verdict speaks of layers instead of heads."""

SETS_FOR_CORRELATION = 8
"""From this many layer sets on, E(S) is correlated with τ."""

FEW_QUESTIONS = 30
"""Below this many, percentile limits over questions are too narrow, and a page says so; a test shows by how much."""

QUESTIONS_FOR_LIMITS = 5
"""From this many questions on, limits are drawn: those of two are only the two questions themselves."""

POWER = 0.8


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    Args:
        resamples: Bootstrap resamples.
        confidence: Level of the intervals.
        seed: Seed of the resampled questions and seeds; equal seeds and counts draw equal questions.
    """

    resamples: int
    confidence: float
    seed: int


class Interval(NamedTuple):
    """An estimate with its limits; limits are NaN where fewer than two questions were measured."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A paired difference.

    Args:
        value: Difference of the estimates.
        low: Lower limit.
        high: Upper limit.
        p: Two-sided bootstrap p-value.
        detectable: Smallest difference the run would have found at 80 % power, for one comparison.
        questions: Questions measured for both.
        seeds: Training seeds measured for both.
        speaks_of_layers: Whether variation over training seeds is in the interval.
    """

    value: float
    low: float
    high: float
    p: float
    detectable: float
    questions: int
    seeds: int
    speaks_of_layers: bool


@dataclass(frozen=True)
class Counts:
    """Tokens and cycles of one layer set, budget-cut cycles left out.

    Args:
        emitted: (seeds, questions) tokens emitted.
        cycles: (seeds, questions) verifications.
    """

    emitted: Floats
    cycles: Floats

    def at(self, kept: NDArray[np.bool_]) -> Counts:
        """Return the counts of some questions."""
        return Counts(self.emitted[:, kept], self.cycles[:, kept])

    def measured(self) -> NDArray[np.bool_]:
        """Tell which questions have a whole cycle under every seed."""
        return np.asarray((self.cycles > 0).all(axis=0))


@lru_cache(maxsize=8)
def question_weights(questions: int, resamples: int, seed: int) -> NDArray[np.int16]:
    """Draw how often each question is in each resample.

    Returns:
        (resamples, questions) counts; every row sums to `questions`.
    """
    rng = np.random.default_rng((seed, questions))
    drawn = rng.integers(0, questions, size=(resamples, questions))
    drawn += np.arange(resamples)[:, None] * questions
    flat = np.bincount(drawn.ravel(), minlength=resamples * questions)
    return flat.reshape(resamples, questions).astype(np.int16)


def _resampled_sums(values: Floats, plan: Resampling) -> Floats:
    """Sum values, (rows, questions), over each resample's questions: (resamples, rows)."""
    weights = question_weights(values.shape[1], plan.resamples, plan.seed)
    pieces = np.array_split(weights, max(1, weights.size // 2_000_000))  # bounds the float64 copy to 16 MB
    return np.concatenate([piece.astype(np.float64) @ values.T for piece in pieces])


def tau_by_seed(counts: Counts, metric: Metric) -> Floats:
    """Return τ of each training seed.

    `tau_pooled` is Σ emitted / Σ cycles; `tau_question` is the mean over questions of emitted / cycles.

    Returns:
        (seeds,) tokens per cycle.
    """
    if metric == "tau_pooled":
        return np.asarray(counts.emitted.sum(axis=1) / counts.cycles.sum(axis=1))
    return np.asarray((counts.emitted / counts.cycles).mean(axis=1))


def _resampled_tau(counts: Counts, metric: Metric, plan: Resampling) -> Floats:
    """Return τ of each resample and seed, (resamples, seeds)."""
    if metric == "tau_pooled":
        return np.asarray(_resampled_sums(counts.emitted, plan) / _resampled_sums(counts.cycles, plan))
    return np.asarray(_resampled_sums(counts.emitted / counts.cycles, plan) / counts.cycles.shape[1])


def tau_interval(counts: Counts, metric: Metric, plan: Resampling) -> Interval:
    """Estimate τ, averaged over training seeds, with a bootstrap interval over questions.

    A question's turns and seeds are resampled together.
    """
    counts = counts.at(counts.measured())
    if counts.cycles.shape[1] == 0:
        return Interval(np.nan, np.nan, np.nan)
    return _percentiles(
        float(tau_by_seed(counts, metric).mean()), _resampled_tau(counts, metric, plan).mean(axis=1), counts, plan
    )


def _percentiles(value: float, replicates: Floats, counts: Counts, plan: Resampling) -> Interval:
    if counts.cycles.shape[1] < 2:
        return Interval(value, np.nan, np.nan)
    return Interval(value, *_limits(replicates, plan.confidence))


def _limits(replicates: Floats, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return float(low), float(high)


def paired_difference(ours: Counts, reference: Counts, metric: Metric, plan: Resampling) -> Difference:
    """Estimate how far τ of a layer set lies above the reference's.

    Below three seeds questions are resampled, jointly for both sets. From three on, seeds vary too:
    see `_over_seeds`.

    Args:
        ours: (seeds, questions), aligned with the reference in both.
        reference: The same shape.
        metric: Which τ.
        plan: Resamples, level and seed.

    Raises:
        ValueError: The shapes differ (a bug of the caller).
    """
    if ours.cycles.shape != reference.cycles.shape:
        raise ValueError(f"paired counts of shapes {ours.cycles.shape} and {reference.cycles.shape}")
    kept = ours.measured() & reference.measured()
    ours, reference = ours.at(kept), reference.at(kept)
    seeds, questions = ours.cycles.shape
    by_layers = seeds >= SEEDS_FOR_LAYERS
    if questions == 0:
        return Difference(np.nan, np.nan, np.nan, np.nan, np.nan, 0, seeds, by_layers)
    by_seed = tau_by_seed(ours, metric) - tau_by_seed(reference, metric)
    value = float(by_seed.mean())
    if questions < 2:
        return Difference(value, np.nan, np.nan, np.nan, np.nan, questions, seeds, by_layers)
    replicates = _resampled_tau(ours, metric, plan) - _resampled_tau(reference, metric, plan)
    over_questions = replicates.mean(axis=1)
    drawn = _over_seeds(over_questions, by_seed, plan) if by_layers else over_questions
    low, high = _limits(drawn, plan.confidence)
    error = _question_error(ours, reference, over_questions, metric)
    if by_layers:
        error = float(np.hypot(error, by_seed.std(ddof=1) / np.sqrt(seeds)))
        detectable = (high - low) / 2 + float(stats.norm.ppf(POWER)) * error
    else:
        detectable = minimal_detectable(error, plan.confidence)
    return Difference(value, low, high, two_sided_p(drawn), detectable, questions, seeds, by_layers)


def _question_error(ours: Counts, reference: Counts, over_questions: Floats, metric: Metric) -> float:
    """Return the standard error of a paired difference that comes from the choice of questions."""
    if metric == "tau_pooled":
        return float(over_questions.std(ddof=1))
    gaps = (ours.emitted / ours.cycles - reference.emitted / reference.cycles).mean(axis=0)
    return float(gaps.std(ddof=1) / np.sqrt(gaps.size))


def _over_seeds(over_questions: Floats, by_seed: Floats, plan: Resampling) -> Floats:
    """Add the variation between training seeds to resampled questions.

    Every seed answers every question, so the two are resampled independently of each other (Owen
    2007, The pigeonhole bootstrap, Annals of Applied Statistics 1). Three to ten seeds are too few
    to draw from: their own resamples would be a handful of values and too narrow. Their mean is
    drawn from Student's t with the seeds' standard deviation instead, which keeps its level at
    the small p-values that Holm's correction asks for.

    Args:
        over_questions: (resamples,) difference of each resample of questions.
        by_seed: (seeds,) difference over the questions as measured.
        plan: Resamples, level and seed.

    Returns:
        (resamples,) differences.
    """
    rng = np.random.default_rng((plan.seed, by_seed.size, 1))
    spread = by_seed.std(ddof=1) / np.sqrt(by_seed.size)
    return np.asarray(over_questions + spread * rng.standard_t(by_seed.size - 1, size=over_questions.size))


def two_sided_p(replicates: Floats) -> float:
    """Return the two-sided bootstrap p-value of no difference: never 0, at least 2 / (resamples + 1)."""
    below, above = np.sum(replicates <= 0), np.sum(replicates >= 0)
    return float(min(1.0, 2 * (min(below, above) + 1) / (replicates.size + 1)))


def minimal_detectable(standard_error: float, confidence: float) -> float:
    """Return the smallest difference found at 80 % power: (z₁₋α⸝₂ + z₀.₈) · standard error."""
    return float((stats.norm.ppf((1 + confidence) / 2) + stats.norm.ppf(POWER)) * standard_error)


def holm(p_values: ArrayLike) -> Floats:
    """Adjust p-values for several comparisons (Holm 1979, Scandinavian Journal of Statistics 6); NaN stays NaN.

    Returns:
        Adjusted p-values in the given order.
    """
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return adjusted


def verdict(difference: float, p_adjusted: float, confidence: float) -> str:
    """Say in words what a comparison found: higher, lower, not distinguishable, or not measured."""
    if not np.isfinite(difference) or not np.isfinite(p_adjusted):
        return "not measured"
    if p_adjusted > 1 - confidence:
        return "not distinguishable"
    return "higher" if difference > 0 else "lower"


def ratio_interval(numerator: Floats, denominator: Floats, plan: Resampling) -> Interval:
    """Estimate Σ numerator / Σ denominator with a bootstrap interval over questions.

    Args:
        numerator: (questions,).
        denominator: (questions,).
        plan: Resamples, level and seed.
    """
    if denominator.sum() == 0:
        return Interval(np.nan, np.nan, np.nan)
    value = float(numerator.sum() / denominator.sum())
    if np.count_nonzero(denominator) < 2:
        return Interval(value, np.nan, np.nan)
    sums = _resampled_sums(np.stack([numerator, denominator]), plan)
    drawn = sums[sums[:, 1] > 0]  # a resample without any observation says nothing
    return Interval(value, *_limits(drawn[:, 0] / drawn[:, 1], plan.confidence))


def speed_up(baseline_s: Floats, baseline_tokens: Floats, wall_s: Floats, tokens: Floats, plan: Resampling) -> Interval:
    """Estimate plain decoding's time per token over the drafter's, with a bootstrap interval over questions.

    Args:
        baseline_s: (questions,) seconds of plain decoding.
        baseline_tokens: (questions,) its tokens.
        wall_s: (questions,) seconds with the drafter.
        tokens: (questions,) its tokens.
        plan: Resamples, level and seed.
    """
    totals = np.stack([baseline_s, baseline_tokens, wall_s, tokens])
    if not (totals.sum(axis=1) > 0).all():
        return Interval(np.nan, np.nan, np.nan)
    value = _speed_up(totals.sum(axis=1)[None])[0]
    if totals.shape[1] < 2:
        return Interval(float(value), np.nan, np.nan)
    sums = _resampled_sums(totals, plan)
    drawn = sums[(sums > 0).all(axis=1)]  # a resample of answers of one token has nothing that was timed
    return Interval(float(value), *_limits(_speed_up(drawn), plan.confidence))


def _speed_up(sums: Floats) -> Floats:
    return np.asarray((sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3]))


def rank_correlation(x: Floats, y: Floats, confidence: float) -> Interval:
    """Estimate Spearman's ρ with an interval on Fisher's scale (Bonett and Wright 2000, Psychometrika 65).

    Args:
        x: (sets,) one quantity.
        y: (sets,) the other.
        confidence: Level of the interval.

    Returns:
        NaN everywhere below SETS_FOR_CORRELATION sets or where one quantity does not vary.
    """
    if x.size < SETS_FOR_CORRELATION or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Interval(np.nan, np.nan, np.nan)
    rho = float(stats.spearmanr(x, y).statistic)
    bounded = np.clip(rho, -1 + 1e-12, 1 - 1e-12)
    half = stats.norm.ppf((1 + confidence) / 2) * np.sqrt((1 + rho**2 / 2) / (x.size - 3))
    low, high = np.tanh(np.arctanh(bounded) + np.array([-half, half]))
    return Interval(rho, float(low), float(high))
