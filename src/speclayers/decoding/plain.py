"""Plain decoding, token by token: what every drafter is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speclayers.decoding.clock import NO_CLOCK, Clock
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import Sampling, choose


class PlainAnswer(NamedTuple):
    """An answer decoded token by token.

    Args:
        tokens: Its ids, a stop token included.
        margins: Gap of the two highest logits at each token.
    """

    tokens: list[int]
    margins: list[float]


@torch.inference_mode()
def decode_plain(
    passes: TargetPasses,
    prompt: Sequence[int],
    budget: int,
    sampling: Sampling,
    generator: torch.Generator,
    clock: Clock = NO_CLOCK,
) -> PlainAnswer:
    """Decode one answer token by token.

    Args:
        passes: The target, with room for prompt and budget.
        prompt: Rendered prompt, as token ids.
        budget: Most tokens of the answer.
        sampling: How tokens are chosen.
        generator: The turn's random stream.
        clock: Told what happens, from the end of the prompt's pass on.

    Raises:
        UserError: The target's logits are not finite.
    """
    logits = passes.prefill(prompt)
    answer, margins = [choose(logits, sampling, generator)], [_margin(logits)]
    while len(answer) < budget and answer[-1] not in passes.target.stop_ids:
        clock.enter("verify")
        logits = passes.step(answer[-1])
        clock.enter("other")
        answer.append(choose(logits, sampling, generator))
        clock.enter(None)  # a margin is no part of decoding
        margins.append(_margin(logits))
    return PlainAnswer(answer, margins)


def _margin(logits: Tensor) -> float:
    best = logits.float().topk(2).values
    return float(best[0] - best[1])
