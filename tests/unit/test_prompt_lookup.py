"""Prompt lookup proposes what transformers' generate would, and changes nothing of what is decoded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from speclayers.decoding.loop import speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import GREEDY
from speclayers.drafting.drafter import Verified
from speclayers.drafting.prompt_lookup import PromptLookupDrafter
from speclayers.errors import UserError


def observed(text, cuts, drafter):
    """Show a drafter a text in pieces that end at `cuts`; each piece begins with the last root."""
    drafter.start(None)
    begin = 0
    for cut in [*cuts, len(text)]:
        drafter.observe(Verified(torch.tensor(text[begin : cut - 1], dtype=torch.long), {}, text[cut - 1]))
        begin = cut - 1


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.integers(0, 4), min_size=2, max_size=30),
    cuts=st.sets(st.integers(2, 29), max_size=4),
    tokens=st.integers(1, 6),
    ngram=st.integers(1, 5),
)
def test_proposals_are_those_of_transformers(text, cuts, tokens, ngram):
    drafter = PromptLookupDrafter(tokens, ngram)
    observed(text, sorted(cut for cut in cuts if cut < len(text)), drafter)
    theirs = PromptLookupCandidateGenerator(None, tokens, ngram, max_length=1000)
    candidates, _ = theirs.get_candidates(torch.tensor([text]))
    proposal = drafter.propose()
    assert proposal.tokens.tolist() == candidates[0, len(text) - 1 :].tolist()
    assert proposal.parents.tolist() == list(range(-1, len(proposal.tokens) - 1))
    assert proposal.forwards == proposal.layer_forwards == 0
    assert len(proposal.tokens) <= drafter.nodes == drafter.rows == drafter.depth + 1


def test_the_first_of_several_places_and_the_longest_n_gram_win():
    drafter = PromptLookupDrafter(tokens=2, ngram=2)
    observed([7, 1, 5, 1, 9, 8, 5, 1], [], drafter)
    assert drafter.propose().tokens.tolist() == [1, 9, 8]
    observed([7, 1, 5, 2, 1, 9, 8, 1], [3], drafter)  # a new turn
    assert drafter.propose().tokens.tolist() == [1, 5, 2]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_greedy_output_is_transformers_with_and_without_prompt_lookup(tiny_target, family):
    target, prompt, budget = tiny_target(family, vocabulary=64), [5, 9, 33, 20, 5, 9, 33], 40
    ids = torch.tensor([prompt])
    greedy = {"attention_mask": torch.ones_like(ids), "max_new_tokens": budget, "do_sample": False}
    plain = target.model.generate(ids, **greedy)[0].tolist()
    drafter = PromptLookupDrafter(tokens=5, ngram=3)
    passes = TargetPasses(target, len(prompt) + budget + drafter.rows, drafter.rows)
    answer = speculate(passes, drafter, prompt, budget, GREEDY, torch.Generator())
    assert [*prompt, *answer.tokens] == plain
    assert sum(cycle.accepted for cycle in answer.cycles) > 0
    theirs = target.model.generate(ids, **greedy, prompt_lookup_num_tokens=5, max_matching_ngram_size=3)
    assert theirs[0].tolist() == plain


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"ngram": 0}])
def test_a_size_below_one_is_refused(wrong):
    (key,) = wrong
    with pytest.raises(UserError, match=f"prompt_lookup: {key} is 0, expected 1 or more"):
        PromptLookupDrafter(**wrong)
