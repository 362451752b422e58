"""An acceptance run fails, naming the turn, when what verifies is wrong in any of the ways that bugs come in."""

import pytest
import torch

from speclayers.config import Runtime
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.plain import decode_plain
from speclayers.decoding.shards import Shards
from speclayers.decoding.turns import Room, Turn
from speclayers.errors import UserError
from speclayers.specs import DecodeSpec
from tests.drafters import MisplacingDrafter, OracleDrafter
from tests.unit.test_loop import (
    GREEDY,
    PROMPT,
    VOCABULARY,
    bonus_of_the_wrong_node,
    endless,
    missing_bonus,
    stale_cache_row,
    wrong_parent,
)

SPEC = DecodeSpec(runtime=Runtime(), max_new_tokens=24, depth=4, top_k=4, seed=0)


def failures(target, tmp_path, dtype="float32"):
    """What measuring says with a right drafter and with one that misplaces right tokens."""
    text = endless(target, length=120)
    plain = decode_plain(TargetPasses(target, 200), PROMPT, 24, GREEDY, torch.Generator())
    assert plain.tokens == text[len(PROMPT) :][:24]
    turn = Turn(7, "qa", 1, PROMPT, plain.tokens, plain.margins)
    spec = SPEC.model_copy(update={"runtime": Runtime(dtype=dtype)})
    told = []
    for drafter in (OracleDrafter(text, VOCABULARY, decoys=2), MisplacingDrafter(text, VOCABULARY)):
        try:
            measure_acceptance(target, drafter, [[turn]], spec, 0.0, Shards(tmp_path / f"{len(told)}", "key"))
            told.append("")
        except UserError as error:
            told.append(str(error))
    return told


@pytest.fixture
def target(tiny_target, monkeypatch):
    roomy = Room.capacity
    monkeypatch.setattr(Room, "capacity", lambda self, prompt: roomy(self, prompt) + 100)  # a bug may write too much
    return tiny_target(vocabulary=VOCABULARY)


def test_the_gate_passes_what_is_right(target, tmp_path):
    assert failures(target, tmp_path) == ["", ""]


@pytest.mark.parametrize("plant", [wrong_parent, stale_cache_row, missing_bonus, bonus_of_the_wrong_node])
def test_the_gate_catches_a_planted_bug(target, tmp_path, monkeypatch, plant):
    plant(monkeypatch)
    told = [line for line in failures(target, tmp_path) if line]
    assert told
    assert all(line.startswith("question 7, turn 1: position ") for line in told)
    assert all("differs from plain greedy decoding where its top-2 margin is" in line for line in told)


def test_below_float32_the_same_bug_is_counted_and_does_not_end_the_run(target, tmp_path, monkeypatch):
    wrong_parent(monkeypatch)
    assert failures(target, tmp_path, dtype="bfloat16") == ["", ""]
