"""The page of the layers needs no training, stands alone, and answers which layers, how sure and why."""

import dataclasses
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import vl_convert

from speclayers.analysis.geometry_figures import wave
from speclayers.analysis.inputs import layer_results
from speclayers.analysis.layer_warnings import (
    few_tokens,
    filter_like_random,
    judged_by_another_set,
    not_settled,
    short_of_the_best,
)
from speclayers.analysis.layers_page import layers_answer, layers_page, read_layers, write_layers_page
from speclayers.analysis.selection_figures import stabilities
from speclayers.config import StatisticsConfig
from speclayers.errors import UserError
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
    found, enough = layers_answer(study).found
    assert "{4, 8, 12} holds the most joint entropy" in found
    assert "how sure" in found
    assert "why: highest E(S)" in found
    assert "layer 12 again in 80 %" in found
    assert "EAGLE-3's own {2, 6, 9} holds" in found
    assert enough.startswith("bare was measured on enough tokens")


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


def test_few_tokens_are_warned_of(study):
    assert list(few_tokens(study, "bare")) == []  # 900 tokens, width 64
    few = dataclasses.replace(study, cka=study.cka.assign(n_tokens=200))
    assert "200 filtered tokens, fewer than 4 × its width 64" in next(few_tokens(few, "bare"))


def test_too_little_calibration_is_told_with_the_rule_and_the_numbers(study):
    rows = study.convergence
    told = layers_answer(study).found[-1]
    assert "bare was measured on enough tokens: from 120 to 240 of them, entropy of a layer moves by 0.2" in told
    assert "(allowed are 0.25, a tenth of the span over the layers)" in told
    assert list(not_settled(study, "bare")) == []
    half = rows["n_tokens"] < 240
    for moving in (rows.assign(entropy=rows["entropy"] - 0.1 * half), rows.assign(cka_next=rows["cka_next"] - half)):
        (warned,) = not_settled(dataclasses.replace(study, convergence=moving), "bare")
        assert warned.startswith("bare was not measured on enough tokens")


def test_a_filter_that_does_no_more_than_random_tokens_is_warned_of(study):
    assert list(filter_like_random(study, "bare")) == []  # better in the first part
    idle = dataclasses.replace(study, filter_effect=study.filter_effect.assign(reduction_random_low=-0.1))
    assert "as many random tokens make prompts as alike" in next(filter_like_random(idle, "bare"))


def test_a_search_that_falls_short_of_the_best_or_was_not_checked_is_told(study):
    assert "elsi with k = 3 ends 0.033 nats of E(S) below the best" in next(short_of_the_best(study, "bare"))
    near = study.selected.assign(score=4.0)
    assert list(short_of_the_best(dataclasses.replace(study, selected=near), "bare")) == []
    without = dataclasses.replace(study, selected=study.selected[study.selected["selector"] != "exhaustive"])
    assert "how far elsi with k = 3 is from the best of all sets is not known" in next(
        short_of_the_best(without, "bare")
    )


def judged_apart(study, selector, layers):
    """The study, with half-samples that judge another set of one selector."""
    rows = study.selected
    sets = [layers if name == selector else own for name, own in zip(rows["selector"], rows["layers"], strict=True)]
    return dataclasses.replace(study, selected=rows.assign(half_sample_set=sets))


def test_shares_are_read_against_what_the_half_samples_search_for(study, results):
    assert list(judged_by_another_set(study, "bare")) == []
    apart = judged_apart(study, "exhaustive", [3, 8, 12])
    told = layers_answer(apart).found[0]
    assert "half-samples judge {3, 8, 12} instead, order 2's choice: it depends" in told
    assert "layer 8 again in 80 %" in told
    assert "layer 4 again" not in told
    (warned,) = judged_by_another_set(apart, "bare")
    assert "exhaustive with k = 3 ({3, 8, 12} in place of {4, 8, 12})" in warned
    text = Page(layers_page(apart, [recommended(results)])).text
    assert "of {3, 8, 12}, which order 2 chooses on all prompts: 4: 80 %" in text
    figure = stabilities(apart, "bare")
    hollow = [layer for layer in figure.chart["layer"] if layer["mark"].get("filled") is False]
    assert [row["layer"] for row in figure.chart["datasets"][hollow[0]["data"]["name"]]] == [3, 8, 12]
    assert "1 choice could only be judged by what order 2 chooses" in figure.title


def test_selectors_with_the_same_aim_are_one_opinion(study):
    rows = study.selected
    best = rows[rows["selector"] == "exhaustive"].iloc[0]
    same = [
        best["layers"] if name == "elsi" else own for name, own in zip(rows["selector"], rows["layers"], strict=True)
    ]
    agreed = rows.assign(
        layers=same,
        layer_set=[
            "l04-l08-l12" if len(s) and s[-1] == 12 else n for s, n in zip(same, rows["layer_set"], strict=True)
        ],
    )
    assert (
        "(elsi and exhaustive all maximise E(S): one opinion)"
        in layers_answer(dataclasses.replace(study, selected=agreed)).found[0]
    )
    assert "one opinion" not in layers_answer(study).found[0]


def test_the_waves_switches_draw_both_states_and_files_show_the_default(study, page):
    places = [(tag, a["data-switches"]) for tag, a in Page(page).elements if "data-switches" in a]
    assert places == [("form", "wave-bare")]  # radio groups of the same name on one page are apart in forms only
    chart = wave(study, "bare").for_file()
    by_name = {parameter["name"]: parameter for parameter in chart["params"]}
    assert by_name["sinks"]["bind"]["options"] == ["dropped", "kept"]
    assert by_name["shown"]["bind"]["options"][0] == by_name["shown"]["value"] == "all"

    def lines(**values):
        parameters = [p | {"value": values.get(p["name"], p["value"])} for p in chart["params"]]
        svg = vl_convert.vegalite_to_svg(chart | {"params": parameters})
        drawn = re.findall(r'aria-roledescription="line mark"[^>]*d="([^"]+)"|d="(M[^"]+)"[^>]*stroke-width="2"', svg)
        return svg, {a or b for a, b in drawn if (a or b).count("L") == 12}

    default, dropped = lines()
    assert "pooled over prompts, sinks dropped" in default
    kept, other = lines(sinks="kept")
    assert "pooled over prompts, sinks kept" in kept
    assert len(dropped) == len(other) == 6  # three subsets, pooled and per prompt
    assert not dropped & other
    _, alone = lines(shown="filter on: most uncertain tokens")
    assert len(alone) == 2
    assert alone < dropped


def test_missing_numbers_are_shown_as_missing(study, results):
    frames = {f.name: without_numbers(getattr(study, f.name)) for f in dataclasses.fields(study)}
    page = layers_page(dataclasses.replace(study, **frames), [recommended(results)])
    assert "nan" not in Page(page).text.lower().split()


def test_geometry_and_recommendations_of_another_model_are_refused(results, tmp_path):
    other = dataclasses.replace(results, model="other")
    with pytest.raises(UserError, match=r"entropy\.parquet: is of model bare, expected other"):
        read_layers({"other": other}, SPEC, "f", tmp_path)
    path = tmp_path / "recommendation.json"
    write_json(path, recommended(results) | {"model": "other"})
    with pytest.raises(UserError, match=r"recommendation\.json: is of model other, expected bare"):
        write_layers_page({"bare": results}, {"bare": path}, SPEC, "f", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("option", ["--geometry", "--selections", "--recommendation"])
def test_an_option_for_another_model_is_refused(results, tmp_path, option):
    manifest = layout(tmp_path).manifest("bare")
    write_model(tmp_path, MadeUpModel("bare", questions=0))
    given = {name: ["bare=x"] for name in ("--geometry", "--selections", "--recommendation")} | {option: ["b=x"]}
    with pytest.raises(UserError, match=f"{option} and --target: name different models: b, bare"):
        layer_results([f"bare={manifest}"], *given.values())


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
    assert "other, k\u00a0=\u00a03" in page.read_text()
    assert [path.name for path in page.parent.iterdir() if path.name.startswith(".layers")] == []
