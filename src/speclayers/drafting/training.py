"""Training an EAGLE-3 head by training-time test on features of the target."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from speclayers.config import DraftConfig
from speclayers.drafting.checkpoints import weights_hash
from speclayers.drafting.feature_store import FeatureSource
from speclayers.drafting.features import check_tokens
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.processes import Processes
from speclayers.drafting.training_data import Batch, TrainingData, trained_responses
from speclayers.drafting.training_loop import ALONE, TrainingLoop
from speclayers.drafting.ttt import PLAIN, Execution, StepMetrics, ttt_loss
from speclayers.drafting.vocabulary import choose_vocabulary
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.targets.target import Target

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


class Trainer(TrainingLoop[Eagle3Head]):
    """The loop over optimiser steps of an EAGLE-3 head."""

    @property
    def _seed(self) -> int:
        return self.head.config.seed

    @property
    def _title(self) -> str:
        return str(self.head.config.layers)

    def _groups(self) -> list[dict[str, Any]]:
        """Norms are not decayed, the LM head has its own learning rate."""
        head, draft = self.head, self._draft
        lm_head = [head.lm_head.weight]
        matrices = [p for p in head.parameters() if p.dim() > 1 and p is not head.lm_head.weight]
        norms = [p for p in head.parameters() if p.dim() == 1]
        return [
            {"params": lm_head, "peak": draft.lm_head_learning_rate, "weight_decay": draft.weight_decay},
            {"params": matrices, "peak": draft.learning_rate, "weight_decay": draft.weight_decay},
            {"params": norms, "peak": draft.learning_rate, "weight_decay": 0.0},
        ]

    def _loss(
        self, batch: Batch, shares: Sequence[float] | None = None, execution: Execution = PLAIN
    ) -> tuple[Tensor, list[StepMetrics]]:
        decay, loss = self._draft.step_decay, self._draft.loss
        return ttt_loss(self.head, batch.sequences, batch.targets, decay, loss, shares, execution)
