"""EAGLE-3's choice: layers 2, N // 2 and N − 3, the same for every model."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import fixed
from speclayers.selection.selector import Choice, NoOptions, Selector


def choose(geometry: LayerGeometry, k: int, options: NoOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose {2, N // 2, N − 3}; a shallow model may get fewer than three layers."""
    n = geometry.n_layers
    wanted = (2, n // 2, n - 3)
    layers = {min(max(layer, 1), n) for layer in wanted}
    reason = f"2, N // 2 and N - 3 with N = {n}, as EAGLE-3 hard-codes them"
    if layers != set(wanted) or len(layers) < len(wanted):
        reason += f"; warning: {list(wanted)} does not fit so shallow a model and became {sorted(layers)}"
    return [fixed(geometry, layers, reason)]


SELECTOR = Selector(choose, NoOptions, frozenset({3}), measures=False)
