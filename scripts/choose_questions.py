"""Choose the benchmark questions of a study and write them in Spec-Bench's format."""

from __future__ import annotations

import json
from pathlib import Path

from speclayers import command
from speclayers.config import FileQuestions, SpecBenchQuestions
from speclayers.corpus.questions import (
    Question,
    bundled_questions_path,
    choose_questions,
    read_questions,
    spec_bench_path,
)
from speclayers.files import write_text
from speclayers.specs import QuestionsSpec, read_spec


def json_line(question: Question) -> str:
    """Return a question as a line of Spec-Bench's format."""
    row = {"question_id": question.question_id, "category": question.subcategory, "turns": question.turns}
    if question.reference:
        row["reference"] = question.reference
    return json.dumps(row, ensure_ascii=False) + "\n"


def main() -> None:
    """Read the source's questions, choose, write."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--downloads", type=Path, required=True, help="folder that keeps Spec-Bench's file")
    arguments.add_argument("--output", type=Path, required=True, help="chosen questions (JSON lines)")
    args = arguments.parse_args()
    spec = read_spec(QuestionsSpec, args.spec)
    if isinstance(spec.questions, FileQuestions):
        source = Path(spec.questions.path)
    elif isinstance(spec.questions, SpecBenchQuestions):
        source = spec_bench_path(Path(given) if (given := spec.questions.path) else None, args.downloads)
    else:
        source = bundled_questions_path()
    chosen = choose_questions(read_questions(source), spec.per_category, spec.seed, spec.per_subcategory)
    write_text(args.output, "".join(map(json_line, chosen)))


if __name__ == "__main__":
    command.run(main)
