"""Choosing tokens from logits, reproducibly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from speclayers.config import SamplingLimits
from speclayers.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the target's logits, the same whoever drafts.

    Args:
        temperature: 0 is greedy, and then nothing else matters.
        limits: Which tokens are left to draw from.

    Raises:
        UserError: The temperature is below 0 or not finite.
    """

    temperature: float
    limits: SamplingLimits = field(default_factory=SamplingLimits)

    def __post_init__(self) -> None:
        """Check the temperature, which does not come with the checked config."""
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature: found {self.temperature:g}, expected 0 (greedy) or more")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


GREEDY = Sampling(0.0)


def stream(seed: int, question_id: int, turn: int) -> torch.Generator:
    """Return the random stream of one turn: the same whatever was decoded before it.

    Args:
        seed: Seed of the study.
        question_id: Question.
        turn: Turn, from 0.
    """
    digest = hashlib.sha256(f"{seed}/{question_id}/{turn}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return what tokens are drawn by, in float64 on the CPU: softmax(logits / temperature) within the limits.

    Args:
        logits: (…, vocabulary).
        sampling: Its temperature is above 0.
    """
    limits, scores = sampling.limits, logits.double().cpu() / sampling.temperature
    rows, none = (
        scores.reshape(-1, scores.shape[-1]),
        torch.empty(0, 0, dtype=torch.long),
    )  # warpers read no past tokens
    if limits.top_k is not None:
        rows = TopKLogitsWarper(limits.top_k)(none, rows)
    if limits.top_p < 1:
        rows = TopPLogitsWarper(limits.top_p)(none, rows)
    return rows.softmax(-1).reshape(scores.shape)


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """Draw an index with probability proportional to its weight (n,)."""
    return int(torch.multinomial(weights, 1, generator=generator))


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Return the next token: the likeliest at temperature 0, else a drawn one.

    Args:
        logits: (vocabulary,).
        sampling: How tokens are chosen.
        generator: The turn's stream; not touched at temperature 0.

    Raises:
        UserError: The logits are not finite.
    """
    require_finite(logits)
    if sampling.greedy:
        return int(logits.argmax())
    return draw(probabilities(logits, sampling), generator)


def require_finite(logits: Tensor) -> Tensor:
    """Refuse logits (…, vocabulary) that hold NaN or +inf, and return the highest of each row.

    Raises:
        UserError: They do.
    """
    highest = logits.amax(-1)  # passes NaN on
    if not bool(highest.isfinite().all()):
        raise UserError("the target's logits are not finite; set its dtype to float32")
    return highest
