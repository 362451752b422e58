"""The page of the layers needs no training, stands alone, and answers which layers, how sure and why."""

import dataclasses
import json
import runpy
import sys
from pathlib import Path

import pytest

from speclayers.analysis.layers_page import few_tokens, layers_answer, layers_page, read_layers
from speclayers.config import StatisticsConfig
from speclayers.export.recommendation import recommendation
from speclayers.files import write_json
from speclayers.specs import AggregateSpec
from speclayers.tables import SELECTIONS, read_table
from tests.synthetic import STUDY, MadeUpModel, layout, write_model
from tests.unit.test_report import Page, without_numbers

SCRIPT = Path(__file__).parents[2] / "scripts" / "render_layers.py"
SPEC = AggregateSpec(study=STUDY, statistics=StatisticsConfig(resamples=100))
SETS = {"eagle3": (2, 6, 9), "elsi": (4, 8, 11), "exhaustive": (4, 8, 12), "elsi_c": (4, 8, 11)}


def recommended(results):
    return recommendation(results.model, results.manifest.layers, read_table(results.selections, SELECTIONS))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), MadeUpModel("bare", questions=0, sets=SETS))


@pytest.fixture(scope="module")
def study(results, tmp_path_factory):
    return read_layers({"bare": results}, SPEC, "f", tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def page(study, results):
    return layers_page(study, [recommended(results)])


def test_the_answer_says_which_how_sure_and_why(study):
    (found,) = layers_answer(study).found
    assert "{4, 8, 12} holds the most joint entropy" in found
    assert "how sure" in found
    assert "why: highest E(S)" in found
    assert "layer 12 again in 80 %" in found
    assert "EAGLE-3's own {2, 6, 9} holds" in found
    assert "From 120 to 240 tokens" in found


def test_the_page_shows_every_figure_of_the_layers(page):
    places = {a["data-figure"] for _, a in Page(page).elements if "data-figure" in a}
    kinds = ("wave", "similarity", "filter", "sweep", "convergence", "stability", "agreement")
    assert places == {f"{kind}-bare" for kind in kinds}


def test_the_page_gives_ids_with_their_conventions_and_gaps_to_the_best(page):
    text = Page(page).text
    assert "[3, 7, 10]" in text  # SGLang's ids of layers 4, 8, 11
    assert "none: layer 12, the last block's output, is never captured" in text
    assert "as the engine adds 1" in text
    assert "Distance in E(S)" in text
    assert "0.033" in text  # a third of a layer, 0.1 nats each


def test_few_tokens_are_warned_of(study, page):
    assert few_tokens(study) == []  # 900 tokens, width 64
    few = dataclasses.replace(study, cka=study.cka.assign(n_tokens=200))
    assert "200 filtered tokens, fewer than 4 × its width 64" in few_tokens(few)[0]


def test_missing_numbers_are_shown_as_missing(study, results):
    frames = {f.name: without_numbers(getattr(study, f.name)) for f in dataclasses.fields(study)}
    page = layers_page(dataclasses.replace(study, **frames), [recommended(results)])
    assert "nan" not in Page(page).text.lower().split()


def test_the_script_renders_several_models(tmp_path, monkeypatch):
    where, options = layout(tmp_path), []
    for name in ("bare", "other"):
        results = write_model(tmp_path, MadeUpModel(name, questions=0, sets=SETS))
        path = Path(where.recommendation(name))
        write_json(path, recommended(results))
        pairs = {"target": where.manifest(name), "geometry": results.geometry, "selections": results.selections}
        options += [part for key, value in pairs.items() for part in (f"--{key}", f"{name}={value}")]
        options += ["--recommendation", f"{name}={path}"]
    spec = json.dumps(SPEC.model_dump())
    arguments = ["render_layers", "--spec", spec, *map(str, options), "--page", where.layers_page]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    page = Path(where.layers_page)
    assert "other, k = 3" in page.read_text()
    assert [path.name for path in page.parent.iterdir() if path.name.startswith(".layers")] == []
