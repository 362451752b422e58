"""Verification accepts exactly what the target says, and sampling stays the target's."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from speclayers.decoding import verify
from speclayers.decoding.sampling import choose, draw, probabilities, require_finite, stream
from speclayers.decoding.verify import verify_greedy, verify_sampled
from speclayers.drafting.tree import ancestor_mask
from speclayers.errors import UserError

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


def test_root_alone_gives_the_targets_token():
    assert greedy([7], [-1], best=[5]) == ([0], 5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(bad):
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(UserError, match="not finite"):
        require_finite(logits)
    with pytest.raises(UserError, match="not finite"):
        choose(logits[1], 0.0, torch.Generator())


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


def texts(temperature, samples, seed=0):
    """Count two-token texts that come from verifying the tree, then sampling what it did not reach."""
    generator = torch.Generator().manual_seed(seed)
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for _ in range(samples):
        path, token = verify_sampled(*TREE, LOGITS, temperature, generator)
        text = [*TREE[0][path[1:]].tolist(), token][:2]
        if len(text) == 1:
            text.append(draw(probabilities(SECOND[text[0]], temperature), generator))
        counts[tuple(text)] += 1
    return counts


def p_value(counts, temperature):
    exact = probabilities(FIRST, temperature)[:, None] * probabilities(SECOND, temperature)
    expected = exact.numpy().ravel() * counts.sum()
    rare = expected < 5
    pooled = [np.append(values[~rare], values[rare].sum()) for values in (counts.ravel(), expected)]
    return chisquare(*pooled).pvalue


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_texts_are_distributed_as_the_targets(temperature):
    assert p_value(texts(temperature, 4000), temperature) > 0.01


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
    assert p_value(texts(1.0, 4000), 1.0) < 1e-6


def test_a_certain_token_is_always_accepted_and_rejection_of_a_twin_changes_nothing():
    logits = torch.full((3, 4), -1e4)
    logits[:, 2] = 0
    tree = torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0])
    for seed in range(5):
        assert verify_sampled(*tree, logits, 1.0, torch.Generator().manual_seed(seed)) == ([0, 2], 2)
