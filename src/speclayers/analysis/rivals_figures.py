"""Figure of what drafters yield against what making them took."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd

from speclayers.analysis.figures import HALO, Figure, file_name, heading, padded, records, specification, tooltips
from speclayers.analysis.rivals_page import is_rival, lossless
from speclayers.analysis.study import Study, rows_of
from speclayers.analysis.wording import confidence_level, count, drafter_in_words, estimate, number, setting

_METRICS = {"tau_question": "τ, tokens per verification", "speed_up": "speed-up over plain decoding"}
_FRONT, _BEHIND = "no cheaper one yields as much", "a cheaper one yields as much"
_COLOURS, _SHAPES = ("#0072B2", "#D55E00"), ("circle", "square")
_WIDTH, _LINE = 600, 15
"""Pixels: of a panel, and between labels."""

_TICKS = (0, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000)


def pareto(study: Study, model: str) -> Figure | None:
    """Draw τ and speed-up of every drafter against the seconds that training and searches took, a panel each."""
    rows = lossless(study, model)
    if not is_rival(rows).any():
        return None
    temperature = rows[is_rival(rows)]["temperature"].min()
    sizes = rows[is_rival(rows)]["reference_nodes"].dropna()
    rows = rows[(rows["temperature"] == temperature) & (is_rival(rows) | rows["nodes"].isin(sizes))]
    rows = rows.assign(cost=rows["training_s"] + rows["search_s"]).dropna(subset=["cost", "tau_question"])
    if rows.empty:
        return None
    names = [drafter_in_words(*pair) for pair in zip(rows["layer_set"], rows["layers"], strict=True)]
    rows = rows.assign(name=names)
    drawn = {metric: rows.dropna(subset=[metric]) for metric in _METRICS}
    panels = [_panel(part, metric) for metric, part in drawn.items() if len(part)]
    where = f"T = {temperature:g}" if sizes.empty else f"{setting(temperature, sizes.iloc[0])} for heads"
    caption = (
        f"τ, mean over questions, and speed-up at {where}, against the job seconds that making this drafter alone took:"
        " its training, or a search before it drafts; 0 where there is nothing to make. What several drafters share,"
        " such as training responses, is not in them. The scale is linear near 0 and logarithmic beyond. Vertical lines"
        f" are {confidence_level(study.confidence)} limits; the line joins the drafters that no cheaper one equals,"
        " whether or not the difference is distinguishable."
    )
    chart = alt.vconcat(*panels, spacing=18)
    return Figure(file_name("pareto", model), _title(model, drawn), caption, specification(chart))


def front(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Tell of each drafter whether every other that costs no more yields less.

    Args:
        rows: Columns `cost` and the metric, both known.
        metric: Column of what is yielded; more is better.
    """
    better = [
        bool(
            (
                ((rows["cost"] <= row["cost"]) & (rows[metric] > row[metric]))
                | ((rows["cost"] < row["cost"]) & (rows[metric] == row[metric]))
            ).any()
        )
        for row in rows_of(rows)
    ]
    return pd.Series([not beaten for beaten in better], index=rows.index)


def _title(model: str, drawn: dict[str, pd.DataFrame]) -> str:
    told = []
    for metric, what in (("tau_question", "yields most (τ {})"), ("speed_up", "is fastest ({} times plain decoding)")):
        if drawn[metric].empty:
            continue
        rows = drawn[metric].sort_values([metric, "cost"], ascending=[False, True])
        free, best = rows[rows["cost"] == 0], rows.iloc[0]
        shown = estimate(*(best[name] for name in (metric, f"{metric}_low", f"{metric}_high")))
        sentence = f"{best['name']} {what.format(shown)} after {_seconds(best['cost'])}"
        if len(free) and best["cost"] > 0:
            sentence += f", {free.iloc[0]['name']} without any ({number(free.iloc[0][metric])})"
        told.append(sentence)
    return f"On {model}, {'; '.join(told)}"


def _seconds(cost: float) -> str:
    return "no training or search" if cost == 0 else f"{count(round(cost), 'second')} of training or search"


def spread(values: np.ndarray, gap: float) -> np.ndarray:
    """Move labels up until each stands at least `gap` above the one below it.

    Args:
        values: (labels,) where they would stand.
        gap: Least distance.
    """
    moved = np.array(values, dtype=np.float64)
    order = np.argsort(moved, kind="stable")
    for below, place in pairwise(order):
        moved[place] = max(moved[place], moved[below] + gap)
    return moved


def columns(places: np.ndarray, gap: float, outward: np.ndarray) -> np.ndarray:
    """Return where the labels of points start: those of close points at one place, so that no line crosses a label.

    Args:
        places: (points,) where the points are.
        gap: Points nearer than this to the one before are close.
        outward: (points,) -1 where the label stands to the left, 1 where to the right.
    """
    order = np.argsort(places, kind="stable")
    groups = np.split(order, np.flatnonzero((np.diff(places[order]) > gap) | (np.diff(outward[order]) != 0)) + 1)
    starts = np.array(places, dtype=np.float64)
    for group in groups:
        starts[group] = places[group].min() if outward[group[0]] < 0 else places[group].max()
    return starts


def _panel(rows: pd.DataFrame, metric: str) -> alt.LayerChart:
    height = max(220, _LINE * len(rows))
    limits = [f"{metric}_low", f"{metric}_high"]
    domain = padded(pd.concat([rows[name] for name in (metric, *limits)]))
    high = float(np.log1p(rows["cost"].max())) or 1.0
    places = np.log1p(rows["cost"].to_numpy())
    outward = np.where(places > 0.6 * high, -1, 1)
    pixel = (domain[1] - domain[0]) / height
    best = front(rows, metric)
    beside = rows[metric].to_numpy() + np.where(best, 0.6 * _LINE * pixel, 0)  # above the line that joins the front
    labels = spread(beside, _LINE * pixel)
    domain[1] = max(domain[1], float(labels.max()) + 0.5 * _LINE * pixel)
    rows = rows.assign(
        place=places,
        yielded=rows[metric],
        low=rows[limits[0]],
        high=rows[limits[1]],
        kind=np.where(best, _FRONT, _BEHIND),
        label=labels,
        label_place=columns(places, 0.12 * high, outward) + outward * 0.03 * high,
        left=outward < 0,
    )
    x_scale = alt.Scale(domain=[-0.04 * high, 1.04 * high], nice=False)
    axis = alt.Axis(
        values=[float(np.log1p(tick)) for tick in _TICKS if np.log1p(tick) <= 1.04 * high],
        labelExpr="format(round(exp(datum.value) - 1), ',')",
    )
    y_scale = alt.Scale(domain=domain, nice=False)
    x_axis = alt.X("place:Q", title="seconds of training and search", scale=x_scale, axis=axis)
    y_axis = alt.Y("yielded:Q", title=_METRICS[metric], scale=y_scale, axis=alt.Axis(minExtent=34))
    kept = ["name", "cost", "place", "yielded", "low", "high", "kind", "label", "label_place", "left"]
    rows = rows[kept]
    seen = [word for word in (_FRONT, _BEHIND) if word in set(rows["kind"])]
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=seen, range=list(_COLOURS[: len(seen)])),
        legend=alt.Legend(orient="top"),
    )
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=seen, range=list(_SHAPES[: len(seen)])))
    base = alt.Chart(records(rows))
    line = alt.Chart(records(rows[rows["kind"] == _FRONT])).mark_line(
        strokeDash=[5, 3], strokeWidth=1.3, color=_COLOURS[0], interpolate="step-after"
    )
    known = alt.Chart(records(rows.dropna(subset=["low", "high"])))
    bars = known.mark_rule(strokeWidth=1.2, opacity=0.35)
    leaders = base.mark_rule(strokeWidth=0.7, opacity=0.6)
    points = base.mark_point(filled=True, size=60, opacity=1)
    layers: list[alt.Chart] = [
        bars.encode(x=x_axis, y=alt.Y("low:Q", title=_METRICS[metric], scale=y_scale), y2="high:Q"),
        line.encode(x=x_axis, y=y_axis),
        leaders.encode(x=x_axis, x2="label_place:Q", y=y_axis, y2="label:Q"),
        points.encode(
            x=x_axis,
            y=y_axis,
            color=colour,
            shape=shape,
            tooltip=tooltips("name:N", "cost:Q", "yielded:Q", "low:Q", "high:Q", "kind:N"),
        ),
    ]
    to_the_left, to_the_right = (alt.Chart(records(rows[rows["left"] == left])) for left in (True, False))
    for texts in (
        to_the_left.mark_text(align="right", dx=-3, fontSize=11, style=HALO),
        to_the_right.mark_text(align="left", dx=3, fontSize=11, style=HALO),
        to_the_left.mark_text(align="right", dx=-3, fontSize=11),
        to_the_right.mark_text(align="left", dx=3, fontSize=11),
    ):
        layers.append(
            texts.encode(
                x=alt.X("label_place:Q", title="seconds of training and search", scale=x_scale, axis=axis),
                y=alt.Y("label:Q", title=_METRICS[metric], scale=y_scale),
                text="name:N",
            )
        )
    return alt.LayerChart(layer=layers).properties(width=_WIDTH, height=height, title=heading(_METRICS[metric]))
