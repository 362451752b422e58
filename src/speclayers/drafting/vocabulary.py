"""The draft vocabulary: the tokens a head can propose."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from speclayers.errors import UserError

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
