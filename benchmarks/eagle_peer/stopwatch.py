"""Where the time of decoding goes: inside the models' forward passes, or outside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from torch import nn


class Lap(NamedTuple):
    """One forward pass: its module, begin and end in seconds."""

    module: nn.Module
    begin: float
    end: float


class Stopwatch:
    """Notes every forward pass of some modules, none of which runs inside another, while it is entered.

    Args:
        target: The model that verifies; its first pass is the prompt's.
        others: Further modules whose passes count as forward.
    """

    def __init__(self, target: nn.Module, others: Sequence[nn.Module]) -> None:
        """Prepare."""
        self.laps: list[Lap] = []
        self._target = target
        self._modules = (target, *others)
        self._begin = 0.0
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        """Begin to note."""
        for module in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._start))
            self._handles.append(module.register_forward_hook(self._stop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop noting."""
        for handle in self._handles:
            handle.remove()

    def _start(self, _module: nn.Module, _inputs: Any) -> None:
        self._begin = time.perf_counter()

    def _stop(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        self.laps.append(Lap(module, self._begin, time.perf_counter()))

    def cycles(self) -> tuple[int, float, float]:
        """Return how many whole cycles there were, from one verification's end to the next, and their seconds.

        Returns:
            Cycles, seconds of all of them, seconds of these outside forward passes.
        """
        verified = [lap.end for lap in self.laps if lap.module is self._target][1:]
        first, last = verified[0], verified[-1]
        forward = sum(lap.end - lap.begin for lap in self.laps if first <= lap.begin and lap.end <= last)
        return len(verified) - 1, last - first, last - first - forward
