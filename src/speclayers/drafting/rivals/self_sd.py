"""Self-SD (arXiv 2309.08168): what is skipped, attention and MLPs apart, is searched on calibration prompts first."""

from __future__ import annotations

from pydantic import Field

from speclayers.config import SkipSearch
from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.self_sd import SelfSdDrafter
from speclayers.drafting.skip_options import PinnedOptions
from speclayers.files import read_json
from speclayers.targets.skipping import Skipped

NEEDS = ("skipped",)
STARTS_ANEW = True


class Options(SkipSearch, PinnedOptions):
    """How the layers are searched, and when a chain ends."""

    threshold: float = Field(
        0.6,
        ge=0,
        le=1,
        description="A chain ends with the first token drafted with less probability; at a turn's start.",
    )
    acceptance: float = Field(
        0.9, ge=0, le=1, description="The threshold rises where a smaller share of the drafted tokens is accepted."
    )

    def drafter(self, given: Given, skipped: Skipped) -> SelfSdDrafter:
        """Return a drafter that skips these layers."""
        return SelfSdDrafter(given.target, str(given.name), self.chain(given), skipped, self.acceptance)


def build(given: Given, options: Options) -> SelfSdDrafter:
    """Skip what the search has chosen."""
    found = read_json(given.files["skipped"])
    skipped = Skipped(frozenset(found["skipped_attention"]), frozenset(found["skipped_mlp"]))
    return options.drafter(given, skipped)


RIVAL = Rival(build, Options, seeded=True)
