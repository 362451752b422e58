"""SWIFT's search for layers to skip: what is tried next, what is best so far, when it ends (arXiv 2410.06916)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from optuna.distributions import FloatDistribution

from speclayers.drafting.sublayers import BayesianSearch, Point, Sublayers
from speclayers.targets.skipping import Skipped


class Rules(NamedTuple):
    """How SWIFT searches.

    Args:
        skips: Attention and MLPs that every set tried skips.
        bayes_interval: Every so-manieth set is proposed from the scores of all before it; the others are random.
        enough: The search ends with a better score than this.
        patience: It ends after so many trials in a row without a better score.
        trials: It ends after so many trials.
    """

    skips: int
    bayes_interval: int
    enough: float
    patience: int
    trials: int


class SwiftSearch:
    """One stream of trials.

    All of it follows from the seed and the scores, so that the scores alone bring it back.

    Args:
        free: Blocks that may be skipped, counted from 1.
        rules: How it searches.
        seed: Seed of its random numbers.
    """

    def __init__(self, free: Sequence[int], rules: Rules, seed: int) -> None:
        """Begin with every second block skipped, which has no score."""
        self._sublayers = Sublayers(free)
        self._rules = rules
        self._seed = seed
        self._first = Skipped.blocks(free[::2])
        self._begin()

    def _begin(self) -> None:
        self._bayes = BayesianSearch(self._sublayers.names, FloatDistribution(0.0, 1.0), self._seed)
        self._random = np.random.default_rng(self._seed)
        self._point: Point = {}
        self._since_best = 0
        self._best_score = 0.0
        self.scores: list[float] = []
        self.tried = self.best = self._first

    @property
    def ended(self) -> bool:
        """Whether nothing more is tried."""
        rules = self._rules
        return self._best_score > rules.enough or self._since_best >= rules.patience or len(self.scores) >= rules.trials

    def propose(self) -> Skipped:
        """Return a set to try."""
        count = self._rules.skips
        if (len(self.scores) + 1) % self._rules.bayes_interval == 0:
            self._point = self._bayes.ask()
            self.tried = self._sublayers.largest(self._point, count)
        else:
            places = self._random.choice(len(self._sublayers), count, replace=False)
            self.tried = self._sublayers.skipped(int(place) for place in places)
            self._point = self._sublayers.point(self.tried)
        return self.tried

    def tell(self, score: float) -> None:
        """Say how well the proposed set drafts; the best set so far may become it.

        Args:
            score: Higher is better; compared with those of other texts, as in the published code.
        """
        self._bayes.tell(self._point, score)
        self.scores.append(score)
        self._since_best += 1
        if score > self._best_score:
            self._best_score, self._since_best, self.best = score, 0, self.tried

    def recall(self, scores: Sequence[float]) -> None:
        """Become a search that was told these scores."""
        if self.scores == list(scores):
            return
        self._begin()
        for score in scores:
            self.propose()
            self.tell(score)
