"""SWIFT (arXiv 2410.06916): what is skipped, attention and MLPs apart, is searched on the fly while decoding."""

from __future__ import annotations

from pydantic import Field

from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.skip_options import PinnedOptions
from speclayers.drafting.swift import SwiftDrafter
from speclayers.drafting.swift_search import Rules, SwiftSearch


class Options(PinnedOptions):
    """What is searched and how; defaults are those of the published code."""

    threshold: float = Field(
        0.8, ge=0, le=1, description="A chain ends with the first token drafted with less probability than this."
    )
    pinned_first: int = Field(1, ge=0, description="First blocks that are never skipped.")
    pinned_last: int = Field(1, ge=0, description="Last blocks that are never skipped.")
    share: float = Field(
        0.45, gt=0, lt=1, description="Share of the attention and MLPs that are not pinned to skip, rounded down."
    )
    window: int = Field(32, ge=1, description="Tokens at an answer's beginning that a set of layers has to foretell.")
    interval: int = Field(1, ge=1, description="Verifications from one trial to the next.")
    bayes_interval: int = Field(25, ge=1, description="Every so-manieth trial is Bayesian; the others are random.")
    enough: float = Field(0.95, ge=0, le=1, description="The search ends with a higher score than this.")
    patience: int = Field(300, ge=1, description="It ends after so many trials in a row without a better score.")
    trials: int = Field(1000, ge=0, description="It ends after so many trials; with 0 nothing is searched.")
    branches: bool = Field(
        True, description="Whether candidates stand beside the chain where it is shorter than may be."
    )


def build(given: Given, options: Options) -> SwiftDrafter:
    """Return the drafter, with a search of its own."""
    free = options.free(given)
    count = max(1, int(2 * len(free) * options.share))
    rules = Rules(count, options.bayes_interval, options.enough, options.patience, options.trials)
    search = SwiftSearch(free, rules, given.seed)
    chain = options.chain(given)
    return SwiftDrafter(
        given.target, str(given.name), chain, search, options.window, options.interval, options.branches
    )


RIVAL = Rival(build, Options, seeded=True)
