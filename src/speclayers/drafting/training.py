"""Training an EAGLE-3 head by training-time test on stored features of the target."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from speclayers.config import DraftConfig
from speclayers.drafting.checkpoints import Progress, restore_checkpoint, save_checkpoint, weights_hash
from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.training_data import Batch, TrainingData, sequence_order
from speclayers.drafting.ttt import StepMetrics, ttt_loss
from speclayers.drafting.vocabulary import choose_vocabulary
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.tables import TRAINING
from speclayers.targets.target import Target

BETAS = (0.9, 0.95)
LOGGED_LINES = 20

logger = logging.getLogger(__name__)


class TrainedHead(NamedTuple):
    """A trained head and its training table."""

    head: Eagle3Head
    table: pd.DataFrame


def train(
    name: HeadName,
    target: Target,
    corpus: pd.DataFrame,
    store: FeatureStore,
    draft: DraftConfig,
    fingerprint: str,
    checkpoints: Path,
    start: Mapping[str, Tensor] | None = None,
) -> TrainedHead:
    """Train a head to its last step; the arguments and errors are those of `new_trainer`."""
    trainer = new_trainer(name, target, corpus, store, draft, fingerprint, checkpoints, start)
    trainer.run()
    return TrainedHead(trainer.head.eval(), trainer.table())


def new_trainer(
    name: HeadName,
    target: Target,
    corpus: pd.DataFrame,
    store: FeatureStore,
    draft: DraftConfig,
    fingerprint: str,
    checkpoints: Path,
    start: Mapping[str, Tensor] | None = None,
) -> Trainer:
    """Return a head that is ready to train; a killed training continues after its last checkpoint, to the same weights.

    Args:
        name: Its layers and seed.
        target: The model it drafts for.
        corpus: Rows of the training corpus.
        store: Features of that corpus.
        draft: Settings.
        fingerprint: Fingerprint of settings and code; part of the head's config.
        checkpoints: Folder of this training's checkpoints.
        start: First weights by parameter name; what is not named starts as `draft.initialise` says.

    Raises:
        UserError: The settings do not fit the target, the features do not fit the corpus, or a weight does not fit.
    """
    if name.kind != "eagle3":
        raise UserError(f"{name}: heads of kind '{name.kind}' cannot be trained; expected eagle3")
    responses = [
        np.asarray(ids)[first:] for ids, first in zip(corpus["input_ids"], corpus["response_start"], strict=True)
    ]
    vocabulary = choose_vocabulary(responses, draft.vocabulary, target.vocabulary, target.stop_ids)
    config = head_config(target, draft, name.layers, name.seed, fingerprint, vocabulary)
    head = new_head(config, vocabulary, target, draft.initialise)
    key = f"{name}/{fingerprint}/{store.manifest.key}"
    if start:
        _set_weights(head, start)
        key += f"/{weights_hash(start)}"
    data = TrainingData(target, corpus, store, config.layers, vocabulary.ids, draft.ttt_steps)
    return Trainer(head.to(target.device), data, draft, checkpoints, key)


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


class Trainer:
    """The loop over optimiser steps.

    Args:
        head: The head, on its device.
        data: What it learns from.
        draft: Settings.
        checkpoints: Folder of this training's checkpoints; the last one that can be read is restored.
        key: What the training learns from; a checkpoint of another key is never used.
    """

    def __init__(self, head: Eagle3Head, data: TrainingData, draft: DraftConfig, checkpoints: Path, key: str) -> None:
        """Make the optimiser and restore the last checkpoint."""
        self.head = head
        self._data, self._draft = data, draft
        self._checkpoints, self._key = checkpoints, key
        self._optimiser = _optimiser(head, draft)
        self.steps = draft.steps if draft.tokens is None else self.steps_of(draft.tokens)
        restored = restore_checkpoint(checkpoints, key, head, self._optimiser)
        self.step = restored.step if restored else 0
        self._log = [tuple(row) for row in restored.log.tolist()] if restored else []

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
        report = _Report(last, self.step, str(self.head.config.layers))
        with report.bar:
            for step in range(self.step + 1, last + 1):
                batch = self._data.batch(list(islice(order, draft.sequences_per_step)))
                metrics = self._step(step, batch)
                self._record(step, metrics)
                self.step = step
                report.show(step, metrics, batch.response_tokens)
                if step < self.steps and (step == last or step % draft.checkpoint_every == 0):
                    progress = Progress(step, torch.tensor(self._log, dtype=torch.float64))
                    save_checkpoint(self._checkpoints, self._key, self.head, self._optimiser, progress)

    def table(self) -> pd.DataFrame:
        """Return the training table."""
        names = [column.name for column in TRAINING.columns]
        frame = pd.DataFrame(self._log, columns=names)
        return frame.astype({"step": "int32", "ttt_step": "int32", "slots": "int64"})

    def _step(self, step: int, batch: Batch) -> list[StepMetrics]:
        factor = learning_rate_factor(step, self.steps, self._draft.warmup_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        loss, metrics = ttt_loss(self.head, batch.sequences, batch.targets, self._draft.step_decay)
        if not bool(torch.isfinite(loss)):
            raise UserError(
                f"training diverged: the loss is {loss.item()} at step {step}, samples {', '.join(batch.sample_ids)}; "
                "lower draft.learning_rate, or look for broken features of these samples"
            )
        if loss.requires_grad:  # not when no slot of the batch has a best token that can be drafted
            self._optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.head.parameters(), self._draft.gradient_clip)
            self._optimiser.step()
        return metrics

    def _record(self, step: int, metrics: Sequence[StepMetrics]) -> None:
        epoch = step * self._draft.sequences_per_step / len(self._data)
        length = simulated_length([m.accuracy for m in metrics])
        for index, m in enumerate(metrics):
            values = (math.nan if v is None else v for v in (m.loss, m.accuracy, m.expected_acceptance))
            self._log.append((step, epoch, index, *values, length, m.slots))


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


class _Report:
    """Shows how training goes: a bar on a terminal, a line now and then in a log."""

    def __init__(self, steps: int, done: int, name: str) -> None:
        self.bar = tqdm(total=steps, initial=done, desc=name, unit="step", disable=None, mininterval=1)
        self._every = max(steps // LOGGED_LINES, 1)
        self._steps = steps
        self._tokens = 0
        self._since = time.monotonic()

    def show(self, step: int, metrics: Sequence[StepMetrics], response_tokens: int) -> None:
        """Report a step."""
        self._tokens += response_tokens
        rate = self._tokens / max(time.monotonic() - self._since, 1e-9)
        losses = "/".join("-" if m.loss is None else f"{m.loss:.2f}" for m in metrics)
        accuracies = "/".join("-" if m.accuracy is None else f"{m.accuracy:.2f}" for m in metrics)
        self.bar.set_postfix_str(f"loss {losses} acc {accuracies} {rate:.0f} tok/s", refresh=False)
        self.bar.update()
        if self.bar.disable and (step % self._every == 0 or step == self._steps):
            logger.info("step %d of %d: loss %s, accuracy %s, %.0f tok/s", step, self._steps, losses, accuracies, rate)
