"""Answers in the form of Spec-Bench's answer files, one question a line, as its `speed` and `equal` read them.

The form was read in Spec-Bench's public code (evaluation/eval.py at fd2c1cd): `decoding_steps`, `new_tokens` and
`wall_time` hold one value a turn, `accept_lengths` one a verification of all turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from speclayers.corpus.questions import Question
from speclayers.errors import UserError

TurnKey = tuple[int, int]
"""Question and turn."""


class AnsweredTurn(NamedTuple):
    """One turn's answer.

    Args:
        ids: Its tokens.
        steps: Forward passes of the target behind the prompt's: verifications, or tokens of plain decoding.
        accept_lengths: Tokens of each whole verification, as τ counts them: those that the budget cut are left out.
    """

    ids: list[int]
    steps: int
    accept_lengths: list[int]


def drafted_turns(turns: pd.DataFrame, cycles: pd.DataFrame) -> dict[TurnKey, AnsweredTurn]:
    """Return the answers of an acceptance run.

    Args:
        turns: Rows of TURNS.
        cycles: Rows of CYCLES.
    """
    whole = cycles[~cycles["cut_by_budget"]].groupby(["question_id", "turn"])["emitted"].agg(list).to_dict()
    answered = {}
    for row in turns.to_dict("records"):
        key = (int(row["question_id"]), int(row["turn"]))
        ids = [int(token) for token in row["output_ids"]]
        answered[key] = AnsweredTurn(ids, int(row["cycles"]), [int(length) for length in whole.get(key, [])])
    return answered


def plain_turns(baseline: pd.DataFrame) -> dict[TurnKey, AnsweredTurn]:
    """Return the answers of plain decoding, one token a forward pass.

    Args:
        baseline: Rows of BASELINE that were answered.
    """
    answered = {}
    for row in baseline.to_dict("records"):
        ids = [int(token) for token in row["output_ids"]]
        answered[int(row["question_id"]), int(row["turn"])] = AnsweredTurn(ids, len(ids), [1] * len(ids))
    return answered


def timed_turns(
    speed: pd.DataFrame, answered: Mapping[TurnKey, AnsweredTurn], prefix: str = ""
) -> dict[TurnKey, float]:
    """Return the seconds that each answer took, its prompt's forward pass left out.

    Args:
        speed: Rows of SPEED.
        answered: The answers.
        prefix: `baseline_` for plain decoding's times.

    Raises:
        UserError: Other answers were timed: they were longer or shorter.
    """
    seconds = {}
    for row in speed.to_dict("records"):
        key = (int(row["question_id"]), int(row["turn"]))
        timed, given = int(row[f"{prefix}new_tokens"]), answered[key].ids if key in answered else []
        if timed != len(given):
            raise UserError(
                f"question {key[0]}, turn {key[1]}: {timed} tokens were timed, but its answer has {len(given)}; "
                "expected as many: give speed.max_new_tokens the value of acceptance.max_new_tokens"
            )
        seconds[key] = float(row[f"{prefix}wall_s"])
    return seconds


def answer_lines(
    questions: Sequence[Question],
    answered: Mapping[TurnKey, AnsweredTurn],
    decode: Callable[[list[int]], str],
    model_id: str,
    measured_at: float,
    seconds: Mapping[TurnKey, float] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one object a question.

    Args:
        questions: The benchmark; those that were skipped have no line.
        answered: The answers.
        decode: Turns tokens into text, special tokens left out.
        model_id: Names model and method.
        measured_at: When they were measured, in seconds since 1970.
        seconds: Time of each answer. Where it is given, questions that were not timed have no line; where not, lines
            hold no `wall_time`, which `speed` needs and `equal` does not.
    """
    for question in questions:
        keys = [(question.question_id, turn) for turn in range(len(question.turns))]
        if not all(key in answered and (seconds is None or key in seconds) for key in keys):
            continue
        turns = [answered[key] for key in keys]
        choice = {
            "index": 0,
            "turns": [decode(turn.ids).strip() for turn in turns],
            "decoding_steps": [turn.steps for turn in turns],
            "new_tokens": [len(turn.ids) for turn in turns],
            "accept_lengths": [length for turn in turns for length in turn.accept_lengths],
        }
        yield {
            "question_id": question.question_id,
            "category": question.subcategory,
            "answer_id": f"{model_id}-{question.question_id}",
            "model_id": model_id,
            "choices": [choice | ({"wall_time": [seconds[key] for key in keys]} if seconds is not None else {})],
            "tstamp": measured_at,
        }
