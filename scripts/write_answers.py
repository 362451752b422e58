"""Write the answers of a finished run, and of plain decoding, as Spec-Bench's answer files."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from transformers import AutoTokenizer

from speclayers.command import run
from speclayers.corpus.chat import decode
from speclayers.corpus.questions import read_questions
from speclayers.corpus.spec_bench_answers import answer_lines, drafted_turns, plain_turns, timed_turns
from speclayers.decoding.skipping import answered
from speclayers.files import write_text
from speclayers.layout import Layout
from speclayers.tables import BASELINE, CYCLES, SPEED, TURNS, read_table


def main() -> None:
    """Read the run's tables, write both files, tell their names."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    arguments.add_argument("--study", required=True, help="name of the study")
    arguments.add_argument("--model", required=True, help="name of the model")
    arguments.add_argument("--head", required=True, help="name of the head, or of a drafter without training")
    arguments.add_argument("--temperature", default="0", help="sampling temperature, as it stands in paths")
    arguments.add_argument("--nodes", required=True, help="size of the draft, as it stands in paths")
    arguments.add_argument("--timed", action="store_true", help="only the questions that were timed, with their times")
    arguments.add_argument("--output", type=Path, required=True, help="folder to write")
    args = arguments.parse_args()
    layout = Layout(args.study)
    place = (args.model, args.head, args.temperature, args.nodes)
    turns = Path(layout.acceptance(*place, "turns"))
    drafted = drafted_turns(read_table(turns, TURNS), read_table(Path(layout.acceptance(*place, "cycles")), CYCLES))
    plain = plain_turns(answered(read_table(Path(layout.baseline(args.model, args.temperature)), BASELINE)))
    speed = read_table(Path(layout.speed(*place)), SPEED) if args.timed else None
    questions = read_questions(Path(layout.questions()))
    text = partial(decode, AutoTokenizer.from_pretrained(layout.target(args.model)))
    for name, found, prefix in ((f"{args.head}-n{args.nodes}", drafted, ""), ("plain", plain, "baseline_")):
        model_id = f"{args.model}-{name}-temp-{args.temperature}"
        seconds = None if speed is None else timed_turns(speed, found, prefix)
        lines = answer_lines(questions, found, text, model_id, turns.stat().st_mtime, seconds)
        path = args.output / f"{model_id}.jsonl"
        write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines))
        print(path)


if __name__ == "__main__":
    run(main)
