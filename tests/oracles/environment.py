"""Environments of the oracles: packages that this project is compared with and never depends on.

Each is a folder of pinned packages, installed without their dependencies, that goes before the project's
own environment on PYTHONPATH. So torch and transformers are not installed a second time, an oracle's pins
bind nobody, and what a package imports beyond that stands in its requirements file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
INSTALLED = FOLDER.parents[1] / "build" / "oracles"


def oracle_environment(name: str) -> Path:
    """Return the folder of an oracle's packages, installed where it is not there yet.

    Args:
        name: Stem of its requirements file beside this module.

    Raises:
        subprocess.CalledProcessError: Its packages cannot be installed.
    """
    requirements = FOLDER / f"{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = INSTALLED / f"{name}-{key}"
    if not folder.exists():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=INSTALLED))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--target", str(unfinished), "-r", str(requirements)], check=True)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return folder


def run_oracle(name: str, folder: Path, **variables: str) -> None:
    """Run an oracle's script over the cases in a folder.

    Args:
        name: Stem of its script and requirements file.
        folder: The cases; the script writes what it computes beside them.
        variables: Environment variables.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    variables |= {"PYTHONPATH": str(oracle_environment(name)), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    script = FOLDER / f"{name}_oracle.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, env={**os.environ, **variables})
