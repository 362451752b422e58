"""What is logged of a training: its table, its progress, and when training and held-out responses part."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from speclayers.drafting.ttt import StepMetrics
from speclayers.tables import HELD_OUT, TRAIN, TRAINING

SPLITS = (TRAIN, HELD_OUT)
PARTED = 1.05
LOGGED_LINES = 20

logger = logging.getLogger(__name__)


def simulated_length(accuracies: Sequence[float | None]) -> float:
    """Return 1 + Σ_j Π_{i≤j} accuracy_i, tokens per verification if every step were reached by its accuracy alone.

    Args:
        accuracies: One per TTT step; None where nothing counted, which ends the sum.
    """
    length, reached = 1.0, 1.0
    for accuracy in takewhile(lambda accuracy: accuracy is not None, accuracies):
        reached *= accuracy or 0.0
        length += reached
    return length


class TrainingLog:
    """The rows of the training table.

    Args:
        rows: (rows, columns) fp64, of a training that continues; `split` is its place in SPLITS.
    """

    def __init__(self, rows: Tensor | None = None) -> None:
        """Start from nothing, or from rows of before."""
        self._rows: list[tuple[float, ...]] = [] if rows is None else [tuple(row) for row in rows.tolist()]

    def add(self, step: int, epoch: float, split: str, metrics: Sequence[StepMetrics]) -> None:
        """Add what was measured at an optimiser step, a row a TTT step."""
        length = simulated_length([m.accuracy for m in metrics])
        for index, m in enumerate(metrics):
            values = (math.nan if v is None else v for v in (m.loss, m.accuracy, m.expected_acceptance))
            self._rows.append((step, epoch, SPLITS.index(split), index, *values, length, m.slots))

    def tensor(self) -> Tensor:
        """Return the rows for a checkpoint."""
        return torch.tensor(self._rows, dtype=torch.float64)

    def table(self) -> pd.DataFrame:
        """Return the training table."""
        frame = pd.DataFrame(self._rows, columns=[column.name for column in TRAINING.columns])
        frame["split"] = [SPLITS[int(place)] for place in frame["split"]]
        return frame.astype({"step": "int32", "ttt_step": "int32", "slots": "int64"})

    def has_parted(self) -> bool:
        """Tell whether training goes on at the cost of held-out responses, as the last evaluation saw it.

        The rule: at TTT step 0 the held-out loss lies 5 % above its lowest so far, while the training loss, mean
        since the evaluation before, lies below what it was then.
        """
        rows = self.table()
        rows = rows[rows["ttt_step"] == 0]
        evaluations = rows[rows["split"] == HELD_OUT].set_index("step")["loss"]
        if len(evaluations) < 2:
            return False
        trained = rows[rows["split"] == TRAIN]
        since = np.searchsorted(evaluations.index, trained["step"])
        losses = trained["loss"].groupby(since).mean().reindex(range(len(evaluations)))
        best = int(np.argmin(evaluations))
        return bool(evaluations.iloc[-1] > PARTED * evaluations.iloc[best] and losses.iloc[-1] < losses.iloc[best])


class Progress:
    """Shows how training goes: a bar on a terminal, a line now and then in a log.

    Args:
        last: Step at which this run ends.
        done: Steps done before.
        name: Of the bar.
        shown: Whether anything is shown at all.
    """

    def __init__(self, last: int, done: int, name: str, shown: bool = True) -> None:
        """Start the clock."""
        self.bar = tqdm(
            total=last, initial=done, desc=name, unit="step", disable=None if shown else True, mininterval=1
        )
        self._shown, self._last, self._done = shown, last, done
        self._every = max(last // LOGGED_LINES, 1)
        self._tokens = 0
        self._since = time.monotonic()

    def trained(self, step: int, metrics: Sequence[StepMetrics]) -> None:
        """Report a step."""
        self._tokens += metrics[0].slots
        spent = max(time.monotonic() - self._since, 1e-9)
        rate = self._tokens / spent
        self.bar.set_postfix_str(f"{_in_words(metrics)}, {rate:.0f} tok/s", refresh=False)
        self.bar.update()
        if self._shown and self.bar.disable and (step % self._every == 0 or step == self._last):
            left = timedelta(seconds=round(spent / (step - self._done) * (self._last - step)))
            logger.info("step %d of %d: %s, %.0f tok/s, %s left", step, self._last, _in_words(metrics), rate, left)

    def evaluated(self, step: int, metrics: Sequence[StepMetrics], parted: bool) -> None:
        """Report an evaluation on held-out responses."""
        if not self._shown:
            return
        logger.info("step %d of %d: held out: %s", step, self._last, _in_words(metrics))
        if parted:
            logger.warning(
                "warning: by step %d the head learns its training responses by heart: the held-out loss lies 5 %% "
                "above its lowest while the training loss still falls; give it more responses or fewer steps",
                step,
            )


def _in_words(metrics: Sequence[StepMetrics]) -> str:
    losses = "/".join("-" if m.loss is None else f"{m.loss:.2f}" for m in metrics)
    accuracies = "/".join("-" if m.accuracy is None else f"{m.accuracy:.2f}" for m in metrics)
    length = simulated_length([m.accuracy for m in metrics])
    return f"loss {losses}, accuracy {accuracies}, simulated length {length:.2f}"
