"""Reconstruction of ELSI (arXiv 2610.12939): the layer set of highest joint entropy, by greedy search and swaps."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import by_entropy, chosen, grow_and_swap, highest_entropy, next_best
from speclayers.selection.selector import Choice, Selector


def choose(geometry: LayerGeometry, k: int, options: LayerOptions, generator: np.random.Generator) -> list[Choice]:
    """Start from the layer of highest S(l), add by E(S) until k are chosen, swap while E(S) rises."""
    candidates = geometry.candidates(options)
    start = highest_entropy(geometry, options)
    if k == 1:
        ranked = by_entropy(geometry.layer_entropy(options).tolist(), candidates)
        return [chosen(geometry, start.layers, next_best(ranked), (), f"layer {ranked[0]} has the highest entropy")]
    layers, tried, trace = grow_and_swap(
        geometry, k, start, lambda current: [layer for layer in candidates if layer not in current]
    )
    reason = f"greedy and swaps by E(S) from layer {start.layers[0]}, that of highest entropy"
    return [chosen(geometry, layers, tried, trace, reason)]


SELECTOR = Selector(choose, LayerOptions)
