"""The benchmark's questions: the bundled ones, files in Spec-Bench's format, and the choice among them."""

import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from speclayers.corpus.questions import (
    CATEGORIES,
    MT_BENCH_SUBCATEGORIES,
    SPEC_BENCH_SHA256,
    Question,
    bundled_questions_path,
    choose_questions,
    fetch_spec_bench,
    read_questions,
    spec_bench_path,
)
from speclayers.errors import UserError


@pytest.fixture(scope="module")
def bundled() -> list[Question]:
    return read_questions(bundled_questions_path())


def test_the_bundled_questions_are_balanced_and_ordered(bundled: list[Question]) -> None:
    assert [question.question_id for question in bundled] == list(range(1, 145))
    assert Counter(question.category for question in bundled) == dict.fromkeys(CATEGORIES, 24)
    ranks = [CATEGORIES.index(question.category) for question in bundled]
    assert ranks == sorted(ranks)


def test_the_eight_subcategories_make_up_mt_bench(bundled: list[Question]) -> None:
    mt_bench = [question for question in bundled if question.category == "mt_bench"]
    assert Counter(question.subcategory for question in mt_bench) == dict.fromkeys(MT_BENCH_SUBCATEGORIES, 3)
    assert all(len(question.turns) == 2 for question in mt_bench)
    others = [question for question in bundled if question.category != "mt_bench"]
    assert all(question.subcategory == question.category and len(question.turns) == 1 for question in others)


def test_the_bundled_questions_are_distinct_and_short(bundled: list[Question]) -> None:
    turns = [turn for question in bundled for turn in question.turns]
    assert len(set(turns)) == len(turns)
    for question in bundled:
        assert len(question.reference) in (0, len(question.turns))
        words = len(" ".join(question.turns).split())
        if question.category == "summarization":
            assert 80 <= words - 1 <= 140
        else:
            assert words <= 200


def test_a_choice_that_asks_for_more_keeps_what_it_had(bundled: list[Question]) -> None:
    earlier: set[Question] = set()
    for per_category in range(1, 26):
        chosen = choose_questions(bundled, per_category, seed=3)
        assert earlier < set(chosen) or per_category == 25
        assert chosen == sorted(chosen, key=lambda question: question.question_id)
        counts = Counter(question.category for question in chosen)
        assert counts == dict.fromkeys(CATEGORIES, min(per_category, 24))
        earlier = set(chosen)
    assert choose_questions(bundled, None, seed=3) == bundled


def test_a_choice_depends_on_the_seed_and_not_on_the_order(bundled: list[Question]) -> None:
    shuffled = random.Random(0).sample(bundled, len(bundled))
    assert choose_questions(shuffled, 4, seed=3) == choose_questions(bundled, 4, seed=3)
    assert choose_questions(bundled, 4, seed=4) != choose_questions(bundled, 4, seed=3)


def test_a_choice_by_subcategory_takes_as_many_of_each_of_thirteen(bundled: list[Question]) -> None:
    chosen = choose_questions(bundled, None, seed=0, per_subcategory=2)
    assert Counter(question.subcategory for question in chosen) == dict.fromkeys(
        (*MT_BENCH_SUBCATEGORIES, *CATEGORIES[1:]), 2
    )
    assert set(choose_questions(bundled, None, seed=0, per_subcategory=1)) < set(chosen)
    assert {q for q in choose_questions(bundled, 2, seed=0) if q.category != "mt_bench"} < set(chosen)


def test_a_choice_is_the_same_on_every_machine(bundled: list[Question]) -> None:
    chosen = choose_questions(bundled, 1, seed=0)
    assert [question.question_id for question in chosen] == [15, 46, 69, 87, 99, 142]


def test_a_choice_of_less_than_one_is_refused(bundled: list[Question]) -> None:
    with pytest.raises(UserError, match="at least 1, found 0"):
        choose_questions(bundled, 0, seed=0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question_id": 2', "expected a JSON object on one line"),
        ("[]", "expected a JSON object, found a list"),
        ('{"category": "qa", "turns": ["Why?"]}', "question_id must be a whole number, found None"),
        ('{"question_id": "2", "category": "qa", "turns": ["Why?"]}', "question_id must be a whole number"),
        ('{"question_id": 9223372036854775808, "category": "qa", "turns": ["Why?"]}', "must be less than 2^63"),
        ('{"question_id": 2, "category": "qa", "turns": ["\\ud800"]}', "surrogates not allowed"),
        ('{"question_id": true, "category": "qa", "turns": ["Why?"]}', "question_id must be a whole number"),
        ('{"question_id": 1, "category": "qa", "turns": ["Why?"]}', "question_id 1 was used on line 1"),
        ('{"question_id": 2, "category": "poetry", "turns": ["Why?"]}', "unknown category 'poetry'"),
        ('{"question_id": 2, "turns": ["Why?"]}', "unknown category None"),
        ('{"question_id": 2, "category": [], "turns": ["Why?"]}', "unknown category []"),
        ('{"question_id": 2, "category": "qa"}', "turns is missing or empty"),
        ('{"question_id": 2, "category": "qa", "turns": []}', "turns is missing or empty"),
        ('{"question_id": 2, "category": "qa", "turns": "Why?"}', "turns must be a list of texts"),
        ('{"question_id": 2, "category": "qa", "turns": ["Why?", " "]}', "turn 2 is empty"),
        (
            '{"question_id": 2, "category": "qa", "turns": ["Why?"], "reference": "So."}',
            "reference must be a list of texts",
        ),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "questions.jsonl"
    good = '{"question_id": 1, "category": "qa", "turns": ["How?"]}'
    path.write_text(f"{good}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_alternative_answers_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    row = {"question_id": 1, "category": "rag", "turns": ["Where?"], "reference": [["here", "at home"]]}
    path.write_text(json.dumps(row), encoding="utf-8")
    assert read_questions(path) == [Question(1, "rag", "rag", ("Where?",), ("here; at home",))]


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match="no question found"):
        read_questions(path)


def served(tmp_path: Path) -> tuple[str, str, str]:
    """The URL, the SHA-256 and the text of a file that stands in for Spec-Bench's."""
    text = json.dumps({"question_id": 81, "category": "stem", "turns": ["Why?", "How so?"]}) + "\n"
    path = tmp_path / "served.jsonl"
    path.write_text(text, encoding="utf-8")
    return path.as_uri(), hashlib.sha256(text.encode()).hexdigest(), text


def test_a_download_is_kept_once_its_checksum_agrees(tmp_path: Path) -> None:
    url, sha256, text = served(tmp_path)
    path = fetch_spec_bench(tmp_path / "new" / "folder", url, sha256)
    assert path.read_text(encoding="utf-8") == text
    assert read_questions(path)[0].category == "mt_bench"
    (tmp_path / "served.jsonl").unlink()
    assert fetch_spec_bench(tmp_path / "new" / "folder", url, sha256) == path


def test_a_download_with_another_checksum_leaves_nothing_behind(tmp_path: Path) -> None:
    url, _, _ = served(tmp_path)
    with pytest.raises(UserError, match="expected 0000"):
        fetch_spec_bench(tmp_path / "folder", url, "0" * 64)
    assert not (tmp_path / "folder").exists()


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    url, sha256, text = served(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "question.jsonl").write_text("half a li", encoding="utf-8")
    assert fetch_spec_bench(folder, url, sha256).read_text(encoding="utf-8") == text
    assert [path.name for path in folder.iterdir()] == ["question.jsonl"]


def test_the_official_file_by_its_path_is_checked(tmp_path: Path) -> None:
    _, sha256, _ = served(tmp_path)
    path = tmp_path / "served.jsonl"
    assert spec_bench_path(path, tmp_path / "downloads", sha256) == path
    with pytest.raises(UserError, match=rf"served\.jsonl: has the SHA-256 {sha256}, expected {SPEC_BENCH_SHA256}"):
        spec_bench_path(path, tmp_path / "downloads")
    with pytest.raises(UserError, match="gone: cannot be read"):
        spec_bench_path(tmp_path / "gone", tmp_path / "downloads")


def test_a_failed_download_says_where_to_put_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be downloaded.*put it at .*question\.jsonl"):
        fetch_spec_bench(tmp_path, (tmp_path / "missing").as_uri(), "0" * 64)
