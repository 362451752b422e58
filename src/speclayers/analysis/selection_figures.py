"""Figures of the choices: how stable they are, and which selectors agree."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from speclayers.analysis.figures import INK, Figure, file_name, heading, records, specification, tooltips
from speclayers.analysis.study import Study, judged_apart, of_model, rows_of, stability
from speclayers.analysis.wording import count, percent

_SURE = 0.9


def _label(row: dict[str, Any]) -> str:
    return f"{row['label']}, k = {row['k']}"


def stabilities(study: Study, model: str) -> Figure | None:
    """Draw how often each selector picks each layer on half-samples of the prompts."""
    rows = rows_of(of_model(study.selected, model).sort_values(["k", "label"]))
    marks = pd.DataFrame(
        [
            {"choice": _label(row), "layer": layer, "share": share}
            for row in rows
            for layer, share in stability(row["stability"])
        ]
    )
    if marks.empty:
        return None
    chosen = pd.DataFrame([{"choice": _label(row), "layer": layer} for row in rows for layer in row["layers"]])
    n_layers = int(of_model(study.targets, model)["n_layers"].iloc[0])
    order, choices = list(range(n_layers + 1)), list(dict.fromkeys(marks["choice"]))
    cell = min(22.0, max(7.0, 520 / len(order)))
    axis = alt.Axis(values=order[:: max(1, len(order) // 16)], labelAngle=0)
    x_axis = alt.X("layer:O", title="layer", scale=alt.Scale(domain=order), axis=axis)
    y_axis = alt.Y("choice:N", title=None, sort=choices)
    cells = (
        alt.Chart(records(marks))
        .mark_rect(stroke="#7F7F7F", strokeWidth=0.5)
        .encode(
            x=x_axis,
            y=y_axis,
            color=alt.Color(
                "share:Q",
                title="share of half-samples",
                scale=alt.Scale(scheme="cividis", domain=[0, 1], reverse=True),
                legend=alt.Legend(format="%"),
            ),
            tooltip=tooltips("choice:N", "layer:O", "share:Q"),
        )
    )
    layers = [cells, _marks(chosen[chosen["choice"].isin(choices)], True).encode(x=x_axis, y=y_axis)]
    apart = pd.DataFrame([{"choice": _label(row), "layer": layer} for row in rows for layer in judged_apart(row)])
    if len(apart):
        layers.append(_marks(apart, False).encode(x=x_axis, y=y_axis))
    chart = alt.LayerChart(layer=layers).properties(width=cell * len(order), height=alt.Step(20))
    caption = (
        "Share of half-samples of the prompts in which a selector picks a layer; white diamonds: its choice on all"
        " prompts. Selectors that measure nothing are certain. On half-samples, searches over sets go by order 2 in"
        " place of Shannon; where order 2 chooses another set on all prompts, hollow circles mark that set, and the"
        " shares are to be read against it."
    )
    return Figure(file_name("stability", model), _stability_title(model, rows), caption, specification(chart))


def _marks(rows: pd.DataFrame, selection: bool) -> alt.Chart:
    """Mark layers: those selected by white diamonds, those that order 2 would select by hollow circles."""
    base = alt.Chart(records(rows))
    marks: alt.Chart = (
        base.mark_point(shape="diamond", size=50, fill="white", stroke=INK, strokeWidth=1, opacity=1)
        if selection
        else base.mark_point(shape="circle", size=130, filled=False, color="#D55E00", strokeWidth=2, opacity=1)
    )
    return marks


def _stability_title(model: str, rows: list[dict[str, Any]]) -> str:
    told = []
    for row in rows:
        shares = dict(stability(str(row["stability"])))
        if not shares:
            continue  # nothing was judged: the screening's winner, or no half-samples
        layers = judged_apart(row) or row["layers"]  # like is compared with like
        told.append((min((shares.get(int(layer), 0.0) for layer in layers), default=1.0), _label(row)))
    least, label = min(told)
    apart = sum(bool(judged_apart(row)) for row in rows)
    end = f"; {count(apart, 'choice')} could only be judged by what order 2 chooses" if apart else ""
    if least == 1:
        return f"No choice on {model} depends on the prompts{end}"
    sure = sum(share >= _SURE for share, _ in told)
    return (
        f"On {model}, {sure} of {count(len(told), 'choice')} keep every layer in {percent(_SURE)} of the half-samples"
        f" or more; least certain is {label}, one of whose layers comes back in {percent(least)}{end}"
    )


def agreement(study: Study, model: str) -> Figure | None:
    """Draw the share of layers that each pair of selections has in common, a panel for each k of several selectors."""
    pairs = of_model(study.agreement, model).dropna(subset=["jaccard"])
    if pairs.empty:
        return None
    panels = []
    same = 0
    for k in sorted(set(pairs["k"])):
        part = pairs[pairs["k"] == k]
        same += int((part["jaccard"] == 1).sum())
        turned = part.rename(columns={"selector_a": "selector_b", "selector_b": "selector_a"})
        names = sorted(set(part["selector_a"]) | set(part["selector_b"]))
        own = pd.DataFrame({"selector_a": names, "selector_b": names, "jaccard": 1.0, "shared_layers": k})
        panels.append(_agreement_panel(pd.concat([part, turned, own]), names, f"k = {k}"))
    caption = (
        "Layers that two selections share, over the layers that either has (Jaccard): 1 the same set, 0 nothing in"
        " common. Selectors that maximise the same E(S) agree by design: that is one opinion, not several."
    )
    title = f"Of {count(len(pairs), 'pair')} of selections of equal k on {model}, {same} chose the same layers"
    return Figure(file_name("agreement", model), title, caption, specification(alt.concat(*panels, columns=2)))


def _agreement_panel(cells: pd.DataFrame, names: list[str], title: str) -> alt.LayerChart:
    cells = cells.assign(text=[f"{value:.2g}" for value in cells["jaccard"]])
    base = alt.Chart(records(cells[["selector_a", "selector_b", "jaccard", "shared_layers", "text"]])).encode(
        x=alt.X("selector_a:N", title=None, sort=names, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y("selector_b:N", title=None, sort=names),
    )
    rects = base.mark_rect().encode(
        color=alt.Color("jaccard:Q", title="in common", scale=alt.Scale(scheme="cividis", domain=[0, 1])),
        tooltip=tooltips("selector_a:N", "selector_b:N", "jaccard:Q", "shared_layers:Q"),
    )
    colour = alt.condition("datum.jaccard > 0.5", alt.value(INK), alt.value("white"))
    texts = base.mark_text(fontSize=9).encode(text="text:N", color=colour)
    return alt.LayerChart(layer=[rects, texts]).properties(
        width=alt.Step(26), height=alt.Step(22), title=heading(title)
    )
