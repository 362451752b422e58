"""A workspace where the workflow runs, and the smoke study, run once for all tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ("Snakefile", "config.yaml", "rules", "scripts", "envs", "profiles", "slurm", "studies", "schemas", "report")


class Workspace:
    """A copy of the workflow in a folder of its own; the package is the installed one."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in WORKFLOW:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy(source, folder / name)

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
    return Workspace(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The workspace of a finished smoke study; tests leave it as it is."""
    space = Workspace(tmp_path_factory.mktemp("smoke"))
    done = space.smoke()
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
    space = object.__new__(Workspace)
    space.folder = folder
    return space
