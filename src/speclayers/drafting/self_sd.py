"""Self-SD: drafting with layers skipped that a search has chosen, and a threshold that adapts (arXiv 2309.08168)."""

from __future__ import annotations

from speclayers.drafting.drafter import Proposal, Verified
from speclayers.drafting.skipping import Chain, SkippingDrafter
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped
from speclayers.targets.target import Target

_OLD_SHARE, _STEP, _OLD_THRESHOLD = 0.5, 0.01, 0.9
"""Weight of the acceptance rate so far, step of the threshold, and its weight so far: as in the published code."""


class SelfSdDrafter(SkippingDrafter):
    """Drafts chains with the same layers skipped throughout, each ending at a threshold that follows the acceptance.

    Args:
        target: The model that drafts and verifies.
        name: Name in messages.
        chain: How far it drafts; its threshold is where every turn begins.
        skipped: What is skipped.
        acceptance: Share of the drafted tokens that should be accepted: with fewer the threshold rises, else it falls.

    Raises:
        UserError: The target cannot be run without its layers.
    """

    def __init__(self, target: Target, name: str, chain: Chain, skipped: Skipped, acceptance: float) -> None:
        """Bind the drafter to its target."""
        super().__init__(target, name, chain, skipped)
        self._first_threshold = chain.threshold
        self._wanted = acceptance
        self._accepted_share = 0.0
        self._drafted = 0

    def start(self, cache: PreallocatedCache) -> None:
        """Draft on this turn's cache, with the first threshold: a turn does not depend on those before it."""
        super().start(cache)
        self._threshold, self._accepted_share, self._drafted = self._first_threshold, 0.0, 0

    def observe(self, verified: Verified) -> None:
        """Move the threshold by how much of the last chain was accepted."""
        super().observe(verified)
        if self._drafted:
            self._adapt((len(verified.tokens) - 1) / self._drafted)

    def propose(self) -> Proposal:
        """Draft a chain below the latest root.

        Raises:
            UserError: The logits are not finite.
        """
        proposal = super().propose()
        self._drafted = proposal.forwards
        return proposal

    def _adapt(self, accepted: float) -> None:
        self._accepted_share = _OLD_SHARE * self._accepted_share + (1 - _OLD_SHARE) * accepted
        if self._accepted_share < self._wanted:
            wanted = self._threshold + _STEP
        elif self._drafted == self.depth:
            wanted = self._threshold
        else:
            wanted = self._threshold - _STEP
        threshold = _OLD_THRESHOLD * self._threshold + (1 - _OLD_THRESHOLD) * wanted
        self._threshold = min(max(threshold, 0.0), 1.0)  # above 1 nothing would be drafted any more
