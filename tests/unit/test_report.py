"""The page stands alone, tells what the data say, and stays true for odd data."""

import dataclasses
import json
import re
import runpy
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from speclayers.analysis import page_tables, report
from speclayers.analysis.acceptance_figures import categories, depths, forest, prediction
from speclayers.analysis.figures import COLOURS, DASHES, SHAPES, Figure, padded, records
from speclayers.analysis.layer_warnings import warnings_of
from speclayers.analysis.report import exactness_sentence, render, sections, write_figures, write_report
from speclayers.analysis.screening_page import curve
from speclayers.analysis.study import settings_of
from speclayers.analysis.wording import joined, layers_in_words, unbroken
from tests.synthetic import STUDY, MadeUpModel, layout, made_up_study, write_model

SCRIPTS = Path(__file__).parents[2] / "scripts"
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """What a browser would see of a page: elements, texts, and whether all is closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def rendered(study):
    parts = sections(study)
    drawn = [block.content for part in parts for block in part.blocks if isinstance(block.content, Figure)]
    return render(study, parts, drawn), drawn


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    other = MadeUpModel(
        "a-name-of-exactly-forty-characters-12345", n_layers=6, sets={"eagle3": (2, 3)}, different_turns=1
    )
    return made_up_study(tmp_path_factory.mktemp("study"), MadeUpModel("tiny-qwen3"), other)


@pytest.fixture(scope="module")
def whole(study):
    return rendered(study)


@pytest.fixture(scope="module")
def page(whole):
    return whole[0]


@pytest.fixture(scope="module")
def drawn(whole):
    return {figure.name: figure for figure in whole[1]}


def test_the_page_is_well_formed_and_loads_nothing(page):
    found = Page(page)
    for tag, attributes in found.elements:
        assert tag not in ("link", "iframe", "img", "object")
        assert "src" not in attributes
        assert not re.match(r"https?:|//", attributes.get("href", ""))
    (policy,) = (a["content"] for t, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert "@import" not in page.split("</style>")[0]
    assert "url(" not in page.split("</style>")[0]


def test_the_charting_library_is_inlined_once(page):
    assert page.count("window.vegaEmbed = ") == 1 or page.count("window.vegaEmbed=") == 1
    assert len(page) < 3_000_000


def test_every_figure_has_a_place_a_chart_and_a_text(page, study):
    found = Page(page)
    places = [attributes for _, attributes in found.elements if "data-figure" in attributes]
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    charts = data["charts"]
    assert set(data["frames"]) == set(charts)
    assert {place["data-figure"] for place in places} == set(charts)
    assert len(places) == len(charts) == 28
    for place in places:
        assert place["role"] == "img"
        assert len(place["aria-label"]) > 60


def test_ids_are_unique_and_links_lead_somewhere(page):
    elements = Page(page).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements:
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_the_page_tells_the_finding_and_the_warning(page):
    text = Page(page).text
    assert "no set is distinguishable" in text or "lower" in text
    assert "differ from plain greedy decoding" in text
    assert "nan" not in text.lower().split()


def test_titles_come_from_the_data(study, drawn):
    assert "(eagle3): fewer with {1, 2, 3} (at 2 of 2 settings)" in drawn["difference-tiny-qwen3"].title
    assert drawn["similarity-tiny-qwen3"].title.startswith("The states of tiny-qwen3 turn after layers 2 and 10;")
    assert "adding the first token back lowers it most at layer" in drawn["wave-tiny-qwen3"].title
    assert "25 % lower in the first part and not visibly changed in the middle" in drawn["filter-tiny-qwen3"].title
    assert "(0." in drawn["time-tiny-qwen3"].title
    assert "times its speed" in drawn["time-tiny-qwen3"].title
    assert "too few" in drawn["prediction-tiny-qwen3"].title
    same = dataclasses.replace(study, comparisons=study.comparisons.assign(verdict="not distinguishable"))
    assert forest(same, "tiny-qwen3").title.startswith(
        "On tiny-qwen3, no set is distinguishable from {2, 6, 9} (eagle3)"
    )


def test_one_model_with_one_set_has_nothing_to_compare(tmp_path):
    study = made_up_study(tmp_path, MadeUpModel("lonely", sets={"eagle3": (2, 6, 9)}), benchmarks=False)
    text = Page(rendered(study)[0]).text
    assert "There is no set to compare with eagle3" in text
    assert "nothing can be compared" in text
    assert "No job was measured" in text


def test_a_screening_has_a_curve_and_two_tables(tmp_path, page):
    assert 'id="screening"' not in page
    study = made_up_study(tmp_path, MadeUpModel("narrow", screened=True, questions=0), benchmarks=False)
    page, drawn = rendered(study)
    text = Page(page).text
    assert 'id="screening"' in page
    (curve,) = [figure for figure in drawn if figure.name == "curve-narrow"]
    assert curve.title == (
        "Alone, layer 12 of narrow drafts best after 4,000 tokens (2.10), layer 1 worst (1.55);"
        " ranks after 1,000 tokens agree with these by ρ = 1.00"
    )
    assert "only the layers that were kept" not in curve.caption
    assert "limits by jackknife over 16 prompts" in curve.caption
    (rows,) = curve.chart["datasets"].values()
    assert len(rows) == 36
    (race,) = [
        b.content
        for s in sections(study)
        for b in s.blocks
        if s.name == "screening" and "Screening of" in str(b.content)
    ]
    assert race.rows[0] == [
        "{12}",
        "single layer",
        "1.90 [1.70, 2.10]",
        "2.00 [1.80, 2.20]",
        "2.10 [1.90, 2.30]",
        "won",
    ]
    assert [row[-1] for row in race.rows].count("out after 1,000 tokens") == 8
    assert "on 16 held-out prompts" in race.caption
    assert "chosen were" in text


def test_a_curve_of_those_kept_says_so(tmp_path):
    study = made_up_study(
        tmp_path, MadeUpModel("short", screened=True, whole_curve=False, questions=0), benchmarks=False
    )
    figure = curve(study, "short")
    assert figure.title == "Alone, layer 12 of short drafts best after 1,000 tokens (1.90), layer 1 worst (1.35)"
    assert "Larger budgets show only the layers that were kept" in figure.caption


def test_moved_heads_have_a_table(tmp_path, page):
    assert 'id="transfer"' not in page
    made_up = MadeUpModel(
        "moving", questions=30, temperatures=(0.0,), moved=(("eagle3", "elsi", 10), ("eagle3", "elsi", 0))
    )
    (table,) = [b.content for s in sections(made_up_study(tmp_path, made_up)) for b in s.blocks if s.name == "transfer"]
    assert [(row[1], row[2]) for row in table.rows] == [
        ("{2, 6, 9}", "start, on its own layers"),
        ("{4, 8, 11}", "from scratch"),
        ("{4, 8, 11}", "from {2, 6, 9}, untouched"),
        ("{4, 8, 11}", "from {2, 6, 9}, trained on for 10 %"),
    ]
    assert table.rows[2][-1] == "lower"
    assert table.rows[2][6].startswith("−")


def test_heads_trained_elsewhere_are_shown_with_their_layers(tmp_path, page):
    assert "trained elsewhere" not in page
    foreign = {"own": (2, 6, 9), "own.p10.s0": (2, 6, 9), "odd": (1, 5)}
    study = made_up_study(tmp_path, MadeUpModel("foreign", questions=6, temperatures=(0.0,), pretrained=foreign))
    tables = {name: [b.content for b in s.blocks if b.kind == "table"] for s in sections(study) for name in [s.name]}
    listed = next(table for table in tables["selections"] if table.caption.startswith("Heads trained elsewhere"))
    assert [row[1:] for row in listed.rows] == [
        ["pretrained.odd", "{1, 5}", "no selector", "as it came"],
        ["pretrained.own", "{2, 6, 9}", "eagle3, uniform", "as it came"],
        ["pretrained.own.p10", "{2, 6, 9}", "eagle3, uniform", "10 %"],
    ]
    compared = next(table for table in tables["acceptance"] if table.caption.startswith("Differences"))
    assert "pretrained.odd {1, 5}" in {row[0] for row in compared.rows}


def test_geometry_alone_says_that_nothing_was_measured(tmp_path):
    study = made_up_study(tmp_path, MadeUpModel("bare", questions=0))
    page, drawn = rendered(study)
    text = Page(page).text
    for missing in (
        "No acceptance was measured",
        "No head was trained",
        "No decoding was timed",
        "Nothing was decoded",
    ):
        assert missing in text
    assert {figure.name for figure in drawn} == {
        *(
            f"{kind}-bare"
            for kind in ("wave", "similarity", "filter", "sweep", "convergence", "stability", "agreement")
        ),
        "costs",
    }


def test_one_question_has_no_limits(tmp_path):
    study = made_up_study(tmp_path, MadeUpModel("single", questions=1, temperatures=(0.0,)))
    page, _ = rendered(study)
    assert "not measured" in Page(page).text
    assert "One question does not tell how small a difference" in Page(page).text


def test_many_random_sets_are_correlated_and_charts_name_what_they_leave_out(tmp_path):
    sets = {"eagle3": (2, 6, 9)} | {f"random{i}": (1 + i, 3 + i, 4 + i) for i in range(8)}
    study = made_up_study(tmp_path, MadeUpModel("many", sets=sets, temperatures=(0.0,), questions=6), benchmarks=False)
    assert "ρ = " in prediction(study, "many").title
    assert "7 of 9" in depths(study, "many").caption


def hostile(value):
    return "</script><script>alert('x')</script><img src=x onerror=alert(1)>" + value


def test_names_cannot_become_markup(study):
    odd = dataclasses.replace(
        study,
        tau=study.tau.assign(selectors=study.tau["selectors"].map(hostile)),
        comparisons=study.comparisons.assign(selectors=study.comparisons["selectors"].map(hostile)),
        selected=study.selected.assign(label=study.selected["label"].map(hostile), reason=hostile("")),
        facts=study.facts.assign(
            value=[hostile(v) if k == "name" else v for k, v in study.facts[["key", "value"]].itertuples(index=False)]
        ),
    )
    page, _ = rendered(odd)
    elements = Page(page).elements
    assert [tag for tag, _ in elements].count("script") == 3
    assert not any("onerror" in attributes for _, attributes in elements)


def without_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    kept = {"temperature", "nodes", "alpha", "layer", "layer_a", "layer_b", "k", "n_layers"}
    floats = [c for c in frame.columns if frame[c].dtype == np.float64 and c not in kept]
    return frame.assign(**dict.fromkeys(floats, np.nan))


def test_numbers_that_are_missing_everywhere_are_shown_as_missing(study):
    frames = {f.name: without_numbers(getattr(study, f.name)) for f in dataclasses.fields(study)}
    page, drawn = rendered(dataclasses.replace(study, **frames))
    words = re.findall(r"[\w.]+", Page(page).text.lower())
    assert "nan" not in words
    assert "inf" not in words
    for figure in drawn:
        json.dumps(figure.for_page(), allow_nan=False)
        assert "nan" not in figure.title.lower().split()


def rows_of_mark(figure, mark):
    return figure.chart["datasets"][mark["data"]["name"]]


def test_the_heatmap_shows_all_pairs_and_the_chosen_layers(drawn):
    figure = drawn["similarity-tiny-qwen3"]
    _, (cells, frames, dots), (choices,) = (panel["layer"] for panel in figure.chart["vconcat"])
    pairs = {(row["layer_a"], row["layer_b"]) for row in rows_of_mark(figure, cells)}
    assert pairs == {(a, b) for a in range(13) for b in range(13)}
    blocks = rows_of_mark(figure, frames)
    assert [later["min"] - block["max"] for block, later in pairwise(blocks)] == [1] * (len(blocks) - 1)
    chosen = {2, 6, 9, 4, 8, 11, 1, 3}
    assert {row["layer_a"] for row in rows_of_mark(figure, dots)} == chosen
    assert choices["mark"]["filled"]
    assert {row["layer"] for row in rows_of_mark(figure, figure.chart["vconcat"][2])} == chosen


def test_the_wave_shows_the_filter_and_the_sinks(drawn):
    figure = drawn["wave-tiny-qwen3"]
    panels = figure.chart["concat"]
    assert [panel["title"]["text"]["expr"] for panel in panels] == [
        "'pooled over prompts, sinks ' + sinks",
        "'mean over prompts ± 1 sd, sinks ' + sinks",
    ]
    assert [parameter["name"] for parameter in figure.chart["params"]] == ["sinks", "shown"]
    for panel in panels:
        whole = panel if "data" in panel else panel["layer"][-1]
        names = {row["name"].split(":")[0] for row in rows_of_mark(figure, whole)}
        assert names == {"filter off", "filter on", "control"}
        assert {row["sinks"] for row in rows_of_mark(figure, whole)} == {"dropped", "kept"}


def test_the_time_of_a_token_is_told_in_plain_decodings(study, drawn):
    figure = drawn["time-tiny-qwen3"]
    bars = rows_of_mark(figure, figure.chart["layer"][0])
    speed = study.speed[study.speed["model"] == "tiny-qwen3"].set_index("layer_set")["speed_up"]
    whole = sum(row["time"] for row in bars if row["name"] == "{2, 6, 9}")
    assert whole == pytest.approx(1 / speed["l02-l06-l09"])


def test_a_file_of_its_own_has_title_and_caption(drawn):
    figure = drawn["filter-tiny-qwen3"]
    title = figure.for_file()["title"]
    assert "".join("".join(title["text"]).split()) == "".join(figure.title.split())
    assert "".join("".join(title["subtitle"]).split()) == "".join(figure.caption.split())
    assert not any(line.startswith("%") for line in title["text"])


def test_limits_of_two_questions_are_not_drawn(study):
    figure = categories(study, "tiny-qwen3")
    assert study.categories["questions"].max() == 2
    assert "No limits are drawn, as there are only 2 questions a category" in figure.caption
    assert [mark["mark"]["type"] for mark in figure.chart["layer"]] == ["point"]
    many = dataclasses.replace(
        study, categories=study.categories.assign(questions=20, tau_pooled_low=1.0, tau_pooled_high=3.0)
    )
    assert [mark["mark"]["type"] for mark in categories(many, "tiny-qwen3").chart["layer"]] == ["rule", "point"]


def test_depths_that_hardly_any_verification_reached_are_left_out(study):
    rare = study.depths.assign(reached=study.depths["reached"].where(study.depths["draft_depth"] < 3, 2))
    figure = depths(dataclasses.replace(study, depths=rare), "tiny-qwen3")
    assert {row["draft_depth"] for row in rows_of_mark(figure, figure.chart["layer"][1])} == {1, 2}
    assert "of those that accept 1," in figure.title


def test_exact_turns_are_told_in_a_sentence(study):
    told = exactness_sentence(study)
    assert told.endswith(
        "at T = 0 equal plain greedy decoding, id by id; 55 equal transformers' generate; 1 differ elsewhere."
    )


def test_series_differ_in_more_than_colour():
    assert len(COLOURS) == len(SHAPES) == len(DASHES)
    assert len(set(SHAPES)) == len(SHAPES)
    assert len({tuple(dash) for dash in DASHES}) == len(DASHES)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("place", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize("name", ["ink", "soft", "link", "alarm"])
def test_text_stands_out_from_the_paper_as_wcag_asks(name, place):
    css = (Path(report.__file__).parent / "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[place]
    shades = dict(re.findall(r"--(\w+): (#\w{6});", block))
    for paper in ("paper", "band"):
        lighter, darker = sorted((luminance(shades[name]), luminance(shades[paper])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


@pytest.mark.parametrize("colour", COLOURS)
def test_a_series_is_seen_on_white_and_on_dark(colour):
    for paper in ("#ffffff", "#14171b"):
        lighter, darker = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 2  # with a shape and a dash of its own


def test_records_hold_plain_values():
    frame = pd.DataFrame(
        {"a": [1.5, np.nan], "b": [None, "x"], "c": np.array([1, 2], dtype=np.int32), "d": [True, False]}
    )
    assert records(frame).to_dict()["values"] == [
        {"a": 1.5, "b": None, "c": 1, "d": True},
        {"a": None, "b": "x", "c": 2, "d": False},
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [("l02-l15-l27", "{2, 15, 27}"), ("l102", "{102}"), ("lookahead", "lookahead"), ("medusa.l30", "medusa.l30")],
)
def test_layer_sets_are_written_as_sets_in_prose(name, words):
    assert layers_in_words(name) == words


def test_words_are_joined_as_in_a_sentence():
    assert [joined(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_a_domain_is_never_empty():
    assert padded(pd.Series([np.nan])) == [0.0, 1.0]
    low, high = padded(pd.Series([2.0, 2.0]))
    assert low < 2 < high


def test_figures_are_written_as_svg_and_png_and_old_ones_go(drawn, tmp_path):
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "old.svg").write_text("")
    write_figures([drawn["filter-tiny-qwen3"]], folder)
    assert sorted(path.name for path in folder.iterdir()) == ["filter-tiny-qwen3.png", "filter-tiny-qwen3.svg"]
    assert (folder / "filter-tiny-qwen3.png").read_bytes().startswith(b"\x89PNG")
    svg = (folder / "filter-tiny-qwen3.svg").read_text()
    assert "currentColor" not in svg
    assert "against as many random tokens" in svg


@pytest.fixture
def run_script(monkeypatch):
    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")

    return run


def test_the_three_scripts_make_a_report_from_results(tmp_path, run_script):
    made_up = MadeUpModel("bare", questions=0)
    where = layout(tmp_path)
    results = write_model(tmp_path, made_up)
    summary = Path(where.summary("bare", "runs")).parent
    options = tmp_path / "options"
    options.write_text(f"--geometry={results.geometry}\n--selections={results.selections}\n")
    run_script(
        "summarise_model", "--model", "bare", "--target", where.manifest("bare"), f"@{options}", "--output", summary
    )
    run_script(
        *("aggregate_study", "--spec", json.dumps({"study": STUDY, "statistics": {"resamples": 100}})),
        *("--summary", f"bare={summary}", "--target", f"bare={where.manifest('bare')}"),
        *("--database", where.database, "--tables", where.tables, "--answer", where.answer),
    )
    assert len(Path(where.answer).read_text().splitlines()) == 3
    written = {"report": where.report, "figures": where.figures, "summary": where.summary_page}
    written |= {"latex": where.comparison("tex"), "csv": where.comparison("csv")}
    options = [text for name, path in written.items() for text in (f"--{name}", path)]
    run_script("render_report", "--database", where.database, *options)
    assert all(Path(path).exists() for path in written.values())
    assert "nothing is known beyond the geometry" in Path(where.report).read_text()
    assert Path(where.figures, "wave-bare.svg").exists()


def test_a_missing_database_is_one_line_and_exit_status_two(tmp_path, run_script, capsys):
    paths = {name: tmp_path / name for name in ("database", "report", "figures", "summary", "latex", "csv")}
    with pytest.raises(SystemExit) as stopped:
        run_script("render_report", *(text for name, path in paths.items() for text in (f"--{name}", path)))
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {paths['database']}: file is missing\n"


def test_the_report_is_written_whole(study, tmp_path, monkeypatch):
    monkeypatch.setattr("speclayers.analysis.report.write_figures", lambda drawn, folder: None)
    write_report(study, tmp_path / "report.html", tmp_path / "figures")
    assert (tmp_path / "report.html").read_text().rstrip().endswith("</html>")


def test_chains_are_labelled_and_the_answer_speaks_of_trees(tmp_path):
    model = MadeUpModel(
        "chained", n_layers=6, sets={"eagle3": (2, 3), "elsi": (4, 5)}, temperatures=(0.0,), chains=(6,)
    )
    told = made_up_study(tmp_path, model)
    assert set(told.tau.loc[told.tau["chain"], "nodes"]) == set(told.runs.loc[told.runs["chain"], "nodes"]) == {6}
    assert [(nodes, bool(rows["chain"].all())) for _, nodes, rows in settings_of(told.tau)] == [(30, False), (6, True)]
    cells = {row[4] for row in page_tables.tau(told).rows}
    assert cells == {"30", "6, chain"}
    text = Page(rendered(told)[0]).text
    assert "T\u00a0=\u00a00, chain of 6 nodes" in text
    assert "draft trees of 30 nodes" in text
    assert "verifying 30 nodes took" in text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("limits of 95 % at T = 0, k = 3", "limits of 95~% at T~=~0, k~=~3"),
        ("risk = 3, 4 sets, N = 12", "risk = 3, 4 sets, N = 12"),
    ],
)
def test_lines_do_not_end_within_a_number_and_its_sign(text, whole):
    assert unbroken(text) == whole.replace("~", "\u00a0")


def test_each_model_is_shown_with_its_own_warnings(study):
    (layers,) = (section for section in sections(study) if section.name == "layers")
    warned = [(block.model, block.content) for block in layers.blocks if str(block.content).startswith("Warning: ")]
    assert warned == [(model, f"Warning: {line}") for model in study.models for line in warnings_of(study, model)]
    assert warned


def test_a_search_is_told_step_by_step_and_a_long_one_shortened(study, page):
    steps = [{"action": f"add {n}", "layers": [n], "value": float(n), "note": "S(l)"} for n in range(1, 31)]
    selected = study.selected.copy()
    model = study.models[0]
    selected["trace"] = ["[]"] * len(selected)
    assert page_tables.searches(dataclasses.replace(study, selected=selected), model) is None
    selected.loc[selected.index[selected["model"] == model][0], "trace"] = json.dumps(steps)
    table = page_tables.searches(dataclasses.replace(study, selected=selected), model)
    assert [row[2] for row in table.rows] == [str(n) for n in [*range(1, page_tables.MOST_STEPS + 1), 30]]
    assert table.rows[-1][3:6] == ["add 30", "{30}", "30.0000"]
    assert table.rows[-1][6] == f"S(l) ({29 - page_tables.MOST_STEPS} steps before this one left out)"
    assert f"How each selector of {model} searched, step by step" in page
