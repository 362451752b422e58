"""Unite all models' summaries in one DuckDB file, with estimates, tables and the answer in three lines.

Long lists of options may come from files, one option a line: `@FILE`.
"""

import argparse
import os
from pathlib import Path

from speclayers import command
from speclayers.analysis.answer import answer
from speclayers.analysis.inputs import manifests, named_paths
from speclayers.analysis.study import build_study, read_study
from speclayers.analysis.warehouse import export_tables, new_database
from speclayers.files import write_text
from speclayers.specs import AggregateSpec, read_spec


def main() -> None:
    """Aggregate one study."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, fromfile_prefix_chars="@")
    arguments.add_argument("--spec", required=True, help="this stage's slice of the config, as JSON")
    arguments.add_argument("--fingerprint", default="", help="fingerprint of this stage, for the provenance")
    arguments.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="processor threads to use")
    arguments.add_argument(
        "--summary", action="append", required=True, metavar="MODEL=DIR", help="a model's summary; repeatable"
    )
    arguments.add_argument(
        "--target", action="append", required=True, metavar="MODEL=FILE", help="a model's manifest; repeatable"
    )
    arguments.add_argument("--benchmarks", type=Path, help="folder of what Snakemake measured of the jobs")
    arguments.add_argument("--database", type=Path, required=True, help="DuckDB file to write")
    arguments.add_argument("--tables", type=Path, required=True, help="folder of Parquet and CSV tables to write")
    arguments.add_argument("--answer", type=Path, required=True, help="text file to write")
    args = arguments.parse_args()
    spec = read_spec(AggregateSpec, args.spec)
    summaries = named_paths("--summary", args.summary)
    targets = manifests("--target", args.target)
    with new_database(args.database, args.threads) as connection:
        build_study(connection, summaries, targets, args.benchmarks, spec, args.fingerprint)
        export_tables(connection, args.tables)
        write_text(args.answer, answer(read_study(connection)).text())


if __name__ == "__main__":
    command.run(main)
