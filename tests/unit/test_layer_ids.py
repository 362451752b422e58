"""The same tensor has the id that each engine gives it, and what an engine cannot capture is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclayers.errors import UserError
from speclayers.export.layer_ids import ENGINES, eagle_layers, layer_ids, layers_of_ids, served_layers
from speclayers.export.recommendation import recommendation
from speclayers.tables import SELECTIONS, read_table
from tests.synthetic import MadeUpModel, layout, write_model

SCRIPT = Path(__file__).parents[2] / "scripts" / "recommend_layers.py"


@pytest.mark.parametrize(
    ("engine", "default"),
    [("eagle", [2, 18, 33]), ("vllm", [2, 18, 33]), ("speculators", [2, 18, 33]), ("sglang", [1, 17, 32])],
)
def test_eagles_own_layers_are_the_defaults_of_every_engine(engine, default):
    # of 36 blocks: EAGLE hard-codes 2, N // 2, N - 3; SGLang's nested default is 1, N // 2 - 1, N - 4
    assert layer_ids(engine, [2, 18, 33], 36) == default


@given(st.lists(st.integers(1, 35), min_size=1, max_size=5, unique=True))
def test_ids_ascend_and_differ_from_the_layers_by_one_offset(layers):
    for engine, facts in ENGINES.items():
        ids = layer_ids(engine, layers, 36)
        assert ids == sorted(layer + facts.offset for layer in layers)
        assert layers_of_ids(engine, ids) == tuple(sorted(layers))


def test_the_ends_are_served_where_they_are_captured():
    for engine in ("vllm", "speculators"):
        assert layer_ids(engine, [36, 0], 36) == [0, 36]
    for engine in ("eagle", "sglang"):
        with pytest.raises(UserError, match="layer 36, the last block's output, is never captured"):
            layer_ids(engine, [2, 36], 36)
        with pytest.raises(UserError, match="layer 0, the embedding's output, is not captured"):
            layer_ids(engine, [0, 3], 36)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@given(layers=st.sets(st.integers(1, 11), min_size=1, max_size=3))
def test_padding_keeps_the_layers_and_adds_as_few_as_the_engine_asks(engine, layers):
    served = served_layers(engine, sorted(layers), 12)
    assert layers <= set(served)
    assert list(served) == sorted(set(served))
    assert len(served) == (len(layers) if len(layers) >= ENGINES[engine].least else 3)
    if layers <= set(eagle_layers(12)):
        assert set(served) <= set(eagle_layers(12))


def test_too_many_layers_and_too_few_blocks_are_refused():
    with pytest.raises(UserError, match="EAGLE cannot serve 4 layers"):
        served_layers("eagle", [1, 2, 3, 4], 12)
    with pytest.raises(UserError, match="3 blocks are too few to pad with"):
        served_layers("sglang", [1], 3)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([3, 37], "37 is outside 0 to 36"),
        ([-1], "-1 is outside 0 to 36"),
        ([3, 3], "each once"),
        ([], "expected one layer or more"),
    ],
)
def test_layers_that_cannot_be_are_refused(engine, layers, message):
    with pytest.raises(UserError, match=message):
        layer_ids(engine, layers, 36)


def test_unknown_engine_is_refused():
    with pytest.raises(UserError, match="engine 'tgi' is unknown; known are eagle, vllm, speculators, sglang"):
        layer_ids("tgi", [1], 12)


def selections(*layer_sets):
    row = {"selector": "elsi", "seed": 0, "score": 4.0, "runner_up": "[]", "stability": '{"4": 0.8}', "reason": "why"}
    row |= {"trace": "[]"}
    return pd.DataFrame(
        [row | {"layers": layers, "half_sample_set": layers, "k": len(layers)} for layers in layer_sets]
    )


def test_recommendation_gives_ids_or_the_reason_why_there_are_none():
    found = recommendation("m", 36, selections([5, 23, 35], [36], [28]))["selections"]
    assert found[0]["ids"]["sglang"] == {"ids": [4, 22, 34], "refused": None, "note": None}
    assert found[0]["name"] == "l05-l23-l35"
    assert found[1]["ids"]["vllm"]["ids"] == [36]
    assert found[1]["ids"]["eagle"]["ids"] is None
    assert "never captured" in found[1]["ids"]["eagle"]["refused"]
    assert "zero columns" in found[2]["ids"]["sglang"]["note"]
    assert found[2]["stability"] == {"4": 0.8}


@pytest.mark.parametrize(
    ("layers", "notes"),
    [
        ([2, 18, 33], {"eagle": None, "vllm": None, "sglang": None}),
        ([28], {"eagle": "zero columns", "vllm": "num_aux_hidden_states", "sglang": "skips fc for one layer"}),
        ([2, 9, 18, 33], {"eagle": "cannot serve more", "vllm": "num_aux_hidden", "sglang": "num_aux_hidden_states"}),
    ],
)
def test_a_note_says_what_other_numbers_of_layers_need(layers, notes):
    (found,) = recommendation("m", 36, selections(layers))["selections"]
    for engine, note in notes.items():
        told = found["ids"][engine]["note"]
        assert told is None if note is None else note in told
        assert len(layers) <= 3 or "zero columns" not in (told or "")  # more than three cannot be padded to three


def test_a_selection_beyond_the_model_is_named():
    with pytest.raises(UserError, match=r"selections of m: elsi chose layer 37, expected 0 to 36"):
        recommendation("m", 36, selections([2, 18, 33], [5, 37]))


def test_the_script_writes_every_selection_and_the_conventions(tmp_path):
    results = write_model(tmp_path, MadeUpModel("bare", questions=0))
    where = layout(tmp_path)
    output = tmp_path / "recommendation.json"
    arguments = ["--model", "bare", "--target", where.manifest("bare")]
    arguments += ["--selections", results.selections, "--output", output]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())
    assert len(written["selections"]) == len(read_table(results.selections, SELECTIONS))
    assert set(written["engines"]) == set(ENGINES)
    assert "before the final norm" in written["convention"]
    arguments[1] = "other"
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is of model bare, expected other" in done.stderr
