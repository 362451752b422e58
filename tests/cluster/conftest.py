"""A real SLURM of one node with two pretend GPUs, and workspaces whose jobs go through it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.integration.conftest import ROOT, Workspace, link_weights

HERE = Path(__file__).parent
SNAKEMAKE = ("python", "-m", "tests.cluster.asking_often")
STUDY = ("--configfile", "studies/smoke.yaml", "studies/cluster.yaml")  # last: it takes all words behind it
SMALL = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
WAIT = 1200
"""Seconds until a test gives up; a machine with nothing else to do needs a tenth."""


def command(*words: str) -> str:
    """Run a command of SLURM and return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class Pretend:
    """The cluster, in one set-up at a time."""

    def __init__(self):
        self._mode = None
        self._run("install")

    def _run(self, *words: str) -> None:
        subprocess.run(["bash", HERE / "cluster.sh", *words], check=True)

    def start(self, mode: str) -> None:
        """Start it, plain or with accounting, unless it runs so already."""
        if mode != self._mode:
            self._run("start", mode)
            self._mode = mode

    def stop(self) -> None:
        self._run("stop")


class ClusterWorkspace(Workspace):
    """A workspace with the link `slurm`, and a study that asks for GPUs."""

    def fill(self) -> Self:
        super().fill()
        shutil.copy(HERE / "study.yaml", self.folder / "studies/cluster.yaml")
        return self

    def slurm(self, *words: str, study: tuple[str, ...] = STUDY) -> subprocess.CompletedProcess[str]:
        """Run the workflow as its README says, only asking SLURM for news more often."""
        return self.run(*SNAKEMAKE, *words, "--profile", "slurm", *study, **SMALL)

    @contextmanager
    def running_slurm(self, *words: str, study: tuple[str, ...] = STUDY) -> Iterator[subprocess.Popen[bytes]]:
        """The same in the background, both streams in the file `run.log`; it ends well, or is interrupted."""
        call = [sys.executable, *SNAKEMAKE[1:], *words, "--profile", "slurm", *study]
        with (self.folder / "run.log").open("w") as log:
            run = subprocess.Popen(call, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=os.environ | SMALL)
        try:
            yield run
            assert run.wait(timeout=WAIT) == 0, (self.folder / "run.log").read_text()[-6000:]
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)  # it cancels its jobs
                run.wait()


class Job(NamedTuple):
    """A job as Snakemake announced it.

    Args:
        rule: Its rule.
        local: Whether it ran where Snakemake does.
        resources: What it asked for; nothing for a job with a message of its own, which is printed instead.
        slurm_id: The id that SLURM gave it, or its group.
    """

    rule: str
    local: bool
    resources: dict[str, str]
    slurm_id: str | None


def announced(output: str) -> list[Job]:
    """The jobs that a run executed; one group of jobs at most."""
    submitted = dict(re.findall(r"^Job (\S+) has been submitted with SLURM jobid (\d+)", output, re.MULTILINE))
    group = next((slurm_id for job, slurm_id in submitted.items() if not job.isdigit()), None)
    block = r"^( *)(local)?(?:rule|checkpoint) (\w+):\n((?:\1 {4}.*\n)+)"
    jobs = []
    for indented, local, rule, text in re.findall(block, output, re.MULTILINE):
        fields = dict(re.findall(r"^ +(\w+): (.*)$", text, re.MULTILINE))
        pairs = (pair.split("=", 1) for pair in fields.get("resources", "").split(", ") if "=" in pair)
        jobs.append(Job(rule, bool(local), dict(pairs), group if indented else submitted.get(fields.get("jobid", "0"))))
    told = re.findall(r"^Job (\d+): (\w+) of ", output, re.MULTILINE)
    return [*jobs, *(Job(rule, False, {}, submitted.get(job)) for job, rule in told)]


@pytest.fixture(scope="session")
def pretend():
    """The cluster, installed; stopped at the end."""
    cluster = Pretend()
    yield cluster
    cluster.stop()


class Finished(NamedTuple):
    """A smoke study that ran through SLURM with accounting."""

    space: ClusterWorkspace
    jobs: list[Job]
    records: dict[str, dict[str, str]]


SACCT = ("JobID", "Comment", "State", "AllocTRES", "TimelimitRaw", "Partition")


@pytest.fixture(scope="session")
def finished(pretend, tmp_path_factory):
    """The smoke study, from nothing to its report; tests leave it as it is."""
    pretend.start("accounting")
    space = ClusterWorkspace(tmp_path_factory.mktemp("cluster")).fill()
    done = space.slurm("--slurm-status-command", "sacct")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    rows = command("sacct", "-X", "-P", "-n", "-o", ",".join(SACCT)).splitlines()
    records = {row.split("|")[0]: dict(zip(SACCT, row.split("|"), strict=True)) for row in rows}
    return Finished(space, announced(done.stdout + done.stderr), records)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished study that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished.space.folder, folder, symlinks=True, copy_function=link_weights)
    return ClusterWorkspace(folder)


def documented(text: str) -> str:
    """Return a message, having checked that the page about clusters tells of it in the same words."""
    page = (ROOT / "docs/clusters.md").read_text()
    assert text in page, f"docs/clusters.md does not hold: {text}"
    return text
