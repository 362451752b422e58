"""The best of all layer sets: an oracle for the greedy selectors."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, combinations
from math import comb

import numpy as np
from pydantic import Field

from speclayers.errors import UserError
from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import best, chosen
from speclayers.selection.selector import Choice, Scored, Selector, Step

_MOST_SETS = 2_000_000


class Options(LayerOptions):
    """How many sets are scored again."""

    rescored: int = Field(50, ge=1, description="Sets of highest Rényi-2 entropy that Shannon's entropy ranks.")


def choose(geometry: LayerGeometry, k: int, options: Options, generator: np.random.Generator) -> list[Choice]:
    """Rank all sets of k layers by E₂(S), exact from Q, then the best of them by E(S)."""
    candidates = geometry.candidates(options)
    count = comb(len(candidates), k)
    if count > _MOST_SETS:
        raise UserError(
            f"selection.selectors.exhaustive.k: {k} of {len(candidates)} layers make {count} sets, expected at most "
            f"{_MOST_SETS}; choose a smaller k, or the selector 'beam'"
        )
    sets = _all_sets(tuple(candidates), k)
    purity = sum((1 if a == b else 2) * geometry.gram[sets[:, a], sets[:, b]] for a in range(k) for b in range(a, k))
    order = np.argsort(purity, kind="stable")[: options.rescored]
    scored = best(
        (Scored(tuple(map(int, s)), geometry.set_entropy(list(map(int, s)))) for s in sets[order]), count=count
    )
    first = scored[0]
    trace = [Step("rescore", s.layers, s.score, f"E(S), place {i + 1}") for i, s in enumerate(scored)]
    reason = f"the highest E(S) of all {count} sets, found by E₂(S) and scored again among the {len(scored)} best"
    return [chosen(geometry, first.layers, [s.layers for s in scored[1:]], trace, reason)]


@lru_cache(maxsize=4)
def _all_sets(candidates: tuple[int, ...], k: int) -> np.ndarray:
    """Return every set of k candidates, (sets, k); kept, as every half-sample ranks them anew."""
    count = comb(len(candidates), k)
    sets = np.fromiter(chain.from_iterable(combinations(candidates, k)), int, count=count * k).reshape(count, k)
    sets.flags.writeable = False
    return sets


SELECTOR = Selector(choose, Options)
