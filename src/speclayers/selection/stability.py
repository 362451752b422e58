"""How often a selector picks each layer on half-samples of the prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from speclayers.names import Layers
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.selector import Request


def stability(request: Request, halves: Sequence[LayerGeometry], layers: Layers) -> dict[int, float]:
    """Return the share of half-samples in which each layer is chosen.

    Args:
        request: The selector with its options, k and seed.
        halves: Geometry of the half-samples.
        layers: What it chose on all prompts; certain when no measurement decides.

    Returns:
        Share of every layer that is chosen at least once, ascending by layer; empty without half-samples.
    """
    if not request.selector.measures:
        return dict.fromkeys(layers, 1.0)
    picked = Counter(layer for half in halves for choice in request.choose(half) for layer in choice.layers)
    return {layer: picked[layer] / len(halves) for layer in sorted(picked)}
