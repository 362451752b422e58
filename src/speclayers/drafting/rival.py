"""The contract of a drafter that needs no head, and how it is found and built."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from speclayers.config import RivalConfig, Section, nearest
from speclayers.drafting import rivals
from speclayers.drafting.drafter import Drafter
from speclayers.errors import UserError
from speclayers.fingerprint import rival_needs
from speclayers.names import RivalName
from speclayers.reading import checked_options
from speclayers.targets.target import Target


class Given(NamedTuple):
    """What a drafter is built from, beside its options.

    Args:
        target: The model that it drafts for.
        name: Its name, with the seed of what it draws at random.
        draft_length: Most tokens that it drafts in a row.
        files: What the workflow made for it: a file for each entry of NEEDS in the drafter's own file.
    """

    target: Target
    name: RivalName
    draft_length: int
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


Options = TypeVar("Options", bound=Section)


@dataclass(frozen=True)
class Rival(Generic[Options]):
    """A way of drafting.

    Args:
        build: (given, options) → drafter.
        options: Model that checks its options.
        seeded: Whether it draws at random.
    """

    build: Callable[[Given, Options], Drafter]
    options: type[Options]
    seeded: bool = field(default=False, kw_only=True)


def known_rivals() -> list[str]:
    """Return the names of all drafters: the files in `rivals/`."""
    return sorted(module.name for module in pkgutil.iter_modules(rivals.__path__))


def find_rival(name: str) -> Rival[Any]:
    """Return a drafter by its name.

    Raises:
        UserError: There is none of this name, or its file cannot be read.
    """
    known = known_rivals()
    if name not in known:
        raise UserError(f"rivals: there is no drafter '{name}'{nearest(name, known) or f'; known are {known}'}")
    where = f"drafting/rivals/{name}.py"
    try:
        module = importlib.import_module(f"{rivals.__name__}.{name}")
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno}: {error.msg}; mend the drafter's file") from None
    except ImportError as error:
        raise UserError(f"{where}: {error}; mend the drafter's file") from None
    found = getattr(module, "RIVAL", None)
    if not isinstance(found, Rival):
        raise UserError(f"{where}: found no RIVAL, expected RIVAL = Rival(build, Options) at its end")
    return found


FILES = {"cka": "table of CKA"}
"""What a drafter's NEEDS may name, each an option of the scripts that build it."""


def add_files(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a script that builds a drafter."""
    for name, meaning in FILES.items():
        arguments.add_argument(f"--{name}", type=Path, help=f"{meaning}, where the drafter reads one")


def given_files(arguments: argparse.Namespace) -> dict[str, Path]:
    """Return those of these files that were given, by name."""
    return {name: path for name in FILES if (path := getattr(arguments, name)) is not None}


def checked_rival(config: RivalConfig, name: RivalName) -> tuple[Rival[Any], Section]:
    """Return a drafter and its checked options.

    Args:
        config: Its entry.
        name: Name of a run.

    Raises:
        UserError: There is no such drafter, an option does not fit, or a seed is missing or of no use.
    """
    rival, where = find_rival(config.name), f"rivals.{name.label}"
    options = checked_options(where, rival.options, config.options)
    if rival.seeded and name.seed is None:
        raise UserError(f"{where}.seeds: is missing; this drafter draws at random, expected such as [0]")
    if not rival.seeded and name.seed is not None:
        raise UserError(f"{where}.seeds: found {name.seed}, but this drafter draws nothing; expected no seeds")
    return rival, options


def build_rival(config: RivalConfig, target: Target, name: RivalName, files: dict[str, Path]) -> Drafter:
    """Build a drafter as a study asks for it.

    Args:
        config: Its entry.
        target: The model that it drafts for.
        name: Name of the run.
        files: What the workflow made for it.

    Raises:
        UserError: There is no such drafter, an option does not fit, a seed is missing or of no use, or the target
            cannot be drafted for in this way.
    """
    rival, options = checked_rival(config, name)
    given = Given(target, name, config.draft_length, files)
    for need in rival_needs(config.name):
        if need not in files:
            raise UserError(f"--{need}: is missing; {name} needs the {FILES[need]}")
    return rival.build(given, options)
