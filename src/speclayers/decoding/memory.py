"""Finished questions of a drafter that remembers earlier ones, so that a killed run continues as if it had not been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from speclayers.decoding.shards import Item, Rows, Shards
from speclayers.drafting.drafter import Drafter
from speclayers.drafting.rival import Remembers
from speclayers.files import read_json

_MEMORY, _VALUE = "memory", "value"


def shards_of(drafter: Drafter, work: Path, key: str) -> Shards:
    """Return the folder of a drafter's finished questions: where it remembers them, they carry its memory.

    Args:
        drafter: The drafter.
        work: Folder of the stage's leftovers.
        key: Identifies settings, code and inputs.
    """
    return _RememberedShards(work, key, drafter) if isinstance(drafter, Remembers) else Shards(work, key)


class _RememberedShards(Shards):
    def __init__(self, work: Path, key: str, drafter: Remembers) -> None:
        super().__init__(work, key)
        self._drafter = drafter

    def collect(
        self, items: Sequence[Item], name: Callable[[Item], str], compute: Callable[[Item], Rows], label: str
    ) -> Rows:
        """Compute each item with the memory that the one before it left, whether this run computed that or another."""
        before = dict(zip(map(name, items[1:]), map(name, items), strict=False))

        def computed(item: Item) -> Rows:
            self._drafter.recall(self._memory_after(before.get(name(item))))
            return compute(item) | {_MEMORY: [{_VALUE: value} for value in self._drafter.memory()]}

        return super().collect(items, name, computed, label)

    def _memory_after(self, name: str | None) -> list[float]:
        if name is None:
            return []
        return [float(row[_VALUE]) for row in read_json(self.folder / f"{name}.json")[_MEMORY]]
