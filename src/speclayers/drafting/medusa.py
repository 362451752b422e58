"""The Medusa drafter: a sparse tree of what its heads hold likeliest, made once (arXiv 2401.10774)."""

from __future__ import annotations

from heapq import heappop, heappush

import torch
from torch import Tensor

from speclayers.drafting.drafter import Proposal, Verified
from speclayers.drafting.medusa_heads import MedusaHeads
from speclayers.drafting.tree import stable_topk
from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.target import Target

Choice = tuple[int, ...]
"""A node as the ranks on its path: (0, 2) is the third guess of the second head below the best of the first."""


def sparse_tree(accuracies: Tensor, nodes: int) -> list[Choice]:
    """Return the nodes below the root that are likeliest to be accepted, parents before children, likelier first.

    With head i's guess of rank r right with probability a(i, r), whatever the others say, a node is accepted with the
    product over its path, and the sum of these is the expected length. Taking the best node whose parent is taken
    gives the tree of largest sum (the paper's section 2.3.3).

    Args:
        accuracies: a(i, r), (heads, ranks).
        nodes: Nodes of the tree, the root counted; fewer where there are no more.
    """
    table = accuracies.tolist()
    chosen: list[Choice] = []
    reachable: list[tuple[float, int, Choice]] = [(-share, 1, (rank,)) for rank, share in enumerate(table[0])]
    reachable.sort()  # a heap; of equals the shallower one is first, then the one of lower ranks
    while reachable and len(chosen) < nodes - 1:
        worth, depth, choice = heappop(reachable)
        chosen.append(choice)
        for rank, share in enumerate(table[depth] if depth < len(table) else ()):
            heappush(reachable, (worth * share, depth + 1, (*choice, rank)))
    return chosen


class MedusaDrafter:
    """Drafts the same tree of ranks in every cycle; what stands there is read off the heads.

    The heads read the last verified token's state and know nothing of the root that follows it, so all nodes of a
    depth choose among the same tokens.

    Args:
        target: The model that it drafts for.
        heads: Its trained heads.
        nodes: Most nodes of the tree, the root counted.
        name: Name in messages.

    Raises:
        UserError: How accurate the heads are is not known.
    """

    def __init__(self, target: Target, heads: MedusaHeads, nodes: int, name: str = "medusa") -> None:
        """Choose the tree."""
        if bool(heads.accuracies.isnan().any()):
            raise UserError(f"{name}: the heads' accuracies are not known; train them again")
        choices = sparse_tree(heads.accuracies, nodes)
        self.name = name
        self.layers = (target.n_layers,)
        self.nodes = self.rows = len(choices) + 1
        self.depth = max(map(len, choices))
        place = {choice: node for node, choice in enumerate(choices, start=1)}
        self._parents = torch.tensor([-1, *(place.get(choice[:-1], 0) for choice in choices)])
        self._head_of = torch.tensor([len(choice) - 1 for choice in choices])
        self._rank_of = torch.tensor([choice[-1] for choice in choices])
        self._heads = heads
        self._state: Tensor | None = None
        self._root = -1

    def start(self, cache: PreallocatedCache) -> None:
        """Forget the last turn."""
        self._state = None

    def observe(self, verified: Verified) -> None:
        """Keep the last verified token's state."""
        self._state, self._root = verified.states[self.layers[0]][-1], verified.root

    @torch.inference_mode()
    def propose(self) -> Proposal:
        """Fill the tree below the latest root.

        Raises:
            UserError: The heads' logits are not finite.
        """
        if self._state is None:
            raise RuntimeError("propose was called before observe")
        heads = self._heads
        logits = heads.logits(torch.stack(heads(self._state))[: self.depth])
        if bool(logits.isnan().any()):
            raise UserError(f"{self.name}: the heads' logits are not finite; train them again in float32")
        best = heads.target_ids(stable_topk(logits, heads.accuracies.shape[1])[1]).cpu()
        tokens = torch.cat((torch.tensor([self._root]), best[self._head_of, self._rank_of]))
        return Proposal(tokens, self._parents, forwards=1, layer_forwards=0)
