"""A cluster without accounting: what is cancelled, killed or lost goes on where it was; what cannot be is told."""

import os
import re
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from speclayers.layout import Layout
from tests.cluster.conftest import ROOT, STUDY, WAIT, announced, command, documented

MODEL = "smoke-qwen3"
LAYOUT = Layout("smoke")
STEPS = 200


@pytest.fixture
def space(pretend, copy):
    """The finished study on a cluster without accounting; its heads shall train longer."""
    pretend.start("plain")
    steps = {"draft": {"steps": STEPS, "evaluate_every": STEPS, "checkpoint_every": 5}}
    (copy.folder / "studies/longer.yaml").write_text(yaml.safe_dump(steps))
    return copy


LONGER = (*STUDY, "studies/longer.yaml")


def heads(space):
    return sorted(path.name for path in (space.folder / LAYOUT.model(MODEL) / "heads").glob("*"))


def weights(head):
    return LAYOUT.head(MODEL, head, "model.safetensors")


def records(space):
    """What SLURM remembers of a workspace's jobs, oldest first."""
    lines = command("scontrol", "-o", "show", "job").splitlines()
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines if "JobId=" in line]
    return [record for record in found if record["WorkDir"] == str(space.folder)]


def records_of(space, head):
    return [record for record in records(space) if record.get("Comment", "").endswith(head)]


def wait_until(happened, process):
    deadline = time.monotonic() + WAIT
    while not happened():
        assert process.poll() is None, "the run ended before it was harmed"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def has_checkpoint(space, head):
    work = space.folder / LAYOUT.work(MODEL, head)
    return any(work.rglob("step-*.safetensors"))


def step_daemons():
    """Whatever SLURM still runs of a job on this node."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        if name == "slurmstepd":
            yield int(folder.name)


def trainings(space, head):
    """Process ids of a head's training."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            here = (folder / "cwd").resolve() == space.folder.resolve()
        except OSError:  # it has just ended
            continue
        if here and "scripts/train_draft.py" in words and head in words:
            yield int(folder.name)


def assert_continued(space, head):
    log = (space.folder / LAYOUT.log("train_draft", MODEL, head)).read_text()
    (step,) = re.findall(r"continuing after step (\d+)", log)
    assert int(step) >= 5
    table = pd.read_parquet(space.folder / LAYOUT.head(MODEL, head, "training.parquet"))
    train = table[(table["split"] == "train") & (table["ttt_step"] == 0)]
    assert list(train["step"]) == list(range(1, STEPS + 1))


def test_a_cancelled_job_and_a_killed_one_are_retried_and_continue(space):
    cancelled, killed = heads(space)[:2]
    with space.running_slurm(weights(cancelled), weights(killed), study=LONGER) as run:
        wait_until(lambda: has_checkpoint(space, cancelled), run)
        (record,) = records_of(space, cancelled)
        command("scancel", record["JobId"])
        wait_until(lambda: has_checkpoint(space, killed), run)
        (process,) = trainings(space, killed)
        os.kill(process, signal.SIGKILL)
    assert [record["JobState"] for record in records_of(space, cancelled)] == ["CANCELLED", "COMPLETED"]
    assert [record["JobState"] for record in records_of(space, killed)] == ["FAILED", "COMPLETED"]
    assert_continued(space, cancelled)
    assert_continued(space, killed)


def test_a_node_that_goes_down_and_comes_back_loses_nothing(space):
    head = heads(space)[0]
    with space.running_slurm(weights(head), study=LONGER) as run:
        wait_until(lambda: has_checkpoint(space, head), run)
        node = command("sinfo", "-h", "-o", "%n").strip()
        command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        wait_until(lambda: records_of(space, head)[0]["JobState"] == "PENDING", run)
        # what is still being killed there would take the job that starts again with it
        wait_until(lambda: not [*trainings(space, head), *step_daemons()], run)
        command("scontrol", "update", f"nodename={node}", "state=resume")
    (record,) = records_of(space, head)
    assert (record["JobState"], record["Restarts"]) == ("COMPLETED", "1")
    assert_continued(space, head)


@pytest.mark.parametrize(
    ("resource", "option"),
    [("mem_mb=99000000", "--mem 99000000"), ("gpu=9", "--gpus=9"), ("runtime=99999", "-t 99999")],
)
def test_a_request_that_no_node_can_meet_names_rule_and_resource(space, resource, option):
    head = heads(space)[0]
    done = space.slurm(weights(head), "--retries", "0", "--set-resources", f"train_draft:{resource}", study=LONGER)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Error in rule train_draft:" in said
    assert option in said
    assert documented("SLURM sbatch failed. The error message was") in said
    assert documented("Failed to retrieve job data for workflow") in said  # there is no accounting


def test_another_executor_runs_the_same_workflow(space):
    """The profile that docs/clusters.md shows for other schedulers, here with plain sbatch."""
    page = (ROOT / "docs/clusters.md").read_text()
    (profile,) = re.findall(r"^```yaml\n(executor: cluster-generic\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (space.folder / "generic").mkdir()
    (space.folder / "generic/config.yaml").write_text(profile)
    head = heads(space)[0]
    target = LAYOUT.acceptance(MODEL, head, "0", 16, "cycles")
    often = ("--seconds-between-status-checks", "1")
    done = space.run("snakemake", "layers", target, "--profile", "generic", *often, *STUDY, OMP_NUM_THREADS="1")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    ran = {job.rule: job for job in announced(done.stdout + done.stderr) if not job.local}
    assert set(ran) == {"measure_acceptance", "render_layers"}
    asked = {record["JobName"]: record for record in records(space) if record["JobName"] in ran}
    assert set(asked) == set(ran)
    for rule, record in asked.items():
        assert record["JobState"] == "COMPLETED"
        assert f"mem={ran[rule].resources['mem_mb']}M" in record["TRES"]
        assert record["TresPerNode"] == f"gres:gpu:{int(rule == 'measure_acceptance')}"
    assert (space.folder / LAYOUT.layers_page).exists()
