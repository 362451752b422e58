"""Moved heads on the page: does a head survive a change of layers?"""

from __future__ import annotations

from typing import Any

from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import HEADLINE_METRIC, Study, of_model, rows_of
from speclayers.analysis.wording import confidence_level, estimate, interval, layers_in_words, number, signed
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
    moved, tau = of_model(study.moved, model), of_model(study.tau, model)
    compared = of_model(study.transfers, model)
    compared = compared[compared["metric"] == HEADLINE_METRIC]
    lines: list[list[Any]] = []
    rows = moved.assign(name=[_name(label) for label in moved["layer_set"]])
    keys = rows.assign(
        start=[layers_name(n.start) for n in rows["name"]], end=[layers_name(n.layers) for n in rows["name"]]
    )
    for (temperature, nodes, start, end), group in keys.groupby(["temperature", "nodes", "start", "end"], sort=True):
        where = [f"{temperature:g}", nodes]
        alike = tau[(tau["temperature"] == temperature) & (tau["nodes"] == nodes)]
        gaps = compared[(compared["temperature"] == temperature) & (compared["nodes"] == nodes)].set_index("layer_set")
        for label, told in ((start, "start, on its own layers"), (end, "from scratch")):
            for row in rows_of(alike[alike["layer_set"] == label]):
                lines.append([model, layers_in_words(label), told, *where, _tau(row), "", "", ""])
        for row in sorted(rows_of(group), key=lambda row: row["name"].percent):
            gap = gaps.loc[row["layer_set"]].to_dict() if row["layer_set"] in gaps.index else {}
            words = f"from {layers_in_words(start)}, {_treatment(row['name'].percent)}"
            lines.append([model, layers_in_words(end), words, *where, _tau(row), *_gap(gap)])
    return lines


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
