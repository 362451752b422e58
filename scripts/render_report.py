"""Render a study's page, one HTML file that needs no network, and its figures as SVG and PNG."""

import argparse
from pathlib import Path

from speclayers import command
from speclayers.analysis.report import write_report
from speclayers.analysis.study import read_study
from speclayers.analysis.warehouse import open_database


def main() -> None:
    """Render one study's report."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    arguments.add_argument("--database", type=Path, required=True, help="the study's DuckDB file")
    arguments.add_argument("--report", type=Path, required=True, help="HTML file to write")
    arguments.add_argument("--figures", type=Path, required=True, help="folder of figures to write")
    args = arguments.parse_args()
    with open_database(args.database) as connection:
        study = read_study(connection)
    write_report(study, args.report, args.figures)


if __name__ == "__main__":
    command.run(main)
