"""A run shared out over jobs by ranges of questions, and its tables put together again.

Every question has a random stream of its own, so what it gives does not depend on the job that decodes it: the tables
put together are the same bytes as a single job's, however many share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd

from speclayers.errors import UserError
from speclayers.tables import Origin, Table, read_origin, read_table, write_table

Item = TypeVar("Item")


@dataclass(frozen=True)
class QuestionRange:
    """One job's questions: a range of them, in their order.

    Args:
        index: Number of the job, from 0.
        count: How many jobs share the questions.
    """

    index: int = 0
    count: int = 1

    def of(self, questions: Sequence[Item]) -> Sequence[Item]:
        """Return this job's questions.

        Raises:
            UserError: There is no such job, or there are more jobs than questions.
        """
        if not 0 <= self.index < self.count:
            raise UserError(f"--shard: found {self.index}, expected 0 to {self.count - 1} (acceptance.shards)")
        if self.count > len(questions):
            raise UserError(f"acceptance.shards: {self.count} jobs for {len(questions)} questions; expected no more")
        first, last = (len(questions) * place // self.count for place in (self.index, self.index + 1))
        return questions[first:last]

    def origin(self, origin: Origin) -> Origin:
        """Return the origin of this job's file, which says which range it is; of a single job's it is the run's."""
        if self.count == 1:
            return origin
        return Origin(origin.model, f"{origin.fingerprint}/{self.index}-of-{self.count}")


def merge_shards(paths: Sequence[Path], table: Table, output: Path, origin: Origin) -> None:
    """Put the tables of all jobs together.

    Args:
        paths: One file a job, in their order.
        table: Its schema.
        output: File to write.
        origin: Model, and fingerprint of the run.

    Raises:
        UserError: A file is missing, truncated, of another job, or of another run.
    """
    frames = []
    for index, path in enumerate(paths):
        expected, found = QuestionRange(index, len(paths)).origin(origin), read_origin(path)
        for key, wanted in (("model", expected.model), ("fingerprint", expected.fingerprint)):
            if found.get(key) != wanted:
                raise UserError(f"{path}: {key} is {found.get(key)!r}, expected {wanted!r}; delete it and run again")
        frames.append(read_table(path, table).astype(object))  # as objects: a null must not turn integers into floats
    write_table(output, table, pd.concat(frames, ignore_index=True), origin)
