"""Every layer set at every setting at a glance: τ over k, draft size and temperature."""

from __future__ import annotations

import altair as alt
import pandas as pd

from speclayers.analysis.acceptance_figures import named
from speclayers.analysis.figures import INK, Figure, faded, file_name, heading, records, specification, tooltips
from speclayers.analysis.study import SETTING_ORDER, Study, of_model
from speclayers.analysis.wording import confidence_level, count, draft_size, number, setting, span

MOST_ROWS = 20
"""Layer sets that the figure shows, those of highest mean τ first."""


def settings_map(study: Study, model: str) -> Figure | None:
    """Draw τ of every set as a map over draft sizes, a panel a temperature; nothing where there is one setting."""
    rows = of_model(study.tau, model).dropna(subset=["tau_question"])
    if len(rows[["temperature", "nodes"]].drop_duplicates()) < 2:
        return None
    rows = named(rows).sort_values(SETTING_ORDER)
    rows = rows.assign(
        row=[f"k = {int(k)}: {name}" if k == k else name for k, name in zip(rows["k"], rows["name"], strict=True)],
        size=[draft_size(n, chain) for n, chain in zip(rows["nodes"], rows["chain"], strict=True)],
        text=rows["tau_question"].map(number),
    )
    means = rows.groupby("row")["tau_question"].mean().sort_values(ascending=False)
    best = set(means.index[:MOST_ROWS])
    kept = rows[rows["row"].isin(best)].assign(mean=rows["row"].map(means))
    order = list(kept.sort_values(["k", "mean"], ascending=[True, False])["row"].drop_duplicates())
    ends = [float(kept["tau_question"].min()), float(kept["tau_question"].max())]
    sizes = list(dict.fromkeys(rows.sort_values(["chain", "nodes"])["size"]))
    panels = [
        _panel(
            part, f"T = {temperature:g}", order, [size for size in sizes if size in set(part["size"])], ends, not place
        )
        for place, (temperature, part) in enumerate(kept.groupby("temperature", sort=True))
    ]
    shown = f"the {len(best)} sets of highest mean τ of {len(means)}" if len(means) > len(best) else "all sets"
    caption = (
        "τ, accepted tokens per verification, mean over"
        f" {span(rows['questions'], 'question')}: the number in each cell, and its shade. Rows: {shown}, by the number"
        f" of layers k and then by mean τ. Columns: nodes of the draft. {confidence_level(study.confidence)} limits are"
        " in the table above; differences between cells of one row are differences of the setting, not of the layers."
    )
    chart = alt.hconcat(*panels, spacing=14)
    return Figure(file_name("settings", model), _title(model, rows), caption, specification(chart, linked=True))


def _panel(
    rows: pd.DataFrame, title: str, order: list[str], sizes: list[str], ends: list[float], labelled: bool
) -> alt.LayerChart:
    axis = alt.Axis() if labelled else alt.Axis(labels=False, ticks=False)
    base = alt.Chart(
        records(rows[["row", "set", "size", "text", "tau_question", "tau_question_low", "tau_question_high"]])
    )
    base = base.encode(
        x=alt.X("size:N", title="nodes", sort=sizes, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("row:N", title=None, sort=order, axis=axis, scale=alt.Scale(domain=order)),
        opacity=faded(),
    )
    scale = alt.Scale(scheme="cividis", domain=ends if ends[0] < ends[1] else [ends[0], ends[0] + 0.1])
    cells = base.mark_rect().encode(
        color=alt.Color("tau_question:Q", title="τ", scale=scale),
        tooltip=tooltips("row:N", "size:N", "tau_question:Q", "tau_question_low:Q", "tau_question_high:Q"),
    )
    bright = f"datum.tau_question > {(ends[0] + ends[1]) / 2}"
    texts = base.mark_text(fontSize=11).encode(
        text="text:N", color=alt.condition(bright, alt.value(INK), alt.value("white"))
    )
    return alt.LayerChart(layer=[cells, texts]).properties(
        width=alt.Step(64), height=alt.Step(22), title=heading(title)
    )


def _title(model: str, rows: pd.DataFrame) -> str:
    ordered = rows.sort_values("tau_question")
    low, high = ordered.iloc[0], ordered.iloc[-1]
    ends = [
        f"{number(row['tau_question'])} ({row['set']}, {setting(row['temperature'], row['nodes'], bool(row['chain']))})"
        for row in (low, high)
    ]
    n = count(len(rows[["temperature", "nodes"]].drop_duplicates()), "setting")
    return f"On {model}, τ runs from {ends[0]} to {ends[1]} over {count(rows['row'].nunique(), 'set')} and {n}"
