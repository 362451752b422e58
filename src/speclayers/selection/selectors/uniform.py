"""Layers spread evenly over the depth."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import fixed
from speclayers.selection.selector import Choice, NoOptions, Selector


def choose(geometry: LayerGeometry, k: int, options: NoOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose round(N · (i + ½) / k) for i < k, halves rounded up so that layer 1 is the lowest."""
    n = geometry.n_layers
    layers = [(n * (2 * i + 1) + k) // (2 * k) for i in range(k)]
    return [fixed(geometry, layers, f"the middles of {k} equal parts of {n} layers")]


SELECTOR = Selector(choose, NoOptions, measures=False)
