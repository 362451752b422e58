"""Lookahead decoding (arXiv 2402.02057): the target's own Jacobi iterations give the n-grams that it verifies."""

from __future__ import annotations

from pydantic import Field

from speclayers.config import RivalConfig, Section
from speclayers.drafting.lookahead import LookaheadDrafter
from speclayers.drafting.rival import Given, Rival
from speclayers.errors import UserError

STARTS_ANEW = True


class Options(Section):
    """The window; an n-gram has a token more than `draft_length`, and `tree_nodes` says how many are verified."""

    window: int = Field(7, ge=1, description="Columns of the window.")
    pool_text: bool = Field(True, description="Whether n-grams of prompt and answer are pooled, not the window's only.")


def build(given: Given, options: Options) -> LookaheadDrafter:
    """Return the drafter."""
    guesses = (given.nodes - 1) // given.draft_length
    name = str(given.name)
    return LookaheadDrafter(name, given.draft_length + 1, options.window, guesses, given.seed, options.pool_text)


def nodes(config: RivalConfig) -> int:
    """Return the nodes of whole n-grams below one root.

    Raises:
        UserError: The n-grams are too short for a window.
    """
    length = config.draft_length
    if length < 2:
        raise UserError(
            f"rivals.{config.runs()[0].label}.draft_length: is {length}, so that n-grams have {length + 1} tokens; "
            "expected 2 or more"
        )
    return config.nodes - (config.nodes - 1) % length


RIVAL = Rival(build, Options, seeded=True, nodes=nodes)
