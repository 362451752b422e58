"""Put together what several jobs decoded, each a range of the questions."""

from __future__ import annotations

import argparse
from pathlib import Path

from speclayers import command
from speclayers.decoding.ranges import merge_shards
from speclayers.tables import BASELINE, CYCLES, TURNS

TABLES = {"baseline": BASELINE, "cycles": CYCLES, "turns": TURNS}


def main() -> None:
    """Merge each table."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    arguments.add_argument("--model", required=True, help="name of the model")
    arguments.add_argument("--fingerprint", required=True, help="fingerprint of the run")
    for name in TABLES:
        meaning = f"table of {name} to write, then those of the jobs, in order"
        arguments.add_argument(f"--{name}", type=Path, nargs="+", metavar="FILE", help=meaning)
    args = arguments.parse_args()
    for name, table in TABLES.items():
        if paths := getattr(args, name):
            merge_shards(paths[1:], table, paths[0], command.origin(args))


if __name__ == "__main__":
    command.run(main)
