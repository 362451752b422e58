"""Verification accepts exactly what the target says, and sampling stays the target's."""

import math

import numpy as np
import pytest
import torch

from speclayers.config import SamplingLimits
from speclayers.decoding import verify
from speclayers.decoding.sampling import (
    GREEDY,
    Sampling,
    choose,
    draw,
    probabilities,
    require_finite,
    stream,
)
from speclayers.decoding.verify import verify_greedy, verify_sampled
from speclayers.drafting.tree import ancestor_mask
from speclayers.errors import UserError
from tests.chi_square import p_value

VOCABULARY = 9


def greedy(tokens, parents, best):
    """Verify a tree whose node i has `best[i]` as the target's likeliest next token."""
    logits = torch.nn.functional.one_hot(torch.tensor(best), VOCABULARY).float()
    parents = torch.tensor(parents)
    return verify_greedy(torch.tensor(tokens), parents, ancestor_mask(parents), logits)


def test_longest_matching_path_is_accepted_with_the_targets_next_token():
    #          root  1  2   3(of 1)  4(of 2)  5(of 4)
    tokens = [7, 3, 4, 5, 6, 8]
    parents = [-1, 0, 0, 1, 2, 4]
    assert greedy(tokens, parents, best=[4, 0, 6, 0, 8, 2]) == ([0, 2, 4, 5], 2)


def test_a_match_below_a_mismatch_is_not_accepted():
    assert greedy([7, 3, 5], [-1, 0, 1], best=[4, 5, 1]) == ([0], 4)


def test_of_equal_siblings_the_lower_node_is_accepted():
    assert greedy([7, 3, 3], [-1, 0, 0], best=[3, 1, 2]) == ([0, 1], 1)


def test_of_equal_siblings_the_longer_path_is_accepted():
    assert greedy([7, 3, 3, 2], [-1, 0, 0, 2], best=[3, 2, 2, 6]) == ([0, 2, 3], 6)


def test_of_equally_likely_tokens_only_the_lowest_is_the_target_s():
    logits = torch.zeros(3, VOCABULARY)
    logits[0, [4, 6]] = logits[1:, 2] = 1
    parents = torch.tensor([-1, 0, 1])
    for second, verdict in ((4, ([0, 1, 2], 2)), (6, ([0], 4))):
        assert verify_greedy(torch.tensor([7, second, 2]), parents, ancestor_mask(parents), logits) == verdict


def test_root_alone_gives_the_targets_token():
    assert greedy([7], [-1], best=[5]) == ([0], 5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(bad):
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(UserError, match="not finite"):
        require_finite(logits)
    with pytest.raises(UserError, match="not finite"):
        choose(logits[1], GREEDY, torch.Generator())


def test_a_ruled_out_token_is_no_reason_to_refuse():
    require_finite(torch.tensor([[0.0, -torch.inf]]))


def test_streams_differ_by_question_turn_and_seed_and_repeat():
    def first(*key):
        return torch.rand(4, generator=stream(*key)).tolist()

    keys = [(0, 1, 0), (0, 1, 1), (0, 11, 0), (1, 1, 0)]
    assert len({tuple(first(*key)) for key in keys}) == 4
    assert first(*keys[0]) == first(*keys[0])


# A toy language of two-token texts: p(first) and p(second | first), and a draft tree over it whose
# likely siblings make any mistake in renormalising visible.
LANGUAGE = torch.Generator().manual_seed(5)
FIRST = torch.randn(VOCABULARY, generator=LANGUAGE) * 1.2
SECOND = torch.randn(VOCABULARY, VOCABULARY, generator=LANGUAGE) * 1.2
ROOT_CHILDREN = FIRST.topk(3).indices.tolist()
GRANDCHILDREN = SECOND[ROOT_CHILDREN[1]].topk(3).indices.tolist()
TREE = torch.tensor([0, *ROOT_CHILDREN, *GRANDCHILDREN]), torch.tensor([-1, 0, 0, 0, 2, 2, 2])
LOGITS = torch.stack([FIRST, *(SECOND[token] for token in ROOT_CHILDREN), *[torch.zeros(VOCABULARY)] * 3])


def texts(sampling, samples, seed=0):
    """Count two-token texts that come from verifying the tree, then sampling what it did not reach."""
    generator = torch.Generator().manual_seed(seed)
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for _ in range(samples):
        path, token = verify_sampled(*TREE, LOGITS, sampling, generator)
        text = [*TREE[0][path[1:]].tolist(), token][:2]
        if len(text) == 1:
            text.append(draw(probabilities(SECOND[text[0]], sampling), generator))
        counts[tuple(text)] += 1
    return counts


def p_of(counts, sampling):
    return p_value(counts, (probabilities(FIRST, sampling)[:, None] * probabilities(SECOND, sampling)).numpy())


LIMITED = [
    Sampling(1.0, SamplingLimits(top_p=0.8)),
    Sampling(1.0, SamplingLimits(top_k=3)),
    Sampling(0.8, SamplingLimits(top_k=5, top_p=0.7)),
]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6), *LIMITED], ids=str)
def test_sampled_texts_are_distributed_as_the_targets(sampling):
    assert p_of(texts(sampling, 4000), sampling) > 0.01


@pytest.mark.parametrize("sampling", LIMITED, ids=str)
def test_the_same_test_rejects_a_verifier_without_limits(sampling, monkeypatch):
    monkeypatch.setattr(verify, "probabilities", lambda logits, s: probabilities(logits, Sampling(s.temperature)))
    assert p_of(texts(sampling, 4000), sampling) < 1e-6


def by_hand(logits, temperature, top_k, top_p):
    """Top-k and top-p in plain Python, on logits without ties."""
    ranked = sorted(range(len(logits)), key=lambda token: -logits[token])[:top_k]
    weights = {token: math.exp(logits[token] / temperature) for token in ranked}
    total, kept, held = sum(weights.values()), {}, 0.0
    for token in ranked:
        if held < top_p:
            kept[token] = weights[token]
            held += weights[token] / total
    return [kept.get(token, 0) / sum(kept.values()) for token in range(len(logits))]


@pytest.mark.parametrize(("top_k", "top_p"), [(None, 1.0), (4, 1.0), (None, 0.5), (None, 1e-6), (6, 0.9), (50, 0.99)])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_probabilities_are_the_definition_s(temperature, top_k, top_p):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2)) * 2
    sampling = Sampling(temperature, SamplingLimits(top_k=top_k, top_p=top_p))
    expected = [by_hand(row, temperature, top_k, top_p) for row in logits.tolist()]
    torch.testing.assert_close(probabilities(logits, sampling), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(probabilities(logits[1], sampling), torch.tensor(expected[1], dtype=torch.float64))


def test_probabilities_are_those_of_transformers_generate(tiny_target):
    target, prompt = tiny_target(vocabulary=160), torch.tensor([[5, 9, 33]])
    said = target.model.generate(
        prompt,
        **{"attention_mask": torch.ones_like(prompt), "max_new_tokens": 1, "do_sample": True},
        **{"temperature": 0.7, "top_k": 30, "top_p": 0.6},
        **{"output_scores": True, "output_logits": True, "return_dict_in_generate": True},
    )
    ours = probabilities(said.logits[0], Sampling(0.7, SamplingLimits(top_k=30, top_p=0.6)))
    assert 1 < (ours > 0).sum() < 30
    torch.testing.assert_close(ours.float(), said.scores[0].softmax(-1))


@pytest.mark.parametrize("temperature", [-0.5, float("nan"), float("inf")])
def test_a_temperature_that_cannot_be_is_refused(temperature):
    with pytest.raises(UserError, match=r"temperature: found .*, expected 0"):
        Sampling(temperature)


def without_renormalising(children, ids, left, generator):
    for child in children:
        if float(torch.rand((), generator=generator)) < float(left[ids[child]]):
            return child
        left[ids[child]] = 0
    return None


def without_ruling_out(children, ids, left, generator):
    for child in children:
        if float(torch.rand((), generator=generator)) < float(left[ids[child]]):
            return child
    return None


@pytest.mark.parametrize("bug", [without_renormalising, without_ruling_out])
def test_the_same_test_rejects_a_planted_bug(bug, monkeypatch):
    monkeypatch.setattr(verify, "_first_accepted", bug)
    assert p_of(texts(Sampling(1.0), 4000), Sampling(1.0)) < 1e-6


def test_a_certain_token_is_always_accepted_and_rejection_of_a_twin_changes_nothing():
    logits = torch.full((3, 4), -1e4)
    logits[:, 2] = 0
    tree = torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0])
    for seed in range(5):
        assert verify_sampled(*tree, logits, Sampling(1.0), torch.Generator().manual_seed(seed)) == ([0, 2], 2)
