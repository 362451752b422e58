"""The page's static twin: the main comparison as CSV and as LaTeX, and a summary in Markdown that holds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from speclayers.analysis.acceptance_figures import forest
from speclayers.analysis.answer import answer
from speclayers.analysis.models_page import side_by_side
from speclayers.analysis.report import exactness_sentence
from speclayers.analysis.study import HEADLINE_METRIC, Study, rows_of
from speclayers.analysis.wording import (
    MISSING,
    confidence_level,
    difference,
    draft_size,
    estimate,
    layers_in_words,
)
from speclayers.files import write_text

_TAU = ["tau_question", "tau_question_low", "tau_question_high"]
_DIFFERENCE = [
    "difference",
    "difference_low",
    "difference_high",
    "relative",
    "p_holm",
    "detectable",
    "scope",
    "verdict",
]
_KEYS = ["model", "layer_set", "temperature", "nodes"]
_HEAD = ("model", "layers", "chosen by", "T", "nodes", "τ", "Δτ", "verdict")
_NUMBERS = 4
"""Columns of numbers, behind the first three; the last one is words again."""


def comparison(study: Study) -> pd.DataFrame:
    """Return the main comparison: τ of every set at every setting, and its difference to the reference's."""
    rows = study.comparisons[study.comparisons["metric"] == HEADLINE_METRIC]
    columns = [*_KEYS[:1], "layer_set", "selectors", "k", "temperature", "nodes", "chain", *_TAU]
    joined = study.tau[[*columns, "questions", "seeds"]].merge(rows[[*_KEYS, *_DIFFERENCE]], on=_KEYS, how="left")
    references = set(zip(rows["model"], rows["reference"], strict=True))
    is_reference = [pair in references for pair in zip(joined["model"], joined["layer_set"], strict=True)]
    joined["verdict"] = joined["verdict"].mask(pd.Series(is_reference, dtype=bool), "reference")
    place = joined["model"].map({model: place for place, model in enumerate(study.models)})
    order = ["place", "temperature", "chain", "nodes", "tau_question"]
    ordered = joined.assign(place=place).sort_values(order, ascending=[True, True, True, True, False], kind="stable")
    return ordered.drop(columns="place").reset_index(drop=True)


def write_twin(study: Study, summary: Path, latex: Path, csv: Path) -> None:
    """Write the summary and the two tables.

    Args:
        study: What is told.
        summary: Markdown file; figures are linked where `write_report` puts them, in `figures/` beside it.
        latex: LaTeX table, for `booktabs`.
        csv: The same numbers as CSV, unrounded.

    Raises:
        UserError: A file cannot be written.
    """
    write_text(summary, markdown(study))
    write_text(latex, latex_table(study))
    write_text(csv, comparison(study).to_csv(index=False))


def _cells(study: Study) -> list[list[str]]:
    return [
        [
            *(row["model"], layers_in_words(row["layer_set"]), row["selectors"], f"{row['temperature']:g}"),
            draft_size(row["nodes"], row["chain"]),
            estimate(*(row[name] for name in _TAU)),
            _difference(row),
            row["verdict"] if isinstance(row["verdict"], str) else MISSING,
        ]
        for row in rows_of(comparison(study))
    ]


def _difference(row: dict[str, float]) -> str:
    return difference(row["difference"], row["difference_low"], row["difference_high"])


def _caption(study: Study) -> str:
    return (
        "Accepted tokens per verification (τ, mean over questions) of each set of layers and their difference (Δτ) to"
        f" the set of {study.reference}, with {confidence_level(study.confidence)} limits by bootstrap over questions,"
        " paired for Δτ. Verdicts after Holm's correction."
    )


# ---------------------------------------------------------------- Markdown


def markdown(study: Study) -> str:
    """Return the summary."""
    told = answer(study)
    lines = [f"# Which layers should feed the drafter? Study {_inline(study.fact('study', 'name'))}"]
    lines += [f"**Asked:** {_inline(told.asked)}", f"**Found:** {_inline(told.overview)}".rstrip()]
    lines += ["\n".join(f"- {_inline(line)}" for line in told.found), f"**Keep in mind:** {_inline(told.caveat)}"]
    if len(study.tau):
        lines += ["## Main comparison", _inline(_caption(study)), _table(study)]
    pictures = [side_by_side(study), *(forest(study, model) for model in study.models)]
    lines += [f"![{_inline(figure.title)}](figures/{figure.name}.svg)" for figure in pictures if figure is not None]
    if len(study.runs):
        lines += ["## Exactness", _inline(exactness_sentence(study))]
    facts = study.facts[(study.facts["part"] == "software") | study.facts["key"].isin(["torch", "transformers"])]
    versions = dict.fromkeys(f"{key} {value}" for key, value in zip(facts["key"], facts["value"], strict=True))
    lines += [
        "## Provenance",
        f"{_inline(', '.join(versions))}.",
        "The whole page is `report.html`; all tables are in `study.duckdb`.",
    ]
    return "\n\n".join(lines) + "\n"


def _inline(text: str) -> str:
    """Keep a text from being read as markup, or as the end of a cell."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text.replace("\n", " "))


def _table(study: Study) -> str:
    rules = ["---"] * 3 + ["---:"] * _NUMBERS + ["---"]
    rows = [_HEAD, rules, *([_inline(cell) for cell in cells] for cells in _cells(study))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ---------------------------------------------------------------- LaTeX

_IN_LATEX = {
    **{letter: f"\\{letter}" for letter in "#$%&_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"},
    **{"τ": r"$\tau$", "Δ": r"$\Delta$", "−": "$-$", "–": "--", "±": r"$\pm$"},
}


def _in_latex(text: str) -> str:
    return "".join(_IN_LATEX.get(letter, letter) for letter in text)


def latex_table(study: Study) -> str:
    """Return the main comparison as a table of LaTeX; it needs the package `booktabs`."""
    rows = [_row(cells) for cells in _cells(study)]
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_in_latex(_caption(study))}}}",
        f"\\begin{{tabular}}{{{'l' * 3}{'r' * _NUMBERS}l}}",
        "\\toprule",
        _row(_HEAD),
        "\\midrule",
        *rows,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(_in_latex, cells))} \\\\"
