from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from speclayers.config import Runtime, TrainedSource
from speclayers.errors import UserError
from speclayers.targets import tiny
from speclayers.targets.manifest import file_hash, read_manifest
from speclayers.targets.target import load_target
from speclayers.targets.tiny import train_tiny_model

SIZES = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp_width": 32, "sequences_per_step": 4}


def source(**settings) -> TrainedSource:
    return TrainedSource(kind="trained", teacher="teacher", **(SIZES | {"steps": 12} | settings))


@pytest.fixture
def teacher(tiny_target, tmp_path) -> Path:
    return tmp_path / tiny_target("llama", layers=2).name


@pytest.fixture
def corpus() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    cycle = np.tile(np.arange(10, 40), 3)  # every token determines the next
    texts = [cycle[start : start + length] for start, length in rng.integers((0, 8), (30, 40), (24, 2))]
    return pd.DataFrame({"input_ids": texts})


def train(teacher, corpus, tmp_path, name, **settings):
    folder = tmp_path / "models" / name
    train_tiny_model(source(**settings), name, teacher, corpus, folder, tmp_path / f"{name}-work")
    return folder


@pytest.mark.parametrize(("architecture", "family"), [("qwen3", "Qwen3ForCausalLM"), ("llama", "LlamaForCausalLM")])
def test_a_trained_model_is_a_fetched_model(teacher, corpus, tmp_path, architecture, family):
    folder = train(teacher, corpus, tmp_path, "student", architecture=architecture)
    manifest, taught = read_manifest(folder), read_manifest(teacher)
    assert (manifest.architecture, manifest.layers, manifest.width, manifest.context) == (family, 2, 32, 2048)
    assert manifest.source["kind"] == "trained"
    assert manifest.tied
    assert (manifest.tokenizer_hash, manifest.stop_ids) == (taught.tokenizer_hash, taught.stop_ids)
    assert manifest.template_hash == taught.template_hash
    assert load_target(folder, "student", Runtime()).n_layers == 2


def test_it_learns_the_text(teacher, corpus, tmp_path):
    target = load_target(train(teacher, corpus, tmp_path, "student", steps=150), "student", Runtime())
    with torch.no_grad():
        best = target.model(torch.tensor([[17, 18, 19, 20]])).logits[0].argmax(-1)
    # Tokens that never occurred compete in the whole softmax and lose.
    assert best.tolist() == [18, 19, 20, 21]


def test_a_killed_training_continues_to_the_same_weights(teacher, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "CHECKPOINT_EVERY", 5)
    whole = train(teacher, corpus, tmp_path, "whole")
    loss = tiny._loss

    def dying(model, text, step):
        if step == 7:
            raise KeyboardInterrupt
        return loss(model, text, step)

    monkeypatch.setattr(tiny, "_loss", dying)
    with pytest.raises(KeyboardInterrupt):
        train(teacher, corpus, tmp_path, "killed")
    assert not (tmp_path / "models" / "killed").exists()
    steps = []
    monkeypatch.setattr(tiny, "_loss", lambda model, text, step: (steps.append(step), loss(model, text, step))[1])
    resumed = train(teacher, corpus, tmp_path, "killed")
    assert steps == list(range(5, 12))
    assert file_hash(resumed / "model.safetensors") == file_hash(whole / "model.safetensors")


def test_seeds_change_the_weights_and_nothing_else_does(teacher, corpus, tmp_path):
    torch.manual_seed(1)
    one = train(teacher, corpus, tmp_path, "one")
    torch.manual_seed(2)
    same = train(teacher, corpus, tmp_path, "same")
    other = train(teacher, corpus, tmp_path, "other", seed=1)
    first, second, third = (load_file(folder / "model.safetensors") for folder in (one, same, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], third["model.embed_tokens.weight"])


def test_an_epoch_visits_every_sequence_once(teacher, corpus):
    sequences = [torch.tensor(ids) for ids in corpus.input_ids]
    text = tiny._Text(sequences, source(sequences_per_step=5), read_manifest(teacher))
    for epoch in range(2):
        batches = [text.batch(step) for step in range(5 * epoch, 5 * epoch + 5)]
        seen = [row[kept].tolist() for ids, is_text in batches for row, kept in zip(ids, is_text, strict=True)]
        assert sorted(seen) == sorted(ids.tolist() for ids in sequences)
    assert text.batch(0).ids.shape != text.batch(5).ids.shape or not torch.equal(text.batch(0).ids, text.batch(5).ids)


def test_sampled_softmax_stands_for_the_whole(teacher, corpus, monkeypatch):
    model = tiny._new_model(source(), read_manifest(teacher))
    text = tiny._Text([torch.tensor(ids) for ids in corpus.input_ids], source(), read_manifest(teacher))
    assert len(text.unseen) == 256 - 30
    whole = tiny._loss(model, text, 0)
    ids, is_text = text.batch(0)
    logits = model(ids).logits[:, :-1][is_text[:, 1:]]
    torch.testing.assert_close(whole, torch.nn.functional.cross_entropy(logits, ids[:, 1:][is_text[:, 1:]]))
    monkeypatch.setattr(tiny, "NEGATIVES", 64)
    torch.testing.assert_close(tiny._loss(model, text, 0), whole, rtol=0.02, atol=0)


def test_an_empty_corpus_is_refused(teacher, tmp_path):
    with pytest.raises(UserError, match="holds no sequence"):
        train(teacher, pd.DataFrame({"input_ids": [np.array([3])]}), tmp_path, "student")


def test_it_starts_from_the_principal_components_of_its_teachers_embeddings(teacher):
    narrow = source(width=16)
    model = tiny._new_model(narrow, read_manifest(teacher))
    scale = model.get_input_embeddings().weight.std()
    tiny._start_from_teacher(model, teacher, "teacher")
    own = model.get_input_embeddings().weight.detach().double().numpy()
    theirs = load_target(teacher, "teacher", Runtime()).anatomy.embedding.weight.double().numpy()
    left, singular, _ = np.linalg.svd(theirs - theirs.mean(0), full_matrices=False)
    expected = left[:, :16] * singular[:16]
    expected *= scale.item() / expected.std(ddof=1)
    np.testing.assert_allclose(np.abs(own), np.abs(expected), atol=1e-6)
