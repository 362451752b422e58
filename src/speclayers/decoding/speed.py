"""Timing a drafter against plain decoding, turn by turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from speclayers.decoding.clock import NO_CLOCK, Clock, Phase, clock_for
from speclayers.decoding.loop import speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.plain import decode_plain
from speclayers.decoding.sampling import Sampling, stream
from speclayers.decoding.turns import Room, Turn, check_turns, naming
from speclayers.drafting.drafter import Drafter
from speclayers.specs import DecodeSpec
from speclayers.targets.target import Target

WARM_UP_TOKENS = 8


class _Timed(NamedTuple):
    seconds: Mapping[Phase, float]
    new_tokens: int

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())


def first_of_each_category(questions: Sequence[list[Turn]], per_category: int) -> list[list[Turn]]:
    """Return the first questions of each category, in their order."""
    taken: dict[str, int] = {}
    chosen = []
    for turns in questions:
        category = turns[0].category
        taken[category] = taken.get(category, 0) + 1
        if taken[category] <= per_category:
            chosen.append(turns)
    return chosen


def measure_speed(
    target: Target, drafter: Drafter, questions: Sequence[list[Turn]], spec: DecodeSpec, temperature: float
) -> list[dict[str, Any]]:
    """Time every turn decoded plainly and with a drafter, one right after the other.

    Args:
        target: The model.
        drafter: Proposes the trees.
        questions: Turns of each question.
        spec: Budget and seed.
        temperature: 0 is greedy.

    Returns:
        Rows of table SPEED.

    Raises:
        UserError: A turn does not fit into the model's context, or logits are not finite.
    """
    turns = [turn for question in questions for turn in question]
    room = Room(budget=spec.max_new_tokens, depth=drafter.depth, rows=drafter.rows)
    check_turns(target, turns, room)
    sampling = Sampling(temperature, spec.sampling)

    def passes(turn: Turn) -> TargetPasses:
        return TargetPasses(target, room.capacity(len(turn.prompt)), drafter.rows)

    def plain(turn: Turn, budget: int, clock: Clock) -> int:
        generator = stream(spec.seed, turn.question_id, turn.turn)
        return len(decode_plain(passes(turn), turn.prompt, budget, sampling, generator, clock).tokens)

    def drafted(turn: Turn, budget: int, clock: Clock) -> int:
        generator = stream(spec.seed, turn.question_id, turn.turn)
        return len(speculate(passes(turn), drafter, turn.prompt, budget, sampling, generator, clock).tokens)

    def timed(decode: Callable[[Turn, int, Clock], int], turn: Turn) -> _Timed:
        clock = clock_for(target.device)
        with naming(turn.question_id, turn.turn):
            new_tokens = decode(turn, spec.max_new_tokens, clock)
        return _Timed(clock.seconds(), new_tokens)

    for decode in (plain, drafted):
        decode(turns[0], min(WARM_UP_TOKENS, spec.max_new_tokens), NO_CLOCK)  # first calls allocate and compile
    rows = []
    for number, turn in enumerate(tqdm(turns, desc=f"{drafter.name} speed", disable=None, mininterval=1)):
        # Which comes first alternates, so that a machine that grows slower or faster favours neither.
        order = (plain, drafted) if number % 2 == 0 else (drafted, plain)
        results = {decode: timed(decode, turn) for decode in order}
        rows.append(_row(turn, results[plain], results[drafted]))
    return rows


def _row(turn: Turn, plain: _Timed, drafted: _Timed) -> dict[str, Any]:
    return {
        "question_id": turn.question_id,
        "category": turn.category,
        "turn": turn.turn,
        "draft_s": drafted.seconds["draft"],
        "verify_s": drafted.seconds["verify"],
        "other_s": drafted.seconds["other"],
        "wall_s": drafted.wall,
        "baseline_wall_s": plain.wall,
        "new_tokens": drafted.new_tokens,
        "baseline_new_tokens": plain.new_tokens,
    }
