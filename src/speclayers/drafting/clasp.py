"""CLaSp: layers to skip are chosen anew while decoding, from the last accepted token's states (arXiv 2505.24196)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from speclayers.drafting.drafter import Search, Verified
from speclayers.drafting.layer_path import find_path
from speclayers.drafting.skipping import Chain, SkippingDrafter
from speclayers.targets.block_rows import rows_at_last_token
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped
from speclayers.targets.target import Target


class ClaspDrafter(SkippingDrafter):
    """Drafts chains with blocks skipped that change the last accepted token's state at the top least.

    Args:
        target: The model that drafts and verifies.
        name: Name in messages.
        chain: How far it drafts.
        skipped: Blocks to skip.
        free: Blocks that may be skipped, counted from 1; at least `skipped`.
        interval: Verifications from one choice of blocks to the next; a turn's first chain always has its own.

    Raises:
        UserError: The target cannot be run without its layers.
    """

    def __init__(
        self, target: Target, name: str, chain: Chain, skipped: int, free: AbstractSet[int], interval: int
    ) -> None:
        """Bind the drafter to its target."""
        super().__init__(target, name, chain, Skipped())
        self.layers = tuple(range(target.n_layers + 1))
        self.rows = max(self.nodes, skipped)
        self._count = skipped
        self._free = free
        self._interval = interval
        self._chains = 0
        self._states: Tensor | None = None

    def start(self, cache: PreallocatedCache) -> None:
        """Draft on this turn's cache, with a choice of blocks of its own."""
        super().start(cache)
        self._chains = 0

    def observe(self, verified: Verified) -> None:
        """Keep the last verified token's states where they decide on the next chain's blocks."""
        super().observe(verified)
        if self._chains % self._interval == 0:
            device = self._target.device
            self._states = torch.stack([verified.states[layer][-1].to(device) for layer in self.layers])

    def _search(self, cache: PreallocatedCache) -> Search | None:
        due, self._chains = self._chains % self._interval == 0, self._chains + 1
        if not due or self._states is None:
            return None
        with rows_at_last_token(self._target, cache, self._count) as rows:
            path = find_path(self._states, rows.run, self._count, self._free)
        self._skipped = Skipped.blocks(path.skipped)
        return Search(path.layer_passes, path.rows, path.cosine)
