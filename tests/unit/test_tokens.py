import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.tokens import choose_rows, most_uncertain, prompt_blocks, search_sample, share_count
from tests.dumps import tokens_frame


def test_share_is_rounded_up_but_not_beyond_whole_numbers():
    assert [share_count(0.3, n) for n in (1, 3, 4, 10, 11)] == [1, 1, 2, 3, 4]
    assert share_count(0.1, 30) == 3  # 0.1 · 30 is 3.0000000000000004


def test_filter_keeps_the_most_uncertain_and_lower_positions_on_ties():
    uncertainty = np.array([1.0, 5.0, 5.0, 5.0, 2.0, 9.0])
    prompt, position = np.array([0, 0, 0, 0, 0, 1]), np.array([7, 6, 5, 4, 3, 0])
    assert most_uncertain(uncertainty, position, prompt, 0.4).tolist() == [2, 3, 5]


def test_pooled_scope_takes_the_share_over_all_prompts():
    uncertainty = np.array([1.0, 2.0, 3.0, 10.0, 11.0, 12.0])
    prompt, position = np.array([0, 0, 0, 1, 1, 1]), np.arange(6)
    assert most_uncertain(uncertainty, position, prompt, 0.5, "pooled").tolist() == [3, 4, 5]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.05, 1))
def test_every_prompt_keeps_its_share_whatever_the_row_order(seed, share):
    generator = np.random.default_rng(seed)
    prompt = np.repeat(np.arange(4), generator.integers(1, 9, 4))
    position, uncertainty = np.arange(len(prompt)), generator.integers(0, 5, len(prompt)).astype(float)
    kept = most_uncertain(uncertainty, position, prompt, share)
    counts = np.bincount(prompt, minlength=4)
    assert np.bincount(prompt[kept], minlength=4).tolist() == [share_count(share, n) for n in counts]
    order = generator.permutation(len(prompt))
    shuffled = most_uncertain(uncertainty[order], position[order], prompt[order], share)
    assert sorted(position[order][shuffled]) == sorted(position[kept])


def test_rows_are_sink_free_responses_and_control_matches_the_filter_per_prompt():
    tokens = tokens_frame()
    tokens.loc[30, "is_sink"] = True
    sets = choose_rows(tokens, GeometryConfig())
    everything = sets.rows["all"]
    assert set(everything) == set(np.flatnonzero(tokens["is_response"] & ~tokens["is_sink"]))
    assert 30 not in everything
    for name in ("filtered", "random"):
        assert set(sets.rows[name]) <= set(everything)
    filtered, random = (np.bincount(sets.prompt[sets.rows[name]]) for name in ("filtered", "random"))
    assert filtered.tolist() == random.tolist()
    assert (np.diff(sets.block_of(everything)) >= 0).all()


def test_keeping_sinks_adds_position_zero_of_each_prompt():
    tokens = tokens_frame()
    sets = choose_rows(tokens, GeometryConfig())
    added = set(sets.subset("filtered", sinks_kept=True)) - set(sets.subset("filtered"))
    assert added == set(np.flatnonzero(tokens["position"] == 0))


def test_same_seed_gives_the_same_control_and_another_seed_another():
    tokens = tokens_frame()
    first, again, other = (choose_rows(tokens, GeometryConfig(seed=s)).rows["random"] for s in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_blocks_differ_by_one_prompt_at_most():
    assert sorted(np.bincount(prompt_blocks(10, 4, 0))) == [2, 2, 3, 3]
    assert sorted(prompt_blocks(3, 32, 0)) == [0, 1, 2]


def test_search_sample_is_a_subset_or_everything():
    rows = np.arange(100, 150)
    assert len(set(search_sample(rows, 20, 0)) & set(rows)) == 20
    assert search_sample(rows, 64, 0).tolist() == rows.tolist()


def test_too_few_tokens_are_refused():
    tokens = tokens_frame(prompts=2, response=3)
    with pytest.raises(UserError, match="6 usable response tokens, expected at least 8"):
        choose_rows(tokens, GeometryConfig())


def test_filter_that_leaves_too_few_tokens_is_refused():
    with pytest.raises(UserError, match="4 tokens that pass the filter, expected at least 8"):
        choose_rows(tokens_frame(prompts=2, response=6), GeometryConfig())


def test_single_prompt_is_refused():
    with pytest.raises(UserError, match="come from 1 prompt, expected at least 2"):
        choose_rows(tokens_frame(prompts=1, response=40), GeometryConfig())


def test_prompt_without_position_zero_is_refused():
    tokens = tokens_frame()
    tokens = tokens[~((tokens["sample_id"] == "p02") & (tokens["position"] == 0))]
    with pytest.raises(UserError, match="sample p02 has no position 0"):
        choose_rows(tokens, GeometryConfig())


def test_predictive_entropy_that_is_not_a_number_is_refused():
    tokens = tokens_frame()
    tokens.loc[30, "predictive_entropy"] = np.nan
    with pytest.raises(UserError, match="predictive_entropy of sample p01 is not a number"):
        choose_rows(tokens, GeometryConfig())
