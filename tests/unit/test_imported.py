"""A head that is exported and read back is the same head, and heads that do not fit are refused by name."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from speclayers.config import PretrainedHead
from speclayers.drafting.head import load_head
from speclayers.errors import UserError
from speclayers.export.imported import head_folder, import_head
from speclayers.export.layer_ids import ENGINES
from speclayers.export.preflight import FLAGS, REFUSED, fit
from tests.exports import LAYERS, LLAMA3, drawn_head, edit_config, edit_tensors, exported, folder_of, served
from tests.models import make_target

SCRIPT = Path(__file__).parents[2] / "scripts" / "import_draft.py"
ORIGIN = {"kind", "seed", "fingerprint", "coverage", "initialised_from_target"}
"""What no engine's folder tells: how the head came to be."""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("scaled"), rope_parameters=LLAMA3)


def imported(folder, target, layers=None):
    return import_head(folder, layers, "pretrained.x", folder_of(target), target.manifest)


@pytest.mark.parametrize("k", sorted(LAYERS))
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_export_and_import_are_the_identity(target, scaled, tmp_path, engine, k):
    tried = 0
    settings = [{}, *({flag: True} for flag in FLAGS[1:]), {"residual": True}]
    settings += [{"fc_norm": True, "norm_output": True}, {"draft_ids": range(256), "vocabulary": 256}]
    for number, (model, flags) in enumerate([(scaled, {}), *((target, flags) for flags in settings)]):
        head = drawn_head(model, LAYERS[k], seed=number, **flags)
        if fit(engine, head.config, served(model)).verdict == REFUSED:
            continue
        exported(engine, head, model, tmp_path / f"{number}")
        found = imported(tmp_path / f"{number}", model)
        assert found.config.model_dump(exclude=ORIGIN) == head.config.model_dump(exclude=ORIGIN)
        torch.testing.assert_close(dict(found.state_dict()), dict(head.state_dict()), rtol=0, atol=0)
        tried += 1
    assert tried == {"eagle": 2 * (k <= 3), "sglang": 6 + (k > 1), "vllm": 8, "speculators": 8}[engine]


@pytest.fixture
def folder(target, tmp_path):
    """A head as SGLang serves it."""
    exported("sglang", drawn_head(target, LAYERS[3]), target, tmp_path / "head")
    return tmp_path / "head"


def test_layers_come_from_the_users_config_where_the_heads_own_names_none(target, folder):
    edit_config(folder, eagle_aux_hidden_state_layer_ids=None)
    assert imported(folder, target).config.layers == (1, 3, 5)  # nested ids, one less than the layers
    edit_config(folder, eagle_config=None)
    with pytest.raises(UserError, match=r"pretrained\.x\.layers: is not given, and .* names no layers"):
        imported(folder, target)
    assert imported(folder, target, layers=[2, 4, 6]).config.layers == (2, 4, 6)


def test_ids_in_another_order_are_sorted_as_engines_do(target, folder):
    edit_config(folder, eagle_aux_hidden_state_layer_ids=[5, 1, 3])
    assert imported(folder, target).config.layers == (1, 3, 5)


def without(name):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def changed(name, change):
    return lambda tensors: tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("lm_head.weight"), "tensor lm_head.weight is missing"),
        (without("fc.weight"), "tensor fc.weight is missing"),
        (without("d2t"), "tensor d2t is missing, though the head drafts 128 of 256"),
        (changed("norm.weight", lambda t: t[:-1]), r"tensor norm.weight has shape \(31,\), expected \(32,\)"),
        (changed("norm.weight", lambda t: t * float("nan")), "tensor norm.weight holds values that are not finite"),
        (changed("fc.weight", lambda t: t[:, :64]), r"layers \[1, 3, 5\] are 3, but fc.weight .* reads 2 of width 32"),
        (changed("d2t", lambda t: t + torch.arange(len(t))), "must ascend within 0 to 255; are these ids, not offsets"),
        (changed("t2d", lambda t: ~t), "t2d marks other tokens than d2t names"),
        (lambda tensors: tensors | {"q_norm.weight": torch.ones(8)}, "tensor q_norm.weight is unknown"),
        (
            lambda tensors: tensors | {"embed_tokens.weight": torch.ones(256, 32)},
            "embed_tokens.weight is not the target's; the head is another model's",
        ),
    ],
)
def test_wrong_tensors_are_refused_by_name(target, folder, change, message):
    edit_tensors(folder, change)
    with pytest.raises(UserError, match=message):
        imported(folder, target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 64}, "hidden_size is 64, but llama-0 has 32; the head is another model's"),
        ({"vocab_size": 512}, "vocab_size is 512, but llama-0 has 256; the head is another model's"),
        ({"target_hidden_size": 64}, "target_hidden_size is 64, but llama-0 has 32"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, expected 1"),
        ({"intermediate_size": None}, "intermediate_size: Field required"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 35]}, "reads layer 35, but llama-0 has layers 0 to 6"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 3]}, r"layers \[1, 3, 3\] name a layer twice"),
        ({"speculators_model_type": "mtp"}, "speculators_model_type is 'mtp', expected 'eagle3'"),
        ({"speculators_model_type": "eagle3"}, "norm_before_residual is missing"),
    ],
)
def test_wrong_configs_are_refused_by_name(target, folder, fields, message):
    edit_config(folder, **fields)
    with pytest.raises(UserError, match=message):
        imported(folder, target)


def test_the_targets_own_embedding_is_no_obstacle(target, folder):
    own = load_file(folder_of(target) / "model.safetensors")["model.embed_tokens.weight"]
    edit_tensors(folder, lambda tensors: tensors | {"embed_tokens.weight": own.to(torch.bfloat16)})
    assert imported(folder, target).config.layers == (1, 3, 5)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_and_absent_folders_are_refused(target, folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UserError, match=rf"pretrained\.x: .* holds {name}, which is pickle .*; expected .safetensors"):
        imported(folder, target)
    (folder / name).unlink()
    with pytest.raises(UserError, match=r"pretrained\.x: .* holds no weights; expected .safetensors"):
        imported(folder, target)
    source = PretrainedHead(model="m", path=str(folder / "nowhere"))
    with pytest.raises(UserError, match=r"pretrained\.x\.path: .*nowhere is no folder"):
        head_folder(source, "pretrained.x")


def test_files_that_are_missing_or_cut_short_are_named(target, folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors: is no readable safetensors file"):
        imported(folder, target)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json: file is missing"):
        imported(folder, target)


def test_the_hub_out_of_reach_is_told_by_the_key(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    source = PretrainedHead(model="m", repo="nobody/no-such-head-anywhere")
    with pytest.raises(UserError, match=r"pretrained\.x\.repo: nobody/no-such-head-anywhere cannot be downloaded"):
        head_folder(source, "pretrained.x")


def test_the_script_writes_a_head_that_drafts(target, folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "pretrained.x"
    spec = PretrainedHead(model=target.name, path=str(folder)).canonical()
    arguments = ["--spec", spec, "--model", target.name, "--fingerprint", "f", "--name", "x"]
    arguments += ["--target", folder_of(target), "--output", out / "model.safetensors", "--config", out / "config.json"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert load_head(out, target).config.layers == (1, 3, 5)
    sys.argv[2] = json.dumps(json.loads(spec) | {"layers": [1, 2]})
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith("error: pretrained.x: layers [1, 2] are 2, but fc.weight")
    )
