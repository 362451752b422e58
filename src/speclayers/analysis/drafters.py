"""What a drafter's name says: its kind, the target layers it reads, its training seed."""

from __future__ import annotations

from typing import NamedTuple

from speclayers.names import PRETRAINED, HeadName, PretrainedName, RivalName, is_rival, layers_name

REFERENCE_KIND = "eagle3"
"""Kind whose layer sets are compared; its sets are labelled by their layers alone."""


MOVED_KIND = "moved"
"""Kind of heads that kept another set's weights; they are compared with heads trained on their layers, only."""


PRETRAINED_KIND = PRETRAINED.rstrip(".")
"""Kind of heads trained elsewhere; their config.json says which layers they read."""


IS_RIVAL = "layers is null"
"""Condition in SQL: a drafter without a head. It stands in no comparison of layer sets, only in a table of its own."""


class DrafterName(NamedTuple):
    """Parts of a drafter's name; `layers` and `seed` are None where it has none."""

    kind: str
    layers: list[int] | None
    seed: int | None
    layer_set: str


def parse_drafter(name: str) -> DrafterName:
    """Take a drafter's name apart.

    Args:
        name: A trained head's, such as `eagle3.l02-l15-l27.s0`, `pretrained.` and the name of one trained elsewhere,
            or that of a drafter without a head, such as `clasp` or `random_skip.s0`.

    Raises:
        UserError: It is neither.
    """
    if name.startswith(PRETRAINED):
        found = PretrainedName.parse(name)
        return DrafterName(PRETRAINED_KIND, None, found.seed, found.label)
    if is_rival(name):
        rival = RivalName.parse(name)
        return DrafterName(rival.kind, None, rival.seed, rival.label)
    head = HeadName.parse(name)
    layer_set = layers_name(head.layers)
    if head.start:
        return DrafterName(MOVED_KIND, list(head.layers), head.seed, moved_name(head))
    label = layer_set if head.kind == REFERENCE_KIND else f"{head.kind}.{layer_set}"
    return DrafterName(head.kind, list(head.layers), head.seed, label)


def moved_name(head: HeadName) -> str:
    """Return the label of a moved head without its seed: l02-l18-l29.from-l02-l15-l27.p10."""
    return f"{layers_name(head.layers)}.from-{layers_name(head.start)}.p{head.percent}"
