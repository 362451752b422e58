"""Training-time test: the head is trained on its own outputs, several steps ahead (EAGLE-3, arXiv 2503.01840, §3.2).

Slot t of a sequence holds the target's states at position t and the embedding of token t + 1. At step j
it stands for position t + j: it reads the head's own output of step j − 1 and the embedding of token t + 1 + j.

Prompt slots are never drafted from, so they only produce keys and values of step 0; queries, MLP and LM
head run on *response slots* alone. These are the slots from the prompt's last position on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from speclayers.config import Loss
from speclayers.drafting.head import Eagle3Head, causal_mask
from speclayers.drafting.losses import compare


class Execution(NamedTuple):
    """How attention, logits and their loss are computed, which are most of a step; none of it changes their values.

    Args:
        recompute: Compute them again in the backward pass, so that little need be kept until then.
        fuse: Compile them with `torch.compile` at their first call.
    """

    recompute: bool = False
    fuse: bool = False


PLAIN = Execution()


class TTTSequence(NamedTuple):
    """What the head reads of one sequence of n tokens.

    Args:
        states: (n − 1, k·width) target states of the slots.
        embeddings: (n, width) target embeddings of all tokens.
        first_slot: First response slot.
    """

    states: Tensor
    embeddings: Tensor
    first_slot: int

    @property
    def slots(self) -> int:
        """All slots, n − 1."""
        return self.states.shape[0]


class TTTTargets(NamedTuple):
    """What the head should predict; rows = response slots of the sequences, one after the other.

    Row t belongs to position t + 1, so at step j slot t is compared with row t + j.

    Args:
        restricted: (rows, draft_vocabulary) target distribution, renormalised over the draft vocabulary.
        full: (rows, draft_vocabulary) the same tokens' probabilities over the full vocabulary.
        best: (rows,) target id of the largest logit over the full vocabulary.
        counted: (steps, rows) which slots count at each step.
    """

    restricted: Tensor
    full: Tensor
    best: Tensor
    counted: Tensor


class StepMetrics(NamedTuple):
    """One TTT step over one batch; None where nothing counted.

    Args:
        loss: What is minimised, mean over the counted slots whose best token can be drafted.
        accuracy: Share of counted slots whose best draft token is the target's.
        expected_acceptance: Mean over counted slots of Σ min(p, q).
        slots: Counted slots.
    """

    loss: float | None
    accuracy: float | None
    expected_acceptance: float | None
    slots: int


def first_response_slot(response_start: int) -> int:
    """Return the slot that predicts from the first response token's embedding: the one before it."""
    return max(response_start - 1, 0)


def counted_slots(ids: Tensor, response_start: int, stop_ids: Collection[int], steps: int) -> Tensor:
    """Return which response slots count at each step: those that serving can meet.

    Slot p counts at step j when tokens p + 1 … p + 1 + j are all response tokens and the last of them
    does not end the answer (after it nothing is drafted).

    Args:
        ids: (n,) tokens of the sequence.
        response_start: Position of the first response token.
        stop_ids: Tokens that end an answer.
        steps: Number of TTT steps.

    Returns:
        Bool (steps, response slots).
    """
    first = first_response_slot(response_start)
    slots = torch.arange(first, len(ids) - 1)
    ends = torch.isin(ids, torch.tensor(sorted(stop_ids), dtype=ids.dtype))
    counted = torch.zeros(steps, len(slots), dtype=torch.bool)
    for step in range(steps):
        last = slots + 1 + step
        inside = last < len(ids)
        counted[step] = inside & (slots + 1 >= response_start) & ~ends[last.clamp(max=len(ids) - 1)]
    return counted


def ttt_outputs(
    head: Eagle3Head, sequences: Sequence[TTTSequence], steps: int, execution: Execution = PLAIN
) -> list[Tensor]:
    """Return what the head puts out at every step: what `logits` reads and the next step is fed.

    At step j slot t attends to step-0 keys of slots ≤ t and to its own keys of steps 1 … j, with
    rotary position t + j. Where t + 1 + j lies behind the sequence, the last token stands in; such
    slots never count.

    Args:
        head: The draft head.
        sequences: The batch; nothing is padded.
        steps: Number of TTT steps.
        execution: How attention is computed.

    Returns:
        One (response slots of all sequences, width) tensor per step.
    """
    layer = head.midlayer
    attention = _SlotAttention(head, sequences, execution)
    fused = head.fuse(torch.cat([s.states for s in sequences]))
    inputs = layer.attention_inputs(fused, torch.cat([s.embeddings[1:] for s in sequences]))
    attention.add_prefix(inputs)
    hidden, inputs = attention.response_rows(fused), attention.response_rows(inputs)
    outputs = [head.finish(hidden, attention.attend(inputs, step=0))]
    for step in range(1, steps):
        following = [_embeddings_ahead(s, step) for s in sequences]
        inputs = layer.attention_inputs(outputs[-1], torch.cat(following))
        outputs.append(head.finish(outputs[-1], attention.attend(inputs, step)))
    return outputs


def _embeddings_ahead(sequence: TTTSequence, step: int) -> Tensor:
    """Return the embeddings (response slots, width) of tokens t + 1 + step."""
    ahead = sequence.embeddings[sequence.first_slot + 1 + step :]
    missing = sequence.slots - sequence.first_slot - len(ahead)
    return torch.cat((ahead, sequence.embeddings[-1:].expand(missing, -1)))


class _SlotAttention:
    """Attention of response slots over the step-0 keys of their sequence and their own later ones.

    Linear maps run over the slots of all sequences at once; only scores are computed by sequence,
    so nothing is padded and no mask grows with the batch.
    """

    def __init__(self, head: Eagle3Head, sequences: Sequence[TTTSequence], execution: Execution) -> None:
        self._head = head
        self._execution = execution
        self._attention = head.midlayer.self_attn
        self._slots = [s.slots for s in sequences]
        self._first = [s.first_slot for s in sequences]
        self._rows = [slots - first for slots, first in zip(self._slots, self._first, strict=True)]
        like = sequences[0].states
        self._masks = [causal_mask(r, n, like)[0] for r, n in zip(self._rows, self._slots, strict=True)]
        self._prefix: list[tuple[Tensor, Tensor]] = []
        self._own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sequences]

    def response_rows(self, packed: Tensor) -> Tensor:
        """Keep the response slots of a tensor (all slots, …)."""
        by_sequence = zip(torch.split(packed, self._slots), self._first, strict=True)
        return torch.cat([rows[first:] for rows, first in by_sequence])

    def add_prefix(self, inputs: Tensor) -> None:
        """Compute keys and values of step 0 for all slots, from inputs (all slots, 2·width)."""
        positions = torch.cat([torch.arange(n, device=inputs.device) for n in self._slots])
        keys, values = self._attention.keys_values(inputs[None])
        keys = self._rotate(keys, positions)
        self._prefix = list(
            zip(torch.split(keys[0], self._slots, 1), torch.split(values[0], self._slots, 1), strict=True)
        )

    def attend(self, inputs: Tensor, step: int) -> Tensor:
        """Return the attention's output (response slots, width) of inputs (response slots, 2·width)."""
        spans = zip(self._first, self._slots, strict=True)
        positions = torch.cat([torch.arange(first, n, device=inputs.device) for first, n in spans]) + step
        queries = torch.split(self._rotate(self._attention.queries(inputs[None]), positions)[0], self._rows, 1)
        if step > 0:
            keys, values = self._attention.keys_values(inputs[None])
            keys = self._rotate(keys, positions)
            new = zip(torch.split(keys[0], self._rows, 1), torch.split(values[0], self._rows, 1), strict=True)
            for own, pair in zip(self._own, new, strict=True):
                own.append(pair)
        attended = [
            _call(self._execution, slot_attention, query, prefix, tuple(own), mask)
            for query, prefix, own, mask in zip(queries, self._prefix, self._own, self._masks, strict=True)
        ]
        return self._attention.output(torch.cat(attended, dim=1)[None])[0]

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        rotated: Tensor = apply_rotary_pos_emb(heads, heads, *self._head.rotations(heads, positions[None]))[0]
        return rotated


def slot_attention(
    queries: Tensor, prefix: tuple[Tensor, Tensor], own: Sequence[tuple[Tensor, Tensor]], mask: Tensor
) -> Tensor:
    """Attend to masked prefix keys and, per slot, to its own later keys: one softmax over both.

    Args:
        queries: (heads, rows, head_dim).
        prefix: Keys and values (kv_heads, slots, head_dim).
        own: Keys and values (kv_heads, rows, head_dim) of each later step; row t sees row t only.
        mask: Additive (1, rows, slots).

    Returns:
        (heads, rows, head_dim).
    """
    heads, rows, head_dim = queries.shape
    keys, values = prefix
    kv_heads, slots = keys.shape[0], keys.shape[1]
    grouped = (queries * head_dim**-0.5).view(kv_heads, heads // kv_heads, rows, head_dim)
    scores = (grouped.reshape(kv_heads, -1, head_dim) @ keys.transpose(1, 2)).view(kv_heads, -1, rows, slots) + mask
    diagonal = [(grouped * key[:, None]).sum(-1, keepdim=True) for key, _ in own]
    weights = torch.cat((scores, *diagonal), dim=-1).softmax(-1)
    attended = (weights[..., :slots].reshape(kv_heads, -1, slots) @ values).view(grouped.shape)
    for index, (_, value) in enumerate(own):
        attended = attended + weights[..., slots + index, None] * value[:, None]
    return attended.reshape(heads, rows, head_dim)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)  # sequences differ in length
    return compiled


def _call(execution: Execution, function: Callable[..., Any], *arguments: Any) -> Any:
    called = _compiled(function) if execution.fuse else function
    if not execution.recompute:
        return called(*arguments)
    return checkpoint(called, *arguments, use_reentrant=False, preserve_rng_state=False)  # nothing draws numbers


def ttt_loss(
    head: Eagle3Head,
    sequences: Sequence[TTTSequence],
    targets: TTTTargets,
    decay: float,
    loss: Loss = "cross_entropy",
    shares: Sequence[float] | None = None,
    execution: Execution = PLAIN,
) -> tuple[Tensor, list[StepMetrics]]:
    """Return the loss of training-time test and what is logged of each step, by `stepwise_loss`.

    Args:
        head: The draft head.
        sequences: The batch.
        targets: What it should predict.
        decay: Weight of a step against the one before it.
        loss: Loss of a slot, see `compare`.
        shares: For each step, this batch's share of the slots whose losses are averaged; 1 when not given.
        execution: How attention, logits and their loss are computed.
    """
    outputs = ttt_outputs(head, sequences, len(targets.counted), execution)
    return stepwise_loss(head, outputs, targets, decay, loss, shares, execution)


class Scoring(Protocol):
    """What scores the tokens of a draft vocabulary from its outputs."""

    t2d: Tensor

    def logits(self, output: Tensor) -> Tensor:
        """Return logits (…, draft_vocabulary) of outputs (…, width)."""

    def target_ids(self, drafted: Tensor) -> Tensor:
        """Translate draft ids of any shape to the target's."""


def stepwise_loss(
    head: Scoring,
    outputs: Sequence[Tensor],
    targets: TTTTargets,
    decay: float,
    loss: Loss = "cross_entropy",
    shares: Sequence[float] | None = None,
    execution: Execution = PLAIN,
) -> tuple[Tensor, list[StepMetrics]]:
    """Return the loss Σ_j decay^j · mean_j and what is logged of each step.

    The LM head, more than half of the work, runs once, on the counted slots of all steps. Slots whose
    best target token cannot be drafted are left out of the loss and count as wrong in the accuracy.

    Args:
        head: Scores the outputs.
        outputs: One (response slots of all sequences, width) for each step.
        targets: What it should predict.
        decay: Weight of a step against the one before it.
        loss: Loss of a slot, see `compare`.
        shares: For each step, this batch's share of the slots whose losses are averaged; 1 when not given.
        execution: How logits and their loss are computed.
    """
    counted = [rows.nonzero()[:, 0] for rows in targets.counted]
    drafted = torch.cat([output[rows] for output, rows in zip(outputs, counted, strict=True)])
    compared_rows = torch.cat([rows + step for step, rows in enumerate(counted)])
    compared = _call(execution, _compare, head, drafted, targets, compared_rows, loss)
    by_step = zip(*(torch.split(column, [len(rows) for rows in counted]) for column in compared), strict=True)
    total = targets.full.new_zeros(())
    metrics = []
    for step, columns in enumerate(by_step):
        mean, measured = _summarise(_Compared(*columns))
        metrics.append(measured)
        if mean is not None:
            total = total + decay**step * (1.0 if shares is None else shares[step]) * mean
    return total, metrics


class _Compared(NamedTuple):
    """Counted slots against the target, (slots,) each: loss, whether it applies, best token right, Σ min(p, q)."""

    losses: Tensor
    draftable: Tensor
    correct: Tensor
    overlap: Tensor


def _compare(head: Scoring, outputs: Tensor, targets: TTTTargets, rows: Tensor, loss: Loss) -> _Compared:
    """Compare what follows from the head's outputs (slots, width) with the targets' `rows` (slots,)."""
    logits = head.logits(outputs).to(targets.full.dtype)
    best = targets.best[rows]
    with torch.autocast(logits.device.type, enabled=False):  # it is no matrix product: low precision would save nothing
        losses, drafted, overlap = compare(loss, logits, targets.restricted, targets.full, rows)
    return _Compared(losses, head.t2d[best], head.target_ids(drafted) == best, overlap)


def _summarise(step: _Compared) -> tuple[Tensor | None, StepMetrics]:
    slots = len(step.losses)
    if not slots:
        return None, StepMetrics(None, None, None, 0)
    accuracy, acceptance = float(step.correct.double().mean()), float(step.overlap.double().mean())
    if not bool(step.draftable.any()):
        return None, StepMetrics(None, accuracy, acceptance, slots)
    loss = (step.losses * step.draftable).sum() / step.draftable.sum()
    return loss, StepMetrics(float(loss.detach()), accuracy, acceptance, slots)
