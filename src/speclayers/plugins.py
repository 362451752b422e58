"""Parts that are found by the name of their file: selectors, and drafters that need no head."""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple, TypeVar

from speclayers.config import nearest
from speclayers.errors import UserError

Kind = TypeVar("Kind")


class Registry(NamedTuple):
    """A package in which every file is a part, named like the file.

    Args:
        package: Its name.
        what: What a part is called.
        key: Where the config names parts.
        form: What a part's file ends with.
    """

    package: str
    what: str
    key: str
    form: str

    def known(self) -> list[str]:
        """Return the names of all parts."""
        return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__))

    def file(self, name: str) -> str:
        """Return a part's file, as a path inside this project's package.

        Raises:
            UserError: There is none of this name.
        """
        known = self.known()
        if name not in known:
            hint = nearest(name, known) or f"; known are {', '.join(known)}"
            raise UserError(f"{self.key}: there is no {self.what} '{name}'{hint}")
        return "/".join((*self.package.split(".")[1:], f"{name}.py"))

    def load(self, name: str, kind: type[Kind]) -> Kind:
        """Return what a part's file defines.

        Args:
            name: Name of the part.
            kind: Its class.

        Raises:
            UserError: There is none of this name, or its file cannot be read.
        """
        where = self.file(name)
        try:
            module = importlib.import_module(f"{self.package}.{name}")
        except SyntaxError as error:
            raise UserError(f"{error.filename}:{error.lineno}: {error.msg}; mend the {self.what}'s file") from None
        except ImportError as error:
            raise UserError(f"{where}: {error}; mend the {self.what}'s file") from None
        constant = self.form.split(" = ")[0]
        found = getattr(module, constant, None)
        if not isinstance(found, kind):
            raise UserError(f"{where}: found no {constant}, expected {self.form} at its end")
        return found


SELECTORS = Registry(
    "speclayers.selection.selectors", "selector", "selection.selectors", "SELECTOR = Selector(choose, Options)"
)
RIVALS = Registry("speclayers.drafting.rivals", "drafter", "rivals", "RIVAL = Rival(build, Options)")
