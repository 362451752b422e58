"""Drafters without a head: compared with the reference's head on the same questions, and with nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from speclayers.analysis.answer import answer
from speclayers.analysis.estimates import Measured
from speclayers.analysis.report import sections
from speclayers.analysis.rival_estimates import pair_draws
from speclayers.analysis.rivals_figures import columns, front, spread
from speclayers.analysis.rivals_page import MEANINGS
from speclayers.analysis.statistics import Counts, holm, tau_by_seed
from speclayers.analysis.study import build_study, read_study
from speclayers.analysis.warehouse import new_database, query
from speclayers.drafting.rival import known_rivals
from tests.synthetic import RIVAL_NODES, MadeUpModel, layout, write_study

RIVALS = {"prompt_lookup": 0.3, "searched": 0.6, "random_skip.s0": 0.2, "random_skip.s1": 0.25, "trained_rival.s0": 0.5}
MODEL = "tiny-qwen3"
PAIRED = ["model", "temperature", "metric"]


def measure(root: Path, job: str, seconds: float, rss: float) -> None:
    """Write a job's measurement: rule, model and what else names it, divided by slashes."""
    rule, *wildcards = job.split("/")
    path = Path(layout(root).benchmark(rule, *wildcards))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"s": seconds, "max_rss": rss, "cpu_time": seconds}) + "\n")


def build(root: Path, **settings):
    made_up = MadeUpModel(MODEL, questions=24, **settings)
    arguments = write_study(root, made_up)
    head = "eagle3.l02-l06-l09.s0"
    for job, seconds, rss in (
        (f"train_draft/{MODEL}/{head}", 300.0, 900.0),
        (f"train_head_of_rival/{MODEL}/trained_rival.s0", 80.0, 900.0),
        (f"search_skips/{MODEL}/searched", 20.0, 900.0),
        (f"search_skips/{MODEL}/no_longer_wanted", 20.0, 900.0),
        (f"measure_rival/{MODEL}/searched/T0-n7", 9.0, 1100.0),
        (f"time_rival/{MODEL}/searched/T0-n7", 6.0, 1100.0),
        (f"measure_rival/{MODEL}/prompt_lookup/T0-n7/0", 4.0, 1010.0),
        (f"measure_rival/{MODEL}/prompt_lookup/T0-n7/1", 4.0, 1020.0),
        (f"measure_rival/{MODEL}/no_longer_wanted/T0-n7", 4.0, 1020.0),
        (f"measure_acceptance/{MODEL}/{head}/T0-n30", 9.0, 1060.0),
        (f"decode_baseline/{MODEL}/T0", 5.0, 1000.0),
    ):
        measure(root, job, seconds, rss)
    with new_database(root / "study.duckdb", threads=1) as connection:
        build_study(connection, **arguments)
        differences = query(connection, "from rival_differences")
        return read_study(connection), differences


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("rivals"), rivals=RIVALS)


@pytest.fixture(scope="module")
def study(built):
    return built[0]


@pytest.fixture(scope="module")
def tables(study):
    return {table.caption.split(".")[0]: table for table in blocks(study, "table")}


def blocks(study, kind):
    return [b.content for s in sections(study) if s.name == "rivals" for b in s.blocks if b.kind == kind]


def test_a_difference_to_the_head_is_that_of_the_taus(study, built):
    differences = built[1]
    tau = study.drafters.set_index(["layer_set", "temperature", "nodes"])
    assert len(differences) == 4 * 2 * 2  # drafters, temperatures, metrics
    for row in differences.to_dict("records"):
        own = tau.loc[row["layer_set"], row["temperature"], RIVAL_NODES][row["metric"]]
        head = tau.loc["l02-l06-l09", row["temperature"], 30][row["metric"]]
        assert row["difference"] == pytest.approx(own - head)
        assert (row["reference"], row["reference_nodes"], row["questions"]) == ("l02-l06-l09", 30, 24)
        assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_holm_runs_over_the_drafters_of_one_temperature(built):
    for _, group in built[1].groupby(PAIRED):
        assert len(group) == 4
        assert list(group["p_holm"]) == list(holm(group["p"]))
    verdicts = built[1].query("metric == 'tau_question' and temperature == 0").set_index("layer_set")["verdict"]
    assert verdicts["prompt_lookup"] == "lower"
    assert verdicts["searched"] == "not distinguishable"


def test_drafters_without_a_head_change_no_comparison_of_layer_sets(tmp_path):
    same = {"nodes": (RIVAL_NODES,), "temperatures": (0.0,), "chains": (5,)}  # as many nodes as the drafters have
    with_rivals, _ = build(tmp_path / "with", rivals=RIVALS, **same)
    without, _ = build(tmp_path / "without", **same)
    pd.testing.assert_frame_equal(with_rivals.comparisons, without.comparisons)
    pd.testing.assert_frame_equal(with_rivals.power, without.power)
    pd.testing.assert_frame_equal(with_rivals.tau, without.tau)
    assert not with_rivals.drafters[with_rivals.drafters["layers"].isna()]["chain"].any()


def counts(values):
    """Two questions, one cycle each, a seed for each value."""
    emitted = np.array([[value, value] for value in values], dtype=float)
    return Counts(emitted, np.ones_like(emitted))


@pytest.mark.parametrize(
    ("ours", "head", "paired"),
    [
        ({-1: 2}, {0: 5}, [(2, 5)]),
        ({-1: 2}, {0: 5, 1: 6, 2: 7}, [(2, 5), (2, 6), (2, 7)]),
        ({3: 1, 9: 4}, {0: 5}, [(1, 5), (4, 5)]),
        ({3: 1, 9: 4}, {0: 5, 1: 6, 2: 7}, [(1, 5), (4, 6)]),
    ],
)
def test_draws_and_training_seeds_are_paired_one_to_one_or_one_to_all(ours, head, paired):
    sides = [Measured(list(side), [7, 8], counts(side.values())) for side in (ours, head)]
    found = [tau_by_seed(side, "tau_question") for side in pair_draws(*sides)]
    assert list(zip(*found, strict=True)) == paired


def test_making_costs_what_the_jobs_took_whose_names_are_a_drafters(study):
    rows = study.drafters.query("temperature == 0").drop_duplicates("layer_set").set_index("layer_set")
    made = {name: tuple(rows.loc[name, ["training_s", "search_s"]]) for name in ("searched", "prompt_lookup")}
    assert made == {"searched": (0, 20), "prompt_lookup": (0, 0)}
    assert tuple(rows.loc["trained_rival", ["training_s", "search_s"]]) == (80, 0)
    assert tuple(rows.loc["l02-l06-l09", ["training_s", "search_s"]]) == (300, 0)
    assert np.isnan(rows.loc["l04-l08-l11", "training_s"])  # its job was not measured
    memory = rows["extra_mb"]
    assert tuple(memory[["searched", "prompt_lookup", "l02-l06-l09"]]) == (100, 20, 60)
    assert np.isnan(memory["trained_rival"])
    assert "no_longer_wanted" not in set(study.costs["rule"])
    jobs = study.costs.set_index("rule")["jobs"]
    assert (jobs["measure_rival"], jobs["search_skips"]) == (3, 1)


def test_an_import_makes_nothing_and_belongs_to_no_drafter_of_its_entrys_name(tmp_path):
    measure(tmp_path, f"import_draft/{MODEL}/pretrained.searched", 70.0, 900.0)
    study, _ = build(tmp_path, rivals=RIVALS)
    assert set(study.drafters.query("layer_set == 'searched'")["search_s"]) == {20}


def test_costs_count_the_tokens_of_drafters_without_a_head_and_of_chains(tmp_path):
    measure(tmp_path, f"measure_acceptance/{MODEL}/eagle3.l02-l06-l09.s0/T0-n5c", 3.0, 900.0)
    study, _ = build(tmp_path, rivals=RIVALS, chains=(5,))
    answered = study.runs.set_index(["drafter", "temperature", "nodes"])["new_tokens"].sort_index()
    costs = study.costs.set_index("rule")
    assert costs.loc["measure_rival", "tokens"] == answered["searched", 0, RIVAL_NODES]
    assert costs.loc["measure_rival", "tokens_per_s"] == costs.loc["measure_rival", "tokens"] / 9  # not over shards'
    assert costs.loc["time_rival", "tokens"] > 0
    head = answered["eagle3.l02-l06-l09.s0", 0]
    assert costs.loc["measure_acceptance", "tokens"] == head[5] + head[30]


def test_the_page_shows_yields_costs_and_categories(tables):
    yields, costs = tables["Drafters that need no head, and the heads"], tables["What drafting costs"]
    row = next(row for row in yields.rows if row[:2] == ["prompt_lookup", "0"])
    assert row[7] == "lower"
    assert row[5].startswith("−")
    assert "[" in row[8]  # the speed-up has limits
    assert "against the head of eagle3, paired by question ({2, 6, 9} with 30 nodes)" in yields.caption
    assert {row[7] for row in yields.rows if row[0].startswith("{")} == {"–"}
    assert next(row for row in costs.rows if row[0] == "searched")[-3:] == ["100", "0", "20"]
    categories = next(table for name, table in tables.items() if name.startswith("τ by category"))
    assert categories.head[3:] == ["math reasoning", "qa", "rag", "summarization", "translation", "writing"]
    assert {row[0] for row in categories.rows} == {
        *("prompt_lookup", "searched", "random_skip", "trained_rival", "{2, 6, 9}")
    }
    assert all(cell != "–" for row in categories.rows for cell in row)


def test_the_figure_names_the_best_and_the_best_of_those_without_training(study):
    (figure,) = blocks(study, "figure")
    assert re.fullmatch(
        r"On tiny-qwen3, .* yields most \(τ 2\.\d\d \[.+?\]\) after \d+ seconds .+"
        r" prompt_lookup without any \(1\.\d\d\); .*",
        figure.title,
    )
    assert "no cheaper one equals" in figure.alt
    texts = {row["name"] for row in figure_rows(figure) if "label" in row}
    assert texts == {"prompt_lookup", "searched", "random_skip", "trained_rival", "{2, 6, 9}"}


def test_close_points_have_their_labels_in_one_column():
    places, outward = np.array([5.0, 0.0, 4.9, 4.0, 0.1]), np.array([-1, 1, -1, -1, 1])
    assert list(columns(places, 0.5, outward)) == [4.9, 0.1, 4.9, 4.0, 0.1]


def test_what_each_drafter_does_is_told_where_it_is_known(study):
    (words,) = (b.content for s in sections(study) if s.name == "words" for b in s.blocks)
    told = [term for term, _ in words if term in MEANINGS]
    assert told == ["random_skip", "prompt_lookup"]  # the others are made up
    assert set(MEANINGS) <= set(known_rivals())


def figure_rows(figure):
    return (
        [row for data in figure.chart["datasets"].values() for row in data]
        if "datasets" in figure.chart
        else [row for panel in figure.chart["vconcat"] for layer in panel["layer"] for row in layer["data"]["values"]]
    )


def test_a_drafter_whose_greedy_answers_differ_stands_in_no_table(tmp_path):
    study, _ = build(tmp_path, rivals={"prompt_lookup": 0.3}, temperatures=(0.0,), different_turns=1)
    assert not study.drafters["lossless"].any()
    first = next(b for b in blocks(study, "table"))
    assert first.rows == []
    assert "left out, since greedy answers differ from plain decoding's: prompt_lookup" in first.caption


def test_the_answer_speaks_of_the_speed_of_heads_alone(study):
    rivals = study.speed["layer_set"].isin(RIVALS)
    assert rivals.any()
    assert "drafting with {2, 6, 9} was" in answer(study).caveat
    assert "drafting with" not in answer(replace(study, speed=study.speed[rivals])).caveat


def test_all_of_a_models_blocks_are_shown_and_hidden_with_it(study):
    found = [block for section in sections(study) if section.name == "rivals" for block in section.blocks]
    assert {block.model for block in found if "model" not in getattr(block.content, "head", ())} == {MODEL}


def test_a_tree_of_as_many_nodes_as_the_heads_chains_is_called_no_chain(tmp_path):
    study, _ = build(tmp_path, rivals={"prompt_lookup": 0.3}, temperatures=(0.0,), chains=(RIVAL_NODES,))
    rows = study.categories[study.categories["nodes"] == RIVAL_NODES]
    assert "l02-l06-l09" in set(rows[rows["chain"]]["layer_set"])
    assert set(rows[~rows["chain"]]["layer_set"]) == {"prompt_lookup"}


def test_without_rivals_there_is_no_section(tmp_path):
    study, differences = build(tmp_path, temperatures=(0.0,))
    assert differences.empty
    assert "rivals" not in {section.name for section in sections(study)}


def test_the_front_holds_what_no_cheaper_drafter_equals():
    rows = pd.DataFrame({"cost": [0, 0, 20, 300, 400], "tau": [1.2, 1.5, 1.4, 1.9, 1.9]})
    assert list(front(rows, "tau")) == [False, True, False, True, False]


def test_labels_are_moved_up_no_further_than_needed():
    assert np.allclose(spread(np.array([1.0, 1.02, 5.0, 1.01]), 0.1), [1.0, 1.2, 5.0, 1.1])
    assert np.allclose(spread(np.array([3.0, 2.0, 1.0]), 1.0), [3, 2, 1])
