"""Drafters that need no head: found by name, refused by reason, exact, and placed in the study's tables."""

import dataclasses
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from speclayers.analysis import rivals_page
from speclayers.analysis.drafters import parse_drafter
from speclayers.analysis.study import build_study, read_study
from speclayers.analysis.summary import Run, write_summary
from speclayers.analysis.warehouse import new_database
from speclayers.config import RivalConfig
from speclayers.decoding.baseline import decode_questions
from speclayers.decoding.ranges import merge_shards
from speclayers.decoding.shards import Shards, to_frame
from speclayers.drafting.medusa_heads import save_medusa
from speclayers.drafting.rival import FILES, build_rival, known_rivals
from speclayers.errors import UserError
from speclayers.files import write_json
from speclayers.fingerprint import NEEDED, rival_files, rival_jobs, rival_needs
from speclayers.geometry.redundancy import redundant_blocks
from speclayers.names import RivalName
from speclayers.planning.fanout import rival_runs, timed_rival_runs
from speclayers.reading import parse_study
from speclayers.specs import RivalSpec, SpeedSpec, TimedRivalSpec
from speclayers.tables import BASELINE, CKA, CYCLES, SPEED, TURNS, Origin, read_origin, read_table, write_table
from tests.heads import make_medusa
from tests.synthetic import MadeUpModel, origin, write_model, write_study
from tests.unit.test_acceptance import CHECKED, QUESTIONS, SPEC, run_script
from tests.unit.test_loop import (
    PROMPT,
    SMALL,
    VOCABULARY,
    WARM,
    decode,
    endings_p_value,
    exact_endings,
    generate,
    with_stop,
)

OPTIONS = {"prompt_lookup": {"ngram": 3}, "lookahead": {"window": 4, "nodes": 13}, "medusa": {"nodes": 20}}
SEEDED = {"random_skip", "self_sd", "swift", "lookahead", "medusa"}
TREES = {"lookahead", "medusa"}


def write_cka(folder, n_layers, unknown=False):
    generator = np.random.default_rng(0)
    pairs = list(combinations(range(n_layers + 1), 2))
    rows = pd.DataFrame(pairs, columns=["layer_a", "layer_b"]).astype("int32")
    rows = rows.assign(estimator="debiased", subset="all", n_tokens=100, value=generator.uniform(0.2, 1, len(pairs)))
    rows["ci_low"] = rows["ci_high"] = rows["value"]
    rows.loc[rows.index[-1:] if unknown else [], "value"] = None
    write_table(folder / "cka.parquet", CKA, rows, Origin("tiny", "0"))
    return folder / "cka.parquet"


def write_skipped(folder):
    write_json(folder / "skipped.json", {"skipped_attention": [2, 3], "skipped_mlp": [3, 4]})
    return folder / "skipped.json"


def write_medusa(folder, target, heads):
    save_medusa(folder, make_medusa(target, heads))
    return folder / "model.safetensors"


def built(target, tmp_path, name, seed=None, length=4, nodes=None, **options):
    made = {
        "cka": lambda: write_cka(tmp_path, target.n_layers),
        "skipped": lambda: write_skipped(tmp_path),
        "weights": lambda: write_medusa(tmp_path, target, length),
    }
    files = {need: made[need]() for need in rival_needs(name)}
    config = RivalConfig(name=name, draft_length=length, tree_nodes=nodes, options=options)
    return build_rival(config, target, RivalName(name, None, seed), files)


@pytest.mark.parametrize("name", known_rivals())
def test_greedy_answers_of_every_drafter_are_plain_decodings(tiny_target, tmp_path, name):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = built(target, tmp_path, name, 0 if name in SEEDED else None, **OPTIONS.get(name, {"threshold": 0.0}))
    assert drafter.name == (f"{name}.s0" if name in SEEDED else name)
    assert name in TREES or drafter.depth == drafter.nodes - 1 == 4
    answer = decode(target, drafter)
    assert answer.tokens == generate(target, PROMPT, 24)
    if name.endswith("_skip"):
        (skipped,) = {tuple(cycle.skipped_mlp) for cycle in answer.cycles}
        assert len(skipped) == 3
        assert {cycle.layer_forwards / cycle.draft_forwards for cycle in answer.cycles} == {3}
        assert all(cycle.search_score is None for cycle in answer.cycles)


@pytest.mark.parametrize(("name", "layers"), [("clasp", 2), ("self_sd", 4), ("swift", 4)])
def test_sampled_answers_with_skipped_layers_are_distributed_as_the_targets(tiny_target, tmp_path, name, layers):
    target = with_stop(tiny_target(vocabulary=SMALL, layers=layers), [])
    exact = exact_endings(target, [4, 7, 2], WARM)
    drafter = built(target, tmp_path, name, 0 if name in SEEDED else None, length=2, threshold=0.1)
    assert endings_p_value(target, exact, WARM, 250, drafter) > 0.01


def skipped_of(drafter):
    return sorted(drafter._skipped.whole)


def test_controls_skip_as_many_blocks_and_spare_the_pinned_ones(tiny_target, tmp_path):
    target = tiny_target(layers=12)
    assert skipped_of(built(target, tmp_path, "uniform_skip", skipped=3)) == [3, 7, 11]
    apart = built(target, tmp_path, "uniform_skip", share=0.34, pinned_first=2, pinned_last=2)
    assert skipped_of(apart) == [4, 6, 8, 10]
    drawn = [skipped_of(built(target, tmp_path, "random_skip", seed, skipped=6, pinned_last=3)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(blocks) == 6 and set(blocks) <= set(range(1, 10)) for blocks in drawn)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_least_similarity_is_lost_of_all_ways(seed, count):
    generator = np.random.default_rng(seed)
    cka = generator.uniform(0, 1, (8, 8))
    cka = (cka + cka.T) / 2
    free = range(1, 7)

    def cost(blocks):
        total, start = 0.0, None
        for block in range(1, 9):
            if block in blocks and start is None:
                start = block - 1
            if block not in blocks and start is not None:
                total, start = total + 1 - cka[start, block - 1], None
        return total

    found = redundant_blocks(cka, count, free)
    assert len(found) == count
    assert set(found) <= set(free)
    assert cost(found) == pytest.approx(min(map(cost, combinations(free, count))))


def test_blocks_that_change_nothing_are_the_redundant_ones(tiny_target, tmp_path):
    cka = np.full((7, 7), 0.5)
    cka[2:5, 2:5] = 1.0
    np.fill_diagonal(cka, 1.0)
    assert redundant_blocks(cka, 2, range(1, 7)) == (3, 4)
    path = write_cka(tmp_path, 6, unknown=True)
    config = RivalConfig(name="geometry_skip")
    with pytest.raises(UserError, match=r"CKA of layers 5 and 6 is not known.*raise geometry.max_tokens"):
        build_rival(config, tiny_target(), RivalName("geometry_skip"), {"cka": path})
    with pytest.raises(UserError, match=r"--cka: is missing; geometry_skip needs the table of CKA"):
        build_rival(config, tiny_target(), RivalName("geometry_skip"), {})


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("clasp", {"interval": 0}, r"rivals.clasp.options.interval: .*greater than or equal to 1, found 0"),
        ("clasp", {"threshold": 1.2}, r"rivals.clasp.options.threshold: .*less than or equal to 1, found 1.2"),
        ("clasp", {"skipped": 7}, r"options.skipped: 7 blocks cannot be skipped; llama-0 has 6, of which 0 are pinned"),
        ("uniform_skip", {"pinned_first": 4}, r"options.share: 3 blocks cannot .* of which 4 are pinned; .* at most 2"),
        ("clasp", {"intervall": 2}, r"unknown option; .*did you mean 'interval'"),
        ("clsp", {}, r"there is no drafter 'clsp'; did you mean 'clasp'"),
        ("random_skip", {}, r"rivals.random_skip.seeds: is missing"),
    ],
)
def test_what_cannot_be_built_is_told(tiny_target, tmp_path, name, options, told):
    with pytest.raises(UserError, match=told):
        build_rival(RivalConfig(name=name, options=options), tiny_target(), RivalName(name), {})


def test_a_seed_of_no_use_is_told(tiny_target):
    with pytest.raises(UserError, match=r"rivals.clasp.seeds: found 1, but this drafter draws nothing"):
        build_rival(RivalConfig(name="clasp"), tiny_target(), RivalName("clasp", None, 1), {})


def study(*rivals):
    model = {"source": {"kind": "folder", "path": "x"}}
    acceptance = {"temperatures": [0, 1], "nodes": [30]}
    return parse_study({"study": {"models": ["m"]}, "models": {"m": model}, "rivals": rivals, "acceptance": acceptance})


def test_a_studys_rivals_have_runs_of_their_own_size():
    found = study({"name": "clasp", "variant": "skip30"}, {"name": "random_skip", "draft_length": 4, "seeds": [3, 5]})
    runs = [(str(run.head), run.temperature, run.nodes.nodes) for run in rival_runs(found, "m")]
    assert runs[:3] == [("clasp-skip30", "0", 9), ("clasp-skip30", "1", 9), ("random_skip.s3", "0", 5)]
    assert len(runs) == 6
    assert [str(run.head) for run in timed_rival_runs(found, "m")] == ["clasp-skip30", "random_skip.s3"]
    assert rival_runs(study({"name": "clasp", "models": ["m"]}), "other") == []


@pytest.mark.parametrize(
    ("rivals", "told"),
    [
        (
            [{"name": "clasp"}, {"name": "clasp"}],
            "rivals: 'clasp' stands there twice; give one of them another variant",
        ),
        ([{"name": "clasp", "models": ["n"]}], "rivals: 'clasp' names model 'n', which is not registered"),
        ([{"name": "clasp", "draft_length": 0}], "rivals.0.draft_length"),
        ([{"name": "clasp", "variant": "A"}], "rivals.0.variant"),
        ([{"name": "clasp", "intervl": 3}], "unknown key 'rivals.0.intervl'"),
    ],
)
def test_entries_that_do_not_fit_are_told(rivals, told):
    with pytest.raises(UserError, match=told):
        study(*rivals)


@pytest.mark.parametrize("text", ["clasp", "clasp-skip30-x", "random_skip.s3", "swift-a.s12"])
def test_names_are_read_back(text):
    assert str(RivalName.parse(text)) == text
    found = parse_drafter(text)
    assert (found.layers, found.seed) == (None, RivalName.parse(text).seed)
    assert found.layer_set == RivalName.parse(text).label
    for other in ("Clasp", "clasp.s", "eagle3.l02.s0", "clasp.s0.s1", ""):
        with pytest.raises(UserError, match="is no drafter's name"):
            RivalName.parse(other)


def test_a_drafters_code_is_its_own_file_and_what_it_builds_on():
    names = {path.stem for path in rival_files("clasp")}
    assert {"clasp", "layer_path", "skipping", "skip_options"} <= names
    assert not {"swift", "eagle3", "prompt_lookup"} & names
    assert {path.stem for path in rival_files("prompt_lookup")} >= {"prompt_lookup", "drafter"}
    with pytest.raises(UserError, match="there is no drafter 'nope'"):
        rival_files("nope")


def test_only_drafters_that_start_anew_are_shared_out_over_jobs(tmp_path, monkeypatch):
    assert {name: rival_jobs(name, 3) for name in known_rivals()} == dict.fromkeys(known_rivals(), 3) | {"swift": 1}
    path = tmp_path / "learns.py"
    monkeypatch.setattr("speclayers.fingerprint.rival_files", lambda name: [path])
    for text, jobs in (("NEEDS = ()\n", 1), ("STARTS_ANEW = False\n", 1), ("STARTS_ANEW = True\n", 3)):
        path.write_text(text)
        assert rival_jobs("learns", 3) == jobs


def test_what_a_drafter_needs_is_read_from_its_file_and_a_mistake_there_is_told(tmp_path, monkeypatch):
    assert set(NEEDED) == set(FILES)
    path = tmp_path / "own.py"
    monkeypatch.setattr("speclayers.fingerprint.rival_files", lambda name: [path])
    for text, needs in (("", ()), ('NEEDS = ("cka",)\n', ("cka",)), ('NEEDS: tuple[str, ...] = ("cka",)\n', ("cka",))):
        path.write_text(text)
        assert rival_needs("clasp") == needs
    for text, told in (
        (
            'NEEDS = ("cka")\n',
            "drafting/rivals/clasp.py: NEEDS is 'cka'; expected a tuple of 'cka', 'skipped', 'weights'",
        ),
        ('NEEDS = ("states",)\n', r"NEEDS is \('states',\); expected"),
        ("NEEDS = all_of_it()\n", "NEEDS is no literal"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=told):
            rival_needs("clasp")


# ---------------------------------------------------------------- scripts


def test_scripts_write_their_tables(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(vocabulary=160)
    rows = decode_questions(target, QUESTIONS[:2], CHECKED, Shards(tmp_path / "greedy", "key"))
    baseline, cka = tmp_path / "T0.parquet", write_cka(tmp_path, 6)
    write_table(baseline, BASELINE, to_frame(rows["baseline"], BASELINE), origin("tiny"))
    given = {"target": target.model.config._name_or_path, "baseline": baseline, "temperature": 0, "cka": cka}
    rival = RivalConfig(name="geometry_skip", draft_length=3)
    tables = {name: tmp_path / f"{name}.parquet" for name in ("cycles", "turns")}
    spec = RivalSpec(decode=SPEC, rival=rival).canonical()
    given |= {"rival": "geometry_skip"}
    run_script("measure_rival.py", monkeypatch, spec=spec, **given, **tables, work=tmp_path / "work")
    assert read_table(tables["turns"], TURNS)["identical_to_greedy"].all()
    cycles = read_table(tables["cycles"], CYCLES)
    assert {tuple(blocks) for blocks in cycles["skipped_mlp"]} == {tuple(cycles["skipped_attention"][0])}
    assert cycles["search_score"].isna().all()
    assert not (tmp_path / "work").exists()
    parts = {name: [tmp_path / f"{name}-{shard}.parquet" for shard in range(2)] for name in tables}
    for shard in range(2):
        own = {name: paths[shard] for name, paths in parts.items()} | {"shard": shard, "shards": 2}
        run_script("measure_rival.py", monkeypatch, spec=spec, **given, **own, work=tmp_path / "work")
    for name, table in (("cycles", CYCLES), ("turns", TURNS)):
        found = read_origin(tables[name])
        merge_shards(parts[name], table, tmp_path / "whole", Origin(found["model"], found["fingerprint"]))
        assert (tmp_path / "whole").read_bytes() == tables[name].read_bytes()
    timed = TimedRivalSpec(timed=SpeedSpec(decode=SPEC, per_category=1), rival=rival).canonical()
    run_script("time_rival.py", monkeypatch, spec=timed, **given, output=tmp_path / "speed.parquet")
    assert (read_table(tmp_path / "speed.parquet", SPEED)["draft_s"] > 0).all()


# ---------------------------------------------------------------- in the study's tables


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A study with a drafter that skips blocks 3 and 4, then 4 and 5, each choice for two cycles of a turn."""
    root = tmp_path_factory.mktemp("rivals")
    made_up = MadeUpModel("tiny-qwen3", n_layers=12)
    arguments = write_study(root, made_up)
    results = write_model(root, made_up)
    run = next(run for run in results.acceptance if run.temperature == 0)
    cycles = read_table(results.acceptance[run] / "cycles.parquet", CYCLES)
    first = cycles["cycle"] // 2 % 2 == 0
    blocks = [[3, 4] if early else [4, 5] for early in first]
    searched = cycles["cycle"] % 2 == 0
    cycles = cycles.assign(skipped_attention=blocks, skipped_mlp=blocks, layer_forwards=20.0)
    cycles = cycles.assign(search_layer_forwards=12.0 * searched, search_rows=18 * searched)
    cycles["search_score"] = pd.Series(np.where(searched, 0.9, np.nan))
    folder = root / "clasp"
    for name in ("turns", "cycles"):
        (folder / f"{name}.parquet").parent.mkdir(exist_ok=True)
        (folder / f"{name}.parquet").write_bytes((results.acceptance[run] / f"{name}.parquet").read_bytes())
    write_table(folder / "cycles.parquet", CYCLES, cycles, origin(made_up.name))
    with_rival = dataclasses.replace(results, acceptance={**results.acceptance, Run("clasp-skip2", 0.0, 9): folder})
    write_summary(with_rival, arguments["summaries"][made_up.name], origin(made_up.name))
    with new_database(root / "study.duckdb", 1) as connection:
        build_study(connection, **arguments)
        return read_study(connection), cycles


def test_a_rival_stands_in_a_table_of_its_own_beside_the_heads(told):
    study, cycles = told
    assert "clasp-skip2" not in set(study.tau["layer_set"]) | set(study.comparisons["layer_set"])
    (row,) = study.drafters[study.drafters["layers"].isna()].to_dict("records")
    assert (row["layer_set"], row["kind"], row["nodes"]) == ("clasp-skip2", "clasp", 9)
    tokens = cycles["emitted"].sum()
    assert row["layer_forwards_per_token"] == pytest.approx(20 * len(cycles) / tokens)
    assert row["search_rows_per_token"] == pytest.approx(cycles["search_rows"].sum() / tokens)
    assert row["search_score"] == pytest.approx(0.9)
    for table in (rivals_page.yields(study, "tiny-qwen3"), rivals_page.costs(study, "tiny-qwen3")):
        names = [line[0] for line in table.rows]
        assert names.count("clasp-skip2") == 1
        assert len(names) == 1 + len(study.tau)
        assert {len(line) for line in table.rows} == {len(table.head)}


def test_skipped_blocks_are_set_against_cka(told):
    study, cycles = told
    (overlap,) = study.skip_overlap.to_dict("records")
    assert overlap["skipped_blocks"] == pytest.approx(2)
    assert overlap["share_by_chance"] == pytest.approx(2 / 12)
    assert 0 <= overlap["redundant_share"] <= 1
    (changes,) = study.skip_changes.to_dict("records")
    assert changes["kept_share"] == pytest.approx(0.5)  # of two blocks one stays each time
    assert changes["searches"] == (cycles["search_rows"] > 0).sum()
    (line,) = rivals_page.skipped_layers(study).rows
    assert line[1] == "clasp-skip2"
    assert line[-1] == "50 %"
