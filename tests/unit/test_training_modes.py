"""Other ways to compute the same training: features made online, passes, recomputation, precision, processes."""

import logging
import multiprocessing
import os
import runpy
import socket
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from speclayers.config import DraftConfig, Runtime
from speclayers.drafting.features import OnlineFeatures
from speclayers.drafting.processes import Processes
from speclayers.drafting.training_data import TrainingData
from speclayers.drafting.ttt import Execution, ttt_loss
from speclayers.errors import UserError
from speclayers.specs import TrainSpec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from tests.drafts import ORIGIN, SETTINGS, make_corpus, make_head, make_store, run, trainer_of, weights

ROOT = Path(__file__).parents[2]
NUMBERS = ["loss", "accuracy", "expected_acceptance", "simulated_length", "slots"]


def assert_close(first, second, tolerance):
    pd.testing.assert_frame_equal(first[NUMBERS], second[NUMBERS], rtol=tolerance, atol=tolerance, check_exact=False)


def test_online_features_train_the_same_head(setting, tmp_path):
    target, corpus, _ = setting
    settings = {"held_out": 0.3, "evaluate_every": 6}
    cached = run(setting, tmp_path / "cached", **settings)
    online = run((target, corpus, OnlineFeatures(target, corpus)), tmp_path / "online", **settings)
    assert_close(online.table, cached.table, 1e-5)
    torch.testing.assert_close(weights(online.head), weights(cached.head), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_passes_add_up_to_one_step(setting, tmp_path, size):
    whole = run(setting, tmp_path / "whole", sequences_per_step=4)
    parts = run(setting, tmp_path / "parts", sequences_per_step=4, sequences_per_pass=size)
    assert_close(parts.table, whole.table, 1e-4)
    torch.testing.assert_close(weights(parts.head), weights(whole.head), rtol=1e-3, atol=1e-4)


def saved_bytes_and_gradients(target, batch, recompute):
    head = make_head(target)
    saved = []
    keep = lambda tensor: saved.append(tensor.nbytes) or tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, metrics = ttt_loss(head, batch.sequences, batch.targets, 0.8, execution=Execution(recompute=recompute))
    torch.autograd.backward(loss)
    return sum(saved), {name: parameter.grad for name, parameter in head.named_parameters()}, metrics


def test_recomputed_activations_give_the_same_gradients(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(3, prompt=20, response=40)
    data = TrainingData(
        target, corpus, make_store(tmp_path, target, corpus, [1, 3, 5]), [1, 3, 5], torch.arange(128), 7
    )
    batch = data.batch(data.read([0, 1, 2]))
    kept, gradients, metrics = saved_bytes_and_gradients(target, batch, recompute=False)
    recomputed, same_gradients, same_metrics = saved_bytes_and_gradients(target, batch, recompute=True)
    torch.testing.assert_close(same_gradients, gradients, rtol=0, atol=0)
    assert same_metrics == metrics
    assert recomputed < 0.7 * kept


def test_recomputing_trains_the_same_head(setting, tmp_path):
    plain = run(setting, tmp_path / "plain")
    recomputed = run(setting, tmp_path / "recomputed", activation_checkpointing=True)
    torch.testing.assert_close(weights(recomputed.head), weights(plain.head), rtol=0, atol=0)


def test_compiling_trains_the_same_head(setting, tmp_path, monkeypatch):
    compiled = []
    compile_of_torch = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or compile_of_torch(f, **options))
    settings = {"steps": 4, "ttt_steps": 2}  # every step of training-time test is a graph of its own
    plain = run(setting, tmp_path / "plain", **settings)
    assert not compiled
    fused = run(setting, tmp_path / "fused", compile=True, **settings)
    assert [function.__name__ for function in compiled] == ["slot_attention", "_compare"]
    assert_close(fused.table, plain.table, 1e-4)
    torch.testing.assert_close(weights(fused.head), weights(plain.head), rtol=1e-3, atol=1e-4)


def test_low_precision_keeps_full_weights(setting, tmp_path):
    full = run(setting, tmp_path / "full", held_out=0.3)
    low = run(setting, tmp_path / "low", held_out=0.3, precision="bfloat16")
    assert {parameter.dtype for parameter in low.head.parameters()} == {torch.float32}
    assert not low.table["loss"].equals(full.table["loss"])
    assert low.table["loss"].tolist() == pytest.approx(full.table["loss"].tolist(), rel=0.02)
    assert run(setting, tmp_path / "auto", held_out=0.3).table.equals(full.table)


def train_as_one_of_two(folder, spec, rank, port):
    """Run the script as torchrun would start it."""
    torch.set_num_threads(1)
    sys.stderr = (folder / f"stderr-{rank}").open("w")
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in here.items()}, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    logging.getLogger().handlers.clear()
    files = {"output": "model.safetensors", "config": "config.json", "training": "training.parquet"}
    options = {"spec": spec.canonical(), "model": "llama-0", "fingerprint": "f00d", "threads": "2"}
    options |= {"target": folder / "llama-0", "corpus": folder / "corpus.parquet", "work": folder / "work"}
    options |= {"head": "eagle3.l01-l03-l05.s0", **{key: folder / "two" / name for key, name in files.items()}}
    sys.argv = ["train_draft.py", *(str(word) for key, value in options.items() for word in (f"--{key}", value))]
    runpy.run_path(str(ROOT / "scripts" / "train_draft.py"), run_name="__main__")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_train_as_one(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(9)
    write_table(tmp_path / "corpus.parquet", CORPUS, corpus, ORIGIN)
    settings = {**SETTINGS, "steps": 20, "sequences_per_step": 3, "held_out": 0.3, "features": "online"}
    one = run((target, corpus, OnlineFeatures(target, corpus)), tmp_path / "one", **settings)
    spec = TrainSpec(runtime=Runtime(), draft=DraftConfig(**settings, processes=2))
    port, fork = free_port(), multiprocessing.get_context("fork")
    both = [fork.Process(target=train_as_one_of_two, args=(tmp_path, spec, rank, port)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    said = [(tmp_path / f"stderr-{rank}").read_text() for rank in (0, 1)]
    assert [process.exitcode for process in both] == [0, 0], said
    assert ["step 20 of 20: loss" in text for text in said] == [True, False]
    table = read_table(tmp_path / "two" / "training.parquet", TRAINING)
    assert_close(table, one.table, 1e-4)
    assert table["slots"].tolist() == one.table["slots"].tolist()
    assert not (tmp_path / "work").exists()


def test_processes_share_what_they_do_together():
    parts = [Processes(rank, 3).share([4, 1, 5, 9, 2]) for rank in range(3)]
    assert parts == [[4, 9], [1, 2], [5]]


def test_processes_that_do_not_fit_are_refused(setting, tmp_path):
    with pytest.raises(ValidationError, match="sequences_per_step: 2 cannot be shared by 3 processes"):
        DraftConfig(processes=3)
    with pytest.raises(UserError, match=r"draft\.processes: is 2, but 1 were launched together"):
        trainer_of(setting, tmp_path / "work", processes=2)


def test_responses_shorter_than_the_horizon_train_the_steps_they_reach(tiny_target, tmp_path, caplog):
    target, corpus = tiny_target(), make_corpus(4, response=2)
    store = make_store(tmp_path, target, corpus, [1])
    table = run((target, corpus, store), tmp_path / "work", "eagle3.l01.s0", ttt_steps=5).table
    assert "no response is long enough for more than 3 of 5 steps" in caplog.text
    reached = table.groupby("ttt_step")["slots"].sum()
    assert (reached > 0).tolist() == [True, True, True, False, False]
    assert table[table["ttt_step"] > 2]["loss"].isna().all()
    assert table["simulated_length"].between(1, 4).all()


def test_an_empty_corpus_is_refused(setting, tmp_path):
    target, corpus, store = setting
    with pytest.raises(UserError, match="training corpus: holds no sequence"):
        run((target, corpus.iloc[:0], store), tmp_path / "work")
