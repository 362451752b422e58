"""Screen many candidate layer sets by short trainings, of which the best go on: successive halving."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.screening import screen, winner
from speclayers.files import write_json
from speclayers.specs import ScreenSpec, read_spec
from speclayers.tables import CORPUS, SCREENING, SELECTIONS, read_table, write_table
from speclayers.targets.staging import resumable_folder
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, screen, write the table and who won."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument("--selections", type=Path, required=True, help="table of the chosen layer sets")
    arguments.add_argument(
        "--work", type=Path, required=True, help="folder of features, checkpoints and results so far"
    )
    arguments.add_argument("--screening", type=Path, required=True, help="table of the screening to write")
    arguments.add_argument("--winner", type=Path, required=True, help="layer set that won to write, JSON")
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    spec = read_spec(ScreenSpec, args.spec)
    corpus, selections = read_table(args.corpus, CORPUS), read_table(args.selections, SELECTIONS)
    target = load_target(args.target, args.model, spec.runtime)
    with resumable_folder(args.work, args.fingerprint) as folder:
        table = screen(target, corpus, selections, spec, origin(args), folder)
        write_table(args.screening, SCREENING, table, origin(args))
        write_json(args.winner, winner(args.model, table))


if __name__ == "__main__":
    run(main)
