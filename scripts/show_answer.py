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
    layout = Layout(study_name(path) or study_name(ROOT / "config.yaml"))
    answer = ROOT / layout.answer
    if not answer.exists():
        raise UserError(f"{layout.answer}: is missing; run snakemake first")
    print(f"\n{answer.read_text(encoding='utf-8').strip()}\n\nReport: {layout.report}")


def study_name(path: Path) -> str:
    """Return study.name of a config file, or nothing where it leaves that to the default."""
    try:
        return str((yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("study", {}).get("name", ""))
    except (OSError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


if __name__ == "__main__":
    run(main)
