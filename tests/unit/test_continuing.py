"""A head from elsewhere is trained on as what it is, for its share of a training, and says so."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from speclayers.config import DraftConfig, Runtime
from speclayers.drafting.continuing import continued_trainer
from speclayers.drafting.features import OnlineFeatures
from speclayers.drafting.head import load_head, read_head_config, save_head
from speclayers.drafting.tensor_files import read_tensors
from speclayers.errors import UserError
from speclayers.export.imported import import_head
from speclayers.names import PretrainedName
from speclayers.specs import TrainSpec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from tests.drafts import ORIGIN, SETTINGS, make_corpus
from tests.exports import drawn_head, exported, folder_of

SCRIPT = Path(__file__).parents[2] / "scripts" / "continue_draft.py"
OWN_VOCABULARY = range(0, 256, 4)


@pytest.fixture
def workplace(tiny_target, tmp_path, monkeypatch):
    """A function that trains on a head by the script, and gives its folder; the head came from vLLM's layout."""
    target = tiny_target()
    head = drawn_head(target, (1, 4), draft_ids=OWN_VOCABULARY, vocabulary=64, residual=True)
    exported("vllm", head, target, tmp_path / "published")
    start = tmp_path / "pretrained.own"
    save_head(start, import_head(tmp_path / "published", None, "pretrained.own", folder_of(target), target.manifest))
    write_table(tmp_path / "corpus.parquet", CORPUS, make_corpus(6), ORIGIN)
    spec = TrainSpec(runtime=Runtime(), draft=DraftConfig(**SETTINGS | {"vocabulary": 32, "features": "online"}))

    def train(name, start=start):
        folder = tmp_path / name
        paths = {"target": folder_of(target), "corpus": tmp_path / "corpus.parquet", "work": tmp_path / "work"}
        paths |= {"start": start / "model.safetensors", "training": folder / "training.parquet"}
        paths |= {"output": folder / "model.safetensors", "config": folder / "config.json"}
        words = ["--spec", spec.canonical(), "--model", target.name, "--fingerprint", "f00d", "--threads", "1"]
        words += ["--head", name, *(word for key, path in paths.items() for word in (f"--{key}", str(path)))]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return folder

    return train


def test_it_keeps_its_sizes_norms_and_vocabulary_and_gets_its_share(workplace, tiny_target, tmp_path):
    before = read_head_config(tmp_path / "pretrained.own" / "config.json")
    folder = workplace("pretrained.own.p50.s3")
    config = read_head_config(folder / "config.json")
    same = {"layers", "draft_vocabulary", "vocabulary_hash", "norm_before_residual", "kv_heads", "kind", "mlp_width"}
    assert config.model_dump(include=same) == before.model_dump(include=same)
    assert (config.layers, config.norm_before_residual) == ((1, 4), True)
    assert (config.started_from, config.percent, config.seed) == ("pretrained.own", 50, 3)
    assert config.fingerprint == "f00d"
    responses = [row["input_ids"][row["response_start"] :] for _, row in make_corpus(6).iterrows()]
    tokens = [int(token) for response in responses for token in response]
    assert config.coverage == pytest.approx(sum(token % 4 == 0 for token in tokens) / len(tokens))
    assert read_table(folder / "training.parquet", TRAINING)["step"].max() == SETTINGS["steps"] // 2
    assert load_head(folder, tiny_target()).config == config


def test_training_on_starts_from_its_weights_and_lowers_the_loss(workplace, tmp_path):
    folder = workplace("pretrained.own.p100.s0")
    start, end = (read_tensors(f / "model.safetensors") for f in (tmp_path / "pretrained.own", folder))
    assert torch.equal(start["d2t"], end["d2t"])
    moved = (end["fc.weight"] - start["fc.weight"]).norm()
    assert 0 < moved < 0.2 * start["fc.weight"].norm()
    losses = read_table(folder / "training.parquet", TRAINING).query("ttt_step == 0")["loss"]
    assert losses.iloc[-1] < losses.iloc[0]


def test_the_smallest_share_is_a_step(workplace, tmp_path):
    folder = workplace("pretrained.own.p1.s0")  # of twelve steps
    start, end = (read_tensors(f / "model.safetensors") for f in (tmp_path / "pretrained.own", folder))
    assert read_table(folder / "training.parquet", TRAINING)["step"].max() == 1
    assert not torch.equal(start["fc.weight"], end["fc.weight"])


def test_a_killed_training_goes_on_to_the_same_weights(workplace, tiny_target, tmp_path):
    whole = read_tensors(workplace("pretrained.own.p100.s0") / "model.safetensors")
    target, corpus = tiny_target(), make_corpus(6)
    draft = DraftConfig(**SETTINGS | {"features": "online"})
    (tmp_path / "checkpoints").mkdir()

    def trainer():
        source = OnlineFeatures(target, corpus)
        name, start = PretrainedName("own", 100, 0), tmp_path / "pretrained.own"
        return continued_trainer(name, start, target, corpus, source, draft, "f00d", tmp_path / "checkpoints")

    trainer().run(until=5)
    again = trainer()
    assert again.step == 5
    again.run()
    for name, tensor in again.head.state_dict().items():
        torch.testing.assert_close(tensor, whole[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pretrained.own", "--head: pretrained.own is the head as it came"),
        ("pretrained.other.p10.s0", "is not pretrained.other as it came, from which pretrained.other.p10.s0 starts"),
        ("eagle3.l01.s0", "'eagle3.l01.s0' is no name of a head trained elsewhere"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(workplace, capsys, tmp_path, name, told):
    with pytest.raises(SystemExit) as stopped:
        workplace(name)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / name / "model.safetensors").exists() or name == "pretrained.own"


def test_another_models_head_is_refused(workplace, tiny_target, tmp_path):
    other = tiny_target(seed=1)
    with pytest.raises(UserError, match=r"was imported for llama-0; import it again for llama-1"):
        continued_trainer(
            PretrainedName("own", 10, 0),
            tmp_path / "pretrained.own",
            other,
            make_corpus(6),
            OnlineFeatures(other, make_corpus(6)),
            DraftConfig(**SETTINGS),
            "f00d",
            tmp_path,
        )
