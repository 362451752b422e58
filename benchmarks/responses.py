"""Answering a batch of prompts, beside transformers' own generate on the same left-padded batch."""

from __future__ import annotations

import torch
from figures import alternate, arguments, embedded_target, report

from speclayers.corpus.chat import render
from speclayers.corpus.generation import Sampling, generate_batch
from speclayers.corpus.generator import generate_prompts


def main() -> None:
    """Measure answers per second, and check that both answer alike."""
    options = arguments(__doc__)
    target = embedded_target(options.target)
    count, new_tokens, rounds = (16, 16, 2) if options.quick else (48, 48, 3)
    prompts = [render(target.tokenizer, prompt.turns, [], {}) for prompt in generate_prompts(count, 5)]
    longest = max(map(len, prompts))
    pad = target.manifest.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def ours() -> list[list[int]]:
        keys = [str(number) for number in range(count)]
        return generate_batch(target, prompts, keys, new_tokens, Sampling(temperature=0, seed=0))

    def peer() -> torch.Tensor:
        return target.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens)

    rows = peer()[:, longest:].tolist()
    alike = sum(row[: len(answer)] == answer for row, answer in zip(rows, ours(), strict=True)) / count
    report("prompts answered alike", alike, "share", "transformers generate", 0.95)
    our_time, peer_time = alternate(ours, peer, rounds)
    report("answers per second", peer_time / our_time, "ratio", "transformers generate", 1.0)


if __name__ == "__main__":
    main()
