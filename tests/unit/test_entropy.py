import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers.errors import UserError
from speclayers.geometry.entropy import (
    effective_rank,
    eigenvalues,
    entropies_without,
    entropy_of,
    information_flow_spectrum,
    matrix_entropy,
    preprocess,
    principal_rows,
    set_entropy,
    unit_trace_gram,
)
from speclayers.geometry.jackknife import interval

seeds = st.integers(0, 10_000)


def rows(seed, n=24, width=9, tilt=1.0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((n, width)) * np.arange(1, width + 1) ** -tilt + generator.standard_normal(width)


@pytest.mark.parametrize("shape", [(24, 9), (9, 24), (12, 12)])
@pytest.mark.parametrize("how", ["centre", "none", "row_norm", "centre_row_norm"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_gram_and_covariance_routes_agree(shape, how, alpha):
    z = preprocess(rows(1, *shape), how)
    gram, covariance = (entropy_of(eigenvalues(z, route), alpha) for route in ("gram", "covariance"))
    if alpha >= 1:
        assert gram == pytest.approx(covariance, abs=1e-12)
    else:  # rounding of the zero eigenvalues weighs more under a root
        assert gram == pytest.approx(covariance, abs=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 2.0, 2.5])
def test_entropy_equals_scipys_eigenvalues(alpha):
    states = rows(2, 40, 11)
    values = scipy.linalg.eigh(np.cov(states.T), eigvals_only=True)
    p = values / values.sum()
    expected = -(p * np.log(p)).sum() if alpha == 1 else np.log((p**alpha).sum()) / (1 - alpha)
    assert matrix_entropy(states, alpha) == pytest.approx(expected, abs=1e-8)


@settings(deadline=None, max_examples=25)
@given(seeds, st.floats(1e-3, 1e3))
def test_rotation_scale_shift_and_row_order_change_nothing(seed, scale):
    states = rows(seed)
    generator = np.random.default_rng(seed)
    rotation = scipy.linalg.qr(generator.standard_normal((9, 9)))[0]
    moved = scale * (states @ rotation)[generator.permutation(len(states))] + generator.standard_normal(9)
    for alpha in (1.0, 2.0):
        assert matrix_entropy(moved, alpha) == pytest.approx(matrix_entropy(states, alpha), abs=1e-8)


@pytest.mark.parametrize("r", [1, 2, 5])
def test_equal_directions_have_entropy_ln_r(r):
    directions = np.concatenate([np.eye(8)[:r], -np.eye(8)[:r]])
    for alpha in (0.5, 1.0, 2.0):
        assert matrix_entropy(directions, alpha) == pytest.approx(np.log(r), abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(seeds, st.integers(1, 5))
def test_set_entropy_lies_between_the_mean_and_ln_k_above_it(seed, k):
    states = [rows(seed + i, tilt=0.3 * i) for i in range(k)]
    mean = np.mean([matrix_entropy(s) for s in states])
    value = set_entropy([unit_trace_gram(s, 0) for s in states])
    assert mean - 1e-9 <= value <= mean + np.log(k) + 1e-9


def test_set_entropy_is_that_of_concatenated_unit_trace_features():
    states = [preprocess(rows(i), "centre") for i in range(3)]
    joined = np.concatenate([s / np.sqrt(np.square(s).sum()) for s in states], axis=1)
    assert set_entropy([unit_trace_gram(rows(i), i) for i in range(3)]) == pytest.approx(matrix_entropy(joined))


def test_order_two_is_minus_log_of_the_squared_norm():
    gram = unit_trace_gram(rows(3), 0)
    assert set_entropy([gram], alpha=2) == pytest.approx(-np.log(np.square(gram).sum()))


def test_one_sink_row_fakes_a_valley_and_dropping_it_removes_it():
    states = rows(4, 200, 16, tilt=0.0)
    with_sink = np.concatenate([states, 100 * np.ones((1, 16))])
    assert matrix_entropy(states) > 2.5
    assert matrix_entropy(with_sink) < 0.4
    assert matrix_entropy(with_sink[:-1]) == matrix_entropy(states)


def test_constant_layer_is_named():
    with pytest.raises(UserError, match="layer 7 is constant over its 10 tokens"):
        unit_trace_gram(np.full((10, 4), 3.3), 7)


def test_rows_that_do_not_differ_have_no_entropy():
    assert matrix_entropy(np.full((5, 3), 0.1, np.float32)) == 0.0


def test_half_precision_states_are_widened_before_squaring():
    states = (rows(5) * 2000).astype(np.float16)
    assert matrix_entropy(states) == pytest.approx(matrix_entropy(states.astype(np.float64)), abs=1e-12)


def test_principal_rows_have_the_eigenvalues_as_squared_sums():
    for shape in ((30, 8), (8, 30)):
        z = preprocess(rows(6, *shape), "centre")
        found = np.sort(np.square(principal_rows(z)).sum(axis=0))
        np.testing.assert_allclose(found, np.sort(eigenvalues(z)), atol=1e-10)


@pytest.mark.parametrize("how", ["centre", "none"])
@pytest.mark.parametrize("shape", [(640, 24), (160, 200)])
@pytest.mark.parametrize(("alpha", "tolerance"), [(0.5, 0.25), (1.0, 0.02), (2.0, 1e-8)])
def test_entropies_without_each_block_give_the_interval_of_deleting_it(how, shape, alpha, tolerance):
    generator = np.random.default_rng(0)
    block = np.repeat(np.arange(16), shape[0] // 16)
    effect = generator.standard_normal((16, shape[1])) * np.arange(1, shape[1] + 1) ** -0.7
    states = rows(7, *shape, tilt=0.7) + 0.5 * effect[block]
    found = entropies_without(principal_rows(preprocess(states, how)), block, [alpha], how == "centre")[:, 0]
    exact = np.array([matrix_entropy(states[block != b], alpha, how) for b in range(16)])
    np.testing.assert_allclose(found - found.mean(), exact - exact.mean(), atol=2 * tolerance * exact.std())
    whole, sizes = np.asarray(matrix_entropy(states, alpha, how)), np.full(16, shape[0] // 16)
    approximate, true = (interval(whole, e, sizes) for e in (found, exact))
    assert approximate.high - whole == pytest.approx(true.high - whole, rel=tolerance)


def test_effective_rank_is_of_singular_values_not_of_the_matrix_entropy():
    z = preprocess(rows(8), "centre")
    singular = scipy.linalg.svdvals(z)
    p = singular / singular.sum()
    assert effective_rank(eigenvalues(z)) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert effective_rank(eigenvalues(z)) > np.exp(matrix_entropy(z))


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (16, 16)])
def test_information_flow_counts_positive_eigenvalues_of_the_positive_entries(shape):
    states = rows(5, *shape)
    z = torch.nn.functional.normalize(torch.from_numpy(states) - torch.from_numpy(states).mean(0), dim=1)
    matrix = (z.T @ z if shape[0] > shape[1] else z @ z.T).clamp(min=0)  # clamps entries, not eigenvalues
    values = torch.linalg.eigvalsh(matrix)
    p = values[values > 0] / values[values > 0].sum()
    expected = float(-(p * p.log()).sum())
    found = float(entropy_of(information_flow_spectrum(states)))
    assert found == pytest.approx(expected, abs=1e-10)
    assert found > matrix_entropy(states, how="centre_row_norm") + 0.01
    assert float(entropy_of(information_flow_spectrum(states[None]))[0]) == pytest.approx(found, abs=1e-12)


def test_jackknife_of_a_mean_is_the_textbook_interval():
    values = np.random.default_rng(0).standard_normal(30)
    without = np.array([np.delete(values, i).mean() for i in range(30)])
    found = interval(values.mean(), without, np.ones(30))
    half = scipy.stats.t.ppf(0.975, 29) * values.std(ddof=1) / np.sqrt(30)
    assert found.high - found.low == pytest.approx(2 * half)
