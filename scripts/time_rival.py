"""Time a drafter that needs no head against plain decoding on a few questions, with the machine to itself."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.shards import to_frame
from speclayers.decoding.speed import first_of_each_category, measure_speed
from speclayers.decoding.turns import read_turns
from speclayers.drafting.rival import add_rival, load_rival
from speclayers.specs import TimedRivalSpec, read_spec
from speclayers.tables import BASELINE, SPEED, read_table, write_table


def main() -> None:
    """Load the model, build the drafter, time both ways of decoding, write the table."""
    arguments = command.parser(__doc__)
    add_rival(arguments)
    arguments.add_argument("--baseline", type=Path, required=True, help="table of plain greedy decoding (Parquet)")
    arguments.add_argument("--temperature", type=float, required=True, help="sampling temperature; 0 is greedy")
    arguments.add_argument("--output", type=Path, required=True, help="table of times to write (Parquet)")
    args = arguments.parse_args()
    spec = read_spec(TimedRivalSpec, args.spec)
    torch.set_num_threads(args.threads)
    questions = first_of_each_category(read_turns(read_table(args.baseline, BASELINE)), spec.timed.per_category)
    target, drafter = load_rival(args, spec.rival, spec.timed.decode.runtime)
    rows = measure_speed(target, drafter, questions, spec.timed.decode, args.temperature)
    write_table(args.output, SPEED, to_frame(rows, SPEED), command.origin(args))


if __name__ == "__main__":
    command.run(main)
