"""Successive halving: train all candidates a little, keep the best share, train those on; until one is left.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (arXiv 1502.07943),
section 3. Candidates go on from where they were: the first rung costs candidates × budget, each later one about
(1 − keep) of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from speclayers.names import Layers


class Rung(NamedTuple):
    """A round of the race.

    Args:
        number: From 0.
        candidates: How many run in it.
        kept: How many of them go on.
        budget: Tokens that each has learnt from at its end, earlier rungs included.
    """

    number: int
    candidates: int
    kept: int
    budget: int


class Judged(NamedTuple):
    """How well a candidate drafts on held-out responses.

    Args:
        tokens: Tokens that it has learnt from.
        length: Simulated acceptance length; higher is better.
        low: Lower limit.
        high: Upper limit.
    """

    tokens: int
    length: float
    low: float
    high: float


class Result(NamedTuple):
    """A candidate in a rung: whether it still competed there, and whether it went on or won."""

    layers: Layers
    rung: Rung
    judged: Judged
    in_race: bool
    kept: bool


def plan_rungs(candidates: int, budget: int, keep: float) -> list[Rung]:
    """Return the rungs of a race.

    Args:
        candidates: How many start, two or more.
        budget: Tokens of the first rung.
        keep: Share that goes on, rounded down, one at least; the budget grows by its inverse.
    """
    rungs: list[Rung] = []
    while candidates > 1:
        kept = max(1, int(candidates * keep + 1e-9))  # a third of three is one, whatever its last digit
        rungs.append(Rung(len(rungs), candidates, kept, round(budget / keep ** len(rungs))))
        candidates = kept
    return rungs


def best(lengths: Mapping[Layers, float], count: int) -> list[Layers]:
    """Return the longest ones, best first; on a tie fewer layers win, then lower ones."""
    return sorted(lengths, key=lambda layers: (-lengths[layers], len(layers), layers))[:count]


def race(
    candidates: Sequence[Layers],
    rungs: Sequence[Rung],
    judge: Callable[[Layers, Rung], Judged],
    dropped: Callable[[Layers], None],
    whole_curve: bool,
) -> list[Result]:
    """Run the race; the last rung's kept candidate has won.

    Args:
        candidates: Distinct layer sets.
        rungs: As `plan_rungs` gives them.
        judge: Trains a candidate on to a rung's budget, and says how well it drafts.
        dropped: Told of each candidate that is not trained further.
        whole_curve: Whether single layers are trained and judged in every rung, out of the race too.
    """
    results: list[Result] = []
    racing = list(candidates)
    for rung in rungs:
        watched = [c for c in candidates if whole_curve and len(c) == 1 and c not in racing]
        judged = {layers: judge(layers, rung) for layers in (*racing, *watched)}
        going_on = best({layers: judged[layers].length for layers in racing}, rung.kept)
        results += [Result(c, rung, found, c in racing, c in going_on) for c, found in judged.items()]
        for layers in judged:
            if layers not in going_on and not (whole_curve and len(layers) == 1):
                dropped(layers)
        racing = [layers for layers in racing if layers in going_on]
    return results
