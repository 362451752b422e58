"""Print what a study takes before it runs: jobs, hours, GPU-hours, memory and disk of each model and stage."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from snakemake.cli import parse_config
from snakemake.common.configfile import load_configfile
from snakemake.utils import update_config

from speclayers.command import run
from speclayers.layout import Layout
from speclayers.planning.plan import lines_of_text, plan_study
from speclayers.reading import parse_study, refuse_repeated_keys

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the plan of the study that is configured as for snakemake."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--configfile", nargs="+", type=Path, default=[], help="as for snakemake")
    arguments.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE", help="as for snakemake")
    args = arguments.parse_args()
    config: dict[str, Any] = {}
    for path in (ROOT / "config.yaml", *args.configfile):
        refuse_repeated_keys(path)
        update_config(config, load_configfile(path))
    update_config(config, parse_config(args.config))
    study = parse_study(config)
    layout = Layout(study.study.name)
    free = shutil.disk_usage(next(path for path in (Path(layout.results), Path.cwd()) if path.exists())).free
    print("\n".join(lines_of_text(plan_study(study, layout), free / 1e6)))


if __name__ == "__main__":
    run(main)
