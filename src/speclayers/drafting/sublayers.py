"""Sets of attention and MLPs to skip, as a Bayesian search sees them: one number for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import optuna
from optuna.distributions import BaseDistribution

from speclayers.targets.skipping import Skipped

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line for every study and trial otherwise

Point = dict[str, float]
"""A number for each sublayer, by its name."""


class Sublayers:
    """Attention and MLP of the blocks that may be skipped.

    Args:
        blocks: These blocks, counted from 1.
    """

    def __init__(self, blocks: Iterable[int]) -> None:
        """Name them."""
        self._places = [(part, block) for block in blocks for part in ("attention", "mlp")]
        self.names = [f"{part}{block}" for part, block in self._places]

    def __len__(self) -> int:
        """Return their number."""
        return len(self.names)

    def skipped(self, chosen: Iterable[int]) -> Skipped:
        """Return what is skipped where these places of `names` are chosen."""
        places = [self._places[place] for place in chosen]
        attention, mlp = (frozenset(b for kind, b in places if kind == part) for part in ("attention", "mlp"))
        return Skipped(attention, mlp)

    def point(self, skipped: Skipped) -> Point:
        """Return the point of a set: 1 for what is skipped, else 0."""
        parts = {"attention": skipped.attention, "mlp": skipped.mlp}
        return {name: float(b in parts[part]) for name, (part, b) in zip(self.names, self._places, strict=True)}

    def above(self, point: Point, threshold: float = 0.5) -> Skipped:
        """Return the set of those whose numbers exceed a threshold."""
        return self.skipped(place for place, name in enumerate(self.names) if point[name] > threshold)

    def largest(self, point: Point, count: int) -> Skipped:
        """Return the set of those with the largest numbers; of equals the first."""
        order = sorted(range(len(self)), key=lambda place: -point[self.names[place]])
        return self.skipped(order[:count])


class BayesianSearch:
    """Proposes points from the scores of earlier ones: a tree-structured Parzen estimator (optuna's TPE, seeded).

    Args:
        names: Names of the numbers.
        each: What each number may be.
        seed: Seed of its random numbers.
    """

    def __init__(self, names: Sequence[str], each: BaseDistribution, seed: int) -> None:
        """Begin without a score."""
        self._each = dict.fromkeys(names, each)
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def ask(self) -> Point:
        """Return a point to try; a point that is not told a score is forgotten."""
        trial = self._study.ask(self._each)
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return trial.params

    def tell(self, point: Point, score: float) -> None:
        """Say how good a point is, asked for or not."""
        trial = optuna.trial.create_trial(params=point, distributions=self._each, value=score)
        self._study.add_trial(trial)
