"""Batches for training-time test: which sequences count, what is held out, and what the target predicts there."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from speclayers.drafting.feature_store import FeatureSource, SequenceFeatures
from speclayers.drafting.ttt import TTTSequence, TTTTargets, counted_slots, first_response_slot
from speclayers.drafting.vocabulary import restricted_target
from speclayers.errors import UserError
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)


class Sample(NamedTuple):
    """A sequence: its place in the corpus, its own and its prompt's id, tokens and counted slots."""

    place: int
    sample_id: str
    prompt_id: str
    ids: Tensor
    first_slot: int
    counted: Tensor

    @property
    def response_tokens(self) -> int:
        """Slots that count at the first TTT step."""
        return int(self.counted[0].sum())


class Reading(NamedTuple):
    """A sequence with its features, before the target's distribution is spread out over the draft vocabulary."""

    sample: Sample
    features: SequenceFeatures


class Batch(NamedTuple):
    """What one pass of the head learns from."""

    sample_ids: list[str]
    sequences: list[TTTSequence]
    targets: TTTTargets


class TrainingData:
    """Reads sequences and what the target predicts on them.

    Args:
        target: The target.
        corpus: Rows of the training corpus.
        source: Features of the same corpus.
        layers: Layers the head reads.
        draft_ids: (draft_vocabulary,) target ids of the draft vocabulary, ascending.
        steps: TTT steps.

    Raises:
        UserError: The features are of other sequences, lack a layer, or no sequence has a slot that counts.
    """

    def __init__(
        self,
        target: Target,
        corpus: pd.DataFrame,
        source: FeatureSource,
        layers: Sequence[int],
        draft_ids: Tensor,
        steps: int,
    ) -> None:
        """Find the sequences to learn from."""
        source.check(target, corpus, layers)
        self._target, self._source, self._layers = target, source, tuple(layers)
        self._restricted = restricted_target(target, draft_ids)
        self._draftable = torch.zeros(target.vocabulary, dtype=torch.bool).index_fill_(0, draft_ids.cpu(), True)
        self._samples = [sample for sample in read_samples(corpus, target, steps) if sample.response_tokens]
        if not self._samples:
            raise UserError("training corpus: no response has a token to draft from; raise max_new_tokens")
        if len(self._samples) < len(corpus):
            logger.info("left out: %d sequences whose response is empty", len(corpus) - len(self._samples))
        _tell_of_short_responses(self._samples, steps)

    def __len__(self) -> int:
        """Return the number of sequences to learn from."""
        return len(self._samples)

    def split(self, share: float) -> tuple[TrainingData, TrainingData]:
        """Return what is trained on and what is held out, by `is_held_out`.

        Raises:
            UserError: Nothing is left to train on.
        """
        parts = []
        for wanted in (False, True):
            part = copy(self)
            part._samples = [s for s in self._samples if is_held_out(s.prompt_id, share) == wanted]
            parts.append(part)
        trained_on, held_out = parts
        if not len(trained_on):
            raise UserError(
                f"draft.held_out: {share} leaves none of {len(self)} sequences to train on; expected a smaller share"
            )
        return trained_on, held_out

    def response_tokens(self, index: int) -> int:
        """Return the slots of a sequence that count at the first TTT step."""
        return self._samples[index].response_tokens

    def read(self, chosen: Sequence[int]) -> list[Reading]:
        """Get some sequences' features.

        Args:
            chosen: Indices below `len(self)`.
        """
        samples = [self._samples[index] for index in chosen]
        features = self._source.read([(sample.place, sample.first_slot + 1) for sample in samples], self._layers)
        return [Reading(*pair) for pair in zip(samples, features, strict=True)]

    def draftable_slots(self, readings: Iterable[Reading]) -> Tensor:
        """Return how many slots the loss of each TTT step averages over: those that count and can be drafted.

        Returns:
            Int64 (steps,).
        """
        return sum((self._draftable_slots(reading) for reading in readings), torch.zeros((), dtype=torch.int64))

    def batch(self, readings: Sequence[Reading]) -> Batch:
        """Compute what the target predicts on some sequences."""
        restricted, full, best = zip(*(self._distribution(reading) for reading in readings), strict=True)
        targets = TTTTargets(
            restricted=torch.cat(restricted),
            full=torch.cat(full),
            best=torch.cat(best),
            counted=torch.cat([reading.sample.counted for reading in readings], dim=1).to(self._target.device),
        )
        return Batch([r.sample.sample_id for r in readings], [self._sequence(r) for r in readings], targets)

    def _draftable_slots(self, reading: Reading) -> Tensor:
        counted, best = reading.sample.counted, reading.features.last.best.cpu()
        return torch.stack(
            [self._draftable[best[slots.nonzero()[:, 0] + step]].sum() for step, slots in enumerate(counted)]
        )

    def _sequence(self, reading: Reading) -> TTTSequence:
        states = reading.features.states[:-1].to(self._target.device).float()
        return TTTSequence(states, self._target.embed(reading.sample.ids).float(), reading.sample.first_slot)

    def _distribution(self, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
        """Return both views of the target's distribution, and its best token, at each slot's next position."""
        rows = reading.features.last
        norm = next(self._target.anatomy.final_norm.parameters())
        logits = self._restricted.logits(rows.states.to(norm.device)).float().to(self._target.device)
        logsumexp = rows.logsumexp.to(logits.device)[:, None]
        return logits.softmax(-1), (logits - logsumexp).exp(), rows.best.to(logits.device)


def is_held_out(prompt_id: str, share: float) -> bool:
    """Tell whether a prompt is never trained on: a hash of its id alone decides, so that it is the same for all heads.

    Args:
        prompt_id: Its id; all turns of a conversation share it, for a later turn's prompt holds the earlier responses.
        share: Share of the ids that are held out, about.
    """
    digest = hashlib.sha256(prompt_id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def held_out_rows(corpus: pd.DataFrame, share: float) -> np.ndarray:
    """Tell which rows no head of the study is trained on, by `is_held_out`.

    Args:
        corpus: Rows of the training corpus.
        share: Share of the prompts that are held out, about.

    Returns:
        Bool (rows,).
    """
    return np.array([is_held_out(str(prompt_id), share) for prompt_id in corpus["prompt_id"]], dtype=bool)


def trained_responses(corpus: pd.DataFrame, share: float) -> list[np.ndarray]:
    """Return the responses that are trained on: held-out ones must not even choose the draft vocabulary.

    Args:
        corpus: Rows of the training corpus.
        share: Share of the prompts that are held out, about.

    Raises:
        UserError: Nothing is left to train on.
    """
    rows = corpus[~held_out_rows(corpus, share)]
    if rows.empty:
        raise UserError(
            f"draft.held_out: {share} leaves none of {len(corpus)} sequences to train on; expected a smaller share"
        )
    return [np.asarray(ids)[first:] for ids, first in zip(rows["input_ids"], rows["response_start"], strict=True)]


def _tell_of_short_responses(samples: Sequence[Sample], steps: int) -> None:
    reached = max(int(sample.counted.any(dim=1).sum()) for sample in samples)
    if reached < steps:
        logger.warning(
            "warning: draft.ttt_steps: no response is long enough for more than %d of %d steps; the rest learn nothing",
            reached,
            steps,
        )


def read_samples(corpus: pd.DataFrame, target: Target, steps: int) -> Iterator[Sample]:
    """Yield all sequences of a corpus with what counts of them, those without any such slot included.

    Args:
        corpus: Rows of the training corpus.
        target: The target, whose stop tokens end a response.
        steps: TTT steps.
    """
    columns = (corpus["sample_id"], corpus["prompt_id"], corpus["input_ids"], corpus["response_start"])
    for place, (sample_id, prompt_id, tokens, start) in enumerate(zip(*columns, strict=True)):
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
        counted = counted_slots(ids, int(start), target.stop_ids, steps)
        yield Sample(place, str(sample_id), str(prompt_id), ids, first_response_slot(int(start)), counted)


def sequence_order(sequences: int, seed: int) -> Iterator[int]:
    """Yield indices of sequences without end, every pass in another order: a function of the seed alone."""
    epoch = 0
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(sequences).tolist()
        epoch += 1
