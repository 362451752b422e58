"""SWIFT: layers to skip are searched while decoding, by how well they foretell what was decoded (arXiv 2410.06916)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from speclayers.drafting.drafter import Proposal, Search, Verified
from speclayers.drafting.skipping import Chain, SkippingDrafter
from speclayers.drafting.swift_search import SwiftSearch
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped, skip_layers
from speclayers.targets.target import Target

_CANDIDATES = ((0.95, 3), (0.8, 5), (0.5, 8), (0.0, 10))
"""Candidates for a place of the chain whose likeliest token is more probable than this, that token among them."""


class SwiftDrafter(SkippingDrafter):
    """Drafts with the layers skipped that foretold earlier text best, and looks for better ones at every verification.

    What the search has learnt stays from turn to turn and from question to question, so that an answer's counts depend
    on the questions before it; its tokens never do.

    Args:
        target: The model that drafts and verifies.
        name: Name in messages.
        chain: How far it drafts; candidates beside the chain take what is left of its length.
        search: What is tried.
        window: Tokens at an answer's beginning that a set has to foretell.
        interval: Verifications from one trial to the next.
        branches: Whether there are candidates beside the chain.

    Raises:
        UserError: The target cannot be run without its layers' parts.
    """

    def __init__(
        self, target: Target, name: str, chain: Chain, search: SwiftSearch, window: int, interval: int, branches: bool
    ) -> None:
        """Bind the drafter to its target."""
        super().__init__(target, name, chain, search.best, parts=True)
        self.rows = max(self.nodes, window)
        self._trials = search
        self._window = window
        self._interval = interval
        self._branches = branches
        self._chains = 0
        self._prompt: int | None = None
        self._answer: list[int] = []
        self._ranked: list[tuple[list[int], list[float]]] = []

    def memory(self) -> list[float]:
        """Return what the search has learnt: the score of each trial."""
        return list(self._trials.scores)

    def recall(self, memory: list[float]) -> None:
        """Go on as after these trials, whatever was decoded since."""
        self._trials.recall(memory)
        self._skipped = self._trials.best

    def start(self, cache: PreallocatedCache) -> None:
        """Draft on this turn's cache."""
        super().start(cache)
        self._chains, self._prompt, self._answer = 0, None, []

    def observe(self, verified: Verified) -> None:
        """Keep the answer so far, which sets of layers are tried on."""
        super().observe(verified)
        if self._prompt is None:
            self._prompt = len(verified.tokens)
        else:
            self._answer += verified.tokens.tolist()

    def propose(self) -> Proposal:
        """Draft a chain below the latest root, and candidates beside it.

        Raises:
            UserError: The logits are not finite.
        """
        self._ranked = []
        proposal = super().propose()
        return self._with_branches(proposal) if self._branches else proposal

    def _search(self, cache: PreallocatedCache) -> Search | None:
        due, self._chains = self._chains % self._interval == 0, self._chains + 1
        if not due or self._trials.ended or self._prompt is None or len(self._answer) <= self._window + 1:
            return None
        tried = self._trials.propose()
        score = self._matchness(cache, self._prompt, tried)
        self._trials.tell(score)
        self._skipped = self._trials.best
        passes = tried.layer_passes(self._target.n_layers)
        return Search(passes, math.ceil(passes * self._window), score)

    def _matchness(self, cache: PreallocatedCache, prompt: int, skipped: Skipped) -> float:
        """Return the share of the answer's first tokens that a set foretells, each from those before it.

        The full model's keys of the prompt are seen, those of the answer are not: they are made anew in one pass.
        """
        tokens, device = torch.tensor(self._answer[: self._window + 1]), self._target.device
        window, length = self._window, int(cache.get_seq_length())
        hidden = torch.finfo(self._target.dtype).min
        mask = torch.full((1, 1, window, length + window), hidden, dtype=self._target.dtype)
        mask[..., :prompt] = 0
        mask[0, 0, :, length:].triu_(1)
        with cache.session(), skip_layers(self._target, skipped):
            output = self._target.model(
                input_ids=tokens[None, :-1].to(device),
                position_ids=torch.arange(prompt, prompt + window, device=device)[None],
                attention_mask=mask.to(device),
                cache=cache,
                use_cache=True,
            )
        foretold = output.logits[0].argmax(-1).cpu()
        return float((foretold == tokens[1:]).double().mean())

    def _likeliest(self, logits: Tensor) -> tuple[int, float]:
        if self._branches:
            best = logits.float().softmax(-1).topk(min(_CANDIDATES[-1][1], len(logits)))
            self._ranked.append((best.indices.tolist(), best.values.tolist()))
        return super()._likeliest(logits)

    def _with_branches(self, proposal: Proposal) -> Proposal:
        """Add candidates beside the chain, the likeliest first, while there is room: more where it was less sure."""
        chain = proposal.tokens.tolist()
        beside, reached = list[tuple[float, int, int, float]](), 1.0
        for place, ((_, drafted), (tokens, shares)) in enumerate(zip(pairwise(chain), self._ranked, strict=True)):
            count = next(count for least, count in _CANDIDATES if shares[0] > least)
            others = [(t, p) for t, p in zip(tokens, shares, strict=True) if t != drafted][: count - 1]
            beside += [(reached * share, place, token, share) for token, share in others]
            reached *= shares[0]
        best = sorted(beside, key=lambda candidate: -candidate[0])[: self.nodes - len(chain)]
        return proposal._replace(
            tokens=torch.tensor([*chain, *(token for _, _, token, _ in best)]),
            parents=torch.cat((proposal.parents, torch.tensor([place for _, place, _, _ in best], dtype=torch.long))),
            probabilities=torch.tensor([*_shares(proposal), *(share for *_, share in best)]),
        )


def _shares(proposal: Proposal) -> list[float]:
    return [] if proposal.probabilities is None else [float(share) for share in proposal.probabilities]
