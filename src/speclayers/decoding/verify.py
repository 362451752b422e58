"""Which drafted tokens the target accepts, and what it says after them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from speclayers.decoding.sampling import Sampling, draw, probabilities, require_finite


class Verdict(NamedTuple):
    """Outcome of one verification.

    Args:
        path: Nodes on the accepted path, ascending, the root first.
        token: The target's own token after the path.
    """

    path: list[int]
    token: int


def verify_greedy(tokens: Tensor, parents: Tensor, ancestors: Tensor, logits: Tensor) -> Verdict:
    """Accept the longest path on which every token is the target's likeliest; of equals the lower node.

    Args:
        tokens: Ids (nodes,), the root first.
        parents: Index of each node's parent (nodes,); −1 for the root.
        ancestors: Which nodes each node sees, boolean (nodes, nodes).
        logits: The target's (nodes, vocabulary).

    Raises:
        UserError: The logits are not finite.
    """
    highest = require_finite(logits)
    # argmax over all nodes' vocabulary takes ten times as long as amax, so only the rows of the path get one
    matches = (logits[parents, tokens] == highest[parents]).cpu()
    matches[0] = True  # the root is the target's own token
    whole = (matches | ~ancestors).all(-1)
    lengths = ancestors.sum(-1) * whole
    last = int((lengths == lengths.max()).nonzero()[0])
    path = ancestors[last].nonzero().flatten()
    best = logits[path].argmax(-1).cpu()
    # of tokens that are equally likely only the lowest is what plain decoding takes
    kept = 1 + int((tokens[path[1:]] == best[:-1]).cumprod(0).sum())
    return Verdict(path[:kept].tolist(), int(best[kept - 1]))


def verify_sampled(
    tokens: Tensor, parents: Tensor, logits: Tensor, sampling: Sampling, generator: torch.Generator
) -> Verdict:
    """Accept drafted tokens so that what is emitted is distributed as if sampled from the target alone.

    At each node the children are visited in order: token x is accepted with probability p(x), else p(x)
    becomes 0 and p is renormalised. Where none is accepted, the target's token is drawn from what is left.
    That is exact as long as the candidates do not depend on `generator` (speculative sampling with a
    deterministic draft, arXiv 2211.17192 theorem 1 applied child by child).

    Args:
        tokens: Ids (nodes,), the root first.
        parents: Index of each node's parent (nodes,); −1 for the root.
        logits: The target's (nodes, vocabulary).
        sampling: Its temperature is above 0.
        generator: The turn's random stream.

    Raises:
        UserError: The logits are not finite.
    """
    require_finite(logits)
    ids, path = tokens.tolist(), [0]
    while True:
        left = probabilities(logits[path[-1]], sampling)
        children = (parents == path[-1]).nonzero().flatten().tolist()
        accepted = _first_accepted(children, ids, left, generator)
        if accepted is None:
            return Verdict(path, draw(left, generator))
        path.append(accepted)


def _first_accepted(children: list[int], ids: list[int], left: Tensor, generator: torch.Generator) -> int | None:
    """Return the first accepted child; `left` (vocabulary,) is changed in place to what remains when one is not."""
    for child in children:
        chance = float(torch.rand((), dtype=torch.float64, generator=generator))
        if chance < float(left[ids[child]]):
            return child
        left[ids[child]] = 0
        left /= left.sum()
    return None
