"""The report's page in a browser: it draws, switches, follows the system's colours, fits and prints."""

import csv
import re

import pytest

from tests.browser.conftest import open_page

MARKS = "g.role-mark path[d]:not([d='']), g.role-mark line, g.role-mark rect, g.role-mark text"


def test_it_loads_without_errors_and_asks_the_network_for_nothing(desk, report):
    assert desk.errors == []
    assert [url for url in desk.requests if not url.startswith(("data:", "blob:"))] == [report.as_uri()]


def test_every_figure_is_drawn_with_marks(desk):
    counts = desk.page.eval_on_selector_all(
        "[data-figure]", f"places => places.map(p => [p.dataset.figure, p.querySelectorAll(`{MARKS}`).length])"
    )
    assert len(counts) > 20
    assert [name for name, marks in counts if not marks] == []


def test_a_switch_changes_the_curves_and_back(desk):
    curves = "[data-figure='wave-tiny-qwen3'] g.mark-line path"
    paths = "found => found.map(path => path.getAttribute('d'))"
    switches = desk.page.locator("[data-switches='wave-tiny-qwen3'] input")
    dropped = desk.page.eval_on_selector_all(curves, paths)
    switches.nth(1).check()
    kept = desk.page.eval_on_selector_all(curves, paths)
    switches.nth(0).check()
    assert kept != dropped
    assert desk.page.eval_on_selector_all(curves, paths) == dropped


def test_nothing_of_a_drawing_is_cut_off(desk):
    """Vega's pictures are as large as what is in them: no mark or label may lie outside."""
    outside = desk.page.evaluate("""() => [...document.querySelectorAll('[data-figure] svg')].flatMap((svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter((text) => {
            const own = text.getBoundingClientRect();
            return own.width && (own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1);
        }).map((text) => `${svg.closest('[data-figure]').dataset.figure}: ${text.textContent}`);
    })""")
    assert outside == []


def rgb(page, selector, of):
    found = page.eval_on_selector(selector, f"element => getComputedStyle(element)['{of}']")
    return [int(part) for part in re.findall(r"\d+", found)[:3]]


@pytest.fixture
def unpicked(desk):
    """The wide page, on which nothing is picked, neither before nor after."""
    yield desk.page
    for name in ("model", "set"):
        desk.page.locator(f"#pick [name={name}]").select_option("")


def visible(page, kind):
    return page.eval_on_selector_all(kind, "found => found.filter(e => e.checkVisibility()).length")


def test_a_picked_model_leaves_its_own_parts_and_those_of_all(unpicked):
    page = unpicked
    figures, rows = visible(page, "figure"), visible(page, "tbody tr")
    page.locator("#pick [name=model]").select_option("tiny-qwen3")
    left = page.eval_on_selector_all(
        "[data-model]", "parts => [...new Set(parts.filter(e => e.checkVisibility()).map(e => e.dataset.model))]"
    )
    assert left == ["tiny-qwen3"]
    assert 1 < visible(page, "figure") < figures
    assert 1 < visible(page, "tbody tr") < rows
    assert page.locator("[data-figure='models']").is_visible()
    page.locator("#pick [name=model]").select_option("a-name-of-exactly-forty-characters-12345")
    assert not page.locator("#screening").is_visible()  # the other model's alone
    assert not page.locator("nav [href='#screening']").is_visible()
    empty = (
        "found => found.filter(e => e.checkVisibility() && ![...e.rows].slice(1).some(r => r.checkVisibility())).length"
    )
    assert page.eval_on_selector_all("table", empty) == 0
    assert len(page.locator("#models tbody tr").all()) == 2


FAINT = """([figure, mark]) => [...document.querySelectorAll(`[data-figure='${figure}'] g.mark-${mark} path`)]
    .filter((path) => Number(path.getAttribute('opacity') ?? 1) < 0.5).length"""


@pytest.mark.parametrize(
    ("figure", "mark"),
    [
        *(("models", "symbol"), ("difference-tiny-qwen3", "symbol"), ("settings-tiny-qwen3", "rect")),
        *(("categories-tiny-qwen3", "symbol"), ("depths-tiny-qwen3", "symbol"), ("prediction-tiny-qwen3", "symbol")),
        *(("training-tiny-qwen3", "line"), ("time-tiny-qwen3", "rect"), ("similarity-tiny-qwen3", "symbol")),
    ],
)
def test_all_charts_follow_a_picked_set(unpicked, figure, mark):
    before = unpicked.evaluate(FAINT, [figure, mark])
    unpicked.locator("#pick [name=set]").select_option("elsi")
    unpicked.wait_for_function(f"(where) => ({FAINT})(where) > 0", arg=[figure, mark])
    bold = unpicked.eval_on_selector_all("tr.picked", "rows => rows.map(row => row.textContent)")
    assert before == 0
    assert any("{4, 8, 11}" in text for text in bold)
    assert not any("{2, 6, 9}" in text for text in bold)


def test_a_click_on_a_mark_picks_its_set_and_a_second_lets_go(unpicked):
    chosen = unpicked.locator("#pick [name=set]")
    mark = unpicked.locator("[data-figure='prediction-tiny-qwen3'] g.mark-symbol.role-mark path").first
    mark.dispatch_event("click")
    assert chosen.input_value() in ("eagle3", "elsi", "min_entropy")
    mark.dispatch_event("click")
    assert chosen.input_value() == ""


@pytest.mark.parametrize("format", ["svg", "png", "csv"])
def test_a_chart_is_downloaded(unpicked, tmp_path, format):
    figure = unpicked.locator("figure", has=unpicked.locator("[data-figure='difference-tiny-qwen3']"))
    with unpicked.expect_download() as waiting:
        figure.locator(f"[data-format={format}]").click()
    assert waiting.value.suggested_filename == f"difference-tiny-qwen3.{format}"
    content = (waiting.value.path()).read_bytes()
    if format == "png":
        assert content.startswith(b"\x89PNG")
    elif format == "svg":
        assert b"currentColor" not in content
        assert "minus those of" in content.decode()
    else:
        rows = list(csv.DictReader(content.decode().splitlines()))
        assert {row["set"] for row in rows} == {"{4, 8, 11}", "{1, 2, 3}"}
        assert len(rows) == 2 * 2 * 2
        assert all(float(row["difference_low"]) < float(row["difference_high"]) for row in rows)


def test_page_and_charts_follow_the_systems_colours(desk, browser, report):
    opened = open_page(browser, report, color_scheme="dark")
    for page, dark in ((desk.page, False), (opened.page, True)):
        paper, ink = rgb(page, "body", "backgroundColor"), rgb(page, "body", "color")
        assert (max(paper) < 60) is dark
        assert (min(ink) > 190) is dark
        assert rgb(page, "[data-figure] g.role-axis-title text", "fill") == ink
    assert opened.errors == []


def test_a_narrow_screen_scrolls_down_only(browser, report):
    page = open_page(browser, report, viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = page.eval_on_selector_all(
        "h1, h2, h3, h4, p, li, figcaption", "all => all.filter(e => e.getBoundingClientRect().right > 360).length"
    )
    assert wide == 0
    assert page.eval_on_selector(".chart", "chart => getComputedStyle(chart).overflowX") == "auto"


def test_a_page_of_twenty_models_is_small_shows_the_one_that_is_picked_and_fits(browser, report_of_twenty):
    assert report_of_twenty.stat().st_size < 15e6
    opened = open_page(browser, report_of_twenty, viewport={"width": 1280, "height": 900})
    page = opened.page
    assert page.locator("#pick [name=model] option").count() == 21
    first = page.locator("[data-figure='models'] svg")
    assert first.locator("text", has_text="model-19-of-a-family").count()
    page.locator("#pick [name=model]").select_option("model-07-of-a-family")
    shown = page.locator("[data-model]:visible")
    assert {shown.nth(i).get_attribute("data-model") for i in range(shown.count())} == {"model-07-of-a-family"}
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert opened.errors == []


def test_it_can_be_walked_through_by_keyboard(desk):
    page = desk.page
    seen = set()
    page.locator("nav a").first.focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("`${document.activeElement.tagName} ${document.activeElement.className}`"))
    assert {"A ", "SELECT ", "DIV chart vega-embed", "BUTTON ", "DIV table"} <= seen


def test_a_page_printed_at_once_holds_every_chart(browser, report, tmp_path):
    opened = open_page(browser, report, drawn=False)
    pdf = opened.page.pdf(format="A4")
    assert opened.page.evaluate("document.querySelectorAll('[data-figure]').length") == opened.page.evaluate(
        "document.querySelectorAll('[data-figure] svg').length"
    )
    assert pdf.count(b"/Type /Page\n") > 10
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert rgb(opened.page, "body", "backgroundColor") == [255, 255, 255]
    assert not opened.page.locator(".bar").is_visible()
    assert opened.errors == []
