import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from speclayers.config import GeometryConfig, SelectionConfig, SelectorConfig
from speclayers.errors import UserError
from speclayers.geometry.dump import open_dump
from speclayers.geometry.entropy import entropy_of, information_flow_spectrum, matrix_entropy
from speclayers.geometry.measure import Geometry, measure
from speclayers.geometry.tokens import choose_rows
from speclayers.selection.evidence import gather
from speclayers.selection.select import heads, select, selections_frame, trace
from speclayers.specs import SelectionSpec
from speclayers.tables import GEOMETRY, SELECTIONS, Origin, read_table, write_table
from tests.dumps import layered_states, tokens_frame, write_dump

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONFIG = GeometryConfig(blocks=6, effect_tokens=8, search_rows=30)
ORIGIN = Origin("m", "f")
TABLES = {name: GEOMETRY[name] for name in Geometry._fields}


@pytest.fixture(scope="module")
def tokens():
    return tokens_frame(prompts=12)


@pytest.fixture(scope="module")
def states(tokens):
    return layered_states(len(tokens))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory, tokens, states):
    return write_dump(tmp_path_factory.mktemp("activations"), tokens, states)


@pytest.fixture(scope="module")
def measured(manifest, tmp_path_factory):
    return measure(open_dump(manifest), CONFIG, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def paths(measured, tmp_path_factory):
    folder = tmp_path_factory.mktemp("geometry")
    for name, table in TABLES.items():
        write_table(folder / f"{name}.parquet", table, getattr(measured, name), ORIGIN)
    return {name: folder / f"{name}.parquet" for name in TABLES}


def test_tables_fit_their_schemas(paths):
    frames = {name: read_table(path, TABLES[name]) for name, path in paths.items()}
    assert len(frames["turning"]) == 7
    assert frames["turning"]["score"].isna().tolist() == [False] * 6 + [True]
    assert set(frames["cka"].groupby(["subset", "estimator"]).size()) == {28}
    assert frames["gram"]["block_a"].isna().sum() == 3 * 28
    assert not frames["cka"].isna().any().any()


def test_pooled_entropies_are_those_of_the_chosen_rows(measured, tokens, states):
    sets = choose_rows(tokens, CONFIG)
    table = measured.entropy[measured.entropy["sample_id"].isna()]
    assert len(table) == 7 * 3 * 2 * 2
    for row in table.itertuples():
        rows = sets.subset(row.subset, row.sinks_kept)
        assert row.n_tokens == len(rows)
        assert row.entropy == pytest.approx(matrix_entropy(states[row.layer, rows], row.alpha), abs=1e-8)
        assert row.share_of_ln_n == pytest.approx(row.entropy / np.log(len(rows)))
        assert row.share_of_maximum == pytest.approx(row.entropy / np.log(min(len(rows), 12)))
        assert np.isnan(row.information_flow)
        if not row.sinks_kept:
            assert row.ci_low < row.entropy < row.ci_high


def test_entropies_of_a_prompt_are_those_of_its_own_rows(measured, tokens, states):
    sets = choose_rows(tokens, CONFIG)
    table = measured.entropy[(measured.entropy["sample_id"] == "p03") & (measured.entropy["alpha"] == 1)]
    assert len(table) == 7 * 3 * 2
    for row in table.itertuples():
        rows = [r for r in sets.subset(row.subset, row.sinks_kept) if tokens["sample_id"][r] == "p03"]
        assert row.n_tokens == len(rows)
        assert row.entropy == pytest.approx(matrix_entropy(states[row.layer, rows]), abs=1e-8)


def test_information_flow_stands_in_a_column_of_its_own_where_asked(manifest, measured, tokens, states, tmp_path):
    asked = CONFIG.model_copy(update={"information_flow": True})
    found = measure(open_dump(manifest), asked, tmp_path).entropy
    pd.testing.assert_frame_equal(
        found.drop(columns="information_flow"), measured.entropy.drop(columns="information_flow"), check_exact=True
    )
    sets = choose_rows(tokens, CONFIG)
    for row in found[found["sample_id"].isna()].itertuples():
        spectrum = information_flow_spectrum(states[row.layer, sets.subset(row.subset, row.sinks_kept)])
        assert row.information_flow == pytest.approx(float(entropy_of(spectrum, row.alpha)), abs=1e-12)
    own = found[(found["sample_id"] == "p03") & (found["subset"] == "all") & (found["alpha"] == 1)]
    rows = [r for r in sets.subset("all") if tokens["sample_id"][r] == "p03"]
    spectra = information_flow_spectrum(states[:, rows])
    np.testing.assert_allclose(own[~own["sinks_kept"]]["information_flow"], entropy_of(spectra), atol=1e-12)


def test_order_two_entropies_agree_with_the_gram_table(measured):
    entropy, gram = measured.entropy, measured.gram
    pooled = entropy[entropy["sample_id"].isna() & ~entropy["sinks_kept"] & (entropy["alpha"] == 2)]
    own = gram[gram["block_a"].isna() & (gram["layer_a"] == gram["layer_b"])]
    joined = pooled.merge(own, left_on=["layer", "subset"], right_on=["layer_a", "subset"])
    assert len(joined) == 21
    np.testing.assert_allclose(-np.log(joined["inner_product"]), joined["entropy"], atol=1e-8)


def test_parts_of_the_gram_table_add_up(measured):
    gram = measured.gram[measured.gram["subset"] == "filtered"]
    parts = gram[gram["block_a"].notna()]
    weight = np.where(parts["block_a"] == parts["block_b"], 1, 2)
    sums = (parts["inner_product"] * weight).groupby([parts["layer_a"], parts["layer_b"]]).sum()
    whole = gram[gram["block_a"].isna()].set_index(["layer_a", "layer_b"])["inner_product"]
    np.testing.assert_allclose(sums.loc[whole.index], whole, atol=1e-10)


def test_measuring_twice_gives_the_same_bytes(manifest, measured, tmp_path):
    again = measure(open_dump(manifest), CONFIG, tmp_path)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(again, name), getattr(measured, name), check_exact=True)


def test_a_sink_in_the_first_position_fakes_a_valley_only_where_sinks_are_kept(tokens, states, tmp_path):
    sunk = states.copy()
    sunk[3, tokens["position"] == 0] = 300
    found = measure(open_dump(write_dump(tmp_path, tokens, sunk)), CONFIG, tmp_path).entropy
    pooled = found[found["sample_id"].isna() & (found["alpha"] == 1) & (found["subset"] == "filtered")]
    kept = pooled[pooled["sinks_kept"]].set_index("layer")["entropy"]
    dropped = pooled[~pooled["sinks_kept"]].set_index("layer")["entropy"]
    assert kept[3] < 0.2 < 1 < min(kept[2], kept[4], dropped.min())


def test_convergence_ends_at_the_whole_and_each_step_is_measured_alone(measured, tokens, states):
    found = measured.convergence
    gram = measured.gram.query("subset == 'filtered' and layer_a == layer_b")
    own = gram[gram["block_a"].isna()]["inner_product"]
    whole = found[found["n_blocks"] == found["n_blocks"].max()]
    np.testing.assert_allclose(whole["entropy"], -np.log(own), atol=1e-10)
    cka = measured.cka.query("subset == 'filtered' and estimator == 'debiased' and layer_b == layer_a + 1")["value"]
    np.testing.assert_allclose(whole["cka_next"].iloc[:-1], cka, atol=1e-10)
    sets = choose_rows(tokens, CONFIG)
    rows = sets.rows["filtered"]
    for blocks, part in found.groupby("n_blocks"):
        own = rows[sets.block_of(rows) < blocks]
        assert set(part["n_tokens"]) == {len(own)}
        expected = [matrix_entropy(states[layer, own], alpha=2) for layer in range(7)]
        np.testing.assert_allclose(part["entropy"], expected, atol=1e-8)
    assert (np.diff(found["n_tokens"].unique()) > 0).all()


def test_constant_layer_is_named(tokens, states, tmp_path):
    flat = states.copy()
    flat[5] = 1.5
    with pytest.raises(UserError, match="layer 5 is constant"):
        measure(open_dump(write_dump(tmp_path, tokens, flat)), CONFIG, tmp_path)


SELECTORS = SelectionConfig(
    selectors=[
        SelectorConfig(name="eagle3", k=[3]),
        SelectorConfig(name="elsi", k=[1, 3]),
        SelectorConfig(name="elsi_c", k=[3], train=False),
        SelectorConfig(name="random", k=[3], seeds=[0, 1]),
        SelectorConfig(name="max_entropy", k=[2], options={"per_prompt": True}, train=False),
        SelectorConfig(name="pinned", k=[1], options={"sets": [[4], [5]]}),
    ],
    half_samples=20,
)


def gathered(manifest, paths, config=CONFIG):
    return gather(open_dump(manifest), paths["entropy"], paths["cka"], paths["gram"], config)


def test_whole_half_sample_is_the_whole(manifest, paths, monkeypatch):
    evidence = gathered(manifest, paths)
    monkeypatch.setattr("speclayers.selection.evidence.HALF", 1)
    (half,) = evidence.half_samples(1, 0)
    np.testing.assert_allclose(half.gram, evidence.whole.gram, atol=1e-10)
    np.testing.assert_allclose(half.cka, evidence.whole.cka, atol=1e-10)
    np.testing.assert_allclose(half.entropy, evidence.whole.entropy, atol=1e-10)
    np.testing.assert_allclose(half.prompt_entropy, evidence.whole.prompt_entropy, atol=1e-12)


def test_half_samples_are_measured_as_if_there_were_no_other_prompts(manifest, paths, tokens, states):
    evidence = gathered(manifest, paths)
    sets = choose_rows(tokens, CONFIG)
    rows = sets.rows["filtered"]
    for seed in range(3):
        kept = np.zeros(6, bool)
        kept[np.random.default_rng(seed).choice(6, size=3, replace=False)] = True
        (half,) = evidence.half_samples(1, seed)
        own = rows[kept[sets.block_of(rows)]]
        squares = [matrix_entropy(states[layer, own], alpha=2) for layer in range(7)]
        np.testing.assert_allclose(-np.log(np.diagonal(half.gram)), squares, atol=1e-8)
        shannon = [matrix_entropy(states[layer, own]) for layer in range(7)]
        np.testing.assert_allclose(half.entropy, shannon, atol=0.05)
        assert half.set_entropy([3]) == half.entropy[3]


def test_selections_say_what_was_chosen_how_stable_and_why(manifest, paths, tmp_path):
    selected = select(SELECTORS, gathered(manifest, paths))
    write_table(tmp_path / "selections.parquet", SELECTIONS, selections_frame(selected), ORIGIN)
    frame = read_table(tmp_path / "selections.parquet", SELECTIONS)
    assert frame["selector"].tolist() == [
        *("eagle3", "elsi", "elsi", "elsi_c", "random", "random", "max_entropy"),
        *["pinned"] * 2,
    ]
    for row in frame.itertuples():
        judged = list(row.half_sample_set)
        assert len(judged) == len(row.layers)
        assert (judged == list(row.layers)) == ("search by order 2" not in row.reason)
        shares = json.loads(row.stability)
        assert all(0 < share <= 1 for share in shares.values())
        assert sum(shares.values()) == pytest.approx(len(row.layers))
    assert frame["reason"].str.len().min() > 0
    assert len(trace(selected)) == len(frame)


def test_where_order_two_chooses_another_set_on_all_prompts_the_reason_names_it(manifest, paths):
    evidence = gathered(manifest, paths)
    found = {}
    for highest in ((1, 2, 3), (1, 2, 4)):  # whatever order 2 chooses, Shannon's choice is made to differ from one
        whole = dataclasses.replace(evidence.whole, shannon=lambda layers, highest=highest: float(layers == highest))
        config = SelectionConfig(selectors=[SelectorConfig(name="exhaustive", k=[3])], half_samples=4)
        (entry,) = select(config, dataclasses.replace(evidence, whole=whole))
        assert entry.choice.layers == highest
        found[highest] = entry
        if entry.half_sample_set != highest:
            named = ", ".join(map(str, entry.half_sample_set))
            assert f"by order 2, which on all prompts chooses {{{named}}} instead" in entry.reason
            assert list(selections_frame([entry])["half_sample_set"]) == [list(entry.half_sample_set)]
    assert len({entry.half_sample_set for entry in found.values()}) == 1
    assert any(entry.half_sample_set != highest for highest, entry in found.items())


def test_without_half_samples_nothing_is_compared(manifest, paths):
    selected = select(SELECTORS.model_copy(update={"half_samples": 0}), gathered(manifest, paths))
    for entry in selected:
        measured = entry.request.selector.measures
        assert entry.half_sample_set == (() if measured else entry.choice.layers)
        assert "order 2" not in entry.reason


def test_selectors_that_rank_layers_one_by_one_are_judged_by_themselves(manifest, paths):
    names = ("max_entropy", "min_entropy", "entropy_cka", "product", "cka_farthest", "per_segment", "lens")
    config = SelectionConfig(selectors=[SelectorConfig(name=name, k=[1, 3]) for name in names], half_samples=2)
    for entry in select(config, gathered(manifest, paths)):
        assert entry.half_sample_set == entry.choice.layers, entry.request.config.name


def test_heads_are_distinct_sets_of_the_selectors_that_train(manifest, paths):
    selected = select(SELECTORS, gathered(manifest, paths))
    found = heads("m", selected)
    sets = [tuple(head["layers"]) for head in found["heads"]]
    assert found["model"] == "m"
    assert sets == sorted(set(sets))
    assert {(4,), (5,)} <= set(sets)
    assert not any("elsi_c" in head["selectors"] for head in found["heads"])
    trained = selections_frame(selected).query("trained")["layers"]
    assert {tuple(layers) for layers in trained} == set(sets)


def test_tables_of_other_settings_are_refused(manifest, paths):
    with pytest.raises(UserError, match="was not measured on this dump with these settings"):
        gathered(manifest, paths, CONFIG.model_copy(update={"keep_share": 0.5}))


def activations(manifest, fingerprint="f"):
    return "--activations", manifest, "--activations-fingerprint", fingerprint


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (Origin("other", "f"), r"gram\.parquet: is of model other, expected m"),
        (
            Origin("m", "g"),
            r"gram\.parquet: was measured in another run than entropy\.parquet \(fingerprints g and f\)",
        ),
    ],
)
def test_tables_of_another_model_or_run_are_refused(manifest, paths, measured, tmp_path, origin, message):
    write_table(tmp_path / "gram.parquet", TABLES["gram"], measured.gram, origin)
    with pytest.raises(UserError, match=message):
        gathered(manifest, paths | {"gram": tmp_path / "gram.parquet"})


def run(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_scripts_write_their_outputs(manifest, paths, tmp_path):
    common = ("--model", "m", "--fingerprint", "f", "--threads", 1, *activations(manifest))
    outputs = [part for name in TABLES for part in (f"--{name.replace('_', '-')}", tmp_path / f"{name}.parquet")]
    done = run("measure_geometry.py", "--spec", CONFIG.canonical(), *common, *outputs)
    assert done.returncode == 0, done.stderr
    for name, path in paths.items():
        assert (tmp_path / f"{name}.parquet").read_bytes() == path.read_bytes()
    spec = SelectionSpec(geometry=CONFIG, selection=SELECTORS).canonical()
    inputs = [part for name in ("entropy", "cka", "gram") for part in (f"--{name}", paths[name])]
    results = ("--selections", tmp_path / "s.parquet", "--trace", tmp_path / "t.json", "--heads", tmp_path / "h.json")
    done = run("select_layers.py", "--spec", spec, *common, *inputs, *results)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "h.json").read_text())["model"] == "m"
    assert json.loads((tmp_path / "t.json").read_text())[0]["selector"] == "eagle3"
    assert not list(tmp_path.glob(".states*"))


@pytest.mark.parametrize(
    ("model", "fingerprint", "told"),
    [
        ("other", "f", "is of model m, expected other"),
        ("m", "g", "fingerprint is 'f', expected 'g': the dump is of other settings or another version"),
    ],
)
def test_activations_of_another_model_or_version_end_with_one_line_and_status_2(
    manifest, tmp_path, model, fingerprint, told
):
    outputs = [part for name in TABLES for part in (f"--{name.replace('_', '-')}", tmp_path / f"{name}.parquet")]
    spec = ("--spec", "{}", "--model", model, "--fingerprint", "f", *activations(manifest, fingerprint))
    done = run("measure_geometry.py", *spec, *outputs)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []
