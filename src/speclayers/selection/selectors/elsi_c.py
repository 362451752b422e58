"""Reconstruction of ELSI-C (arXiv 2610.12939): as ELSI, but similar layers may not join."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import beyond, chosen, dissimilar, grow_and_swap, highest_entropy
from speclayers.selection.selector import Choice, Selector
from speclayers.selection.selectors import elsi


class Options(LayerOptions):
    """How similar layers may be."""

    max_similarity: float = Field(0.9, ge=-1, le=1, description="Highest CKA to a chosen layer at which one may join.")


def choose(geometry: LayerGeometry, k: int, options: Options, generator: np.random.Generator) -> list[Choice]:
    """Search as ELSI among the layers whose highest CKA to the chosen ones is within the limit."""
    if k == 1:
        return elsi.choose(geometry, k, options, generator)
    start = highest_entropy(geometry, options)
    admit = dissimilar(geometry, geometry.candidates(options), options.max_similarity)
    layers, tried, trace = grow_and_swap(geometry, k, start, admit)
    reason = (
        f"greedy and swaps by E(S) from layer {start.layers[0]}, that of highest entropy, "
        f"among layers of CKA at most {options.max_similarity:g} to the chosen ones"
    )
    reason += beyond(geometry, layers, options.max_similarity)
    return [chosen(geometry, layers, tried, trace, reason)]


SELECTOR = Selector(choose, Options)
