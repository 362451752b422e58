"""Exported folders are what the engines read, and what an engine cannot serve is refused before anything is written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from speclayers.drafting.head import Eagle3Head
from speclayers.errors import UserError
from speclayers.export.card import Measured
from speclayers.export.engine import engine_format
from speclayers.export.folder import export_head
from speclayers.export.layer_ids import ENGINES
from speclayers.export.padding import pad, without_padding
from speclayers.export.preflight import fit, preflight, report, report_text
from tests.exports import LAYERS, LLAMA3, SPEC, drawn_head, exported, served
from tests.models import make_target

EXPECTED = json.loads((Path(__file__).parent / "expected_exports.json").read_text())
"""What docs/serving.md says that each engine reads, written out by hand for the tiny target's head; a dot nests."""

SERVING = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
HEADINGS = {"eagle": "EAGLE", "sglang": "SGLang and SpecForge", "vllm": "vLLM", "speculators": "speculators"}


def section(title: str) -> str:
    """Return a section of docs/serving.md."""
    return SERVING.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def expected_config(engine: str, layers) -> dict:
    """Return the whole config.json that an engine shall get."""
    found: dict = {}
    fields = EXPECTED[engine]["fields"] | EXPECTED[engine]["by_layers"][" ".join(map(str, layers))]
    for name, value in fields.items():
        *outer, last = name.split(".")
        inside = found
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return found


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("scaled"), rope_parameters=LLAMA3)


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_configs_are_those_that_the_engines_read(target, tmp_path, engine, k):
    head = drawn_head(target, LAYERS[k])
    if (engine, k) == ("eagle", 4):
        with pytest.raises(UserError, match="EAGLE cannot serve 4 layers"):
            exported(engine, head, target, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        return
    export_head(engine, head.config, head.state_dict(), served(target, name="owner/model"), tmp_path / "out", SPEC)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == expected_config(engine, LAYERS[k])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_field_and_the_version_that_it_was_read_from_stand_in_the_documentation(engine):
    told = section(HEADINGS[engine]) + section("What each engine serves")
    names = [
        *EXPECTED[engine]["fields"],
        *(name for fields in EXPECTED[engine]["by_layers"].values() for name in fields),
    ]
    assert [name for name in names if f"`{name}`" not in told and f"`{name.split('.')[-1]}`" not in told] == []
    read = engine_format(engine).read
    assert read == EXPECTED[engine]["read"]
    words = [word for word in read.replace(",", "").split() if any(c.isdigit() for c in word)]
    assert all(word.strip("()") in section(HEADINGS[engine]) for word in words)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_scaled_rotary_embeddings_are_named_as_the_engine_reads_them(scaled, tmp_path, engine):
    head = drawn_head(scaled, LAYERS[3])
    if engine == "eagle":
        with pytest.raises(UserError, match="rotary embedding 'llama3'"):
            exported(engine, head, scaled, tmp_path / "out")
        return
    exported(engine, head, scaled, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if engine == "speculators":
        assert config["transformer_layer_config"]["rope_parameters"] == LLAMA3
        config = config["transformer_layer_config"]
    else:
        assert config["rope_scaling"] == {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    assert config["rope_theta"] == LLAMA3["rope_theta"]


@pytest.mark.parametrize("engine", ["eagle", "sglang", "vllm", "speculators"])
def test_tensors_have_the_engines_names_and_precision(target, tmp_path, engine):
    head = drawn_head(target, LAYERS[3])
    spec = SPEC.model_copy(update={"dtype": "bfloat16"})
    export_head(engine, head.config, head.state_dict(), served(target), tmp_path / "out", spec)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    block = {"speculators": "layers.0."}.get(engine, "midlayer.")
    own = {name.replace("midlayer.", block) for name in head.state_dict()}
    assert set(tensors) == own | ({"embed_tokens.weight"} if engine == "speculators" else set())
    assert tensors.pop("d2t").dtype == torch.int64
    assert tensors.pop("t2d").dtype == torch.bool
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_a_head_of_the_whole_vocabulary_has_no_mapping(target, tmp_path):
    head = drawn_head(target, LAYERS[3], draft_ids=range(256), vocabulary=256)
    for engine in ENGINES:
        exported(engine, head, target, tmp_path / engine)
        assert not {"d2t", "t2d"} & set(load_file(tmp_path / engine / "model.safetensors"))


@pytest.mark.parametrize("fc_norm", [False, True])
def test_padding_changes_no_output_and_is_undone(target, fc_norm):
    head = drawn_head(target, (3,), fc_norm=fc_norm)
    config, tensors = pad(head.config, head.state_dict(), (2, 3, 5))
    padded = Eagle3Head(config, head.draft_ids)
    padded.load_state_dict(tensors)
    states = torch.randn(4, target.width, generator=torch.Generator().manual_seed(0))
    others = [100 * torch.randn(4, target.width, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    read = torch.cat((others[0], states, others[1]), dim=-1)
    torch.testing.assert_close(padded.fuse(read), head.fuse(states), rtol=1e-6, atol=1e-6)
    lean, own = without_padding(config, tensors)
    assert lean == head.config
    torch.testing.assert_close(own, dict(head.state_dict()), rtol=0, atol=0)


def test_a_norm_over_all_layers_cannot_be_padded(target):
    head = drawn_head(target, (3,), norm_before_fc=True)
    assert fit("vllm", head.config, served(target)).verdict == "loads"
    found = fit("sglang", head.config, served(target))
    assert found.verdict == "refused"
    assert "norm_before_fc: padding to three layers would change the norm" in found.reasons[0]


@pytest.mark.parametrize(
    ("settings", "engine", "reason"),
    [
        ({"norm_output": True}, "eagle", "norm_output: it has no such norm"),
        ({"fc_norm": True}, "eagle", "fc_norm: it has no such norm"),
        ({"residual": True}, "sglang", "norm_before_residual: it has no such norm"),
    ],
)
def test_a_norm_that_the_engine_does_not_have_is_a_reason(target, settings, engine, reason):
    found = fit(engine, drawn_head(target, LAYERS[3], **settings).config, served(target))
    assert (found.verdict, found.layers, found.reasons) == ("refused", (), (reason,))


def test_targets_activations_and_widths_that_an_engine_does_not_serve_are_reasons(target):
    head = drawn_head(target, LAYERS[3]).config
    for engine in ENGINES:
        assert fit(engine, head, served(target, architecture="GPT2LMHeadModel")).reasons == (
            "it captures no states of GPT2LMHeadModel",
        )
    gelu = head.model_copy(update={"activation": "gelu"})
    verdicts = {found.engine: found.verdict for found in preflight(ENGINES, gelu, served(target))}
    assert verdicts == {"eagle": "loads", "vllm": "refused", "speculators": "refused", "sglang": "refused"}
    wide = head.model_copy(update={"head_dim": 16})
    assert "4 heads of width 16 do not make the width 32" in fit("eagle", wide, served(target)).reasons[0]
    assert fit("vllm", wide, served(target)).verdict == "loads"


def test_notes_tell_what_a_folder_alone_does_not_settle(target):
    settled = {"has_index": True, "tokenizer_class": "PreTrainedTokenizerFast", "legacy_rope": True}
    twelve = served(target, layers=12, **settled)
    own = drawn_head(target, LAYERS[3]).config.model_copy(update={"layers": (2, 6, 9)})
    assert fit("eagle", own, twelve).notes == ()
    moved = own.model_copy(update={"layers": (2, 6, 10)})
    (note,) = fit("eagle", moved, twelve).notes
    assert "captures layers [2, 6, 9] whatever a config says: write [2, 6, 10]" in note
    one = own.model_copy(update={"layers": (6,)})
    assert fit("eagle", one, twelve)[1:3] == ("loads padded", (2, 6, 9))
    assert fit("eagle", one, twelve).notes == ()
    bare = fit("eagle", own, served(target, layers=12)).notes
    assert [
        next(word for word in ("index.json", "TokenizersBackend", "rope_theta") if word in note) for note in bare
    ] == [
        "index.json",
        "TokenizersBackend",
        "rope_theta",
    ]


def test_the_card_tells_what_was_trained_measured_and_how_to_serve(target, tmp_path):
    head = drawn_head(target, (3,))
    measured = [Measured(0.0, 30, 1.7412, 1.38, 2.19, 0.95, 12, 1)]
    facts = served(target, name="owner/model", licence="apache-2.0")
    export_head("sglang", head.config, head.state_dict(), facts, tmp_path / "out", SPEC, measured)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nbase_model: owner/model\n")
    assert "license: apache-2.0" in card
    assert f"--speculative-draft-model-path {tmp_path / 'out'}" in card
    assert "It reads layers 3 of 6." in card
    assert "): 1, 2, 3" not in card
    assert "also captures 1, 2; the head multiplies these with zero" in card
    assert "As ids of SGLang, SpecForge (eagle_config.eagle_aux_hidden_state_layer_ids): 0, 1, 2;" in card
    assert "| 0 | 30 | 1.741 | [1.380, 2.190] | 12 | 1 |" in card
    assert "95 % intervals" in card
    assert head.config.target_hash in card
    exported("vllm", head, target, tmp_path / "other")
    assert "Not measured when this folder was written." in (tmp_path / "other" / "README.md").read_text()


def test_the_preflight_reports_every_engine_in_words(target):
    head = drawn_head(target, LAYERS[4])
    told = report("m", "head", "why", preflight(ENGINES, head.config, served(target)))
    text = report_text(json.loads(json.dumps(told)))
    assert text.splitlines()[0] == "m: head; why"
    for engine in ENGINES:
        assert f"\n{engine}: {'refused' if engine == 'eagle' else 'loads, captures layers [1, 2, 4, 5]'} (" in text
        assert f"from {engine_format(engine).since} on)" in text
    assert "  because EAGLE cannot serve 4 layers" in text


def test_an_unknown_engine_is_refused(target, tmp_path):
    with pytest.raises(UserError, match="engine 'tgi' is unknown; known are eagle"):
        exported("tgi", drawn_head(target, LAYERS[3]), target, tmp_path / "out")
