"""Drafters that need no training: right, wrong and random ones."""

import random
from collections.abc import Sequence

import torch

from speclayers.drafting.drafter import Proposal, Verified


class ToyDrafter:
    """Follows what is verified; a subclass says what to propose.

    Args:
        layers: Layers whose states it checks the shape of.
    """

    name = "toy"

    def __init__(self, nodes: int, depth: int, layers: tuple[int, ...] = (0, 1)) -> None:
        self.nodes, self.depth, self.layers = nodes, depth, layers
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

    def candidates(self) -> tuple[list[int], list[int]]:
        raise NotImplementedError


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
