"""Training an EAGLE-3 head by training-time test on features of the target."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from speclayers.config import DraftConfig
from speclayers.drafting.checkpoints import Checkpoint, restore_checkpoint, save_checkpoint, weights_hash
from speclayers.drafting.feature_store import FeatureSource
from speclayers.drafting.features import check_tokens
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.processes import Processes
from speclayers.drafting.step_sums import StepSums
from speclayers.drafting.training_data import Reading, TrainingData, sequence_order, trained_responses
from speclayers.drafting.training_log import Progress, TrainingLog
from speclayers.drafting.ttt import Execution, StepMetrics, ttt_loss
from speclayers.drafting.vocabulary import choose_vocabulary
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.tables import HELD_OUT, TRAIN
from speclayers.targets.target import Target

BETAS = (0.9, 0.95)
ALONE = Processes()

_Item = TypeVar("_Item")

logger = logging.getLogger(__name__)


def new_trainer(
    name: HeadName,
    target: Target,
    corpus: pd.DataFrame,
    source: FeatureSource,
    draft: DraftConfig,
    fingerprint: str,
    checkpoints: Path,
    start: Mapping[str, Tensor] | None = None,
    processes: Processes = ALONE,
) -> Trainer:
    """Return a head that is ready to train; a killed training continues after its last checkpoint, to the same weights.

    Args:
        name: Its layers and seed.
        target: The model it drafts for.
        corpus: Rows of the training corpus.
        source: Features of that corpus.
        draft: Settings.
        fingerprint: Fingerprint of settings and code; part of the head's config.
        checkpoints: Folder of this training's checkpoints.
        start: First weights by parameter name; what is not named starts as `draft.initialise` says.
        processes: The processes that train this head together.

    Raises:
        UserError: The settings do not fit the target, the features do not fit the corpus, or a weight does not fit.
    """
    if name.kind != "eagle3":
        raise UserError(f"{name}: heads of kind '{name.kind}' cannot be trained; expected eagle3")
    check_tokens(target, corpus)
    vocabulary = choose_vocabulary(
        trained_responses(corpus, draft.held_out), draft.vocabulary, target.vocabulary, target.stop_ids
    )
    config = head_config(target, draft, name.layers, name.seed, fingerprint, vocabulary)
    head = new_head(config, vocabulary, target, draft.initialise)
    key = f"{name}/{fingerprint}/{source.key}"
    if start:
        _set_weights(head, start)
        key += f"/{weights_hash(start)}"
    data = TrainingData(target, corpus, source, config.layers, vocabulary.ids, draft.ttt_steps)
    learnt, held_out = data.split(draft.held_out)
    return Trainer(head.to(target.device), learnt, draft, checkpoints, key, held_out, processes)


@torch.no_grad()
def _set_weights(head: Eagle3Head, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(head.named_parameters())
    for name, weight in weights.items():
        if name not in parameters:
            raise UserError(f"start weights: the head has no weight '{name}'; it has {', '.join(parameters)}")
        expected = tuple(parameters[name].shape)
        if tuple(weight.shape) != expected:
            raise UserError(f"start weights: '{name}' has shape {tuple(weight.shape)}; expected {expected}")
        parameters[name].copy_(weight)
    logger.info("given weights: %s", ", ".join(weights))


def learning_rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the share of the peak learning rate at a step, from 1: linear warm-up, then a cosine towards 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup - 1) / max(steps - warmup, 1)))


class Trainer:
    """The loop over optimiser steps.

    Args:
        head: The head, on its device.
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
        head: Eagle3Head,
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
        self._optimiser = _optimiser(head, draft)
        self.steps = draft.steps if draft.tokens is None else self.steps_of(draft.tokens)
        with processes.main_first():  # it deletes checkpoints of no use
            restored = restore_checkpoint(checkpoints, key, head, self._optimiser)
        self.step = restored.step if restored else 0
        self._log = TrainingLog(restored.log if restored else None)
        logger.info("training on %d sequences; held out: %d", len(data), len(held_out or ()))

    def steps_of(self, tokens: int) -> int:
        """Return how many optimiser steps, from the first on, see this many response tokens."""
        order = sequence_order(len(self._data), self.head.config.seed)
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
        order = sequence_order(len(self._data), self.head.config.seed)
        order = islice(order, self.step * draft.sequences_per_step, None)
        progress = Progress(last, self.step, str(self.head.config.layers), self._processes.main)
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
        for part in _parts(mine, size):
            readings = held_out.read(part)
            batch = held_out.batch(readings)
            with self._precision():
                _, metrics = ttt_loss(
                    self.head, batch.sequences, batch.targets, self._draft.step_decay, self._draft.loss
                )
            sums.add(metrics, held_out.draftable_slots(readings))
        return sums.over(self._processes, self._device)

    @property
    def _device(self) -> torch.device:
        return self.head.fc.weight.device

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
        for part in _parts(readings, self._draft.sequences_per_pass or len(readings)):
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
            loss, metrics = ttt_loss(
                self.head,
                batch.sequences,
                batch.targets,
                self._draft.step_decay,
                self._draft.loss,
                shares,
                Execution(recompute=self._draft.activation_checkpointing, fuse=self._draft.compile),
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


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _optimiser(head: Eagle3Head, draft: DraftConfig) -> torch.optim.Optimizer:
    """Return AdamW; norms are not decayed, the LM head has its own learning rate."""
    lm_head = [head.lm_head.weight]
    matrices = [p for p in head.parameters() if p.dim() > 1 and p is not head.lm_head.weight]
    norms = [p for p in head.parameters() if p.dim() == 1]
    groups = [
        {"params": lm_head, "peak": draft.lm_head_learning_rate, "weight_decay": draft.weight_decay},
        {"params": matrices, "peak": draft.learning_rate, "weight_decay": draft.weight_decay},
        {"params": norms, "peak": draft.learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=draft.learning_rate, betas=BETAS, fused=True)
