"""Some training responses are never trained on, and tell when training goes wrong."""

import re

import numpy as np
import pytest
import torch

from speclayers.drafting.training_data import TrainingData, is_held_out, trained_responses
from speclayers.drafting.training_log import TrainingLog
from speclayers.drafting.ttt import StepMetrics, ttt_loss
from speclayers.errors import UserError
from speclayers.tables import HELD_OUT, TRAIN
from tests.drafts import make_corpus, make_store, run, trainer_of, weights

SHARE = 0.4


@pytest.fixture
def many(tiny_target, tmp_path):
    """Target, corpus and store of ten sequences."""
    target, corpus = tiny_target(), make_corpus(10)
    return target, corpus, make_store(tmp_path, target, corpus, [1, 3, 5])


def held_out_ids(corpus):
    return [prompt_id for prompt_id in corpus["prompt_id"] if is_held_out(prompt_id, SHARE)]


def test_a_hash_of_the_id_holds_out_about_the_share_asked_for():
    ids = [f"prompt-{number}" for number in range(4000)]
    assert sum(is_held_out(one, 0.05) for one in ids) == pytest.approx(200, abs=50)
    assert not any(is_held_out(one, 0.0) for one in ids)
    assert all(is_held_out(one, 0.3) for one in ids if is_held_out(one, 0.2))


def test_the_same_prompts_of_the_default_corpus_are_held_out_for_good():
    """By SHA-256 of the prompt's id: heads of earlier versions were not trained on these either."""
    assert [number for number in range(60) if is_held_out(f"generated-2-{number:06d}", 0.05)] == [7, 19, 37, 55]


def test_all_turns_of_a_conversation_are_held_out_together(tiny_target, tmp_path):
    target, corpus = tiny_target(), make_corpus(12, turns=2)
    store = make_store(tmp_path, target, corpus, [1, 3, 5])
    data = TrainingData(target, corpus, store, [1, 3, 5], torch.arange(0, 256, 2), 3)
    trained, held_out = ([found.sample for found in part.read(range(len(part)))] for part in data.split(SHARE))
    assert [sample.sample_id for sample in trained] == ["s0", "s0/1", "s1", "s1/1", "s2", "s2/1"]
    assert [sample.sample_id for sample in held_out] == ["s3", "s3/1", "s4", "s4/1", "s5", "s5/1"]
    for sample, response in zip(trained, trained_responses(corpus, SHARE), strict=True):
        np.testing.assert_array_equal(response, sample.ids[sample.first_slot + 1 :])


def test_held_out_sequences_change_no_weight(many, tmp_path):
    target, corpus, _ = many
    first = run(many, tmp_path / "first", held_out=SHARE, vocabulary=32)
    changed = corpus.copy()
    changed["input_ids"] = [
        (ids + 7) % 250 + 2 if is_held_out(prompt_id, SHARE) else ids
        for prompt_id, ids in zip(corpus["prompt_id"], corpus["input_ids"], strict=True)
    ]
    store = make_store(tmp_path / "changed", target, changed, [1, 3, 5])
    second = run((target, changed, store), tmp_path / "second", held_out=SHARE, vocabulary=32)
    assert 0 < len(held_out_ids(corpus)) < 10
    torch.testing.assert_close(weights(first.head), weights(second.head), rtol=0, atol=0)
    assert not first.table.equals(second.table)
    assert first.table[first.table["split"] == TRAIN].equals(second.table[second.table["split"] == TRAIN])


def test_evaluation_is_the_mean_over_all_held_out_slots(many, tmp_path):
    target, corpus, store = many
    trainer = trainer_of(many, tmp_path / "work", held_out=SHARE, evaluate_every=5)
    trainer.run()
    table = trainer.table()
    evaluated = table[table["split"] == HELD_OUT]
    assert evaluated["step"].tolist() == [5, 5, 5, 10, 10, 10, 12, 12, 12]
    data = TrainingData(target, corpus, store, [1, 3, 5], trainer.head.draft_ids, 3).split(SHARE)[1]
    assert len(data) == len(held_out_ids(corpus))
    batch = data.batch(data.read(range(len(data))))
    _, expected = ttt_loss(trainer.head, batch.sequences, batch.targets, 0.8)
    last = evaluated[evaluated["step"] == 12]
    for column in ("loss", "accuracy", "expected_acceptance", "slots"):
        assert last[column].tolist() == pytest.approx([getattr(m, column) for m in expected], rel=1e-5)


def test_every_head_holds_out_the_same(many, tmp_path):
    tables = [run(many, tmp_path / name, name, held_out=SHARE).table for name in ("eagle3.l01.s0", "eagle3.l03-l05.s1")]
    slots = [table[table["split"] == HELD_OUT]["slots"].tolist() for table in tables]
    assert slots[0] == slots[1]


def test_killed_training_keeps_its_evaluations(many, tmp_path):
    settings = {"held_out": SHARE, "evaluate_every": 2}
    whole = run(many, tmp_path / "whole", **settings)
    trainer_of(many, tmp_path / "paused", **settings).run(until=7)
    assert run(many, tmp_path / "paused", **settings).table.equals(whole.table)


def test_a_share_that_leaves_nothing_is_refused(many, tmp_path):
    message = "draft.held_out: 0.99 leaves none of 10 sequences to train on; expected a smaller share"
    with pytest.raises(UserError, match=message):
        run(many, tmp_path / "work", held_out=0.99)


def log_of(*evaluations):
    """A log of a training loss of one TTT step at every step, and a held-out loss at every second."""
    log = TrainingLog()
    for number, (trained, held_out) in enumerate(evaluations, start=1):
        for step in (2 * number - 1, 2 * number):
            log.add(step, 0.0, TRAIN, [StepMetrics(trained, 0.5, 0.5, 10)])
        log.add(2 * number, 0.0, HELD_OUT, [StepMetrics(held_out, 0.5, 0.5, 10)])
    return log


@pytest.mark.parametrize(
    ("evaluations", "parted"),
    [
        ([(4.0, 4.2)], False),
        ([(4.0, 4.2), (3.0, 4.0), (2.0, 4.1)], False),  # above its lowest, but not by 5 %
        ([(4.0, 4.2), (3.0, 4.0), (2.0, 4.3)], True),
        ([(4.0, 4.2), (3.0, 4.0), (3.1, 4.3)], False),  # both rise: a training that goes wrong otherwise
        ([(4.0, 4.2), (3.0, 4.0), (2.0, 4.3), (1.0, 4.0)], False),
    ],
)
def test_parting_is_a_rising_held_out_loss_under_a_falling_training_loss(evaluations, parted):
    assert log_of(*evaluations).has_parted() == parted


def test_evaluations_and_learning_by_heart_are_told(many, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(TrainingLog, "has_parted", lambda log: log.table()["step"].max() == 10)
    run(many, tmp_path / "work", held_out=SHARE, evaluate_every=5)
    lines = caplog.text.splitlines()
    trained = [line for line in lines if "step 6 of 12: loss" in line]
    assert re.search(r"accuracy [\d./-]+, simulated length \d\.\d\d, \d+ tok/s, 0:00:\d\d left", trained[0])
    told = [line for line in lines if "held out: loss" in line or "learns its training responses by heart" in line]
    assert [re.search(r"step \d+", line)[0] for line in told] == ["step 5", "step 10", "step 10", "step 12"]
