"""Counting how many drafted tokens a target accepts; no clocks, so that its tables repeat byte for byte."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from speclayers.decoding.exactness import Agreement, compare, require_exact
from speclayers.decoding.loop import Answer, speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import Sampling, stream
from speclayers.decoding.shards import Rows, Shards
from speclayers.decoding.turns import Room, Turn, check_turns, naming
from speclayers.drafting.drafter import Drafter
from speclayers.specs import DecodeSpec
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)


def measure_acceptance(
    target: Target,
    drafter: Drafter,
    questions: Sequence[list[Turn]],
    spec: DecodeSpec,
    temperature: float,
    shards: Shards,
) -> Rows:
    """Decode every turn with a drafter and count.

    Args:
        target: The model.
        drafter: Proposes the trees.
        questions: Turns of each question, from the greedy run of plain decoding.
        spec: Budget and seed.
        temperature: 0 is greedy.
        shards: Finished questions.

    Returns:
        Rows of tables CYCLES and TURNS, under "cycles" and "turns".

    Raises:
        UserError: A turn does not fit into the model's context, logits are not finite, or (temperature 0,
            float32) an answer is not plain greedy decoding's.
    """
    room = Room(budget=spec.max_new_tokens, depth=drafter.depth, rows=drafter.rows)
    check_turns(target, (turn for turns in questions for turn in turns), room)
    sampling = Sampling(temperature, spec.sampling)

    def measure(turns: list[Turn]) -> Rows:
        rows: Rows = {"cycles": [], "turns": []}
        for turn in turns:
            passes = TargetPasses(target, room.capacity(len(turn.prompt)), drafter.rows)
            generator = stream(spec.seed, turn.question_id, turn.turn)
            with naming(turn.question_id, turn.turn):
                answer = speculate(passes, drafter, turn.prompt, spec.max_new_tokens, sampling, generator)
                agreement = compare(answer.tokens, turn.greedy, turn.margins) if sampling.greedy else None
                if agreement is not None and spec.runtime.dtype == "float32":
                    require_exact(agreement, drafter.name)
            rows["turns"].append(_turn_row(turn, answer, agreement))
            rows["cycles"] += _cycle_rows(turn, answer)
        return rows

    rows = shards.collect(questions, lambda turns: f"q{turns[0].question_id}", measure, f"{drafter.name} acceptance")
    if sampling.greedy:
        _say_differences(rows["turns"])
    return rows


def _turn_row(turn: Turn, answer: Answer, agreement: Agreement | None) -> dict[str, Any]:
    """Return the row of table TURNS; at temperatures above 0 there is nothing to agree with."""
    return {
        **_key(turn),
        "prompt_tokens": len(turn.prompt),
        "new_tokens": len(answer.tokens),
        "cycles": len(answer.cycles),
        "identical_to_greedy": agreement.identical if agreement else None,
        "first_difference": agreement.first_difference if agreement else None,
        "margin_there": agreement.margin if agreement else None,
        "output_ids": answer.tokens,
    }


def _cycle_rows(turn: Turn, answer: Answer) -> list[dict[str, Any]]:
    return [{**_key(turn), "cycle": number, **cycle._asdict()} for number, cycle in enumerate(answer.cycles)]


def _key(turn: Turn) -> dict[str, Any]:
    return {"question_id": turn.question_id, "category": turn.category, "turn": turn.turn}


def _say_differences(turns: list[dict[str, Any]]) -> None:
    """Count and list the turns whose answers left plain greedy decoding's."""
    different = [row for row in turns if not row["identical_to_greedy"]]
    logger.info("%d of %d answers equal plain greedy decoding's", len(turns) - len(different), len(turns))
    for row in different:
        place = f"question {row['question_id']}, turn {row['turn']}, position {row['first_difference']}"
        logger.info("differs at %s, where the top-2 margin is %s", place, row["margin_there"])
