"""EAGLE-2's choice: the last layer."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import fixed
from speclayers.selection.selector import Choice, NoOptions, Selector


def choose(geometry: LayerGeometry, k: int, options: NoOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose {N}."""
    return [fixed(geometry, [geometry.n_layers], f"the last layer, {geometry.n_layers}, as EAGLE-2 hard-codes it")]


SELECTOR = Selector(choose, NoOptions, frozenset({1}), measures=False)
