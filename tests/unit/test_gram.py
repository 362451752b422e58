import numpy as np
import pytest
import torch
from ckatorch.core import cka_base
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import qr

from speclayers.errors import UserError
from speclayers.geometry.entropy import matrix_entropy, set_entropy, unit_trace_gram
from speclayers.geometry.gram import gram_sums, renyi2, similarity, without_each_block
from speclayers.geometry.rows import RowStore, create_store, open_rows

BLOCK = np.repeat(np.arange(5), [12, 9, 14, 11, 10])


def layers(seed=0, n=56, width=7, count=4):
    generator = np.random.default_rng(seed)
    states = [generator.standard_normal((n, width)) + 3]
    for _ in range(count - 1):
        states.append(states[-1] + np.tanh(states[-1] @ generator.standard_normal((width, width))))
    return np.stack(states)


def opened(states, how="centre", block=BLOCK, rows=None):
    return open_rows(RowStore(states), np.arange(states.shape[1]) if rows is None else rows, block, how)


def sums_of(states, how="centre", block=BLOCK):
    return gram_sums(opened(states, how, block), int(block.max()) + 1)


def reference(x, y, unbiased):
    tensors = (torch.from_numpy(np.ascontiguousarray(v)) for v in (x, y))
    return float(cka_base(*tensors, kernel="linear", method="fro_norm", unbiased=unbiased))


@pytest.mark.parametrize("kept", [None, np.array([True, False, True, True, False])])
def test_cka_equals_ckatorch_on_all_rows_and_on_any_blocks(kept):
    states = layers()
    found = similarity(sums_of(states), kept)
    rows = np.ones(len(BLOCK), bool) if kept is None else kept[BLOCK]
    for a in range(4):
        for b in range(4):
            x, y = states[a, rows], states[b, rows]
            assert found.biased[a, b] == pytest.approx(reference(x, y, False), abs=1e-8)
            assert found.debiased[a, b] == pytest.approx(reference(x, y, True), abs=1e-8)


@pytest.mark.parametrize("how", ["centre", "none", "row_norm", "centre_row_norm"])
def test_renyi_2_of_layers_and_sets_comes_out_of_q(how):
    states = layers(1)
    found = similarity(sums_of(states, how)).gram
    for layer in range(4):
        assert renyi2(found, [layer]) == pytest.approx(matrix_entropy(states[layer], 2, how), abs=1e-8)
    grams = [unit_trace_gram(states[layer], layer, how) for layer in (0, 2, 3)]
    assert renyi2(found, [0, 2, 3]) == pytest.approx(set_entropy(grams, 2), abs=1e-8)


def test_deleting_a_block_equals_computing_without_it_from_scratch():
    states = layers(2)
    parts, sizes = without_each_block(sums_of(states))
    assert sizes.tolist() == [12, 9, 14, 11, 10]
    for block in range(5):
        left = np.flatnonzero(block != BLOCK)
        again = similarity(sums_of(states[:, left], block=np.unique(BLOCK[left], return_inverse=True)[1]))
        np.testing.assert_allclose(parts.gram[block], again.gram, atol=1e-10)
        np.testing.assert_allclose(parts.biased[block], again.biased, atol=1e-10)
        np.testing.assert_allclose(parts.debiased[block], again.debiased, atol=1e-10)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.floats(1e-2, 1e2))
def test_rotation_scale_shift_and_row_order_change_nothing(seed, scale):
    states = layers(seed)
    generator = np.random.default_rng(seed)
    within = np.concatenate([generator.permutation(np.flatnonzero(b == BLOCK)) for b in range(5)])
    rotation = qr(generator.standard_normal((7, 7)))[0]
    moved = (scale * (states @ rotation) + generator.standard_normal(7))[:, within]
    one, other = similarity(sums_of(states)), similarity(sums_of(moved))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-8)


def test_debiased_cka_of_independent_data_is_zero_on_average_and_biased_is_not():
    generator = np.random.default_rng(5)
    found = [similarity(sums_of(generator.standard_normal((2, len(BLOCK), 60)))) for _ in range(40)]
    debiased, biased = (np.array([getattr(s, name)[0, 1] for s in found]) for name in ("debiased", "biased"))
    assert abs(debiased.mean()) < 4 * debiased.std() / np.sqrt(len(debiased))
    assert abs(debiased.mean()) < 0.05
    assert biased.mean() > 0.4


def test_sink_rows_fake_similarity_and_dropping_them_removes_it():
    states = np.random.default_rng(6).standard_normal((2, len(BLOCK), 7))
    sink = states.copy()
    rows = np.searchsorted(BLOCK, np.arange(5))  # one in each block, as position 0 of each prompt
    sink[:, rows] = 100
    assert similarity(sums_of(sink)).debiased[0, 1] > 0.9
    left = np.delete(np.arange(len(BLOCK)), rows)
    assert abs(similarity(sums_of(sink[:, left], block=BLOCK[left])).debiased[0, 1]) < 0.2


def test_rows_of_a_subset_are_read_from_the_disk(tmp_path):
    states = layers(7).astype(np.float32)
    store = create_store(tmp_path / "states", states.shape)
    for layer in range(4):
        store.put(layer, states[layer])
    rows = np.flatnonzero(np.arange(len(BLOCK)) % 2)
    found = similarity(gram_sums(open_rows(store, rows, BLOCK[rows], "centre"), 5))
    expected = similarity(sums_of(states[:, rows], block=BLOCK[rows]))
    np.testing.assert_array_equal(found.debiased, expected.debiased)


def test_block_without_rows_counts_for_nothing():
    states = layers(8)
    rows = BLOCK != 2
    _, sizes = without_each_block(gram_sums(opened(states, rows=np.flatnonzero(rows), block=BLOCK[rows]), 5))
    assert sizes.tolist() == [12, 9, 11, 10]


def test_constant_layer_is_named():
    states = layers(9)
    states[2] = 0.7
    with pytest.raises(UserError, match="layer 2 is constant"):
        opened(states)


def test_too_few_rows_are_refused():
    with pytest.raises(UserError, match="3 tokens are left without one block"):
        without_each_block(sums_of(layers(10, n=8), block=np.repeat([0, 1], [3, 5])))


def test_similarity_is_unknown_where_one_row_alone_differs():
    states = layers(11)
    states[0] = 1.0
    states[0, 3] = 2.0
    sums = sums_of(states)
    found = similarity(sums)
    assert np.isnan(found.debiased[0]).all()
    assert np.isfinite(found.debiased[1:, 1:]).all()
    assert np.isfinite(found.biased).all()
    without = similarity(sums, np.arange(5) > 0)  # that row is gone: nothing differs
    assert np.isnan(without.gram[0]).all()
    assert np.isfinite(without.gram[1:, 1:]).all()
