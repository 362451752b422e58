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
        capacity: Most tokens of a turn: prompt, answer and the drafter's rows.
        rows: Most rows of a verifying pass; 1 for plain decoding.

    Raises:
        UserError: The model's attention cannot keep that many tokens.
    """

    def __init__(self, target: Target, capacity: int, rows: int = 1) -> None:
        """Allocate the cache and the mask."""
        self.target = target
        self.cache = PreallocatedCache(target, capacity, rows)
        # The past is visible to every node, so only the last columns, those of the tree, are ever written; a
        # slice that ends there is the mask for any length of the past. Additive: a boolean mask is wrong in eager.
        self._mask = torch.zeros(1, 1, rows, capacity + rows, dtype=target.dtype, device=target.device)
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

    def verify(self, tokens: Tensor, offsets: Tensor, sees: Tensor) -> Tensor:
        """Append a tree's nodes, and what rides along with them, and return the logits (rows, vocabulary) behind each.

        Args:
            tokens: Ids (rows,), the root first.
            offsets: How far behind the root each row stands (rows,).
            sees: Which of the rows each row sees, boolean (rows, rows); all see what is in the cache.
        """
        rows, past, start = len(tokens), self.length, self.cache.capacity
        tail = self._mask[0, 0, :rows, start : start + rows]
        tail.zero_().masked_fill_(~sees.to(tail.device), self._hidden)
        return self._run(tokens, past + offsets, self._mask[:, :, :rows, start - past : start + rows])

    def keep(self, nodes: Tensor) -> None:
        """Drop all rows of the last pass but these nodes (kept,), ascending; they become part of the sequence."""
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
