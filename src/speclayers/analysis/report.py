"""The study's page: one HTML file that needs no network, and its figures as SVG and PNG."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import vl_convert
from jinja2 import Environment
from markupsafe import Markup
from tqdm import tqdm

from speclayers.analysis import (
    acceptance_figures,
    acceptance_page,
    geometry_figures,
    models_page,
    page_tables,
    pretrained_page,
    rivals_figures,
    rivals_page,
    run_figures,
    screening_page,
    selection_figures,
    settings_figures,
    transfer_page,
)
from speclayers.analysis.answer import Answer, answer, headline_comparisons
from speclayers.analysis.figures import INK, PAGE_INK, PAGE_PAPER, PAGE_RULE, PAPER, RULE, Figure
from speclayers.analysis.layer_warnings import warnings_of
from speclayers.analysis.page_tables import PageTable
from speclayers.analysis.picks import Picks, picks
from speclayers.analysis.study import Study, of_model
from speclayers.analysis.wording import TERMS, count, unbroken
from speclayers.files import atomic_path, write_text

PNG_SCALE = 2


@dataclass(frozen=True)
class Block:
    """A piece of a section.

    Args:
        kind: What it is.
        content: What is shown.
        model: Model that it is about, if it is about one.
    """

    kind: Literal["heading", "text", "terms", "figure", "table", "folded"]
    content: str | Figure | PageTable | list[tuple[str, str]]
    model: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page; `name` is its anchor."""

    name: str
    title: str
    blocks: list[Block]


def sections(study: Study) -> list[Section]:
    """Return the page's sections; each says what is missing where there are no data, or is left out if optional."""
    builders = (
        ("models", "Models side by side", _models),
        ("acceptance", "Tokens accepted", _acceptance),
        ("rivals", "Drafters without a head", _rivals),
        ("layers", "The layers", _layers),
        ("selections", "Which layers were chosen", _selections),
        ("screening", "Screening by short trainings", _screening),
        ("transfer", "Heads moved to other layers", _transfer),
        ("training", "Training of the heads", _training),
        ("time", "Time", _time),
        ("exactness", "Exactness", _exactness),
        ("words", "Words used here", _words),
        ("provenance", "Provenance", provenance_section),
    )
    parts = [Section(name, title, list(build(study))) for name, title, build in builders]
    return [part for part in parts if part.blocks]  # a study that screens nothing has no section for it


def write_report(study: Study, report: Path, figures: Path) -> None:
    """Write the page, and each of its figures as SVG and PNG.

    Args:
        study: What is told.
        report: HTML file to write.
        figures: Folder to write; pictures that lay there before are removed.

    Raises:
        UserError: A file cannot be written.
    """
    parts = sections(study)
    write_figures(figures_in(parts), figures)
    write_text(report, render(study, parts, figures_in(parts)))


def page(study: Study) -> str:
    """Return the study's page as HTML, without writing its figures as files, which takes most of the time."""
    parts = sections(study)
    return render(study, parts, figures_in(parts))


def figures_in(parts: list[Section]) -> list[Figure]:
    """Return the figures of some sections, in their order."""
    return [block.content for part in parts for block in part.blocks if isinstance(block.content, Figure)]


def write_figures(drawn: list[Figure], folder: Path) -> None:
    """Write figures as SVG and PNG, on white, each with its title.

    Raises:
        UserError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):
        old.unlink()  # figures of models that are gone must not stay
    for figure in tqdm(drawn, desc="figures", disable=None, mininterval=1):
        vega = vl_convert.vegalite_to_vega(figure.for_file())
        with atomic_path(folder / f"{figure.name}.svg") as path:
            path.write_text(vl_convert.vega_to_svg(vega), encoding="utf-8")
        with atomic_path(folder / f"{figure.name}.png") as path:
            path.write_bytes(vl_convert.vega_to_png(vega, scale=PNG_SCALE))


def render(study: Study, parts: list[Section], drawn: list[Figure]) -> str:
    """Return the study's page as HTML."""
    title = f"Which layers should feed the drafter? Study {study.fact('study', 'name')}"
    return render_page(title, answer(study), _warnings(study), parts, drawn, picks(study))


def render_page(
    title: str, told: Answer, warnings: list[str], parts: list[Section], drawn: list[Figure], sets: Picks
) -> str:
    """Return a page as HTML; every text is escaped, and the scripts are inlined once.

    Args:
        title: Its heading.
        told: The answer in three lines.
        warnings: Shown above it.
        parts: Sections.
        drawn: The figures in them.
        sets: What a reader can pick.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = unbroken
    template = environment.from_string(_resource("page.html.j2"))
    return template.render(
        title=title,
        answer=told,
        warnings=warnings,
        sections=parts,
        models=list(dict.fromkeys(block.model for part in parts for block in part.blocks if block.model)),
        sets=sets,
        data=_embedded(
            {
                "charts": {figure.name: figure.for_page() for figure in drawn},
                "frames": {figure.name: figure.frame for figure in drawn},
                "sets": sets,
                "inks": {PAGE_INK: INK, PAGE_RULE: RULE, PAGE_PAPER: PAPER},
            }
        ),
        style=Markup(_resource("page.css")),
        script=Markup(_resource("page.js")),
        bundle=Markup(_bundle()),
    )


@cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _embedded(charts: dict[str, object]) -> Markup:
    """Return JSON that cannot end its script element, whatever the names in it."""
    text = json.dumps(charts, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def exactness_sentence(study: Study) -> str:
    """Say how many greedy turns equal plain decoding's."""
    greedy = study.runs[study.runs["exactness"] != "not applicable"]
    if greedy.empty:
        return "All runs sampled their tokens (T > 0), so there is nothing to compare id by id."
    turns, runs = count(int(greedy["turns"].sum()), "turn"), count(len(greedy), "run")
    parts = [f"{int(greedy['identical'].sum()):,} of {turns} in {runs} at T = 0 equal plain greedy decoding, id by id"]
    if greedy["as_generate"].notna().all():
        parts.append(f"{int(greedy['as_generate'].sum()):,} equal transformers' generate")
    for name, what in (("ties", "differ at a tie of the two best tokens"), ("different", "differ elsewhere")):
        if greedy[name].sum():
            parts.append(f"{int(greedy[name].sum()):,} {what}")
    return "; ".join(parts) + "."


def _warnings(study: Study) -> list[str]:
    failed = study.runs[study.runs["exactness"] == "different"]
    if failed.empty:
        return []
    turns = count(int(failed["different"].sum()), "turn")
    return [f"{turns} in {count(len(failed), 'run')} differ from plain greedy decoding; see Exactness."]


# ---------------------------------------------------------------- sections


def _text(text: str) -> Block:
    return Block("text", text)


def _shown(*drawn: Figure | None) -> Iterator[Block]:
    yield from (Block("figure", figure) for figure in drawn if figure is not None)


def _about(model: str, blocks: Iterable[Block]) -> Iterator[Block]:
    """Mark blocks as one model's: the page can show that model alone."""
    yield from (replace(block, model=model) for block in blocks)


def _models(study: Study) -> Iterator[Block]:
    if len(study.models) > 1 and len(study.tau):
        yield from _shown(models_page.side_by_side(study))
        yield Block("table", models_page.models_table(study))


def _acceptance(study: Study) -> Iterator[Block]:
    if study.tau.empty:
        yield _text("No acceptance was measured in this study.")
        return
    yield Block("table", page_tables.tau(study))
    if len(study.skipped):
        yield Block("table", acceptance_page.skipped_questions(study))
    for model in study.models:
        yield from _about(model, _acceptance_of(study, model))


def _acceptance_of(study: Study, model: str) -> Iterator[Block]:
    yield Block("heading", model)
    if of_model(study.tau, model).empty:
        yield _text("No acceptance was measured on this model.")
        return
    if headline_comparisons(study, model).empty:
        yield _text(f"There is no set to compare with {study.reference}.")
    else:
        yield from _shown(acceptance_figures.forest(study, model))
        yield Block("table", page_tables.comparisons(study, model))
        yield Block("table", acceptance_page.power(study, model))
    yield from _shown(
        settings_figures.settings_map(study, model),
        acceptance_figures.categories(study, model),
        acceptance_figures.depths(study, model),
        acceptance_figures.prediction(study, model),
    )
    yield Block("table", acceptance_page.positions(study, model))


def _rivals(study: Study) -> Iterator[Block]:
    for model in study.models:
        if rivals_page.is_rival(of_model(study.drafters, model)).any():
            yield from _about(model, _rivals_of(study, model))
    if len(study.skip_overlap):
        yield Block("table", rivals_page.skipped_layers(study))


def _rivals_of(study: Study, model: str) -> Iterator[Block]:
    yield Block("heading", model)
    yield Block("table", rivals_page.yields(study, model))
    yield from _shown(rivals_figures.pareto(study, model))
    yield Block("table", rivals_page.costs(study, model))
    yield Block("table", rivals_page.categories(study, model))


def _layers(study: Study) -> Iterator[Block]:
    yield from layers_section(study, warned=True)


def layers_section(study: Study, *, warned: bool) -> Iterator[Block]:
    """Yield what is known of each model's layers, with or without what could mislead about them."""
    for model in study.models:
        yield from _about(model, _layers_of(study, model, warned))


def _layers_of(study: Study, model: str, warned: bool) -> Iterator[Block]:
    yield Block("heading", model)
    if warned:
        yield from (_text(f"Warning: {line}") for line in warnings_of(study, model))
    drawn = geometry_figures.figures(study, model)
    yield from _shown(*drawn)
    if not drawn:
        yield _text("No geometry was measured on this model.")
    if len(of_model(study.filter_effect, model)):
        yield Block("table", page_tables.filter_effect(study, model))
    if len(of_model(study.filter_sets, model)):
        yield Block("table", page_tables.filter_sets(study, model))


def _selections(study: Study) -> Iterator[Block]:
    yield from selections_section(study)
    if len(pretrained_page.pretrained_sets(study)):
        yield Block("table", pretrained_page.heads(study))


def selections_section(study: Study) -> Iterator[Block]:
    """Yield what was chosen, how stable it is, and which selectors agree."""
    if study.selected.empty:
        yield _text("No selector chose layers.")
        return
    yield Block("table", page_tables.selections(study))
    if study.selected["selector"].eq("exhaustive").any():
        yield Block("table", page_tables.gaps(study))
    for model in study.models:
        drawn = selection_figures.stabilities(study, model), selection_figures.agreement(study, model)
        yield from _about(model, _shown(*drawn))
        if (searched := page_tables.searches(study, model)) is not None:
            yield Block("folded", searched, model)


def _screening(study: Study) -> Iterator[Block]:
    for model in study.models:
        if len(of_model(study.screening, model)):
            table = Block("table", screening_page.race(study, model))
            yield from _about(model, [*_shown(screening_page.curve(study, model)), table])
    if len(study.curve_ranks):
        yield Block("table", screening_page.ranks(study))


def _transfer(study: Study) -> Iterator[Block]:
    if len(study.moved):
        yield Block("table", transfer_page.transfers(study))


def _training(study: Study) -> Iterator[Block]:
    if study.heads.empty:
        yield _text("No head was trained in this study.")
        return
    yield Block("table", page_tables.heads(study))
    for model in study.models:
        yield from _about(model, _shown(run_figures.training(study, model)))


def _time(study: Study) -> Iterator[Block]:
    if study.speed.empty:
        yield _text("No decoding was timed in this study.")
    else:
        yield Block("table", page_tables.speed(study))
        for model in study.models:
            yield from _about(model, _shown(run_figures.time_split(study, model)))
    if study.costs.empty:
        yield _text("No job was measured.")
        return
    yield from _shown(run_figures.costs(study))
    yield Block("table", page_tables.costs(study))


def _exactness(study: Study) -> Iterator[Block]:
    if study.runs.empty:
        yield _text("Nothing was decoded, so nothing can be compared with plain decoding.")
        return
    yield _text(exactness_sentence(study))
    yield Block("table", acceptance_page.exactness(study))
    if len(study.disagreements):
        yield Block("table", acceptance_page.disagreements(study))


def _words(study: Study) -> Iterator[Block]:
    yield Block("terms", [*TERMS, *rivals_page.terms(study)])


def provenance_section(study: Study) -> Iterator[Block]:
    """Yield where the numbers come from."""
    yield Block("table", page_tables.provenance(study))
