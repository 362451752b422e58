"""The loop over optimiser steps that all trained drafters share: order, schedule, evaluations, checkpoints."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from speclayers.config import DraftConfig
from speclayers.drafting.checkpoints import Checkpoint, restore_checkpoint, save_checkpoint
from speclayers.drafting.processes import Processes
from speclayers.drafting.step_sums import StepSums
from speclayers.drafting.training_data import Batch, Reading, TrainingData, sequence_order
from speclayers.drafting.training_log import Progress, TrainingLog
from speclayers.drafting.ttt import PLAIN, Execution, StepMetrics
from speclayers.errors import UserError
from speclayers.tables import HELD_OUT, TRAIN

BETAS = (0.9, 0.95)
ALONE = Processes()

Head = TypeVar("Head", bound=nn.Module)
_Item = TypeVar("_Item")

logger = logging.getLogger(__name__)


def learning_rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the share of the peak learning rate at a step, from 1: linear warm-up, then a cosine towards 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup - 1) / max(steps - warmup, 1)))


class TrainingLoop(ABC, Generic[Head]):
    """The loop over optimiser steps; a subclass says what the loss is and which learning rates its weights have.

    Args:
        head: What is trained, on its device.
        data: What it learns from.
        draft: Settings.
        checkpoints: Folder of this training's checkpoints; the last one that can be read is restored.
        key: What the training learns from; a checkpoint of another key is never used.
        held_out: What it is evaluated on as it goes; may be empty, or not given.
        processes: The processes that train this head together.

    Raises:
        UserError: The processes are not as many as the settings say.
    """

    def __init__(
        self,
        head: Head,
        data: TrainingData,
        draft: DraftConfig,
        checkpoints: Path,
        key: str,
        held_out: TrainingData | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Make the optimiser and restore the last checkpoint."""
        if processes.count != draft.processes:
            raise UserError(f"draft.processes: is {draft.processes}, but {processes.count} were launched together")
        self.head = head
        self._data, self._held_out, self._draft = data, held_out, draft
        self._checkpoints, self._key, self._processes = checkpoints, key, processes
        self._optimiser = torch.optim.AdamW(self._groups(), lr=draft.learning_rate, betas=BETAS, fused=True)
        self.steps = draft.steps if draft.tokens is None else self.steps_of(draft.tokens)
        with processes.main_first():  # it deletes checkpoints of no use
            restored = restore_checkpoint(checkpoints, key, head, self._optimiser)
        self.step = restored.step if restored else 0
        self._log = TrainingLog(restored.log if restored else None)
        logger.info("training on %d sequences; held out: %d", len(data), len(held_out or ()))

    @property
    @abstractmethod
    def _seed(self) -> int:
        """Seed of the order of sequences."""

    @property
    @abstractmethod
    def _title(self) -> str:
        """Name in the progress bar."""

    @abstractmethod
    def _groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's groups of weights, each with its peak learning rate as `peak`."""

    @abstractmethod
    def _loss(
        self, batch: Batch, shares: Sequence[float] | None = None, execution: Execution = PLAIN
    ) -> tuple[Tensor, list[StepMetrics]]:
        """Return the loss of a batch and what is logged of it, as `stepwise_loss`."""

    def steps_of(self, tokens: int) -> int:
        """Return how many optimiser steps, from the first on, see this many response tokens."""
        order = sequence_order(len(self._data), self._seed)
        steps, seen = 0, 0
        while seen < tokens:
            seen += sum(self._data.response_tokens(index) for index in islice(order, self._draft.sequences_per_step))
            steps += 1
        return steps

    def run(self, until: int | None = None) -> None:
        """Train on to a step, the last one when not given; a later call, of another process too, goes on from there.

        The learning rate's schedule is that of all `steps`, wherever the training pauses.

        Raises:
            UserError: The loss diverged, or a checkpoint cannot be written.
        """
        draft, last = self._draft, self.steps if until is None else min(until, self.steps)
        order = sequence_order(len(self._data), self._seed)
        order = islice(order, self.step * draft.sequences_per_step, None)
        progress = Progress(last, self.step, self._title, self._processes.main)
        with progress.bar:
            for step in range(self.step + 1, last + 1):
                metrics = self._learn(step, list(islice(order, draft.sequences_per_step)))
                self.step = step
                self._log.add(step, self._epoch(), TRAIN, metrics)
                progress.trained(step, metrics)
                if self._held_out and (step % draft.evaluate_every == 0 or step == self.steps):
                    metrics = self.evaluate(self._held_out)
                    self._log.add(step, self._epoch(), HELD_OUT, metrics)
                    progress.evaluated(step, metrics, self._log.has_parted())
                if step < self.steps and (step == last or step % draft.checkpoint_every == 0):
                    self._save()

    def table(self) -> pd.DataFrame:
        """Return the training table."""
        return self._log.table()

    @torch.no_grad()
    def evaluate(self, held_out: TrainingData) -> list[StepMetrics]:
        """Measure the head, as it is, on held-out responses.

        Args:
            held_out: Sequences that it is not trained on, the same in all processes.

        Returns:
            Averages over all of them, one for each TTT step.
        """
        sums = StepSums(self._draft.ttt_steps)
        mine = self._processes.share(range(len(held_out)))
        size = self._draft.sequences_per_pass or self._draft.sequences_per_step
        for part in parts(mine, size):
            readings = held_out.read(part)
            batch = held_out.batch(readings)
            with self._precision():
                _, metrics = self._loss(batch)
            sums.add(metrics, held_out.draftable_slots(readings))
        return sums.over(self._processes, self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.head.parameters()).device

    def _precision(self) -> torch.autocast:
        wanted = self._draft.precision
        low = wanted == "bfloat16" or (wanted == "auto" and self._device.type == "cuda")
        return torch.autocast(self._device.type, torch.bfloat16, enabled=low)

    def _epoch(self) -> float:
        return self.step * self._draft.sequences_per_step / len(self._data)

    def _save(self) -> None:
        if self._processes.main:
            checkpoint = Checkpoint(self.step, self._log.tensor())
            save_checkpoint(self._checkpoints, self._key, self.head, self._optimiser, checkpoint)

    def _learn(self, step: int, chosen: Sequence[int]) -> list[StepMetrics]:
        """Make one optimiser step, in passes and processes whose losses and gradients add up to those of one."""
        factor = learning_rate_factor(step, self.steps, self._draft.warmup_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        self._optimiser.zero_grad()
        readings = self._data.read(self._processes.share(chosen))
        draftable = self._processes.sum(self._data.draftable_slots(readings).to(self._device)).cpu()
        sums = StepSums(self._draft.ttt_steps)
        for part in parts(readings, self._draft.sequences_per_pass or len(readings)):
            slots = self._data.draftable_slots(part)
            sums.add(self._add_gradients(step, part, (slots / draftable.clamp(min=1)).tolist()), slots)
        if bool(draftable.any()):  # else no slot of the step has a best token that can be drafted
            self._share_gradients()
            nn.utils.clip_grad_norm_(self.head.parameters(), self._draft.gradient_clip)
            self._optimiser.step()
        return sums.over(self._processes, self._device)

    def _add_gradients(self, step: int, readings: Sequence[Reading], shares: Sequence[float]) -> list[StepMetrics]:
        batch = self._data.batch(readings)
        with self._precision():
            loss, metrics = self._loss(
                batch, shares, Execution(recompute=self._draft.activation_checkpointing, fuse=self._draft.compile)
            )
        if not bool(torch.isfinite(loss)):
            raise UserError(
                f"training diverged: the loss is {loss.item()} at step {step}, samples {', '.join(batch.sample_ids)}; "
                "lower draft.learning_rate, or look for broken features of these samples"
            )
        if loss.requires_grad:
            torch.autograd.backward(loss)
        return metrics

    def _share_gradients(self) -> None:
        if self._processes.count == 1:
            return
        parameters = list(self.head.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = self._processes.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(parameters, torch.split(total, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()


def parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Cut a sequence into parts of a size; the last may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))
