"""Speculative decoding of one turn: draft, verify, keep, count."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from speclayers.decoding.clock import NO_CLOCK, Clock
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import Sampling, choose
from speclayers.decoding.verify import Verdict, verify_greedy, verify_sampled
from speclayers.drafting.drafter import Drafter, Proposal, Verified
from speclayers.drafting.tree import ancestor_mask
from speclayers.targets.capture import CapturedStates, capture_states


class Cycle(NamedTuple):
    """Counters of one verification.

    Args:
        drafted: Draft tokens verified.
        accepted: Draft tokens accepted, up to a stop token that ends the answer.
        emitted: Tokens that became part of the answer: accepted ones and the target's own, up to its end.
        cut_by_budget: Whether the budget left no room for all of them.
        draft_forwards: Forward passes of the drafter.
        layer_forwards: Decoder-layer passes of the drafter; attention or MLP alone counts half.
        depth: Longest drafted path, in tokens.
        skipped_attention: Blocks whose attention was skipped to draft, ascending; None where no target drafts.
        skipped_mlp: Blocks whose MLP was skipped to draft.
        search_layer_forwards: Decoder-layer passes that looking for layers to skip took.
        search_rows: States run over in them.
        search_score: What the search reached, by the drafter's own measure; None where there was none.
    """

    drafted: int
    accepted: int
    emitted: int
    cut_by_budget: bool
    draft_forwards: int
    layer_forwards: float
    depth: int
    skipped_attention: list[int] | None = None
    skipped_mlp: list[int] | None = None
    search_layer_forwards: float = 0
    search_rows: int = 0
    search_score: float | None = None


class Answer(NamedTuple):
    """A decoded answer.

    Args:
        tokens: Its ids, a stop token included. The first comes from the prompt's pass, the others from cycles.
        cycles: One entry for each verification.
    """

    tokens: list[int]
    cycles: list[Cycle]


@torch.inference_mode()
def speculate(
    passes: TargetPasses,
    drafter: Drafter,
    prompt: Sequence[int],
    budget: int,
    sampling: Sampling,
    generator: torch.Generator,
    clock: Clock = NO_CLOCK,
) -> Answer:
    """Decode one answer with a drafter.

    Args:
        passes: The target, with room for prompt, budget and the drafter's rows.
        drafter: Proposes the trees.
        prompt: Rendered prompt, as token ids.
        budget: Most tokens of the answer.
        sampling: How tokens are chosen.
        generator: The turn's random stream.
        clock: Told what happens, from the end of the prompt's pass on.

    Raises:
        UserError: The target's or the drafter's logits are not finite.
    """
    target, cycles = passes.target, list[Cycle]()
    with capture_states(target, drafter.layers) as captured:
        answer = [choose(passes.prefill(prompt), sampling, generator)]
        clock.enter("draft")
        drafter.start(passes.cache)
        drafter.observe(Verified(torch.tensor(prompt), _rows(captured, slice(None)), answer[-1]))
        while len(answer) < budget and answer[-1] not in target.stop_ids:
            clock.enter("draft")
            proposal = _propose(passes, drafter)
            ancestors = ancestor_mask(proposal.parents)
            clock.enter("verify")
            logits = passes.verify(*_with_extra_rows(proposal, ancestors))
            nodes = len(proposal.tokens)
            verdict = _verify(proposal, ancestors, logits[:nodes], sampling, generator)
            clock.enter("other")
            emitted = [*proposal.tokens[verdict.path[1:]].tolist(), verdict.token]
            kept, by_budget = cut(emitted, budget - len(answer), target.stop_ids)
            answer += kept
            cycles.append(_count(proposal, ancestors, verdict, len(kept), by_budget))
            path = torch.tensor(verdict.path)
            passes.keep(path)
            clock.enter("draft")
            extra = None if proposal.extra is None else logits[nodes:]
            drafter.observe(Verified(proposal.tokens[path], _rows(captured, path), verdict.token, extra))
    clock.enter(None)
    return Answer(answer, cycles)


def _propose(passes: TargetPasses, drafter: Drafter) -> Proposal:
    verified = passes.length
    proposal = drafter.propose()
    if passes.length != verified:
        raise RuntimeError(f"{drafter.name} left {passes.length - verified} rows in the target's cache")
    return proposal


def _with_extra_rows(proposal: Proposal, ancestors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, offsets and mask of the verifying pass: the tree's nodes, which see none of the extra rows."""
    tokens, offsets, extra = proposal.tokens, ancestors.sum(-1) - 1, proposal.extra
    if extra is None:
        return tokens, offsets, ancestors
    sees = torch.cat((pad(ancestors, (0, len(extra.tokens))), extra.sees))
    return torch.cat((tokens, extra.tokens)), torch.cat((offsets, extra.offsets)), sees


def _verify(
    proposal: Proposal, ancestors: Tensor, logits: Tensor, sampling: Sampling, generator: torch.Generator
) -> Verdict:
    if sampling.greedy:
        return verify_greedy(proposal.tokens, proposal.parents, ancestors, logits)
    return verify_sampled(proposal.tokens, proposal.parents, logits, sampling, generator)


def _rows(captured: CapturedStates, rows: slice | Tensor) -> dict[int, Tensor]:
    """Return the states (rows, width) of the latest pass, by layer."""
    return {layer: states[0, rows] for layer, states in captured.items()}


def cut(emitted: Sequence[int], left: int, stop_ids: AbstractSet[int]) -> tuple[list[int], bool]:
    """End an answer at its first stop token or at the budget, whichever comes first.

    Args:
        emitted: Tokens of one cycle, in order.
        left: Tokens that the budget still allows.
        stop_ids: Tokens that end an answer, themselves part of it.

    Returns:
        The tokens that belong to the answer, and whether it was the budget that took some away.
    """
    end = next((place + 1 for place, token in enumerate(emitted) if token in stop_ids), len(emitted))
    return list(emitted[: min(end, left)]), left < end


def _count(proposal: Proposal, ancestors: Tensor, verdict: Verdict, emitted: int, cut_by_budget: bool) -> Cycle:
    accepted = len(verdict.path) - 1
    skipped, search = proposal.skipped, proposal.search
    return Cycle(
        drafted=len(proposal.tokens) - 1,
        accepted=accepted if cut_by_budget else min(accepted, emitted),  # none behind a stop token: serving ends there
        emitted=emitted,
        cut_by_budget=cut_by_budget,
        draft_forwards=proposal.forwards,
        layer_forwards=proposal.layer_forwards,
        depth=int(ancestors.sum(-1).max()) - 1,
        skipped_attention=sorted(skipped.attention) if skipped else None,
        skipped_mlp=sorted(skipped.mlp) if skipped else None,
        search_layer_forwards=search.layer_forwards if search else 0,
        search_rows=search.rows if search else 0,
        search_score=search.score if search else None,
    )
