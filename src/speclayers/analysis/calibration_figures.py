"""Figures of what the measurement of layers rests on: the share of tokens kept, and how many there were."""

from __future__ import annotations

import math
from typing import NamedTuple

import altair as alt
import pandas as pd

from speclayers.analysis.figures import Figure, file_name, heading, padded, records, series, specification, tooltips
from speclayers.analysis.study import Study, of_model
from speclayers.analysis.wording import FILTER_SCOPES, count, listed, number

_SEGMENTS = ("first", "middle", "last")
SETTLED_SHARE, SETTLED_CKA = 0.1, 0.02
"""The calibration was large enough if, from half of the tokens to all, no layer moves by more than this: entropy as a
share of the span over the layers, since selectors compare layers, and CKA as it is."""


def filter_sweep(study: Study, model: str) -> Figure | None:
    """Draw the variance over prompts at every share of tokens kept, by part of the depth, beside random tokens."""
    rows = of_model(study.filter_sweep, model).dropna(subset=["share", "variance"])
    if rows.empty:
        return None
    rows = rows.assign(
        name=[f"{s}, {FILTER_SCOPES.get(c, c)}" for s, c in zip(rows["subset"], rows["scope"], strict=True)]
    )
    names = [
        f"{subset}, {words}"
        for words in FILTER_SCOPES.values()
        for subset in ("filtered", "random")
        if f"{subset}, {words}" in set(rows["name"])
    ]
    groups = (rows[rows["scope"] == "per_prompt"], rows[rows["scope"] != "per_prompt"])
    panels = [
        _sweep_panel(part, names, f"{segment} part of the depth")
        for group in groups
        for segment in _SEGMENTS
        if len(part := group[group["segment"] == segment])
    ]
    prompts = count(int(rows["n_prompts"].max()), "prompt")
    caption = (
        "Variance over prompts of a layer's Shannon entropy (nats²), mean over the layers of a part, against the share"
        f" of tokens kept; vertical lines are 95 % limits by jackknife over {prompts}."
        " Entropy and its variance depend on the number of tokens, so a share compares only with its own random tokens;"
        " in the lower row, prompts keep different numbers, which adds to the variance. Scales differ between panels."
    )
    return Figure(
        file_name("sweep", model), _sweep_title(model, rows), caption, specification(alt.concat(*panels, columns=3))
    )


def _sweep_panel(rows: pd.DataFrame, names: list[str], title: str) -> alt.LayerChart:
    scales = series(names)
    domain = padded(pd.concat([rows[name] for name in ("variance", "variance_low", "variance_high")]))
    x_axis = alt.X("share:Q", title="share kept", scale=alt.Scale(domain=[0, 1.03], nice=False))
    scale = alt.Scale(domain=domain, nice=False)
    colour = alt.Color(
        "name:N",
        title=None,
        scale=scales.colour,
        legend=alt.Legend(orient="top", columns=2, symbolOpacity=1, symbolStrokeWidth=0),
    )
    y_axis = alt.Y("variance:Q", title="variance over prompts (nats²)", scale=scale)
    limits = alt.Chart(records(rows.dropna(subset=["variance_low", "variance_high"])))
    rules = limits.mark_rule(opacity=0.3, clip=True).encode(
        x=x_axis,
        y=alt.Y("variance_low:Q", title="variance over prompts (nats²)", scale=scale),
        y2="variance_high:Q",
        color=colour,
    )
    base = alt.Chart(records(rows))
    lines = base.mark_line(strokeWidth=1.6).encode(
        x=x_axis, y=y_axis, color=colour, strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash)
    )
    points = base.mark_point(filled=True, size=34, opacity=1).encode(
        x=x_axis,
        y=y_axis,
        color=colour,
        shape=alt.Shape("name:N", title=None, scale=scales.shape),
        tooltip=tooltips("name:N", "share:Q", "variance:Q", "variance_low:Q", "variance_high:Q", "n_tokens:Q"),
    )
    return alt.LayerChart(layer=[rules, lines, points]).properties(width=210, height=190, title=heading(title))


def _sweep_title(model: str, rows: pd.DataFrame) -> str:
    """Tell where the variance is least, and how often random tokens vary less."""
    own = rows[rows["scope"] == "per_prompt"].pivot_table(
        index="share", columns=["segment", "subset"], values="variance", observed=True
    )
    least = [
        f"{own[segment, 'filtered'].idxmin():g} ({segment} part)"
        for segment in _SEGMENTS
        if (segment, "filtered") in own.columns
    ]
    if not least:
        return f"How the token filter changes the variance over the prompts of {model}"
    pairs = [
        (filtered, random)
        for segment in _SEGMENTS
        if {(segment, "filtered"), (segment, "random")} <= set(own.columns)
        for share, filtered, random in zip(own.index, own[segment, "filtered"], own[segment, "random"], strict=True)
        if share < 1
    ]
    lower = sum(random < filtered for filtered, random in pairs)
    return (
        f"On {model}, entropy varies least over prompts where the filter keeps the share {listed(least)}; as many"
        f" random tokens vary less still at {lower} of {count(len(pairs), 'point')}"
    )


# ---------------------------------------------------------------- convergence


def convergence(study: Study, model: str) -> Figure | None:
    """Draw entropy and CKA to the next layer against the number of tokens."""
    rows = of_model(study.convergence, model)
    panels = [
        _convergence_panel(part, name, title)
        for name, title in (("entropy", "entropy of order 2 (nats)"), ("cka_next", "CKA to the next layer"))
        if len(part := rows.dropna(subset=[name]))
    ]
    if not panels:
        return None
    caption = (
        "Each line is a layer, measured on growing numbers of prompts. Entropy of few tokens is bounded by their number"
        " and rises first; a line that still moves at its right end would move further with more calibration text."
    )
    chart = alt.concat(*panels, columns=2, spacing=22)
    return Figure(file_name("convergence", model), settling(study, model), caption, specification(chart))


def _convergence_panel(rows: pd.DataFrame, name: str, title: str) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(records(rows[["layer", "n_tokens", name]]))
        .mark_line(strokeWidth=1.4, point=alt.OverlayMarkDef(size=14))
        .encode(
            x=alt.X("n_tokens:Q", title="filtered tokens"),
            y=alt.Y(f"{name}:Q", title=title, scale=alt.Scale(domain=padded(rows[name]), nice=False)),
            color=alt.Color("layer:Q", title="layer", scale=alt.Scale(scheme="cividis")),
            detail="layer:N",
            tooltip=tooltips("layer:O", "n_tokens:Q", f"{name}:Q"),
        )
        .properties(width=300, height=200, title=heading(title))
    )
    return chart


class Settling(NamedTuple):
    """How far a model's layers still move between half of the tokens and all of them, layers 1 to N.

    Args:
        half: Tokens of about half of the prompts.
        tokens: Tokens of all prompts.
        moved: The most that a layer's entropy of order 2 moves, nats.
        span: Highest less lowest entropy of order 2 of the layers, nats.
        cka: The most that CKA to the next layer moves.
    """

    half: int
    tokens: int
    moved: float
    span: float
    cka: float

    @property
    def enough(self) -> bool:
        """Whether the calibration was large enough, by a rule of thumb."""
        return self.moved <= SETTLED_SHARE * self.span and self.cka <= SETTLED_CKA


def measured_settling(study: Study, model: str) -> Settling | None:
    """Compare the layers on half of the tokens with those on all; nothing where one of them is unknown."""
    rows = of_model(study.convergence, model)
    rows = rows[rows["layer"] > 0]
    sizes = sorted(set(rows["n_tokens"].dropna()))
    if len(sizes) < 2:
        return None
    half = max((size for size in sizes if size <= 0.55 * sizes[-1]), default=sizes[0])
    first, last = (rows[rows["n_tokens"] == size].set_index("layer") for size in (half, sizes[-1]))
    moved, cka = ((last[name] - first[name]).abs().max() for name in ("entropy", "cka_next"))
    span = last["entropy"].max() - last["entropy"].min()
    if not all(math.isfinite(value) for value in (moved, cka, span)):
        return None
    return Settling(int(half), int(sizes[-1]), float(moved), float(span), float(cka))


def settling(study: Study, model: str) -> str:
    """Say in one sentence whether the calibration was large enough, by which rule and by which numbers."""
    found = measured_settling(study, model)
    if found is None:
        return f"Whether {model} was measured on enough tokens cannot be told"
    return (
        f"{model} was {'' if found.enough else 'not '}measured on enough tokens: from {found.half:,} to"
        f" {found.tokens:,} of them, entropy of a layer moves by {number(found.moved)} nats at most (allowed are"
        f" {number(SETTLED_SHARE * found.span)}, a tenth of the span over the layers), and CKA to the next layer by"
        f" {number(found.cka, 3)} (allowed are {number(SETTLED_CKA)})"
    )
