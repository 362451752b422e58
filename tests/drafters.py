"""Drafters that need no training: right, wrong and random ones."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from unittest.mock import patch

import torch

from speclayers.drafting.drafter import ExtraRows, Proposal, Verified


class ToyDrafter(ABC):
    """Follows what is verified; a subclass says what to propose.

    Args:
        layers: Layers whose states it checks the shape of.
    """

    name = "toy"

    def __init__(self, nodes: int, depth: int, layers: tuple[int, ...] = (0, 1)) -> None:
        self.nodes, self.rows, self.depth, self.layers = nodes, nodes, depth, layers
        self.sequence: list[int] = []

    def start(self, cache) -> None:
        self.sequence = []

    def observe(self, verified: Verified) -> None:
        assert set(verified.states) == set(self.layers)
        assert all(len(states) == len(verified.tokens) for states in verified.states.values())
        if self.sequence:
            assert verified.tokens[0] == self.sequence[-1], "what is verified begins with the last root"
            self.sequence.pop()
        self.sequence += [*verified.tokens.tolist(), verified.root]

    def propose(self) -> Proposal:
        tokens, parents = self.candidates()
        tree = torch.tensor([self.sequence[-1], *tokens]), torch.tensor([-1, *parents])
        return Proposal(*tree, forwards=1, layer_forwards=2)

    @abstractmethod
    def candidates(self) -> tuple[list[int], list[int]]:
        """What to draft: tokens, and the node each follows."""


class RandomDrafter(ToyDrafter):
    """Trees of random shape and tokens, equal siblings included."""

    def __init__(self, vocabulary: int, nodes: int = 12, seed: int = 0) -> None:
        super().__init__(nodes, nodes - 1)
        self.vocabulary, self.random = vocabulary, random.Random(seed)

    def candidates(self):
        count = self.random.randrange(1, self.nodes)
        tokens = [self.random.randrange(self.vocabulary) for _ in range(count)]
        return tokens, [self.random.randrange(node + 1) for node in range(count)]


class OracleDrafter(ToyDrafter):
    """Proposes a known continuation as a chain, with wrong siblings before each of its tokens.

    Args:
        text: Prompt and continuation.
        vocabulary: Of the target; the wrong tokens lie in it.
        depth: Length of the chain.
        decoys: Wrong siblings before each right token.
    """

    def __init__(self, text: Sequence[int], vocabulary: int, depth: int = 4, decoys: int = 1) -> None:
        super().__init__(1 + depth * (1 + decoys), depth)
        self.text, self.vocabulary, self.decoys = list(text), vocabulary, decoys

    def candidates(self):
        tokens, parents, parent = [], [], 0
        for token in self.text[len(self.sequence) :][: self.depth]:
            for decoy in range(1, self.decoys + 1):
                tokens.append((token + decoy) % self.vocabulary)
                parents.append(parent)
            tokens.append(token)
            parents.append(parent)
            parent = len(tokens)
        return tokens, parents


class MisplacingDrafter(ToyDrafter):
    """Hangs the right tokens below a wrong one, so that only a verifier that mistakes parents accepts them."""

    def __init__(self, text: Sequence[int], vocabulary: int, chain: int = 4) -> None:
        super().__init__(nodes=chain + 3, depth=chain + 1)
        self.text, self.vocabulary, self.chain = list(text), vocabulary, chain

    def candidates(self):
        right = self.text[len(self.sequence) :][: self.chain]
        wrong = (right[0] + 1) % self.vocabulary
        return [wrong, *right, right[0]], [0, *range(1, len(right) + 1), 0]


class FixedDrafter(ToyDrafter):
    """The same candidates in every cycle."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        super().__init__(len(tokens) + 1, len(tokens))
        self.tree = list(tokens), list(parents)

    def candidates(self):
        return self.tree


class RowsDrafter(RandomDrafter):
    """Random trees with rows of its own: behind each node that token again, which sees what the node sees.

    Their logits, told back, are kept in `told` as pairs of a text and the logits behind it.
    """

    def __init__(self, vocabulary: int, nodes: int = 6, seed: int = 0) -> None:
        super().__init__(vocabulary, nodes, seed)
        self.rows, self.depth = 2 * nodes, nodes
        self.texts, self.told = [], []

    def observe(self, verified: Verified) -> None:
        assert (verified.extra is None) == (not self.texts)
        if self.texts:
            self.told += zip(self.texts, verified.extra, strict=True)
        super().observe(verified)

    def propose(self) -> Proposal:
        proposal = super().propose()
        tokens, parents = proposal.tokens.tolist(), proposal.parents.tolist()
        paths = [[0]]
        for node, parent in enumerate(parents[1:], start=1):
            paths.append([*paths[parent], node])
        self.texts = [[*self.sequence[:-1], *(tokens[i] for i in path), tokens[path[-1]]] for path in paths]
        count = len(tokens)
        sees = torch.zeros(count, 2 * count, dtype=torch.bool)
        for node, path in enumerate(paths):
            sees[node, [*path, count + node]] = True
        extra = ExtraRows(proposal.tokens, torch.tensor([len(path) for path in paths]), sees)
        absurd = torch.rand(count) * 1e6  # a verifier that looked at them would decode something else
        return proposal._replace(extra=extra, probabilities=absurd)


class SelfDrafter(ToyDrafter):
    """Drafts a chain with the target's own blocks on the target's cache.

    Args:
        skipped: Blocks that it leaves out.
        depth: Length of the chain.
    """

    def __init__(self, target, skipped: Sequence[int] = (), depth: int = 3) -> None:
        super().__init__(1 + depth, depth)
        self.target, self.skipped = target, skipped

    def start(self, cache) -> None:
        super().start(cache)
        self.cache = cache

    def candidates(self):
        text = [self.sequence[-1]]
        with self.cache.session(), ExitStack() as stack:
            for block in self.skipped:
                skip = patch.object(self.target.anatomy.blocks[block], "forward", lambda states, *_, **__: states)
                stack.enter_context(skip)
            for _ in range(self.depth):
                position = torch.tensor([[self.cache.get_seq_length()]])
                logits = self.target.model(torch.tensor([text[-1:]]), position_ids=position, cache=self.cache).logits
                text.append(int(logits[0, -1].argmax()))
        return text[1:], list(range(self.depth))
