"""How many blocks a drafter skips, and which may be: the options that all layer-skipping drafters share."""

from __future__ import annotations

from pydantic import Field

from speclayers.config import Section
from speclayers.drafting.rival import Given
from speclayers.drafting.skipping import Chain
from speclayers.errors import UserError


class ChainOptions(Section):
    """When a drafted chain ends."""

    threshold: float = Field(
        0.7, ge=0, le=1, description="A chain ends with the first token drafted with less probability than this."
    )

    def chain(self, given: Given) -> Chain:
        """Return how far is drafted."""
        return Chain(given.draft_length, self.threshold)


class PinnedOptions(ChainOptions):
    """Which blocks are never skipped."""

    pinned_first: int = Field(0, ge=0, description="First blocks that are never skipped.")
    pinned_last: int = Field(0, ge=0, description="Last blocks that are never skipped.")

    def free(self, given: Given) -> range:
        """Return the blocks that may be skipped, counted from 1.

        Raises:
            UserError: All are pinned.
        """
        n_layers = given.target.n_layers
        if self.pinned_first + self.pinned_last >= n_layers:
            raise UserError(
                f"{given.key}.options.pinned_first: with pinned_last {self.pinned_first + self.pinned_last} blocks are "
                f"pinned; {given.target.name} has {n_layers}; expected fewer"
            )
        return range(1 + self.pinned_first, n_layers - self.pinned_last + 1)


class BlockOptions(PinnedOptions):
    """How many whole blocks are skipped."""

    skipped: int | None = Field(None, ge=1, description="Blocks to skip; `share` of them when not given.")
    share: float = Field(0.5, gt=0, lt=1, description="Share of all blocks to skip, rounded down, at least one.")

    def count(self, given: Given) -> int:
        """Return how many blocks are skipped.

        Raises:
            UserError: More than the model has, or than are not pinned.
        """
        n_layers, free = given.target.n_layers, len(self.free(given))
        key, count = (
            ("share", max(1, int(self.share * n_layers))) if self.skipped is None else ("skipped", self.skipped)
        )
        if count > free:
            raise UserError(
                f"{given.key}.options.{key}: {count} blocks cannot be skipped; {given.target.name} has {n_layers}, "
                f"of which {n_layers - free} are pinned; expected at most {free}"
            )
        return count
