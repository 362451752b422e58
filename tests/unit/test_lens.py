"""Lens entropies are means over the tokens that count, with limits over blocks of prompts."""

import numpy as np
import pytest

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.dump import open_dump, read_lens
from speclayers.geometry.lens import LensRows, lens_profile, lens_rows
from speclayers.geometry.tokens import choose_rows
from tests.dumps import tokens_frame, write_dump


def test_sinks_are_left_out(tmp_path):
    tokens = tokens_frame()
    rows, values = read_lens(open_dump(write_dump(tmp_path / "a", tokens)).parts, 6)
    tokens.loc[rows[:3], "is_sink"] = True
    dump = open_dump(write_dump(tmp_path / "b", tokens))
    found = lens_rows(dump.parts, choose_rows(tokens, GeometryConfig()), 6)
    np.testing.assert_array_equal(found.values, values[3:])


def test_profile_is_the_mean_with_limits_around_it(tmp_path):
    tokens = tokens_frame()
    dump = open_dump(write_dump(tmp_path, tokens))
    sets = choose_rows(tokens, GeometryConfig())
    found = lens_rows(dump.parts, sets, 6)
    table = lens_profile(found, sets.n_blocks)
    np.testing.assert_allclose(table["lens_entropy"], found.values.mean(axis=0))
    assert (table["ci_low"] < table["lens_entropy"]).all()
    assert (table["lens_entropy"] < table["ci_high"]).all()
    assert set(table["n_tokens"]) == {len(found.values)}


def test_no_tokens_leave_it_empty():
    table = lens_profile(LensRows(np.empty((0, 4)), np.empty(0, int)), 5)
    assert table["lens_entropy"].isna().all()
    assert len(table) == 4


def test_another_number_of_layers_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not hold 9 layers"):
        read_lens(open_dump(write_dump(tmp_path)).parts, 8)
