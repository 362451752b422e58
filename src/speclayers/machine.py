"""What a job runs on, so that its cost can be told with its job id, its node and its GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Where the NVIDIA driver of Linux lists the GPUs of a machine, each with a file `information`."""


def ran_on(environment: Mapping[str, str] = os.environ, driver: Path = NVIDIA) -> str:
    """Return SLURM's job id, the node and its GPU types as JSON, `{}` outside a SLURM job.

    The types are those of the node; SLURM may have lent only some of its GPUs.

    Args:
        environment: Variables of the process.
        driver: Folder of the GPU driver.
    """
    if "SLURM_JOB_ID" not in environment:
        return "{}"
    told = {
        "slurm_job": environment["SLURM_JOB_ID"],
        "node": environment.get("SLURMD_NODENAME", ""),
        "gpu_type": ", ".join(sorted({name for file in driver.glob("*/information") for name in _models(file)})),
    }
    return json.dumps({key: value.replace("'", "") for key, value in told.items() if value})  # it stands in '...'


def _models(file: Path) -> list[str]:
    lines = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
    return [value.strip() for key, _, value in lines if key.strip() == "Model"]
