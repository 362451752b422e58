"""CLaSp's dynamic programme beside the algorithm as printed and all ways through the blocks, and its drafter."""

from itertools import combinations

import numpy as np
import pytest
import torch

from speclayers.decoding.loop import speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import GREEDY
from speclayers.drafting.clasp import ClaspDrafter
from speclayers.drafting.layer_path import find_path
from speclayers.drafting.skipping import Chain, SkippingDrafter
from speclayers.targets.block_rows import rows_at_last_token
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.capture import capture_states
from speclayers.targets.skipping import Skipped, skip_layers
from tests.unit.test_loop import PROMPT, VOCABULARY, decode, endless, generate


class ToyNet:
    """Residual blocks x + W tanh(V x), each of its own strength, run in float64."""

    def __init__(self, n_layers, seed, width=16):
        generator = np.random.default_rng(seed)
        self.maps = generator.normal(size=(n_layers, 2, width, width)) / np.sqrt(width)
        self.strengths = generator.uniform(0.2, 1.2, size=n_layers)
        self.states = [generator.normal(size=width)]
        for block in range(1, n_layers + 1):
            self.states.append(self.block(block, self.states[-1]))
        self.calls = []

    def block(self, block, state):
        inner, outer = self.maps[block - 1]
        return state + self.strengths[block - 1] * outer @ np.tanh(inner @ state)

    def run(self, block, rows):
        self.calls.append((block, len(rows)))
        return torch.stack([torch.from_numpy(self.block(block, row.numpy())) for row in rows])

    def find(self, skipped, free):
        return find_path(torch.from_numpy(np.stack(self.states)), self.run, skipped, frozenset(free))

    def cosine(self, skipped):
        """The cosine at the top of one way, walked by itself."""
        state = self.states[0]
        for block in range(1, len(self.states)):
            state = state if block in skipped else self.block(block, state)
        return cosine(state, self.states[-1])


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def as_printed(net, skipped):
    """Algorithm 1 of arXiv 2505.24196, state by state and with nothing left out; on a tie a block is skipped."""
    states, n_layers = net.states, len(net.states) - 1
    best, last = {(0, 0): states[0]}, {}
    for i in range(1, n_layers + 1):
        for j in range(min(i, skipped) + 1):
            ways = []
            if j > 0:
                ways.append((cosine(best[i - 1, j - 1], states[i]), 1, best[i - 1, j - 1]))
            if j < i:
                run = states[i] if j == 0 else net.block(i, best[i - 1, j])
                ways.append((cosine(run, states[i]) if j else np.inf, 0, run))
            _, last[i, j], best[i, j] = max(ways, key=lambda way: way[:2])
    path, j = [], skipped
    for i in range(n_layers, 0, -1):
        if last[i, j]:
            path.append(i)
            j -= 1
    return tuple(reversed(path))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("skipped", [1, 3, 6, 10, 11])
def test_the_programme_is_the_algorithm_as_printed(seed, skipped):
    net = ToyNet(11, seed)
    found = net.find(skipped, range(1, 12))
    assert found.skipped == as_printed(net, skipped)
    assert len(found.skipped) == skipped
    assert found.cosine == pytest.approx(net.cosine(found.skipped), abs=1e-12)
    assert found.layer_passes == len(net.calls) <= 11
    assert found.rows == sum(rows for _, rows in net.calls) <= 11 * skipped - skipped * (skipped + 1) / 2


def test_ways_by_brute_force_are_hardly_better():
    """The paper's check, on toy nets: as it looks at each depth alone it may miss the best way, but not by much."""
    n_layers, skipped = 12, 6
    gaps, ranks, chance = [], [], []
    for seed in range(20):
        net = ToyNet(n_layers, seed)
        found = net.find(skipped, range(1, n_layers + 1))
        ways = combinations(range(1, n_layers + 1), skipped)
        cosines = np.sort([net.cosine(way) for way in ways])[::-1]
        gaps.append(cosines[0] - found.cosine)
        ranks.append((cosines > found.cosine + 1e-12).mean())
        chance.append(cosines[0] - cosines.mean())
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 0.2 * np.mean(chance)
    assert np.mean(ranks) < 0.04


@pytest.mark.parametrize("seed", range(8))
def test_pinned_blocks_are_run_and_the_free_ones_searched_as_if_they_were_all(seed):
    net = ToyNet(9, seed)
    free = range(3, 9)
    found = net.find(4, free)
    assert set(found.skipped) <= set(free)
    assert found.cosine == pytest.approx(net.cosine(found.skipped), abs=1e-12)
    assert {block for block, _ in net.calls} <= set(range(3, 10))
    assert net.find(6, free).skipped == tuple(free)


def test_on_a_tie_the_block_is_skipped():
    net = ToyNet(6, 0)
    net.strengths[:] = 0
    net.states = [net.states[0]] * 7
    assert net.find(2, range(1, 7)).skipped == (5, 6)


# ---------------------------------------------------------------- on a target


def prefilled(target, tokens):
    cache = PreallocatedCache(target, len(tokens) + 20)
    layers = range(target.n_layers + 1)
    with torch.inference_mode(), capture_states(target, layers) as captured:
        target.model(torch.tensor([tokens]), cache=cache, use_cache=True)
        return cache, torch.stack([captured[layer][0, -1] for layer in layers])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_together_choose_what_rows_alone_choose(tiny_target, family, seed):
    target = tiny_target(family, layers=10, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 200, (9,), generator=generator).tolist()
    cache, states = prefilled(target, tokens)
    free = frozenset(range(1, 11))
    for skipped in (2, 5, 8):
        with torch.inference_mode(), rows_at_last_token(target, cache, skipped) as rows:
            together = find_path(states, rows.run, skipped, free)
        with torch.inference_mode(), rows_at_last_token(target, cache, 1) as rows:

            def one_by_one(block, given, rows=rows):
                return torch.cat([rows.run(block, row[None]) for row in given])

            alone = find_path(states, one_by_one, skipped, free)
        assert together.skipped == alone.skipped
        assert together.cosine == pytest.approx(alone.cosine, abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_the_cosine_is_that_of_running_the_last_token_without_these_blocks(tiny_target, family):
    target = tiny_target(family, layers=8)
    cache, states = prefilled(target, PROMPT)
    with torch.inference_mode(), rows_at_last_token(target, cache, 4) as rows:
        found = find_path(states, rows.run, 4, frozenset(range(1, 9)))
    cache.crop_to(len(PROMPT) - 1)  # the last token, run again with the full model's keys before it
    without = skip_layers(target, Skipped.blocks(found.skipped))
    with without, torch.inference_mode(), capture_states(target, [8]) as captured, cache.session():
        place = torch.tensor([[len(PROMPT) - 1]])
        target.model(torch.tensor([PROMPT[-1:]]), position_ids=place, cache=cache, use_cache=True)
    again = captured[8][0, 0]
    assert found.cosine == pytest.approx(cosine(again.double().numpy(), states[-1].double().numpy()), abs=1e-4)


def clasp(target, skipped=3, length=4, threshold=0.0, interval=1, free=None):
    free = frozenset(free or range(1, target.n_layers + 1))
    return ClaspDrafter(target, "clasp", Chain(length, threshold), skipped, free, interval)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_greedy_answers_are_plain_decodings(tiny_target, family):
    target = tiny_target(family, vocabulary=VOCABULARY)
    answer = decode(target, clasp(target))
    assert answer.tokens == generate(target, PROMPT, 24)
    assert all(cycle.layer_forwards == 3 * cycle.draft_forwards for cycle in answer.cycles)
    assert all(cycle.skipped_attention == cycle.skipped_mlp for cycle in answer.cycles)
    assert all(len(cycle.skipped_mlp) == 3 for cycle in answer.cycles)
    assert all(cycle.search_rows >= cycle.search_layer_forwards > 0 for cycle in answer.cycles)
    assert all(-1 <= cycle.search_score <= 1 for cycle in answer.cycles)


def test_blocks_are_chosen_anew_every_so_many_verifications_and_in_every_turn(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = clasp(target, interval=3)
    for _ in range(2):
        looked = [cycle.search_rows > 0 for cycle in decode(target, drafter).cycles]
        assert looked == [place % 3 == 0 for place in range(len(looked))]


def test_a_chain_ends_with_the_first_unlikely_token(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    free = decode(target, clasp(target, length=5))
    assert {cycle.drafted for cycle in free.cycles} == {5}
    lengths = [cycle.drafted for cycle in decode(target, clasp(target, length=5, threshold=0.6)).cycles]
    assert set(lengths) <= set(range(1, 6))
    assert min(lengths) < 5
    assert {cycle.drafted for cycle in decode(target, clasp(target, length=5, threshold=1.0)).cycles} == {1}


def test_a_full_model_that_drafts_for_itself_is_always_accepted(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = SkippingDrafter(target, "nothing skipped", Chain(4, 0.0), Skipped())
    answer = decode(target, drafter, budget=26)
    assert [cycle.accepted for cycle in answer.cycles] == [4] * 5
    assert {cycle.layer_forwards for cycle in answer.cycles} == {4 * target.n_layers}


def test_layers_are_skipped_in_drafting_and_in_nothing_else(tiny_target):
    """Without the gap that skipping leaves the first drafted token would be the target's own."""
    target = tiny_target(vocabulary=VOCABULARY, layers=8)
    text = endless(target)
    drafter = clasp(target, skipped=7)
    passes = TargetPasses(target, 80, drafter.rows)
    answer = speculate(passes, drafter, PROMPT, 24, GREEDY, torch.Generator())
    assert answer.tokens == text[len(PROMPT) :][:24]
    assert any(cycle.accepted == 0 for cycle in answer.cycles)
