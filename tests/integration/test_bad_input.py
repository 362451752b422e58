"""What a person gets wrong is told in one line, with exit status 2, and nothing is left half-written."""

import json
import os
import shutil

import pytest

from speclayers.config import DraftConfig, GeometryConfig
from speclayers.fingerprint import PACKAGE


def the_error(done):
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_an_unknown_key_stops_the_workflow_before_anything_runs(workspace):
    done = workspace.snakemake("--config", "acceptence={}")
    assert "unknown key 'acceptence'; did you mean 'acceptance'?" in the_error(done)
    assert not (workspace.folder / "results").exists()


def test_two_models_of_one_name_are_refused(workspace):
    done = workspace.snakemake("--config", "study={name: x, models: [tiny-qwen3, tiny-qwen3]}")
    assert "named twice: tiny-qwen3" in the_error(done)


@pytest.mark.parametrize("name", ["a/b", ".."])
def test_a_model_name_that_would_leave_its_folder_is_refused(workspace, name):
    study = workspace.folder / "bad.yaml"
    study.write_text(json.dumps({"models": {name: {"source": {"kind": "folder", "path": "m"}}}}))
    assert "not a usable name" in the_error(workspace.snakemake("--configfile", "bad.yaml"))


GEOMETRY = ("entropy", "cka", "gram", "turning", "filter-effect", "convergence", "lens")


def script(workspace, name, spec, *words, model="m"):
    shared = ("--spec", spec, "--model", model, "--fingerprint", "f", "--threads", "1")
    return workspace.run("python", f"scripts/{name}.py", *shared, *words)


def activations(manifest):
    return "--activations", str(manifest), "--activations-fingerprint", json.loads(manifest.read_text())["fingerprint"]


def fetch(workspace, **source):
    return script(
        workspace,
        "fetch_model",
        json.dumps({"source": source, "trust_remote_code": False}),
        *("--output", "results/models/m"),
    )


def test_a_folder_without_weights_is_named(workspace):
    (workspace.folder / "empty").mkdir()
    assert "models.m: no config.json among its files" in the_error(fetch(workspace, kind="folder", path="empty"))
    assert not (workspace.folder / "results/models/m").exists()


def test_a_package_that_is_not_installed_is_named_with_the_remedy(workspace):
    error = the_error(fetch(workspace, kind="package", package="no-such-package"))
    assert "no-such-package" in error
    assert "pip install" in error


def test_a_prompts_file_with_a_broken_line_names_the_line(finished, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "One."}\n{"prompt": \n')
    spec = {
        "runtime": {},
        "split": {"prompts": {"source": "file", "path": str(prompts)}, "count": 2},
        "batch_size": 2,
    }
    done = script(
        finished,
        "build_corpus",
        json.dumps(spec),
        *("--target", "results/models/smoke-qwen3", "--work", str(tmp_path / "work")),
        *("--output", str(tmp_path / "out.parquet")),
    )
    assert "prompts.jsonl:2" in the_error(done)
    assert not (tmp_path / "out.parquet").exists()


def test_a_truncated_part_of_the_activations_is_named(copy_of_finished):
    folder = copy_of_finished.folder / "results/smoke/smoke-qwen3/activations"
    part = sorted(folder.glob("part-*.parquet"))[0]
    whole = part.read_bytes()
    part.unlink()  # the copy shares its files with the finished study
    part.write_bytes(whole[: len(whole) // 2])
    out = [f"--{name}={copy_of_finished.folder}/{name}" for name in GEOMETRY]
    done = script(
        copy_of_finished,
        "measure_geometry",
        GeometryConfig(blocks=8, search_rows=64, effect_tokens=8).canonical(),
        *(*activations(folder / "manifest.json"), *out),
        model="smoke-qwen3",
    )
    assert part.name in the_error(done)
    assert not (copy_of_finished.folder / "cka").exists()


def test_a_spec_that_does_not_fit_is_told(workspace):
    out = [f"--{name}={name}" for name in GEOMETRY]
    done = script(
        workspace, "measure_geometry", '{"alpha": "x"}', "--activations=a", "--activations-fingerprint=f", *out
    )
    assert "alpha" in the_error(done)


def test_more_layers_than_the_model_has_are_refused_by_key(finished, tmp_path):
    base = finished.folder / "results/smoke/smoke-qwen3"
    spec = {
        "geometry": {"blocks": 8, "search_rows": 64, "effect_tokens": 8},
        "selection": {"selectors": [{"name": "elsi", "k": [7]}], "half_samples": 4},
    }
    done = script(
        finished,
        "select_layers",
        json.dumps(spec),
        *activations(base / "activations/manifest.json"),
        *(f"--{name}={base}/geometry/{name}.parquet" for name in ("entropy", "cka", "gram")),
        *(f"--{name}={tmp_path}/{name}" for name in ("selections", "trace", "heads")),
        model="smoke-qwen3",
    )
    error = the_error(done)
    assert "elsi" in error
    assert "7" in error
    assert os.listdir(tmp_path) == []


def test_a_head_for_layers_that_were_not_extracted_is_refused(finished, tmp_path):
    base = finished.folder / "results/smoke/smoke-qwen3"
    spec = {"runtime": {}, "draft": json.loads(DraftConfig(vocabulary=64, steps=1).canonical())}
    outputs = {"output": "model.safetensors", "config": "config.json", "training": "training.parquet", "work": "work"}
    done = script(
        finished,
        "train_draft",
        json.dumps(spec),
        *("--target", "results/models/smoke-qwen3", "--corpus", str(base / "corpus/training.parquet")),
        *("--features", str(next(base.glob("features/l*.json"))), "--head", "eagle3.l00.s0"),
        *(f"--{option}={tmp_path / name}" for option, name in outputs.items()),
    )
    assert "holds no layer 0" in the_error(done)
    assert not (tmp_path / "model.safetensors").exists()


def test_two_models_of_one_name_in_the_registry_are_refused(workspace):
    study = workspace.folder / "bad.yaml"
    study.write_text("models:\n  m: {source: {kind: folder, path: a}}\n  m: {source: {kind: folder, path: b}}\n")
    assert "line 3: key 'm' stands there twice" in the_error(workspace.snakemake("--configfile", "bad.yaml"))


def test_a_missing_file_of_questions_does_not_go_on_with_those_of_an_earlier_run(finished):
    study = finished.folder / "bad.yaml"
    study.write_text("acceptance: {questions: {source: file, path: gone.jsonl}}\n")
    done = finished.snakemake("-n", "--configfile", "studies/smoke.yaml", "bad.yaml")
    assert "acceptance.questions.path: gone.jsonl is no file" in the_error(done)


def test_an_unknown_selector_is_refused_before_anything_runs(workspace):
    study = workspace.folder / "bad.yaml"
    study.write_text("selection: {selectors: [{name: eagle3}, {name: elsy}]}\n")
    assert "there is no selector 'elsy'" in the_error(workspace.snakemake("--configfile", "bad.yaml"))


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ("selection: {selectors: [{name: eagle3}, {name: elsi, options: {layer: 3}}]}", "selectors.elsi.options.layer"),
        ("rivals: [{name: clasp, options: {intervall: 2}}]", "did you mean 'interval'?"),
        ("selection: {selectors: [{name: eagle3}, {name: elsi, k: [16]}]}", "16 is more than the 12 layers"),
        ("{models: {m: {source: {kind: folder, path: gone}}}, study: {models: [m]}}", "models.m.source.path: gone"),
    ],
)
def test_a_dry_run_refuses_what_a_job_would_refuse_hours_later(workspace, study, told):
    (workspace.folder / "bad.yaml").write_text(study)
    assert told in the_error(workspace.snakemake("-n", "--configfile", "bad.yaml"))


def test_a_selector_file_that_is_no_python_stops_the_workflow_with_its_line(workspace, tmp_path):
    package = tmp_path / "package"
    shutil.copytree(PACKAGE, package / "speclayers")
    (package / "speclayers/selection/selectors/mine.py").write_text('"""Mine."""\n\ndef choose(:\n')
    (workspace.folder / "mine.yaml").write_text("selection: {selectors: [{name: eagle3}, {name: mine}]}\n")
    words = ("snakemake", "--cores", "1", "-n", "--configfile", "mine.yaml")
    done = workspace.run(*words, PYTHONPATH=str(package))
    assert "selectors/mine.py:3: invalid syntax; mend the selector's file" in the_error(done)
