"""CLaSp (arXiv 2505.24196): blocks to skip are chosen anew while decoding, by a dynamic programme."""

from __future__ import annotations

from pydantic import Field

from speclayers.drafting.clasp import ClaspDrafter
from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.skip_options import BlockOptions

STARTS_ANEW = True


class Options(BlockOptions):
    """What the paper varies: blocks skipped, interval, threshold."""

    interval: int = Field(1, ge=1, description="Verifications from one choice of blocks to the next.")


def build(given: Given, options: Options) -> ClaspDrafter:
    """Return the drafter."""
    free = frozenset(options.free(given))
    chain = options.chain(given)
    return ClaspDrafter(given.target, str(given.name), chain, options.count(given), free, options.interval)


RIVAL = Rival(build, Options)
