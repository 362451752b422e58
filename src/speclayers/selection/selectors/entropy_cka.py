"""Layers by falling entropy, each taken unless too similar to one taken before."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.search import by_entropy, chosen, replaced
from speclayers.selection.selector import Choice, Selector, Step


class Options(LayerOptions):
    """How similar layers may be."""

    max_similarity: float = Field(0.9, ge=-1, le=1, description="CKA to a taken layer below which one is taken.")


def choose(geometry: LayerGeometry, k: int, options: Options, generator: np.random.Generator) -> list[Choice]:
    """Walk the layers and stop at k; a strict limit may leave fewer."""
    entropy = geometry.layer_entropy(options)
    ranked = by_entropy(entropy.tolist(), geometry.candidates(options))
    taken = ranked[:1]
    trace = [Step("start", tuple(taken), float(entropy[taken[0]]), "S(l), the highest")]
    for layer in ranked[1:]:
        if len(taken) == k:
            break
        similarity = geometry.highest_cka(layer, taken)
        accept = similarity < options.max_similarity
        taken += [layer] if accept else []
        note = f"highest CKA to those taken; S({layer}) = {entropy[layer]:.6f}"
        trace.append(Step(f"{'accept' if accept else 'reject'} {layer}", tuple(sorted(taken)), similarity, note))
    rest = [layer for layer in ranked if layer not in taken]
    free = [x for x in rest if len(taken) == 1 or geometry.highest_cka(x, taken[:-1]) < options.max_similarity]
    reason = f"by falling entropy, each of CKA below {options.max_similarity:g} to those before"
    if len(taken) < k:
        reason += f"; warning: only {len(taken)} of {k} layers are so dissimilar"
    return [chosen(geometry, taken, [replaced(taken, len(taken) - 1, layer) for layer in free], trace, reason)]


SELECTOR = Selector(choose, Options)
