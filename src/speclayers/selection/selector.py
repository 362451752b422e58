"""The contract of a selector, and how it is found and called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from speclayers.config import Section, SelectorConfig
from speclayers.errors import UserError
from speclayers.names import Layers
from speclayers.plugins import SELECTORS
from speclayers.reading import checked_options
from speclayers.selection.layer_geometry import LayerGeometry


class Scored(NamedTuple):
    """A layer set and its E(S) in nats."""

    layers: Layers
    score: float


class Step(NamedTuple):
    """One step of a search, for the trace.

    Args:
        action: What was done: start, add, swap, accept, reject, …
        layers: The set afterwards.
        value: What decided it.
        note: What `value` is, and what stood against it.
    """

    action: str
    layers: Layers
    value: float
    note: str


class Choice(NamedTuple):
    """A layer set and why it was chosen.

    Args:
        layers: Chosen layers, sorted.
        score: E(S) in nats.
        runners_up: Next best sets, best first.
        trace: Every step.
        reason: Why these layers, in words.
    """

    layers: Layers
    score: float
    runners_up: tuple[Scored, ...]
    trace: tuple[Step, ...]
    reason: str


class NoOptions(Section):
    """A selector without options."""


Options = TypeVar("Options", bound=Section)


@dataclass(frozen=True)
class Selector(Generic[Options]):
    """A way of choosing layers.

    Args:
        choose: (geometry, k, options, generator) → choices, usually one.
        options: Model that checks its options.
        sizes: Numbers of layers it is defined for; all when None.
        seeded: Whether its choice depends on the seed.
        measures: Whether its choice depends on the geometry; if not, a half-sample changes nothing.
    """

    choose: Callable[[LayerGeometry, int, Options, np.random.Generator], list[Choice]]
    options: type[Options]
    sizes: frozenset[int] | None = None
    seeded: bool = field(default=False, kw_only=True)
    measures: bool = field(default=True, kw_only=True)


def known_selectors() -> list[str]:
    """Return the names of all selectors: the files in `selectors/`."""
    return SELECTORS.known()


def find_selector(name: str) -> Selector[Any]:
    """Return a selector by its name.

    Raises:
        UserError: There is none of this name, or its file cannot be read.
    """
    return SELECTORS.load(name, Selector)


@dataclass(frozen=True)
class Request:
    """A selector with checked options, for one k and seed."""

    config: SelectorConfig
    selector: Selector[Any]
    options: Section
    k: int
    seed: int

    def choose(self, geometry: LayerGeometry) -> list[Choice]:
        """Let the selector choose."""
        return self.selector.choose(geometry, self.k, self.options, np.random.default_rng(self.seed))


def requests(configs: Sequence[SelectorConfig], n_layers: int) -> list[Request]:
    """Check all selectors of a study before any of them runs.

    Args:
        configs: Selectors of the study.
        n_layers: Number of decoder blocks of the model.

    Returns:
        One request per selector, k and seed.

    Raises:
        UserError: A name, option, k or seed does not fit.
    """
    found = []
    for config in configs:
        selector = find_selector(config.name)
        options = checked_options(f"selection.selectors.{config.name}", selector.options, config.options)
        _check_sizes(config, selector, n_layers)
        if len(config.seeds) > 1 and not selector.seeded:
            raise UserError(
                f"selection.selectors.{config.name}.seeds: found {config.seeds}, but this selector is not random; "
                "expected one seed"
            )
        found += [Request(config, selector, options, k, seed) for k in config.k for seed in config.seeds]
    return found


def _check_sizes(config: SelectorConfig, selector: Selector[Any], n_layers: int) -> None:
    where = f"selection.selectors.{config.name}.k"
    for k in config.k:
        if selector.sizes is not None and k not in selector.sizes:
            expected = " or ".join(str(size) for size in sorted(selector.sizes))
            raise UserError(f"{where}: found {k}, but this selector is defined for k = {expected}")
        if k > n_layers:
            raise UserError(f"{where}: {k} is more than the model's {n_layers} layers")
