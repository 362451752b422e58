"""Speculative decoding changes nothing of what is decoded, whatever is drafted, and counts what it does."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from speclayers.config import SamplingLimits
from speclayers.decoding import loop, verify
from speclayers.decoding.loop import Cycle, cut, speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import GREEDY, Sampling, probabilities
from speclayers.decoding.verify import Verdict
from speclayers.drafting import eagle3
from speclayers.drafting.drafter import Verified
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.tree import TreeShape, shape_of
from speclayers.names import ShapeName
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.capture import capture_states
from tests.chi_square import p_value
from tests.drafters import FixedDrafter, MisplacingDrafter, OracleDrafter, RandomDrafter, RowsDrafter, SelfDrafter
from tests.heads import make_head

PROMPT = [5, 9, 33, 20, 41, 7, 60]
VOCABULARY = 64


def generate(target, prompt, budget):
    ids = torch.tensor([prompt])
    output = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, do_sample=False)
    return output[0, len(prompt) :].tolist()


def decode(target, drafter, budget=24, prompt=PROMPT, sampling=GREEDY, seed=0, spare=0):
    passes = TargetPasses(target, len(prompt) + budget + drafter.rows + spare, drafter.rows)
    return speculate(passes, drafter, prompt, budget, sampling, torch.Generator().manual_seed(seed))


def endless(target, prompt=PROMPT, length=40):
    """Return prompt and greedy continuation, from a target that never stops."""
    return [*prompt, *generate(target, prompt, length)]


def with_stop(target, stop_ids):
    return dataclasses.replace(target, manifest=target.manifest.model_copy(update={"stop_ids": stop_ids}))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("kind", ["random", "misplacing", "oracle"])
def test_greedy_output_is_plain_greedy_decoding_whatever_is_drafted(tiny_target, family, kind):
    target = tiny_target(family, vocabulary=VOCABULARY)
    text = endless(target)
    drafters = {
        "random": RandomDrafter(VOCABULARY),
        "misplacing": MisplacingDrafter(text, VOCABULARY),
        "oracle": OracleDrafter(text, VOCABULARY, decoys=2),
    }
    answer = decode(target, drafters[kind])
    assert answer.tokens == generate(target, PROMPT, 24)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_of_a_drafter_s_own_change_nothing_and_its_logits_are_the_targets(tiny_target, family):
    target = tiny_target(family, vocabulary=VOCABULARY)
    drafter = RowsDrafter(VOCABULARY)
    assert decode(target, drafter, budget=8).tokens == generate(target, PROMPT, 8)
    assert len({len(text) for text, _ in drafter.told}) > 4
    for text, logits in drafter.told:
        torch.testing.assert_close(logits, target.model(torch.tensor([text])).logits[0, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("skipped", [(), (0,), (1, 3)])
def test_drafting_with_the_targets_own_blocks_leaves_no_trace(tiny_target, skipped):
    target = tiny_target(vocabulary=VOCABULARY)
    answer = decode(target, SelfDrafter(target, skipped))
    assert answer.tokens == generate(target, PROMPT, 24)
    if not skipped:
        assert all(cycle.accepted == 3 for cycle in answer.cycles[:-1])


def test_rows_left_in_the_targets_cache_are_refused(tiny_target, monkeypatch):
    target = tiny_target(vocabulary=VOCABULARY)
    monkeypatch.setattr(PreallocatedCache, "session", lambda self: nullcontext())
    with pytest.raises(RuntimeError, match="toy left 3 rows in the target's cache"):
        decode(target, SelfDrafter(target), spare=9)


def test_a_perfect_drafter_is_accepted_to_full_depth(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    answer = decode(target, OracleDrafter(endless(target), VOCABULARY, depth=4, decoys=1), budget=26)
    assert [cycle.accepted for cycle in answer.cycles] == [4] * 5
    assert [cycle.emitted for cycle in answer.cycles] == [5] * 5
    assert not any(cycle.cut_by_budget for cycle in answer.cycles)
    assert {(cycle.drafted, cycle.depth) for cycle in answer.cycles} == {(8, 4)}
    assert {(cycle.draft_forwards, cycle.layer_forwards) for cycle in answer.cycles} == {(1, 2)}


def wrong_parent(patch):
    def verify_as_chain(self, tokens, offsets, sees):
        return verify_tree(self, tokens, torch.arange(len(tokens)), torch.ones_like(sees).tril())

    verify_tree = TargetPasses.verify
    patch.setattr(TargetPasses, "verify", verify_as_chain)


def stale_cache_row(patch):
    patch.setattr(PreallocatedCache, "keep_rows", lambda self, start, rows: self.crop_to(start + len(rows)))


def missing_bonus(patch):
    patch.setattr(loop, "cut", lambda emitted, left, stops: cut(emitted[:-1] or emitted, left, stops))


def bonus_of_the_wrong_node(patch):
    def verify_greedy(tokens, parents, ancestors, logits):
        verdict = verify.verify_greedy(tokens, parents, ancestors, logits)
        return Verdict(verdict.path, int(logits[0].argmax()))

    patch.setattr(loop, "verify_greedy", verify_greedy)


@pytest.mark.parametrize("plant", [wrong_parent, stale_cache_row, missing_bonus, bonus_of_the_wrong_node])
def test_planted_bugs_change_the_output(tiny_target, monkeypatch, plant):
    target = tiny_target(vocabulary=VOCABULARY)
    text = endless(target)
    drafters = [OracleDrafter(text, VOCABULARY, decoys=2), MisplacingDrafter(text, VOCABULARY)]
    expected = text[len(PROMPT) :][:24]
    assert all(decode(target, drafter).tokens == expected for drafter in drafters)
    plant(monkeypatch)
    assert any(decode(target, drafter, spare=100).tokens != expected for drafter in drafters)


def test_a_stop_token_inside_an_accepted_path_ends_the_answer(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    text = endless(target)
    continuation = text[len(PROMPT) :]
    place = next(i for i in range(2, 20) if (i - 1) % 5 not in (4,) and continuation[i] not in continuation[:i])
    stopping = with_stop(target, [continuation[place]])
    answer = decode(stopping, OracleDrafter(text, VOCABULARY, depth=4))
    assert answer.tokens == continuation[: place + 1]
    last = answer.cycles[-1]
    assert last.accepted == last.emitted == (place - 1) % 5 + 1
    assert not last.cut_by_budget


def test_an_answer_that_stops_at_once_has_no_cycles(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    first = generate(target, PROMPT, 1)
    answer = decode(with_stop(target, first), RandomDrafter(VOCABULARY))
    assert answer == (first, [])


@pytest.mark.parametrize(("budget", "emitted", "flagged"), [(11, [5, 5], False), (13, [5, 5, 2], True), (1, [], False)])
def test_a_cycle_cut_by_the_budget_is_flagged(tiny_target, budget, emitted, flagged):
    target = tiny_target(vocabulary=VOCABULARY)
    text = endless(target)
    answer = decode(target, OracleDrafter(text, VOCABULARY, depth=4), budget=budget)
    assert answer.tokens == text[len(PROMPT) :][:budget]
    assert [cycle.emitted for cycle in answer.cycles] == emitted
    assert [cycle.cut_by_budget for cycle in answer.cycles] == [False] * (len(emitted) - 1) + [flagged] * bool(emitted)


@pytest.mark.parametrize(
    ("emitted", "left", "expected"),
    [
        ([3, 4, 5], 9, ([3, 4, 5], False)),
        ([3, 4, 5], 3, ([3, 4, 5], False)),
        ([3, 4, 5], 2, ([3, 4], True)),
        ([3, 0, 5], 9, ([3, 0], False)),
        ([3, 0, 5], 2, ([3, 0], False)),
        ([3, 4, 0], 2, ([3, 4], True)),
        ([0, 4, 5], 1, ([0], False)),
    ],
)
def test_an_answer_ends_at_the_stop_token_or_the_budget(emitted, left, expected):
    assert cut(emitted, left, frozenset({0})) == expected


def test_mean_accepted_tokens_of_a_hand_made_run(tiny_target):
    """Prefill gives one token that no cycle counts; every cycle counts the target's own token."""
    target = tiny_target(vocabulary=VOCABULARY)
    text = endless(target)
    good = OracleDrafter(text, VOCABULARY, depth=2)
    bad = FixedDrafter([], [])

    class Alternating(OracleDrafter):
        cycle = 0

        def candidates(self):
            self.cycle += 1
            return super().candidates() if self.cycle % 2 else ([], [])

    answer = decode(target, Alternating(text, VOCABULARY, depth=2), budget=10)
    assert [(c.drafted, c.accepted, c.emitted, c.cut_by_budget) for c in answer.cycles] == [
        (4, 2, 3, False),
        (0, 0, 1, False),
        (4, 2, 3, False),
        (0, 0, 1, False),
        (4, 2, 1, True),
    ]
    whole = [cycle.emitted for cycle in answer.cycles if not cycle.cut_by_budget]
    assert sum(whole) / len(whole) == 2.0
    assert sum(cycle.emitted for cycle in answer.cycles) == len(answer.tokens) - 1 == 9
    assert [c.emitted for c in decode(target, good, budget=10).cycles] == [3, 3, 3]
    assert decode(target, bad, budget=3).cycles == [Cycle(0, 0, 1, False, 1, 2, 0)] * 2


# ---------------------------------------------------------------- sampling through the whole loop

SMALL = 10
WARM = Sampling(1.5)
NARROW = Sampling(1.5, SamplingLimits(top_k=6, top_p=0.8))


def next_tokens(target, text, sampling):
    with torch.inference_mode():
        return probabilities(target.model(torch.tensor([text])).logits[0, -1], sampling)


def exact_endings(target, prompt, sampling):
    """Probability of the second and third token of an answer: those that cycles emit."""
    first = next_tokens(target, prompt, sampling)
    table = torch.zeros(SMALL, SMALL, dtype=torch.float64)
    for a in range(SMALL):
        second = next_tokens(target, [*prompt, a], sampling)
        for b in range(SMALL):
            table[b] += first[a] * second[b] * next_tokens(target, [*prompt, a, b], sampling)
    return table.numpy()


def endings_p_value(target, exact, sampling, samples, drafter=None):
    likely = exact.sum(1).argsort()[::-1][:4].tolist()
    drafter = drafter or FixedDrafter([*likely, *likely[::-1]], [0, 0, 0, 0, 1, 1, 2, 2])
    counts = np.zeros_like(exact)
    for seed in range(samples):
        counts[tuple(decode(target, drafter, 3, [4, 7, 2], sampling, seed).tokens[1:])] += 1
    return p_value(counts, exact)


@pytest.mark.parametrize("sampling", [WARM, NARROW], ids=str)
def test_sampled_answers_are_distributed_as_the_targets(tiny_target, monkeypatch, sampling):
    target = with_stop(tiny_target(vocabulary=SMALL, layers=1), [])
    exact = exact_endings(target, [4, 7, 2], sampling)
    assert endings_p_value(target, exact, sampling, 400) > 0.01

    def without_ruling_out(children, ids, left, generator):
        return next((c for c in children if float(torch.rand((), generator=generator)) < float(left[ids[c]])), None)

    monkeypatch.setattr(verify, "_first_accepted", without_ruling_out)
    assert endings_p_value(target, exact, sampling, 400) < 1e-6


def test_the_same_seed_samples_the_same_answer(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    answers = [
        decode(target, RandomDrafter(VOCABULARY, seed=3), sampling=Sampling(0.9), seed=seed) for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1]
    assert answers[0].tokens != answers[2].tokens


# ---------------------------------------------------------------- the EAGLE-3 drafter


class Shadowed(OracleDrafter):
    """Proposes the right tokens while an EAGLE-3 drafter follows what is accepted; calls `check` at every cycle."""

    def __init__(self, text, drafter, check):
        super().__init__(text, VOCABULARY, depth=3)
        self.drafter, self.check = drafter, check
        self.layers = drafter.layers

    def start(self, cache):
        super().start(cache)
        self.drafter.start(cache)

    def observe(self, verified):
        super().observe(verified)
        self.drafter.observe(verified)

    def propose(self):
        self.check(self.drafter, self.sequence)
        return super().propose()


def fresh_states(target, layers, tokens):
    with capture_states(target, layers) as captured, torch.inference_mode():
        target.model(torch.tensor([tokens]))
        return {layer: captured[layer][0] for layer in layers}


@pytest.mark.parametrize("layers", [(1, 3, 5), (0, 6), (4,)])
def test_incremental_drafting_equals_drafting_from_scratch(tiny_target, layers):
    target = tiny_target(vocabulary=VOCABULARY)
    shape = TreeShape(nodes=20, depth=4, top_k=4)
    head = make_head(target, layers, draft_vocabulary=32)
    lengths = []

    def check(drafter, sequence):
        proposal = drafter.propose()
        fresh = Eagle3Drafter(target, head, shape)
        fresh.start(PreallocatedCache(target, 200))
        *verified, root = sequence
        fresh.observe(Verified(torch.tensor(verified), fresh_states(target, layers, verified), root))
        again = fresh.propose()
        assert torch.equal(proposal.tokens, again.tokens)
        assert torch.equal(proposal.parents, again.parents)
        length = drafter._cache.length
        assert length == fresh._cache.length == len(verified)
        ours, theirs = drafter._cache.keys[:, :, :length], fresh._cache.keys[:, :, :length]
        assert torch.allclose(ours, theirs, atol=1e-4)
        lengths.append(length)

    decode(target, Shadowed(endless(target), Eagle3Drafter(target, head, shape), check))
    assert len(lengths) == 6


def test_tree_drafting_equals_drafting_each_path_alone(tiny_target, monkeypatch):
    target = tiny_target("qwen3", vocabulary=VOCABULARY)
    head = make_head(target, draft_vocabulary=32)
    drafter = Eagle3Drafter(target, head, TreeShape(nodes=20, depth=4, top_k=3))
    states = fresh_states(target, drafter.layers, PROMPT)
    paths, seen = [[]], []

    def recording(first, expand, shape):
        def expand_and_keep(beams):
            pairs = zip(beams.parents.tolist(), beams.tokens.tolist(), strict=True)
            paths[:] = [[*paths[parent], token] for parent, token in pairs]
            scores = expand(beams)
            seen.extend(zip(map(tuple, paths), scores, strict=True))
            return scores

        return build_tree(first, expand_and_keep, shape)

    build_tree = eagle3.build_tree
    monkeypatch.setattr(eagle3, "build_tree", recording)
    drafter.start(PreallocatedCache(target, 100))
    drafter.observe(Verified(torch.tensor(PROMPT), states, root=11))
    proposal = drafter.propose()
    assert len(seen) == 9
    for path, scores in seen:
        assert torch.allclose(scores, chain_scores(target, head, states, path), atol=1e-4)
    assert proposal.forwards == proposal.layer_forwards == 4
    assert set(proposal.tokens[1:].tolist()) <= set(head.draft_ids.tolist())


def chain_scores(target, head, states, path):
    """Log-probabilities behind one drafted path, slot by slot and without a tree."""
    cache = head.new_cache(50)
    fused = head.fuse(torch.cat([states[layer] for layer in head.config.layers], dim=-1))
    following = torch.tensor([*PROMPT[1:], 11])
    output = head(fused[None], target.embed(following)[None], torch.arange(len(PROMPT))[None], None, cache)[:, -1:]
    for depth, token in enumerate(path):
        embedded = target.embed(head.target_ids(torch.tensor([[token]])))
        output = head(output, embedded, torch.tensor([[len(PROMPT) + depth]]), None, cache)
    return head.logits(output)[0, 0].log_softmax(-1)


def test_eagle3_drafts_chains_too(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    shape = shape_of(ShapeName(6, chain=True), depth=2, top_k=9)
    answer = decode(target, Eagle3Drafter(target, make_head(target, draft_vocabulary=64), shape))
    assert answer.tokens == generate(target, PROMPT, 24)
    assert {(cycle.drafted, cycle.depth, cycle.draft_forwards) for cycle in answer.cycles} == {(5, 5, 5)}


def test_eagle3_decodes_what_plain_decoding_does(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = Eagle3Drafter(target, make_head(target, draft_vocabulary=64), TreeShape(30, 5, 8))
    answer = decode(target, drafter)
    assert answer.tokens == generate(target, PROMPT, 24)
    assert all(cycle.drafted == 29 and cycle.draft_forwards == 5 for cycle in answer.cycles)
