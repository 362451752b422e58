"""How often 95 % limits over few questions cover the truth: ours beside SciPy's bootstraps and Student's t."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from figures import arguments, report
from numpy.typing import NDArray
from scipy import stats

from speclayers.analysis.statistics import Counts, Resampling, tau_interval

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

CYCLES = 20.0
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(2, 0.3, size),
    "skewed": lambda rng, size: 1 + rng.gamma(2, 0.5, size),
    "very skewed": lambda rng, size: 1 + rng.gamma(1, 1, size),
}
"""tau of a question; each has mean 2."""


def main() -> None:
    """Measure how often each way covers the mean."""
    options = arguments(__doc__)
    rounds, resamples = (300, 500) if options.quick else (2000, 2000)
    plan = Resampling(resamples, 0.95, 0)
    for shape, draw in SHAPES.items():
        for questions in (6, 12, 24):
            tau = draw(np.random.default_rng(questions), (rounds, questions))
            found = [
                tau_interval(Counts(row[None] * CYCLES, np.full((1, questions), CYCLES)), "tau_question", plan)
                for row in tau
            ]
            ours = np.mean([interval.low <= 2 <= interval.high for interval in found])
            peers = "; ".join(f"{name} {share:.3f}" for name, share in peers_of(tau, resamples).items())
            report(f"95 % limits cover, {questions} questions, {shape}", float(ours), "share", peers, 0.925)


def peers_of(tau: Floats, resamples: int) -> dict[str, float]:
    """Return how often the limits of others cover.

    Args:
        tau: (rounds, questions).
        resamples: Bootstrap resamples.
    """
    covered = {}
    for method in ("percentile", "BCa"):
        rng = np.random.default_rng(1)
        limits = [
            stats.bootstrap((row,), np.mean, n_resamples=resamples, method=method, rng=rng).confidence_interval
            for row in tau
        ]
        covered[f"SciPy's {method}"] = float(np.mean([low <= 2 <= high for low, high in limits]))
    half = stats.t.ppf(0.975, tau.shape[1] - 1) * tau.std(axis=1, ddof=1) / np.sqrt(tau.shape[1])
    covered["Student's t"] = float(np.mean(np.abs(tau.mean(axis=1) - 2) <= half))
    return covered


if __name__ == "__main__":
    main()
