"""What running a target takes: its weights in memory, its cached keys, and the time of its forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from speclayers.planning import constants as known
from speclayers.planning.constants import HOST, Machine
from speclayers.planning.sizes import Size

MB = 1e6


@dataclass(frozen=True)
class SizedTarget:
    """A model as a job runs it.

    Args:
        size: Its numbers of weights, layers and tokens, and its width.
        bytes_each: Bytes of a weight.
        machine: What it runs on.
    """

    size: Size
    bytes_each: int
    machine: Machine

    @property
    def weights_mb(self) -> float:
        """Its weights in memory."""
        return self.size.parameters * self.bytes_each / MB

    @property
    def start(self) -> float:
        """Seconds until it can run: the interpreter's start, and its weights read."""
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
