"""Answering a batch of prompts with a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.target import Target

SHRINK_AT = 0.75
"""Finished sequences leave the batch once at most this share of it still runs; leaving costs a copy of the cache."""


class Sampling(NamedTuple):
    """How tokens are chosen.

    Args:
        temperature: 0 is greedy.
        seed: Seed of every sequence's own random numbers.
    """

    temperature: float
    seed: int


@torch.inference_mode()
def generate_batch(
    target: Target, prompts: Sequence[Sequence[int]], keys: Sequence[str], max_new_tokens: int, sampling: Sampling
) -> list[list[int]]:
    """Answer prompts together.

    Args:
        target: The model.
        prompts: Rendered prompts as token ids.
        keys: One text a prompt; with the seed it names the prompt's random numbers, so that a sampled answer
            does not depend on the other prompts beyond rounding.
        max_new_tokens: Longest answer.
        sampling: How tokens are chosen.

    Returns:
        The answers as token ids, an end token included where one was generated.
    """
    longest = max(map(len, prompts))
    batch = _Batch(target, prompts, longest + max_new_tokens)
    uniforms = _uniforms(keys, max_new_tokens, sampling) if sampling.temperature > 0 else None
    answers: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))  # which prompt each sequence of the batch answers
    done: set[int] = set()
    for step in range(max_new_tokens):
        tokens = _choose(batch.logits, sampling.temperature, None if uniforms is None else uniforms[running, step])
        for prompt, token in zip(running, tokens.tolist(), strict=True):
            if prompt not in done:
                answers[prompt].append(token)
                if token in target.stop_ids:
                    done.add(prompt)
        if len(done) == len(prompts) or step == max_new_tokens - 1:
            break
        kept = [place for place, prompt in enumerate(running) if prompt not in done]
        if len(kept) <= SHRINK_AT * len(running):
            batch.select(kept)
            running, tokens = [running[place] for place in kept], tokens[kept]
        batch.step(tokens)
    return answers


class _Batch:
    """Left-padded sequences that grow together, and the logits of their next tokens."""

    def __init__(self, target: Target, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        self.target = target
        self.length = max(map(len, prompts))
        pad, device = target.manifest.pad_token_id, target.device
        ids = torch.tensor([[pad] * (self.length - len(p)) + list(p) for p in prompts], device=device)
        self.lengths = torch.tensor([len(p) for p in prompts], device=device)
        self.mask = torch.ones(len(prompts), capacity, dtype=torch.long, device=device)
        places = torch.arange(capacity, device=device)
        self.mask[places[None] < (self.length - self.lengths)[:, None]] = 0
        # With left padding the first token of a prompt is not at place 0, so positions are explicit.
        positions = (self.mask[:, : self.length].cumsum(1) - 1).clamp(min=0)
        self.cache = PreallocatedCache(target, capacity)
        self.logits = self._run(ids, positions)

    def step(self, tokens: torch.Tensor) -> None:
        """Append one token to every sequence."""
        self.length += 1
        self.logits = self._run(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1

    def select(self, places: list[int]) -> None:
        """Keep some of the sequences."""
        indices = torch.tensor(places, device=self.lengths.device)
        self.cache.batch_select_indices(indices)
        self.mask, self.lengths = self.mask[indices], self.lengths[indices]

    def _run(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self.target.model(
            input_ids=ids,
            attention_mask=self.mask[:, : self.length],
            position_ids=positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _choose(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor | None) -> torch.Tensor:
    """Pick the next tokens (batch,): the best, or by inverse transform sampling."""
    if uniforms is None:
        return logits.argmax(dim=-1)
    cumulative = torch.softmax(logits.float() / temperature, dim=-1).double().cumsum(dim=-1)
    drawn = uniforms.to(logits.device)[:, None] * cumulative[:, -1:]  # sums to 1 only up to rounding
    return torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


def _uniforms(keys: Sequence[str], count: int, sampling: Sampling) -> torch.Tensor:
    """Draw every sequence's random numbers in [0, 1) ahead: (sequences, count)."""
    rows = []
    for key in keys:
        number = int.from_bytes(hashlib.sha256(f"{sampling.seed}/{key}".encode()).digest()[:8], "big")
        generator = torch.Generator().manual_seed(number >> 1)  # within a signed 64-bit number
        rows.append(torch.rand(count, generator=generator, dtype=torch.float64))
    return torch.stack(rows)
