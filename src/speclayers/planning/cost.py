"""What one job takes, and what passes of a target take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from speclayers.planning import constants as known
from speclayers.planning.constants import HOST, Machine
from speclayers.planning.sizes import Size

MB = 1e6


class Cost(NamedTuple):
    """What one job takes.

    Args:
        seconds: Wall-clock time, on one core where no GPU is asked for.
        memory_mb: Largest memory in MB; on a GPU what host and device each need at most.
        disk_mb: What stays on disk, in MB.
        gpus: GPUs it asks for.
        work_mb: What lies on disk only while it runs, in MB.
    """

    seconds: float
    memory_mb: float
    disk_mb: float = 0.0
    gpus: int = 0
    work_mb: float = 0.0


@dataclass(frozen=True)
class TargetCost:
    """A model as a job runs it."""

    size: Size
    bytes_each: int
    machine: Machine

    @property
    def weights_mb(self) -> float:
        """Memory of its weights."""
        return self.size.parameters * self.bytes_each / MB

    @property
    def start(self) -> float:
        """Seconds until it is loaded."""
        return self.machine.start_seconds + self.size.parameters * self.bytes_each / HOST.disk_bytes

    def passes(self, count: float, tokens: float, head: bool = True) -> float:
        """Return the seconds of `count` forward passes over `tokens` tokens together."""
        weights = self.size.parameters - (0 if head else self.size.vocabulary * self.size.width)
        work = 2 * weights * tokens / self.machine.forward_flops
        reading = count * self.size.parameters * self.bytes_each / self.machine.weight_bytes
        return count * self.size.layers * self.machine.layer_seconds + max(work, reading)

    def keys_mb(self, tokens: float) -> float:
        """Return the memory of cached keys and values."""
        return 2 * tokens * self.size.layers * self.size.width * known.KEYS_OF_WIDTH * self.bytes_each / MB
