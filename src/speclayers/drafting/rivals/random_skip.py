"""The control that skips blocks drawn at random, the same ones from the first question to the last."""

from __future__ import annotations

import torch

from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.skip_options import BlockOptions
from speclayers.drafting.skipping import SkippingDrafter
from speclayers.targets.skipping import Skipped

STARTS_ANEW = True


def build(given: Given, options: BlockOptions) -> SkippingDrafter:
    """Draw the blocks without replacement."""
    free, count = options.free(given), options.count(given)
    order = torch.randperm(len(free), generator=torch.Generator().manual_seed(given.seed)).tolist()
    blocks = [free[place] for place in order[:count]]
    return SkippingDrafter(given.target, str(given.name), options.chain(given), Skipped.blocks(blocks))


RIVAL = Rival(build, BlockOptions, seeded=True)
