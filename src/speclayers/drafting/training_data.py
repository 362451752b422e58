"""Batches for training-time test, read from the feature store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.ttt import TTTSequence, TTTTargets, counted_slots, first_response_slot
from speclayers.errors import UserError
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)


class _Sample(NamedTuple):
    """A sequence that has something to learn from: its place in the corpus, name, tokens and counted slots."""

    place: int
    sample_id: str
    ids: Tensor
    first_slot: int
    counted: Tensor


class Batch(NamedTuple):
    """What one optimiser step learns from."""

    sample_ids: list[str]
    sequences: list[TTTSequence]
    targets: TTTTargets

    @property
    def response_tokens(self) -> int:
        """Slots that count at the first TTT step."""
        return int(self.targets.counted[0].sum())


class TrainingData:
    """Reads sequences and what the target predicts on them.

    Args:
        target: The target.
        corpus: Rows of the training corpus.
        store: Features of the same corpus.
        layers: Layers the head reads.
        draft_ids: (draft_vocabulary,) target ids of the draft vocabulary, ascending.
        steps: TTT steps.

    Raises:
        UserError: The store holds other sequences, lacks a layer, or no sequence has a slot that counts.
    """

    def __init__(
        self,
        target: Target,
        corpus: pd.DataFrame,
        store: FeatureStore,
        layers: Sequence[int],
        draft_ids: Tensor,
        steps: int,
    ) -> None:
        """Find the sequences to learn from."""
        store.check_corpus(corpus)
        absent = sorted(set(layers) - set(store.manifest.layers))
        if absent:
            raise UserError(f"{store.folder}: holds no layer {absent[0]}; extract features again with this head listed")
        self._target, self._store, self._layers = target, store, tuple(layers)
        self._restricted = restricted_target(target, draft_ids)
        self._samples = [sample for sample in _samples(corpus, target, steps) if bool(sample.counted[0].any())]
        if not self._samples:
            raise UserError("training corpus: no response has a token to draft from; raise max_new_tokens")
        if len(self._samples) < len(corpus):
            logger.info("left out: %d sequences whose response is empty", len(corpus) - len(self._samples))

    def __len__(self) -> int:
        """Return the number of sequences to learn from."""
        return len(self._samples)

    def response_tokens(self, index: int) -> int:
        """Return the slots of a sequence that count at the first TTT step."""
        return int(self._samples[index].counted[0].sum())

    def part(self, chosen: Sequence[int]) -> TrainingData:
        """Return some of the sequences as data of their own.

        Args:
            chosen: Indices below `len(self)`.
        """
        part = copy(self)
        part._samples = [self._samples[index] for index in chosen]
        return part

    def batch(self, chosen: Sequence[int]) -> Batch:
        """Read some sequences.

        Args:
            chosen: Indices below `len(self)`.
        """
        samples = [self._samples[index] for index in chosen]
        restricted, full, best = zip(*(self._distribution(sample) for sample in samples), strict=True)
        targets = TTTTargets(
            restricted=torch.cat(restricted),
            full=torch.cat(full),
            best=torch.cat(best),
            counted=torch.cat([sample.counted for sample in samples], dim=1).to(self._target.device),
        )
        return Batch([s.sample_id for s in samples], [self._sequence(s) for s in samples], targets)

    def _sequence(self, sample: _Sample) -> TTTSequence:
        states = torch.cat([self._store.states(layer, sample.place)[:-1] for layer in self._layers], dim=-1)
        embeddings = self._target.embed(sample.ids).float()
        return TTTSequence(states.to(self._target.device).float(), embeddings, sample.first_slot)

    def _distribution(self, sample: _Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Return both views of the target's distribution, and its best token, at each slot's next position."""
        rows = self._store.target_rows(sample.place, sample.first_slot + 1)
        norm = next(self._target.anatomy.final_norm.parameters())
        logits = self._restricted.logits(rows.states.to(norm.device)).float().to(self._target.device)
        logsumexp = rows.logsumexp.to(logits.device)[:, None]
        return logits.softmax(-1), (logits - logsumexp).exp(), rows.best.to(logits.device)


def _samples(corpus: pd.DataFrame, target: Target, steps: int) -> Iterator[_Sample]:
    columns = (corpus["sample_id"], corpus["input_ids"], corpus["response_start"])
    for place, (sample_id, tokens, start) in enumerate(zip(*columns, strict=True)):
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
        counted = counted_slots(ids, int(start), target.stop_ids, steps)
        yield _Sample(place, str(sample_id), ids, first_response_slot(int(start)), counted)


def restricted_target(target: Target, draft_ids: Tensor) -> Target:
    """Return the target with an LM head of the draft vocabulary's rows: scaling and soft-capping stay its own.

    Raises:
        UserError: Its LM head is no plain matrix.
    """
    full = target.anatomy.lm_head
    if not isinstance(full, nn.Linear):
        raise UserError(f"{target.name}: its LM head is a {type(full).__name__}; expected a Linear layer")
    rows = draft_ids.to(full.weight.device)
    head = nn.Linear(full.in_features, len(rows), bias=full.bias is not None, device="meta")
    head.weight = nn.Parameter(full.weight.detach()[rows], requires_grad=False)
    if full.bias is not None:
        head.bias = nn.Parameter(full.bias.detach()[rows], requires_grad=False)
    return replace(target, anatomy=target.anatomy._replace(lm_head=head))


def sequence_order(sequences: int, seed: int) -> Iterator[int]:
    """Yield indices of sequences without end, every pass in another order: a function of the seed alone."""
    epoch = 0
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(sequences).tolist()
        epoch += 1
