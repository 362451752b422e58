"""The contract of a drafter that needs no head, and how it is found and built."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from speclayers.config import RivalConfig, Runtime, Section
from speclayers.drafting.drafter import Drafter
from speclayers.errors import UserError
from speclayers.fingerprint import rival_needs
from speclayers.names import RivalName
from speclayers.plugins import RIVALS
from speclayers.reading import checked_options
from speclayers.targets.manifest import MANIFEST
from speclayers.targets.target import Target, load_target


class Given(NamedTuple):
    """What a drafter is built from, beside its options.

    Args:
        target: The model that it drafts for.
        name: Its name, with the seed of what it draws at random.
        draft_length: Most tokens that it drafts in a row.
        nodes: Most nodes that it proposes at once, the root counted.
        files: What the workflow made for it: a file for each entry of NEEDS in the drafter's own file.
    """

    target: Target
    name: RivalName
    draft_length: int
    nodes: int
    files: dict[str, Path]

    @property
    def key(self) -> str:
        """Where the config speaks of it."""
        return f"rivals.{self.name.label}"

    @property
    def seed(self) -> int:
        """Seed of what it draws at random; for drafters that are declared to be seeded."""
        if self.name.seed is None:
            raise ValueError(f"{self.name}: has no seed")
        return self.name.seed


@runtime_checkable
class Remembers(Protocol):
    """A drafter whose proposals depend on questions before the present one."""

    def memory(self) -> list[float]:
        """Return all that it remembers of them."""

    def recall(self, memory: list[float]) -> None:
        """Remember this, and nothing else."""


Options = TypeVar("Options", bound=Section)


def chain_nodes(config: RivalConfig) -> int:
    """Return the nodes of a chain, the root counted."""
    return config.draft_length + 1


@dataclass(frozen=True)
class Rival(Generic[Options]):
    """A way of drafting.

    Args:
        build: (given, options) → drafter.
        options: Model that checks its options.
        seeded: Whether it draws at random.
        nodes: Entry → most nodes that it drafts of those asked for, the root counted; said before anything runs.
    """

    build: Callable[[Given, Options], Drafter]
    options: type[Options]
    seeded: bool = field(default=False, kw_only=True)
    nodes: Callable[[RivalConfig], int] = field(default=chain_nodes, kw_only=True)


def known_rivals() -> list[str]:
    """Return the names of all drafters: the files in `rivals/`."""
    return RIVALS.known()


FILES = {
    "cka": "table of CKA",
    "skipped": "layers that a search chose to skip",
    "weights": "weights that were trained for it",
}
"""What a drafter's NEEDS may name, each an option of the scripts that build it."""


def add_rival(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a script that builds a drafter."""
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--rival", required=True, help="name of the drafter's run, such as clasp or random_skip.s0")
    for name, meaning in FILES.items():
        arguments.add_argument(f"--{name}", type=Path, help=f"{meaning}, where the drafter reads one")


def read_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the files that these options name: a drafter's runs depend on their contents."""
    return [arguments.target / MANIFEST, *_given_files(arguments).values()]


def _given_files(arguments: argparse.Namespace) -> dict[str, Path]:
    return {name: path for name in FILES if (path := getattr(arguments, name)) is not None}


def checked_rival(config: RivalConfig, name: RivalName) -> tuple[Rival[Any], Section]:
    """Return a drafter and its checked options.

    Args:
        config: Its entry.
        name: Name of a run.

    Raises:
        UserError: There is no such drafter, an option does not fit, a seed is missing or of no use, or it fills no
            tree of the size asked for.
    """
    rival: Rival[Any] = RIVALS.load(config.name, Rival)
    where = f"rivals.{name.label}"
    options = checked_options(where, rival.options, config.options)
    if rival.seeded and name.seed is None:
        raise UserError(f"{where}.seeds: is missing; this drafter draws at random, expected such as [0]")
    if not rival.seeded and name.seed is not None:
        raise UserError(f"{where}.seeds: found {name.seed}, but this drafter draws nothing; expected no seeds")
    _refuse_other_size(config, where, rival.nodes(config))
    return rival, options


def _refuse_other_size(config: RivalConfig, where: str, nodes: int) -> None:
    if nodes != config.nodes:
        raise UserError(f"{where}.tree_nodes: is {config.nodes}, but it drafts {nodes} nodes at most; expected {nodes}")


def load_rival(arguments: argparse.Namespace, config: RivalConfig, runtime: Runtime) -> tuple[Target, Drafter]:
    """Load the target and build the drafter that a script's options name.

    Args:
        arguments: With the options of `add_rival`.
        config: The drafter's entry.
        runtime: How the target runs.

    Raises:
        UserError: As `load_target` and `build_rival`.
    """
    target = load_target(arguments.target, arguments.model, runtime)
    return target, build_rival(config, target, RivalName.parse(arguments.rival), _given_files(arguments))


def build_rival(config: RivalConfig, target: Target, name: RivalName, files: dict[str, Path]) -> Drafter:
    """Build a drafter as a study asks for it.

    Args:
        config: Its entry.
        target: The model that it drafts for.
        name: Name of the run.
        files: What the workflow made for it.

    Raises:
        UserError: There is no such drafter, an option does not fit, a seed is missing or of no use, it fills no tree
            of the size asked for, or the target cannot be drafted for in this way.
    """
    rival, options = checked_rival(config, name)
    given = Given(target, name, config.draft_length, config.nodes, files)
    for need in rival_needs(config.name):
        if need not in files:
            raise UserError(f"--{need}: is missing; {name} needs the {FILES[need]}")
    drafter = rival.build(given, options)
    _refuse_other_size(config, given.key, drafter.nodes)  # a small vocabulary, too, may leave fewer
    return drafter
