"""Greedy by entropy times dissimilarity."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import chosen, greedy, highest_entropy
from speclayers.selection.selector import Choice, Selector


def choose(geometry: LayerGeometry, k: int, options: LayerOptions, generator: np.random.Generator) -> list[Choice]:
    """Start from the layer of highest S(l), then add by S(l) · (1 − highest CKA to the chosen)."""
    entropy = geometry.layer_entropy(options)
    layers, others, trace = greedy(
        k,
        highest_entropy(geometry, options),
        geometry.candidates(options),
        lambda layer, current: float(entropy[layer]) * (1 - geometry.highest_cka(layer, current)),
        "S(l) · (1 − highest CKA to the chosen)",
    )
    return [chosen(geometry, layers, others, trace, "greedy by entropy times dissimilarity to the chosen ones")]


SELECTOR = Selector(choose, LayerOptions)
