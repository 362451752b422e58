"""The turns of a benchmark: what is asked, whether it fits, and how an error names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pandas as pd

from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache
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
    """Return the turns of each question, in the table's order.

    Args:
        baseline: Table BASELINE of temperature 0.
    """
    questions: dict[int, list[Turn]] = {}
    for row in baseline.to_dict("records"):
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
    # The last token of the answer is never run over, so the deepest node stands at this position.
    positions, context = prompt_tokens + room.budget - 1 + room.depth, target.manifest.context
    with naming(question_id, turn):
        if positions > context:
            raise UserError(
                f"its prompt of {prompt_tokens} tokens, max_new_tokens {room.budget} and depth {room.depth} "
                f"need a context of {positions} tokens; {target.name} has {context}; "
                "lower acceptance.max_new_tokens or leave the question out"
            )
        PreallocatedCache(target, room.capacity(prompt_tokens))


def check_turns(target: Target, turns: Iterable[Turn], room: Room) -> None:
    """Refuse, before anything is decoded, a benchmark in which the model has no room for some turn.

    Raises:
        UserError: As `check_room`.
    """
    for turn in turns:
        check_room(target, turn.question_id, turn.turn, len(turn.prompt), room)
