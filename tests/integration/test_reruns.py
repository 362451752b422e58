"""What runs again after a change, and nothing else: the table of docs/reruns.md, row by row, as exact lists of jobs.

Where layers are chosen anew the workflow really runs, since a dry run hides what lies behind that choice. The other
rows need no run: with the choice made, a dry run lists all that a run would do.
"""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from speclayers.fingerprint import PACKAGE

PAGES = Counter(("summarise_model", "aggregate_study", "render_report"))
HEADS = 3
SETTINGS = 2  # temperatures × nodes


def jobs(done):
    """The jobs that a run executed, or would: how many of each rule."""
    assert done.returncode == 0, done.stdout + done.stderr
    shown = r"^(?:(?:local)?(?:rule|checkpoint) (\w+):|Job \d+: (\w+) of )"  # select_layers has a message of its own
    found = ("".join(names) for names in re.findall(shown, done.stdout + done.stderr, re.MULTILINE))
    return Counter(rule for rule in found if rule != "all")


def planned(space, *words, **variables):
    """The jobs of a dry run."""
    command = ("snakemake", "--cores", "2", "-n", "--configfile", "studies/smoke.yaml", *words)
    return jobs(space.run(*command, **variables))


@pytest.fixture
def package(tmp_path):
    """A copy of the package that may be edited, and the variable that puts it before the installed one."""
    folder = tmp_path / "package"
    shutil.copytree(PACKAGE, folder / "speclayers", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "speclayers", {"PYTHONPATH": str(folder)}


def edit(path, old, new):
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


MODEL = """
  smoke-other:
    source:
      kind: trained
      teacher: smollm2-135m
      architecture: qwen3
      layers: 6
      width: 64
      heads: 4
      kv_heads: 2
      mlp_width: 128
      prompts: 24
      max_new_tokens: 16
      steps: 200
      sequences_per_step: 8
      seed: 1
"""


def test_a_selector_and_a_temperature_added_the_latter_dropped_and_a_model_added(copy_of_finished):
    study = copy_of_finished.folder / "studies/smoke.yaml"
    # a selector that picks a set which has its head: nothing is trained
    edit(
        study,
        "{name: eagle3, k: [3]}",
        "{name: eagle3, k: [3]}\n    - {name: pinned, k: [2], options: {sets: [[2, 3]]}}",
    )
    assert jobs(copy_of_finished.smoke()) == PAGES + Counter(["select_layers"])
    # a temperature: runs at it alone
    edit(study, "temperatures: [0, 1]", "temperatures: [0, 0.7, 1]")
    assert jobs(copy_of_finished.smoke()) == PAGES + Counter(decode_baseline=1, measure_acceptance=HEADS)
    # the temperature taken out again: its runs stay on the disk, and out of every table
    edit(study, "temperatures: [0, 0.7, 1]", "temperatures: [0, 1]")
    assert jobs(copy_of_finished.smoke()) == PAGES
    stale = list(copy_of_finished.folder.glob("results/smoke/*/acceptance/*/T0.7-*/*.parquet"))
    assert len(stale) == 2 * HEADS
    with duckdb.connect(str(copy_of_finished.folder / "results/smoke/study.duckdb"), read_only=True) as connection:
        for table in ("runs", "turns", "cycles", "tau_estimates"):
            found = connection.sql(f"select distinct temperature from {table}").fetchall()
            assert sorted(found) == [(0,), (1,)], table
        assert not connection.sql("from jobs where contains(job, 'T0.7')").fetchall()
    told = (copy_of_finished.folder / "results/smoke/inputs/summarise_model/smoke-qwen3.txt").read_text().split()
    assert len([option for option in told if option.startswith("--acceptance=")]) == SETTINGS * HEADS
    # a model: its own jobs, and what unites all models
    edit(study, "models: [smoke-qwen3]", "models: [smoke-qwen3, smoke-other]")
    edit(study, "models:\n  smoke-qwen3:", f"models:{MODEL}  smoke-qwen3:")
    done = copy_of_finished.smoke()
    ran = jobs(done)
    heads = ran["train_draft"]
    assert ran == PAGES + Counter(
        build_teacher=1,
        make_tiny_model=1,
        build_corpus=2,
        dump_activations=1,
        accumulate_gram=2,
        measure_geometry=1,
        sweep_filter=1,
        select_layers=1,
        extract_features=1,
        train_draft=heads,
        decode_baseline=2,
        measure_acceptance=SETTINGS * heads,
        measure_speed=heads,
    )
    assert heads > 0
    assert not re.search(r"wildcards: model=smoke-qwen3", done.stdout + done.stderr)
    assert not planned(copy_of_finished)


def test_nothing_runs_after_a_checkout_that_touches_every_file(copy_of_finished):
    for name in ("Snakefile", "config.yaml", "rules", "scripts", "envs", "profiles", "studies", "schemas"):
        path = copy_of_finished.folder / name
        for file in (path, *path.rglob("*")):
            os.utime(file)
    assert not planned(copy_of_finished)


def test_comments_and_docstrings_run_nothing(copy_of_finished, package):
    folder, variables = package
    edit(folder / "drafting/losses.py", '"""', '"""Said otherwise: ')
    edit(folder / "drafting/losses.py", "def ", "# why\ndef ")
    edit(copy_of_finished.folder / "scripts/train_draft.py", "def main", "# why\ndef main")
    assert not planned(copy_of_finished, **variables)


def test_an_edited_loss_trains_heads_again_but_measures_no_layer(finished, package):
    folder, variables = package
    edit(folder / "drafting/losses.py", "def ", "def added():\n    return 1\n\n\ndef ")
    again = Counter(train_draft=HEADS, measure_acceptance=HEADS * SETTINGS, measure_speed=HEADS)
    assert planned(finished, **variables) == PAGES + again
    told = finished.run("python", "scripts/why.py", "--configfile", "studies/smoke.yaml", **variables)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    cause = "    speclayers/drafting/losses.py: added() is new"
    trained = [place for place, line in enumerate(lines) if line.startswith("train_draft smoke-qwen3 ")]
    assert len(trained) == HEADS
    assert {lines[place + 1] for place in trained} == {cause}
    assert sum(not line.startswith(" ") for line in lines) == sum((PAGES + again).values())


def test_medusa_added_trains_and_measures_nothing_but_its_own(finished):
    """The pass of the target is for the last layer, which the heads' pass has stored: it finds it there."""
    rival = "rivals=[{name: medusa, draft_length: 2, tree_nodes: 8, seeds: [0]}]"
    own = Counter(extract_features=1, train_medusa=1, measure_rival=SETTINGS, time_rival=1)
    assert planned(finished, "--config", rival) == PAGES + own


def test_another_version_of_altair_draws_the_report_again(finished, tmp_path):
    metadata = tmp_path / "altair-99.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: altair\nVersion: 99.0\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    assert planned(finished, PYTHONPATH=path) == Counter(["render_report"])


def test_without_snakemakes_records_changes_go_unnoticed_and_it_says_so(copy_of_finished):
    shutil.rmtree(copy_of_finished.folder / ".snakemake" / "metadata")
    done = copy_of_finished.smoke("-n", "--config", "draft={steps: 13}")
    assert not jobs(done)
    assert "missing provenance/metadata" in done.stdout + done.stderr
    assert Path(copy_of_finished.folder / "results/smoke/fingerprints.json").exists()


def test_nothing_changed_runs_nothing_and_has_no_cause(finished):
    assert not planned(finished)
    told = finished.run("python", "scripts/why.py", "--configfile", "studies/smoke.yaml")
    assert (told.returncode, told.stdout.strip()) == (0, "Nothing would run.")
