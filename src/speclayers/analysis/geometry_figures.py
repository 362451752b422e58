"""Figures of the layers themselves: entropy waves, CKA with the chosen layers, the filter's effect."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from speclayers.analysis import calibration_figures
from speclayers.analysis.figures import (
    INK,
    Figure,
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
from speclayers.analysis.study import Study, of_model, rows_of
from speclayers.analysis.wording import count, joined, layers_in_words, number, percent

_SUBSETS = {
    "all": "filter off: all tokens",
    "filtered": "filter on: most uncertain tokens",
    "random": "control: as many random tokens",
}
_AGGREGATIONS = {"pooled": "pooled over prompts", "per prompt": "mean over prompts ± 1 sd"}
_SINKS = {"dropped": False, "kept": True}
_EVERY = "all"
_LOWEST_CUT = -1.5
"""The filter's figure ends here on the left: variances of few prompts have limits of many hundred per cent."""


def wave(study: Study, model: str) -> Figure | None:
    """Draw the entropy of every layer, with switches for sinks and for the token filter; files show the default."""
    rows = of_model(study.entropy, model).dropna(subset=["entropy"])
    if rows.empty:
        return None
    rows = rows.assign(name=rows["subset"].map(lambda subset: _SUBSETS.get(subset, subset)))
    rows = rows.assign(sinks=rows["sinks_kept"].map({kept: word for word, kept in _SINKS.items()}))
    names = [name for name in _SUBSETS.values() if name in set(rows["name"])]
    panels = [
        _wave_panel(part, names, title)
        for aggregation, title in _AGGREGATIONS.items()
        if len(part := rows[rows["aggregation"] == aggregation])
    ]
    prompts = rows[rows["aggregation"] == "per prompt"]["prompts"]
    per_prompt = f"; on the right, mean over {count(int(prompts.max()), 'prompt')} with ± 1 sd" if len(prompts) else ""
    caption = (
        f"Matrix entropy (Shannon, nats; preprocessing: {joined(sorted(set(rows['preprocessing'])))}) of the states of"
        f" each layer; layer 0 is the embedding. On the left, pooled over {_tokens(rows)}, with 95 % limits by block"
        f" jackknife where sinks are dropped{per_prompt}. Sinks are the first token and others of huge norm;"
        " kept means that the first token is added back, as the switch on the page does. Entropies compare only at"
        " equal numbers of tokens: the filter against its control, not against all."
    )
    chart = alt.concat(*panels, columns=2, spacing=22).add_params(*_switches(rows, names))
    return Figure(file_name("wave", model), _wave_title(model, rows), caption, specification(chart))


def _switches(rows: pd.DataFrame, names: list[str]) -> list[alt.Parameter]:
    """Return the switches of the wave, each set to what files show."""
    sinks = [word for word in _SINKS if word in set(rows["sinks"])]
    shown = [_EVERY, *names]
    labels = ["all three" if len(names) == len(_SUBSETS) else "all", *names]
    return [
        alt.param(name="sinks", value=sinks[0], bind=alt.binding_radio(options=sinks, name="Sinks: ")),
        alt.param(name="shown", value=_EVERY, bind=alt.binding_radio(options=shown, labels=labels, name="Tokens: ")),
    ]


def _tokens(rows: pd.DataFrame) -> str:
    pooled = rows[rows["aggregation"] == "pooled"]
    counts = pooled.groupby("subset", sort=True)["n_tokens"].min()  # where sinks are dropped
    return joined([f"{int(n):,} tokens ({subset})" for subset, n in counts.items()])


def _wave_panel(rows: pd.DataFrame, names: list[str], title: str) -> alt.LayerChart:
    """Draw one aggregation; axes cover both positions of the switch, so that only the curves move."""
    scales = series(names)
    ends = [int(rows["layer"].min()), int(rows["layer"].max())]
    x_axis = alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(domain=ends, nice=False))
    domain = [min(0.0, float(rows["entropy"].min())), padded(pd.concat([rows["entropy"], rows["high"]]))[1]]
    scale = alt.Scale(domain=domain, nice=False)
    y_axis = alt.Y("entropy:Q", title="entropy (nats)", scale=scale)
    colour = alt.Color(
        "name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", symbolType="stroke", symbolOpacity=1)
    )
    switched = f"datum.sinks === sinks && (shown === '{_EVERY}' || datum.name === shown)"
    rows = rows[["layer", "name", "sinks", "entropy", "low", "high", "n_tokens"]]
    limits = rows.dropna(subset=["low", "high"])
    band = alt.Chart(records(limits)).transform_filter(switched).mark_area(opacity=0.15, clip=True)
    band = band.encode(x=x_axis, y=alt.Y("low:Q", title="entropy (nats)", scale=scale), y2="high:Q", color=colour)
    line = alt.Chart(records(rows)).transform_filter(switched)
    line = line.mark_line(strokeWidth=2, clip=True, point=alt.OverlayMarkDef(size=14)).encode(
        x=x_axis,
        y=y_axis,
        color=colour,
        strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash),
        tooltip=tooltips("layer:Q", "name:N", "entropy:Q", "n_tokens:Q"),
    )
    layers = [band, line] if len(limits) else [line]
    told = alt.ExprRef(f"'{title}, sinks ' + sinks")
    return alt.LayerChart(layer=layers).properties(width=400, height=220, title=heading(told))


def _wave_title(model: str, rows: pd.DataFrame) -> str:
    filtered = rows[(rows["aggregation"] == "pooled") & (rows["subset"] == "filtered")]
    dropped, kept = (filtered[filtered["sinks_kept"] == kept][["layer", "entropy"]] for kept in (False, True))
    if dropped.empty:
        return f"Entropy of the layers of {model}"
    order = rows_of(dropped.sort_values("entropy"))
    top, bottom = (f"layer {row['layer']} ({number(row['entropy'])} nats)" for row in (order[-1], order[0]))
    title = f"On {model}, entropy with the filter on is highest at {top} and lowest at {bottom}"
    both = rows_of(dropped.merge(kept, on="layer", suffixes=("", "_kept")))
    if not both:
        return title
    most = max(both, key=lambda row: abs(row["entropy_kept"] - row["entropy"]))
    word = "lowers" if most["entropy_kept"] < most["entropy"] else "raises"
    where = f"layer {most['layer']}, to {number(most['entropy_kept'])} nats"
    return f"{title}; adding the first token back {word} it most at {where}"


# ---------------------------------------------------------------- CKA, turning points, choices


def similarity(study: Study, model: str) -> Figure | None:
    """Draw the CKA of all pairs of layers; above it the turning score, below it what selectors chose."""
    pairs = of_model(study.cka, model)
    if pairs.empty:
        return None
    layers = sorted(set(pairs["layer_a"]) | set(pairs["layer_b"]))
    cell = min(30.0, max(5.0, 520 / len(layers)))
    order = [int(layer) for layer in layers]
    every = max(1, len(order) // 16)
    axis = alt.Axis(values=order[::every], labelAngle=0)
    chosen, turning = _chosen(study, model), of_model(study.turning, model)
    panels: list[alt.LayerChart] = []
    if len(turning):
        panels.append(_turning_panel(turning, order, cell, axis))
    panels.append(_heatmap(pairs, turning, order, cell, axis, sorted(set(chosen["layer"]))))
    if len(chosen):
        panels.append(_choice_panel(chosen, order, cell, axis))
    points = [f"{int(layer)}" for layer in turning[turning["is_turning_point"].eq(True)]["layer"]]
    off = pairs[pairs["layer_a"] != pairs["layer_b"]]["value"]
    caption = (
        f"Debiased linear CKA of each pair of layers on the {int(pairs['n_tokens'].max()):,} most uncertain tokens,"
        " sinks dropped. Above: turning score between"
        " a layer and the next; a diamond is a local maximum above mean + 1 sd. Frames are the runs of layers between"
        " turning points; on the diagonal: layers that any selector chose. Below: which one chose them; where a square"
        " is hollow, τ was not measured."
    )
    title = (
        f"The states of {model} turn after {'layer' if len(points) == 1 else 'layers'} {joined(points)}"
        if points
        else f"No layer of {model} is a turning point"
    )
    title += f"; CKA of two different layers lies between {number(off.min())} and {number(off.max())}"
    chart = alt.vconcat(*panels, spacing=10)
    return Figure(file_name("similarity", model), title, caption, specification(chart, linked=len(chosen) > 0))


def _heatmap(
    pairs: pd.DataFrame, turning: pd.DataFrame, order: list[int], cell: float, axis: alt.Axis, chosen: list[int]
) -> alt.LayerChart:
    size = cell * len(order)
    known = pairs["value"].dropna()
    lowest = min(0.9, math.floor(float(known.min()) * 10) / 10) if len(known) else 0.0  # tells near-equal layers apart
    shown = pairs[["layer_a", "layer_b", "value", "ci_low", "ci_high"]]
    mirrored = shown.rename(columns={"layer_a": "layer_b", "layer_b": "layer_a"})
    both = pd.concat([shown, mirrored]).drop_duplicates(["layer_a", "layer_b"])  # stored once a pair
    x_axis = alt.X("layer_a:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order))
    y_axis = alt.Y("layer_b:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order))
    cells = (
        alt.Chart(records(both))
        .mark_rect()
        .encode(
            x=x_axis,
            y=y_axis,
            color=alt.Color("value:Q", title="CKA", scale=alt.Scale(scheme="cividis", domain=[lowest, 1], clamp=True)),
            tooltip=tooltips("layer_a:O", "layer_b:O", "value:Q", "ci_low:Q", "ci_high:Q"),
        )
    )
    diagonal = alt.Chart(records(pd.DataFrame({"layer_a": chosen, "layer_b": chosen})))
    dots = diagonal.mark_point(filled=True, size=cell * cell * 0.3, color=INK, opacity=1).encode(x=x_axis, y=y_axis)
    ends = turning.groupby("block")["layer"].agg(["min", "max"]).reset_index(drop=True)
    frames = (
        alt.Chart(records(ends))
        .mark_rect(filled=False, stroke="#D55E00", strokeWidth=1.5)
        .encode(
            x=alt.X("min:O", bandPosition=0, sort=order, axis=axis, scale=alt.Scale(domain=order)),
            x2=alt.X2("max:O", bandPosition=1),
            y=alt.Y("min:O", bandPosition=0, sort=order, axis=axis, scale=alt.Scale(domain=order)),
            y2=alt.Y2("max:O", bandPosition=1),
        )
    )
    return alt.LayerChart(layer=[cells, frames, dots]).properties(width=size, height=size)


def _turning_panel(turning: pd.DataFrame, order: list[int], cell: float, axis: alt.Axis) -> alt.LayerChart:
    x_axis = alt.X("layer:O", title=None, sort=order, axis=axis, scale=alt.Scale(domain=order))
    domain = [min(0.0, float(turning["score"].min())), padded(turning["score"], 0.15)[1]]
    y_axis = alt.Y("score:Q", title="turning score", scale=alt.Scale(domain=domain, nice=False))
    bars = (
        alt.Chart(records(turning))
        .mark_bar(color="#7F7F7F")
        .encode(x=x_axis, y=y_axis, tooltip=tooltips("layer:O", "score:Q"))
    )
    marked = alt.Chart(records(turning[turning["is_turning_point"].eq(True)]))
    points = marked.mark_point(shape="diamond", filled=True, size=70, color="#D55E00", opacity=1).encode(
        x=x_axis, y=y_axis
    )
    return alt.LayerChart(layer=[bars, points]).properties(width=cell * len(order), height=80)


def _chosen(study: Study, model: str) -> pd.DataFrame:
    rows = of_model(study.selected, model)
    labels = [f"{label}, k = {k}" for label, k in zip(rows["label"], rows["k"], strict=True)]
    rows = rows.assign(choice=labels, measured=rows["layer_set"].isin(of_model(study.tau, model)["layer_set"]))
    rows = rows.assign(set=rows["layer_set"].map(layers_in_words))
    marks = rows[["choice", "set", "layers", "k", "label", "measured"]].explode("layers")
    return marks.rename(columns={"layers": "layer"}).sort_values(["k", "label"])


def _choice_panel(chosen: pd.DataFrame, order: list[int], cell: float, axis: alt.Axis) -> alt.LayerChart:
    x_axis = alt.X("layer:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order))
    choices = list(dict.fromkeys(chosen["choice"]))
    y_axis = alt.Y("choice:N", title=None, sort=choices, axis=alt.Axis(grid=True), scale=alt.Scale(domain=choices))
    size = min(80.0, cell * cell * 0.5)
    layers = [
        alt.Chart(records(chosen[chosen["measured"] == measured]))
        .mark_square(size=size, filled=measured, color="#0072B2", strokeWidth=1.6)
        .encode(x=x_axis, y=y_axis, opacity=faded(), tooltip=tooltips("choice:N", "layer:O"))
        for measured in (True, False)
        if (chosen["measured"] == measured).any()
    ]
    return alt.LayerChart(layer=layers).properties(width=cell * len(order), height=alt.Step(18))


# ---------------------------------------------------------------- filter


def filter_effect(study: Study, model: str) -> Figure | None:
    """Draw how much the token filter cuts the variance over prompts, beside its random control."""
    rows = of_model(study.filter_effect, model)
    columns = {"reduction": "against all tokens", "reduction_random": "against as many random tokens"}
    parts = [
        rows[["segment", "n_prompts", name, f"{name}_low", f"{name}_high"]]
        .set_axis(["segment", "n_prompts", "cut", "cut_low", "cut_high"], axis=1)
        .assign(name=label)
        for name, label in columns.items()
    ]
    long = pd.concat(parts).dropna(subset=["cut"])
    if long.empty:
        return None
    scales = series(list(columns.values()))
    segments = [s for s in ("first", "middle", "last") if s in set(long["segment"])]
    order = segments + [s for s in dict.fromkeys(long["segment"]) if s not in segments]
    domain = padded(pd.concat([long[c] for c in ("cut", "cut_low", "cut_high")] + [pd.Series([0.0])]))
    domain = [max(domain[0], _LOWEST_CUT), min(domain[1], 1.05)]
    long = long.assign(cut_high=long["cut_high"].clip(upper=1))  # a variance is not below 0
    title = "reduction of the variance over prompts"
    x_scale = alt.Scale(domain=domain, nice=False)
    y_axis = alt.Y("segment:N", title="part of the depth", sort=order)
    offset = alt.YOffset("name:N", sort=list(columns.values()))
    colour = alt.Color("name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top"))
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(strokeDash=[4, 3]).encode(x="zero:Q")
    limits = alt.Chart(records(with_limits(long, "cut"))).mark_rule(strokeWidth=1.6, clip=True)
    limits = limits.encode(
        x=alt.X("cut_low:Q", title=title, scale=x_scale, axis=alt.Axis(format="%", tickCount=7)),
        x2="cut_high:Q",
        y=y_axis,
        yOffset=offset,
        color=colour,
    )
    points = alt.Chart(records(long)).mark_point(filled=True, size=60, opacity=1, clip=True)
    points = points.encode(
        x=alt.X("cut:Q", title=title, scale=x_scale, axis=alt.Axis(format="%", tickCount=7)),
        y=y_axis,
        yOffset=offset,
        color=colour,
        shape=alt.Shape("name:N", title=None, scale=scales.shape),
        tooltip=tooltips("segment:N", "name:N", "cut:Q", "cut_low:Q", "cut_high:Q"),
    )
    chart = alt.LayerChart(layer=[zero, limits, points]).properties(width=560, height=alt.Step(22))
    caption = (
        "1 − variance over prompts of a layer's entropy on the most uncertain tokens ÷ the same on the tokens compared"
        " with, mean over the layers of a third of the depth; right of 0 the filter makes prompts more alike. Bars"
        f" are 95 % limits by jackknife over {count(int(long['n_prompts'].max()), 'prompt')}. Only the random control"
        " has as few tokens as the filter. Limits beyond the axis are cut."
    )
    return Figure(file_name("filter", model), _filter_title(model, rows), caption, specification(chart))


def _filter_title(model: str, rows: pd.DataFrame) -> str:
    of_all, of_random = _change(rows, "reduction"), _change(rows, "reduction_random")
    told = f"{of_all} against all tokens, and {of_random} against as many random ones"
    if of_all == of_random:
        told = f"{of_all}, against all tokens and against as many random ones"
    return f"On {model}, the token filter leaves the variance of entropy over prompts {told}"


def _change(rows: pd.DataFrame, name: str) -> str:
    """Say by how much the variance is lower or higher, and where, such as `20 % lower in the first part`."""
    told: dict[str, list[str]] = {}
    for row in rows_of(rows.dropna(subset=[name])):
        value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
        word = f"{percent(abs(value))} {'lower' if value > 0 else 'higher'}"
        told.setdefault(word if low > 0 or high < 0 else "not visibly changed", []).append(str(row["segment"]))
    parts = [f"{word} in the {joined(parts)} {'part' if len(parts) == 1 else 'parts'}" for word, parts in told.items()]
    return joined(parts) if parts else "unknown"


def figures(study: Study, model: str) -> list[Figure]:
    """Return one model's figures of its layers, those without data left out."""
    drawn = (
        *(wave(study, model), similarity(study, model), filter_effect(study, model)),
        *(calibration_figures.filter_sweep(study, model), calibration_figures.convergence(study, model)),
    )
    return [figure for figure in drawn if figure is not None]
