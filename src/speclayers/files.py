"""Files that appear whole or not at all, and JSON."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speclayers.errors import UserError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary file beside `path`; rename it there on success, remove it on failure.

    Raises:
        UserError: The file cannot be written (no space, no permission).
    """
    with told_as_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f".{path.name}.????????.part"):
            leftover.unlink(missing_ok=True)  # of a run that was killed: a file has one writer at a time
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with told_as_unwritable(path, FULL):
            yield temporary
        with told_as_unwritable(path):
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""What the system says when a file cannot grow: no space, over quota, too large, read-only."""


@contextmanager
def told_as_unwritable(path: Path, errors: frozenset[int] | None = None) -> Iterator[None]:
    """Tell the system's refusal to write `path` in one line.

    Args:
        path: What is written.
        errors: Error numbers that mean so; any when not given.

    Raises:
        UserError: The system refused.
    """
    try:
        yield
    except OSError as error:
        if errors is not None and error.errno not in errors:
            raise
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file that appears whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON that appears whole or not at all; non-finite numbers are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        UserError: The file is missing or broken.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: file is missing") from None
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSON ({error}); delete it and run again") from None
