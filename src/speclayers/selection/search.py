"""Searches that several selectors share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from speclayers.names import Layers
from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.selector import Choice, Scored, Step

RUNNERS_UP = 5


def highest_entropy(geometry: LayerGeometry, options: LayerOptions) -> Scored:
    """Return the layer of highest S(l), the lowest of equals."""
    entropy = geometry.layer_entropy(options)
    layer = by_entropy(entropy.tolist(), geometry.candidates(options))[0]
    return Scored((layer,), float(entropy[layer]))


def by_entropy(entropy: Sequence[float], candidates: Iterable[int], lowest: bool = False) -> list[int]:
    """Return layers by falling entropy, or rising; the lower layer first on a tie."""
    sign = 1 if lowest else -1
    return sorted(candidates, key=lambda layer: (sign * entropy[layer], layer))


def best(scored: Iterable[Scored], count: int = RUNNERS_UP) -> tuple[Scored, ...]:
    """Return the best sets, highest E(S) first, lower layers first on a tie."""
    return tuple(sorted(scored, key=lambda s: (-s.score, s.layers))[:count])


def fixed(geometry: LayerGeometry, layers: Iterable[int], reason: str) -> Choice:
    """Return a choice that no measurement decided."""
    chosen = tuple(sorted(layers))
    return Choice(chosen, geometry.set_entropy(chosen), (), (), reason)


def chosen(
    geometry: LayerGeometry, layers: Iterable[int], others: Iterable[Sequence[int]], trace: Sequence[Step], reason: str
) -> Choice:
    """Return a choice with its runner-up sets scored by E(S)."""
    final = tuple(sorted(layers))
    sets = {tuple(sorted(other)) for other in others} - {final}
    scored = best(Scored(layers, geometry.set_entropy(layers)) for layers in sets)
    return Choice(final, geometry.set_entropy(final), scored, tuple(trace), reason)


def the_layers(k: int) -> str:
    """Return how a reason speaks of k layers."""
    return "the layer" if k == 1 else f"the {k} layers"


def next_best(ranked: Sequence[int]) -> list[Layers]:
    """Return the few single layers after the first."""
    return [(layer,) for layer in ranked[1 : RUNNERS_UP + 1]]


def replaced(layers: Sequence[int], place: int, layer: int) -> Layers:
    """Return a set with the layer at one place replaced, sorted."""
    return tuple(sorted((*layers[:place], *layers[place + 1 :], layer)))


def grow_and_swap(
    geometry: LayerGeometry, k: int, start: Scored, admit: Callable[[Sequence[int]], list[int]]
) -> tuple[Layers, dict[Layers, float], list[Step]]:
    """Add the layer of highest E(S) until k are chosen, then swap while a swap raises E(S).

    Args:
        geometry: Entropies.
        k: Layers wanted.
        start: The first layer and its S(l).
        admit: Which layers may join a set.

    Returns:
        The set, E(S) of all sets of k layers that were tried, and the steps.
    """
    current = start.layers
    trace = [Step("start", current, start.score, "S(l), the highest")]
    tried: dict[Layers, float] = {}
    while len(current) < k:
        grown = {tuple(sorted((*current, layer))): layer for layer in admit(current)}
        scores = {layers: geometry.set_entropy(layers) for layers in grown}
        current = _highest(scores)
        tried = scores
        trace.append(
            Step(f"add {grown[current]}", current, scores[current], "E(S), the highest of those that may join")
        )
    score = geometry.set_entropy(current)
    while k > 1:
        swapped = {
            replaced(current, place, layer)
            for place in range(k)
            for layer in admit((*current[:place], *current[place + 1 :]))
            if layer not in current
        }
        scores = {layers: geometry.set_entropy(layers) for layers in swapped}
        tried |= scores
        if not scores or scores[_highest(scores)] <= score:
            break
        better = _highest(scores)
        note = f"E(S), up from {score:.6f}"
        trace.append(Step("swap", better, scores[better], note))
        current, score = better, scores[better]
    return current, tried, trace


def _highest(scores: dict[Layers, float]) -> Layers:
    return min(scores, key=lambda layers: (-scores[layers], layers))


def dissimilar(
    geometry: LayerGeometry, candidates: Sequence[int], limit: float
) -> Callable[[Sequence[int]], list[int]]:
    """Return which layers may join a set: those within a limit of CKA to it, or else the least similar one.

    Args:
        geometry: CKA.
        candidates: Layers that may be chosen.
        limit: Highest CKA to any layer of the set.
    """

    def admit(current: Sequence[int]) -> list[int]:
        free = [layer for layer in candidates if layer not in current]
        similarity = {layer: geometry.highest_cka(layer, current) for layer in free}
        within = [layer for layer in free if similarity[layer] <= limit]
        return within or [min(free, key=lambda layer: (similarity[layer], layer))]

    return admit


def beyond(geometry: LayerGeometry, layers: Sequence[int], limit: float) -> str:
    """Return a warning for a reason where a set could not keep a limit of CKA, nothing where it did.

    Args:
        geometry: CKA.
        layers: The set.
        limit: Highest CKA between two of them.
    """
    highest = max((geometry.highest_cka(a, [b]) for a, b in combinations(layers, 2)), default=-1.0)
    if highest <= limit:
        return ""
    return f"; warning: no other layer was within {limit:g}, so the least similar joined, at CKA {highest:.3f}"


def greedy(
    k: int, start: Scored, candidates: Sequence[int], gain: Callable[[int, Layers], float], what: str
) -> tuple[Layers, list[Layers], list[Step]]:
    """Add the layer of highest gain until k are chosen.

    Args:
        k: Layers wanted.
        start: The first layer and its S(l).
        candidates: Layers that may be chosen.
        gain: What a layer adds to those chosen.
        what: The gain in words, for the trace.

    Returns:
        The set, the sets that the best few other last layers would have made, and the steps.
    """
    current = start.layers
    others: list[Layers] = [(layer,) for layer in candidates]
    trace = [Step("start", current, start.score, "S(l), the highest")]
    while len(current) < k:
        gains = {layer: gain(layer, current) for layer in candidates if layer not in current}
        ranked = sorted(gains, key=lambda layer: (-gains[layer], layer))
        others = [tuple(sorted((*current, layer))) for layer in ranked[1 : RUNNERS_UP + 1]]
        current = tuple(sorted((*current, ranked[0])))
        trace.append(Step(f"add {ranked[0]}", current, gains[ranked[0]], what))
    return current, others, trace
