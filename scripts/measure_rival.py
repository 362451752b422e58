"""Decode the benchmark with a drafter that needs no head and count how many of its tokens the target accepts."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.memory import shards_of
from speclayers.decoding.ranges import QuestionRange
from speclayers.decoding.shards import job_key, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.drafting.rival import add_rival, load_rival, read_files
from speclayers.specs import RivalSpec, read_spec
from speclayers.tables import BASELINE, CYCLES, TURNS, read_table, write_table


def main() -> None:
    """Load the model, build the drafter, decode, write both tables."""
    arguments = command.parser(__doc__)
    add_rival(arguments)
    arguments.add_argument("--baseline", type=Path, required=True, help="table of plain greedy decoding (Parquet)")
    arguments.add_argument("--temperature", type=float, required=True, help="sampling temperature; 0 is greedy")
    arguments.add_argument("--cycles", type=Path, required=True, help="table of verifications to write (Parquet)")
    arguments.add_argument("--turns", type=Path, required=True, help="table of answers to write (Parquet)")
    arguments.add_argument("--work", type=Path, required=True, help="folder of shards, so that a killed run continues")
    command.add_shard(arguments)
    args = arguments.parse_args()
    spec, own = read_spec(RivalSpec, args.spec), QuestionRange(args.shard, args.shards)
    torch.set_num_threads(args.threads)
    questions = own.of(read_turns(read_table(args.baseline, BASELINE)))
    target, drafter = load_rival(args, spec.rival, spec.decode.runtime)
    inputs = [args.baseline, *read_files(args)]
    shards = shards_of(drafter, args.work, job_key(args.fingerprint, [args.temperature, args.rival], inputs))
    rows = measure_acceptance(target, drafter, questions, spec.decode, args.temperature, shards)
    for path, name, table in ((args.cycles, "cycles", CYCLES), (args.turns, "turns", TURNS)):
        write_table(path, table, to_frame(rows[name], table), own.origin(command.origin(args)))
    shards.remove()


if __name__ == "__main__":
    command.run(main)
