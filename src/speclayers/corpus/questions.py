"""The benchmark's questions: those bundled with the package, Spec-Bench's, or a file in its format."""

import hashlib
import http.client
import importlib.resources
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speclayers.corpus.prompts import read_json_lines
from speclayers.errors import UserError
from speclayers.files import atomic_path

CATEGORIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH_SUBCATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)

SPEC_BENCH_URL = (
    "https://raw.githubusercontent.com/hemingkx/Spec-Bench/"
    "fd2c1cd7d2201ef71db4c5f4e455008f017967bf/data/spec_bench/question.jsonl"
)
SPEC_BENCH_SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"


@dataclass(frozen=True)
class Question:
    """A question of the benchmark.

    Attributes:
        question_id: Unique within its file.
        category: One of `CATEGORIES`.
        subcategory: What the file says, such as `coding` for a question of `mt_bench`.
        turns: What the user says, one message a turn.
        reference: Reference answers, one a turn, its alternatives joined by "; "; empty where the file
            has none.
    """

    question_id: int
    category: str
    subcategory: str
    turns: tuple[str, ...]
    reference: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """Read questions in Spec-Bench's format, in the order of the file.

    Raises:
        UserError: If the file cannot be read, holds no question, or has a line that is not a question.
    """
    questions = []
    line_of_id: dict[int, int] = {}
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        question = _read_question(row, where)
        first = line_of_id.setdefault(question.question_id, number)
        if first != number:
            raise UserError(f"{where}: question_id {question.question_id} was used on line {first} already")
        questions.append(question)
    if not questions:
        raise UserError(f"{path}: no question found; expected one JSON object a line, as in Spec-Bench")
    return questions


def bundled_questions_path() -> Path:
    """Return the path of the 144 questions that come with the package, 24 of each category."""
    return Path(str(importlib.resources.files("speclayers.corpus").joinpath("bundled/questions.jsonl")))


def choose_questions(
    questions: Iterable[Question], per_category: int | None, seed: int, per_subcategory: int | None = None
) -> list[Question]:
    """Choose up to so many questions of each category, ordered by their ids.

    The choice does not depend on the order of `questions`, and a larger one contains the smaller.

    Args:
        questions: What to choose from.
        per_category: How many of each category to choose; None takes all.
        seed: Another seed chooses other questions.
        per_subcategory: Instead, how many of each subcategory: those of `mt_bench` count apart.

    Raises:
        UserError: If either is less than one.
    """
    most = per_category if per_subcategory is None else per_subcategory
    if most is not None and most < 1:
        raise UserError(f"questions per category: expected at least 1, found {most}")
    groups: dict[str, list[Question]] = {}
    for question in sorted(questions, key=lambda question: _rank(seed, question.question_id)):
        group = question.category if per_subcategory is None else question.subcategory
        groups.setdefault(group, []).append(question)
    chosen = [question for members in groups.values() for question in members[:most]]
    return sorted(chosen, key=lambda question: question.question_id)


def spec_bench_path(path: Path | None, downloads: Path, sha256: str = SPEC_BENCH_SHA256) -> Path:
    """Return the path of Spec-Bench's official file: the given one, once checked, or a download.

    Args:
        path: Where the file lies already; None downloads it.
        downloads: Where a download is kept.
        sha256: The checksum the content must have.

    Raises:
        UserError: If the file cannot be read or downloaded, or its content is not the official one.
    """
    if path is None:
        return fetch_spec_bench(downloads)
    try:
        found = _sha256(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    if found != sha256:
        raise UserError(
            f"{path}: has the SHA-256 {found}, expected {sha256}, that of Spec-Bench's official file; "
            "a file of your own is {source: file, path: ...}"
        )
    return path


def fetch_spec_bench(directory: Path, url: str = SPEC_BENCH_URL, sha256: str = SPEC_BENCH_SHA256) -> Path:
    """Download Spec-Bench's questions into `directory`, unless they are there already.

    Args:
        directory: Where to put `question.jsonl`; made if missing.
        url: Where to get it; the default is pinned to one commit.
        sha256: The checksum the content must have.

    Returns:
        The path of the file, whose content has the checksum.

    Raises:
        UserError: If the download fails or its content is not the expected one.
    """
    target = directory / "question.jsonl"
    if target.exists() and _sha256(target.read_bytes()) == sha256:
        return target
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"Spec-Bench: {url} cannot be downloaded ({error}); fetch it on a machine with a connection "
            f"and put it at {target}, or use the bundled questions"
        ) from error
    if (found := _sha256(content)) != sha256:
        raise UserError(
            f"Spec-Bench: {url} has the SHA-256 {found}, expected {sha256}; nothing was kept. A proxy may "
            f"have changed the file: fetch it by another way and put it at {target}"
        )
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)
    return target


def _read_question(row: dict[str, Any], where: str) -> Question:
    """Turn one line of the file into a question."""
    question_id = row.get("question_id")
    if isinstance(question_id, bool) or not isinstance(question_id, int):
        raise UserError(f"{where}: question_id must be a whole number, found {question_id!r}")
    if abs(question_id) >= 2**63:
        raise UserError(f"{where}: question_id must be less than 2^63, found {question_id}")
    subcategory = row.get("category")
    category = "mt_bench" if subcategory in MT_BENCH_SUBCATEGORIES else subcategory
    if not isinstance(subcategory, str) or category not in CATEGORIES:
        expected = ", ".join((*MT_BENCH_SUBCATEGORIES, *CATEGORIES))
        raise UserError(f"{where}: unknown category {subcategory!r}; expected one of {expected}")
    turns = _read_texts(row.get("turns"), "turns", where)
    if not turns:
        raise UserError(f"{where}: turns is missing or empty; expected a list of at least one text")
    if blank := [index for index, turn in enumerate(turns, start=1) if not turn.strip()]:
        raise UserError(f"{where}: turn {blank[0]} is empty; expected a text")
    return Question(question_id, str(category), subcategory, turns, _read_reference(row, where))


def _read_texts(texts: object, key: str, where: str) -> tuple[str, ...]:
    """Check that `texts` is a list of texts; one that is missing counts as empty."""
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: {key} must be a list of texts, found {texts!r}")
    return tuple(texts)


def _read_reference(row: dict[str, Any], where: str) -> tuple[str, ...]:
    """Read the reference answers, joining the alternatives that Spec-Bench gives for some of its turns."""
    answers = row.get("reference")
    if isinstance(answers, list):
        answers = [
            "; ".join(_read_texts(answer, "reference", where)) if isinstance(answer, list) else answer
            for answer in answers
        ]
    return _read_texts(answers, "reference", where)


def _rank(seed: int, question_id: int) -> bytes:
    """Where a question stands in the order of choice, the same on every machine and Python."""
    return hashlib.sha256(f"{seed}:{question_id}".encode()).digest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
