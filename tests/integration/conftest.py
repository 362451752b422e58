"""A workspace where the workflow runs, and the smoke study, run once for all tests."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ("Snakefile", "config.yaml", "rules", "scripts", "envs", "profiles", "slurm", "studies", "schemas", "report")


class Workspace:
    """A copy of the workflow in a folder of its own; the package is the installed one."""

    def __init__(self, folder: Path):
        self.folder = folder

    def fill(self) -> Self:
        """Put the workflow into the folder."""
        for name in WORKFLOW:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.folder / name)
            else:
                shutil.copy(source, self.folder / name)
        return self

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in this folder, without a terminal, under some environment variables."""
        words = (str(Path(sys.executable).parent / words[0]), *words[1:])
        environment = os.environ | variables
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False, env=environment)

    def snakemake(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the workflow on two cores."""
        return self.run("snakemake", "--cores", "2", *words)

    def smoke(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the smoke study."""
        return self.snakemake(*words, "--configfile", "studies/smoke.yaml")  # last: it takes all words behind it


@pytest.fixture
def workspace(tmp_path):
    """An empty workspace."""
    return Workspace(tmp_path).fill()


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id):
    """The workspace of a finished smoke study, one for all processes of a test run; tests leave it as it is."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "smoke"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        space = Workspace(folder)
        if not folder.exists():
            folder.mkdir()
            space.fill()
        done = space.smoke()  # nothing to do where another process has done it
    assert done.returncode == 0, done.stderr[-6000:]
    return space


def link_weights(source: str, copy: str) -> None:
    """Copy a file; only weights, which nothing changes in place, share their blocks with the original."""
    (os.link if source.endswith(".safetensors") else shutil.copy2)(source, copy)


@pytest.fixture
def copy_of_finished(finished, tmp_path):
    """A copy of the finished study that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder, symlinks=True, copy_function=link_weights)
    return Workspace(folder)
