"""Layer skipping: CLaSp's programme with all states of a depth at once, beside one state at a time; a shorter draft."""

from __future__ import annotations

from itertools import combinations

import torch
from figures import alternate, arguments, embedded_target, report
from torch import Tensor
from torch.nn.functional import cosine_similarity

from speclayers.corpus.chat import render
from speclayers.corpus.generator import generate_prompts
from speclayers.drafting.layer_path import LayerPath, find_path
from speclayers.targets.block_rows import BlockRows, rows_at_last_token
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.capture import capture_states
from speclayers.targets.skipping import Skipped, skip_layers
from speclayers.targets.target import Target


class Prefix:
    """A prompt that the target has run over, with its last token's states (layers, width)."""

    def __init__(self, target: Target, prompt: list[int], room: int) -> None:
        """Run over the prompt."""
        self.target, self.cache = target, PreallocatedCache(target, len(prompt) + room)
        layers = range(target.n_layers + 1)
        with capture_states(target, layers) as captured:
            target.model(torch.tensor([prompt]), cache=self.cache, use_cache=True, logits_to_keep=1)
            self.states = torch.stack([captured[layer][0, -1] for layer in layers])

    def path(self, skipped: int, free: frozenset[int], together: bool) -> LayerPath:
        """Find what to skip, with all states of a depth in one pass or in a pass each."""
        with rows_at_last_token(self.target, self.cache, skipped if together else 1) as rows:
            run = rows.run if together else one_by_one(rows)
            return find_path(self.states, run, skipped, free)

    def as_printed(self, skipped: int) -> tuple[int, ...]:
        """Find what to skip by algorithm 1 of the paper as it is printed: every state by itself, none left out."""
        full, n_layers = self.states, self.target.n_layers
        best, passes_on = {(0, 0): full[0]}, {}
        with rows_at_last_token(self.target, self.cache, 1) as rows:
            for block in range(1, n_layers + 1):
                best[block, 0], passes_on[block, 0] = full[block], False
                for count in range(1, min(block, skipped) + 1):
                    passed = best[block - 1, count - 1]
                    ran = rows.run(block, best[block - 1, count][None])[0] if count < block else passed
                    skip = bool(cosine(ran, full[block]) <= cosine(passed, full[block]))
                    best[block, count], passes_on[block, count] = passed if skip else ran, skip
        path, left = [], skipped
        for block in range(n_layers, 0, -1):
            if passes_on[block, left]:
                path.append(block)
                left -= 1
        return tuple(reversed(path))

    def step(self, skipped: Skipped) -> Tensor:
        """Draft one token's logits without some layers."""
        place = torch.tensor([[self.cache.get_seq_length()]])
        with self.cache.session(), skip_layers(self.target, skipped):
            output = self.target.model(torch.tensor([[1]]), position_ids=place, cache=self.cache, use_cache=True)
        return output.logits

    def cosines(self, skipped: int, free: frozenset[int]) -> Tensor:
        """Return the cosine at the top of every way of skipping so many of the free blocks, highest first."""
        found = []
        with rows_at_last_token(self.target, self.cache, 1) as rows:
            for way in combinations(sorted(free), skipped):
                state = self.states[min(free) - 1][None]
                for block in range(min(free), self.target.n_layers + 1):
                    state = state if block in way else rows.run(block, state)
                found.append(float(cosine(state[0], self.states[-1])))
        return torch.tensor(found, dtype=torch.float64).sort(descending=True).values


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine of two states."""
    return cosine_similarity(one.double(), other.double(), dim=0)


def one_by_one(rows: BlockRows):
    """Return a way to run a block over each state alone."""
    return lambda block, states: torch.cat([rows.run(block, state[None]) for state in states])


@torch.inference_mode()
def main() -> None:
    """Measure both speeds, and how near the programme comes to the best way."""
    options = arguments(__doc__)
    target = embedded_target(options.target)
    rounds, prompts, free_blocks = (3, 4, 6) if options.quick else (9, 12, 10)
    half = target.n_layers // 2
    every = frozenset(range(1, target.n_layers + 1))
    texts = [render(target.tokenizer, prompt.turns, [], {}) for prompt in generate_prompts(prompts, 5)]
    # cut inside the text: a template's last tokens are the same for all
    prefixes = [Prefix(target, text[: -6 - place % 4], half + 1) for place, text in enumerate(texts)]
    ours = [prefix.path(half, every, True).skipped for prefix in prefixes]
    alone = [prefix.path(half, every, False).skipped for prefix in prefixes]
    printed = [prefix.as_printed(half) for prefix in prefixes]
    equal = sum(len(set(three)) == 1 for three in zip(ours, alone, printed, strict=True)) / len(ours)
    what = "half of the blocks skipped"
    report(f"{what}, choices alike", equal, "share", "one state at a time", 1.0)
    first = prefixes[0]
    time, peer = alternate(lambda: first.path(half, every, True), lambda: first.as_printed(half), rounds)
    report(f"{what}, programme's speed", peer / time, "ratio", "the paper's algorithm 1, one state at a time", 5.0)
    time, peer = alternate(lambda: first.path(half, every, True), lambda: first.path(half, every, False), rounds)
    report(f"{what}, programme's speed", peer / time, "ratio", "the same states, one at a time", 3.0)
    skipped = Skipped.blocks(range(2, 2 + half))
    time, peer = alternate(lambda: first.step(skipped), lambda: first.step(Skipped()), 4 * rounds)
    report(f"{what}, a pass", time / peer, "ratio", "all blocks", 0.65, at_most=True)
    start = (target.n_layers - free_blocks) // 2
    free = frozenset(range(start + 1, start + 1 + free_blocks))
    gaps, ranks = [], []
    for prefix in prefixes:
        best = prefix.cosines(free_blocks // 2, free)
        found = prefix.path(free_blocks // 2, free, True).cosine
        gaps.append(float(best[0]) - found)
        ranks.append(float((best > found + 1e-6).double().mean()))
    # the paper's check; its claim is that the programme comes near the best way
    words = f"half of {free_blocks} middle blocks skipped, cosine"
    report(f"{words}: mean gap", sum(gaps) / len(gaps), "cosine", "all ways", 0.02, at_most=True)
    report(f"{words}: mean rank", sum(ranks) / len(ranks), "share", "all ways", 0.05, at_most=True)


if __name__ == "__main__":
    main()
