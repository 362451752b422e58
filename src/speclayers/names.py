"""Names that become part of paths: of layer sets, heads and temperatures."""

from __future__ import annotations

import re
from typing import NamedTuple

from speclayers.errors import UserError


def temperature_name(temperature: float) -> str:
    """Return a temperature as it stands in paths: 0, 1, 0.7."""
    return format(temperature, "g")


_HEAD_NAME = re.compile(r"^(?P<kind>[a-z0-9]+)\.(?P<layers>l\d{2,}(?:-l\d{2,})*)\.s(?P<seed>\d+)$")


class HeadName(NamedTuple):
    """What identifies a trained head: the layers it reads, its seed and its kind, not who asked for it."""

    layers: tuple[int, ...]
    seed: int
    kind: str = "eagle3"

    def __str__(self) -> str:
        """Return the name as it stands in paths, such as eagle3.l02-l15-l27.s0."""
        return f"{self.kind}.{layers_name(self.layers)}.s{self.seed}"

    @classmethod
    def parse(cls, text: str) -> HeadName:
        """Read a name back.

        Raises:
            UserError: The text is no head name.
        """
        match = _HEAD_NAME.match(text)
        if match is None:
            raise UserError(f"'{text}' is no head name; expected the form eagle3.l02-l15-l27.s0")
        return cls(kind=match["kind"], layers=tuple(sorted(layers_of(match["layers"]))), seed=int(match["seed"]))


def layers_name(layers: tuple[int, ...] | list[int]) -> str:
    """Return a layer set as it is printed and stored: l02-l18-l33, three digits from layer 100 on."""
    digits = 3 if any(layer >= 100 for layer in layers) else 2
    return "-".join(f"l{layer:0{digits}d}" for layer in sorted(layers))


def layers_of(name: str) -> set[int]:
    """Read a layer set's name back.

    Args:
        name: As `layers_name` writes it.

    Raises:
        UserError: The text is no such name.
    """
    if not re.fullmatch(r"l\d{2,}(-l\d{2,})*", name):
        raise UserError(f"'{name}' is no layer set; expected the form l02-l15-l27")
    return {int(part[1:]) for part in name.split("-")}
