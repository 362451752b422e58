"""Losses of a slot of training-time test: the head's logits against the target's distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from speclayers.config import Loss

LK_DECAY = 3.0

CHUNK = 64
"""Slots compared at once: few enough that their rows stay in the processor's cache."""


class Compared(NamedTuple):
    """Slots against the target, (slots,) each.

    Args:
        losses: What is minimised; the only part with a gradient.
        drafted: Draft id of the largest logit.
        acceptance: Σ min(p, q), the probability that a token drawn from the head is accepted.
    """

    losses: Tensor
    drafted: Tensor
    acceptance: Tensor


def compare(loss: Loss, logits: Tensor, restricted: Tensor, full: Tensor, rows: Tensor) -> Compared:
    """Compare logits with the target's rows.

    `kl` is `cross_entropy` less the target's own entropy, so that 0 is perfect; their gradients are equal.
    `lk` is the adaptive LK loss (Samarin et al., arXiv 2602.23881): w·KL + (1 − w)·(1 − a), with the
    acceptance a and the weight w = exp(−3 a), which is not differentiated. It leans on KL while little is
    accepted and on acceptance itself later. Form and factor are those of the speculators package; p in a is
    over the full vocabulary, as in SpecForge, since that is what verification accepts by.

    Args:
        loss: Which one.
        logits: (slots, draft_vocabulary) of the head.
        restricted: (rows, draft_vocabulary) target distribution, renormalised over the draft vocabulary.
        full: (rows, draft_vocabulary) the same tokens' probabilities over the full vocabulary.
        rows: (slots,) row that each slot is compared with.
    """
    found = Compared(*_one_walk(logits, restricted, full, rows))
    if loss == "cross_entropy":
        return found
    divergence = found.losses + torch.xlogy(restricted, restricted).sum(-1)[rows]
    if loss == "kl":
        return found._replace(losses=divergence)
    acceptance = torch.minimum(logits.softmax(-1), full[rows]).sum(-1)
    weight = torch.exp(-LK_DECAY * found.acceptance)
    return found._replace(losses=weight * divergence + (1 - weight) * (1 - acceptance))


class _SoftCrossEntropy(torch.autograd.Function):
    """−Σ p ln q, with what is logged beside it, in one walk over the logits.

    By separate operations the same reads and writes every (slots, draft_vocabulary) matrix a dozen times,
    which costs as much as the LM head's matrix product.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, restricted: Tensor, full: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, acceptance = logits.new_empty(len(rows)), logits.new_empty(len(rows))
        drafted = rows.new_empty(len(rows))
        difference = torch.empty_like(logits)
        for start in range(0, len(rows), CHUNK):
            cut = slice(start, start + CHUNK)
            p = restricted[rows[cut]]
            largest, drafted[cut] = logits[cut].max(-1)
            q = F.softmax(logits[cut], dim=-1)
            # ln q = logit − lse, and q of the largest logit, at least 1/draft_vocabulary, gives lse without overflow
            lse = largest - q.gather(1, drafted[cut, None])[:, 0].log()
            losses[cut] = lse * p.sum(-1) - torch.linalg.vecdot(p, logits[cut])
            acceptance[cut] = torch.minimum(q, full[rows[cut]]).sum(-1)
            torch.sub(q, p, out=difference[cut])
        ctx.save_for_backward(difference)
        ctx.mark_non_differentiable(drafted, acceptance)
        return losses, drafted, acceptance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (difference,) = ctx.saved_tensors
        # in place: it is the largest matrix of a step; a second backward through the same graph is refused
        return difference.mul_(gradients[0][:, None]), None, None, None


_one_walk: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = _SoftCrossEntropy.apply
