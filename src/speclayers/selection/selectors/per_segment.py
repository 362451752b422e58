"""The layer of highest entropy in each of k equal segments of the depth."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import by_entropy, chosen, replaced
from speclayers.selection.selector import Choice, Selector, Step


def choose(geometry: LayerGeometry, k: int, options: LayerOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose by S(l) in each segment; runners-up take the second of one segment."""
    entropy = geometry.layer_entropy(options)
    segments = [part.tolist() for part in np.array_split(geometry.candidates(options), k)]
    ranked = [by_entropy(entropy.tolist(), segment) for segment in segments]
    layers = [order[0] for order in ranked]
    others = [replaced(layers, place, order[1]) for place, order in enumerate(ranked) if len(order) > 1]
    trace = [
        Step(f"add {order[0]}", (order[0],), float(entropy[order[0]]), f"S(l), the highest of layers {s[0]} to {s[-1]}")
        for order, s in zip(ranked, segments, strict=True)
    ]
    return [chosen(geometry, layers, others, trace, f"the layer of highest entropy in each of {k} equal segments")]


SELECTOR = Selector(choose, LayerOptions)
