"""Decode the benchmark with a drafter that needs no head and count how many of its tokens the target accepts."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.ranges import QuestionRange
from speclayers.decoding.shards import Shards, job_key, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.drafting.rival import add_files, build_rival, given_files
from speclayers.names import RivalName
from speclayers.specs import RivalSpec, read_spec
from speclayers.tables import BASELINE, CYCLES, TURNS, read_table, write_table
from speclayers.targets.manifest import MANIFEST
from speclayers.targets.target import load_target


def main() -> None:
    """Load the model, build the drafter, decode, write both tables."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--rival", required=True, help="name of the drafter's run, such as clasp or random_skip.s0")
    add_files(arguments)
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
    target, files = load_target(args.target, args.model, spec.decode.runtime), given_files(args)
    drafter = build_rival(spec.rival, target, RivalName.parse(args.rival), files)
    inputs = [args.target / MANIFEST, args.baseline, *files.values()]
    shards = Shards(args.work, job_key(args.fingerprint, [args.temperature, args.rival], inputs))
    rows = measure_acceptance(target, drafter, questions, spec.decode, args.temperature, shards)
    for path, name, table in ((args.cycles, "cycles", CYCLES), (args.turns, "turns", TURNS)):
        write_table(path, table, to_frame(rows[name], table), own.origin(command.origin(args)))
    shards.remove()


if __name__ == "__main__":
    command.run(main)
