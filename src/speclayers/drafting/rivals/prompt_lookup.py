"""Prompt lookup (Saxena 2023): drafts what followed the latest n-gram when it first stood in prompt or answer."""

from __future__ import annotations

from pydantic import Field

from speclayers.config import Section
from speclayers.drafting.prompt_lookup import PromptLookupDrafter
from speclayers.drafting.rival import Given, Rival

STARTS_ANEW = True


class Options(Section):
    """What is looked up."""

    ngram: int = Field(2, ge=1, description="Longest n-gram that is looked for, in tokens.")


def build(given: Given, options: Options) -> PromptLookupDrafter:
    """Return the drafter."""
    return PromptLookupDrafter(given.draft_length, options.ngram, str(given.name))


RIVAL = Rival(build, Options)
