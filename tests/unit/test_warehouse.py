"""A model's results become a summary, summaries become a database, and its numbers are those of the cycles."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from speclayers import tables
from speclayers.analysis import inputs
from speclayers.analysis.acceptance_page import power, skipped_questions
from speclayers.analysis.answer import answer
from speclayers.analysis.drafters import parse_drafter
from speclayers.analysis.estimates import Measured, align, estimate_differences
from speclayers.analysis.provenance import read_jobs
from speclayers.analysis.schemas import ESTIMATES, SUMMARIES
from speclayers.analysis.statistics import Counts, Resampling
from speclayers.analysis.study import build_study, read_study
from speclayers.analysis.summary import Run, exactness, write_summary
from speclayers.analysis.warehouse import EXPORTS, export_tables, new_database, open_database, query
from speclayers.errors import UserError
from speclayers.layout import SUMMARY_TABLES
from speclayers.tables import read_table, write_table
from tests.synthetic import MadeUpModel, layout, origin, write_model, write_study

SEEDED = MadeUpModel("seeded", train_seeds=(0, 1, 2), seed_spread=0.01, temperatures=(0.0,))
TINY = MadeUpModel("tiny-qwen3")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("study")
    arguments = write_study(root, TINY, SEEDED, MadeUpModel("only-geometry", questions=0))
    with new_database(root / "study.duckdb", threads=1) as connection:
        build_study(connection, **arguments)
        export_tables(connection, root / "tables")
    return root


@pytest.fixture(scope="module")
def study(built):
    with open_database(built / "study.duckdb") as connection:
        return read_study(connection)


# ---------------------------------------------------------------- names and options


@pytest.mark.parametrize(
    ("name", "kind", "layers", "seed", "layer_set"),
    [
        ("eagle3.l02-l15-l27.s0", "eagle3", [2, 15, 27], 0, "l02-l15-l27"),
        ("eagle3.l102.s12", "eagle3", [102], 12, "l102"),
        ("medusa.l30.s1", "medusa", [30], 1, "medusa.l30"),
        ("eagle3.l03-l04.s1.from-l02-l15.p10", "moved", [3, 4], 1, "l03-l04.from-l02-l15.p10"),
        ("prompt_lookup", "prompt_lookup", None, None, "prompt_lookup"),
        ("pretrained.published", "pretrained", None, None, "pretrained.published"),
        ("pretrained.published.p10.s1", "pretrained", None, 1, "pretrained.published.p10"),
    ],
)
def test_a_drafters_name_says_what_it_reads(name, kind, layers, seed, layer_set):
    assert parse_drafter(name) == (kind, layers, seed, layer_set)


@pytest.mark.parametrize("name", ["", "eagle3.l2.s0", "eagle3.l02"])
def test_a_name_of_several_parts_is_a_heads(name):
    with pytest.raises(UserError, match="is no head name"):
        parse_drafter(name)


def test_options_are_taken_apart_at_the_first_equals_sign():
    assert inputs.named_paths("--head", ["a=x=y"]) == {"a": Path("x=y")}
    assert inputs.runs("--speed", ["eagle3.l02.s0:0.5:30=d"]) == {Run("eagle3.l02.s0", 0.5, 30): Path("d")}
    assert inputs.runs("--speed", ["eagle3.l02.s0:0:6c=d"]) == {Run("eagle3.l02.s0", 0.0, 6, chain=True): Path("d")}


@pytest.mark.parametrize("value", ["head=dir", "head:0=dir", "head:hot:30=dir", "head:0:30", "=dir"])
def test_a_run_of_another_form_is_refused(value):
    with pytest.raises(UserError, match="--acceptance"):
        inputs.runs("--acceptance", [value])


def test_an_option_given_twice_is_refused():
    with pytest.raises(UserError, match="'a' is given twice"):
        inputs.named_paths("--head", ["a=x", "a=y"])


# ---------------------------------------------------------------- summary


def test_every_summary_table_has_a_schema_and_is_written(tmp_path):
    assert set(SUMMARIES) == set(SUMMARY_TABLES)
    write_summary(
        write_model(tmp_path, dataclasses.replace(TINY, screened=True, skipped=1)),
        tmp_path / "summary",
        origin(TINY.name),
    )
    for name in SUMMARY_TABLES:
        assert len(read_table(tmp_path / "summary" / f"{name}.parquet", SUMMARIES[name]))


def test_rows_carry_their_keys(tmp_path):
    write_summary(write_model(tmp_path, TINY), tmp_path, origin(TINY.name))
    cycles = read_table(tmp_path / "cycles.parquet", SUMMARIES["cycles"])
    first = cycles.iloc[0]
    assert (first["model"], first["drafter"], first["k"], first["train_seed"]) == (
        *("tiny-qwen3", "eagle3.l02-l06-l09.s0"),
        *(3, 0),
    )
    assert list(first["layers"]) == [2, 6, 9]
    assert set(cycles["temperature"]) == {0.0, 1.0}


def test_a_model_without_acceptance_has_empty_tables(tmp_path):
    write_summary(write_model(tmp_path, MadeUpModel("bare", questions=0)), tmp_path, origin("bare"))
    assert read_table(tmp_path / "cycles.parquet", SUMMARIES["cycles"]).empty
    assert len(read_table(tmp_path / "geometry_cka.parquet", SUMMARIES["geometry_cka"]))


def test_a_drafter_that_reads_no_layers_has_no_layers(tmp_path):
    results = write_model(tmp_path, TINY)
    run, folder = next(iter(results.acceptance.items()))
    lookup = {Run("prompt_lookup", run.temperature, run.nodes): folder}
    results = dataclasses.replace(results, acceptance=lookup, heads={}, speed={})
    write_summary(results, tmp_path / "summary", origin(TINY.name))
    runs = read_table(tmp_path / "summary" / "runs.parquet", SUMMARIES["runs"])
    assert runs["layers"].isna().all()
    assert runs["k"].isna().all()
    assert runs["train_seed"].isna().all()


def test_a_head_of_another_target_is_refused(tmp_path):
    results = write_model(tmp_path, TINY)
    config = next(iter(results.heads.values())) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"target_hash": "0" * 64}))
    with pytest.raises(UserError, match="target_hash 000000000000… is not that of tiny-qwen3"):
        write_summary(results, tmp_path / "summary", origin(TINY.name))


def test_layers_beyond_the_last_are_refused(tmp_path):
    results = write_model(tmp_path, TINY)
    results = dataclasses.replace(results, manifest=results.manifest.model_copy(update={"layers": 8}))
    with pytest.raises(UserError, match="chose layer 9, but tiny-qwen3 has 8"):
        write_summary(results, tmp_path / "summary", origin(TINY.name))


def test_the_winner_of_a_screening_stands_beside_the_selectors(tmp_path):
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        screened = dataclasses.replace(TINY, screened=True, sets={**TINY.sets, "eagle2": (12,)})
        build_study(connection, **write_study(tmp_path, screened, resamples=100))
        found = read_study(connection)
    chosen = found.selected.set_index("label").loc["screen"]
    assert (chosen["layer_set"], chosen["k"], chosen["trained"]) == ("l12", 1, True)
    assert chosen["score"] == found.selected.set_index("label").loc["eagle2", "score"]
    assert "won the screening of 15 candidates: simulated length 2.100 on 16 held-out prompts" in chosen["reason"]
    assert "after 4007 tokens" in chosen["reason"]
    assert found.tau.set_index("layer_set").loc["l12", "selectors"].tolist() == ["eagle2, screen"] * 2


@pytest.mark.parametrize(("whole_curve", "layers"), [(True, [12, 12, 12]), (False, [6, 3, 3])])
def test_ranks_of_the_layer_curve_are_compared_between_budgets(tmp_path, whole_curve, layers):
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        screened = dataclasses.replace(TINY, screened=True, whole_curve=whole_curve)
        build_study(connection, **write_study(tmp_path, screened, resamples=100))
        ranks = read_study(connection).curve_ranks
    between = ranks[ranks["against"] == "budget"]
    pairs = list(zip(between["budget"], between["other_budget"], strict=True))
    assert pairs == [(1000, 2000), (1000, 4000), (2000, 4000)]
    assert between["layers"].tolist() == layers
    assert between["all_layers"].tolist() == [whole_curve] * 3
    assert between["rho"].fillna(0).tolist() == pytest.approx([1.0 if whole_curve else 0.0] * 3)
    entropy = ranks[(ranks["against"] == "entropy") & (ranks["budget"] == 1000)].iloc[0]
    assert (entropy["layers"], entropy["all_layers"]) == (12, True)
    assert -1 < entropy["rho_low"] < entropy["rho"] < entropy["rho_high"] < 1


def test_moved_heads_are_compared_with_scratch_and_with_nothing_else(tmp_path):
    moves = (("eagle3", "elsi", 0), ("eagle3", "elsi", 50))
    alone = MadeUpModel("moving", questions=40, temperatures=(0.0,))
    with new_database(tmp_path / "alone.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path / "alone", alone, resamples=200))
        before = read_study(connection)
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path, dataclasses.replace(alone, moved=moves), resamples=200))
        found = read_study(connection)
    pd.testing.assert_frame_equal(found.comparisons, before.comparisons)
    assert set(found.tau["layer_set"]) == set(before.tau["layer_set"])
    rows = found.transfers[found.transfers["metric"] == "tau_question"].set_index("layer_set")
    untouched, tuned = "l04-l08-l11.from-l02-l06-l09.p0", "l04-l08-l11.from-l02-l06-l09.p50"
    assert set(rows.index) == {untouched, tuned}
    assert set(rows["reference"]) == {"l04-l08-l11"}
    assert rows["verdict"].to_dict() == {untouched: "lower", tuned: "not distinguishable"}
    tau = pd.concat([found.tau, found.moved]).set_index("layer_set")["tau_question"]
    assert rows.loc[untouched, "difference"] == pytest.approx(tau[untouched] - tau["l04-l08-l11"])
    assert found.training["drafter"].str.contains("from-").sum() == 0


def test_heads_trained_elsewhere_stand_in_the_comparisons_with_their_layers(tmp_path):
    made_up = MadeUpModel(
        "foreign", temperatures=(0.0,), pretrained={"own": (2, 6, 9), "own.p10.s0": (2, 6, 9)}, effects={"own": 0.2}
    )
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path, made_up))
        study = read_study(connection)
    rows = study.comparisons[study.comparisons["metric"] == "tau_question"].set_index("layer_set")
    for name, verdict in (("pretrained.own", "lower"), ("pretrained.own.p10", "not distinguishable")):
        assert rows.loc[name, ["kind", "k", "verdict"]].to_list() == ["pretrained", 3, verdict]
        assert rows.loc[name, "layers"].tolist() == [2, 6, 9]
    assert study.drafters["layers"].notna().all()  # no drafter without a head
    assert "pretrained.own.p10.s0" in set(study.heads["drafter"])  # how it was trained here is known
    assert "pretrained.own" not in set(study.heads["drafter"])


def test_a_head_trained_elsewhere_without_its_config_is_refused(tmp_path):
    results = write_model(tmp_path, MadeUpModel("foreign", pretrained={"own": (2, 6, 9)}))
    heads = {name: folder for name, folder in results.heads.items() if name != "pretrained.own"}
    with pytest.raises(UserError, match=r"--head: none for pretrained\.own, which was measured"):
        write_summary(dataclasses.replace(results, heads=heads), tmp_path / "summary", origin("foreign"))


def test_questions_too_long_for_the_model_are_counted_and_listed(tmp_path):
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        models = dataclasses.replace(TINY, skipped=3), dataclasses.replace(SEEDED, name="roomy")
        build_study(connection, **write_study(tmp_path, *models, resamples=100))
        found = read_study(connection)
    assert found.skipped["model"].tolist() == ["tiny-qwen3"] * 3
    assert found.skipped.iloc[0][["question_id", "prompt_tokens", "positions", "limit"]].tolist() == [
        900,
        3000,
        3047,
        2048,
    ]
    assert found.tau.groupby("model")["skipped"].unique().map(list).to_dict() == {"tiny-qwen3": [3], "roomy": [0]}
    assert set(found.runs["exactness"]) == {"exact", "not applicable"}
    assert "3 questions too long for tiny-qwen3 left out for every drafter" in answer(found).caveat
    assert skipped_questions(found).rows[0] == ["tiny-qwen3", "900", "rag", "0", "3000", "3047", "2048"]


def test_a_run_that_misses_a_turn_is_refused(tmp_path):
    results = write_model(tmp_path, TINY)
    path = next(iter(results.acceptance.values())) / "turns.parquet"
    turns = read_table(path, tables.TURNS)
    write_table(path, tables.TURNS, turns.iloc[1:], origin(TINY.name))
    with pytest.raises(UserError, match="question 0 turn 0 is missing"):
        write_summary(results, tmp_path / "summary", origin(TINY.name))


def test_a_run_without_its_baseline_is_refused(tmp_path):
    results = dataclasses.replace(write_model(tmp_path, TINY), baselines={})
    with pytest.raises(UserError, match=r"--baseline: none for temperature 0\.0"):
        write_summary(results, tmp_path / "summary", origin(TINY.name))


# ---------------------------------------------------------------- exactness


def made_turns(ids, identical, as_generate=True):
    turns = pd.DataFrame({"question_id": [1], "turn": [0], "output_ids": [ids], "identical_to_greedy": [identical]})
    baseline = pd.DataFrame({"question_id": [1], "turn": [0], "output_ids": [[5, 6, 7]], "top2_margin": [[1, 1e-4, 1]]})
    baseline["equals_generate"] = pd.Series([as_generate], dtype="boolean")
    return turns, baseline


@pytest.mark.parametrize(
    ("ids", "dtype", "verdict"),
    [
        ([5, 6, 7], "float32", "exact"),
        ([5, 9, 7], "float32", "ties"),
        ([9, 6, 7], "float32", "different"),
        ([5, 6, 7, 8], "float32", "different"),
        ([9, 6, 7], "bfloat16", "diverges"),
        ([5, 6, 7], "bfloat16", "exact"),
    ],
)
def test_exactness_is_counted_from_the_ids(ids, dtype, verdict):
    turns, baseline = made_turns(ids, ids == [5, 6, 7])
    found = exactness(Path("turns"), turns, baseline, 0.0, dtype)
    assert found.verdict == verdict
    assert found.identical + found.ties + found.different == 1
    gap = {"exact": None, "ties": 1e-4, "diverges": 1.0, "different": 1.0 if len(ids) == 3 else None}[verdict]
    assert found.median_margin == pytest.approx(np.nan if gap is None else gap, nan_ok=True)


@pytest.mark.parametrize(
    ("ids", "as_generate", "counted"),
    [([5, 6, 7], True, 1), ([5, 6, 7], False, 0), ([5, 9, 7], True, 0), ([5, 6, 7], None, None)],
)
def test_turns_that_equal_generate_are_counted_where_that_was_asked(ids, as_generate, counted):
    turns, baseline = made_turns(ids, ids == [5, 6, 7], as_generate)
    assert exactness(Path("turns"), turns, baseline, 0.0, "float32").as_generate == counted


def test_a_run_that_says_otherwise_than_its_ids_is_refused():
    turns, baseline = made_turns([5, 9, 7], True)
    with pytest.raises(UserError, match="question 1 turn 0: identical_to_greedy is True, but the ids say otherwise"):
        exactness(Path("turns"), turns, baseline, 0.0, "float32")


def test_sampled_turns_are_not_compared():
    turns, baseline = made_turns([1], None)
    found = exactness(Path("turns"), turns, baseline, 0.5, "float32")
    assert found[:4] == (None, None, None, None)
    assert found.verdict == "not applicable"


@pytest.mark.parametrize(("dtype", "told"), [("float32", True), ("bfloat16", False)])
def test_only_gated_runs_are_called_not_exact(tmp_path, dtype, told):
    models = MadeUpModel("gated", dtype=dtype, different_turns=1), MadeUpModel("below", dtype="bfloat16")
    models = models[0], dataclasses.replace(models[1], different_turns=2)
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path, *models, resamples=100))
        caveat = answer(read_study(connection)).caveat
    assert ("NOT EXACT: 3 turns of 3 runs in float32" in caveat) is told  # one turn of each of three sets
    assert told or "NOT EXACT" not in caveat


# ---------------------------------------------------------------- database


def test_selections_meet_their_runs_from_a_hundred_layers_on(tmp_path):
    deep = MadeUpModel("deep", n_layers=104, sets={"eagle3": (2, 52, 101), "elsi": (4, 60)}, questions=2)
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path, deep, resamples=100))
        found = dict(query(connection, "select layer_set, selectors from sets").itertuples(index=False))
    assert found == {"l002-l052-l101": "eagle3, uniform", "l04-l60": "elsi"}


def test_two_pinned_sets_of_one_size_keep_apart(tmp_path):
    pinned = MadeUpModel("deep", n_layers=36, pinned=((5, 23, 35), (6, 24, 36), (28,)), questions=0)
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(tmp_path, pinned, resamples=100))
        labels = query(connection, "select label from selected where selector = 'pinned'")["label"]
        pairs = query(connection, "from selector_agreement where selector_a like 'pinned%' and k = 3")
        names = dict(query(connection, "select layer_set, selectors from selectors_of_set").itertuples(index=False))
    assert set(labels) == {"pinned {5, 23, 35}", "pinned {6, 24, 36}", "pinned"}
    assert ("pinned {5, 23, 35}", "pinned {6, 24, 36}") in set(
        zip(pairs["selector_a"], pairs["selector_b"], strict=True)
    )
    assert names["l05-l23-l35"] == names["l28"] == "pinned"


def test_tau_counts_emitted_tokens_over_whole_cycles(built, study):
    cycles = read_table(built / "made-up" / "tiny-qwen3" / "summary" / "cycles.parquet", SUMMARIES["cycles"])
    kept = cycles[
        (cycles["drafter"] == "eagle3.l02-l06-l09.s0") & (cycles["temperature"] == 0) & ~cycles["cut_by_budget"]
    ]
    by_question = kept.groupby("question_id")["emitted"].agg(["sum", "count"])
    tau = study.tau
    row = tau[(tau["model"] == "tiny-qwen3") & (tau["layer_set"] == "l02-l06-l09") & (tau["temperature"] == 0)].iloc[0]
    assert row["tau_pooled"] == pytest.approx(kept["emitted"].sum() / len(kept))
    assert row["tau_question"] == pytest.approx((by_question["sum"] / by_question["count"]).mean())
    assert row["tau_question_low"] < row["tau_question"] < row["tau_question_high"]
    assert (row["questions"], row["seeds"], row["selectors"]) == (12, 1, "eagle3, uniform")
    assert row["cycles"] == len(kept)


def test_a_differences_value_is_the_difference_of_the_taus(study):
    tau = study.tau.set_index(["model", "layer_set", "temperature"])
    for row in study.comparisons.to_dict("records"):
        ours, theirs = (
            tau.loc[(row["model"], name, row["temperature"])] for name in (row["layer_set"], row["reference"])
        )
        assert row["difference"] == pytest.approx(ours[row["metric"]] - theirs[row["metric"]])
        assert row["relative"] == pytest.approx(row["difference"] / theirs[row["metric"]])


def test_holm_runs_over_the_sets_of_one_setting(study):
    for _, group in study.comparisons.groupby(["model", "temperature", "nodes", "metric"]):
        assert len(group) == 2
        smallest = group["p"].min()
        assert group["p_holm"].min() == pytest.approx(min(1, 2 * smallest))


def test_a_bad_set_is_told_from_the_reference(study):
    rows = study.comparisons
    assert set(rows[rows["layer_set"] == "l01-l02-l03"]["verdict"]) == {"lower"}
    assert set(rows[rows["layer_set"] == "l04-l08-l11"]["verdict"]) == {"not distinguishable"}


def test_three_seeds_speak_of_layers(study):
    scope = study.comparisons.groupby("model")["scope"].agg(set)
    assert scope["tiny-qwen3"] == {"these heads"}
    assert scope["seeded"] == {"layers"}


def test_acceptance_by_depth_is_conditional_on_getting_there(built, study):
    cycles = read_table(built / "made-up" / "tiny-qwen3" / "summary" / "cycles.parquet", SUMMARIES["cycles"])
    kept = cycles[
        (cycles["drafter"] == "eagle3.l02-l06-l09.s0") & (cycles["temperature"] == 0) & ~cycles["cut_by_budget"]
    ]
    reached = kept[kept["accepted"] >= 1]
    depths = study.depths
    row = depths[(depths["layer_set"] == "l02-l06-l09") & (depths["temperature"] == 0) & (depths["draft_depth"] == 2)]
    row = row[row["model"] == "tiny-qwen3"].iloc[0]
    assert row["reached"] == len(reached)
    assert row["acceptance"] == pytest.approx((reached["accepted"] >= 2).mean())
    assert row["drafted"] == len(kept)
    assert row["marginal"] == pytest.approx((kept["accepted"] >= 2).mean())
    assert 0 <= row["marginal_low"] < row["marginal"] < row["marginal_high"] <= 1


def test_tau_by_position_counts_each_cycle_where_it_begins(built, study):
    cycles = read_table(built / "made-up" / "tiny-qwen3" / "summary" / "cycles.parquet", SUMMARIES["cycles"])
    cycles = cycles[(cycles["drafter"] == "eagle3.l02-l06-l09.s0") & (cycles["temperature"] == 0)]
    begins = 1 + cycles.groupby(["question_id", "turn"])["emitted"].cumsum() - cycles["emitted"]
    rows = study.positions[study.positions["model"] == "tiny-qwen3"]
    rows = rows[(rows["layer_set"] == "l02-l06-l09") & (rows["temperature"] == 0)]
    assert rows[["first_position", "last_position"]].to_numpy().tolist() == [[0, 15], [16, 31], [32, 63]]
    for row in rows.to_dict("records"):
        kept = cycles[begins.between(row["first_position"], row["last_position"]) & ~cycles["cut_by_budget"]]
        assert row["tau_pooled"] == pytest.approx(kept["emitted"].sum() / len(kept))
        assert (row["cycles"], row["questions"]) == (len(kept), kept["question_id"].nunique())


def test_smaller_differences_need_more_questions(study):
    rows = study.power[(study.power["model"] == "tiny-qwen3") & (study.power["metric"] == "tau_question")]
    assert set(rows["layer_set"]) == {"l01-l02-l03", "l04-l08-l11"}
    for _, part in rows.groupby(["layer_set", "temperature"]):
        assert part["relative"].tolist() == [0.01, 0.02, 0.05]
        assert part["questions_needed"].is_monotonic_decreasing
        few = part.iloc[-1]
        assert few["questions_needed"] == pytest.approx(7.849 * (few["spread"] / few["effect"]) ** 2 + 2.9, abs=1.1)
    table = power(study, "tiny-qwen3")
    assert table.head[-3:] == ["for 1 %", "for 2 %", "for 5 %"]
    assert len(table.rows) == 4


def test_an_answer_that_ends_at_a_drafted_token_says_nothing_of_deeper_ones(tmp_path):
    made_up = MadeUpModel("ending", sets={"eagle3": (2, 6, 9)}, temperatures=(0.0,), questions=1)
    results = write_model(tmp_path, made_up)
    path = next(iter(results.acceptance.values())) / "cycles.parquet"
    cycles = read_table(path, tables.CYCLES).iloc[:3]
    cycles = cycles.assign(accepted=[2, 1, 0], emitted=[3, 1, 1], depth=3, cut_by_budget=False)  # the second one ends
    write_table(path, tables.CYCLES, cycles, origin("ending"))
    write_summary(results, tmp_path / "summary", origin("ending"))
    arguments = write_study(tmp_path / "other", made_up, resamples=100) | {
        "summaries": {"ending": tmp_path / "summary"}
    }
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **arguments)
        found = query(connection, "select draft_depth, reached, acceptance from depth_estimates order by all")
    assert found.to_numpy().tolist() == [[1, 3, pytest.approx(2 / 3)], [2, 1, 1], [3, 1, 0]]


def test_speed_up_and_verification_in_forwards(built, study):
    speed = study.speed[(study.speed["model"] == "tiny-qwen3") & (study.speed["layer_set"] == "l02-l06-l09")].iloc[0]
    folder = built / "made-up" / "tiny-qwen3" / "summary"
    rows = read_table(folder / "speed.parquet", SUMMARIES["speed"])
    rows = rows[rows["drafter"] == "eagle3.l02-l06-l09.s0"]
    assert speed["speed_up"] == pytest.approx(rows["baseline_wall_s"].sum() / rows["wall_s"].sum())
    cycles = read_table(folder / "cycles.parquet", SUMMARIES["cycles"])
    cycles = cycles[(cycles["drafter"] == "eagle3.l02-l06-l09.s0") & (cycles["temperature"] == 0)]
    timed, plain = ((rows[name] - 1).sum() for name in ("new_tokens", "baseline_new_tokens"))  # not a turn's first
    verification = rows["verify_s"].sum() / timed * cycles["emitted"].mean()
    assert speed["verify_forwards"] == pytest.approx(verification / (rows["baseline_wall_s"].sum() / plain))
    assert speed["tokens_per_s"] == pytest.approx(timed / rows["wall_s"].sum())
    assert speed["baseline_tokens_per_s"] == pytest.approx(plain / rows["baseline_wall_s"].sum())
    assert speed[["draft_share", "verify_share", "other_share"]].sum() == pytest.approx(1)


def test_too_few_sets_are_not_correlated(study):
    assert (study.correlations["sets"] == 3).all()
    assert study.correlations["rho"].isna().all()


def test_costs_are_summed_by_rule(study):
    row = study.costs[(study.costs["rule"] == "train_draft") & (study.costs["model"] == "seeded")].iloc[0]
    assert row["seconds"] == pytest.approx(340.1)
    assert study.costs[study.costs["rule"] == "fetch_model"]["max_rss_mb"].isna().all()


def test_jobs_that_the_study_no_longer_needs_cost_nothing(study):
    assert set(study.costs["rule"]) == {"build_corpus", "train_draft", "fetch_model"}
    assert set(study.costs["model"]) == set(study.targets["model"])


def test_columns_carry_their_meaning_in_the_database(built):
    with open_database(built / "study.duckdb") as connection:
        found = query(connection, "select comment from duckdb_columns() where table_name = 'cycles'")
    assert found["comment"].notna().all()


def test_tables_are_exported_as_parquet_and_csv(built):
    for name in EXPORTS:
        exported = pd.read_parquet(built / "tables" / f"{name}.parquet")
        assert len(pd.read_csv(built / "tables" / f"{name}.csv")) == len(exported)
    assert {path.suffix for path in (built / "tables").iterdir()} == {".parquet", ".csv"}


def test_selectors_that_agree_fully_have_jaccard_one(built):
    rows = pd.read_parquet(built / "tables" / "selector_agreement.parquet")
    row = rows[(rows["selector_a"] == "eagle3") & (rows["selector_b"] == "uniform")].iloc[0]
    assert (row["shared_layers"], row["jaccard"]) == (3, 1.0)


def test_the_same_inputs_give_the_same_estimates_whatever_the_threads(built, study, tmp_path):
    arguments = write_study(tmp_path, TINY, SEEDED, MadeUpModel("only-geometry", questions=0))
    with new_database(tmp_path / "again.duckdb", threads=2) as connection:
        build_study(connection, **arguments)
        again = read_study(connection)
        profile = query(connection, "from layer_profile")
    pd.testing.assert_frame_equal(again.comparisons, study.comparisons, check_exact=True)
    pd.testing.assert_frame_equal(again.entropy, study.entropy, check_exact=True)
    with open_database(built / "study.duckdb") as connection:
        pd.testing.assert_frame_equal(query(connection, "from layer_profile"), profile, check_exact=True)


def test_a_full_disk_is_told_in_one_line_and_other_faults_are_not_blamed_on_the_file(tmp_path):
    with (
        pytest.raises(UserError, match=r"study\.duckdb: cannot be written: .*No space left"),
        new_database(tmp_path / "study.duckdb", threads=1),
    ):
        raise duckdb.IOException('IO Error: Could not write file "x": No space left on device')
    with pytest.raises(duckdb.IOException), new_database(tmp_path / "study.duckdb", threads=1) as connection:
        connection.read_parquet(str(tmp_path / "missing.parquet"))


def test_the_analysis_runs_without_torch():
    code = "import sys; from speclayers.analysis import report, summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_failed_build_leaves_no_database(tmp_path):
    with pytest.raises(UserError), new_database(tmp_path / "study.duckdb", threads=1):
        raise UserError("no")
    assert not list(tmp_path.iterdir())


def test_a_database_is_built_anew_while_another_process_reads_the_old_one(tmp_path):
    path = tmp_path / "study.duckdb"
    with new_database(path, threads=1) as connection:
        connection.execute("create table told as select 1 as value")
    reading = (
        "import sys, duckdb; told = duckdb.connect(sys.argv[1], read_only=True).table('told')\n"
        "for _ in range(2): print(told.fetchall()[0][0], flush=True), sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", reading, str(path)], **pipes) as reader:
        assert reader.stdout.readline() == "1\n"
        with new_database(path, threads=1) as connection:
            connection.execute("create table told as select 2 as value")
        assert reader.communicate("\n\n")[0] == "1\n"
    with open_database(path) as connection:
        assert query(connection, "select value from told")["value"].tolist() == [2]


def test_a_summary_of_another_model_is_refused(tmp_path):
    arguments = write_study(tmp_path, TINY)
    arguments["summaries"] = {"other": arguments["summaries"]["tiny-qwen3"]}
    arguments["manifests"] = {"other": arguments["manifests"]["tiny-qwen3"]}
    with (
        new_database(tmp_path / "study.duckdb", threads=1) as connection,
        pytest.raises(UserError, match="is a summary of 'tiny-qwen3', expected one of 'other'"),
    ):
        build_study(connection, **arguments)


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_a_broken_database_is_told_in_one_line(tmp_path, content):
    (tmp_path / "study.duckdb").write_bytes(content)
    with pytest.raises(UserError, match="is no readable DuckDB file"), open_database(tmp_path / "study.duckdb"):
        pass


def test_a_truncated_database_is_told_in_one_line(built, tmp_path):
    whole = (built / "study.duckdb").read_bytes()
    (tmp_path / "study.duckdb").write_bytes(whole[: len(whole) // 2])
    with (
        pytest.raises(UserError, match="is no readable DuckDB file"),
        open_database(tmp_path / "study.duckdb") as connection,
    ):
        read_study(connection)


def test_a_broken_measurement_is_told_by_its_line(tmp_path):
    (tmp_path / "rule").mkdir()
    (tmp_path / "rule" / "all.jsonl").write_text('{"s": 1.0}\nnonsense\n')
    with pytest.raises(UserError, match="line 2 is no measurement"):
        read_jobs(tmp_path, ["m"], {})


def test_costs_join_tokens_gpus_and_slurms_ids_to_their_jobs(tmp_path):
    arguments = write_study(tmp_path, TINY)
    runs = read_runs(tmp_path)
    ran_on = {"slurm_job": "17", "node": "n1", "gpu_type": "NVIDIA H200"}
    for number, run in enumerate(runs[:2]):
        path = arguments["benchmarks"] / "measure_acceptance" / TINY.name / f"{run}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        resources = {"gpu": 2, "ran_on": json.dumps(ran_on | {"slurm_job": str(17 + number)})}
        path.write_text(json.dumps({"s": 4.0, "resources": resources}) + "\n")
    with new_database(tmp_path / "study.duckdb", threads=1) as connection:
        build_study(connection, **arguments)
        (row,) = query(connection, "select * from costs where rule = 'measure_acceptance'").to_dict("records")
        tokens = query(connection, "select * from job_tokens").set_index("job")["tokens"].groupby(level=0).first()
        (other,) = query(connection, "select * from costs where rule = 'build_corpus'").to_dict("records")
    expected = sum(tokens[f"{TINY.name}/{run}"] for run in runs[:2])
    assert (row["jobs"], row["gpu_seconds"], row["gpu_type"], row["slurm_jobs"]) == (2, 16.0, "NVIDIA H200", "17 18")
    assert (row["tokens"], row["tokens_per_s"]) == (expected, expected / 8)
    assert pd.isna([other["gpu_seconds"], other["slurm_jobs"], other["tokens"]]).all()


def read_runs(root):
    """Places of a model's acceptance runs, in order."""
    folder = Path(layout(root).model(TINY.name)) / "acceptance"
    places = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/turns.parquet"))
    return [place.replace(".0-n", "-n") for place in places]  # as the workflow writes temperatures


def test_an_untrained_drafter_pairs_with_every_seed():
    one = Measured([-1], [1, 2], Counts(np.array([[2.0, 4.0]]), np.ones((1, 2))))
    three = Measured([0, 1, 2], [2, 1], Counts(np.arange(6.0).reshape(3, 2), np.ones((3, 2))))
    ours, theirs = align(one, three)
    assert ours.emitted.tolist() == [[2, 4]] * 3
    assert theirs.emitted.tolist() == [[1, 0], [3, 2], [5, 4]]
    assert align(Measured([5], [1], one.counts), three) is None


def test_without_its_reference_nothing_is_compared():
    counts = pd.DataFrame(
        {"model": ["m"], "layer_set": ["a"], "temperature": [0.0], "nodes": [30], "question_id": [1], "seed": [0]}
        | {"emitted": [3.0], "cycles": [2.0]}
    )
    assert estimate_differences(counts, {"m": "b"}, Resampling(100, 0.95, 0)).empty


def test_estimate_tables_have_distinct_columns():
    for table in (*SUMMARIES.values(), *ESTIMATES.values()):
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names)), table.name


# ---------------------------------------------------------------- answer


def test_the_answer_has_three_lines_and_says_what_cannot_be_said(study):
    asked, found, caveat = answer(study).text().splitlines()
    assert "tiny-qwen3, seeded and only-geometry" in asked
    assert "mean accepted tokens per verification (τ" in asked
    assert "tiny-qwen3: {2, 6, 9} (eagle3) yields" in found
    assert "Fewer with {1, 2, 3} (min_entropy) by −" in found
    assert "not distinguishable from it: {4, 8, 11}" in found
    assert "would probably have gone unnoticed. The verdicts are the same at T = 1, 30 nodes." in found
    assert "only-geometry: no acceptance was measured" in found
    assert "95 % intervals over 12 questions; each set was trained with 1 to 3 seeds" in caveat
    assert "slower than plain decoding" in caveat
    assert "plain forward passes" in caveat


def test_the_answer_tells_where_the_pooled_verdict_differs(study):
    rows = study.comparisons
    pooled = rows.assign(verdict=rows["verdict"].where(rows["metric"] == "tau_question", "not distinguishable"))
    (found, *_) = answer(dataclasses.replace(study, comparisons=pooled)).found
    assert re.search(
        r"\{1, 2, 3\} \(min_entropy\) by −[^(]*\(pooled over verifications −.*, not distinguishable\)", found
    )
    assert "pooled over verifications" not in answer(study).found[0]


def test_layout_and_summaries_agree(built):
    assert Path(layout(built).summary("tiny-qwen3", "runs")).exists()
