"""The baseline: plain decoding of the benchmark, which also fixes the prompts of second turns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from speclayers.corpus.chat import render
from speclayers.corpus.questions import Question
from speclayers.decoding.exactness import compare, require_exact
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.plain import decode_plain
from speclayers.decoding.sampling import GREEDY, Sampling, stream
from speclayers.decoding.shards import Rows, Shards
from speclayers.decoding.turns import Room, Turn, check_turns, naming, position_limit
from speclayers.specs import BaselineSpec, DecodeSpec
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)


def decode_questions(target: Target, questions: Sequence[Question], baseline: BaselineSpec, shards: Shards) -> Rows:
    """Decode every turn of every question greedily; each turn follows the answers before it.

    A question one of whose turns the model has no room for is skipped whole, here and so for every drafter: its
    only row is that turn's, without an answer. The rule knows the study's depth, no drafter.

    Args:
        target: The model.
        questions: The benchmark.
        baseline: Budget, the depth of the study's draft trees, and whether transformers' generate must agree.
        shards: Finished questions.

    Returns:
        Rows of table BASELINE, under "baseline".

    Raises:
        UserError: Logits are not finite, or in float32 an answer is not that of transformers' generate, a tie of
            the two best tokens aside.
    """
    spec = baseline.decode

    def prompt_of(question: Question, answers: Sequence[list[int]]) -> list[int]:
        turns = question.turns[: len(answers) + 1]
        return render(target.tokenizer, turns, answers, spec.runtime.template_options)

    def decode(question: Question) -> Rows:
        rows, answers = [], list[list[int]]()
        for turn in range(len(question.turns)):
            asked = Turn(question.question_id, question.category, turn, prompt_of(question, answers), [], [])
            row = _unanswered(target, asked, spec)
            if row["positions"] > row["limit"]:
                return {"baseline": [row]}
            row |= _decode_turn(target, asked, spec, GREEDY)
            if baseline.check_generate:
                row["equals_generate"] = _equals_generate(target, asked, row, spec)
            rows.append(row)
            answers.append([token for token in rows[-1]["output_ids"] if token not in target.stop_ids])
        return {"baseline": rows}

    for question in questions:
        prompt_of(question, [])  # refuse before the run what can be refused then
    rows = shards.collect(questions, lambda question: f"q{question.question_id}", decode, "plain decoding")
    _say_skipped(rows["baseline"])
    return rows


def sample_turns(
    target: Target, questions: Sequence[list[Turn]], spec: DecodeSpec, temperature: float, shards: Shards
) -> Rows:
    """Decode every turn at a temperature above 0, on the prompts of the greedy run.

    Args:
        target: The model.
        questions: Turns of each question, from the greedy run.
        spec: Budget and seed.
        temperature: Above 0.
        shards: Finished questions.

    Returns:
        Rows of table BASELINE, under "baseline".

    Raises:
        UserError: As `decode_questions`.
    """
    check_turns(target, (turn for turns in questions for turn in turns), _room(spec))
    sampling = Sampling(temperature, spec.sampling)

    def decode(turns: list[Turn]) -> Rows:
        rows = [_unanswered(target, turn, spec) | _decode_turn(target, turn, spec, sampling) for turn in turns]
        return {"baseline": rows}

    return shards.collect(questions, lambda turns: f"q{turns[0].question_id}", decode, f"sampling at T={temperature:g}")


def _room(spec: DecodeSpec) -> Room:
    return Room(budget=spec.max_new_tokens, depth=spec.depth, rows=0)


def _unanswered(target: Target, turn: Turn, spec: DecodeSpec) -> dict[str, Any]:
    """Return a turn's row of table BASELINE as it stands before its answer, and for good where there is no room."""
    return {
        "question_id": turn.question_id,
        "category": turn.category,
        "turn": turn.turn,
        "prompt_ids": turn.prompt,
        "positions": _room(spec).positions(len(turn.prompt)),
        "limit": position_limit(target),
        "output_ids": [],
        "top2_margin": [],
        "equals_generate": None,
    }


def _say_skipped(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["positions"] > row["limit"]:
            where = f"question {row['question_id']}, turn {row['turn']}"
            logger.warning(
                "%s: needs %d positions of %d: the question is skipped", where, row["positions"], row["limit"]
            )


def _decode_turn(target: Target, turn: Turn, spec: DecodeSpec, sampling: Sampling) -> dict[str, Any]:
    """Return what an answer adds to a turn's row."""
    generator = stream(spec.seed, turn.question_id, turn.turn)
    passes = TargetPasses(target, len(turn.prompt) + spec.max_new_tokens)
    with naming(turn.question_id, turn.turn):
        answer = decode_plain(passes, turn.prompt, spec.max_new_tokens, sampling, generator)
    return {"output_ids": answer.tokens, "top2_margin": answer.margins}


def _equals_generate(target: Target, turn: Turn, row: dict[str, Any], spec: DecodeSpec) -> bool:
    """Decode a turn again with transformers' own greedy loop: an oracle for all of ours."""
    prompt = torch.tensor([turn.prompt], device=target.device)
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=spec.max_new_tokens,
        eos_token_id=sorted(target.stop_ids),
        pad_token_id=target.manifest.pad_token_id,
    )
    with torch.inference_mode(), _own_settings_aside(target.model):
        ids = target.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    theirs = ids[0, len(turn.prompt) :].tolist()
    agreement = compare(row["output_ids"], theirs, row["top2_margin"])
    if spec.runtime.dtype == "float32":
        with naming(turn.question_id, turn.turn):
            require_exact(agreement, "transformers' generate")
    return agreement.identical


@contextmanager
def _own_settings_aside(model: Any) -> Iterator[None]:
    """Set a model's generation config aside: it may hold penalties, which no drafter applies."""
    # generate fills in from it whatever the config that it is given leaves open
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
