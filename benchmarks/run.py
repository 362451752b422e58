"""Run every benchmark and write its figures, with the machine's description, to benchmarks/results.md."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from speclayers.files import write_text

FOLDER = Path(__file__).resolve().parent


def processor() -> str:
    """Return the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Run all, print their lines, write the page."""
    rows = []
    for script in sorted(set(FOLDER.glob("*.py")) - {FOLDER / "run.py", FOLDER / "figures.py"}):
        done = subprocess.run([sys.executable, script, *sys.argv[1:]], stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            print(line, flush=True)
            figure = json.loads(line)
            holds = "yes" if figure["holds"] else "no"
            rows.append(
                f"| {script.stem} | {figure['figure']} | {figure['value']} {figure['unit']} | {figure['peer']} "
                f"| {figure['goal']} | {holds} |"
            )
    machine = f"{processor()}, {os.cpu_count()} cores; torch {version('torch')}, transformers {version('transformers')}"
    header = "| benchmark | figure | measured | beside | goal | holds |\n|---|---|---|---|---|---|"
    write_text(
        FOLDER / "results.md",
        f"# Benchmarks\n\nWritten by `make bench`; ours and the peer alternate in one run, medians.\n\n{machine}\n\n"
        + "\n".join((header, *rows))
        + "\n",
    )


if __name__ == "__main__":
    main()
