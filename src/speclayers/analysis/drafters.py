"""What a drafter's name says: its kind, the target layers it reads, its training seed."""

from __future__ import annotations

import re
from typing import NamedTuple

from speclayers.config import layers_name
from speclayers.errors import UserError

REFERENCE_KIND = "eagle3"
"""Kind whose layer sets are compared; its sets are labelled by their layers alone."""

_LAYERS = re.compile(r"l\d+(-l\d+)*")
_SEED = re.compile(r"s\d+")


class DrafterName(NamedTuple):
    """Parts of a drafter's name; `layers` and `seed` are None where it has none."""

    kind: str
    layers: list[int] | None
    seed: int | None
    layer_set: str


def parse_drafter(name: str) -> DrafterName:
    """Take a drafter's name apart, such as `eagle3.l02-l15-l27.s0`, `medusa.s0` or `pretrained.yuhui`.

    Args:
        name: Name of a head's folder, or of a drafter that needs no training.

    Raises:
        UserError: The name is empty.
    """
    if not name:
        raise UserError("drafter name: is empty, expected a name such as eagle3.l02-l15-l27.s0")
    kind, *parts = name.split(".")
    layers = next(([int(x) for x in re.findall(r"\d+", p)] for p in parts if _LAYERS.fullmatch(p)), None)
    seed = next((int(p[1:]) for p in parts[-1:] if _SEED.fullmatch(p)), None)
    kept = parts if seed is None else parts[:-1]
    if kind == REFERENCE_KIND and layers is not None:
        return DrafterName(kind, layers, seed, layers_name(layers))
    return DrafterName(kind, layers, seed, ".".join([kind, *kept]))
