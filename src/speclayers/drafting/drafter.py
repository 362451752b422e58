"""What every drafter does, so that one verifier and one counter serve them all.

The loop of a turn calls `start` once, then `observe` with the prompt, and from then on `propose` and
`observe` in turn. A drafter never sees the verifier's randomness: that its candidates do not depend on
it is what makes sampling lossless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped


class ExtraRows(NamedTuple):
    """Rows of a drafter's own that ride along in the verifying pass, such as Lookahead's window.

    They see everything verified before the root; no candidate ever sees them, and the cache forgets them at once.

    Args:
        tokens: Ids (rows,), on the CPU.
        offsets: How far behind the root each row stands (rows,), within the drafter's `depth`.
        sees: Which rows each one sees, boolean (rows, nodes + rows): the candidates first, then the rows themselves.
    """

    tokens: Tensor
    offsets: Tensor
    sees: Tensor


class Verified(NamedTuple):
    """Tokens that the target has just run over and that now belong to the sequence.

    Args:
        tokens: Their ids (t,), on the CPU: the whole prompt at first, then a root and what was accepted after it.
        states: By layer, their states (t, width).
        root: Id of the token that follows them, which the target has chosen but not run over: the next tree's root.
        extra: The target's logits (rows, vocabulary) behind the last proposal's extra rows; None without any.
    """

    tokens: Tensor
    states: Mapping[int, Tensor]
    root: int
    extra: Tensor | None = None


class Search(NamedTuple):
    """A drafter's look for better layers to skip, which is no drafting.

    Args:
        layer_forwards: Decoder-layer passes that it took.
        rows: States run over in them.
        score: What it reached, by the drafter's own measure.
    """

    layer_forwards: float
    rows: int
    score: float


class Proposal(NamedTuple):
    """A tree of candidates for the target to verify in one forward pass.

    Args:
        tokens: Ids (nodes,), on the CPU; node 0 is the root, then the drafted tokens, parents before children.
        parents: Index of each node's parent (nodes,), on the CPU; −1 for the root.
        forwards: Forward passes that drafting took.
        layer_forwards: Decoder-layer passes among them, the measure that compares drafters of different kinds;
            attention or MLP alone counts half.
        probabilities: What the drafter gave each node after its parent (nodes,), where it knows; the verifier does
            not look at them, so they cannot change what is decoded.
        extra: Rows of its own for the verifying pass.
        skipped: Layers of the target that drafting skipped, where the target itself drafted.
        search: The look for such layers before this proposal; None where there was none.
    """

    tokens: Tensor
    parents: Tensor
    forwards: int
    layer_forwards: float
    probabilities: Tensor | None = None
    extra: ExtraRows | None = None
    skipped: Skipped | None = None
    search: Search | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int], forwards: int = 0, layer_forwards: int = 0) -> Proposal:
        """Propose one path.

        Args:
            tokens: The root, then the drafted tokens.
            forwards: Forward passes that drafting took.
            layer_forwards: Decoder-layer passes among them.
        """
        return cls(torch.tensor(tokens), torch.arange(-1, len(tokens) - 1), forwards, layer_forwards)


class Drafter(Protocol):
    """Proposes candidates from what the target has verified.

    Siblings are visited in the order of their index, so the likeliest should come first; nothing
    else about a proposal can change what is decoded, only how fast.
    """

    @property
    def name(self) -> str:
        """Name in messages."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose states `observe` reads; no others are captured."""

    @property
    def nodes(self) -> int:
        """Most nodes that it proposes at once, the root counted."""

    @property
    def rows(self) -> int:
        """Most rows that it needs in the target's cache at once: nodes and extra rows, or those of a session."""

    @property
    def depth(self) -> int:
        """Longest path that it drafts, in tokens."""

    def start(self, cache: PreallocatedCache) -> None:
        """Forget the last turn.

        Args:
            cache: The target's cache of this turn, which holds what was verified. A drafter that runs the target's
                own blocks does so inside `cache.session()`, which forgets the rows that they append.
        """

    def observe(self, verified: Verified) -> None:
        """Take in what the target has verified since the last call."""

    def propose(self) -> Proposal:
        """Draft a tree below the latest root."""
