"""SWIFT: its trials are one stream, its matchness is what it says, and a killed run continues as if it had not been."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from speclayers.config import RivalConfig
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.baseline import decode_questions
from speclayers.decoding.memory import shards_of
from speclayers.decoding.shards import Shards, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.drafting.rival import build_rival
from speclayers.drafting.sublayers import BayesianSearch
from speclayers.drafting.swift_search import Rules, SwiftSearch
from speclayers.errors import UserError
from speclayers.names import RivalName
from speclayers.tables import BASELINE
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.skipping import Skipped, skip_layers
from tests.unit.test_acceptance import CHECKED, QUESTIONS, SPEC
from tests.unit.test_loop import PROMPT, VOCABULARY, decode, generate

RULES = Rules(skips=4, bayes_interval=3, enough=0.9, patience=20, trials=100)


def swift(target, seed=0, length=5, **options):
    defaults = {"threshold": 0.0, "window": 4, "branches": False}
    config = RivalConfig(name="swift", draft_length=length, options=defaults | options)
    return build_rival(config, target, RivalName("swift", None, seed), {})


# ---------------------------------------------------------------- the search


def told(scores, seed=0, rules=RULES):
    search, sets = SwiftSearch(range(2, 8), rules, seed), []
    for score in scores:
        sets.append(search.propose())
        search.tell(score)
    return search, sets


def test_every_so_manieth_trial_is_bayesian_and_all_skip_as_much(monkeypatch):
    asked = []
    ask = BayesianSearch.ask
    monkeypatch.setattr(BayesianSearch, "ask", lambda self: asked.append(len(self._study.trials)) or ask(self))
    scores = [0.1, 0.4, 0.2, 0.4, 0.5, 0.3, 0.5, 0.1, 0.2]
    search, sets = told(scores)
    assert [trials % 3 for trials in asked] == [2, 0, 1]  # as each one asked for is counted there, too
    assert len(asked) == 3
    assert all(len(found.attention) + len(found.mlp) == 4 for found in sets)
    assert all(found.attention | found.mlp <= set(range(2, 8)) for found in sets)
    assert any(found.parts for found in sets)
    assert search.best == sets[4]
    assert SwiftSearch(range(2, 8), RULES, 0).best == Skipped.blocks([2, 4, 6])
    assert told(scores)[1] == sets
    assert told(scores, seed=1)[1] != sets


def test_the_scores_alone_bring_a_search_back():
    scores = [0.1, 0.4, 0.2, 0.4, 0.5, 0.3, 0.5]
    search, _ = told(scores)
    other = told([0.8, 0.7])[0]
    other.recall(scores)
    assert (other.best, other.scores) == (search.best, search.scores)
    for score in (0.6, 0.2, 0.7, 0.1):
        assert other.propose() == search.propose()
        other.tell(score)
        search.tell(score)
    other.recall([])
    assert (other.best, other.scores) == (Skipped.blocks([2, 4, 6]), [])


def test_better_sets_are_found_than_by_chance():
    """A made-up matchness that grows with every part skipped of block 5, 6 and 7."""
    rules = RULES._replace(skips=6, bayes_interval=2, trials=400, patience=400, enough=1.0)
    search = SwiftSearch(range(1, 13), rules, 0)
    scores = {0: [], 1: []}
    for number in range(200):
        found = search.propose()
        score = len(found.attention & {5, 6, 7}) / 6 + len(found.mlp & {5, 6, 7}) / 6
        search.tell(score)
        scores[number % 2].append(score)
    assert sum(scores[1][-30:]) > 1.5 * sum(scores[0][-30:])


@pytest.mark.parametrize(
    ("rules", "scores", "trials"),
    [
        ({}, [0.5, 0.91, 0.1], 2),
        ({"enough": 0.5}, [0.5, 0.51, 0.1], 2),
        ({"patience": 3}, [0.1, 0.5, 0.5, 0.4, 0.3, 0.6], 5),
        ({"trials": 4}, [0.1, 0.2, 0.3, 0.4, 0.5], 4),
        ({"trials": 0}, [0.1], 0),
    ],
)
def test_the_search_ends(rules, scores, trials):
    search, done = SwiftSearch(range(2, 8), RULES._replace(**rules), 0), 0
    for score in scores:
        if not search.ended:
            search.propose()
            search.tell(score)
            done += 1
    assert done == trials
    assert search.ended


# ---------------------------------------------------------------- the drafter


def matchness(target, prompt, answer, window, skipped):
    """What a set foretells: the prompt run in full, the answer without the set."""
    cache = PreallocatedCache(target, 100)
    with torch.inference_mode():
        target.model(torch.tensor([prompt]), cache=cache, use_cache=True)
        with skip_layers(target, skipped):
            logits = target.model(
                torch.tensor([answer[:window]]),
                position_ids=torch.arange(len(prompt), len(prompt) + window)[None],
                cache=cache,
                use_cache=True,
            ).logits[0]
    return sum(a == b for a, b in zip(logits.argmax(-1).tolist(), answer[1:], strict=False)) / window


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_greedy_answers_are_plain_decodings_and_matchness_is_that_of_the_set(tiny_target, family):
    target = tiny_target(family, vocabulary=VOCABULARY)
    drafter = swift(target, seed=2, length=1, share=0.8, window=5, enough=1.0)
    tried, propose = [], drafter._trials.propose
    drafter._trials.propose = lambda: tried.append(propose()) or tried[-1]
    answer = decode(target, drafter)
    assert answer.tokens == generate(target, PROMPT, 24)
    scores = [cycle.search_score for cycle in answer.cycles if cycle.search_score is not None]
    assert len(scores) > 3
    assert scores == [pytest.approx(matchness(target, PROMPT, answer.tokens, 5, skipped)) for skipped in tried]
    assert min(scores) < 1
    for cycle in answer.cycles:
        searched = cycle.search_score is not None
        assert cycle.search_layer_forwards == (target.n_layers - 3 if searched else 0)  # without 6 of 8 parts
        assert cycle.search_rows == (5 * (target.n_layers - 3) if searched else 0)


def test_a_set_is_tried_once_there_is_enough_text_and_the_best_one_drafts(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = swift(target, interval=2, enough=1.0)
    cycles = decode(target, drafter, budget=40).cycles
    verified = 0
    for number, cycle in enumerate(cycles):
        assert (cycle.search_score is not None) == (verified > 5 and number % 2 == 0)
        verified += cycle.emitted
    assert cycles[0].skipped_mlp == cycles[0].skipped_attention == [2, 4]
    better = max((c for c in cycles if c.search_score), key=lambda cycle: cycle.search_score)
    assert cycles[-1].skipped_mlp == better.skipped_mlp
    assert 1 not in cycles[-1].skipped_mlp
    ended = swift(target, trials=0)
    assert all(cycle.search_score is None for cycle in decode(target, ended, budget=40).cycles)


def test_candidates_beside_the_chain_take_what_room_it_leaves(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    chains, trees = (swift(target, length=12, threshold=0.5, branches=b, trials=0) for b in (False, True))
    short, wide = decode(target, chains, budget=60), decode(target, trees, budget=60)
    assert short.tokens == wide.tokens == generate(target, PROMPT, 60)
    assert len(wide.cycles) < len(short.cycles)
    assert {cycle.drafted for cycle in short.cycles} != {12}
    assert all(cycle.depth == cycle.draft_forwards <= cycle.drafted <= 12 for cycle in wide.cycles)


def test_the_likeliest_candidates_come_first_and_none_twice(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = swift(target, length=9, threshold=0.99, branches=True, trials=0)
    proposals, propose = [], drafter.propose
    drafter.propose = lambda: proposals.append(propose()) or proposals[-1]
    decode(target, drafter)
    for proposal in proposals:
        forwards, parents = proposal.forwards, proposal.parents.tolist()
        assert parents[: forwards + 1] == list(range(-1, forwards))
        assert set(parents[forwards + 1 :]) <= set(range(forwards))
        edges = list(zip(parents, proposal.tokens.tolist(), strict=True))
        assert len(set(edges)) == len(edges) == len(proposal.probabilities)
        for parent in range(forwards):
            shares = [p for p, q in zip(proposal.probabilities.tolist(), parents, strict=True) if q == parent]
            assert all(a >= b for a, b in pairwise(shares))
            most = next(n for least, n in ((0.95, 3), (0.8, 5), (0.5, 8), (0.0, 10)) if shares[0] > least)
            assert len(shares) <= most
    assert {len(proposal.tokens) for proposal in proposals} == {10}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"threshold": -0.5}, r"rivals.swift.options.threshold: .*greater than or equal to 0, found -0.5"),
        ({"enough": 1.5}, r"rivals.swift.options.enough: .*less than or equal to 1, found 1.5"),
        ({"interval": 0}, r"rivals.swift.options.interval: .*greater than or equal to 1, found 0"),
        ({"bayes_interval": 0}, r"rivals.swift.options.bayes_interval: .*greater than or equal to 1"),
        ({"window": 0}, r"rivals.swift.options.window: .*greater than or equal to 1"),
        ({"share": 1.0}, r"rivals.swift.options.share: .*less than 1"),
        ({"pinned_last": 5}, r"rivals.swift.options.pinned_first: with pinned_last 6 blocks are pinned; llama-0 has 6"),
    ],
)
def test_what_cannot_be_built_is_told(tiny_target, options, told):
    with pytest.raises(UserError, match=told):
        swift(tiny_target(), **options)


# ---------------------------------------------------------------- from question to question


@pytest.fixture
def asked(tiny_target, tmp_path):
    """A target and the benchmark's turns, answered plainly."""
    target = tiny_target(vocabulary=160)
    target = dataclasses.replace(target, manifest=target.manifest.model_copy(update={"stop_ids": [0]}))
    rows = decode_questions(target, QUESTIONS, CHECKED, Shards(tmp_path / "greedy", "key"))
    return target, read_turns(to_frame(rows["baseline"], BASELINE))


def measured(target, questions, work, drafter=None, temperature=0.0):
    drafter = drafter or swift(target, window=2, length=3)
    return measure_acceptance(target, drafter, questions, SPEC, temperature, shards_of(drafter, work, "key"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_killed_run_continues_as_if_it_had_not_been(asked, tmp_path, monkeypatch, temperature):
    target, questions = asked
    whole = measured(target, questions, tmp_path / "whole", temperature=temperature)
    measured(target, questions[:2], tmp_path / "killed", temperature=temperature)
    again = measured(target, questions, tmp_path / "killed", temperature=temperature)
    assert again == whole
    searched = [cycle["question_id"] for cycle in whole["cycles"] if cycle["search_score"] is not None]
    assert set(searched) == {3, 8, 9}
    monkeypatch.setattr("speclayers.drafting.swift_search.SwiftSearch.recall", lambda *_: None)
    measured(target, questions[:2], tmp_path / "forgetful", temperature=temperature)
    assert measured(target, questions, tmp_path / "forgetful", temperature=temperature) != whole


def test_what_is_learnt_stays_so_that_counts_depend_on_the_order_and_answers_do_not(asked, tmp_path):
    target, questions = asked
    there = measured(target, questions, tmp_path / "there")
    back = measured(target, questions[::-1], tmp_path / "back")
    outputs = [{(t["question_id"], t["turn"]): t["output_ids"] for t in rows["turns"]} for rows in (there, back)]
    assert outputs[0] == outputs[1]
    skipped = [{(c["question_id"], tuple(c["skipped_mlp"])) for c in rows["cycles"]} for rows in (there, back)]
    assert skipped[0] != skipped[1]
