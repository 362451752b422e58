"""The turns of a benchmark: what is asked, whether it fits, and how an error names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pandas as pd

from speclayers.decoding.skipping import answered
from speclayers.errors import UserError
from speclayers.targets.cache import attention_window
from speclayers.targets.target import Target


class Turn(NamedTuple):
    """One turn of a question, with plain greedy decoding's answer.

    Args:
        question_id: Question.
        category: Its category.
        turn: Turn, from 0.
        prompt: Rendered prompt, as token ids.
        greedy: Plain greedy decoding's answer, as token ids.
        margins: Gap of the two highest logits at each token of it.
    """

    question_id: int
    category: str
    turn: int
    prompt: list[int]
    greedy: list[int]
    margins: list[float]


def read_turns(baseline: pd.DataFrame) -> list[list[Turn]]:
    """Return the turns of each question that the model has room for, in the table's order.

    Args:
        baseline: Table BASELINE of temperature 0.

    Raises:
        UserError: It has room for none.
    """
    fitting = answered(baseline)
    if fitting.empty:
        raise UserError("no question fits into the model's context; lower acceptance.max_new_tokens or ask others")
    questions: dict[int, list[Turn]] = {}
    for row in fitting.to_dict("records"):
        turn = Turn(
            question_id=int(row["question_id"]),
            category=str(row["category"]),
            turn=int(row["turn"]),
            prompt=[int(token) for token in row["prompt_ids"]],
            greedy=[int(token) for token in row["output_ids"]],
            margins=[float(margin) for margin in row["top2_margin"]],
        )
        questions.setdefault(turn.question_id, []).append(turn)
    return list(questions.values())


@contextmanager
def naming(question_id: int, turn: int) -> Iterator[None]:
    """Let every UserError inside the block say which turn it speaks of."""
    try:
        yield
    except UserError as error:
        raise UserError(f"question {question_id}, turn {turn}: {error}") from None


class Room(NamedTuple):
    """What a turn needs besides its prompt.

    Args:
        budget: Most tokens of the answer.
        depth: Longest drafted path, in tokens.
        rows: Most rows that a drafter needs in the target's cache beyond what is verified.
    """

    budget: int
    depth: int
    rows: int

    def capacity(self, prompt_tokens: int) -> int:
        """Return how many tokens the target's cache must hold."""
        return prompt_tokens + self.budget + self.rows

    def positions(self, prompt_tokens: int) -> int:
        """Return how many positions prompt, answer and the deepest drafted path take."""
        # The last token of the answer is never run over, so the deepest node stands there; siblings share positions.
        return prompt_tokens + self.budget - 1 + self.depth


def position_limit(target: Target) -> int:
    """Return how many positions a model has: its context, or its attention window where that is shorter.

    Raises:
        UserError: The model has blocks that keep no keys and values of every position.
    """
    window = attention_window(target)
    return target.manifest.context if window is None else min(target.manifest.context, window)


def check_room(target: Target, question_id: int, turn: int, prompt_tokens: int, room: Room) -> None:
    """Refuse a turn that the model has no room for.

    Args:
        target: The model.
        question_id: Question.
        turn: Turn, from 0.
        prompt_tokens: Length of its prompt.
        room: What else it needs.

    Raises:
        UserError: Prompt, answer and drafted paths reach beyond the model's context or attention window.
    """
    positions, limit = room.positions(prompt_tokens), position_limit(target)
    if positions > limit:
        with naming(question_id, turn):
            raise UserError(
                f"its prompt of {prompt_tokens} tokens, max_new_tokens {room.budget} and depth {room.depth} "
                f"need a context of {positions} tokens; {target.name} has {limit}; "
                "lower acceptance.max_new_tokens or leave the question out"
            )


def check_turns(target: Target, turns: Iterable[Turn], room: Room) -> None:
    """Refuse, before anything is decoded, a benchmark in which the model has no room for some turn.

    Raises:
        UserError: As `check_room`.
    """
    for turn in turns:
        check_room(target, turn.question_id, turn.turn, len(turn.prompt), room)
