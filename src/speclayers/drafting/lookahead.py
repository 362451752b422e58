"""Lookahead decoding: n-grams from Jacobi iterations that ride along in every verifying pass (arXiv 2402.02057)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from speclayers.drafting.drafter import ExtraRows, Proposal, Verified
from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache


class NgramPool:
    """What followed a token in n-grams seen so far, of each token the latest.

    Args:
        limit: Most continuations of one token; the one not seen for longest goes first.
    """

    def __init__(self, limit: int) -> None:
        """Begin empty."""
        self._limit = limit
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Remember an n-gram: what follows its first token."""
        known, rest = self._after.setdefault(ngram[0], {}), tuple(ngram[1:])
        known.pop(rest, None)  # seen again it is the latest
        known[rest] = None
        if len(known) > self._limit:
            del known[next(iter(known))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return the continuations of a token, the latest first."""
        return list(reversed(self._after.get(token, {})))


def merged(root: int, paths: Iterable[Sequence[int]]) -> Proposal:
    """Return the tree of some paths below a root; where they begin alike they share their nodes."""
    tokens, parents = [root], [-1]
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for path in paths:
        for end in range(1, len(path) + 1):
            if tuple(path[:end]) not in nodes:
                parents.append(nodes[tuple(path[: end - 1])])
                nodes[tuple(path[:end])] = len(tokens)
                tokens.append(path[end - 1])
    return Proposal(torch.tensor(tokens), torch.tensor(parents), forwards=0, layer_forwards=0)


class LookaheadDrafter:
    """Drafts the n-grams that begin with the root, from a pool that a window of Jacobi iterations fills.

    The window has a level for each of the last n − 1 iterations, the oldest first. The token of level i in column j
    stands i + j behind the root, which is the first of the first level. It sees the first level up to its column, and
    of its column what stands above it. Behind the newest level the target tells the next one; the columns are then
    n-grams for the pool. As in the published code, the first level is drawn from the prompt, the others fill up one
    pass after the other, the window moves by one token a pass however many are accepted, and n-grams of the text
    itself are pooled, too. Unlike there, n-grams are verified from the first pass on.

    Args:
        name: Name in messages.
        ngram: Tokens of an n-gram, n; at least 3.
        window: Columns of the full window.
        guesses: Most n-grams verified at once.
        seed: Of the tokens that the window begins with; every turn draws them anew.
        pool_text: Whether n-grams of prompt and answer are pooled.
    """

    layers = ()

    def __init__(self, name: str, ngram: int, window: int, guesses: int, seed: int, pool_text: bool = True) -> None:
        """Begin without a text."""
        self.name = name
        self.nodes = 1 + guesses * (ngram - 1)
        # A window of few levels is wider; the root, a node already, is none of the window's own rows.
        sizes = [levels * (window + ngram - 1 - levels) for levels in range(1, ngram)]
        self.rows = self.nodes + max(sizes) - 1
        self.depth = max(ngram - 1, window + ngram - 3)
        self._ngram, self._window, self._guesses = ngram, window, guesses
        self._seed, self._pool_text = seed, pool_text
        self._forget()

    def _forget(self) -> None:
        self._pool = NgramPool(self._guesses)
        self._text: list[int] = []
        self._levels: list[list[int]] = []

    def start(self, cache: PreallocatedCache) -> None:
        """Forget the last turn, and its pool."""
        self._forget()

    def observe(self, verified: Verified) -> None:
        """Take the newest level, move the window to the next root, and pool what is new.

        Raises:
            UserError: The prompt is shorter than an n-gram.
        """
        if verified.extra is None:
            self._begin(verified.tokens.tolist())
        else:
            self._advance(verified.extra.argmax(-1).tolist())
        self._levels[0][0] = verified.root
        known = len(self._text)
        self._text[-1:] = [*verified.tokens.tolist(), verified.root]  # begins with the last root
        if self._pool_text:
            for end in range(max(known + 1, self._ngram), len(self._text) + 1):
                self._pool.add(self._text[end - self._ngram : end])

    def propose(self) -> Proposal:
        """Draft the pooled n-grams, as a tree, and send the window along."""
        proposal = merged(self._text[-1], self._pool.after(self._text[-1]))
        return proposal._replace(extra=self._extra_rows(len(proposal.tokens)))

    def _begin(self, prompt: list[int]) -> None:
        if len(prompt) < self._ngram:
            raise UserError(
                f"{self.name}: n-grams of {self._ngram} tokens are longer than the prompt of {len(prompt)}; lower "
                "draft_length"
            )
        generator = torch.Generator().manual_seed(self._seed)
        places = torch.randint(len(prompt), (self._window + self._ngram - 2,), generator=generator)
        self._levels = [[prompt[place] for place in places.tolist()]]

    def _advance(self, following: list[int]) -> None:
        """Add a level: what follows the window's rows, of which the newest level's are the last."""
        columns = len(self._levels[0])
        if len(self._levels) < self._ngram - 1:  # a column leaves at each new level, so that all stay behind the root
            self._levels = [*(level[1:] for level in self._levels), following[-(columns - 1) :]]
            return
        newest = following[-columns:]
        for ngram in zip(*self._levels, newest, strict=True):
            self._pool.add(ngram)
        self._levels = [*self._levels[1:], newest]

    def _extra_rows(self, nodes: int) -> ExtraRows:
        """Return the window without the root, level by level."""
        levels, columns = len(self._levels), len(self._levels[0])
        level = torch.arange(levels).repeat_interleave(columns)[1:]
        column = torch.arange(columns).repeat(levels)[1:]
        first_level = (level == 0) & (column <= column[:, None])
        own_column = (column == column[:, None]) & (level > 0) & (level <= level[:, None])
        to_nodes = torch.zeros(len(level), nodes, dtype=torch.bool)
        to_nodes[:, 0] = True
        tokens = torch.tensor([token for tokens in self._levels for token in tokens][1:])
        return ExtraRows(tokens, level + column, torch.cat((to_nodes, first_level | own_column), dim=1))
