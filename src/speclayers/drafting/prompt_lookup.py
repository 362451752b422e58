"""Prompt lookup: drafts what followed the latest n-gram when it first stood in prompt or answer."""

from __future__ import annotations

from speclayers.drafting.drafter import Proposal, Verified
from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache


class PromptLookupDrafter:
    """Looks the last tokens up in the text so far, the longest n-gram first (Saxena 2023, prompt lookup decoding).

    Proposes what transformers' generate does with `prompt_lookup_num_tokens` and `max_matching_ngram_size`.

    Args:
        tokens: Most tokens that it drafts.
        ngram: Longest n-gram that it looks for, in tokens.
        name: Name in messages.

    Raises:
        UserError: One of the two is below 1.
    """

    layers = ()

    def __init__(self, tokens: int = 10, ngram: int = 2, name: str = "prompt_lookup") -> None:
        """Begin without a text."""
        for key, value in (("tokens", tokens), ("ngram", ngram)):
            if value < 1:
                raise UserError(f"{name}: {key} is {value}, expected 1 or more")
        self.name = name
        self.nodes = self.rows = tokens + 1
        self.depth = tokens
        self._ngram = ngram
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def start(self, cache: PreallocatedCache) -> None:
        """Forget the last turn."""
        self._text, self._after = [], {}

    def observe(self, verified: Verified) -> None:
        """Remember where each n-gram first ended, the last one excepted, which nothing follows yet."""
        known = len(self._text)
        self._text[-1:] = [*verified.tokens.tolist(), verified.root]  # begins with the last root
        for end in range(max(known, 1), len(self._text)):
            for size in range(1, min(self._ngram, end) + 1):
                self._after.setdefault(tuple(self._text[end - size : end]), end)

    def propose(self) -> Proposal:
        """Draft a chain; nothing where no n-gram stood there before."""
        for size in range(self._ngram, 0, -1):
            begin = self._after.get(tuple(self._text[-size:]))
            if begin is not None:
                return Proposal.chain([self._text[-1], *self._text[begin : begin + self.depth]])
        return Proposal.chain(self._text[-1:])
