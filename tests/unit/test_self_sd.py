"""Self-SD: its search is the same every time, resumed or not, and its threshold follows what is accepted."""

import json

import pandas as pd
import pytest
import torch

from speclayers.config import RivalConfig, Runtime, SkipSearch
from speclayers.decoding import skip_search
from speclayers.decoding.skip_search import Searched, chosen, search_skips
from speclayers.drafting.drafter import Verified
from speclayers.drafting.rival import build_rival
from speclayers.drafting.self_sd import SelfSdDrafter
from speclayers.drafting.skipping import Chain
from speclayers.drafting.sublayers import Sublayers
from speclayers.errors import UserError
from speclayers.fingerprint import PACKAGE
from speclayers.layout import Layout
from speclayers.names import RivalName
from speclayers.planning.costs import Costs
from speclayers.planning.identity import Identities
from speclayers.planning.plan import plan_study
from speclayers.reading import parse_study
from speclayers.specs import SkipSearchSpec
from speclayers.tables import CORPUS, SKIP_SEARCH, read_table, write_table
from speclayers.targets.skipping import Skipped
from tests.drafts import make_corpus
from tests.synthetic import origin
from tests.unit.test_acceptance import run_script
from tests.unit.test_config import merged
from tests.unit.test_loop import PROMPT, VOCABULARY, decode, generate

PARTS = Skipped(frozenset({2, 3, 5}), frozenset({3, 4}))


def self_sd(target, skipped=PARTS, length=4, threshold=0.6, acceptance=0.9):
    return SelfSdDrafter(target, "self_sd.s0", Chain(length, threshold), skipped, acceptance)


# ---------------------------------------------------------------- the drafter


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_greedy_answers_are_plain_decodings(tiny_target, family):
    target = tiny_target(family, vocabulary=VOCABULARY)
    answer = decode(target, self_sd(target))
    assert answer.tokens == generate(target, PROMPT, 24)
    assert all(cycle.layer_forwards == 3.5 * cycle.draft_forwards for cycle in answer.cycles)
    assert {tuple(cycle.skipped_attention) for cycle in answer.cycles} == {(2, 3, 5)}
    assert {tuple(cycle.skipped_mlp) for cycle in answer.cycles} == {(3, 4)}


def test_the_threshold_follows_the_share_that_is_accepted(tiny_target):
    """As published, with the constants of its code."""
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = self_sd(target, length=5, threshold=0.4, acceptance=0.5)
    drafter.start(None)
    threshold, rate = 0.4, 0.0
    for drafted, accepted in [(5, 5), (5, 0), (3, 3), (2, 2), (5, 5), (4, 1), (1, 0)]:
        drafter._drafted = drafted
        drafter.observe(Verified(torch.zeros(accepted + 1), {}, 7))
        rate = 0.5 * rate + 0.5 * accepted / drafted
        step = 0.01 if rate < 0.5 else 0.0 if drafted == 5 else -0.01
        threshold = 0.9 * threshold + 0.1 * (threshold + step)
        assert drafter._threshold == pytest.approx(threshold, abs=1e-12)


def test_a_full_model_drafts_ever_longer_chains_and_every_turn_begins_anew(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = self_sd(target, Skipped(), threshold=0.5)
    first, second = decode(target, drafter, budget=60), decode(target, drafter, budget=60)
    assert first == second
    assert drafter._threshold < 0.5
    drafter.start(None)
    assert drafter._threshold == 0.5
    sure = self_sd(target, threshold=1.0, acceptance=1.0)
    assert {cycle.drafted for cycle in decode(target, sure).cycles} == {1}  # never above 1, where nothing is drafted
    assert sure._threshold == 1.0


# ---------------------------------------------------------------- the search


def with_idle_blocks(target, blocks=(2, 3, 4, 5)):
    """Let some blocks add nothing."""
    for block in blocks:
        layer = target.anatomy.blocks[block - 1]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    return target


def searched(target, seed=0, pinned=(), trials=14, **settings):
    options = SkipSearch(**{"trials": trials, "prompts": 2, "new_tokens": 11, **settings})
    free = [block for block in range(1, target.n_layers + 1) if block not in pinned]
    return Searched("rivals.self_sd", lambda skipped: self_sd(target, skipped, threshold=0.0), free, seed, options)


def folder(tmp_path, name="work"):
    (tmp_path / name).mkdir(exist_ok=True)
    return tmp_path / name


CORPUS_ROWS = make_corpus(4)


def test_the_search_finds_layers_that_do_nothing(tiny_target, tmp_path):
    target = with_idle_blocks(tiny_target())
    table = search_skips(target, CORPUS_ROWS, searched(target, trials=60), folder(tmp_path))
    assert list(table["trial"]) == list(range(60))
    nothing = table.iloc[0]
    assert (len(nothing["skipped_attention"]), len(nothing["skipped_mlp"])) == (0, 0)
    assert nothing["layer_forwards_per_token"] == target.n_layers  # two cycles of 4 drafted, 5 emitted, each
    assert nothing["accepted"] == 16
    assert list(table.iloc[1]["skipped_mlp"]) == [2, 4, 6]
    found = chosen(table)
    costs = table["layer_forwards_per_token"].tolist()
    assert found["layer_forwards_per_token"] == min(costs) < 0.8 * target.n_layers
    assert found["trial"] == costs.index(min(costs))
    assert found["skipped_mlp"] == table.iloc[found["trial"]]["skipped_mlp"]
    assert found["trials"] == 60
    assert table["seconds_per_token"].isna().all()
    rows = table.to_dict("records")
    for row in rows:
        passes = target.n_layers * (row["cycles"] + 2)
        assert row["search_layer_forwards"] == 0 or row["search_layer_forwards"] >= passes
    sets = [(tuple(row["skipped_attention"]), tuple(row["skipped_mlp"])) for row in rows]
    again = [s in sets[:place] for place, s in enumerate(sets)]
    assert [row["search_layer_forwards"] == 0 for row in rows] == again


def test_pinned_blocks_are_never_skipped(tiny_target, tmp_path):
    target = tiny_target()
    table = search_skips(target, CORPUS_ROWS, searched(target, pinned=(1, 6), trials=8), folder(tmp_path))
    skipped = {block for name in ("skipped_attention", "skipped_mlp") for row in table[name] for block in row}
    assert skipped <= {2, 3, 4, 5}
    assert skipped


def test_a_killed_search_continues_to_the_same_table(tiny_target, tmp_path, monkeypatch):
    target = tiny_target()
    whole = search_skips(target, CORPUS_ROWS, searched(target), folder(tmp_path))
    other = search_skips(target, CORPUS_ROWS, searched(target, seed=1), folder(tmp_path, "other"))
    answer, answered = skip_search._answer, []

    def dying(*arguments):
        answered.append(arguments)
        if len(answered) == 8:
            raise KeyboardInterrupt
        return answer(*arguments)

    monkeypatch.setattr(skip_search, "_answer", dying)
    with pytest.raises(KeyboardInterrupt):
        search_skips(target, CORPUS_ROWS, searched(target), folder(tmp_path, "killed"))
    again = search_skips(target, CORPUS_ROWS, searched(target), folder(tmp_path, "killed"))
    pd.testing.assert_frame_equal(again, whole)
    assert len(answered) == 1 + (whole["search_layer_forwards"] > 0).sum()  # the killed one twice, no other
    assert not other.equals(whole)


def test_time_is_measured_only_where_it_is_asked_for(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    table = search_skips(target, CORPUS_ROWS, searched(target, trials=4, objective="time"), folder(tmp_path))
    assert (table["seconds_per_token"] > 0).all()
    best = table.loc[table["best"], "seconds_per_token"]
    assert best.is_monotonic_decreasing
    assert best.iloc[-1] == table["seconds_per_token"].min()


def test_what_cannot_be_searched_is_told(tiny_target, tmp_path, monkeypatch):
    target = tiny_target()
    with pytest.raises(UserError, match=r"rivals.self_sd.options.prompts: found 9, but 4 calibration prompts"):
        search_skips(target, CORPUS_ROWS, searched(target, prompts=9), tmp_path)
    with pytest.raises(UserError, match=r"found 2, but 0 calibration prompts leave room for 600 tokens"):
        search_skips(target, CORPUS_ROWS, searched(target, new_tokens=600), tmp_path)
    monkeypatch.setattr(skip_search, "speculate", lambda *_: type("Answer", (), {"cycles": []}))
    with pytest.raises(UserError, match=r"options.new_tokens: within 11 tokens of an answer no verification ends"):
        search_skips(target, CORPUS_ROWS, searched(target), tmp_path)


def test_a_family_whose_parts_are_no_plain_summand_is_refused(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(layers=3)
    kind = type(target.anatomy.blocks[0])
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, states, **kwargs: 0.5 * own(self, states, **kwargs))
    with pytest.raises(UserError, match=r"only whole blocks of it can be skipped"):
        search_skips(target, CORPUS_ROWS, searched(target), tmp_path)


def test_sets_are_points_and_back():
    sublayers = Sublayers([2, 3, 5])
    assert len(sublayers) == 6
    point = sublayers.point(Skipped(frozenset({2, 5}), frozenset({3})))
    assert point == {"attention2": 1, "mlp2": 0, "attention3": 0, "mlp3": 1, "attention5": 1, "mlp5": 0}
    assert sublayers.above(point) == Skipped(frozenset({2, 5}), frozenset({3}))
    point |= {"mlp2": 0.9, "mlp5": 0.2}
    assert sublayers.largest(point, 5) == Skipped(frozenset({2, 5}), frozenset({2, 3, 5}))


# ---------------------------------------------------------------- in the workflow


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"threshold": 1.5}, r"options.threshold: .*less than or equal to 1, found 1.5"),
        ({"acceptance": -0.1}, r"options.acceptance: .*greater than or equal to 0, found -0.1"),
        ({"trials": 0}, r"options.trials: .*greater than or equal to 1, found 0"),
        ({"objective": "speed"}, r"options.objective: .*'layer_forwards' or 'time', found 'speed'"),
        ({"trails": 5}, r"options.trails: unknown option; .*did you mean 'trials'"),
        ({}, r"--skipped: is missing; self_sd.s0 needs the layers that a search chose to skip"),
    ],
)
def test_what_cannot_be_built_is_told(tiny_target, options, told):
    with pytest.raises(UserError, match=told):
        build_rival(RivalConfig(name="self_sd", options=options), tiny_target(), RivalName("self_sd", None, 0), {})


def test_the_script_searches_and_the_drafter_skips_what_it_found(tiny_target, tmp_path, monkeypatch, capsys):
    target = with_idle_blocks(tiny_target(vocabulary=VOCABULARY))
    write_table(tmp_path / "corpus.parquet", CORPUS, make_corpus(4, vocabulary=VOCABULARY), origin("tiny"))
    options = {"trials": 6, "prompts": 2, "new_tokens": 11, "pinned_first": 1}
    config = RivalConfig(name="self_sd", draft_length=4, options=options)
    given = {"target": target.model.config._name_or_path, "corpus": tmp_path / "corpus.parquet", "rival": "self_sd.s3"}
    given |= {"work": tmp_path / "work", "search": tmp_path / "search.parquet", "skipped": tmp_path / "skipped.json"}
    spec = SkipSearchSpec(runtime=Runtime(), rival=config).canonical()
    run_script("search_skips.py", monkeypatch, spec=spec, **given)
    table, found = read_table(given["search"], SKIP_SEARCH), json.loads(given["skipped"].read_text())
    assert len(table) == 6
    assert found == chosen(table)
    assert not (tmp_path / "work").exists()
    drafter = build_rival(config, target, RivalName("self_sd", None, 3), {"skipped": given["skipped"]})
    answer = decode(target, drafter)
    assert answer.tokens == generate(target, PROMPT, 24)
    assert answer.cycles[0].skipped_mlp == found["skipped_mlp"]
    wrong = config.model_copy(update={"options": {**options, "pinned_last": 5}})
    spec = SkipSearchSpec(runtime=Runtime(), rival=wrong).canonical()
    with pytest.raises(SystemExit, match="2"):
        run_script("search_skips.py", monkeypatch, spec=spec, **given)
    assert "pinned_first: with pinned_last 6 blocks are pinned; tiny has 6" in capsys.readouterr().err


def study(calibration_seed=1, **options):
    rivals = [{"name": "self_sd", "seeds": [0, 1], "options": options}, {"name": "clasp"}]
    return parse_study(merged({"rivals": rivals, "corpus": {"calibration": {"seed": calibration_seed}}}))


def identities(study):
    found = Identities(study, PACKAGE.parents[1] / "scripts")
    stages = ("search_skips.self_sd", "measure_rival.self_sd", "time_rival.self_sd", "measure_rival.clasp")
    return [found.identity(stage, "smollm2-135m") for stage in stages]


def test_what_the_search_depends_on_reaches_the_runs_of_its_drafter_only():
    base = identities(study())
    for other in (study(calibration_seed=5), study(trials=50)):
        same = [a == b for a, b in zip(base, identities(other), strict=True)]
        assert same == [False, False, False, True]


def test_the_plan_counts_a_search_for_each_seed(tmp_path):
    layout = Layout("quickstart", str(tmp_path))
    plans = [plan_study(study(trials=trials), layout) for trials in (10, 100)]
    short, long = ([line for line in plan.lines if line.stage == "search_skips"] for plan in plans)
    assert {line.jobs for line in (*short, *long)} == {2}
    assert all(5 * a.hours < b.hours for a, b in zip(short, long, strict=True))
    assert Costs(study(objective="time"), layout).skip_search("self_sd.s1").objective == "time"
