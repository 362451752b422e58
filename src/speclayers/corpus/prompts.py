"""Prompts from a JSON-lines file or a Hugging Face data set."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
from huggingface_hub import snapshot_download

from speclayers.errors import UserError

_PROMPT_KEYS = ("prompt", "turns", "messages")
_DATASET_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Prompt:
    """What a person says to the target: one or more turns, the target answering each.

    Attributes:
        prompt_id: Unique within its file.
        category: What kind of task it is; "other" where the source does not say.
        turns: The user's messages in order, at least one, none of them blank.
    """

    prompt_id: str
    category: str
    turns: tuple[str, ...]


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a JSON-lines file, in the order of the file.

    A line is an object with exactly one of `prompt` (text), `turns` (a list of texts, as in Spec-Bench)
    and `messages` (a chat of `{"role", "content"}`, of which the user's messages are kept). It may have
    an `id` or a `question_id`, and a `category`. Blank lines are passed over.

    Raises:
        UserError: If the file cannot be read, holds no prompt, or has a line that is not a prompt.
    """
    prompts = []
    line_of_id: dict[str, int] = {}
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        prompt_id = _read_id(row, number, where)
        first = line_of_id.setdefault(prompt_id, number)
        if first != number:
            raise UserError(f"{where}: id {prompt_id!r} was used on line {first}; ids must be unique")
        prompts.append(Prompt(prompt_id, _read_category(row, where), _read_turns(row, where)))
    if not prompts:
        raise UserError(f"{path}: no prompt found; expected one object a line with {_either(_PROMPT_KEYS)}")
    return prompts


def read_dataset(name: str, split: str, column: str) -> list[Prompt]:
    """Download the files of a Hugging Face data set and read the prompts of one column.

    The files of a split are those whose path names it, as in `data/train-00000-of-00002.parquet` or
    `train.jsonl`; parquet files are preferred, and all that match are read in the order of their paths.
    A value of the column is a text, a list of texts or a chat, as in `read_prompts`.

    Args:
        name: The data set's id on the hub, `owner/name`.
        split: Such as `train`.
        column: The column that holds the prompts.

    Raises:
        UserError: If the name is not an id, the data set cannot be downloaded, no file belongs to the
            split, or a row has no prompt in the column.
    """
    if not _DATASET_NAME.fullmatch(name) or ".." in name:
        raise UserError(f"data set {name!r}: expected the id of a Hugging Face data set, owner/name")
    if not _SPLIT_NAME.fullmatch(split):
        raise UserError(f"data set {name}: split {split!r} may hold only letters, digits, '.', '_' and '-'")
    prompts: list[Prompt] = []
    for path in _split_files(_download(name, split), name, split):
        for where, row in _read_rows(path, column):
            if row.get(column) is None:
                raise UserError(f"{where}: no value in column {column!r}; found {', '.join(sorted(row))}")
            turns = _turns_of_value(row[column], where, column)
            category = row.get("category")
            prompts.append(
                Prompt(
                    prompt_id=f"{split}-{len(prompts):06d}",
                    category="other" if category is None else str(category),
                    turns=turns,
                )
            )
    if not prompts:
        raise UserError(f"data set {name}: split {split!r} has no rows; choose another split")
    return prompts


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number, from 1, and the object of every line of `path` that is not blank.

    Raises:
        UserError: If the file cannot be read or a line is not a JSON object.
    """
    try:
        # Binary, because only \n ends a line here: a text may well hold U+2028 or a form feed.
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a JSON-lines file") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:  # broken JSON, bytes that are not UTF-8, half a surrogate pair
            raise UserError(f"{path}:{number}: expected a JSON object on one line ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, found {_kind(row)}")
        yield number, row


def _read_id(row: dict[str, Any], number: int, where: str) -> str:
    """The id of a row as text, or one made from its line number."""
    for key in ("id", "question_id"):
        if key in row:
            value = row[key]
            if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
                raise UserError(f"{where}: {key} must be a text or a whole number, found {value!r}")
            return str(value)
    return f"line-{number:06d}"


def _read_category(row: dict[str, Any], where: str) -> str:
    """The category of a row, "other" where it has none."""
    category = row.get("category")
    if category is None:
        return "other"
    if not isinstance(category, str) or not category.strip():
        raise UserError(f"{where}: category must be a text, found {category!r}")
    return category


def _read_turns(row: dict[str, Any], where: str) -> tuple[str, ...]:
    """The turns under the one key of a row that holds a prompt."""
    keys = [key for key in _PROMPT_KEYS if key in row]
    if len(keys) != 1:
        found = " and ".join(keys) if keys else f"only {', '.join(row) or 'an empty object'}"
        raise UserError(f"{where}: expected exactly one of {_either(_PROMPT_KEYS)}, found {found}")
    key = keys[0]
    value = row[key]
    if key == "prompt" and not isinstance(value, str):
        raise UserError(f"{where}: prompt must be a text, found {_kind(value)}")
    if key != "prompt" and not isinstance(value, list):
        raise UserError(f"{where}: {key} must be a list, found {_kind(value)}")
    if key == "turns" and any(isinstance(turn, dict) for turn in value):
        raise UserError(f"{where}: turns must be a list of texts; a chat belongs under messages")
    if key == "messages" and not all(isinstance(message, dict) for message in value):
        raise UserError(f'{where}: messages must be a list of objects {{"role", "content"}}')
    return _turns_of_value(value, where, key)


def _turns_of_value(value: object, where: str, key: str) -> tuple[str, ...]:
    """The turns of a text, a list of texts or a chat; `where` and `key` are for the message of an error."""
    items: list[Any] = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, dict) for item in items):
        items = _user_messages(items, where, key)
    if not items:
        raise UserError(f"{where}: {key} holds no turn of the user")
    for item in items:
        if not isinstance(item, str):
            raise UserError(f"{where}: expected texts in {key}, found {_kind(item)}")
        if not item.strip():
            raise UserError(f"{where}: {key} has a blank turn; expected a text")
    return tuple(items)


def _user_messages(messages: list[dict[str, Any]], where: str, key: str) -> list[Any]:
    """What the user says in a chat; the target gives its own answers, so the assistant's are dropped."""
    contents = []
    for message in messages:
        role = message.get("role")
        if role == "system":
            raise UserError(f"{where}: {key} has a system message, which a study does not send; remove it")
        if role not in ("user", "assistant"):
            raise UserError(f"{where}: {key} has the role {role!r}; expected 'user' or 'assistant'")
        if role == "user":
            contents.append(message.get("content"))
    return contents


def _download(name: str, split: str) -> Path:
    """Download the parquet and JSON-lines files of a split, or find them in the hub's cache."""
    patterns = [f"*{split}*.parquet", f"*{split}*.jsonl"]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except Exception as error:  # the client's errors for a wrong name, a proxy and no network share no base
        raise UserError(
            f"data set {name}: cannot be downloaded ({type(error).__name__}: {error}); check the name and "
            "the connection, log in with `hf auth login` if access is restricted, or use a JSON-lines file"
        ) from error


def _split_files(directory: Path, name: str, split: str) -> list[Path]:
    """The files of `directory` whose path names the split; JSON lines only where there is no parquet."""
    # `train` must not find `train_sft`, nor `test` a folder `latest`.
    names_split = re.compile(rf"(?<!\w){re.escape(split)}(?!\w)")
    for suffix in (".parquet", ".jsonl"):
        found = [
            path
            for path in sorted(directory.rglob(f"*{suffix}"))
            if names_split.search(path.relative_to(directory).as_posix())
        ]
        if found:
            return found
    raise UserError(
        f"data set {name}: no parquet or jsonl file of split {split!r}; expected a path such as "
        f"data/{split}-00000-of-00001.parquet or {split}.jsonl"
    )


def _read_rows(path: Path, column: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place, for messages, and the object of every row; of a parquet file only what is needed."""
    if path.suffix == ".jsonl":
        for number, row in read_json_lines(path):
            yield f"{path}:{number}", row
        return
    try:
        table = pyarrow.parquet.ParquetFile(path)
        names = table.schema_arrow.names
        if column not in names:
            raise UserError(f"{path}: no column {column!r}; found {', '.join(names)}")
        needed = [name for name in names if name in (column, "category")]
        number = 0
        for batch in table.iter_batches(columns=needed):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a readable parquet file ({error}); delete it and try again") from error


def _either(names: tuple[str, ...]) -> str:
    """Join names to a list that ends in "or"."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _kind(value: object) -> str:
    """Name the JSON type of a value as a person would."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
