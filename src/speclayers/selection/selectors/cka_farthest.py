"""Farthest-first in CKA from the layer of highest entropy."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import chosen, greedy, highest_entropy
from speclayers.selection.selector import Choice, Selector


def choose(geometry: LayerGeometry, k: int, options: LayerOptions, generator: np.random.Generator) -> list[Choice]:
    """Add, again and again, the layer whose highest CKA to the chosen ones is lowest."""
    layers, others, trace = greedy(
        k,
        highest_entropy(geometry, options),
        geometry.candidates(options),
        lambda layer, current: 1 - geometry.highest_cka(layer, current),
        "1 − highest CKA to the chosen",
    )
    return [chosen(geometry, layers, others, trace, "the layers least similar to each other")]


SELECTOR = Selector(choose, LayerOptions)
