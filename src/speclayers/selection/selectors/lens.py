"""The k layers at which the logit lens is least certain: the other reading of "entropy" in the sources."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import RUNNERS_UP, by_entropy, chosen, the_layers
from speclayers.selection.selector import Choice, NoOptions, Selector, Step


def choose(geometry: LayerGeometry, k: int, options: NoOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose the k layers of highest lens entropy; runners-up replace the last of them by the next ones."""
    entropy = geometry.lens_entropy()
    ranked = by_entropy(entropy.tolist(), geometry.candidates())
    layers, next_ones = ranked[:k], ranked[k : k + RUNNERS_UP]
    trace = [
        Step("rank", (layer,), float(entropy[layer]), f"lens entropy, place {i + 1}") for i, layer in enumerate(ranked)
    ]
    others = [(*layers[:-1], layer) for layer in next_ones]
    return [chosen(geometry, layers, others, trace, f"{the_layers(k)} of highest lens entropy (over the vocabulary)")]


SELECTOR = Selector(choose, NoOptions)
