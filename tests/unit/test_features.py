import multiprocessing
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from speclayers.config import Runtime
from speclayers.drafting import features
from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.features import OnlineFeatures, extract
from speclayers.errors import UserError
from speclayers.tables import Origin
from speclayers.targets.capture import capture_states
from tests.drafts import ORIGIN, make_corpus, make_store


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(features, "TOKENS_PER_BATCH", 48)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_features_read_back_equal_capture(tiny_target, tmp_path, architecture):
    target, corpus = tiny_target(architecture), make_corpus(7)
    store = make_store(tmp_path, target, corpus, [0, 3])
    assert store.manifest.layers == (0, 3, 6)
    assert (store.manifest.samples, store.manifest.tokens) == (7, sum(map(len, corpus["input_ids"])))
    for place, row in enumerate(corpus.itertuples()):
        ids = torch.tensor(row.input_ids.tolist())[None]
        with capture_states(target, [0, 3, 6]) as captured:
            logits = target.model(ids, use_cache=False).logits[0]
        for layer in (0, 3, 6):
            torch.testing.assert_close(store.states(layer, place), captured[layer][0], rtol=1e-4, atol=1e-4)
        rows = store.target_rows(place, row.response_start)
        torch.testing.assert_close(rows.states, captured[6][0, row.response_start :], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rows.logsumexp, logits.logsumexp(-1)[row.response_start :], rtol=1e-4, atol=1e-4)
        assert torch.equal(rows.best, logits.argmax(-1)[row.response_start :])
        prompt = store.target_rows(place, 0)
        assert (prompt.best[: row.response_start] == -1).all()
        assert prompt.logsumexp[: row.response_start].isnan().all()


def test_layer_added_later_is_all_that_is_computed(tiny_target, tmp_path, monkeypatch):
    target, corpus = tiny_target(), make_corpus(5)
    make_store(tmp_path, target, corpus, [1])
    before = {path.name: path.stat().st_ino for path in (tmp_path / "features").glob("l*")}
    store = make_store(tmp_path, target, corpus, [1, 4])
    assert store.manifest.layers == (1, 4, 6)
    assert before
    for name, inode in before.items():
        assert (tmp_path / "features" / name).stat().st_ino == inode
    monkeypatch.setattr(features, "_run", None)
    assert make_store(tmp_path, target, corpus, [4]).manifest.layers == (4, 6)


def test_files_of_other_features_are_replaced(tiny_target, tmp_path):
    target = tiny_target()
    first = make_store(tmp_path, target, make_corpus(5, seed=0), [1, 2]).manifest
    second = make_store(tmp_path, target, make_corpus(5, seed=1), [2]).manifest
    assert second.layers == (2, 6)
    assert first.key != second.key
    assert not (tmp_path / "features" / "l01.safetensors").exists()
    arguments = (target, make_corpus(5, seed=1), [2], tmp_path / "features" / "l02.json", tmp_path / "work")
    assert extract(*arguments, Origin("tiny", "beef")).key != second.key


def test_damaged_file_is_computed_again(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(5)
    make_store(tmp_path, target, corpus, [1, 2])
    file = tmp_path / "features" / "l02.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    with pytest.raises(UserError, match=r"l02\.safetensors: cannot be read"):
        FeatureStore([tmp_path / "features" / "manifest.json"]).states(2, 0)
    make_store(tmp_path, target, corpus, [1, 2])
    assert file.read_bytes() == whole


def kill_after_batches(count):
    """Die like under kill -9 while a batch is being written: at its first layer's file."""
    write, written = features._write_sequence, []

    def dying(target, files, states, entry, row):
        written.append(row["sample_id"])
        if len(written) > count:
            files[min(files)].write("states", int(entry["offset"]), states[min(files)])
            os._exit(9)
        write(target, files, states, entry, row)

    features._write_sequence = dying


def extract_and_die(target, corpus, folder):
    torch.set_num_threads(1)
    kill_after_batches(4)
    make_store(folder, target, corpus, [1, 3])


def test_killed_extraction_continues_to_the_same_bytes(tiny_target, tmp_path, monkeypatch):
    target, corpus = tiny_target(), make_corpus(9)
    make_store(tmp_path / "whole", target, corpus, [1, 3])
    killed = multiprocessing.get_context("fork").Process(
        target=extract_and_die, args=(target, corpus, tmp_path / "killed")
    )
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    assert not list((tmp_path / "killed" / "features").glob("l*"))
    runs = []
    forward = features._forward
    monkeypatch.setattr(features, "_forward", lambda *args: runs.append(len(args[1])) or forward(*args))
    make_store(tmp_path / "killed", target, corpus, [1, 3])
    assert sum(runs) == 5  # two batches of two sequences were done
    for path in (tmp_path / "whole" / "features").iterdir():
        assert (tmp_path / "killed" / "features" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "killed" / "features-work").exists()


def test_states_keep_the_models_precision(tiny_target, tmp_path):
    target = tiny_target(runtime=Runtime(dtype="bfloat16"))
    make_store(tmp_path, target, make_corpus(3), [2])
    tensors = load_file(tmp_path / "features" / "l06.safetensors")
    assert {name: t.dtype for name, t in tensors.items()} == {
        "states": torch.bfloat16,
        "next_argmax": torch.int32,
        "logsumexp": torch.float32,
    }


def test_long_prompts_are_batched_apart():
    batches = features._batches(np.array([10, 40, 12, 60, 11, 12]))
    assert batches == [[3], [1], [2, 5, 4, 0]]


def test_a_layer_beyond_the_last_is_refused(tiny_target, tmp_path):
    with pytest.raises(UserError, match="layer 9 does not exist; llama-0 has layers 0 to 6"):
        extract(tiny_target(), make_corpus(3), [1, 9], tmp_path / "f" / "l09.json", tmp_path / "w", ORIGIN)
    assert not (tmp_path / "f").exists()


def test_a_head_reads_layers_of_several_passes(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(5)
    whole = make_store(tmp_path / "whole", target, corpus, [1, 4])
    passes = [tmp_path / "features" / f"{name}.json" for name in ("l01", "l04")]
    for layer, manifest in zip((1, 4), passes, strict=True):
        extract(target, corpus, [layer], manifest, tmp_path / "work", ORIGIN)
    store = FeatureStore(passes)
    assert store.manifest.layers == (1, 4, 6)
    for layer in (1, 4):
        assert torch.equal(store.states(layer, 3), whole.states(layer, 3))
    extract(target, make_corpus(4, seed=5), [4], passes[1], tmp_path / "work", ORIGIN)
    with pytest.raises(UserError, match=r"l04\.json: was made from other responses than l01\.json"):
        FeatureStore(passes)


def test_store_that_does_not_fit_is_refused(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(4)
    store = make_store(tmp_path, target, corpus, [2])
    with pytest.raises(UserError, match="features of 4 other sequences than the corpus's 3"):
        store.check(target, corpus.iloc[:3], [2])
    with pytest.raises(UserError, match="holds no layer 4"):
        store.states(4, 0)
    with pytest.raises(UserError, match=r"holds features of llama-0 \(\w{12}\), not of llama-1 \(\w{12}\)"):
        store.check(tiny_target(seed=1), corpus, [2])
    manifest = tmp_path / "features" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(store.manifest.key, "0" * 16))
    with pytest.raises(UserError, match=r"l02\.safetensors: belongs to other features"):
        FeatureStore([manifest]).states(2, 0)
    manifest.write_text("{}")
    with pytest.raises(UserError, match=r"manifest\.json: is no manifest of features: model"):
        FeatureStore([manifest])


def test_empty_corpus_is_refused(tiny_target, tmp_path):
    with pytest.raises(UserError, match="training corpus: holds no sequence"):
        extract(tiny_target(), make_corpus(0), [1], tmp_path / "f" / "l01.json", tmp_path / "w", ORIGIN)


def test_tokens_that_the_model_does_not_know_are_refused(tiny_target, tmp_path):
    corpus = make_corpus(3, vocabulary=300)
    message = r"sample s\d holds token \d{3}, but llama-0 has 256 tokens; expected a tokenizer that fits the model"
    with pytest.raises(UserError, match=message):
        extract(tiny_target(), corpus, [1], tmp_path / "f" / "l01.json", tmp_path / "w", ORIGIN)
    with pytest.raises(UserError, match=message):
        OnlineFeatures(tiny_target(), corpus)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_online_features_are_those_of_the_store(tiny_target, tmp_path, architecture):
    target, corpus = tiny_target(architecture), make_corpus(9)
    store, online = make_store(tmp_path, target, corpus, [1, 4]), OnlineFeatures(target, corpus)
    wanted = [(7, 5), (0, 3), (8, 9), (3, 6)]
    for made, stored in zip(online.read(wanted, [1, 4]), store.read(wanted, [1, 4]), strict=True):
        torch.testing.assert_close(made.states, stored.states, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(made.last.states, stored.last.states, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(made.last.logsumexp, stored.last.logsumexp, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert torch.equal(made.last.best, stored.last.best)
    with pytest.raises(UserError, match="the training is of another model or corpus"):
        online.check(target, corpus.iloc[:8], [1])
