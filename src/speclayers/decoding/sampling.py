"""Choosing tokens from logits, reproducibly."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from speclayers.errors import UserError


def stream(seed: int, question_id: int, turn: int) -> torch.Generator:
    """Return the random stream of one turn: the same whatever was decoded before it.

    Args:
        seed: Seed of the study.
        question_id: Question.
        turn: Turn, from 0.
    """
    digest = hashlib.sha256(f"{seed}/{question_id}/{turn}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / temperature) in float64 on the CPU.

    Args:
        logits: (…, vocabulary).
        temperature: Above 0.
    """
    return (logits.double().cpu() / temperature).softmax(-1)


def draw(weights: Tensor, generator: torch.Generator) -> int:
    """Draw an index with probability proportional to its weight (n,)."""
    return int(torch.multinomial(weights, 1, generator=generator))


def choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Return the next token: the likeliest at temperature 0, else a drawn one.

    Args:
        logits: (vocabulary,).
        temperature: 0 is greedy.
        generator: The turn's stream; not touched at temperature 0.

    Raises:
        UserError: The logits are not finite.
    """
    require_finite(logits)
    if temperature == 0:
        return int(logits.argmax())
    return draw(probabilities(logits, temperature), generator)


def require_finite(logits: Tensor) -> None:
    """Refuse logits (…, vocabulary) that hold NaN or +inf.

    Raises:
        UserError: They do.
    """
    if not bool(logits.amax(-1).isfinite().all()):  # amax passes NaN on
        raise UserError("the target's logits are not finite; set its dtype to float32")
