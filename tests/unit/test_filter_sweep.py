"""The sweep agrees with the filter-effect table where both measure, and its controls are controls."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.dump import open_dump
from speclayers.geometry.entropy import eigenvalues, entropy_of, gram_spectra, matrix_entropy, preprocess
from speclayers.geometry.measure import measure
from speclayers.geometry.tokens import choose_rows, most_uncertain
from speclayers.selection.filter_sweep import filter_sweep
from speclayers.tables import FILTER_SETS, FILTER_SWEEP, read_table
from tests.dumps import layered_states, tokens_frame, write_dump

SCRIPT = Path(__file__).parents[2] / "scripts" / "sweep_filter.py"
CONFIG = GeometryConfig(blocks=6, effect_tokens=12, sweep_shares=[0.3, 0.5, 1.0])


@pytest.fixture(scope="module")
def tokens():
    return tokens_frame(prompts=12)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory, tokens):
    return write_dump(tmp_path_factory.mktemp("activations"), tokens, layered_states(len(tokens)))


@pytest.fixture(scope="module")
def swept(manifest, tmp_path_factory):
    return filter_sweep(open_dump(manifest), CONFIG, tmp_path_factory.mktemp("scratch"))


def test_the_sweep_is_the_filter_effect_at_the_filters_own_share(swept, manifest, tmp_path):
    effect = measure(open_dump(manifest), CONFIG, tmp_path).filter_effect
    sweep = swept.filter_sweep
    own = sweep[(sweep["scope"] == "per_prompt") & (sweep["share"] == 0.3) & (sweep["subset"] == "filtered")]
    np.testing.assert_allclose(own["variance"], effect["variance_filtered"], rtol=1e-9)
    whole = sweep[(sweep["scope"] == "pooled") & (sweep["share"] == 1) & (sweep["subset"] == "filtered")]
    np.testing.assert_allclose(whole["variance"], effect["variance_all"], rtol=1e-9)


def test_keeping_all_tokens_is_the_same_in_every_scope_and_subset(swept):
    whole = swept.filter_sweep.query("share == 1").groupby("segment")["entropy"]
    assert (whole.max() - whole.min()).max() < 1e-12
    assert whole.size().tolist() == [4, 4, 4]
    sets = swept.filter_sets.query("share == 1 and k == 3")["layers"]
    assert len({tuple(layers) for layers in sets}) == 1


def test_a_share_whose_tokens_are_alike_in_some_layer_has_no_sets_and_stops_nothing(tokens, tmp_path, caplog):
    states = layered_states(len(tokens))
    answered = tokens[tokens["is_response"]]["predictive_entropy"]
    states[2, answered.nlargest(int(0.35 * len(answered))).index] = 1.0
    dump = open_dump(write_dump(tmp_path / "activations", tokens, states))
    sets = filter_sweep(dump, CONFIG, tmp_path).filter_sets
    pooled = sets[(sets["scope"] == "pooled") & (sets["share"] == 0.3)]
    assert set(pooled["subset"]) == {"random"}
    assert "pooled, filtered share 0.3: no sets; activations: layer 2 is constant" in caplog.text


def test_random_tokens_are_as_many(swept):
    counts = swept.filter_sweep.pivot(
        index=["scope", "share", "segment"], columns="subset", values=["n_tokens", "n_prompts"]
    )
    assert (counts["n_tokens"]["filtered"] == counts["n_tokens"]["random"]).all()
    assert (counts["n_prompts"]["filtered"] == counts["n_prompts"]["random"]).all()


def test_limits_surround_the_variance(swept):
    rows = swept.filter_sweep
    assert (rows["variance_low"] < rows["variance"]).all()
    assert (rows["variance"] < rows["variance_high"]).all()


def test_sets_have_their_sizes_and_the_single_one_the_highest_entropy_of_order_two(swept, manifest, tokens):
    for row in swept.filter_sets.itertuples():
        assert len(row.layers) == row.k
    states = layered_states(len(tokens))
    rows = choose_rows(tokens, CONFIG).rows["filtered"]
    best = max(range(1, 7), key=lambda layer: matrix_entropy(states[layer, rows], alpha=2))
    (own,) = swept.filter_sets.query("scope == 'per_prompt' and share == 0.3 and subset == 'filtered' and k == 1")[
        "layers"
    ]
    assert own == [best]


def test_the_absolute_scope_keeps_what_its_threshold_keeps(swept, tokens):
    usable = tokens[tokens["is_response"]]
    (share,) = set(swept.filter_sweep.query("scope == 'absolute'")["share"])
    assert share == pytest.approx((usable["predictive_entropy"] >= CONFIG.entropy_threshold).mean())


def test_absolute_filter_chooses_by_threshold_alone(tokens):
    config = CONFIG.model_copy(update={"filter_scope": "absolute", "entropy_threshold": 1.5})
    kept = choose_rows(tokens, config).rows["filtered"]
    expected = np.flatnonzero(tokens["is_response"] & (tokens["predictive_entropy"] >= 1.5))
    assert sorted(kept) == expected.tolist()


def test_threshold_that_keeps_too_few_is_named():
    config = GeometryConfig(filter_scope="absolute", entropy_threshold=50)
    with pytest.raises(UserError, match=r"0 tokens that pass the filter.*lower geometry\.entropy_threshold, found 50"):
        choose_rows(tokens_frame(), config)


def test_share_has_no_meaning_in_the_absolute_scope():
    with pytest.raises(ValueError, match="takes a threshold"):
        most_uncertain(np.ones(3), np.arange(3), np.zeros(3, int), 0.5, "absolute")


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["centre", "none", "row_norm", "centre_row_norm"]))
def test_spectra_from_raw_gram_matrices_are_those_of_preprocessed_rows(seed, how):
    rows = np.random.default_rng(seed).standard_normal((3, 7, 5)) + 2
    found = entropy_of(gram_spectra(rows @ rows.transpose(0, 2, 1), how))
    np.testing.assert_allclose(found, entropy_of(eigenvalues(preprocess(rows, how), "gram")), atol=1e-9)


def test_equal_rows_have_no_entropy_by_their_gram_matrix():
    rows = np.full((1, 6, 4), 3.7)
    assert entropy_of(gram_spectra(rows @ rows.transpose(0, 2, 1), "centre")).tolist() == [0.0]


def test_the_script_writes_both_tables_and_repeats_itself(manifest, swept, tmp_path):
    paths = {"--filter-sweep": tmp_path / "sweep.parquet", "--filter-sets": tmp_path / "sets.parquet"}
    options = [str(part) for pair in paths.items() for part in pair]
    command = [sys.executable, str(SCRIPT), "--spec", json.dumps(CONFIG.model_dump()), "--fingerprint", "f"]
    command += ["--model", "m", "--activations", str(manifest), "--activations-fingerprint", "f", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read_table(paths["--filter-sweep"], FILTER_SWEEP)
    pd.testing.assert_frame_equal(found, swept.filter_sweep.reset_index(drop=True), check_exact=True, check_dtype=False)
    assert len(read_table(paths["--filter-sets"], FILTER_SETS)) == len(swept.filter_sets)
