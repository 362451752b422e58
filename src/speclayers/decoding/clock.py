"""Where the time of decoding goes; counting runs use `NO_CLOCK` and read no time at all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, Protocol

import torch

Phase = Literal["draft", "verify", "other"]


class Clock(Protocol):
    """Told what decoding is doing."""

    def enter(self, phase: Phase | None) -> None:
        """Say that from now on time belongs to a phase, or to none."""


class _NoClock:
    def enter(self, phase: Phase | None) -> None:
        """Ignore the phase."""


NO_CLOCK: Clock = _NoClock()


class HostClock:
    """Sums seconds by phase with the host's clock."""

    def __init__(self) -> None:
        """Begin in no phase."""
        self._seconds: dict[Phase, float] = defaultdict(float)
        self._phase: Phase | None = None
        self._since = 0.0

    def enter(self, phase: Phase | None) -> None:
        """Book the time since the last call on the phase that ends."""
        now = time.perf_counter()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def seconds(self) -> Mapping[Phase, float]:
        """Return the seconds of each phase."""
        return {"draft": self._seconds["draft"], "verify": self._seconds["verify"], "other": self._seconds["other"]}


class CudaClock:
    """Sums seconds by phase with events on a GPU, which does not wait for the host.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin in no phase."""
        self._device = device
        self._marks: list[tuple[Phase | None, torch.Event]] = []

    def enter(self, phase: Phase | None) -> None:
        """Mark where a phase begins in the GPU's stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append((phase, event))

    def seconds(self) -> Mapping[Phase, float]:
        """Wait for the GPU and return the seconds of each phase."""
        torch.cuda.synchronize(self._device)
        seconds: dict[Phase, float] = {"draft": 0.0, "verify": 0.0, "other": 0.0}
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            if phase is not None:
                seconds[phase] += begin.elapsed_time(end) / 1000
        return seconds


def clock_for(device: torch.device) -> HostClock | CudaClock:
    """Return a fresh clock for what runs on a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
