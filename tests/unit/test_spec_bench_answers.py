"""Answer files have Spec-Bench's form, and hold what the tables say."""

import json

import pandas as pd
import pytest

from speclayers.corpus.questions import Question
from speclayers.corpus.spec_bench_answers import answer_lines, drafted_turns, plain_turns, timed_turns
from speclayers.errors import UserError

QUESTIONS = [
    Question(81, "mt_bench", "writing", ("Write.", "Again."), ()),
    Question(90, "rag", "rag", ("x" * 9999,), ()),
    Question(95, "qa", "qa", ("Who?",), ()),
]
TURNS = pd.DataFrame(
    {
        "question_id": [81, 81, 95],
        "turn": [0, 1, 0],
        "cycles": [2, 1, 2],
        "output_ids": [[1, 2, 3, 4], [5, 6], [7, 8, 9]],
    }
)
CYCLES = pd.DataFrame(
    {
        "question_id": [81, 81, 81, 95, 95],
        "turn": [0, 0, 1, 0, 0],
        "emitted": [2, 1, 1, 1, 1],
        "cut_by_budget": [False, True, False, False, False],
    }
)
SPEED = pd.DataFrame(
    {"question_id": [81, 81], "turn": [0, 1], "new_tokens": [4, 2], "wall_s": [0.5, 0.25]}
    | {"baseline_new_tokens": [4, 2], "baseline_wall_s": [1.0, 0.5]}
)


def lines(answered, seconds=None):
    return list(answer_lines(QUESTIONS, answered, lambda ids: f" {ids} ", "m-head", 5.0, seconds))


def test_a_line_has_the_keys_and_nesting_of_spec_benchs_files():
    first, second = lines(drafted_turns(TURNS, CYCLES))
    assert list(first) == ["question_id", "category", "answer_id", "model_id", "choices", "tstamp"]
    assert (first["question_id"], first["category"], first["model_id"]) == (81, "writing", "m-head")
    assert first["choices"] == [
        {
            "index": 0,
            "turns": ["[1, 2, 3, 4]", "[5, 6]"],
            "decoding_steps": [2, 1],
            "new_tokens": [4, 2],
            "accept_lengths": [2, 1],
        }
    ]
    assert (second["question_id"], second["choices"][0]["accept_lengths"]) == (95, [1, 1])
    json.dumps([first, second])


def test_plain_decoding_takes_a_step_a_token():
    first, _ = lines(plain_turns(TURNS))
    assert first["choices"][0]["decoding_steps"] == [4, 2]
    assert first["choices"][0]["accept_lengths"] == [1] * 6


@pytest.mark.parametrize(("prefix", "times"), [("", [0.5, 0.25]), ("baseline_", [1.0, 0.5])])
def test_with_times_only_the_questions_that_were_timed_have_lines(prefix, times):
    answered = drafted_turns(TURNS, CYCLES)
    (line,) = lines(answered, timed_turns(SPEED, answered, prefix))
    assert (line["question_id"], line["choices"][0]["wall_time"]) == (81, times)


def test_times_of_shorter_answers_are_refused():
    shorter = SPEED.assign(new_tokens=[3, 2])
    with pytest.raises(UserError, match=r"question 81, turn 0: 3 tokens were timed, but its answer has 4; .*speed.max"):
        timed_turns(shorter, drafted_turns(TURNS, CYCLES))
