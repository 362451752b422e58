"""Beam search by E(S) over the layers of highest entropy, under a limit of similarity."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from speclayers.names import Layers
from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import best, beyond, by_entropy, chosen
from speclayers.selection.selector import Choice, Scored, Selector, Step


class Options(LayerOptions):
    """Size of the search and similarity allowed."""

    width: int = Field(20, ge=1, description="Sets kept at each size.")
    pool: int = Field(20, ge=1, description="Layers of highest entropy that are searched.")
    max_similarity: float = Field(0.9, ge=-1, le=1, description="Highest CKA between two layers of a set.")


def choose(geometry: LayerGeometry, k: int, options: Options, generator: np.random.Generator) -> list[Choice]:
    """Grow the best sets layer by layer; where none is within the limit, the least similar grow."""
    entropy = geometry.layer_entropy(options)
    pool = by_entropy(entropy.tolist(), geometry.candidates(options))[: max(options.pool, k)]
    beams = [Scored((layer,), float(entropy[layer])) for layer in pool[: options.width]]
    trace = [Step("start", beams[0].layers, beams[0].score, f"S(l), the highest of {len(beams)} sets")]
    for _ in range(1, k):
        grown = _grow(geometry, [beam.layers for beam in beams], pool, options.max_similarity)
        beams = list(best((Scored(s, geometry.set_entropy(s)) for s in grown), count=options.width))
        trace.append(Step("grow", beams[0].layers, beams[0].score, f"E(S), the highest of {len(grown)} sets"))
    reason = f"beam search by E(S) over the {len(pool)} layers of highest entropy, CKA ≤ {options.max_similarity:g}"
    reason += beyond(geometry, beams[0].layers, options.max_similarity)
    return [chosen(geometry, beams[0].layers, [beam.layers for beam in beams[1:]], trace, reason)]


def _grow(geometry: LayerGeometry, sets: list[Layers], pool: list[int], limit: float) -> set[Layers]:
    """Return all sets one layer larger that keep the limit, or else the least similar of each."""
    similarity = {
        (layers, layer): geometry.highest_cka(layer, layers) for layers in sets for layer in pool if layer not in layers
    }
    lowest = {layers: min(value for (s, _), value in similarity.items() if s == layers) for layers in sets}
    within = [key for key, value in similarity.items() if value <= limit]
    least = [(layers, layer) for (layers, layer), value in similarity.items() if value == lowest[layers]]
    return {tuple(sorted((*layers, layer))) for layers, layer in within or least}


SELECTOR = Selector(choose, Options)
