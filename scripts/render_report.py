"""Render a study's page, one HTML file that needs no network, its figures, and its main comparison as text."""

import argparse
from pathlib import Path

from speclayers import command
from speclayers.analysis.report import write_report
from speclayers.analysis.study import read_study
from speclayers.analysis.twin import write_twin
from speclayers.analysis.warehouse import open_database


def main() -> None:
    """Render one study's report."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    arguments.add_argument("--database", type=Path, required=True, help="the study's DuckDB file")
    arguments.add_argument("--report", type=Path, required=True, help="HTML file to write")
    arguments.add_argument("--figures", type=Path, required=True, help="folder of figures to write")
    arguments.add_argument("--summary", type=Path, required=True, help="Markdown file to write")
    arguments.add_argument("--latex", type=Path, required=True, help="LaTeX table of the main comparison to write")
    arguments.add_argument("--csv", type=Path, required=True, help="CSV table of the main comparison to write")
    args = arguments.parse_args()
    with open_database(args.database) as connection:
        study = read_study(connection)
    write_report(study, args.report, args.figures)
    write_twin(study, args.summary, args.latex, args.csv)


if __name__ == "__main__":
    command.run(main)
