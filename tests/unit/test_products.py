"""Inner products of Gram matrices: two routes, shares of the work and another device, one result."""

import numpy as np
import pytest

from speclayers.geometry import products
from speclayers.geometry.device import TorchDevice
from speclayers.geometry.entropy import preprocess
from speclayers.geometry.gram import gram_sums, similarity, without_each_block
from speclayers.geometry.products import WHOLE, Share, cheaper_route, inner_products, pairs_of
from speclayers.geometry.rows import RowStore, open_rows

UNEVEN = np.repeat([0, 1, 3, 4], [40, 9, 70, 1])  # block 2 has no row, block 4 a single one
BLOCKS = [np.flatnonzero(block == UNEVEN) for block in range(5)]
ROUTES = ("tiles", "covariance")


def layers(seed=0, n=120, width=5, count=4):
    generator = np.random.default_rng(seed)
    states = [generator.standard_normal((n, width)) + 3]
    for _ in range(count - 1):
        states.append(states[-1] + np.tanh(states[-1] @ generator.standard_normal((width, width))))
    return np.stack(states)


def opened(states, how="centre", block=UNEVEN):
    return open_rows(RowStore(states), np.arange(states.shape[1]), block, how)


def close(found, expected, tolerance=1e-10):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", ["centre", "none", "row_norm", "centre_row_norm"])
def test_both_routes_equal_whole_gram_matrices(how, route):
    states = layers()
    z = preprocess(states, how)
    z /= np.sqrt(np.square(z).sum(axis=(1, 2), keepdims=True))
    gram = z @ z.transpose(0, 2, 1)
    found = inner_products(opened(states, how), 5, route=route)
    for a, own in enumerate(BLOCKS):
        for b, other in enumerate(BLOCKS):
            part = gram[:, own][:, :, other].reshape(4, -1)
            close(found[:, :, a, b], part @ part.T, 1e-12)


@pytest.mark.parametrize("how", ["centre", "none"])
def test_cka_its_jackknife_and_recentring_do_not_depend_on_the_route(how):
    rows = opened(layers(1), how)
    tiles, covariance = (gram_sums(rows, 5, inner_products(rows, 5, route=route)) for route in ROUTES)
    kept = np.array([True, False, True, True, True])
    for one, other in (
        (similarity(tiles), similarity(covariance)),
        (similarity(tiles, kept), similarity(covariance, kept)),
        (without_each_block(tiles)[0], without_each_block(covariance)[0]),
    ):
        for left, right in zip(one, other, strict=True):
            close(left, right)


@pytest.mark.parametrize("held", [1, 8 * 5 * 5 * 2, 8 * 5 * 5 * 5 * 2, 2**27])
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_held_in_memory_does_not_change_the_result(monkeypatch, route, held):
    rows = opened(layers(2))
    whole = inner_products(rows, 5, route=route)
    monkeypatch.setattr(products, "_TILE", 7)
    monkeypatch.setattr(products, "_HELD_BYTES", held)
    close(inner_products(rows, 5, route=route), whole, 1e-12)


@pytest.mark.parametrize("count", [2, 3, 7, 40])
@pytest.mark.parametrize("route", ROUTES)
def test_shares_add_up_to_the_whole_to_the_last_bit(route, count):
    rows = opened(layers(3))
    parts = [inner_products(rows, 5, Share(index, count), route=route) for index in range(count)]
    assert max(np.count_nonzero([part != 0 for part in parts], axis=0).ravel()) == 1
    np.testing.assert_array_equal(sum(parts), inner_products(rows, 5, WHOLE, route=route))


def test_shares_are_disjoint_and_complete():
    units = pairs_of(6)
    for count in (1, 2, 5, 30):
        assert [unit for index in range(count) for unit in Share(index, count).of(units)] == units


@pytest.mark.parametrize("route", ROUTES)
def test_tensors_give_what_arrays_give(route):
    rows = opened(layers(4))
    close(inner_products(rows, 5, route=route, device=TorchDevice("cpu")), inner_products(rows, 5, route=route), 1e-12)


def test_many_tokens_of_a_narrow_model_take_the_covariance_route():
    assert cheaper_route(tokens=8192, width=128, n_layers=13, n_blocks=32) == "covariance"
    assert cheaper_route(tokens=8192, width=576, n_layers=31, n_blocks=32) == "tiles"
    assert cheaper_route(tokens=1000, width=128, n_layers=13, n_blocks=32) == "tiles"


def test_the_cheaper_route_is_taken(monkeypatch):
    taken = []
    for name in ("_by_tiles", "_by_covariance"):
        real = getattr(products, name)
        monkeypatch.setattr(products, name, lambda *a, real=real, name=name: (taken.append(name), real(*a))[1])
    inner_products(opened(layers()), 5)
    inner_products(opened(layers(n=20, width=30), block=np.repeat([0, 1], 10)), 2)
    assert taken == ["_by_covariance", "_by_tiles"]
