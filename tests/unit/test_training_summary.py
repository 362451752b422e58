"""How a head ended is read from held-out responses, and from training ones only where nothing was held out."""

import pytest

from speclayers.analysis.schemas import SUMMARIES
from speclayers.analysis.summary import write_summary
from speclayers.tables import HELD_OUT, TRAIN, TRAINING, read_table, write_table
from tests.synthetic import MadeUpModel, origin, write_model


def ended(tmp_path, results):
    write_summary(results, tmp_path / "summary", origin("made-up"))
    return read_table(tmp_path / "summary" / "heads.parquet", SUMMARIES["heads"]).iloc[0]


@pytest.fixture
def results(tmp_path):
    """A made-up model's results, and the training table of its first head."""
    results = write_model(tmp_path, MadeUpModel("made-up"))
    path = next(iter(results.heads.values())) / "training.parquet"
    return results, path, read_table(path, TRAINING)


def test_the_last_evaluation_counts(tmp_path, results):
    results, _, training = results
    last = training[(training["split"] == HELD_OUT) & (training["step"] == 100)]
    row = ended(tmp_path, results)
    assert row["final_split"] == HELD_OUT
    assert list(row["final_loss"]) == last["loss"].tolist()
    assert list(row["final_accuracy"]) == last["accuracy"].tolist()
    assert row["simulated_length"] == pytest.approx(last["simulated_length"].iloc[0])


def test_without_held_out_responses_the_last_steps_count(tmp_path, results):
    results, path, training = results
    training = training[training["split"] == TRAIN]
    write_table(path, TRAINING, training, origin("made-up"))
    last = training[training["step"] > 90].groupby("ttt_step")["loss"].mean()
    row = ended(tmp_path, results)
    assert row["final_split"] == TRAIN
    assert list(row["final_loss"]) == pytest.approx(last.tolist())
