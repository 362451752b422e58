"""Names that become part of paths: of layer sets, heads, drafters without one, draft shapes and temperatures."""

from __future__ import annotations

import re
from typing import NamedTuple

from speclayers.errors import UserError


def temperature_name(temperature: float) -> str:
    """Return a temperature as it stands in paths: 0, 1, 0.7."""
    return format(temperature, "g")


SHAPE_PATTERN = r"\d+c?"
"""Regular expression of a draft shape's name."""


class ShapeName(NamedTuple):
    """The size of what is drafted at once, as it stands in paths: 30 is a tree of 30 nodes, 6c a chain of 6.

    Args:
        nodes: Nodes, the root counted.
        chain: Whether they are one path; else a tree.
    """

    nodes: int
    chain: bool = False

    def __str__(self) -> str:
        """Return the name."""
        return f"{self.nodes}c" if self.chain else str(self.nodes)

    @classmethod
    def parse(cls, text: str) -> ShapeName:
        """Read a name back.

        Raises:
            UserError: The text is no such name, or the shape leaves nothing to draft.
        """
        nodes = int(text.removesuffix("c")) if re.fullmatch(SHAPE_PATTERN, text) else 0
        if nodes < 2:
            raise UserError(f"nodes: found '{text}', expected 2 or more for a tree, with a 'c' behind it for a chain")
        return cls(nodes, text.endswith("c"))


LAYERS_PATTERN = r"l\d\d+(?:-l\d\d+)*"
"""Regular expression of a layer set's name; without braces, which a workflow's patterns cannot hold."""

HEAD_PATTERN = rf"[a-z0-9]+\.{LAYERS_PATTERN}\.s\d+(?:\.from-{LAYERS_PATTERN}\.p\d\d?)?"
"""Regular expression of a head's name."""

PRETRAINED = "pretrained."
"""What names of heads trained elsewhere begin with."""

PRETRAINED_PATTERN = r"pretrained\.[a-z0-9][a-z0-9._-]*"
"""Regular expression of such a name: the entry of the config that describes the head, and how it was trained on."""

_PRETRAINED_NAME = re.compile(r"^pretrained\.(?P<entry>.+?)(?:\.p(?P<percent>\d{1,3})(?:\.s(?P<seed>\d+))?)?$")

_HEAD_NAME = re.compile(
    rf"^(?P<kind>[a-z0-9]+)\.(?P<layers>{LAYERS_PATTERN})\.s(?P<seed>\d+)"
    rf"(?:\.from-(?P<start>{LAYERS_PATTERN})\.p(?P<percent>\d\d?))?$"
)

RIVAL_KIND_PATTERN, RIVAL_VARIANT_PATTERN = r"[a-z][a-z0-9_]*", r"[a-z0-9]+(?:-[a-z0-9]+)*"
"""Regular expressions of the parts of a rival's name."""

_RIVAL_NAME = re.compile(
    rf"^(?P<kind>{RIVAL_KIND_PATTERN})(?:-(?P<variant>{RIVAL_VARIANT_PATTERN}))?(?:\.s(?P<seed>\d+))?$"
)

Layers = tuple[int, ...]
"""A layer set, sorted."""


class HeadName(NamedTuple):
    """What identifies a trained head, not who asked for it.

    Args:
        layers: Target layers that it reads, sorted.
        seed: Seed of its training.
        kind: Kind of the head.
        start: Layers of the head whose weights it started from; none for a head trained from scratch.
        percent: Share of a head's training, in per cent, that it got on its own layers after such a start.
    """

    layers: tuple[int, ...]
    seed: int
    kind: str = "eagle3"
    start: tuple[int, ...] = ()
    percent: int = 0

    def __str__(self) -> str:
        """Return the name as it stands in paths: eagle3.l02-l15-l27.s0, eagle3.l02-l18-l29.s0.from-l02-l15-l27.p10."""
        name = f"{self.kind}.{layers_name(self.layers)}.s{self.seed}"
        return f"{name}.from-{layers_name(self.start)}.p{self.percent}" if self.start else name

    @classmethod
    def parse(cls, text: str) -> HeadName:
        """Read a name back.

        Raises:
            UserError: The text is no head name, or it moves a head to another number of layers.
        """
        match = _HEAD_NAME.match(text)
        if match is None:
            raise UserError(f"'{text}' is no head name; expected the form eagle3.l02-l15-l27.s0")
        layers = tuple(sorted(layers_of(match["layers"])))
        name = cls(kind=match["kind"], layers=layers, seed=int(match["seed"]))
        if match["start"] is None:
            return name
        start = tuple(sorted(layers_of(match["start"])))
        if len(start) != len(layers):
            raise UserError(f"'{text}' moves a head of {len(start)} layers to {len(layers)}; expected as many")
        return name._replace(start=start, percent=int(match["percent"]))

    def origin(self) -> HeadName:
        """Return the head whose weights it started from: same kind and seed, other layers."""
        return HeadName(layers=self.start, seed=self.seed, kind=self.kind)


class PretrainedName(NamedTuple):
    """What identifies a head trained elsewhere, as it came or trained on here.

    Args:
        entry: Entry of the config that describes it.
        percent: Share of a head's training, in per cent, that it got here; 0 as it came.
        seed: Seed of that training's order; None as it came.
    """

    entry: str
    percent: int = 0
    seed: int | None = None

    @property
    def label(self) -> str:
        """The name without its seed: pretrained.published, pretrained.published.p10."""
        return f"{PRETRAINED}{self.entry}" + (f".p{self.percent}" if self.percent else "")

    def __str__(self) -> str:
        """Return the name as it stands in paths: pretrained.published, pretrained.published.p10.s0."""
        return self.label if self.seed is None else f"{self.label}.s{self.seed}"

    @classmethod
    def parse(cls, text: str) -> PretrainedName:
        """Read a name or a label back.

        Raises:
            UserError: The text is no such name.
        """
        match = _PRETRAINED_NAME.match(text)
        if match is None:
            raise UserError(f"'{text}' is no name of a head trained elsewhere; expected the form pretrained.published")
        seed = None if match["seed"] is None else int(match["seed"])
        return cls(match["entry"], int(match["percent"] or 0), seed)


def is_head(text: str) -> bool:
    """Tell whether a drafter's name is that of a head trained here from its first weights."""
    return _HEAD_NAME.match(text) is not None


def is_rival(text: str) -> bool:
    """Tell whether a drafter's name is that of one without a head."""
    return _RIVAL_NAME.match(text) is not None


class RivalName(NamedTuple):
    """What identifies a drafter that needs no head.

    Args:
        kind: Drafter, such as clasp.
        variant: Tells apart several of one kind; None where there is but one.
        seed: Seed of what it draws at random; None where it draws nothing.
    """

    kind: str
    variant: str | None = None
    seed: int | None = None

    @property
    def label(self) -> str:
        """The name without its seed: clasp, clasp-interval4."""
        return self.kind if self.variant is None else f"{self.kind}-{self.variant}"

    def __str__(self) -> str:
        """Return the name as it stands in paths: clasp, clasp-interval4, random_skip.s0."""
        return self.label if self.seed is None else f"{self.label}.s{self.seed}"

    @classmethod
    def parse(cls, text: str) -> RivalName:
        """Read a name back.

        Raises:
            UserError: The text is no such name.
        """
        match = _RIVAL_NAME.match(text)
        if match is None:
            raise UserError(
                f"'{text}' is no drafter's name; expected the form clasp, clasp-interval4 or random_skip.s0"
            )
        return cls(match["kind"], match["variant"], None if match["seed"] is None else int(match["seed"]))


def layers_name(layers: tuple[int, ...] | list[int]) -> str:
    """Return a layer set as it is printed and stored: l02-l18-l33, three digits from layer 100 on."""
    digits = 3 if any(layer >= 100 for layer in layers) else 2
    return "-".join(f"l{layer:0{digits}d}" for layer in sorted(layers))


TOP_LAYER = "top"
"""Name of the empty layer set: of a pass of the target that stores the last layer alone, which every pass stores."""


def layers_of(name: str) -> set[int]:
    """Read a layer set's name back.

    Args:
        name: As `layers_name` writes it, or TOP_LAYER.

    Raises:
        UserError: The text is no such name.
    """
    if name == TOP_LAYER:
        return set()
    if not re.fullmatch(LAYERS_PATTERN, name):
        raise UserError(f"'{name}' is no layer set; expected the form l02-l15-l27")
    return {int(part[1:]) for part in name.split("-")}
