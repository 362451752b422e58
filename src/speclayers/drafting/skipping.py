"""Drafting with the target itself, some of its layers skipped: what CLaSp, Self-SD, SWIFT and their controls share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from speclayers.drafting.drafter import Proposal, Search, Verified
from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped, require_skippable, skip_layers
from speclayers.targets.target import Target


class Chain(NamedTuple):
    """How far a chain is drafted.

    Args:
        length: Most tokens of a chain.
        threshold: A chain ends with the first token that the drafter gives less than this probability.
    """

    length: int
    threshold: float


class SkippingDrafter:
    """Drafts chains of likeliest tokens with the target, some of its layers skipped.

    The drafted tokens' keys and values are forgotten before the target verifies them in full. A token below the
    threshold is proposed, too, since it has been paid for.

    Args:
        target: The model that drafts and verifies.
        name: Name in messages.
        chain: How far it drafts.
        skipped: What is skipped; subclasses may change it while they decode.
        parts: Whether attention and MLP may come to be skipped separately.

    Raises:
        UserError: The target cannot be run without its layers.
    """

    layers: tuple[int, ...] = ()

    def __init__(self, target: Target, name: str, chain: Chain, skipped: Skipped, parts: bool = False) -> None:
        """Bind the drafter to its target."""
        require_skippable(target, parts=parts or bool(skipped.parts))
        self.name = name
        self.depth = chain.length
        self.nodes = self.rows = chain.length + 1
        self._target = target
        self._threshold = chain.threshold
        self._skipped = skipped
        self._cache: PreallocatedCache | None = None
        self._root = -1

    def start(self, cache: PreallocatedCache) -> None:
        """Draft on this turn's cache."""
        self._cache = cache

    def observe(self, verified: Verified) -> None:
        """Take the token that follows what was verified as the next root."""
        self._root = verified.root

    @torch.inference_mode()
    def propose(self) -> Proposal:
        """Draft a chain below the latest root.

        Raises:
            UserError: The logits are not finite.
        """
        if self._cache is None:
            raise RuntimeError("propose was called before start")
        search = self._search(self._cache)
        chain, probabilities = [self._root], [1.0]
        with self._cache.session(), skip_layers(self._target, self._skipped):
            while len(chain) < self.nodes and probabilities[-1] >= self._threshold:
                token, probability = self._likeliest(self._next(self._cache, chain[-1]))
                chain.append(token)
                probabilities.append(probability)
        forwards = len(chain) - 1
        return Proposal(
            tokens=torch.tensor(chain),
            parents=torch.arange(-1, forwards),
            forwards=forwards,
            layer_forwards=forwards * self._skipped.layer_passes(self._target.n_layers),
            probabilities=torch.tensor(probabilities),
            skipped=self._skipped,
            search=search,
        )

    def _search(self, cache: PreallocatedCache) -> Search | None:
        """Look for better layers to skip before a chain is drafted, and say what that took; nothing by default."""
        return None

    def _next(self, cache: PreallocatedCache, token: int) -> Tensor:
        """Append a token to the session's rows and return the logits (vocabulary,) behind it."""
        device = self._target.device
        output = self._target.model(
            input_ids=torch.tensor([[token]], device=device),
            position_ids=torch.tensor([[cache.get_seq_length()]], device=device),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[0, -1]
        return logits

    def _likeliest(self, logits: Tensor) -> tuple[int, float]:
        probability, token = logits.float().softmax(-1).max(-1)
        if bool(probability.isnan()):
            raise UserError(f"{self.name}: the target's logits are not finite without the skipped layers")
        return int(token), float(probability)
