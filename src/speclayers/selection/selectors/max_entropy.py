"""The k layers of highest entropy."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import RUNNERS_UP, by_entropy, chosen, the_layers
from speclayers.selection.selector import Choice, Selector, Step


def choose(geometry: LayerGeometry, k: int, options: LayerOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose the k layers of highest S(l); runners-up replace the last of them by the next ones."""
    entropy = geometry.layer_entropy(options)
    ranked = by_entropy(entropy.tolist(), geometry.candidates(options))
    layers, next_ones = ranked[:k], ranked[k : k + RUNNERS_UP]
    trace = [Step("rank", (layer,), float(entropy[layer]), f"S(l), place {i + 1}") for i, layer in enumerate(ranked)]
    others = [(*layers[:-1], layer) for layer in next_ones]
    return [chosen(geometry, layers, others, trace, f"{the_layers(k)} of highest entropy")]


SELECTOR = Selector(choose, LayerOptions)
