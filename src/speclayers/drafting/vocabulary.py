"""The draft vocabulary: the tokens a head can propose."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from speclayers.errors import UserError
from speclayers.targets.target import Target

LOW_COVERAGE = 0.9

logger = logging.getLogger(__name__)


class DraftVocabulary(NamedTuple):
    """Tokens a head can propose.

    Args:
        ids: (size,) target ids, ascending.
        coverage: Share of the counted response tokens that are among them.
    """

    ids: Tensor
    coverage: float


def vocabulary_hash(ids: Tensor) -> str:
    """Return the SHA-256 of a draft vocabulary: two heads whose hashes agree number their tokens alike.

    Args:
        ids: (size,) target ids, ascending.
    """
    return hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()


def choose_vocabulary(
    responses: Iterable[np.ndarray], size: int, vocabulary: int, stop_ids: Collection[int]
) -> DraftVocabulary:
    """Choose the most frequent response tokens; ties go to the lower id.

    The end tokens always belong to it. If the responses hold fewer distinct tokens than `size`, the
    lowest unused ids fill it, so that heads of one study have equal sizes.

    Args:
        responses: Response token ids, one array a sequence.
        size: Tokens wanted; the whole vocabulary when it is smaller.
        vocabulary: Rows of the target's embedding.
        stop_ids: Tokens that end an answer.

    Raises:
        UserError: There is no response token, or more end tokens than `size`.
    """
    ids = np.concatenate([np.empty(0, np.int64), *responses]).astype(np.int64)
    if not len(ids):
        raise UserError("training corpus: holds no response token; raise corpus.training.max_new_tokens or count")
    size = min(size, vocabulary)
    always = np.array(sorted(token for token in stop_ids if token < vocabulary), dtype=np.int64)
    if len(always) > size:
        raise UserError(f"draft.vocabulary: {size} is too small for the {len(always)} end tokens of the target")
    counts = np.bincount(ids, minlength=vocabulary)
    ranked = np.argsort(-counts, kind="stable")  # stable: equal counts, unused tokens too, stay in the order of ids
    ranked = ranked[~np.isin(ranked, always)]
    chosen = np.sort(np.concatenate([always, ranked[: size - len(always)]]))
    coverage = float(counts[chosen].sum() / len(ids))
    _report(coverage, size, len(ids))
    return DraftVocabulary(torch.from_numpy(chosen), coverage)


def _report(coverage: float, size: int, tokens: int) -> None:
    logger.info("draft vocabulary: %d tokens cover %.1f %% of %d response tokens", size, 100 * coverage, tokens)
    if coverage < LOW_COVERAGE:
        logger.warning(
            "warning: draft.vocabulary: %d tokens cover only %.1f %% of the response tokens; every other token ends a "
            "draft, raise draft.vocabulary",
            size,
            100 * coverage,
        )


class DraftIds(nn.Module):
    """What numbers its tokens by a draft vocabulary; the buffers are named as in the EAGLE layout.

    Args:
        draft_ids: (draft_vocabulary,) target ids of the draft vocabulary, ascending.
        vocabulary: Rows of the target's embedding.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, draft_ids: Tensor, vocabulary: int) -> None:
        """Make the buffers."""
        super().__init__()
        members = torch.zeros(vocabulary, dtype=torch.bool)
        members[draft_ids] = True
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        self.register_buffer("t2d", members)

    @property
    def draft_ids(self) -> Tensor:
        """Target ids of the draft vocabulary, ascending: (draft_vocabulary,)."""
        return self.target_ids(torch.arange(self.d2t.shape[0], device=self.d2t.device))

    def target_ids(self, drafted: Tensor) -> Tensor:
        """Translate draft ids of any shape to the target's."""
        return drafted + self.d2t[drafted]  # d2t holds offsets, not ids


def stored_draft_ids(
    tensors: Mapping[str, Tensor], size: int, vocabulary: int, expected_hash: str, source: Path
) -> Tensor:
    """Return the draft vocabulary among stored weights: target ids (size,), ascending.

    Args:
        tensors: The weights by name.
        size: Its size.
        vocabulary: Rows of the target's embedding.
        expected_hash: Its `vocabulary_hash`.
        source: The file they come from, for messages.

    Raises:
        UserError: It is missing, of another size, or another one.
    """
    if "d2t" not in tensors:
        raise UserError(f"{source}: tensor d2t is missing")
    if tuple(tensors["d2t"].shape) != (size,):
        raise UserError(f"{source}: tensor d2t has {tuple(tensors['d2t'].shape)}, expected ({size},)")
    draft_ids = tensors["d2t"] + torch.arange(size)
    if draft_ids.min() < 0 or draft_ids.max() >= vocabulary:
        raise UserError(f"{source}: d2t points outside the vocabulary of {vocabulary} tokens")
    if vocabulary_hash(draft_ids) != expected_hash:
        raise UserError(f"{source}: d2t holds another draft vocabulary than config.json names; train the head again")
    return draft_ids


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
