"""The target's own answers to a set of prompts: the corpus on which layers are measured and heads trained."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm

from speclayers.config import SplitConfig
from speclayers.corpus.chat import decode, prompt_hash, render, render_text
from speclayers.corpus.generation import Sampling, generate_batch
from speclayers.corpus.prompts import Prompt
from speclayers.errors import UserError
from speclayers.tables import CORPUS, Origin, read_origin, read_table, write_table
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)

LOG_EVERY_S = 30.0


class _Request(NamedTuple):
    """One turn to answer."""

    place: int
    prompt: Prompt
    turn: int
    ids: list[int]
    text: str

    @property
    def sample_id(self) -> str:
        """The prompt's id; later turns carry their number, so that every sequence has its own id."""
        return self.prompt.prompt_id if self.turn == 0 else f"{self.prompt.prompt_id}/{self.turn}"


def generate_responses(
    target: Target, prompts: Sequence[Prompt], split: SplitConfig, batch_size: int, work: Path
) -> pd.DataFrame:
    """Let the target answer prompts, turn by turn, later turns after its own earlier answers.

    Prompts of similar length are answered together. A finished batch is a shard in `work`; the next
    run with the same target, prompts and settings reads it instead of answering again.

    Args:
        target: The model.
        prompts: Prompts in the order of the corpus.
        split: How long, how warm and from which seed answers are.
        batch_size: Prompts answered together.
        work: Folder of the shards.

    Returns:
        Rows of the table CORPUS in the order of the prompts, one a turn. A response is what was generated,
        its end token included.

    Raises:
        UserError: No prompt is short enough.
    """
    work.mkdir(parents=True, exist_ok=True)
    longest = min(split.max_prompt_tokens, target.manifest.context - split.max_new_tokens)
    rows: dict[tuple[int, int], dict[str, object]] = {}
    left_out = 0
    for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
        requests, too_long = _requests(target, prompts, turn, longest, rows)
        left_out += too_long
        for request, row in _answer_all(target, requests, split, batch_size, work):
            rows[request.place, turn] = row
    if left_out:
        logger.info("%s: left out %d prompts longer than %d tokens", target.name, left_out, longest)
    if not rows:
        raise UserError(
            f"{target.name}: none of {len(prompts)} prompts has at most {longest} tokens (max_prompt_tokens, or the "
            f"context of {target.manifest.context} less max_new_tokens); the corpus would be empty"
        )
    return pd.DataFrame([rows[key] for key in sorted(rows)], columns=[column.name for column in CORPUS.columns])


def _requests(
    target: Target,
    prompts: Sequence[Prompt],
    turn: int,
    longest: int,
    rows: Mapping[tuple[int, int], Mapping[str, object]],
) -> tuple[list[_Request], int]:
    """Render one turn of every prompt that has it; return those short enough and the number of the others."""
    options = target.runtime.template_options
    found, too_long = [], 0
    for place, prompt in enumerate(prompts):
        if turn >= len(prompt.turns) or (turn > 0 and (place, turn - 1) not in rows):
            continue
        turns = prompt.turns[: turn + 1]
        answers = [str(rows[place, earlier]["text"]) for earlier in range(turn)]
        ids = render(target.tokenizer, turns, answers, options)
        if len(ids) > longest:
            too_long += 1
            continue
        found.append(_Request(place, prompt, turn, ids, render_text(target.tokenizer, turns, answers, options)))
    return found, too_long


def _answer_all(
    target: Target, requests: list[_Request], split: SplitConfig, batch_size: int, work: Path
) -> list[tuple[_Request, dict[str, object]]]:
    ordered = sorted(requests, key=lambda request: (len(request.ids), request.place))
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    answered: list[tuple[_Request, dict[str, object]]] = []
    tokens, started = 0, time.monotonic()
    logged = started
    for number, batch in enumerate(tqdm(batches, desc="batches", disable=None, mininterval=1)):
        frame = _shard(target, batch, split, work / f"turn{batch[0].turn}-shard-{number:04d}.parquet")
        answered += zip(batch, [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")], strict=True)
        tokens += sum(map(len, frame["input_ids"])) - int(frame["response_start"].sum())
        if time.monotonic() - logged > LOG_EVERY_S:
            logged = time.monotonic()
            rate = tokens / (logged - started)
            logger.info("%s: %d of %d prompts, %.0f tokens/s", target.name, len(answered), len(ordered), rate)
    return answered


def _shard(target: Target, batch: list[_Request], split: SplitConfig, path: Path) -> pd.DataFrame:
    """Read a batch's shard, or answer the batch and write it."""
    key = _key(target, batch, split)
    if path.is_file() and read_origin(path).get("fingerprint") == key:
        return read_table(path, CORPUS)
    sampling = Sampling(split.temperature, split.seed)
    prompts, keys = [request.ids for request in batch], [request.sample_id for request in batch]
    answers = generate_batch(target, prompts, keys, split.max_new_tokens, sampling)
    rows = [_row(target, request, answer, split) for request, answer in zip(batch, answers, strict=True)]
    write_table(path, CORPUS, pd.DataFrame(rows), Origin(model=target.name, fingerprint=key))
    return read_table(path, CORPUS)


def _row(target: Target, request: _Request, answer: list[int], split: SplitConfig) -> dict[str, object]:
    return {
        "sample_id": request.sample_id,
        "prompt_id": request.prompt.prompt_id,
        "source": split.prompts.source,
        "category": request.prompt.category,
        "turn": request.turn,
        "input_ids": request.ids + answer,
        "response_start": len(request.ids),
        "text": decode(target.tokenizer, answer),
        "prompt_hash": prompt_hash(request.text),
    }


def _key(target: Target, batch: list[_Request], split: SplitConfig) -> str:
    """Hash all that a batch's answers depend on."""
    settings = [split.max_new_tokens, split.temperature, split.seed, sorted(target.stop_ids), target.runtime.dtype]
    parts = [target.manifest.target_hash, settings, [[request.sample_id, *request.ids] for request in batch]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
