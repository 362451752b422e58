"""What a drafter's name says: its kind, the target layers it reads, its training seed."""

from __future__ import annotations

from typing import NamedTuple

from speclayers.names import HeadName, layers_name

REFERENCE_KIND = "eagle3"
"""Kind whose layer sets are compared; its sets are labelled by their layers alone."""


class DrafterName(NamedTuple):
    """Parts of a drafter's name; `layers` and `seed` are None where it has none."""

    kind: str
    layers: list[int] | None
    seed: int | None
    layer_set: str


def parse_drafter(name: str) -> DrafterName:
    """Take a drafter's name apart.

    Args:
        name: A trained head's, such as `eagle3.l02-l15-l27.s0`, or one word, that of a method without training.

    Raises:
        UserError: It has several parts and is no head's name.
    """
    if name and "." not in name:
        return DrafterName(name, None, None, name)
    head = HeadName.parse(name)
    layer_set = layers_name(head.layers)
    label = layer_set if head.kind == REFERENCE_KIND else f"{head.kind}.{layer_set}"
    return DrafterName(head.kind, list(head.layers), head.seed, label)
