"""How τ, its differences and the speed-up are estimated: bootstrap over questions, over seeds, Holm. Arrays only.

Every estimate is a mean over questions, or is taken as one: of its influence values, which say by how much a question
moves it (the linearisation of ratios; Davison and Hinkley 1997, Bootstrap Methods and their Application, section 2.7).
"""

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

QUESTIONS_FOR_LIMITS = 5
"""From this many questions on there are limits: resamples of fewer hold too few different ones."""

LEAST_ERROR = 0.25
"""A resample's standard error is taken for this share of that of all questions at least: nearly equal questions, drawn
together, would say that nothing varies. A test shows that limits still cover what they should."""

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
    """An estimate with its limits; limits are NaN where fewer than QUESTIONS_FOR_LIMITS questions were measured."""

    value: float
    low: float
    high: float


class Spread(NamedTuple):
    """A paired difference and how it varies.

    Args:
        value: Mean over training seeds.
        base: The reference's τ over the same questions, mean over training seeds.
        influence: (questions,) by how much each question moves the difference.
        by_seed: (seeds,) difference under each training seed.
    """

    value: float
    base: float
    influence: Floats
    by_seed: Floats

    @property
    def speaks_of_layers(self) -> bool:
        """Whether there are seeds enough for variation between them to count."""
        return self.by_seed.size >= SEEDS_FOR_LAYERS

    @property
    def seed_error(self) -> float:
        """Standard error from the choice of training seeds; 0 where the verdict is of these heads."""
        return standard_error(self.by_seed) if self.speaks_of_layers else 0.0


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


def _influence(counts: Counts, metric: Metric) -> Floats:
    """Return by how much each question moves τ, averaged over training seeds: (questions,)."""
    if metric == "tau_question":
        return np.asarray((counts.emitted / counts.cycles).mean(axis=0))
    rest = counts.emitted - tau_by_seed(counts, metric)[:, None] * counts.cycles
    return np.asarray((rest / counts.cycles.mean(axis=1, keepdims=True)).mean(axis=0))


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean of some values (n,)."""
    return float(values.std(ddof=1) / np.sqrt(values.size))


def _pivots(values: Floats, plan: Resampling) -> Floats:
    """Return Student's t of each resample: how far its mean lies from that of all, in its own standard errors.

    Args:
        values: (questions,).
        plan: Resamples and seed.

    Returns:
        (resamples,).
    """
    centred, n = values - values.mean(), values.size
    means, squares = (_resampled_sums(np.stack([centred, centred**2]), plan) / n).T
    errors = np.sqrt(np.maximum(squares - means**2, 0) / (n - 1))
    own = standard_error(values)
    return np.asarray(means / np.maximum(errors, LEAST_ERROR * own or 1.0))


def _interval(value: float, influence: Floats, plan: Resampling) -> Interval:
    """Return symmetric studentised bootstrap limits (Hall 1988, Journal of the Royal Statistical Society B 50).

    Args:
        value: The estimate.
        influence: (questions,) by how much each question moves it.
        plan: Resamples, level and seed.
    """
    if influence.size < QUESTIONS_FOR_LIMITS:
        return Interval(value, np.nan, np.nan)
    half = float(np.quantile(np.abs(_pivots(influence, plan)), plan.confidence)) * standard_error(influence)
    return Interval(value, value - half, value + half)


def tau_interval(counts: Counts, metric: Metric, plan: Resampling) -> Interval:
    """Estimate τ, averaged over training seeds, with a bootstrap interval over questions.

    A question's turns and seeds are resampled together. Every verification emits a token, so limits stop at 1.
    """
    counts = counts.at(counts.measured())
    if counts.cycles.shape[1] == 0:
        return Interval(np.nan, np.nan, np.nan)
    found = _interval(float(tau_by_seed(counts, metric).mean()), _influence(counts, metric), plan)
    return found._replace(low=float(np.maximum(found.low, 1)))


def paired_spread(ours: Counts, reference: Counts, metric: Metric) -> Spread:
    """Return how far τ of a layer set lies above the reference's over the questions that both measured.

    Args:
        ours: (seeds, questions), aligned with the reference in both.
        reference: The same shape.
        metric: Which τ.

    Raises:
        ValueError: The shapes differ (a bug of the caller).
    """
    if ours.cycles.shape != reference.cycles.shape:
        raise ValueError(f"paired counts of shapes {ours.cycles.shape} and {reference.cycles.shape}")
    kept = ours.measured() & reference.measured()
    ours, reference = ours.at(kept), reference.at(kept)
    if not kept.any():
        return Spread(np.nan, np.nan, np.empty(0), np.full(ours.cycles.shape[0], np.nan))
    base = tau_by_seed(reference, metric)
    by_seed = tau_by_seed(ours, metric) - base
    influence = _influence(ours, metric) - _influence(reference, metric)
    return Spread(float(by_seed.mean()), float(base.mean()), influence, by_seed)


def paired_difference(spread: Spread, plan: Resampling) -> Difference:
    """Give a paired difference limits and a p-value.

    Questions are resampled, jointly for both sets. From three training seeds on these vary too. Every seed answers
    every question, so the two are drawn independently of each other (Owen 2007, The pigeonhole bootstrap, Annals of
    Applied Statistics 1). Three to ten seeds are too few to resample: their mean is drawn from Student's t with their
    own standard deviation, which keeps its level at the small p-values that Holm's correction asks for.

    Args:
        spread: The difference and how it varies.
        plan: Resamples, level and seed.
    """
    value, influence, seeds = spread.value, spread.influence, spread.by_seed.size
    if influence.size < QUESTIONS_FOR_LIMITS:
        return Difference(value, np.nan, np.nan, np.nan, np.nan, influence.size, seeds, spread.speaks_of_layers)
    error = standard_error(influence)
    drawn = error * _pivots(influence, plan)
    if spread.speaks_of_layers:
        rng = np.random.default_rng((plan.seed, seeds, 1))
        drawn = drawn + spread.seed_error * rng.standard_t(seeds - 1, size=drawn.size)
    half = float(np.quantile(np.abs(drawn), plan.confidence))
    detectable = half + float(stats.norm.ppf(POWER) * np.hypot(error, spread.seed_error))
    p = two_sided_p(value, drawn)
    low, high = value - half, value + half
    return Difference(value, low, high, p, detectable, influence.size, seeds, spread.speaks_of_layers)


def two_sided_p(value: float, deviations: Floats) -> float:
    """Return the two-sided bootstrap p-value of no difference: never 0, at least 1 / (resamples + 1).

    Args:
        value: The difference.
        deviations: (resamples,) how far chance alone moved it.
    """
    return float((np.sum(np.abs(deviations) >= abs(value)) + 1) / (deviations.size + 1))


def questions_needed(spread: Spread, effect: float, confidence: float) -> float:
    """Return how many questions would show an effect at 80 % power, in one comparison.

    ((z of the level + z of 0.8) · standard deviation over questions / effect)² + z² / 2, the latter because the
    deviation is estimated (Guenther 1981, The American Statistician 35). From three training seeds on their own
    variation, which no number of questions takes away, is subtracted from the effect.

    Args:
        spread: How the difference varies.
        effect: Difference of τ to be seen.
        confidence: Level of the intervals.

    Returns:
        NaN where the seeds alone hide the effect, or too few questions were measured.
    """
    if spread.influence.size < QUESTIONS_FOR_LIMITS:
        return float("nan")
    level, power = stats.norm.ppf((1 + confidence) / 2), stats.norm.ppf(POWER)
    left = effect**2
    if spread.speaks_of_layers:
        left -= float((stats.t.ppf((1 + confidence) / 2, spread.by_seed.size - 1) + power) * spread.seed_error) ** 2
    if left <= 0:
        return float("nan")
    return float(np.ceil((level + power) ** 2 * spread.influence.var(ddof=1) / left + level**2 / 2))


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
    """Estimate Σ numerator / Σ denominator with a bootstrap interval over the questions that have a denominator.

    Args:
        numerator: (questions,).
        denominator: (questions,).
        plan: Resamples, level and seed.
    """
    kept = denominator > 0
    if not kept.any():
        return Interval(np.nan, np.nan, np.nan)
    numerator, denominator = numerator[kept], denominator[kept]
    value = float(numerator.sum() / denominator.sum())
    return _interval(value, (numerator - value * denominator) / denominator.mean(), plan)


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
    means = totals.mean(axis=1)
    if not (means > 0).all():
        return Interval(np.nan, np.nan, np.nan)
    value = float((means[0] / means[1]) / (means[2] / means[3]))
    return _interval(value, value * (np.array([1, -1, -1, 1]) / means) @ totals, plan)


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
