"""Figures of what drafters got accepted: differences to the reference, categories, depths, E(S) against τ."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from speclayers.analysis.answer import headline_comparisons
from speclayers.analysis.figures import (
    MOST_SERIES,
    Figure,
    Series,
    faded,
    file_name,
    heading,
    padded,
    records,
    series,
    specification,
    tooltips,
    with_limits,
)
from speclayers.analysis.statistics import QUESTIONS_FOR_LIMITS, SETS_FOR_CORRELATION
from speclayers.analysis.study import SETTING_ORDER, Study, of_model, rows_of, settings_of
from speclayers.analysis.wording import (
    confidence_level,
    count,
    estimate,
    joined,
    layers_in_words,
    listed,
    number,
    percent,
    set_name,
    setting,
    signed,
    span,
)

_VERDICTS = ("higher", "lower", "not distinguishable", "not measured")
_VERDICT_COLOURS = ("#0072B2", "#D55E00", "#7F7F7F", "#7F7F7F")
_VERDICT_SHAPES = ("triangle-up", "triangle-down", "circle", "cross")

_CYCLES_FOR_A_POINT = 10
"""A depth is drawn where a set's verifications got there at least so often."""

_TAU, _DELTA = "τ (tokens per verification)", "Δτ (tokens per verification)"


def first_setting(rows: pd.DataFrame) -> tuple[float, int]:
    """Return the lowest temperature, and its smallest tree, among some rows; a chain where there is no tree."""
    first = rows.sort_values(SETTING_ORDER).iloc[0]
    return float(first["temperature"]), int(first["nodes"])


def at_setting(rows: pd.DataFrame, model: str, where: tuple[float, int]) -> pd.DataFrame:
    """Return one model's rows at one setting."""
    rows = of_model(rows, model)
    return rows[(rows["temperature"] == where[0]) & (rows["nodes"] == where[1])]


def shown_sets(study: Study, model: str, where: tuple[float, int]) -> pd.DataFrame:
    """Return the layer sets that a chart with one series a set shows: the reference, then those of highest τ."""
    rows = at_setting(study.tau, model, where)
    references = set(of_model(study.comparisons, model)["reference"])
    order = rows.assign(other=~rows["layer_set"].isin(references)).sort_values(
        ["other", "tau_question", "layer_set"], ascending=[True, False, True]
    )
    return named(order.head(MOST_SERIES))


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `set`, the layer set in words, and `name`, the same with who chose it."""
    pairs = zip(rows["layer_set"], rows["selectors"], strict=True)
    return rows.assign(name=[set_name(*pair) for pair in pairs], set=rows["layer_set"].map(layers_in_words))


def _which(shown: pd.DataFrame, study: Study, model: str, where: tuple[float, int]) -> str:
    total = len(at_setting(study.tau, model, where))
    if total == len(shown):
        return f"All {count(total, 'set')} are shown"
    return f"Shown are {study.reference} and the sets of highest τ, {len(shown)} of {total}"


# ---------------------------------------------------------------- differences


def forest(study: Study, model: str) -> Figure | None:
    """Draw Δτ of every set against the reference, a panel a setting."""
    rows = named(headline_comparisons(study, model))
    if rows.empty:
        return None
    values = pd.concat([rows[c] for c in ("difference", "difference_low", "difference_high")] + [pd.Series([0.0])])
    domain = padded(values)
    seen = set(rows["verdict"])
    panels = [
        forest_panel(part, setting(t, nodes, bool(part["chain"].iloc[0])), domain, seen)
        for t, nodes, part in settings_of(rows)
    ]
    caption = (
        f"Δτ: accepted tokens per verification, mean over questions, minus those of"
        f" {set_name(rows['reference'].iloc[0], study.reference)}; right of 0 a set does better."
        f" Bars are {confidence_level(study.confidence)} limits, paired bootstrap over"
        f" {span(rows['questions'], 'question')} and {span(rows['seeds'], 'training seed')}. Symbols give the verdict"
        " after Holm's correction for several comparisons, which asks more than one bar clear of 0."
    )
    chart = alt.vconcat(*panels, spacing=14)
    return Figure(
        file_name("difference", model), _forest_title(study, model, rows), caption, specification(chart, linked=True)
    )


def forest_panel(
    rows: pd.DataFrame,
    title: str,
    domain: list[float],
    verdicts: set[str],
    order: list[str] | None = None,
    width: int = 560,
) -> alt.LayerChart:
    """Draw differences with their limits, a row a name.

    Args:
        rows: Differences, with the columns `name` and `set`.
        title: Heading of the panel.
        domain: Ends of the axis.
        verdicts: Those in any panel of the chart, for its one legend.
        order: Names from top to bottom; by falling difference when not given.
        width: Of the panel, in pixels.
    """
    order = order or list(rows.sort_values("difference", ascending=False)["name"])
    scale = alt.Scale(domain=domain, nice=False)
    x_axis = alt.X("difference:Q", title=_DELTA, scale=scale, axis=alt.Axis(tickCount=6))
    y_axis = alt.Y("name:N", title=None, sort=order)
    tooltip = tooltips(
        "name:N", "set:N", "difference:Q", "difference_low:Q", "difference_high:Q", "p_holm:Q", "verdict:N"
    )
    seen = [place for place, word in enumerate(_VERDICTS) if word in verdicts]
    words = [_VERDICTS[place] for place in seen]
    colours = alt.Scale(domain=words, range=[_VERDICT_COLOURS[place] for place in seen])
    shapes = alt.Scale(domain=words, range=[_VERDICT_SHAPES[place] for place in seen])
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(strokeDash=[4, 3]).encode(x="zero:Q")
    limits = (
        alt.Chart(records(with_limits(rows, "difference")))
        .mark_rule(strokeWidth=1.6)
        .encode(
            x=alt.X("difference_low:Q", title=_DELTA, scale=scale, axis=alt.Axis(tickCount=6)),
            x2="difference_high:Q",
            y=y_axis,
            opacity=faded(),
        )
    )
    points = (
        alt.Chart(records(rows))
        .mark_point(filled=True, size=75)
        .encode(
            x=x_axis,
            y=y_axis,
            color=alt.Color("verdict:N", title=None, scale=colours, legend=alt.Legend(orient="top")),
            shape=alt.Shape("verdict:N", title=None, scale=shapes),
            opacity=faded(),
            tooltip=tooltip,
        )
    )
    chart = alt.LayerChart(layer=[zero, limits, points])
    return chart.properties(width=width, height=alt.Step(22), title=heading(title))


def _forest_title(study: Study, model: str, rows: pd.DataFrame) -> str:
    reference = set_name(rows["reference"].iloc[0], study.reference)
    decided = rows[rows["verdict"].isin(("higher", "lower"))]
    if decided.empty:
        low, high = signed(rows["difference"].min(), 2), signed(rows["difference"].max(), 2)
        return f"On {model}, no set is distinguishable from {reference}: Δτ between {low} and {high}"
    settings = len(rows[["temperature", "nodes"]].drop_duplicates())
    parts = []
    for word, told in (("higher", "more"), ("lower", "fewer")):
        found = decided[decided["verdict"] == word]["layer_set"].value_counts()
        if len(found):
            names = [_at_how_many(layers_in_words(str(name)), n, settings) for name, n in found.items()]
            parts.append(f"{told} with {listed(names, 2)}")
    rest = rows["layer_set"].nunique() - decided["layer_set"].nunique()
    others = f"; {count(rest, 'other set')} not distinguishable" if rest else ""
    return f"On {model}, accepted tokens against {reference}: {joined(parts)}{others}"


def _at_how_many(name: str, n: int, settings: int) -> str:
    return f"{name} (at {n} of {settings} settings)" if settings > 1 else name


# ---------------------------------------------------------------- categories and depths


def categories(study: Study, model: str) -> Figure | None:
    """Draw τ by category of questions at the first setting."""
    measured = of_model(study.tau, model)
    if measured.empty:
        return None
    where = first_setting(measured)
    shown = shown_sets(study, model, where)
    rows = at_setting(study.categories, model, where).merge(shown[["layer_set", "name", "set"]], on="layer_set")
    means = rows.groupby("category")["tau_pooled"].mean().sort_values(ascending=False)
    scales = series(list(shown["name"]))
    domain = padded(pd.concat([rows[c] for c in ("tau_pooled", "tau_pooled_low", "tau_pooled_high")]))
    y_axis = alt.Y("category:N", title=None, sort=list(means.index))
    offset = alt.YOffset("name:N", sort=list(shown["name"]))
    scale = alt.Scale(domain=domain, nice=False)
    x_axis = alt.X("tau_pooled:Q", title=_TAU, scale=scale)
    low = alt.X("tau_pooled_low:Q", title=_TAU, scale=scale)
    colour = _colour(scales)
    enough = with_limits(rows[rows["questions"] >= QUESTIONS_FOR_LIMITS], "tau_pooled")
    limits = alt.Chart(records(enough)).mark_rule(strokeWidth=1.4)
    limits = limits.encode(x=low, x2="tau_pooled_high:Q", y=y_axis, yOffset=offset, color=colour, opacity=faded())
    points = alt.Chart(records(rows)).mark_point(filled=True, size=45)
    points = points.encode(
        x=x_axis,
        y=y_axis,
        yOffset=offset,
        color=colour,
        shape=_shape(scales),
        opacity=faded(),
        tooltip=tooltips(
            "name:N", "category:N", "tau_pooled:Q", "tau_pooled_low:Q", "tau_pooled_high:Q", "questions:Q"
        ),
    )
    height = len(means) * max(26, 9 * len(shown) + 8)
    chart = alt.LayerChart(layer=[limits, points] if len(enough) else [points]).properties(width=560, height=height)
    questions = rows.groupby("category")["questions"].max()
    title = (
        f"On {model}, τ averages {number(means.iloc[0])} in {means.index[0]} and {number(means.iloc[-1])} in"
        f" {means.index[-1]}, the most and the least of {len(means)} categories ({span(questions, 'question')} each)"
    )
    if len(means) == 1:
        title = f"On {model}, all questions are of one category, {means.index[0]}: τ averages {number(means.iloc[0])}"
    caption = (
        f"τ: accepted tokens per verification, pooled over verifications, at {setting(*where)}."
        f" {_bars(study, questions)} a category. {_which(shown, study, model, where)}."
    )
    return Figure(file_name("categories", model), title, caption, specification(chart, linked=True))


def _bars(study: Study, questions: pd.Series) -> str:
    """Say what the bars are, or why there are none."""
    if questions.max() < QUESTIONS_FOR_LIMITS:
        return f"No limits are drawn, as there are only {span(questions, 'question')}"
    return f"Bars are {confidence_level(study.confidence)} limits, bootstrap over {span(questions, 'question')}"


def _colour(scales: Series) -> alt.Color:
    return alt.Color("name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", columns=2))


def _shape(scales: Series) -> alt.Shape:
    return alt.Shape("name:N", title=None, scale=scales.shape)


def depths(study: Study, model: str) -> Figure | None:
    """Draw acceptance at each depth of the draft tree at the first setting."""
    measured = of_model(study.tau, model)
    if measured.empty:
        return None
    where = first_setting(measured)
    shown = shown_sets(study, model, where)
    rows = at_setting(study.depths, model, where).merge(shown[["layer_set", "name", "set"]], on="layer_set")
    rows = rows[rows["reached"] >= _CYCLES_FOR_A_POINT]
    if rows.empty:
        return None
    scales = series(list(shown["name"]))
    x_axis = alt.X("draft_depth:O", title="depth in the draft tree (tokens)", axis=alt.Axis(labelAngle=0))
    y_axis = alt.Y("acceptance:Q", title="accepted among those that got there", scale=alt.Scale(domain=[0, 1]))
    offset = alt.XOffset("name:N", sort=list(shown["name"]))
    base = alt.Chart(records(rows)).encode(x=x_axis, xOffset=offset, color=_colour(scales), opacity=faded())
    points = base.mark_point(filled=True, size=45).encode(
        y=y_axis, shape=_shape(scales), tooltip=tooltips("name:N", "draft_depth:O", "acceptance:Q", "reached:Q")
    )
    limits = alt.Chart(records(with_limits(rows, "acceptance"))).mark_rule(strokeWidth=1.4)
    limits = limits.encode(
        x=x_axis,
        xOffset=offset,
        color=_colour(scales),
        opacity=faded(),
        y=alt.Y("acceptance_low:Q", title="accepted among those that got there"),
        y2="acceptance_high:Q",
    )
    chart = alt.LayerChart(layer=[limits, points]).properties(width=560, height=240)
    means = rows.groupby("draft_depth")["acceptance"].mean()
    title = f"On {model}, {percent(means.iloc[0])} of verifications accept a first draft token"
    if len(means) > 1:
        title += f"; of those that accept {means.index[-1] - 1}, {percent(means.iloc[-1])} accept one more"
    caption = (
        f"Share of verifications that accepted a draft token at a depth among those that had accepted one at the depth"
        f" before, at {setting(*where)}; a path shorter than the tree's longest counts as not accepted below its end."
        f" The title's shares are means over sets. Bars are {confidence_level(study.confidence)} limits, bootstrap over"
        f" questions; {span(rows['reached'], 'verification')} a point, points of fewer than {_CYCLES_FOR_A_POINT} left"
        f" out. {_which(shown, study, model, where)}."
    )
    return Figure(file_name("depths", model), title, caption, specification(chart, linked=True))


# ---------------------------------------------------------------- does geometry predict acceptance?


def prediction(study: Study, model: str) -> Figure | None:
    """Draw τ against the entropy E(S) of the layer set at the first setting."""
    measured = of_model(study.tau, model)
    if measured.empty:
        return None
    where = first_setting(measured)
    rows = named(at_setting(measured, model, where).dropna(subset=["score", "k"]))
    if rows.empty:
        return None
    by = "name" if len(rows) <= MOST_SERIES else "size"
    rows = rows.assign(size=[f"k = {int(k)}" for k in rows["k"]])
    scales = series(list(rows.sort_values(["k", "name"])[by].drop_duplicates())[:MOST_SERIES])
    x_axis = alt.X(
        "score:Q",
        title="E(S) (nats)",
        axis=alt.Axis(tickCount=8),
        scale=alt.Scale(domain=padded(rows["score"], 0.2), nice=False),
    )
    domain = padded(pd.concat([rows[c] for c in ("tau_question", "tau_question_low", "tau_question_high")]))
    scale = alt.Scale(domain=domain, nice=False)
    colour = alt.Color(f"{by}:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", columns=3))
    points = alt.Chart(records(rows)).mark_point(filled=True, size=70)
    points = points.encode(
        x=x_axis,
        y=alt.Y("tau_question:Q", title=_TAU, scale=scale),
        color=colour,
        shape=alt.Shape(f"{by}:N", title=None, scale=scales.shape),
        opacity=faded(),
        tooltip=tooltips("name:N", "score:Q", "tau_question:Q"),
    )
    limits = alt.Chart(records(with_limits(rows, "tau_question"))).mark_rule(strokeWidth=1.2)
    limits = limits.encode(
        x=x_axis,
        color=colour,
        opacity=faded(),
        y=alt.Y("tau_question_low:Q", title=_TAU, scale=scale),
        y2="tau_question_high:Q",
    )
    chart = alt.LayerChart(layer=[limits, points]).properties(width=560, height=260)
    caption = (
        f"Each point is a layer set at {setting(*where)}: its entropy E(S), known before any training, and its τ"
        f" (mean over {span(rows['questions'], 'question')}) with {confidence_level(study.confidence)} limits."
        f" Spearman's ρ is computed among sets of equally many layers k, from {SETS_FOR_CORRELATION} sets on."
    )
    title = _prediction_title(study, model, where)
    return Figure(file_name("prediction", model), title, caption, specification(chart, linked=True))


def _prediction_title(study: Study, model: str, where: tuple[float, int]) -> str:
    rows = at_setting(study.correlations, model, where)
    known = rows[np.isfinite(rows["rho"])]
    if known.empty:
        most = int(rows["sets"].max()) if len(rows) else 0
        return (
            f"On {model}, too few sets were measured to say whether E(S) predicts τ: {most} with equally many layers,"
            f" where {SETS_FOR_CORRELATION} are needed"
        )
    parts = []
    for row in rows_of(known):
        clear = row["rho_low"] > 0 or row["rho_high"] < 0
        word = "goes with" if clear and row["rho"] > 0 else "runs against" if clear else "does not visibly predict"
        rho = estimate(row["rho"], row["rho_low"], row["rho_high"])
        parts.append(f"E(S) {word} τ for k = {int(row['k'])} (ρ = {rho}, {count(int(row['sets']), 'set')})")
    return f"On {model}, {'; '.join(parts)}"
