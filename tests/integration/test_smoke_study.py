"""The smoke study, run for real: complete, exact, repeatable, resumable."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from speclayers.layout import GEOMETRY_TABLES, Layout
from speclayers.names import layers_name
from tests.integration.conftest import ROOT

MODEL = "smoke-qwen3"
LAYOUT = Layout("smoke")


def path(space, where):
    return space.folder / where


def heads(space):
    return sorted(p.name for p in path(space, LAYOUT.model(MODEL)).glob("heads/*"))


def test_every_table_figure_and_page_is_there(finished):
    for table in GEOMETRY_TABLES:
        assert path(finished, LAYOUT.geometry(MODEL, table)).stat().st_size
    page = path(finished, LAYOUT.report).read_text()
    assert "<html" in page
    assert len(list(path(finished, LAYOUT.figures).glob("*.svg"))) >= 5
    assert len(path(finished, LAYOUT.answer).read_text().strip().splitlines()) == 3
    with duckdb.connect(str(path(finished, LAYOUT.database)), read_only=True) as connection:
        runs = connection.sql("SELECT drafter, temperature, nodes FROM runs").fetchall()
    assert len(runs) == len(heads(finished)) * 2


def test_a_second_run_has_nothing_to_do(copy_of_finished):
    done = copy_of_finished.smoke()
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout + done.stderr


def test_another_study_does_not_make_the_shared_model_again(finished):
    planned = finished.snakemake("-n", "--configfile", "studies/smoke.yaml", "--config", "study={name: other}").stdout
    assert "build_corpus" in planned
    assert "build_teacher" not in planned
    assert "make_tiny_model" not in planned


def arrows(nodes, edges):
    """The arrows of a graph by its rules' names."""
    names = dict(nodes)
    return {(names[start], names[end]) for start, end in edges}


def test_the_picture_of_the_rules_is_the_workflows(finished):
    """docs/workflow.md shows the default study's and drafters without a head, and nothing shared out over jobs."""
    words = ("snakemake", "--rulegraph", "dot", "--configfile", "studies/smoke.yaml")
    graph = finished.run(*words).stdout
    ours = arrows(re.findall(r"(\d+)\[label = \"(\w+)\"", graph), re.findall(r"(\d+) -> (\d+)", graph))
    picture = (ROOT / "docs/figures/rules.svg").read_text()
    nodes = re.findall(r"<title>(\d+)</title>\s(?:<path.*\s)?<text.*>(\w+)</text>", picture)
    shown = arrows(nodes, re.findall(r"<title>(\d+)&#45;&gt;(\d+)</title>", picture))
    assert len(ours) > 30
    assert all("accumulate_gram" in arrow for arrow in ours - shown)
    others = {"measure_rival", "time_rival", "fetch_model"}  # the default study studies a fetched model, too
    assert all(others & set(arrow) for arrow in shown - ours)


def test_a_dry_run_shows_the_stages_before_the_selection(workspace):
    done = workspace.smoke("-n")
    assert done.returncode == 0
    for rule in ("make_tiny_model", "build_corpus", "measure_geometry", "select_layers", "render_report"):
        assert rule in done.stdout
    assert "train_draft" not in done.stdout


def test_shared_out_gram_products_are_jobs_of_their_own(workspace):
    shares = "rule accumulate_gram:"
    alone = workspace.smoke("-n", "--config", "geometry={shards: 1}")
    assert alone.returncode == 0
    assert alone.stdout.count(shares) == 0
    done = workspace.smoke("-n", "--config", "geometry={shards: 4}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(shares) == 4
    assert done.stdout.count("rule measure_geometry:") == 1
    folder = LAYOUT.gram_shard(MODEL, "{shard}")
    assert all(folder.format(shard=shard) in done.stdout for shard in range(4))


def test_runs_shared_out_over_jobs_give_the_same_tables(copy_of_finished):
    head = heads(copy_of_finished)[0]
    wanted = [LAYOUT.baseline(MODEL, "0"), *(LAYOUT.acceptance(MODEL, head, "0", 8, t) for t in ("cycles", "turns"))]
    before = [path(copy_of_finished, output).read_bytes() for output in wanted]
    done = copy_of_finished.smoke(*wanted[:2], "--config", "acceptance={shards: 3}")
    assert done.returncode == 0, done.stderr
    ran = executed(done)
    assert [ran.count(rule) for rule in ("decode_baseline", "merge_baseline", "measure_acceptance")] == [3, 1, 3]
    assert [path(copy_of_finished, output).read_bytes() for output in wanted] == before
    assert not any(path(copy_of_finished, LAYOUT.model(MODEL)).glob("work/*"))


def test_a_dry_run_of_the_papers_study_needs_no_network_and_lists_both_models(workspace):
    done = workspace.snakemake("-n", "--configfile", "studies/paper.yaml")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Job stats:")[1].split("total")[0]
    jobs = {
        line.split()[0]: int(line.split()[1])
        for line in table.splitlines()
        if line.split()[1:2] > ["0"] and line.split()[1].isdigit()
    }
    for rule in ("fetch_model", "dump_activations", "measure_geometry", "select_layers", "summarise_model"):
        assert jobs[rule] == 2, rule
    assert jobs["build_corpus"] == 4  # calibration, and training, which the screening needs whatever is selected
    assert jobs["screen_layers"] == 2
    assert jobs["render_report"] == 1
    assert not {"train_draft", "make_tiny_model"} & set(jobs)
    for model in ("qwen3-4b", "llama-3.1-8b"):
        assert f"results/paper/{model}/selection/selections.parquet" in done.stdout


def test_the_slurm_profile_plans_the_papers_study_where_there_is_no_slurm(workspace):
    done = workspace.run("snakemake", "--profile", "slurm", "-n", "--configfile", "studies/paper.yaml")
    assert done.returncode == 0, done.stderr
    (block,) = re.findall(
        r"^rule build_corpus:\n(?: {4}.*\n)*?    output: .*4b/corpus/training.*\n(?: {4}.*\n)+", done.stdout, re.M
    )
    assert "gpu=1" in block
    assert "ran_on={}" in block


def test_a_lock_is_told_with_what_to_do(workspace):
    locks = workspace.folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{LAYOUT.manifest('smollm2-135m')}\n")
    done = workspace.smoke(LAYOUT.manifest("smollm2-135m"))
    assert done.returncode != 0
    assert "Directory cannot be locked" in done.stderr
    assert "--unlock" in done.stderr


def test_layers_alone_trains_nothing(workspace):
    done = workspace.smoke("-n", "layers")
    assert done.returncode == 0
    for rule in ("select_layers", "sweep_filter", "recommend_layers", "render_layers"):
        assert rule in done.stdout
    assert "decode_baseline" not in done.stdout


def test_the_page_of_the_layers_and_the_recommendation(copy_of_finished):
    done = copy_of_finished.smoke("layers")
    assert done.returncode == 0, done.stderr
    assert "how sure" in path(copy_of_finished, LAYOUT.layers_page).read_text()
    found = json.loads(path(copy_of_finished, LAYOUT.recommendation(MODEL)).read_text())
    assert {entry["selector"] for entry in found["selections"]} == {"eagle2", "eagle3", "elsi", "random"}
    assert all(entry["ids"]["vllm"]["ids"] == entry["layers"] for entry in found["selections"])


def test_greedy_answers_of_every_head_equal_transformers_own_generate(finished):
    folder = path(finished, LAYOUT.target(MODEL))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    baseline = pd.read_parquet(path(finished, LAYOUT.baseline(MODEL, "0")))
    budget = 12
    expected = {}
    for row in baseline.itertuples():
        prompt = torch.tensor([list(row.prompt_ids)])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=budget)
        expected[row.question_id, row.turn] = out[0, prompt.shape[1] :].tolist()
    assert len(expected) == 7
    assert {key: list(ids) for key, ids in zip(expected, baseline.output_ids, strict=True)} == expected
    for head in heads(finished):
        turns = pd.read_parquet(path(finished, LAYOUT.acceptance(MODEL, head, "0", 8, "turns")))
        assert turns.identical_to_greedy.all()
        assert {(t.question_id, t.turn): list(t.output_ids) for t in turns.itertuples()} == expected


def test_second_turns_follow_the_greedy_first_answer(finished):
    baseline = pd.read_parquet(path(finished, LAYOUT.baseline(MODEL, "0"))).set_index(["question_id", "turn"])
    tokenizer = AutoTokenizer.from_pretrained(path(finished, LAYOUT.target(MODEL)))
    (question,) = {q for q, turn in baseline.index if turn == 1}
    answer = tokenizer.decode(baseline.output_ids[question, 0], skip_special_tokens=True).strip()
    assert answer in tokenizer.decode(baseline.prompt_ids[question, 1])


def test_a_changed_model_is_studied_again_to_the_end(copy_of_finished):
    study = copy_of_finished.folder / "studies/smoke.yaml"
    study.write_text(study.read_text().replace("steps: 200", "steps: 201"))
    done = copy_of_finished.smoke("-n")
    assert done.returncode == 0
    for rule in ("make_tiny_model", "build_corpus", "select_layers", "render_report"):
        assert rule in executed(done)
    assert "build_teacher" not in executed(done)


SCREEN = """
screen:
  budget: 60
  keep: 0.3
"""


def with_screen(space):
    study = space.folder / "studies/smoke.yaml"
    study.write_text(study.read_text() + SCREEN)


def executed(done):
    # a job with a message of its own begins with that, which names its rule, too
    shown = r"^(?:(?:local)?(?:rule|checkpoint)|Job \d+:) (\w+)"
    return re.findall(shown, done.stdout + done.stderr, re.MULTILINE)


def test_a_screening_is_planned_only_where_it_is_configured(workspace):
    assert "screen_layers" not in workspace.smoke("-n").stdout
    with_screen(workspace)
    assert executed(workspace.smoke("-n")).count("screen_layers") == 1
    assert "screen_layers" not in workspace.smoke("-n", "layers").stdout


def test_a_screening_added_later_runs_itself_and_its_winner_only(copy_of_finished):
    with_screen(copy_of_finished)
    planned = sorted(set(executed(copy_of_finished.smoke("-n"))))
    assert planned == ["aggregate_study", "all", "render_report", "screen_layers", "summarise_model"]
    done = copy_of_finished.smoke(LAYOUT.screened(MODEL))
    assert done.returncode == 0, done.stderr
    assert executed(done) == ["screen_layers"]
    table = pd.read_parquet(path(copy_of_finished, LAYOUT.screening(MODEL)))
    assert set(table[table["layers"].map(len) == 1]["candidate"]) == {f"l0{layer}" for layer in range(1, 7)}
    assert not path(copy_of_finished, LAYOUT.work(MODEL, "screening")).exists()
    where = path(copy_of_finished, LAYOUT.screened(MODEL))
    for layers in ([4], json.loads(where.read_text())["layers"]):  # a winner that nobody chose, and the true one
        where.write_text(json.dumps({"model": MODEL, "layers": layers}))
        new = f"eagle3.{layers_name(layers)}.s0" not in heads(copy_of_finished)
        assert new or layers != [4]
        done = copy_of_finished.smoke("-n")
        planned = executed(done)
        assert [planned.count(rule) for rule in ("train_draft", "measure_acceptance", "measure_speed")] == [
            *(new, 2 * new, new)
        ]
        assert planned.count("extract_features") == (layers == [4])
        assert not {"screen_layers", "select_layers", "build_corpus", "decode_baseline"} & set(planned)


TRANSFER = """
transfer:
  start: pinned
  to: [uniform]
"""


def test_moved_heads_are_planned_where_configured(copy_of_finished):
    study = copy_of_finished.folder / "studies/smoke.yaml"
    added = "{name: pinned, k: [2], options: {sets: [[1, 5]]}}\n    - {name: uniform, k: [2]}"
    text = study.read_text().replace("{name: eagle2, k: [1], train: false}", added)
    study.write_text(text + TRANSFER)
    assert copy_of_finished.smoke(LAYOUT.heads(MODEL)).returncode == 0
    done = copy_of_finished.smoke("-n")
    assert done.returncode == 0, done.stderr
    trained = set(re.findall(r"heads/(eagle3[^/]+)/model.safetensors", done.stdout))
    start, end = "eagle3.l01-l05.s0", "eagle3.l02-l05.s0"
    moved = {f"{end}.from-l01-l05.p0", f"{end}.from-l01-l05.p10"}
    assert moved <= trained
    planned = executed(done)
    assert planned.count("train_draft") == len({start, end} - set(heads(copy_of_finished))) + 2
    assert planned.count("measure_acceptance") == 2 * planned.count("train_draft")
    assert planned.count("measure_speed") == planned.count("train_draft") - 2
    study.write_text(text)
    assert ".from-" not in copy_of_finished.smoke("-n").stdout


def job(space, rule, output):
    """The shell command of the job that makes a file."""
    done = space.smoke(output, "-n", "-p", "--forcerun", rule)
    assert done.returncode == 0, done.stderr
    shown = (line.strip().removeprefix("Shell command: ") for line in done.stdout.splitlines())
    lines = [line for line in shown if f"scripts/{rule}.py" in line]
    (command,) = [line for line in lines if output in line]
    return command


def shell(command, space):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen(["bash", "-c", command], cwd=space.folder, env=environment, start_new_session=True)


@pytest.mark.parametrize("kind", ["acceptance", "head"])
def test_a_job_run_again_gives_the_same_bytes(copy_of_finished, kind):
    head = heads(copy_of_finished)[0]
    if kind == "head":
        rule, output = "train_draft", LAYOUT.head(MODEL, head, "model.safetensors")
    else:
        rule, output = "measure_acceptance", LAYOUT.acceptance(MODEL, head, "1", 8, "cycles")
    command = job(copy_of_finished, rule, output)
    before = path(copy_of_finished, output).read_bytes()
    path(copy_of_finished, output).unlink()
    assert shell(command, copy_of_finished).wait() == 0
    assert path(copy_of_finished, output).read_bytes() == before


def test_training_killed_in_the_middle_continues_to_the_same_weights(copy_of_finished):
    head = heads(copy_of_finished)[0]
    output = LAYOUT.head(MODEL, head, "model.safetensors")
    command = job(copy_of_finished, "train_draft", output)
    before = path(copy_of_finished, output).read_bytes()
    work = path(copy_of_finished, LAYOUT.work(MODEL, head))
    shutil.rmtree(path(copy_of_finished, output).parent)

    process = shell(command, copy_of_finished)
    deadline = time.monotonic() + 120
    while not (work.exists() and any(work.rglob("*.safetensors"))):
        assert process.poll() is None, "training ended before it wrote a checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not path(copy_of_finished, output).exists()

    assert shell(command, copy_of_finished).wait() == 0
    assert path(copy_of_finished, output).read_bytes() == before
    assert not any(work.rglob("*.safetensors"))


def test_a_changed_token_fails_the_exactness_gate(copy_of_finished):
    head = heads(copy_of_finished)[0]
    output = LAYOUT.acceptance(MODEL, head, "0", 8, "turns")
    command = job(copy_of_finished, "measure_acceptance", output)
    where = path(copy_of_finished, LAYOUT.baseline(MODEL, "0"))
    baseline = pd.read_parquet(where)
    schema = pq.read_schema(where)
    ids = list(baseline.output_ids[0])
    ids[2] = (ids[2] + 1) % 1000
    baseline.at[0, "output_ids"] = ids
    margins = [m.copy() for m in baseline.top2_margin]
    margins[0][:] = 1.0
    baseline["top2_margin"] = margins
    where.unlink()
    pq.write_table(pa.Table.from_pandas(baseline, schema=schema, preserve_index=False), where)
    path(copy_of_finished, output).unlink()
    assert shell(command, copy_of_finished).wait() == 2
    assert not path(copy_of_finished, output).exists()
    text = path(copy_of_finished, LAYOUT.log("measure_acceptance", MODEL, head, "T0-n8")).read_text()
    assert f"question {baseline.question_id[0]}" in text


def test_manifest_records_what_the_model_is(finished):
    manifest = json.loads(path(finished, LAYOUT.manifest(MODEL)).read_text())
    assert (manifest["layers"], manifest["width"], manifest["vocabulary"]) == (6, 64, 49152)
    assert manifest["files"]["model.safetensors"]
