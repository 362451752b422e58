"""Print a study's answer in three lines, and where its report lies."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from speclayers.command import run
from speclayers.errors import UserError
from speclayers.layout import Layout

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the answer of the study that a config file names."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--configfile", type=Path, required=True, help="config.yaml or a file of studies/")
    path = arguments.parse_args().configfile
    try:
        name = yaml.safe_load(path.read_text(encoding="utf-8"))["study"]["name"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        raise UserError(f"{path}: cannot be read, or has no study.name") from None
    layout = Layout(name)
    answer = ROOT / layout.answer
    if not answer.exists():
        raise UserError(f"{layout.answer}: is missing; run snakemake first")
    print(f"\n{answer.read_text(encoding='utf-8').strip()}\n\nReport: {layout.report}")


if __name__ == "__main__":
    run(main)
