"""Layers drawn at random: several seeds give the noise band."""

from __future__ import annotations

import numpy as np

from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import fixed
from speclayers.selection.selector import Choice, NoOptions, Selector


def choose(geometry: LayerGeometry, k: int, options: NoOptions, generator: np.random.Generator) -> list[Choice]:
    """Choose k of the layers 1 … N, each set equally likely."""
    drawn = generator.choice(geometry.candidates(), size=k, replace=False)
    return [fixed(geometry, map(int, drawn), f"{k} of {geometry.n_layers} layers drawn at random")]


SELECTOR = Selector(choose, NoOptions, seeded=True, measures=False)
