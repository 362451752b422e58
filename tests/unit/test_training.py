import json
import runpy
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from speclayers.config import DraftConfig, Runtime
from speclayers.drafting.head import load_head, save_head
from speclayers.drafting.training_data import TrainingData, sequence_order
from speclayers.drafting.training_log import simulated_length
from speclayers.drafting.training_loop import learning_rate_factor
from speclayers.errors import UserError
from speclayers.files import read_json
from speclayers.specs import FeaturesSpec, TrainSpec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from tests.drafts import ORIGIN, SETTINGS, TrainedHead, assert_equal, make_corpus, make_store, run, trainer_of

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", ["eagle3.l06.s0", "eagle3.l01-l03-l05.s1", "eagle3.l00-l01-l03-l05.s0"])
def test_head_overfits_few_sequences_at_every_step(tiny_target, tmp_path, name):
    target, corpus = tiny_target(tied=False), make_corpus(4, response=8)
    with torch.no_grad():
        target.anatomy.lm_head.weight.mul_(8)  # a random target is otherwise so unsure that its best token is noise
    store = make_store(tmp_path, target, corpus, [0, 1, 3, 5])
    rates = {"learning_rate": 1e-2, "lm_head_learning_rate": 1e-2, "warmup_steps": 10}
    settings = {"vocabulary": 256, "ttt_steps": 4, "steps": 200, "sequences_per_step": 4, **rates}
    trained = run((target, corpus, store), tmp_path / "work", name, **settings, checkpoint_every=200)
    last = trained.table[trained.table["step"] == 200]
    assert last["accuracy"].min() > 0.95
    assert last["expected_acceptance"].min() > 0.9
    assert last["simulated_length"].min() > 4.5


def test_training_table_matches_its_schema(setting, tmp_path):
    trained = run(setting, tmp_path / "work")
    write_table(tmp_path / "training.parquet", TRAINING, trained.table, ORIGIN)
    table = read_table(tmp_path / "training.parquet", TRAINING)
    assert table["step"].tolist() == [step for step in range(1, 13) for _ in range(3)]
    assert table["ttt_step"].tolist() == [0, 1, 2] * 12
    assert table["epoch"].iloc[-1] == 4
    assert trained.head.config.coverage == pytest.approx(trained.head.t2d[flat_responses(setting[1])].double().mean())


def flat_responses(corpus):
    return torch.cat([torch.tensor(r.input_ids[r.response_start :].tolist()) for r in corpus.itertuples()])


def test_same_seed_gives_the_same_head(setting, tmp_path):
    first, second = run(setting, tmp_path / "a"), run(setting, tmp_path / "b")
    assert_equal(first, second)
    other = run(setting, tmp_path / "c", "eagle3.l01-l03-l05.s1")
    assert not torch.equal(other.head.fc.weight, first.head.fc.weight)


def test_diverged_training_names_step_and_samples(setting, tmp_path):
    store = setting[2]
    read = store.states

    def broken(layer, sequence):
        states = read(layer, sequence)
        return states * float("nan") if sequence == 3 else states

    store.states = broken
    with pytest.raises(UserError, match=r"the loss is nan at step \d+, samples (s3, s\d|s\d, s3);"):
        run(setting, tmp_path / "work")


@pytest.mark.parametrize("architecture", ["qwen3", "gemma2", "gpt_neox", "gpt2"])
def test_heads_train_on_every_family(tiny_target, tmp_path, architecture):
    target, corpus = tiny_target(architecture), make_corpus(4)
    store = make_store(tmp_path, target, corpus, [2, 4])
    table = run((target, corpus, store), tmp_path / "work", "eagle3.l02-l04.s0", steps=30, ttt_steps=2).table
    losses = table[table["ttt_step"] == 0]["loss"]
    assert losses.tail(5).mean() < losses.head(5).mean()


def test_every_layer_set_sees_the_same_order():
    first = list(islice(sequence_order(5, seed=3), 15))
    assert first == list(islice(sequence_order(5, seed=3), 15))
    assert all(sorted(first[start : start + 5]) == list(range(5)) for start in (0, 5, 10))
    assert first[:5] != first[5:10]
    assert first != list(islice(sequence_order(5, seed=4), 15))


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_targets_distribution_is_renormalised_over_the_draft_vocabulary(tiny_target, tmp_path, architecture):
    target, corpus = tiny_target(architecture), make_corpus(3)
    store = make_store(tmp_path, target, corpus, [1])
    draft_ids = torch.arange(0, 256, 4)
    data = TrainingData(target, corpus, store, [1], draft_ids, steps=2)
    targets = data.batch(data.read([2, 0])).targets
    row = 0
    for place in (2, 0):
        ids = torch.tensor(corpus["input_ids"][place].tolist())
        logits = target.model(ids[None], use_cache=False).logits[0, corpus["response_start"][place] :]
        rows = slice(row, row + len(logits))
        full = logits.softmax(-1)[:, draft_ids]
        torch.testing.assert_close(targets.full[rows], full, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(targets.restricted[rows], full / full.sum(-1, keepdim=True), rtol=1e-3, atol=1e-6)
        assert torch.equal(targets.best[rows], logits.argmax(-1))
        row += len(logits)
    assert row == len(targets.best)


def test_learning_rate_warms_up_and_falls():
    factors = [learning_rate_factor(step, 20, 4) for step in range(1, 21)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1, 1]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.02
    assert learning_rate_factor(3, 3, 30) == 0.1


def test_simulated_length_multiplies_accuracies():
    assert simulated_length([0.5, 0.5, 1]) == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert simulated_length([0.5, None, 1]) == 1.5
    assert simulated_length([]) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medusa.l01.s0", "heads of kind 'medusa' cannot be trained"),
        ("eagle3.l01-l09.s0", "layer 9: llama-0 has layers 0 to 6"),
        ("eagle3.l04.s0", "holds no layer 4"),
    ],
)
def test_heads_that_cannot_be_trained_are_refused(setting, tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        run(setting, tmp_path / "work", name)


def test_corpus_without_responses_is_refused(setting, tmp_path):
    target, corpus, _ = setting
    prompts = corpus.assign(response_start=corpus["input_ids"].map(len) - 1)
    prompts["input_ids"] = [[*ids[:-1], 0] for ids in prompts["input_ids"]]
    store = make_store(tmp_path / "prompts", target, prompts, [1])
    with pytest.raises(UserError, match="no response has a token to draft from"):
        run((target, prompts, store), tmp_path / "work", "eagle3.l01.s0")


def script(monkeypatch, name, spec, **options):
    arguments = [name, "--spec", spec.canonical(), "--model", "llama-0", "--fingerprint", "f00d", "--threads", "1"]
    arguments += [part for key, value in options.items() for part in (f"--{key}", str(value))]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


def test_scripts_lead_from_corpus_to_a_head_that_loads(tiny_target, tmp_path, monkeypatch):
    target = tiny_target()
    write_table(tmp_path / "training.parquet", CORPUS, make_corpus(6), ORIGIN)
    shared = {"target": tmp_path / "llama-0", "corpus": tmp_path / "training.parquet"}
    manifest = tmp_path / "features" / "manifest.json"
    spec = FeaturesSpec(runtime=Runtime())
    script(monkeypatch, "extract_features.py", spec, **shared, layers="l02-l04", output=manifest,
           work=tmp_path / "features-work")  # fmt: skip
    assert read_json(manifest)["layers"] == [2, 4, 6]
    train_spec = TrainSpec(runtime=Runtime(), draft=DraftConfig(**SETTINGS))
    for folder in (tmp_path / "first", tmp_path / "second"):
        outputs = {"output": folder / "model.safetensors", "config": folder / "config.json"}
        outputs |= {"training": folder / "training.parquet", "work": tmp_path / "train-work"}
        script(monkeypatch, "train_draft.py", train_spec, **shared, features=manifest, head="eagle3.l02-l04.s0",
               **outputs)  # fmt: skip
    head = load_head(tmp_path / "first", target)
    assert head.config.layers == (2, 4)
    assert json.loads((tmp_path / "first" / "config.json").read_text())["fingerprint"] == "f00d"
    assert load_file(tmp_path / "first" / "model.safetensors")["t2d"].sum() == 64
    for name in ("model.safetensors", "config.json", "training.parquet"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert not (tmp_path / "train-work").exists()
    save_head(tmp_path / "third", head)
    assert (tmp_path / "third" / "model.safetensors").read_bytes() == (
        tmp_path / "first" / "model.safetensors"
    ).read_bytes()


def test_script_tells_mistakes_in_one_line(tmp_path, monkeypatch, capsys):
    spec = TrainSpec(runtime=Runtime(), draft=DraftConfig())
    paths = {key: tmp_path / key for key in ("target", "corpus", "features", "config", "training", "work")}
    with pytest.raises(SystemExit) as stopped:
        script(
            monkeypatch, "train_draft.py", spec, **paths, output=tmp_path / "model.safetensors", head="eagle3.l01.s0"
        )
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: --output, --config: expected model.safetensors and config.json in one folder\n"
    )


def test_training_that_pauses_goes_on_to_the_same_bytes(setting, tmp_path):
    whole = run(setting, tmp_path / "whole")
    paused = trainer_of(setting, tmp_path / "paused")
    paused.run(until=5)
    assert paused.step == 5
    assert paused.table()["step"].max() == 5
    later = trainer_of(setting, tmp_path / "paused")
    for trainer in (paused, later):
        assert trainer.step == 5
        trainer.run()
        assert trainer.step == trainer.steps == 12
        assert_equal(TrainedHead(trainer.head, trainer.table()), whole)


def test_token_budget_decides_the_steps(setting, tmp_path):
    _, corpus, _ = setting
    trainer = trainer_of(setting, tmp_path / "work", tokens=60)
    order = sequence_order(6, seed=0)
    seen, steps = 0, 0
    while seen < 60:
        for place in islice(order, 2):
            seen += len(corpus["input_ids"][place]) - corpus["response_start"][place]
        steps += 1
    trainer.run()
    table = trainer.table()
    assert trainer.steps == table["step"].max() == steps == trainer.steps_of(60)
    assert table[table["ttt_step"] == 0]["slots"].sum() >= 60
    assert table[(table["ttt_step"] == 0) & (table["step"] < steps)]["slots"].sum() < 60


def test_training_starts_from_given_weights(setting, tmp_path):
    first = run(setting, tmp_path / "first")
    given = {"fc.weight": first.head.fc.weight.detach(), "norm.weight": first.head.norm.weight.detach()}
    trainer = trainer_of(setting, tmp_path / "second", start=given)
    assert torch.equal(trainer.head.fc.weight, first.head.fc.weight)
    assert not torch.equal(trainer.head.lm_head.weight, first.head.lm_head.weight)
    trainer.run(until=4)
    assert trainer_of(setting, tmp_path / "second", start=given).step == 4
    other = {"fc.weight": given["fc.weight"] + 1}
    assert trainer_of(setting, tmp_path / "second", start=other).step == 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"fc.bias": torch.zeros(1)}, "the head has no weight 'fc.bias'; it has fc.weight, "),
        ({"fc.weight": torch.zeros(2, 2)}, r"'fc.weight' has shape \(2, 2\); expected \(32, 96\)"),
    ],
)
def test_start_weights_that_do_not_fit_are_refused(setting, tmp_path, weights, message):
    with pytest.raises(UserError, match=message):
        trainer_of(setting, tmp_path / "work", start=weights)
