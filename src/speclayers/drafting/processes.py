"""Several processes that train one head together: who takes which sequences, and sums over all of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import reduce
from torch import Tensor

from speclayers.targets.staging import resumable_folder

Item = TypeVar("Item")


@dataclass(frozen=True)
class Processes:
    """The processes of this training.

    Args:
        rank: This one's number, from 0.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and tells how it goes."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Return this process's part of what all do together; the parts differ by one item at most."""
        return list(items[self.rank :: self.count])

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all processes' tensors, of equal shape."""
        if self.count == 1:
            return tensor
        total: Tensor = reduce(tensor, reduction="sum")
        return total

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            PartialState().wait_for_everyone()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run a block in the main process, then in the others."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()


@contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun or accelerate launched together; a process launched alone is the only one.

    On GPUs each process gets its own.

    Args:
        device: The target's device, as in the config.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    state = PartialState(cpu=device == "cpu")
    if not state.is_main_process:
        logging.getLogger("speclayers").setLevel(logging.ERROR)  # what they would tell, the main process tells
    yield Processes(state.process_index, state.num_processes)
    state.wait_for_everyone()
    state.destroy_process_group()


@contextmanager
def shared_work(processes: Processes, work: Path, key: str) -> Iterator[Path]:
    """Give `resumable_folder` to all processes; the main one makes it, and removes it on success."""
    if processes.main:
        with resumable_folder(work, key) as folder:
            processes.wait()
            yield folder
            processes.wait()
    else:
        processes.wait()
        yield work / key
        processes.wait()
