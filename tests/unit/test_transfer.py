"""A head that is moved keeps its weights, gets its share of training, and says so."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from speclayers.config import DraftConfig, Runtime
from speclayers.drafting.head import read_head_config
from speclayers.drafting.tensor_files import read_tensors
from speclayers.drafting.transfer import moved_settings, start_weights
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.specs import TrainSpec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from tests.drafts import ORIGIN, SETTINGS, make_corpus, make_store

SCRIPTS = Path(__file__).parents[2] / "scripts"
START = "eagle3.l01-l03.s0"


@pytest.mark.parametrize(
    ("percent", "tokens", "expected"),
    [
        *((0, None, (0, 0, None)), (10, None, (1, 0, None)), (50, 77, (6, 2, 38)), (0, 77, (0, 0, 0))),
        *((1, None, (1, 0, None)), (1, 30, (1, 0, 1))),  # too little to round to a step, but not nothing
    ],
)
def test_a_moved_head_gets_its_share_of_training(percent, tokens, expected):
    draft = DraftConfig(steps=12, warmup_steps=4, tokens=tokens)
    shared = moved_settings(draft, HeadName(layers=(4,), seed=0, start=(2,), percent=percent))
    assert (shared.steps, shared.warmup_steps, shared.tokens) == expected
    assert moved_settings(draft, HeadName(layers=(4,), seed=0)) == draft


@pytest.fixture
def workplace(tiny_target, tmp_path, monkeypatch):
    """A function that trains a head by the script, and gives its folder."""
    target = tiny_target()
    corpus = make_corpus(6)
    write_table(tmp_path / "corpus.parquet", CORPUS, corpus, ORIGIN)
    make_store(tmp_path, target, corpus, [1, 2, 3, 5])
    spec = TrainSpec(runtime=Runtime(), draft=DraftConfig(**SETTINGS))

    def train(name, start=None):
        folder = tmp_path / name
        paths = {"target": tmp_path / "llama-0", "corpus": tmp_path / "corpus.parquet"}
        paths |= {"features": tmp_path / "features" / "manifest.json", "work": tmp_path / "work"}
        paths |= {"output": folder / "model.safetensors", "config": folder / "config.json"}
        paths |= {"training": folder / "training.parquet"}
        paths |= {} if start is None else {"start": tmp_path / start / "model.safetensors"}
        words = ["--spec", spec.canonical(), "--model", "llama-0", "--fingerprint", "f00d", "--threads", "1"]
        words += ["--head", name, *(word for key, path in paths.items() for word in (f"--{key}", str(path)))]
        monkeypatch.setattr(sys, "argv", ["train_draft.py", *words])
        runpy.run_path(str(SCRIPTS / "train_draft.py"), run_name="__main__")
        return folder

    return train


def test_an_untouched_head_is_the_same_head_on_other_layers(workplace):
    first = workplace(START)
    moved = workplace("eagle3.l02-l05.s0.from-l01-l03.p0", START)
    before, after = (read_tensors(folder / "model.safetensors") for folder in (first, moved))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    config = read_head_config(moved / "config.json")
    assert (config.layers, config.started_from, config.percent) == ((2, 5), START, 0)
    plain = read_head_config(first / "config.json")
    assert (plain.started_from, plain.percent) == (None, None)
    assert read_table(moved / "training.parquet", TRAINING).empty


def test_a_moved_head_goes_on_from_its_start(workplace):
    first = workplace(START)
    moved = workplace("eagle3.l02-l05.s0.from-l01-l03.p50", START)
    table = read_table(moved / "training.parquet", TRAINING)
    assert table["step"].max() == SETTINGS["steps"] // 2
    scratch = workplace("eagle3.l02-l05.s0")
    before, after, other = (
        read_tensors(folder / "model.safetensors")["fc.weight"] for folder in (first, moved, scratch)
    )
    assert not torch.equal(before, after)
    assert (after - before).norm() < (after - other).norm()
    assert read_head_config(moved / "config.json").percent == 50


@pytest.mark.parametrize(
    ("name", "start", "told"),
    [
        (
            "eagle3.l02-l05.s0.from-l01-l03.p0",
            None,
            "--start: eagle3.l02-l05.s0.from-l01-l03.p0 needs the head that it",
        ),
        ("eagle3.l02-l05.s0", START, "--start: eagle3.l02-l05.s0 has none that it starts from"),
        ("eagle3.l02-l05.s0.from-l01.p0", START, "moves a head of 1 layers to 2; expected as many"),
        ("eagle3.l02-l05.s1.from-l01-l03.p0", START, f"holds head {START}; eagle3.l02-l05.s1.from-l01-l03.p0 expects"),
        ("eagle3.l03-l05.s0.from-l01-l02.p0", START, "expects eagle3.l01-l02.s0"),
    ],
)
def test_a_start_that_does_not_fit_is_one_line(workplace, capsys, tmp_path, name, start, told):
    workplace(START)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        workplace(name, start)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert told in error
    assert not (tmp_path / name).exists()


def test_a_head_that_was_moved_is_no_start(workplace, tiny_target, tmp_path):
    workplace(START)
    moved = workplace("eagle3.l02-l05.s0.from-l01-l03.p0", START)
    with pytest.raises(UserError, match=r"holds head eagle3\.l02-l05\.s0, moved from eagle3\.l01-l03\.s0;"):
        start_weights(moved, HeadName(layers=(3, 5), seed=0, start=(2, 5), percent=0), tiny_target())
