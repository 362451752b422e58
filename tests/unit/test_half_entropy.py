"""Entropy on part of the blocks is that of the part, without an eigendecomposition for each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers.geometry.entropy import matrix_entropy, preprocess
from speclayers.selection import half_entropy
from speclayers.selection.half_entropy import block_moments

BLOCKS = 16


def rows(seed, tokens=800, width=48, fall=0.6):
    """Rows of a falling spectrum, shifted a little from block to block."""
    generator = np.random.default_rng(seed)
    block = np.sort(generator.integers(0, BLOCKS, tokens))
    shifts = 0.3 * generator.standard_normal((BLOCKS, width))
    scales = np.arange(1, width + 1) ** -fall
    return (generator.standard_normal((tokens, width)) + shifts[block]) * scales + 1, block


def moments(states, block, how):
    prepared = preprocess(states, how)
    prepared /= np.sqrt(np.square(prepared).sum())
    return block_moments(prepared, block, BLOCKS, how == "centre")


def halves(seed, count=6):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        kept = np.zeros(BLOCKS, bool)
        kept[generator.choice(BLOCKS, BLOCKS // 2, replace=False)] = True
        yield kept


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from(["centre", "none", "row_norm"]), st.floats(0.2, 1.2))
def test_halves_have_the_entropy_of_their_own_rows(seed, how, fall):
    states, block = rows(seed, fall=fall)
    states = preprocess(states, how) if how == "row_norm" else states
    how = "none" if how == "row_norm" else how
    found = moments(states, block, how)
    for kept in halves(seed):
        assert found.entropy(kept) == pytest.approx(matrix_entropy(states[kept[block]], how=how), abs=0.01)


@pytest.mark.parametrize("how", ["centre", "none"])
def test_all_blocks_have_the_entropy_of_all_rows(how):
    states, block = rows(0)
    expected = matrix_entropy(states, how=how)
    assert moments(states, block, how).entropy(np.ones(BLOCKS, bool)) == pytest.approx(expected, abs=1e-10)


def test_the_second_order_matters_and_brings_the_entropy_close():
    states, block = rows(1)
    found = moments(states, block, "centre")
    bare = found._replace(mixing=np.zeros_like(found.mixing))
    exact = [matrix_entropy(states[kept[block]]) for kept in halves(1)]
    errors = [np.abs([m.entropy(k) - e for k, e in zip(halves(1), exact, strict=True)]).max() for m in (found, bare)]
    assert errors[0] < errors[1] / 5


def test_some_axes_at_a_time_give_the_same(monkeypatch):
    states, block = rows(2, tokens=200, width=20)
    whole = moments(states, block, "centre").mixing
    monkeypatch.setattr(half_entropy, "_HELD_BYTES", 8 * 20 * BLOCKS * 3)
    np.testing.assert_allclose(moments(states, block, "centre").mixing, whole, rtol=1e-12)


def test_rows_that_do_not_differ_have_no_entropy():
    states, block = rows(3)
    kept = block == 2
    states[kept] = states[kept][0]
    assert np.isnan(moments(states, block, "centre").entropy(np.arange(BLOCKS) == 2))
