"""The target's forward passes over one sequence: prompt, single tokens, draft trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.target import Target


class TargetPasses:
    """Runs the target over one turn, keeping what was verified in its cache.

    Args:
        target: The model.
        capacity: Most tokens of a turn: prompt, answer and draft nodes.
        nodes: Most nodes of a draft tree; 1 for plain decoding.

    Raises:
        UserError: The model's attention cannot keep that many tokens.
    """

    def __init__(self, target: Target, capacity: int, nodes: int = 1) -> None:
        """Allocate the cache and the mask."""
        self.target = target
        self.cache = PreallocatedCache(target, capacity, nodes)
        # The past is visible to every node, so only the last columns, those of the tree, are ever written; a
        # slice that ends there is the mask for any length of the past. Additive: a boolean mask is wrong in eager.
        self._mask = torch.zeros(1, 1, nodes, capacity + nodes, dtype=target.dtype, device=target.device)
        self._hidden = torch.finfo(target.dtype).min

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return int(self.cache.get_seq_length())

    def prefill(self, prompt: Sequence[int]) -> Tensor:
        """Run over the prompt and return the logits (vocabulary,) behind it."""
        # Only the last position needs logits: a whole prompt's would be the largest tensor of the run.
        return self._run(torch.tensor(prompt), torch.arange(len(prompt)), None, logits_to_keep=1)[0]

    def step(self, token: int) -> Tensor:
        """Append one token and return the logits (vocabulary,) behind it."""
        return self._run(torch.tensor([token]), torch.tensor([self.length]), None, logits_to_keep=1)[0]

    def verify(self, tokens: Tensor, ancestors: Tensor) -> Tensor:
        """Append a tree's nodes and return the logits (nodes, vocabulary) behind each.

        Args:
            tokens: Ids (nodes,), the root first.
            ancestors: Which nodes each node sees, boolean (nodes, nodes).
        """
        nodes, past = len(tokens), self.length
        start = self.cache.capacity
        tree = self._mask[0, 0, :nodes, start : start + nodes]
        tree.zero_().masked_fill_(~ancestors.to(tree.device), self._hidden)
        depths = ancestors.sum(-1) - 1
        return self._run(tokens, past + depths, self._mask[:, :, :nodes, start - past : start + nodes])

    def keep(self, nodes: Tensor) -> None:
        """Drop all nodes of the last tree but these (kept,), ascending; they become part of the sequence."""
        start = self._tree_start
        self.cache.keep_rows(start, start + nodes)

    def _run(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, logits_to_keep: int = 0) -> Tensor:
        self._tree_start = self.length
        output = self.target.model(
            input_ids=tokens[None].to(self.target.device),
            position_ids=positions[None].to(self.target.device),
            attention_mask=mask,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        logits: Tensor = output.logits[0]
        return logits
