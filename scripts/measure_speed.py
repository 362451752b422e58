"""Time a draft head against plain decoding on a few questions, with the machine to itself."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.shards import to_frame
from speclayers.decoding.speed import first_of_each_category, measure_speed
from speclayers.decoding.turns import read_turns
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.head import load_head
from speclayers.drafting.tree import shape_of
from speclayers.names import ShapeName
from speclayers.specs import SpeedSpec, read_spec
from speclayers.tables import BASELINE, SPEED, read_table, write_table
from speclayers.targets.target import load_target


def main() -> None:
    """Load model and head, time both ways of decoding, write the table."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--head", type=Path, required=True, help="the head's weights; its config.json lies beside")
    arguments.add_argument("--baseline", type=Path, required=True, help="table of plain greedy decoding (Parquet)")
    arguments.add_argument("--temperature", type=float, required=True, help="sampling temperature; 0 is greedy")
    arguments.add_argument("--nodes", type=ShapeName.parse, required=True, help="nodes of the draft tree; 6c: a chain")
    arguments.add_argument("--output", type=Path, required=True, help="table of times to write (Parquet)")
    args = arguments.parse_args()
    spec = read_spec(SpeedSpec, args.spec)
    torch.set_num_threads(args.threads)
    questions = first_of_each_category(read_turns(read_table(args.baseline, BASELINE)), spec.per_category)
    target = load_target(args.target, args.model, spec.decode.runtime)
    head = load_head(args.head.parent, target)
    shape = shape_of(args.nodes, spec.decode.depth, spec.decode.top_k)
    drafter = Eagle3Drafter(target, head, shape, name=args.head.parent.name)
    rows = measure_speed(target, drafter, questions, spec.decode, args.temperature)
    write_table(args.output, SPEED, to_frame(rows, SPEED), command.origin(args))


if __name__ == "__main__":
    command.run(main)
