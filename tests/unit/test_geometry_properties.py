"""What must hold of entropy and similarity whatever the states are, and what odd dumps end in."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import qr

from speclayers.config import GeometryConfig, SelectionConfig, SelectorConfig
from speclayers.errors import UserError
from speclayers.geometry import products
from speclayers.geometry.dump import check_rows, open_dump
from speclayers.geometry.entropy import (
    eigenvalues,
    entropy_of,
    matrix_entropy,
    preprocess,
    set_entropy,
    unit_trace_gram,
)
from speclayers.geometry.gram import gram_sums, renyi2, similarity
from speclayers.geometry.measure import Geometry, measure
from speclayers.geometry.products import Share, inner_products
from speclayers.geometry.rows import RowStore, open_rows
from speclayers.selection.evidence import gather
from speclayers.selection.select import select
from speclayers.tables import GEOMETRY, Origin, write_table
from tests.dumps import layered_states, tokens_frame, write_dump

seeds = st.integers(0, 10_000)
many = settings(deadline=None, max_examples=25)


def stream(seed, layers=4, rows=40, width=6):
    """A residual stream whose layers share directions, (layers, rows, width)."""
    generator = np.random.default_rng(seed)
    steps = generator.standard_normal((layers, rows, width)) * generator.uniform(0.2, 2, (layers, 1, width))
    return steps.cumsum(axis=0) + 1


def opened(states, block):
    return open_rows(RowStore(states), np.arange(states.shape[1]), block, "centre")


def dealt(seed, rows, blocks):
    """Blocks of unequal size, ascending, none empty."""
    extra = np.random.default_rng(seed).integers(0, blocks, rows - 4 * blocks)
    return np.sort(np.concatenate([np.repeat(np.arange(blocks), 4), extra]))


@many
@given(seeds, st.integers(2, 30), st.integers(1, 30), st.sampled_from([1.0, 2.0, 3.0]))
def test_gram_and_covariance_routes_agree_for_any_shape(seed, rows, width, alpha):
    z = preprocess(np.random.default_rng(seed).standard_normal((rows, width)), "centre")
    routes = [entropy_of(eigenvalues(z, route), alpha) for route in ("gram", "covariance")]
    assert routes[0] == pytest.approx(routes[1], abs=1e-9)


@many
@given(seeds, st.integers(1, 9), st.integers(1, 4), st.sampled_from([1.0, 2.0]))
def test_r_equal_directions_have_entropy_ln_r_however_turned(seed, r, copies, alpha):
    directions = np.eye(12)[:r]
    rows = np.tile(np.concatenate([directions, -directions]), (copies, 1))
    rotation = qr(np.random.default_rng(seed).standard_normal((12, 12)))[0]
    assert matrix_entropy(7 * rows @ rotation + 3, alpha) == pytest.approx(np.log(r), abs=1e-9)


@many
@given(seeds, st.integers(1, 30), st.integers(2, 30))
def test_entropy_never_exceeds_what_rows_and_width_allow(seed, width, rows):
    states = np.random.default_rng(seed).standard_normal((rows, width))
    for alpha in (1.0, 2.0):
        assert -1e-9 <= matrix_entropy(states, alpha) <= np.log(min(rows, width)) + 1e-9


@many
@given(seeds)
def test_shannon_is_never_below_order_two(seed):
    states = stream(seed)[0]
    assert matrix_entropy(states, 1) >= matrix_entropy(states, 2) - 1e-9


@many
@given(seeds, st.integers(2, 6), st.integers(1, 5), st.integers(1, 50_000), st.sampled_from(["tiles", "covariance"]))
def test_routes_tiles_groups_and_the_order_of_merging_do_not_matter(seed, blocks, parts, held, route):
    states, block = stream(seed), dealt(seed, 40, blocks)
    whole = inner_products(opened(states, block), blocks, route="tiles")
    order = np.random.default_rng(seed).permutation(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_TILE", 1 + seed % 7)
        patch.setattr(products, "_HELD_BYTES", held)
        shares = [inner_products(opened(states, block), blocks, Share(i, parts), route=route) for i in order]
    np.testing.assert_allclose(sum(shares), whole, atol=1e-12)


@many
@given(seeds, st.integers(2, 6))
def test_any_blocks_are_measured_as_if_there_were_no_others(seed, blocks):
    states, block = stream(seed), dealt(seed, 40, blocks)
    kept = np.random.default_rng(seed).random(blocks) < 0.6
    assume(kept.any())
    part = similarity(gram_sums(opened(states, block), blocks), kept)
    own = np.flatnonzero(kept[block])
    alone = similarity(gram_sums(opened(states[:, own], np.zeros(len(own), int)), 1))
    for name in ("gram", "biased", "debiased"):
        np.testing.assert_allclose(getattr(part, name), getattr(alone, name), atol=1e-8)


@many
@given(seeds)
def test_cka_is_symmetric_one_with_itself_and_biased_lies_between_zero_and_one(seed):
    states, block = stream(seed), dealt(seed, 40, 3)
    found = similarity(gram_sums(opened(states, block), 3))
    for values in (found.biased, found.debiased):
        np.testing.assert_allclose(values, values.T, atol=1e-12)
        np.testing.assert_allclose(np.diagonal(values), 1, atol=1e-9)
        assert values.max() <= 1 + 1e-9
    assert found.biased.min() >= -1e-9


@many
@given(seeds, st.integers(1, 4))
def test_order_two_of_a_set_comes_out_of_q_and_stays_below_mean_plus_ln_k(seed, k):
    states, block = stream(seed), dealt(seed, 40, 3)
    q = similarity(gram_sums(opened(states, block), 3)).gram
    layers = list(range(k))
    exact = set_entropy([unit_trace_gram(states[layer], layer) for layer in layers], 2)
    assert renyi2(q, layers) == pytest.approx(exact, abs=1e-9)
    # by Cauchy-Schwarz Q_ab <= sqrt(Q_aa Q_bb), so a set has at least the entropy of its most concentrated layer
    assert renyi2(q, layers) >= min(renyi2(q, [layer]) for layer in layers) - 1e-9


@many
@given(seeds, st.floats(200, 1e4))
def test_one_planted_sink_row_fakes_the_valley_and_dropping_it_removes_it(seed, size):
    generator = np.random.default_rng(seed)
    states = generator.standard_normal((2, 200, 12))
    sunk = np.concatenate([states, np.full((2, 1, 12), size)], axis=1)
    block = np.zeros(201, int)
    assert matrix_entropy(states[0]) > 2
    assert matrix_entropy(sunk[0]) < 0.7
    fooled = similarity(gram_sums(opened(sunk, block), 1))
    assert fooled.biased[0, 1] > 0.9
    assert abs(fooled.debiased[0, 1]) < 0.3  # diagonals are left out, and one row alone has no other to resemble
    found = similarity(gram_sums(opened(sunk[:, :-1], block[:-1]), 1))
    assert abs(found.debiased[0, 1]) < 0.3
    assert found.biased[0, 1] < 0.3
    two = np.concatenate([sunk, sunk[:, -1:]], axis=1)
    assert similarity(gram_sums(opened(two, np.zeros(202, int)), 1)).debiased[0, 1] > 0.9


def test_debiased_cka_of_independent_data_is_zero_within_its_error_at_every_size():
    generator = np.random.default_rng(0)
    for rows, width in ((12, 40), (24, 24), (48, 8)):
        block = np.zeros(rows, int)
        found = [
            similarity(gram_sums(opened(generator.standard_normal((2, rows, width)), block), 1)) for _ in range(60)
        ]
        debiased, biased = (np.array([getattr(f, name)[0, 1] for f in found]) for name in ("debiased", "biased"))
        error = debiased.std(ddof=1) / np.sqrt(len(debiased))
        assert abs(debiased.mean()) < 4 * error
        assert biased.mean() > 4 * error


# ---------------------------------------------------------------- odd dumps

CONFIG = GeometryConfig(blocks=6, effect_tokens=8, search_rows=30)


def gathered(manifest, folder):
    dump = open_dump(manifest)
    measured = measure(dump, CONFIG, folder)
    for name in Geometry._fields:
        write_table(folder / f"{name}.parquet", GEOMETRY[name], getattr(measured, name), Origin("m", "f"))
    return gather(dump, *(folder / f"{name}.parquet" for name in ("entropy", "cka", "gram")), CONFIG)


@pytest.fixture
def tokens():
    return tokens_frame(prompts=12)


def test_duplicated_layers_are_equal_and_similar_ones_stay_out(tokens, tmp_path):
    states = layered_states(len(tokens))
    states[4] = states[3]
    states[5] = 2 * states[3]  # equal up to scale
    evidence = gathered(write_dump(tmp_path / "dump", tokens, states), tmp_path)
    assert evidence.whole.cka[3, 4] == pytest.approx(1)
    assert evidence.whole.cka[3, 5] == pytest.approx(1)
    assert evidence.whole.set_entropy((3, 4, 5)) == pytest.approx(evidence.whole.set_entropy((3,)))
    config = SelectionConfig(
        selectors=[
            SelectorConfig(name="entropy_cka", k=[3], options={"max_similarity": 0.999}),
            SelectorConfig(name="exhaustive", k=[3]),
        ],
        half_samples=4,
    )
    for entry in select(config, evidence):
        assert len({3, 4, 5} & set(entry.choice.layers)) <= 1


def test_a_limit_that_excludes_everything_falls_back_and_says_so(tokens, tmp_path):
    evidence = gathered(write_dump(tmp_path / "dump", tokens), tmp_path)
    limit = {"max_similarity": -1.0}
    config = SelectionConfig(
        selectors=[SelectorConfig(name=n, k=[3], options=limit) for n in ("elsi_c", "beam", "entropy_cka")],
        half_samples=2,
    )
    chosen = {entry.request.config.name: entry.choice for entry in select(config, evidence)}
    assert len(chosen["elsi_c"].layers) == len(chosen["beam"].layers) == 3
    assert len(chosen["entropy_cka"].layers) == 1
    assert "only 1 of 3 layers" in chosen["entropy_cka"].reason


def test_every_selector_can_choose_all_layers(tokens, tmp_path):
    evidence = gathered(write_dump(tmp_path / "dump", tokens), tmp_path)
    names = ("elsi", "exhaustive", "beam", "max_entropy", "lens", "per_segment", "uniform", "random", "product")
    config = SelectionConfig(selectors=[SelectorConfig(name=name, k=[6]) for name in names], half_samples=2)
    assert {entry.choice.layers for entry in select(config, evidence)} == {(1, 2, 3, 4, 5, 6)}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_states_that_are_not_finite_are_named_by_layer_and_sample(tokens, tmp_path, value):
    states = layered_states(len(tokens))
    states[2, 30, 5] = value
    with pytest.raises(UserError, match="layer 2 of sample p01 holds NaN or infinity in 1 tokens"):
        measure(open_dump(write_dump(tmp_path, tokens, states)), CONFIG, tmp_path)


def test_layers_of_different_row_counts_are_refused():
    with pytest.raises(UserError, match="layer 3 has 5 rows, expected 6"):
        check_rows(np.zeros((5, 2)), 6, 3)


def test_parts_of_another_run_or_model_are_refused(tokens, tmp_path):
    with pytest.raises(UserError, match="fingerprint is 'other', expected 'f'"):
        open_dump(write_dump(tmp_path / "a", tokens, part_fingerprint="other"))
    manifest = write_dump(tmp_path / "b", tokens)
    manifest.write_text(manifest.read_text().replace('"model": "m"', '"model": "n"'))
    with pytest.raises(UserError, match="model is 'm', expected 'n'"):
        open_dump(manifest)


def test_tables_of_another_dump_are_refused(tokens, tmp_path):
    gathered(write_dump(tmp_path / "dump", tokens), tmp_path)
    other = open_dump(write_dump(tmp_path / "other", tokens_frame(prompts=10)))
    paths = (tmp_path / f"{name}.parquet" for name in ("entropy", "cka", "gram"))
    with pytest.raises(UserError, match="was not measured on this dump"):
        gather(other, *paths, CONFIG)
