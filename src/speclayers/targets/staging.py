"""Folders that appear whole, and folders that let a killed job continue."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speclayers.files import FULL, told_as_unwritable


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder`; rename it there on success, remove it on failure.

    A kill at any moment leaves the old folder, no folder or the new one, never a half-written one.
    What an earlier kill left beside it is removed first.

    Raises:
        UserError: The folder cannot be written (no space, no permission).
    """
    with told_as_unwritable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        staging = _temporary(folder)
    try:
        with told_as_unwritable(folder, FULL):
            yield staging
        with told_as_unwritable(folder):
            _finish(staging)
            if folder.exists():
                folder.rename(_temporary(folder) / "old")
            staging.rename(folder)
    finally:
        _remove_leftovers(folder)


def _temporary(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))


def _remove_leftovers(folder: Path) -> None:
    # Exactly mkdtemp's form: a job beside this one may be writing .qwen3.5.<random>.part while this one writes qwen3.
    form = re.compile(rf"\.{re.escape(folder.name)}\.[a-z0-9_]+\.part")
    for path in folder.parent.iterdir():
        if form.fullmatch(path.name):
            shutil.rmtree(path)


def _finish(folder: Path) -> None:
    """Put everything on the disk and open it to others as the umask says; temporary files start closed."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o777 & ~umask)
            continue
        with path.open("rb") as written:
            os.fsync(written.fileno())
        if path.stat().st_nlink == 1:  # a linked file belongs to the hub's cache, too
            path.chmod(0o666 & ~umask)


@contextmanager
def resumable_folder(work: Path, key: str) -> Iterator[Path]:
    """Give the folder `work`/`key` for checkpoints or shards; remove `work` on success only.

    Folders of other keys, left by jobs with other settings, are removed at the start.
    """
    folder = work / key
    folder.mkdir(parents=True, exist_ok=True)
    for other in work.iterdir():
        if other != folder:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    yield folder
    shutil.rmtree(work)
