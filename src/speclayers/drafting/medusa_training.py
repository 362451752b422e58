"""Training Medusa's heads on the features and responses that draft heads learn from (arXiv 2401.10774, Medusa-1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from speclayers.config import DraftConfig
from speclayers.drafting.feature_store import FeatureSource
from speclayers.drafting.features import check_tokens
from speclayers.drafting.medusa_heads import MedusaConfig, MedusaHeads
from speclayers.drafting.processes import Processes
from speclayers.drafting.training_data import Batch, TrainingData, trained_responses
from speclayers.drafting.training_loop import ALONE, TrainingLoop, parts
from speclayers.drafting.tree import stable_topk
from speclayers.drafting.ttt import PLAIN, Execution, StepMetrics, stepwise_loss
from speclayers.drafting.vocabulary import choose_vocabulary, vocabulary_hash
from speclayers.errors import UserError
from speclayers.names import RivalName
from speclayers.targets.target import Target


def new_medusa_trainer(
    name: RivalName,
    target: Target,
    corpus: pd.DataFrame,
    source: FeatureSource,
    draft: DraftConfig,
    fingerprint: str,
    checkpoints: Path,
    processes: Processes = ALONE,
) -> MedusaTrainer:
    """Return heads that are ready to train; a killed training continues after its last checkpoint.

    Args:
        name: Name of the drafter's run, with the seed of the order.
        target: The model they draft for.
        corpus: Rows of the training corpus.
        source: Features of that corpus.
        draft: Settings; its `ttt_steps` are as many as there are heads.
        fingerprint: Fingerprint of settings and code; part of the heads' config.
        checkpoints: Folder of this training's checkpoints.
        processes: The processes that train together.

    Raises:
        UserError: The seed is missing, nothing is held out, or the features do not fit the corpus.
    """
    if name.seed is None:
        raise UserError(f"rivals.{name.label}.seeds: is missing; the order of training is drawn, expected such as [0]")
    check_tokens(target, corpus)
    responses = trained_responses(corpus, draft.held_out)
    vocabulary = choose_vocabulary(responses, draft.vocabulary, target.vocabulary, target.stop_ids)
    config = MedusaConfig(
        heads=draft.ttt_steps,
        draft_vocabulary=len(vocabulary.ids),
        vocabulary_hash=vocabulary_hash(vocabulary.ids),
        coverage=vocabulary.coverage,
        target=target.name,
        target_hash=target.manifest.target_hash,
        template_hash=target.manifest.template_hash,
        seed=name.seed,
        fingerprint=fingerprint,
    )
    data = TrainingData(target, corpus, source, (target.n_layers,), vocabulary.ids, draft.ttt_steps)
    learnt, held_out = data.split(draft.held_out)
    if not len(held_out):
        raise UserError(
            f"draft.held_out: {draft.held_out} holds out none of {len(data)} sequences; {name} needs some to know how "
            "accurate its heads are, expected a larger share"
        )
    heads = MedusaHeads(config, vocabulary.ids, target).to(target.device)
    key = f"{name}/{fingerprint}/{source.key}"
    return MedusaTrainer(heads, learnt, draft, checkpoints, key, held_out, processes)


class MedusaTrainer(TrainingLoop[MedusaHeads]):
    """The loop over optimiser steps of Medusa's heads.

    Head i is compared with the target where an EAGLE-3 head is at step i of training-time test: both draft the token
    i + 2 places behind the state that they begin with.
    """

    @property
    def _seed(self) -> int:
        return self.head.config.seed

    @property
    def _title(self) -> str:
        return f"{self.head.config.heads} Medusa heads"

    def _groups(self) -> list[dict[str, Any]]:
        draft = self._draft
        weights = list(self.head.parameters())
        return [{"params": weights, "peak": draft.learning_rate, "weight_decay": draft.weight_decay}]

    def _loss(
        self, batch: Batch, shares: Sequence[float] | None = None, execution: Execution = PLAIN
    ) -> tuple[Tensor, list[StepMetrics]]:
        decay, loss = self._draft.step_decay, self._draft.loss
        return stepwise_loss(self.head, self._outputs(batch), batch.targets, decay, loss, shares, execution)

    def _outputs(self, batch: Batch) -> list[Tensor]:
        """Return each head's output (response slots of all sequences, width)."""
        states = torch.cat([sequence.states[sequence.first_slot :] for sequence in batch.sequences])
        outputs: list[Tensor] = self.head(states)
        return outputs

    @torch.no_grad()
    def calibrate(self) -> None:
        """Measure on the held-out responses how often each head's guess of each rank is the target's best token."""
        assert self._held_out is not None
        right = torch.zeros(self.head.accuracies.shape, dtype=torch.float64)
        counted = torch.zeros(len(right), 1, dtype=torch.float64)
        size = self._draft.sequences_per_pass or self._draft.sequences_per_step
        for part in parts(range(len(self._held_out)), size):
            batch = self._held_out.batch(self._held_out.read(part))
            with self._precision():
                outputs = self._outputs(batch)
            for head, (output, counts) in enumerate(zip(outputs, batch.targets.counted, strict=True)):
                rows = counts.nonzero()[:, 0]
                with self._precision():
                    logits = self.head.logits(output[rows]).float()
                guesses = self.head.target_ids(stable_topk(logits, right.shape[1])[1])
                right[head] += (guesses == batch.targets.best[rows + head, None]).sum(0).cpu()
                counted[head] += len(rows)
        self.head.accuracies.copy_(right / counted.clamp(min=1))
