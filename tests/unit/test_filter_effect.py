import numpy as np
import pytest

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.filter_effect import effect_rows, filter_effect, variances
from speclayers.geometry.tokens import choose_rows
from tests.dumps import tokens_frame


def rows_of(length=10, **kwargs):
    tokens = tokens_frame(**kwargs)
    uncertainty = tokens["predictive_entropy"].to_numpy()
    return tokens, effect_rows(choose_rows(tokens, GeometryConfig()), uncertainty, length, 0.3, 0)


def test_every_prompt_gives_its_first_tokens_and_equally_many_filtered_and_random():
    tokens, rows = rows_of()
    assert (rows.all.shape, rows.filtered.shape, rows.random.shape) == ((6, 10), (6, 3), (6, 3))
    position = tokens["position"].to_numpy()
    assert (position[rows.all] == np.arange(3, 13)).all()
    uncertainty = tokens["predictive_entropy"].to_numpy()
    for everything, kept in zip(rows.all, rows.filtered, strict=True):
        assert set(kept) <= set(everything)
        assert uncertainty[kept].min() >= np.sort(uncertainty[everything])[-3]


def test_too_few_long_prompts_are_refused():
    with pytest.raises(UserError, match=r"geometry\.effect_tokens: 0 of 6 prompts have 21 usable"):
        rows_of(length=21)


def test_variance_is_over_prompts_and_averaged_over_the_layers_of_a_third():
    entropies = np.random.default_rng(0).standard_normal((20, 6))
    expected = [entropies[:, i : i + 2].var(axis=0, ddof=1).mean() for i in (0, 2, 4)]
    np.testing.assert_allclose(variances(entropies), expected)


def test_known_reduction_lies_in_its_interval():
    generator = np.random.default_rng(1)
    everything, filtered, random = (generator.normal(0, sd, (200, 9)) for sd in (2, 1, 1))
    frame = filter_effect(everything, filtered, random).set_index("segment")
    assert frame.index.tolist() == ["first", "middle", "last"]
    assert (frame["n_prompts"] == 200).all()
    for _, row in frame.iterrows():
        assert row["reduction_low"] < 0.75 < row["reduction_high"]
        assert row["reduction_random_low"] < 0 < row["reduction_random_high"]
        assert row["reduction"] == pytest.approx(1 - row["variance_filtered"] / row["variance_all"])
