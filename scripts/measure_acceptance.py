"""Decode the benchmark with a draft head and count how many of its tokens the target accepts."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.ranges import QuestionRange
from speclayers.decoding.shards import Shards, job_key, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.head import load_head
from speclayers.drafting.tensor_files import CONFIG_FILE
from speclayers.drafting.tree import shape_of
from speclayers.names import ShapeName
from speclayers.specs import DecodeSpec, read_spec
from speclayers.tables import BASELINE, CYCLES, TURNS, read_table, write_table
from speclayers.targets.manifest import MANIFEST
from speclayers.targets.target import load_target


def main() -> None:
    """Load model and head, decode, write both tables."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--head", type=Path, required=True, help="the head's weights; its config.json lies beside")
    arguments.add_argument("--baseline", type=Path, required=True, help="table of plain greedy decoding (Parquet)")
    arguments.add_argument("--temperature", type=float, required=True, help="sampling temperature; 0 is greedy")
    arguments.add_argument("--nodes", type=ShapeName.parse, required=True, help="nodes of the draft tree; 6c: a chain")
    arguments.add_argument("--cycles", type=Path, required=True, help="table of verifications to write (Parquet)")
    arguments.add_argument("--turns", type=Path, required=True, help="table of answers to write (Parquet)")
    arguments.add_argument("--work", type=Path, required=True, help="folder of shards, so that a killed run continues")
    command.add_shard(arguments)
    args = arguments.parse_args()
    spec, own = read_spec(DecodeSpec, args.spec), QuestionRange(args.shard, args.shards)
    torch.set_num_threads(args.threads)
    questions = own.of(read_turns(read_table(args.baseline, BASELINE)))
    target = load_target(args.target, args.model, spec.runtime)
    head = load_head(args.head.parent, target)
    shape = shape_of(args.nodes, spec.depth, spec.top_k)
    drafter = Eagle3Drafter(target, head, shape, name=args.head.parent.name)
    inputs = [args.target / MANIFEST, args.head, args.head.with_name(CONFIG_FILE), args.baseline]
    shards = Shards(args.work, job_key(args.fingerprint, [args.temperature, args.nodes], inputs))
    rows = measure_acceptance(target, drafter, questions, spec, args.temperature, shards)
    for path, name, table in ((args.cycles, "cycles", CYCLES), (args.turns, "turns", TURNS)):
        write_table(path, table, to_frame(rows[name], table), own.origin(command.origin(args)))
    shards.remove()


if __name__ == "__main__":
    command.run(main)
