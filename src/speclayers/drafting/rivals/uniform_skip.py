"""The control that skips blocks at equal distances."""

from __future__ import annotations

from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.skip_options import BlockOptions
from speclayers.drafting.skipping import SkippingDrafter
from speclayers.targets.skipping import Skipped

STARTS_ANEW = True


def build(given: Given, options: BlockOptions) -> SkippingDrafter:
    """Skip the middle ones of as many equal parts of the blocks that may be skipped."""
    free, count = options.free(given), options.count(given)
    blocks = [free[(2 * part + 1) * len(free) // (2 * count)] for part in range(count)]
    return SkippingDrafter(given.target, str(given.name), options.chain(given), Skipped.blocks(blocks))


RIVAL = Rival(build, BlockOptions)
