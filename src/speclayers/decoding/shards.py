"""Results of finished questions, kept so that a killed run continues at the next one."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from tqdm import tqdm

from speclayers.files import read_json, write_json
from speclayers.fingerprint import digest
from speclayers.tables import Table

Item = TypeVar("Item")
Rows = dict[str, list[dict[str, Any]]]
"""Table → its rows, as JSON holds them."""

LOG_LINES = 20

logger = logging.getLogger(__name__)


def job_key(fingerprint: str, settings: Sequence[object], inputs: Sequence[Path]) -> str:
    """Return what identifies a job's shards.

    Args:
        fingerprint: Of the stage's settings and code.
        settings: What the command line adds to them, such as temperature and tree size.
        inputs: Files read; their content counts, since a head may have been trained again.
    """
    contents = (hashlib.sha256(path.read_bytes()).hexdigest() for path in inputs)
    return digest(fingerprint, *map(str, settings), *contents)


def to_frame(rows: Sequence[dict[str, Any]], table: Table) -> pd.DataFrame:
    """Return rows in the form that `write_table` takes; None becomes null."""
    # As objects: pandas would turn a column of integers with a None into floats.
    return pd.DataFrame(list(rows), columns=[column.name for column in table.columns], dtype=object)


class Shards:
    """A folder with one JSON file for each finished question.

    What other settings left behind in `work` is removed, so `work` belongs to one job at a time.

    Args:
        work: Folder of the stage's leftovers.
        key: Identifies settings, code and inputs: shards of another key are of no use.
    """

    def __init__(self, work: Path, key: str) -> None:
        """Make the folder and remove other keys' leftovers."""
        self.work = work
        self.folder = work / key
        self.folder.mkdir(parents=True, exist_ok=True)
        for other in work.iterdir():
            if other != self.folder:
                shutil.rmtree(other) if other.is_dir() else other.unlink()

    def collect(
        self, items: Sequence[Item], name: Callable[[Item], str], compute: Callable[[Item], Rows], label: str
    ) -> Rows:
        """Return the rows of all items, computing those that no shard holds.

        Args:
            items: What is computed one by one.
            name: Names an item's shard.
            compute: Computes an item's rows.
            label: What the progress bar says.

        Raises:
            UserError: A shard cannot be read or written.
        """
        united: Rows = {}
        for item in _progress(items, label):
            path = self.folder / f"{name(item)}.json"
            if not path.exists():
                write_json(path, compute(item))
            # Read back even what was just computed, so that a continued run takes no other way.
            for table, rows in read_json(path).items():
                united.setdefault(table, []).extend(rows)
        return united

    def remove(self) -> None:
        """Remove everything, once the outputs are written."""
        shutil.rmtree(self.work)


def _progress(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Iterate with a bar on a terminal, and with a line now and then in a log."""
    bar = tqdm(items, desc=label, disable=None, mininterval=1)
    step = max(1, len(items) // LOG_LINES)
    for done, item in enumerate(bar, start=1):
        yield item
        if bar.disable and (done % step == 0 or done == len(items)):
            logger.info("%s: %d of %d", label, done, len(items))
