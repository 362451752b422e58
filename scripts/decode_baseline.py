"""Decode every benchmark turn plainly: what drafters must reproduce, and the prompts of second turns."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.corpus.questions import read_questions
from speclayers.decoding.baseline import decode_questions, sample_turns
from speclayers.decoding.ranges import QuestionRange
from speclayers.decoding.shards import Shards, job_key, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.errors import UserError
from speclayers.specs import BaselineSpec, read_spec
from speclayers.tables import BASELINE, read_table, write_table
from speclayers.targets.manifest import MANIFEST
from speclayers.targets.target import load_target


def main() -> None:
    """Load the model and decode; above temperature 0 the prompts come from the greedy run."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--questions", type=Path, required=True, help="benchmark questions (JSON lines)")
    arguments.add_argument("--temperature", type=float, required=True, help="sampling temperature; 0 is greedy")
    arguments.add_argument("--greedy", type=Path, help="table of temperature 0; needed at any other")
    arguments.add_argument("--output", type=Path, required=True, help="table of answers (Parquet)")
    arguments.add_argument("--work", type=Path, required=True, help="folder of shards, so that a killed run continues")
    command.add_shard(arguments)
    args = arguments.parse_args()
    spec, own = read_spec(BaselineSpec, args.spec), QuestionRange(args.shard, args.shards)
    torch.set_num_threads(args.threads)
    source = args.questions if args.temperature == 0 else args.greedy
    if source is None:
        raise UserError(f"--greedy: is missing; temperature {args.temperature:g} needs the table of temperature 0")
    target = load_target(args.target, args.model, spec.decode.runtime)
    if args.temperature == 0:
        questions = own.of(read_questions(source))
        shards = Shards(args.work, job_key(args.fingerprint, [0.0], [args.target / MANIFEST, source]))
        rows = decode_questions(target, questions, spec, shards)
    else:
        asked = own.of(read_turns(read_table(source, BASELINE)))
        shards = Shards(args.work, job_key(args.fingerprint, [args.temperature], [args.target / MANIFEST, source]))
        rows = sample_turns(target, asked, spec.decode, args.temperature, shards)
    write_table(args.output, BASELINE, to_frame(rows["baseline"], BASELINE), own.origin(command.origin(args)))
    shards.remove()


if __name__ == "__main__":
    command.run(main)
