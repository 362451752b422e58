import numpy as np
import pytest

from speclayers.geometry.turning import layer_blocks, turning_points, turning_scores


def two_blocks(n=10, cut=4):
    """CKA of layers 0 … cut and cut + 1 … n − 1: 0.95 within, 0.2 across."""
    side = np.arange(n) <= cut
    cka = np.where(side[:, None] == side, 0.95, 0.2)
    np.fill_diagonal(cka, 1)
    return cka


@pytest.mark.parametrize("how", ["cka", "row_difference", "novelty"])
def test_every_score_finds_the_border_of_two_blocks(how):
    scores = turning_scores(two_blocks(), how)
    assert scores.shape == (9,)
    points = turning_points(scores)
    assert np.flatnonzero(points).tolist() == [4]
    assert layer_blocks(points).tolist() == [0] * 5 + [1] * 5


def test_score_is_dissimilarity_to_the_next_layer():
    cka = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.4], [0.1, 0.4, 1.0]])
    np.testing.assert_allclose(turning_scores(cka), [0.1, 0.6])
    np.testing.assert_allclose(turning_scores(cka, "row_difference"), [(0.1 + 0.1 + 0.3) / 3, (0.8 + 0.6 + 0.6) / 3])


def test_plateau_has_one_turning_point_and_flat_scores_none():
    assert np.flatnonzero(turning_points(np.array([0, 0, 0, 5.0, 5.0, 0, 0, 0, 0, 0]))).tolist() == [3]
    assert not turning_points(np.full(6, 0.3)).any()


def test_ends_can_be_turning_points():
    assert np.flatnonzero(turning_points(np.array([4.0, 0, 0, 0, 0, 0, 5.0]))).tolist() == [0, 6]


def test_unknown_scores_are_no_turning_points():
    assert np.flatnonzero(turning_points(np.array([np.nan, 0, 0, 5.0, 0, 0]))).tolist() == [3]
    assert not turning_points(np.full(3, np.nan)).any()
