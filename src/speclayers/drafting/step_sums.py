"""Losses and accuracies over several batches and processes: averages weighted by what counted in each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speclayers.drafting.processes import Processes
from speclayers.drafting.ttt import StepMetrics


class StepSums:
    """Sums up the metrics of batches, by TTT step.

    Args:
        steps: TTT steps.
    """

    def __init__(self, steps: int) -> None:
        """Start from nothing."""
        self._loss, self._draftable, self._correct, self._overlap, self._slots = torch.zeros(
            5, steps, dtype=torch.float64
        )

    def add(self, metrics: Sequence[StepMetrics], draftable: Tensor) -> None:
        """Add a batch.

        Args:
            metrics: Of each TTT step.
            draftable: (steps,) slots that each step's loss averages over.
        """
        self._draftable += draftable
        for step, m in enumerate(metrics):
            self._loss[step] += (m.loss or 0.0) * draftable[step]
            self._correct[step] += (m.accuracy or 0.0) * m.slots
            self._overlap[step] += (m.expected_acceptance or 0.0) * m.slots
            self._slots[step] += m.slots

    def over(self, processes: Processes, device: torch.device) -> list[StepMetrics]:
        """Return the averages over all batches of all processes, summed up on a device that they share."""
        sums = torch.stack((self._loss, self._draftable, self._correct, self._overlap, self._slots)).to(device)
        return [
            StepMetrics(
                loss / draftable if draftable else None,
                correct / slots if slots else None,
                overlap / slots if slots else None,
                int(slots),
            )
            for loss, draftable, correct, overlap, slots in processes.sum(sums).T.tolist()
        ]
