"""The config is strict, described, and its errors name the key."""

import copy
import json
import os
import tempfile
from pathlib import Path

import pytest
import yaml

from speclayers import specs
from speclayers.config import Section, Study
from speclayers.errors import UserError
from speclayers.layout import Layout
from speclayers.names import HeadName, PretrainedName, ShapeName, layers_name, layers_of, temperature_name
from speclayers.planning.fanout import acceptance_runs
from speclayers.planning.options import refuse_unfit_options
from speclayers.reading import parse_study, refuse_missing_files, refuse_repeated_keys, refuse_unwritable

ROOT = Path(__file__).parents[2]
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())
FOREIGN = {"model": "tiny-qwen3", "path": "x"}
"""The least that describes a head trained elsewhere."""


def merged(overlay):
    """Overlay a config as Snakemake does: mappings merge, everything else is replaced."""

    def merge(base, over):
        for key, value in over.items():
            both = isinstance(value, dict) and isinstance(base.get(key), dict)
            base[key] = merge(base[key], value) if both else value
        return base

    return merge(copy.deepcopy(DEFAULT), overlay)


def message(raw):
    with pytest.raises(UserError) as error:
        parse_study(raw)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_file_is_valid_over_the_default(path):
    study = parse_study(merged(yaml.safe_load(path.read_text())))
    assert study.study.name == path.stem


def test_the_default_study_is_the_quickstart_on_both_embedded_models():
    study = parse_study(DEFAULT)
    assert study.study.name == "quickstart"
    assert study.study.models == ["smollm2-135m", "tiny-qwen3"]
    assert study.acceptance.temperatures == [0, 1]
    assert study.acceptance.nodes == [30, 60]


def test_the_home_folder_may_be_named_by_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    prompts = {"source": "file", "path": "~/prompts.jsonl"}
    study = parse_study(merged({"corpus": {"training": {"prompts": prompts}}}))
    assert study.corpus.training.prompts.path == "/home/someone/prompts.jsonl"


def test_the_paper_study_pins_its_sets_in_both_index_bases():
    paper = parse_study(merged(yaml.safe_load((ROOT / "studies/paper.yaml").read_text())))
    (pinned,) = [s for s in paper.selection.selectors if s.name == "pinned"]
    assert pinned.options["sets"] == [[28], [29], [5, 23, 35], [6, 24, 36]]
    assert pinned.models == ["qwen3-4b"]


@pytest.mark.parametrize(
    ("overlay", "key", "nearest"),
    [
        ({"draf": {}}, "draf", "draft"),
        ({"draft": {"stesp": 3}}, "draft.stesp", "steps"),
        ({"acceptance": {"temperature": [0]}}, "acceptance.temperature", "temperatures"),
        ({"corpus": {"training": {"cuont": 3}}}, "corpus.training.cuont", "count"),
        ({"models": {"smollm2-135m": {"source": {"packag": "x"}}}}, "packag", "package"),
        ({"models": {"smollm2-135m": {"devise": "cpu"}}}, "models.smollm2-135m.devise", "device"),
        ({"acceptance": {"questions": {"source": "file", "paht": "x"}}}, "paht", "path"),
        ({"selection": {"selectors": [{"name": "eagle3", "sead": 1}]}}, "sead", "seeds"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(overlay, key, nearest):
    text = message(merged(overlay))
    assert key in text
    assert f"did you mean '{nearest}'?" in text


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "A", "", "x" * 65, "a b", "a;rm", "$(id)"])
def test_a_model_name_that_is_no_plain_folder_name_is_refused(name):
    assert "models" in message(merged({"models": {name: {"source": {"kind": "folder", "path": "m"}}}}))


@pytest.mark.parametrize(
    ("overlay", "told"),
    [
        ({"study": {"models": ["smollm2-135n"]}}, "did you mean 'smollm2-135m'?"),
        ({"study": {"models": ["tiny-qwen3", "tiny-qwen3"]}}, "named twice: tiny-qwen3"),
        ({"study": {"models": []}}, "study.models"),
        ({"study": {"name": "models"}}, "study.name"),
        ({"study": {"name": "../x"}}, "study.name"),
        ({"acceptance": {"temperatures": [-1]}}, "acceptance.temperatures.0"),
        ({"acceptance": {"nodes": [1]}}, "acceptance.nodes.0"),
        ({"acceptance": {"nodes": [6], "depth": 6}}, "acceptance.depth"),
        ({"acceptance": {"shards": 0}}, "acceptance.shards"),
        ({"acceptance": {"per_subcategory": 2}}, "per_subcategory: found 2 beside per_category 2"),
        ({"speed": {"nodes": [31]}}, "speed.nodes: 31"),
        ({"acceptance": {"chains": [0]}}, "acceptance.chains.0"),
        ({"acceptance": {"chains": [5, 29]}}, "acceptance.chains: 29 drafted tokens are 30 nodes with the root"),
        ({"speed": {"chains": [5]}}, "speed.chains: 5 is not in acceptance.chains"),
        ({"acceptance": {"sampling": {"top_p": 0}}}, "acceptance.sampling.top_p"),
        ({"acceptance": {"sampling": {"top_p": 1.1}}}, "acceptance.sampling.top_p"),
        ({"acceptance": {"sampling": {"top_k": 0}}}, "acceptance.sampling.top_k"),
        ({"speed": {"seeds": [4]}}, "speed.seeds: 4"),
        ({"draft": {"norm_before_fc": True, "fc_norm": True}}, "norm_before_fc and fc_norm are both true"),
        ({"acceptance": {"replicas": {"temperatures": [0.5], "nodes": [30]}}}, "acceptance.replicas.temperatures: 0.5"),
        ({"geometry": {"keep_share": 0}}, "geometry.keep_share"),
        ({"draft": {"steps": "many"}}, "draft.steps"),
        ({"statistics": {"reference": "eagle9"}}, "statistics.reference"),
        ({"selection": {"selectors": [{"name": "eagle3", "models": ["nope"]}]}}, "'nope'"),
        ({"models": {"tiny-qwen3": {"source": {"teacher": "nope"}}}}, "models.tiny-qwen3.source.teacher"),
        ({"models": {"tiny-qwen3": {"source": {"teacher": "tiny-qwen3"}}}}, "itself trained"),
        ({"models": {"tiny-qwen3": {"source": {"heads": 5}}}}, "width 128"),
        ({"models": {"m": {"source": {"kind": "ftp"}}}}, "models.m.source"),
        ({"models": {"tables": {"source": {"kind": "folder", "path": "m"}}}}, "models.tables"),
        ({"models": {"study.duckdb": {"source": {"kind": "folder", "path": "m"}}}}, "models.study.duckdb"),
        ({"models": {"summary.md": {"source": {"kind": "folder", "path": "m"}}}}, "models.summary.md"),
        (
            {
                "draft": {"processes": 2},
                "rivals": [{"name": "medusa", "seeds": [0], "training": {"sequences_per_step": 1}}],
            },
            "rivals.medusa.training.sequences_per_step: 1 cannot be shared by the 2 processes of draft.processes",
        ),
        ({"models": {"m.teacher.parquet": {"source": {"kind": "folder", "path": "m"}}}}, "models.m.teacher.parquet"),
        ({"acceptance": {"nodes": [30, 30]}}, "acceptance.nodes: 30 stands there twice"),
        ({"acceptance": {"temperatures": [0, 0.0]}}, "acceptance.temperatures: 0.0 stands there twice"),
        ({"acceptance": {"temperatures": [1e-5]}}, "more than four decimals"),
        ({"acceptance": {"temperatures": [1.0000001]}}, "more than four decimals"),
        ({"draft": {"learning_rate": float("inf")}}, "draft.learning_rate: input should be a finite number"),
        ({"draft": {"seeds": [1, 1]}}, "draft.seeds: 1 stands there twice"),
        ({"draft": {"seeds": [-1]}}, "draft.seeds.0"),
        ({"statistics": {"reference": "elsi_c"}}, "statistics.reference: 'elsi_c' is not trained"),
        (
            {"selection": {"selectors": [{"name": "eagle3"}, {"name": "elsi"}, {"name": "eagle3"}]}},
            "selection.selectors: 'eagle3' stands there twice with the same settings",
        ),
        ({"selection": {"selectors": [{"name": "eagle3", "models": []}]}}, "selection.selectors.0.models"),
        ({"geometry": {"seed": -1}}, "geometry.seed"),
        ({"screen": {"keep": 1.0}}, "screen.keep"),
        ({"screen": {"keep": 0}}, "screen.keep"),
        ({"screen": {"budget": 0}}, "screen.budget"),
        ({"screen": {"judged_prompts": 1}}, "screen.judged_prompts"),
        ({"screen": {"layers": [2, 2]}}, "screen.layers: 2 stands there twice"),
        ({"screen": {"layers": [-1]}}, "screen.layers.0"),
        ({"screen": {"layers": [13]}}, "screen.layers: 13 does not exist; tiny-qwen3 has layers 0 to 12"),
        ({"screen": {"kep": 0.5}}, "did you mean 'keep'?"),
        (
            {"selection": {"selectors": [{"name": "eagle3"}, {"name": "elsi", "k": [1, 13]}]}},
            "selection.selectors.elsi.k: 13 is more than the 12 layers of tiny-qwen3",
        ),
        (
            {"models": {"smollm2-135m": {"size": {"layers": 2}}}},
            "selection.selectors.eagle3.k: 3 is more than the 2 layers of smollm2-135m",
        ),
        ({"transfer": {"to": []}}, "transfer.to"),
        ({"transfer": {"to": ["elsie"]}}, "transfer.to: 'elsie' is not among selection.selectors that are trained"),
        ({"transfer": {"to": ["elsi_c"]}}, "transfer.to: 'elsi_c' is not among selection.selectors that are trained"),
        (
            {"transfer": {"to": ["elsi"]}},
            "transfer.to: 'elsi' chooses [1, 3] layers, 'eagle3' [3]; expected one and the",
        ),
        ({"transfer": {"to": ["min_entropy"], "percents": [100]}}, "transfer.percents.0"),
        ({"transfer": {"to": ["eagle3"]}}, "transfer.to: 'eagle3' is transfer.start itself"),
        (
            {"selection": {"selectors": [{"name": "eagle3"}, {"name": "screen"}]}},
            "'screen' is what the screening's winner",
        ),
        (
            {
                "selection": {"selectors": [{"name": "eagle3"}, {"name": "uniform", "models": ["tiny-qwen3"]}]},
                "transfer": {"to": ["uniform"]},
            },
            "transfer.to: 'uniform' does not choose for 'smollm2-135m'",
        ),
        ({"transfer": {"to": ["min_entropy"], "form": "x"}}, "unknown key 'transfer.form'"),
        ({"pretrained": {"own": {"model": "tiny-qwen2", "path": "x"}}}, "did you mean 'tiny-qwen3'?"),
        ({"pretrained": {"own": {"model": "tiny-qwen3"}}}, "expected either path or repo"),
        ({"pretrained": {"own": FOREIGN | {"percents": [101]}}}, "pretrained.own.percents.0"),
        ({"pretrained": {"own": FOREIGN | {"percents": []}}}, "pretrained.own.percents"),
        ({"pretrained": {"own": FOREIGN | {"layers": [2, 2]}}}, "2 stands there twice"),
        ({"pretrained": {"own.p10.s0": FOREIGN}}, "pretrained.own.p10.s0: ends as names of trained heads do"),
        ({"pretrained": {"l02.s0": FOREIGN}}, "pretrained.l02.s0: ends as names of trained heads do"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(overlay, told):
    assert told in message(merged(overlay))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models:\n  a: {dtype: float32}\n  b: {}\n  a: {}\n", "line 4: key 'a' stands there twice"),
        ("study: [", "is no valid YAML"),
    ],
)
def test_what_yaml_would_silently_drop_is_refused(tmp_path, text, told):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"study\.yaml: ") as error:
        refuse_repeated_keys(path)
    assert told in str(error.value)
    for shipped in (ROOT / "config.yaml", *(ROOT / "studies").glob("*.yaml")):
        refuse_repeated_keys(shipped)


IN_A_FOLDER = {"source": {"kind": "folder", "path": "gone"}}


@pytest.mark.parametrize(
    ("overlay", "told"),
    [
        (
            {"acceptance": {"questions": {"source": "file", "path": "gone"}}},
            "acceptance.questions.path: gone is no file",
        ),
        (
            {"acceptance": {"questions": {"source": "spec_bench", "path": "gone"}}},
            "acceptance.questions.path: gone is no file",
        ),
        (
            {"corpus": {"training": {"prompts": {"source": "file", "path": "/"}}}},
            "corpus.training.prompts.path: / is no file",
        ),
        (
            {"models": {"m": IN_A_FOLDER}, "study": {"models": ["m"]}},
            "models.m.source.path: gone holds no config.json",
        ),
        (
            {"models": {"m": IN_A_FOLDER, "tiny-qwen3": {"source": {"teacher": "m"}}}},
            "models.m.source.path: gone holds no config.json",
        ),
    ],
)
def test_files_that_are_not_there_are_named_by_their_key(overlay, told, tmp_path):
    layout = Layout("quickstart", str(tmp_path))
    refuse_missing_files(parse_study(merged({})), layout)
    with pytest.raises(UserError, match=told):
        refuse_missing_files(parse_study(merged(overlay)), layout)


def test_a_models_folder_may_go_once_the_model_is_fetched(tmp_path):
    layout = Layout("quickstart", str(tmp_path))
    manifest = Path(layout.manifest("m"))
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    refuse_missing_files(parse_study(merged({"models": {"m": IN_A_FOLDER}, "study": {"models": ["m"]}})), layout)


@pytest.mark.parametrize(
    ("overlay", "told"),
    [
        (
            {"selection": {"selectors": [{"name": "eagle3"}, {"name": "elsi", "options": {"layer": 3}}]}},
            "selection.selectors.elsi.options.layer: unknown option",
        ),
        (
            {"selection": {"selectors": [{"name": "eagle3", "seeds": [0, 1]}]}},
            r"selection.selectors.eagle3.seeds: found \[0, 1\]",
        ),
        (
            {"selection": {"selectors": [{"name": "eagle3", "k": [2]}]}},
            "selection.selectors.eagle3.k: found 2, but this selector is defined for k = 3",
        ),
        (
            {"rivals": [{"name": "clasp", "options": {"intervall": 2}}]},
            "rivals.clasp.options.intervall: unknown option",
        ),
        ({"rivals": [{"name": "random_skip"}]}, "rivals.random_skip.seeds: is missing"),
        (
            {"rivals": [{"name": "medusa", "draft_length": 1, "tree_nodes": 20, "seeds": [0]}]},
            "rivals.medusa.tree_nodes: is 20, but it drafts 11 nodes at most; expected 11",
        ),
        (
            {"rivals": [{"name": "clasp", "draft_length": 4, "tree_nodes": 9}]},
            "rivals.clasp.tree_nodes: is 9, but it drafts 5 nodes at most; expected 5",
        ),
        (
            {"rivals": [{"name": "lookahead", "variant": "two", "draft_length": 1, "seeds": [0]}]},
            "rivals.lookahead-two.draft_length: is 1, so that n-grams have 2 tokens",
        ),
    ],
)
def test_what_only_a_selectors_or_drafters_file_knows_is_checked_before_anything_runs(overlay, told):
    refuse_unfit_options(parse_study(merged({"rivals": [{"name": "clasp"}]})))
    with pytest.raises(UserError, match=told):
        refuse_unfit_options(parse_study(merged(overlay)))


def test_shape_names_survive_a_round_trip_and_tell_chains_from_trees():
    for name, text in ((ShapeName(30), "30"), (ShapeName(6, chain=True), "6c")):
        assert str(name) == text
        assert ShapeName.parse(text) == name
    for wrong in ("1", "1c", "0", "-3", "c", "6d", ""):
        with pytest.raises(UserError, match=f"nodes: found '{wrong}', expected 2 or more"):
            ShapeName.parse(wrong)


def test_chains_and_limits_reach_the_stages_that_use_them():
    model, base = "smollm2-135m", parse_study(DEFAULT)
    with_chains = parse_study(merged({"acceptance": {"chains": [5]}}))
    for slice_of in (specs.decode, specs.baseline, specs.speed, specs.train):
        assert slice_of(with_chains, model) == slice_of(base, model), "adding a chain runs nothing again"
    assert specs.baseline(parse_study(merged({"acceptance": {"chains": [9]}})), model).decode.depth == 9
    limited = parse_study(merged({"acceptance": {"sampling": {"top_p": 0.9}}}))
    assert specs.decode(limited, model).sampling.top_p == specs.baseline(limited, model).decode.sampling.top_p == 0.9
    assert specs.speed(limited, model).decode.sampling.top_p == 0.9
    head = HeadName(layers=(2,), seed=0)
    runs = acceptance_runs(with_chains, [head])
    assert [str(run.nodes) for run in runs if run.temperature == "0"] == ["30", "60", "6c"]
    assert {Layout("x").acceptance(model, *run, "turns") for run in runs} > {
        f"results/x/{model}/acceptance/{head}/T0-n6c/turns.parquet"
    }


def test_layer_set_names_survive_a_round_trip():
    assert layers_of(layers_name([27, 2, 115])) == {2, 27, 115}
    with pytest.raises(UserError, match="no layer set"):
        layers_of("l2-l3")


def sections(cls=Section):
    for sub in cls.__subclasses__():
        yield sub
        yield from sections(sub)


def test_every_value_of_the_config_is_described():
    in_config = [s for s in sections() if s.__module__.startswith("speclayers.config.")]
    assert Study in in_config
    bare = [
        f"{s.__name__}.{name}" for s in in_config for name, field in s.model_fields.items() if not field.description
    ]
    assert bare == []


def test_equal_settings_give_equal_canonical_text():
    shuffled = dict(reversed(list(DEFAULT.items())))
    assert parse_study(DEFAULT).canonical() == parse_study(shuffled).canonical()
    assert json.loads(parse_study(DEFAULT).canonical())["study"]["name"] == "quickstart"


def test_head_names_survive_a_round_trip():
    for layers, text in [
        ((2, 15, 27), "eagle3.l02-l15-l27.s0"),
        ((28,), "eagle3.l28.s0"),
        ((5, 120), "eagle3.l005-l120.s0"),
    ]:
        name = HeadName(layers=layers, seed=0)
        assert str(name) == text
        assert HeadName.parse(text) == name


def test_a_moved_heads_name_says_where_it_comes_from():
    text = "eagle3.l02-l18-l29.s1.from-l02-l15-l27.p10"
    name = HeadName.parse(text)
    assert name == HeadName(layers=(2, 18, 29), seed=1, start=(2, 15, 27), percent=10)
    assert str(name) == text
    assert str(name.origin()) == "eagle3.l02-l15-l27.s1"
    untouched = name._replace(percent=0)
    assert HeadName.parse(str(untouched)) == untouched
    with pytest.raises(UserError, match="moves a head of 1 layers to 3; expected as many"):
        HeadName.parse("eagle3.l02-l18-l29.s1.from-l02.p0")


@pytest.mark.parametrize(
    ("text", "name", "label"),
    [
        ("pretrained.my-head.v2", PretrainedName("my-head.v2"), "pretrained.my-head.v2"),
        ("pretrained.own.p10.s1", PretrainedName("own", 10, 1), "pretrained.own.p10"),
        ("pretrained.own.p100.s0", PretrainedName("own", 100, 0), "pretrained.own.p100"),
    ],
)
def test_the_name_of_a_head_trained_elsewhere_says_how_it_was_trained_on(text, name, label):
    assert PretrainedName.parse(text) == name
    assert (str(name), name.label) == (text, label)
    assert PretrainedName.parse(label) == name._replace(seed=None)
    with pytest.raises(UserError, match="is no name of a head trained elsewhere"):
        PretrainedName.parse("eagle3.l02.s0")


@pytest.mark.parametrize(
    "text",
    [
        "eagle3",
        "eagle3.l02.s0.from-l03",
        "eagle3.l02.s0.from-l03.p100",
        "eagle3.l2.s0",
        "eagle3.l02.sx",
        "../x.l02.s0",
        "eagle3.l02-.s0",
    ],
)
def test_what_is_no_head_name_is_refused(text):
    with pytest.raises(UserError, match="no head name"):
        HeadName.parse(text)


def test_layers_are_printed_sorted():
    assert layers_name([27, 2, 15]) == "l02-l15-l27"


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.0, "0"), (1.0, "1"), (0.7, "0.7"), (10.0, "10")])
def test_a_temperature_has_one_name_in_paths(value, text):
    assert temperature_name(value) == text


def test_two_studies_share_models_and_nothing_else():
    one, other = Layout("one"), Layout("other")
    assert one.target("m") == other.target("m")
    for path in ("corpus", "geometry"):
        assert getattr(one, path)("m", "x") != getattr(other, path)("m", "x")
    assert one.database != other.database
    assert one.model_work("m", "x") == other.model_work("m", "x")  # of a job whose model both share
    assert one.work("m", "x") != other.work("m", "x")


def test_a_screening_reaches_no_other_stage_and_no_step_of_a_head_reaches_it():
    model = "smollm2-135m"
    plain, screened = parse_study(DEFAULT), parse_study(merged({"screen": {}}))
    for slice_of in (specs.selection, specs.features, specs.train, specs.decode, specs.baseline, specs.speed):
        assert slice_of(plain, model) == slice_of(screened, model)
    longer = parse_study(merged({"screen": {}, "draft": {"steps": 9, "seeds": [0, 1], "tokens": 50}}))
    assert specs.screen(longer, model) == specs.screen(screened, model)
    wide = {"draft": {"sequences_per_step": 9, "warmup_steps": 9}}
    own = {"screen": {"sequences_per_step": 2, "warmup_steps": 30}}
    assert specs.screen(parse_study(merged(wide | {"screen": {}})), model).draft.warmup_steps == 9
    assert specs.screen(parse_study(merged(wide | own)), model).draft == specs.screen(screened, model).draft
    other = parse_study(merged({"screen": {"budget": 9}}))
    assert specs.screen(other, model) != specs.screen(screened, model)
    with pytest.raises(UserError, match="nothing is screened"):
        specs.screen(plain, model)


def test_training_on_reaches_neither_the_import_nor_other_heads():
    plain, trained_on = (
        parse_study(merged({"pretrained": {"own": FOREIGN | more}})) for more in ({}, {"percents": [0, 10]})
    )
    assert specs.pretrained(plain, "own") == specs.pretrained(trained_on, "own")
    model = "tiny-qwen3"
    assert specs.train(plain, model) == specs.train(trained_on, model)
    shaped = parse_study(merged({"draft": {"vocabulary": 99, "fc_norm": True, "initialise": "random"}}))
    assert specs.continued(shaped, model) == specs.continued(plain, model)  # the head brings these along
    assert specs.continued(parse_study(merged({"draft": {"loss": "kl"}})), model) != specs.continued(plain, model)
    assert specs.continued(plain, model).draft.features == "online"


def test_settings_of_the_sweep_and_the_dump_leave_the_geometry_alone():
    base = parse_study(DEFAULT)
    other = parse_study(merged({"geometry": {"sweep_shares": [0.4], "lens_tokens": 9, "entropy_threshold": 2.0}}))
    model = "smollm2-135m"
    assert specs.geometry(base, model) == specs.geometry(other, model)
    assert specs.selection(base, model) == specs.selection(other, model)
    assert specs.sweep(base, model) != specs.sweep(other, model)
    assert specs.dump(base, model) != specs.dump(other, model)
    absolute = {"filter_scope": "absolute", "entropy_threshold": 2.0}
    assert specs.geometry(parse_study(merged({"geometry": absolute})), model).entropy_threshold == 2.0
    shared = parse_study(merged({"geometry": {"shards": 4, "device": "cuda", "information_flow": True}}))
    assert specs.selection(shared, model) == specs.selection(base, model)
    assert specs.sweep(shared, model) == specs.sweep(base, model)
    assert specs.gram(shared, model) == specs.gram(base, model).model_copy(update={"shards": 4, "device": "cuda"})
    assert specs.geometry(shared, model) == specs.geometry(base, model).model_copy(update={"information_flow": True})
    kept = parse_study(merged({"geometry": {"keep_share": 0.5, "turning_score": "novelty"}}))
    assert specs.sweep(kept, model) == specs.sweep(base, model)


@pytest.fixture
def nobody():
    """Rights of no one in particular, also where the tests run as root, who may write everywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


@pytest.fixture
def readable():
    """A folder that everyone may read and search; pytest's own lie below one that only its owner may."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "open").mkdir()
        Path(folder, "open").chmod(0o777)
        Path(folder, "closed").mkdir()
        Path(folder, "closed").chmod(0o555)
        yield Path(folder)


def test_a_folder_that_may_not_be_written_is_told(readable, nobody):
    refuse_unwritable(readable / "open/results/smoke")
    with pytest.raises(UserError, match=r"closed/smoke/: you may not write into \S+/closed; expected a folder of your"):
        refuse_unwritable(readable / "closed/smoke")
