"""The race keeps its books, spends its budgets to the token, and survives being killed."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from speclayers.config import DraftConfig, Runtime, ScreenConfig, SplitConfig
from speclayers.corpus.prompts import Prompt
from speclayers.corpus.responses import generate_responses
from speclayers.drafting.halving import Judged, best, plan_rungs, race
from speclayers.drafting.screening import (
    candidates,
    choose_responses,
    count_correct,
    held_out_length,
    screen,
    winner,
)
from speclayers.drafting.training import Trainer
from speclayers.drafting.training_data import TrainingData, sequence_order
from speclayers.drafting.ttt import ttt_loss
from speclayers.errors import UserError
from speclayers.specs import ScreenSpec
from speclayers.tables import CORPUS, SCREENING, SELECTIONS, read_table, write_table
from tests.drafts import ORIGIN, make_corpus, make_head, make_store

SCRIPTS = Path(__file__).parents[2] / "scripts"
DRAFT = {"vocabulary": 256, "ttt_steps": 3, "warmup_steps": 2, "checkpoint_every": 2}
HELD_OUT = [5, 7, 8]
"""Of the first twelve prompts, by the hash of their ids."""


def selections(**sets):
    rows = [
        {"selector": name.split("_")[0], "k": len(layers), "seed": 0, "layers": list(layers), "trained": False}
        for name, layers in sets.items()
    ]
    frame = pd.DataFrame(rows).assign(score=1.0, runner_up="[]", stability="{}", reason="", trace="[]")
    return frame.assign(half_sample_set=frame["layers"])


def spec_of(share=0.25, **settings):
    draft = DraftConfig(**DRAFT, held_out=share)
    return ScreenSpec(runtime=Runtime(), draft=draft, screen=ScreenConfig(**{"budget": 40, **settings}))


# ---------------------------------------------------------------- the books


@pytest.mark.parametrize(
    ("count", "keep", "expected"),
    [
        (8, 0.5, [(0, 8, 4, 100), (1, 4, 2, 200), (2, 2, 1, 400)]),
        (9, 1 / 3, [(0, 9, 3, 100), (1, 3, 1, 300)]),
        (5, 0.5, [(0, 5, 2, 100), (1, 2, 1, 200)]),
        (3, 0.1, [(0, 3, 1, 100)]),
        (3, 0.9, [(0, 3, 2, 100), (1, 2, 1, 111)]),
        (1, 0.5, []),
    ],
)
def test_rungs_of_a_race(count, keep, expected):
    assert plan_rungs(count, 100, keep) == expected


SCORES = {  # length of each layer in rungs 0, 1 and 2; layer 6 starts late, layer 2 starts early
    1: (1.1, 1.1, 1.1),
    2: (1.9, 1.2, 1.2),
    3: (1.5, 1.6, 1.7),
    4: (1.0, 1.0, 1.0),
    5: (1.6, 1.8, 1.8),
    6: (1.4, 1.9, 2.9),
    7: (1.7, 1.7, 1.6),
    8: (1.2, 1.2, 1.2),
}


def run_race(whole_curve=False):
    judged, dropped = [], []

    def judge(layers, rung):
        judged.append((layers[0], rung.number))
        return Judged(rung.budget, SCORES[layers[0]][rung.number], 0.0, 9.0)

    rungs = plan_rungs(8, 100, 0.5)
    results = race([(layer,) for layer in SCORES], rungs, judge, lambda layers: dropped.append(layers[0]), whole_curve)
    return results, judged, dropped


def test_the_best_half_of_each_rung_goes_on_and_nobody_else_is_trained():
    results, judged, dropped = run_race()
    by_rung = [[layer for layer, rung in judged if rung == number] for number in range(3)]
    assert by_rung == [[1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 5, 7], [5, 7]]
    kept = [{result.layers[0] for result in results if result.rung.number == n and result.kept} for n in range(3)]
    assert kept == [{2, 3, 5, 7}, {5, 7}, {5}]
    assert dropped == [1, 4, 6, 8, 2, 3, 7]
    assert all(result.in_race for result in results)


def test_the_whole_curve_is_trained_without_changing_the_race():
    results, judged, dropped = run_race(whole_curve=True)
    assert len(judged) == 24
    assert [r.layers for r in results if r.kept] == [r.layers for r in run_race()[0] if r.kept]
    late = [r for r in results if r.layers == (6,)]
    assert [(r.in_race, r.kept) for r in late] == [(True, False), (False, False), (False, False)]
    assert late[-1].judged.length == 2.9  # it would have won, had it been kept: the curve shows it, the race does not
    assert dropped == []


def test_a_tie_goes_to_fewer_and_lower_layers():
    assert best({(1, 2): 1.5, (4,): 1.5, (3,): 1.5, (9,): 1.6}, 3) == [(9,), (3,), (4,)]


def test_candidates_are_single_layers_and_every_selectors_set():
    chosen = selections(elsi=(1, 3), random=(2,), lens=(2,), pinned=(0,), random_1=(1, 3))
    assert candidates(chosen, None, 3) == {
        (0,): "pinned",
        (1,): "single layer",
        (2,): "single layer, lens, random",
        (3,): "single layer",
        (1, 3): "elsi, random",
    }
    assert list(candidates(chosen, [3], 3)) == [(0,), (2,), (3,), (1, 3)]


@pytest.mark.parametrize(
    ("layers", "sets", "told"),
    [
        ([2, 7], {"elsi": (1,)}, "screen.layers: layer 7 does not exist; the model has layers 0 to 6"),
        ([2], {"elsi": (2,)}, "screen.layers: there is one candidate; expected two or more"),
    ],
)
def test_candidates_that_cannot_race_are_refused(layers, sets, told):
    with pytest.raises(UserError, match=told):
        candidates(selections(**sets), layers, 6)


# ---------------------------------------------------------------- what judges


def test_held_out_length_by_hand():
    correct, slots = np.array([[2, 1], [1, 0]]), np.array([[2, 2], [2, 1]])
    value, low, high = held_out_length(correct, slots)
    assert value == pytest.approx(1 + 3 / 4 + 3 / 4 * 1 / 3)
    without = np.array([1 + 1 / 2 + 0, 1 + 1 + 1 * 1 / 2])
    half = 12.706204736 * np.sqrt(((without - without.mean()) ** 2).sum() / 2)  # two equal blocks, t with one degree
    assert (value - low, high - value) == pytest.approx((half, half))


def test_a_step_that_no_slot_reaches_ends_the_length():
    value, *_ = held_out_length(np.array([[1, 0], [1, 0]]), np.array([[2, 0], [2, 0]]))
    assert value == 1.5


def test_correct_tokens_are_counted_by_prompt(tiny_target, tmp_path):
    target = tiny_target()
    prompts = [Prompt("a", "qa", ("One?", "Two?")), Prompt("b", "qa", ("Three?",)), Prompt("c", "qa", ("4?", "5?"))]
    corpus = generate_responses(target, prompts, SplitConfig(max_new_tokens=12), 4, tmp_path / "answers")
    store = make_store(tmp_path, target, corpus, [1, 3, 5])
    data = TrainingData(target, corpus, store, [1, 3, 5], torch.arange(0, 256, 2), 3)
    head = make_head(target)
    correct, slots = count_correct(head, data)
    lengths = [data.response_tokens(index) for index in range(5)]
    assert slots[:, 0].tolist() == [lengths[0] + lengths[1], lengths[2], lengths[3] + lengths[4]]
    batch = data.batch(data.read(range(5)))
    _, metrics = ttt_loss(head, batch.sequences, batch.targets, 1.0)
    assert correct.sum(axis=0).tolist() == pytest.approx([m.accuracy * m.slots for m in metrics])
    assert slots.sum(axis=0).tolist() == [m.slots for m in metrics]


def test_held_out_responses_judge_and_as_many_others_follow_as_the_budget_asks(tiny_target):
    target, corpus = tiny_target(), make_corpus(12)
    corpus.at[1, "input_ids"] = corpus["input_ids"][1][: corpus["response_start"][1]]  # no response at all
    tokens = [len(ids) - start for ids, start in zip(corpus["input_ids"], corpus["response_start"], strict=True)]
    assert tokens[:7] == [12, 0, 12, 13, 12, 13, 12]

    def chosen(budget, **settings):
        found = choose_responses(target, corpus, spec_of(budget=30, **settings), budget)["sample_id"]
        return [int(name[1:]) for name in found]

    assert chosen(30) == [0, 2, 3, *HELD_OUT]  # 12 + 12 + 13 tokens reach 30
    assert chosen(37, judged_prompts=2) == [0, 2, 3, 5, 7]
    assert chosen(38, judged_prompts=2) == [0, 2, 3, 4, 5, 7]
    assert chosen(10_000) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_prompts_judge_with_all_their_turns(tiny_target):
    target, spec = tiny_target(), spec_of(budget=30, judged_prompts=2)
    found = choose_responses(target, make_corpus(18, turns=2), spec, 37)["sample_id"]
    assert found.tolist() == ["s0", "s0/1", "s1", "s5", "s5/1", "s7", "s7/1"]
    with pytest.raises(UserError, match=r"draft\.held_out: 0\.25 holds out 1 of 6 training prompts; screening judges"):
        choose_responses(target, make_corpus(12, turns=2), spec, 37)  # two turns, but one prompt


# ---------------------------------------------------------------- the race for real


SETS = selections(eagle3=(2, 3, 5), elsi=(6,), random=(1, 4))


@pytest.fixture
def setting(tiny_target):
    """Target, corpus and the selectors' sets: eight candidates with the six single layers."""
    target = tiny_target(tied=False)
    with torch.no_grad():
        target.anatomy.lm_head.weight.mul_(8)  # else its best token is noise, and no candidate foresees any
    return target, make_corpus(12), SETS


def screened(setting, work, **settings):
    return screen(*setting, spec_of(**settings), ORIGIN, work)


def test_budgets_are_spent_to_the_token_and_the_table_is_whole(setting, tmp_path):
    table = screened(setting, tmp_path / "work")
    write_table(tmp_path / "screening.parquet", SCREENING, table, ORIGIN)
    table = read_table(tmp_path / "screening.parquet", SCREENING)
    assert table.groupby("rung").size().tolist() == [8, 4, 2]
    assert set(table["responses"]) == {len(HELD_OUT)}
    assert table.groupby("rung")["kept"].sum().tolist() == [4, 2, 1]
    assert table.groupby("rung")["budget"].unique().map(list).tolist() == [[40], [80], [160]]
    lengths = [
        len(ids) - start for ids, start in zip(setting[1]["input_ids"], setting[1]["response_start"], strict=True)
    ]
    learnt = [length for place, length in enumerate(lengths) if place not in HELD_OUT]
    for budget, group in table.groupby("budget"):
        order, seen = sequence_order(len(learnt), seed=0), 0
        while seen < budget:
            seen += sum(learnt[index] for index in islice(order, 2))
        assert set(group["tokens"]) == {seen}
    assert table["simulated_length"].between(1, 4).all()
    assert table["simulated_length"].nunique() > 4
    assert (table["ci_low"] <= table["simulated_length"]).all()
    assert (table["simulated_length"] <= table["ci_high"]).all()
    for number, group in table.groupby("rung"):
        going_on = set(group[group["kept"]]["candidate"])
        assert group[group["kept"]]["simulated_length"].min() >= group[~group["kept"]]["simulated_length"].max()
        assert number == 2 or set(table[table["rung"] == number + 1]["candidate"]) == going_on
    won = winner("m", table)
    assert won == {"model": "m", "layers": list(table[(table["rung"] == 2) & table["kept"]]["layers"].iloc[0])}


FEW = {"layers": [4, 6]}
"""Four candidates with the selectors' sets, in two rungs."""


def test_a_candidate_goes_on_as_if_it_had_never_paused(setting, tmp_path, monkeypatch):
    table = screened(setting, tmp_path / "work", **FEW)
    whole = []

    class Unpaused(Trainer):
        def __init__(self, head, data, draft, checkpoints, key):
            super().__init__(head, data, draft, tmp_path / "nowhere" / str(len(whole)), key)
            whole.append(self.step)

    monkeypatch.setattr("speclayers.drafting.screening.Trainer", Unpaused)
    assert screened(setting, tmp_path / "other", **FEW).equals(table)
    assert whole == [0] * 6


def killed_child(setting, folder):
    torch.set_num_threads(1)
    screened(setting, folder, **FEW)
    time.sleep(60)


@pytest.mark.parametrize("results", [1, 5])
def test_a_killed_screening_continues_to_the_same_table(setting, tmp_path, caplog, results):
    whole = screened(setting, tmp_path / "whole", **FEW)
    folder = tmp_path / "killed"
    child = multiprocessing.get_context("fork").Process(target=killed_child, args=(setting, folder))
    child.start()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*/judged/*.json"))) < results and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/judged/*.json")}
    assert results <= len(done) < 6, "it was to be killed in the middle"
    assert screened(setting, folder, **FEW).equals(whole)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    (left,), (same,) = (list(work.glob("*/checkpoints/*/step-*")) for work in (folder, tmp_path / "whole"))
    torch.testing.assert_close(load_file(left), load_file(same), rtol=0, atol=0, equal_nan=True)


def test_only_those_still_racing_keep_a_checkpoint(setting, tmp_path):
    table = screened(setting, tmp_path / "work", **FEW)
    won = table[(table["rung"] == 1) & table["kept"]]["candidate"].tolist()
    left = [path.name for path in (tmp_path / "work").glob("*/checkpoints/*")]
    assert left == won
    assert len(list((tmp_path / "work").glob("*/checkpoints/*/step-*"))) == 1


def test_held_out_conversations_are_never_learnt_from(setting, tmp_path, monkeypatch):
    target, _, sets = setting
    learnt = set()

    class Watched(Trainer):
        def __init__(self, head, data, *rest):
            super().__init__(head, data, *rest)
            learnt.update(reading.sample.prompt_id for reading in data.read(range(len(data))))

    monkeypatch.setattr("speclayers.drafting.screening.Trainer", Watched)
    table = screened((target, make_corpus(18, turns=2), sets), tmp_path / "work", budget=100, **FEW)
    assert learnt == {f"s{number}" for number in range(9) if number not in HELD_OUT}
    assert set(table["responses"]) == {len(HELD_OUT)}  # prompts, each of two turns
    assert np.isfinite(table[["ci_low", "ci_high"]].to_numpy()).all()


def test_the_whole_curve_reaches_every_budget(setting, tmp_path):
    table = screened(setting, tmp_path / "work", whole_curve=True, **FEW)
    singles = table[table["layers"].map(len) == 1]
    assert singles.groupby("budget")["candidate"].nunique().tolist() == [2, 2]
    plain = screened(setting, tmp_path / "plain", **FEW)
    assert table[table["in_race"]].reset_index(drop=True).equals(plain)
    assert not table[~table["in_race"]]["kept"].any()


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"budget": 20}, r"screen\.budget: 20 tokens are fewer than the 2[456] of the first step"),
        (
            {"share": 0.0},
            r"draft\.held_out: 0\.0 holds out 0 of 12 training prompts; screening judges on two or more",
        ),
        ({"layers": [9]}, r"screen\.layers: layer 9 does not exist; the model has layers 0 to 6"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_computed(setting, tmp_path, settings, told):
    with pytest.raises(UserError, match=told):
        screened(setting, tmp_path / "work", **settings)
    assert not (tmp_path / "work").exists()


def script(monkeypatch, folder, target, corpus, settings):
    write_table(folder / "corpus.parquet", CORPUS, corpus, ORIGIN)
    write_table(folder / "selections.parquet", SELECTIONS, SETS, ORIGIN)
    paths = {"target": target, "corpus": folder / "corpus.parquet", "selections": folder / "selections.parquet"}
    paths |= {name: folder / name for name in ("screening", "winner", "work")}
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    shared = [
        "--spec",
        spec_of(**settings).canonical(),
        "--model",
        "llama-0",
        "--fingerprint",
        "f00d",
        "--threads",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", ["screen_layers.py", *shared, *words])
    runpy.run_path(str(SCRIPTS / "screen_layers.py"), run_name="__main__")


def test_the_script_writes_the_table_and_who_won(setting, tmp_path, monkeypatch):
    script(monkeypatch, tmp_path, tmp_path / "llama-0", setting[1], FEW)
    table = read_table(tmp_path / "screening", SCREENING)
    assert json.loads((tmp_path / "winner").read_text()) == winner("llama-0", table)
    assert not (tmp_path / "work").exists()


def test_the_script_tells_mistakes_in_one_line(setting, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        script(monkeypatch, tmp_path, tmp_path / "llama-0", setting[1], {"layers": [2, 9]})
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: screen.layers: layer 9 does not exist; the model has layers 0 to 6"
    )
    assert not (tmp_path / "screening").exists()
