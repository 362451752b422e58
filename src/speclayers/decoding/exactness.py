"""The exactness gate: at temperature 0 in float32 a drafter changes nothing of what is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from speclayers.errors import UserError

TIE = 1e-3
"""Below this gap of the two highest logits, rounding alone may swap them: a tree's pass sums in another order."""


class Agreement(NamedTuple):
    """How an answer compares with plain greedy decoding's.

    Args:
        identical: Whether all ids are the same.
        first_difference: Position of the first different id; None when there is none.
        margin: Plain decoding's top-2 logit gap at that position; None when there is none.
    """

    identical: bool
    first_difference: int | None
    margin: float | None

    @property
    def tie(self) -> bool:
        """Whether they differ where plain decoding's two best tokens were as good as equal."""
        return self.margin is not None and self.margin < TIE


def compare(answer: Sequence[int], greedy: Sequence[int], margins: Sequence[float]) -> Agreement:
    """Compare an answer with plain greedy decoding's.

    Args:
        answer: Ids decoded with a drafter.
        greedy: Ids decoded plainly, with the same budget.
        margins: Plain decoding's top-2 logit gap at each of its tokens.
    """
    if list(answer) == list(greedy):
        return Agreement(True, None, None)
    pairs = enumerate(zip(answer, greedy, strict=False))
    shared = min(len(answer), len(greedy))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), shared)
    return Agreement(False, place, margins[place] if place < len(margins) else None)


def require_exact(agreement: Agreement, drafter: str) -> None:
    """Fail unless an answer is plain greedy decoding's, or leaves it at a tie.

    Args:
        agreement: How the two compare.
        drafter: Name in the message.

    Raises:
        UserError: They differ elsewhere.
    """
    if agreement.identical or agreement.tie:
        return
    margin = "past its end" if agreement.margin is None else f"where its top-2 margin is {agreement.margin:.3g}"
    raise UserError(
        f"position {agreement.first_difference}: {drafter} differs from plain greedy decoding {margin}; "
        f"expected equal ids unless that margin is below {TIE:g}; the drafter or its verification is wrong"
    )
