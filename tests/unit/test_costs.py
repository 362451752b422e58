"""What jobs ask for follows from the model and the settings, and the plan comes near to what a run measured."""

import csv
from pathlib import Path

import pytest
import yaml

from speclayers.layout import Layout
from speclayers.names import HeadName
from speclayers.planning.costs import Costs
from speclayers.planning.fanout import (
    LayerSet,
    acceptance_runs,
    most_sets,
    moved_heads,
    pretrained_heads,
    speed_runs,
    trained_heads,
)
from speclayers.planning.plan import lines_of_text, plan_study
from speclayers.planning.sizes import ASSUMED, size_of
from speclayers.reading import parse_study
from speclayers.targets.manifest import Manifest, write_manifest
from tests.unit.test_config import ROOT, merged

NUMBERS = ("jobs", "seconds", "cpu_seconds", "max_rss_mb")


def measured(name):
    """What Snakemake recorded of all jobs of a finished study, from the table `costs` of its study.duckdb."""
    with (Path(__file__).parent / "data" / f"{name}_costs.csv").open() as table:
        return [
            {key: float(value) if key in NUMBERS else value for key, value in row.items()}
            for row in csv.DictReader(table)
        ]


MEASURED = measured("quickstart")
HEAD = str(HeadName(layers=(2, 15, 27), seed=0))
OF_HEAD = {"model": "smollm2-135m", "head": HEAD, "temperature": "0", "nodes": "30"}


def study(**overrides):
    return parse_study(merged(overrides))


def jobs(plan, stage, model):
    return next(line.jobs for line in plan.lines if (line.stage, line.model) == (stage, model))


@pytest.fixture
def layout(tmp_path):
    return Layout("quickstart", str(tmp_path))


@pytest.fixture
def costs(layout):
    def build(**overrides):
        return Costs(study(**overrides), layout)

    return build


def test_the_plan_of_the_default_study_is_within_twice_of_what_a_run_measured(layout):
    plan = plan_study(study(), layout)
    planned = {(line.stage, line.model): line for line in plan.lines}
    for row in MEASURED:
        line = planned[row["rule"], row["model"]]
        assert line.jobs == row["jobs"]
        assert 0.5 < line.hours * 3600 / row["seconds"] < 2, row
        assert 0.8 < line.memory_mb / row["max_rss_mb"] < 2, row
    measured = sum(row["seconds"] for row in MEASURED) / 3600
    assert 0.5 < plan.total.hours / measured < 2


def test_the_plan_of_the_embedded_study_is_within_twice_of_what_a_run_measured(layout):
    plan = plan_study(parse_study(merged(yaml.safe_load((ROOT / "studies/embedded.yaml").read_text()))), layout)
    planned = {(line.stage, line.model): line for line in plan.lines}
    rows = measured("embedded")
    for row in rows:
        line = planned[row["rule"], row["model"]]
        assert line.jobs == row["jobs"], row
        # other work ran beside it: of a job that had its core for less than half of the time, either clock may be right
        own = row["cpu_seconds"] / row["seconds"] > 0.5
        assert 0.5 * row["seconds" if own else "cpu_seconds"] < line.hours * 3600 < 2 * row["seconds"], row
        assert 0.5 < line.memory_mb / row["max_rss_mb"] < 2, row
    total = sum(row["seconds"] for row in rows) / 3600
    assert 0.5 < plan.total.hours / total < 2


def test_jobs_ask_for_more_than_was_measured_and_for_more_at_each_attempt(costs):
    asked = costs()
    for row in MEASURED:
        wildcards = OF_HEAD | {"model": row["model"], "split": "training", "layers": "l02-l15-l27"}
        memory, minutes = (
            [find(row["rule"], wildcards, attempt) for attempt in (1, 2, 3)] for find in (asked.memory, asked.minutes)
        )
        assert memory[0] > row["max_rss_mb"]
        assert minutes[0] * 60 > row["seconds"] / row["jobs"]
        assert memory == [n * memory[0] for n in (1, 2, 3)]
        assert minutes == [n * minutes[0] for n in (1, 2, 3)]


def test_a_larger_model_asks_for_more(costs):
    large = {"size": {"parameters": 2**33, "layers": 80, "width": 4096, "vocabulary": 128256}}
    small, big = costs(), costs(models={"smollm2-135m": large})
    for stage in ("dump_activations", "train_draft", "measure_acceptance", "measure_geometry", "select_layers"):
        assert big.memory(stage, OF_HEAD, 1) > small.memory(stage, OF_HEAD, 1), stage
        assert big.minutes(stage, OF_HEAD, 1) > small.minutes(stage, OF_HEAD, 1), stage


def test_a_gpu_is_asked_for_only_where_the_device_asks(costs):
    on_model = ("dump_activations", "build_corpus", "train_draft", "decode_baseline", "measure_acceptance")
    elsewhere = ("fetch_model", "measure_geometry", "sweep_filter", "select_layers", "summarise_model")
    wildcards = OF_HEAD | {"split": "training"}
    for device, gpus in (("cpu", 0), ("cuda", 1), ("auto", 1)):
        asked = costs(models={"smollm2-135m": {"device": device}})
        assert {asked.of(stage, wildcards).gpus for stage in on_model} == {gpus}
        assert {asked.of(stage, wildcards).gpus for stage in elsewhere} == {0}
        assert asked.of("build_teacher", {"model": "tiny-qwen3"}).gpus == gpus  # the teacher answers there
        assert asked.of("make_tiny_model", {"model": "tiny-qwen3"}).gpus == 0
    assert costs(geometry={"device": "cuda"}).of("measure_geometry", OF_HEAD).gpus == 1
    shared = costs(geometry={"device": "cuda", "shards": 2})
    assert (shared.of("measure_geometry", OF_HEAD).gpus, shared.of("accumulate_gram", OF_HEAD).gpus) == (0, 1)
    together = costs(models={"smollm2-135m": {"device": "cuda"}}, draft={"processes": 2})
    assert together.of("train_draft", OF_HEAD).gpus == 2
    spread = {"device": "auto", "size": {"parameters": 7e10, "layers": 80, "width": 8192, "vocabulary": 128256}}
    assert costs(models={"smollm2-135m": spread | {"dtype": "bfloat16"}}).gpus("smollm2-135m") == 3


def test_the_size_comes_from_the_manifest_then_the_config_then_an_assumption(layout):
    with_size, without = study(), study(models={"smollm2-135m": {"size": None}})
    assert size_of(with_size, "smollm2-135m", layout).layers == 30
    assert size_of(without, "smollm2-135m", layout) == ASSUMED
    trained = size_of(with_size, "tiny-qwen3", layout)
    assert (trained.layers, trained.width, trained.vocabulary) == (12, 128, 49152)
    assert abs(trained.parameters - 8_654_720) < 10_000  # its manifest's; the norms are left out
    costs = Costs(without, layout)
    assert costs.size("smollm2-135m") == ASSUMED
    numbers = {"layers": 7, "width": 8, "vocabulary": 9, "parameters": 10, "context": 11, "pad_token_id": 0}
    texts = dict.fromkeys(("name", "architecture", "dtype", "tokenizer_hash", "template_hash"), "x")
    flags = {"tied": True, "has_chat_template": True, "stop_ids": [0], "source": {}, "files": {}}
    manifest = Manifest(**numbers, **texts, **flags, revision=None, licence=None)
    write_manifest(Path(layout.target("smollm2-135m")), manifest)
    assert costs.size("smollm2-135m").layers == 7  # found although it was fetched after the first look


def test_as_many_layer_sets_as_selectors_sizes_and_seeds():
    pinned = {"name": "pinned", "k": [1, 2], "options": {"sets": [[1], [2], [1, 5]]}}
    elsewhere = {"name": "uniform", "k": [2], "models": ["tiny-qwen3"]}
    untrained = {"name": "elsi", "k": [1, 3], "train": False}
    random = {"name": "random", "k": [2, 3], "seeds": [0, 1, 2]}
    chosen = [{"name": "eagle3", "k": [3]}, pinned, elsewhere, untrained, random]
    config = study(selection={"selectors": chosen})
    sets = most_sets(config, "smollm2-135m")
    assert sorted(len(found.layers) for found in sets) == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert len({found.layers for found in sets}) == len(sets)
    assert len(most_sets(config, "tiny-qwen3")) == len(sets) + 1


def test_replicas_are_measured_only_where_they_are_wanted():
    settings = {"temperatures": [0, 1], "nodes": [30, 60], "replicas": {"temperatures": [0], "nodes": [30]}}
    config = study(draft={"seeds": [4, 5]}, acceptance=settings, speed={"temperatures": [0], "seeds": [5]})
    sets = [LayerSet((2, 15, 27), ("eagle3",)), LayerSet((1, 2, 3), ("elsi",))]
    heads = trained_heads(config, sets)
    assert [(head.layers, head.seed) for head in heads] == [(s.layers, seed) for s in sets for seed in (4, 5)]
    assert len(acceptance_runs(config, heads)) == 2 * (4 + 1)
    assert [(run.head.seed, run.temperature, str(run.nodes)) for run in speed_runs(config, heads)] == [
        (5, "0", "30")
    ] * 2


def test_moved_heads_start_from_one_selectors_sets_and_end_at_the_others():
    three = [{"name": name, "k": [3]} for name in ("eagle3", "elsi", "min_entropy")]
    move = {"to": ["elsi", "min_entropy"], "percents": [0, 10]}
    config = study(selection={"selectors": three}, transfer=move, draft={"seeds": [0, 1]})
    both = LayerSet((2, 15, 27), ("eagle3", "elsi"))
    moved = moved_heads(config, [both, LayerSet((1, 2, 3), ("min_entropy",))])
    assert {(head.start, head.layers) for head in moved} == {((2, 15, 27), (1, 2, 3))}
    assert len(moved) == 2 * 2
    assert moved_heads(study(), [both]) == []


def test_heads_from_elsewhere_are_measured_as_they_came_and_trained_on(layout):
    entry = {"model": "tiny-qwen3", "path": "x", "percents": [0, 10]}
    settings = {"temperatures": [0, 1], "nodes": [30], "replicas": {"temperatures": [0], "nodes": [30]}}
    config = study(pretrained={"own": entry}, draft={"seeds": [4, 5]}, acceptance=settings, speed={"seeds": [4]})
    heads = pretrained_heads(config, "tiny-qwen3")
    assert list(map(str, heads)) == ["pretrained.own", "pretrained.own.p10.s4", "pretrained.own.p10.s5"]
    assert pretrained_heads(config, "smollm2-135m") == []
    assert [(str(run.head), run.temperature) for run in acceptance_runs(config, heads)] == [
        *(("pretrained.own", "0"), ("pretrained.own", "1")),
        *(("pretrained.own.p10.s4", "0"), ("pretrained.own.p10.s4", "1"), ("pretrained.own.p10.s5", "0")),
    ]
    lines = {(line.model, line.stage): line for line in plan_study(config, layout).lines}
    assert lines["tiny-qwen3", "continue_draft"].jobs == 2
    assert ("smollm2-135m", "continue_draft") not in lines
    training = lines["tiny-qwen3", "train_draft"]
    assert 0 < lines["tiny-qwen3", "continue_draft"].hours / 2 < training.hours / training.jobs


def test_the_plan_warns_where_the_disk_is_too_small(layout):
    plan = plan_study(study(), layout)
    assert plan.disk_mb > plan.total.disk_mb > 0
    assert not any("warning" in line for line in lines_of_text(plan, plan.disk_mb + 1))
    assert any("warning: only 0.0 GB are free" in line for line in lines_of_text(plan, 1))


def test_the_papers_study_fits_on_a_few_disks_as_it_stores_no_features(layout):
    paper = yaml.safe_load((ROOT / "studies/paper.yaml").read_text())
    plan = plan_study(parse_study(merged(paper)), layout)
    assert "extract_features" not in {line.stage for line in plan.lines}
    assert plan.disk_mb < 2e6
    paper["draft"]["features"] = "cached"
    assert plan_study(parse_study(merged(paper)), layout).disk_mb > 1e7


def test_the_plan_counts_what_was_chosen_once_it_is_known(layout):
    bound = plan_study(study(), layout)
    chosen = Path(layout.heads("smollm2-135m"))
    chosen.parent.mkdir(parents=True)
    chosen.write_text('{"heads": [{"layers": [2, 15, 27], "selectors": ["eagle3", "elsi"]}]}')
    known = plan_study(study(), layout)

    assert (jobs(bound, "train_draft", "smollm2-135m"), jobs(known, "train_draft", "smollm2-135m")) == (4, 1)
    assert jobs(known, "measure_acceptance", "smollm2-135m") == 4
    assert jobs(known, "train_draft", "tiny-qwen3") == 4
    assert "smollm2-135m: 1 layer sets to train on (chosen)" in known.assumptions


def test_heads_trained_elsewhere_are_planned_with_all_their_runs(layout):
    published = {"model": "smollm2-135m", "repo": "a/b"}
    alone = plan_study(study(acceptance={"shards": 3}), layout)
    plan = plan_study(study(acceptance={"shards": 3}, pretrained={"one": published, "two": published}), layout)
    assert jobs(plan, "import_draft", "smollm2-135m") == 2
    for stage, runs in (("measure_acceptance", 2 * 4 * 3), ("measure_speed", 2)):  # heads × settings × shards
        assert jobs(plan, stage, "smollm2-135m") == jobs(alone, stage, "smollm2-135m") + runs
        assert jobs(plan, stage, "tiny-qwen3") == jobs(alone, stage, "tiny-qwen3")
