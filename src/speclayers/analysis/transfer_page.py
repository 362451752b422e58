"""Moved heads on the page: does a head survive a change of layers?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import HEADLINE_METRIC, Study, of_model, rows_of, settings_of
from speclayers.analysis.wording import (
    confidence_level,
    draft_size,
    estimate,
    interval,
    layers_in_words,
    number,
    signed,
)
from speclayers.names import HeadName, layers_name


def transfers(study: Study) -> PageTable:
    """Return every moved head beside the heads trained from scratch on its layers, and its start on its own."""
    cells = [line for model in study.models for line in _of_model(study, model)]
    level = confidence_level(study.confidence)
    caption = (
        "A head moved to other layers keeps its weights, layer by layer in ascending order. Untouched, or trained on"
        " for a share of a head's training, against heads trained there from scratch. τ and Δτ: mean over questions,"
        f" with {level} limits, paired by question; p-value and verdict corrected (Holm) for the moved heads of one"
        " set, temperature and tree size. The first line of each group is the head that was moved, on its own layers."
    )
    head = ["model", "layers", "head", "#T", "#nodes", "#τ", "#Δτ to scratch", "#p, corrected", "verdict"]
    return page_table(caption, head, cells)


def _of_model(study: Study, model: str) -> list[list[Any]]:
    lines: list[list[Any]] = []
    for temperature, nodes, rows in settings_of(of_model(study.moved, model)):
        moved = sorted(((_name(row["layer_set"]), row) for row in rows_of(rows)), key=lambda pair: pair[0])
        measured, compared = of_model(study.tau, model), of_model(study.transfers, model)
        here = _by_set(measured, temperature, nodes)
        gaps = _by_set(compared[compared["metric"] == HEADLINE_METRIC], temperature, nodes)
        told: set[tuple[str, str]] = set()
        for name, row in moved:
            start, end = layers_name(name.start), layers_name(name.layers)
            own = [] if (start, end) in told else [(start, "start, on its own layers"), (end, "from scratch")]
            told.add((start, end))
            for label, words in own:
                if label in here:
                    cells = [
                        model,
                        layers_in_words(label),
                        words,
                        f"{temperature:g}",
                        draft_size(nodes, row["chain"]),
                        _tau(here[label]),
                    ]
                    lines.append([*cells, "", "", ""])
            words = f"from {layers_in_words(start)}, {_treatment(name.percent)}"
            cells = [model, layers_in_words(end), words, f"{temperature:g}", draft_size(nodes, row["chain"]), _tau(row)]
            lines.append([*cells, *_gap(gaps.get(row["layer_set"], {}))])
    return lines


def _by_set(rows: pd.DataFrame, temperature: float, nodes: int) -> dict[str, dict[str, Any]]:
    at_setting = rows[(rows["temperature"] == temperature) & (rows["nodes"] == nodes)]
    return {str(row["layer_set"]): row for row in rows_of(at_setting)}


def _name(label: str) -> HeadName:
    """Read a moved set's label back; seeds are averaged over, so any stands in."""
    layers, rest = label.split(".", 1)
    return HeadName.parse(f"eagle3.{layers}.s0.{rest}")


def _treatment(percent: int) -> str:
    return f"trained on for {percent} %" if percent else "untouched"


def _tau(row: dict[str, Any]) -> str:
    return estimate(row["tau_question"], row["tau_question_low"], row["tau_question_high"])


def _gap(row: dict[str, Any]) -> list[str]:
    if not row:
        return ["", "", "not measured"]
    limits = interval(row["difference_low"], row["difference_high"], 3)
    return [f"{signed(row['difference'])} {limits}".rstrip(), number(row["p_holm"], 4), str(row["verdict"])]
