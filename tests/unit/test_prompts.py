"""Prompts are read from JSON lines and data sets, or made up by the generator."""

import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from speclayers.corpus import prompts as prompts_module
from speclayers.corpus.generator import generate_prompts
from speclayers.corpus.prompts import Prompt, read_dataset, read_prompts
from speclayers.corpus.questions import CATEGORIES, bundled_questions_path, read_questions
from speclayers.errors import UserError

MANY = 4000


def write_lines(path: Path, *rows: object) -> Path:
    """Write rows as JSON lines; a string goes in as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def n_grams(text: str, length: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


@pytest.fixture(scope="module")
def generated() -> list[Prompt]:
    return generate_prompts(MANY, seed=0)


def test_every_kind_of_line_becomes_its_user_turns(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "Name a bird."},
        {"role": "assistant", "content": "A wren."},
        {"role": "user", "content": "And another."},
    ]
    path = write_lines(
        tmp_path / "prompts.jsonl",
        {"prompt": "Say hello.", "id": "greeting"},
        "",
        {"turns": ["Count to three.", "Now backwards."], "question_id": 81, "category": "writing"},
        {"messages": chat, "category": "animals"},
    )
    assert read_prompts(path) == [
        Prompt("greeting", "other", ("Say hello.",)),
        Prompt("81", "writing", ("Count to three.", "Now backwards.")),
        Prompt("line-000004", "animals", ("Name a bird.", "And another.")),
    ]


def test_a_line_separator_within_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "prompts.jsonl", {"prompt": "one\u2028two"}, {"prompt": "three"})
    assert [prompt.turns for prompt in read_prompts(path)] == [("one\u2028two",), ("three",)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "half', "expected a JSON object on one line"),
        ('{"prompt": "\\ud800"}', "surrogates not allowed"),
        ('["a list"]', "expected a JSON object, found a list"),
        ("17", "expected a JSON object, found a number"),
        ("{}", "exactly one of prompt, turns or messages, found only an empty object"),
        ('{"text": "Hello."}', "found only text"),
        ('{"prompt": "Hello.", "turns": ["Hello."]}', "found prompt and turns"),
        ('{"prompt": ["Hello."]}', "prompt must be a text, found a list"),
        ('{"prompt": "  "}', "blank turn"),
        ('{"turns": "Hello."}', "turns must be a list, found a text"),
        ('{"turns": []}', "no turn"),
        ('{"turns": ["Hello.", ""]}', "blank turn"),
        ('{"turns": ["Hello.", 3]}', "expected texts in turns, found a number"),
        ('{"turns": [{"role": "user", "content": "Hello."}]}', "belongs under messages"),
        ('{"messages": ["Hello."]}', "messages must be a list of objects"),
        ('{"messages": [{"role": "system", "content": "Be brief."}]}', "system message"),
        ('{"messages": [{"role": "tool", "content": "42"}]}', "role 'tool'"),
        ('{"messages": [{"role": "assistant", "content": "Hello."}]}', "no turn of the user"),
        ('{"messages": [{"role": "user", "content": null}]}', "found null"),
        ('{"prompt": "Hello.", "id": "first"}', "'first' was used on line 1"),
        ('{"prompt": "Hello.", "id": 1.5}', "id must be a text or a whole number"),
        ('{"prompt": "Hello.", "category": 4}', "category must be a text"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "prompts.jsonl", {"prompt": "Good.", "id": "first"}, "", line)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_bytes_that_are_not_utf8_are_refused_with_the_line_number(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "Good."}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"prompts\.jsonl:2: "):
        read_prompts(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prompt found"):
        read_prompts(write_lines(tmp_path / "empty.jsonl", "", "  "))
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the downloaded files of the data set `someone/chats`."""

    def download(repo_id: str, *, repo_type: str, allow_patterns: list[str]) -> str:
        assert (repo_id, repo_type) == ("someone/chats", "dataset")
        assert allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(prompts_module, "snapshot_download", download)
    return tmp_path


def write_parquet(path: Path, **columns: list[object]) -> None:
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path)


def test_a_dataset_is_read_from_every_file_of_its_split(snapshot: Path) -> None:
    write_parquet(snapshot / "data/train-00001-of-00002.parquet", text=["c"], category=["qa"])
    write_parquet(snapshot / "data/train-00000-of-00002.parquet", text=["a", "b"], category=["qa", None])
    write_parquet(snapshot / "data/train_sft-00000-of-00001.parquet", text=["not this"])
    write_lines(snapshot / "train.jsonl", {"text": "nor this"})
    assert read_dataset("someone/chats", "train", "text") == [
        Prompt("train-000000", "qa", ("a",)),
        Prompt("train-000001", "other", ("b",)),
        Prompt("train-000002", "qa", ("c",)),
    ]


def test_a_column_of_chats_becomes_the_users_turns(snapshot: Path) -> None:
    chat = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    write_parquet(snapshot / "data/test-00000-of-00001.parquet", messages=[chat])
    assert read_dataset("someone/chats", "test", "messages") == [Prompt("test-000000", "other", ("Hi.",))]


def test_json_lines_are_read_where_there_is_no_parquet(snapshot: Path) -> None:
    write_lines(snapshot / "train.jsonl", {"text": "a"}, {"text": ["b", "c"]})
    assert [prompt.turns for prompt in read_dataset("someone/chats", "train", "text")] == [("a",), ("b", "c")]


@pytest.mark.parametrize("name", ["chats", "a/b/c", "../secrets", "someone/..", "https://x.y/z", "a b/c", ""])
def test_a_name_that_is_not_an_id_never_reaches_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "snapshot_download", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(UserError, match="owner/name"):
        read_dataset(name, "train", "text")


def test_a_split_that_is_a_pattern_is_refused() -> None:
    with pytest.raises(UserError, match="split"):
        read_dataset("someone/chats", "*", "text")


def test_a_dataset_without_what_was_asked_for_says_what_it_has(snapshot: Path) -> None:
    write_parquet(snapshot / "data/train-00000-of-00001.parquet", text=["a", None], note=["b", "c"])
    (snapshot / "broken-test.parquet").write_bytes(b"not parquet")
    write_parquet(snapshot / "dev.parquet", text=[])
    with pytest.raises(UserError, match="no parquet or jsonl file of split 'validation'"):
        read_dataset("someone/chats", "validation", "text")
    with pytest.raises(UserError, match="no column 'prompt'; found text, note"):
        read_dataset("someone/chats", "train", "prompt")
    with pytest.raises(UserError, match="row 2: no value in column 'text'"):
        read_dataset("someone/chats", "train", "text")
    with pytest.raises(UserError, match="not a readable parquet file"):
        read_dataset("someone/chats", "test", "text")
    with pytest.raises(UserError, match="no rows"):
        read_dataset("someone/chats", "dev", "text")


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(prompts_module, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"cannot be downloaded .*no route.*JSON-lines file"):
        read_dataset("someone/chats", "train", "text")


def test_generated_prompts_depend_on_the_arguments_alone(generated: list[Prompt]) -> None:
    assert generate_prompts(MANY, seed=0) == generated
    assert generate_prompts(60, seed=1) != generated[:60]


def test_a_longer_generated_list_starts_with_the_shorter(generated: list[Prompt]) -> None:
    for count in (0, 1, 100, 1001):
        assert generate_prompts(count, seed=0) == generated[:count]


def test_generated_prompts_are_distinct(generated: list[Prompt]) -> None:
    assert len({prompt.turns for prompt in generated}) == MANY
    assert len({prompt.prompt_id for prompt in generated}) == MANY


def test_generated_prompts_take_the_categories_in_rotation(generated: list[Prompt]) -> None:
    assert [prompt.category for prompt in generated[:7]] == [*CATEGORIES, CATEGORIES[0]]
    counts = Counter(prompt.category for prompt in generated)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_generated_prompts_have_no_slot_left_and_stay_short(generated: list[Prompt]) -> None:
    texts = [prompt.turns[0] for prompt in generated]
    assert not [text for text in texts if re.search(r"[{}^]|  ", text)]
    lengths = sorted(len(text.split()) for text in texts)
    assert 20 <= lengths[MANY // 2] <= 40
    assert lengths[-1] <= 90


def test_generated_prompts_share_no_eight_words_with_the_bundled_questions(generated: list[Prompt]) -> None:
    questions = read_questions(bundled_questions_path())
    texts = [text for question in questions for text in (*question.turns, *question.reference)]
    held_out = set().union(*(n_grams(text, 8) for text in texts))
    assert not [prompt for prompt in generated if n_grams(prompt.turns[0], 8) & held_out]
    assert not {text.lower() for text in texts} & {prompt.turns[0].lower() for prompt in generated}
