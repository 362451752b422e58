"""Figures of the layers themselves: entropy waves, CKA with the chosen layers, the filter's effect."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from speclayers.analysis import calibration_figures
from speclayers.analysis.figures import (
    Figure,
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
from speclayers.analysis.wording import count, listed, number, percent

_SUBSETS = {"all": "all tokens", "filtered": "most uncertain tokens", "random": "as many random tokens"}
_PANELS = (
    ("pooled", False, "pooled, sinks left out (limits: block jackknife)"),
    ("pooled", True, "pooled, first token kept"),
    ("per prompt", False, "mean over prompts ± 1 sd, sinks left out"),
    ("per prompt", True, "mean over prompts ± 1 sd, first token kept"),
)


def wave(study: Study, model: str) -> Figure | None:
    """Draw the entropy of every layer, for each subset of tokens, with sinks left out and kept."""
    rows = of_model(study.entropy, model).dropna(subset=["entropy"])
    if rows.empty:
        return None
    rows = rows.assign(name=rows["subset"].map(lambda subset: _SUBSETS.get(subset, subset)))
    names = [name for name in _SUBSETS.values() if name in set(rows["name"])]
    highest = padded(pd.concat([rows["entropy"], rows["high"]]))[1]
    domain = [min(0.0, float(rows["entropy"].min())), highest]
    panels = []
    for aggregation, sinks_kept, title in _PANELS:
        part = rows[(rows["aggregation"] == aggregation) & (rows["sinks_kept"] == sinks_kept)]
        if len(part):
            panels.append(_wave_panel(part, names, domain, title))
    pooled = rows[(rows["aggregation"] == "pooled") & ~rows["sinks_kept"] & (rows["subset"] == "filtered")]
    prompts = rows[rows["aggregation"] == "per prompt"]["prompts"]
    per_prompt = f", or per prompt over {count(int(prompts.max()), 'prompt')}" if len(prompts) else ""
    caption = (
        f"Matrix entropy (Shannon, nats; {listed(sorted(set(rows['preprocessing'])))}) of each layer's states, 0"
        f" the embedding, the last one before the final norm. Pooled over {_tokens(rows)}"
        f"{per_prompt}."
        " Entropies compare only at equal numbers of tokens: filtered against random, not against all."
    )
    chart = alt.concat(*panels, columns=2, spacing=22)
    return Figure(file_name("wave", model), _wave_title(model, pooled), caption, specification(chart))


def _tokens(rows: pd.DataFrame) -> str:
    pooled = rows[rows["aggregation"] == "pooled"]
    counts = pooled.groupby("subset", sort=True)["n_tokens"].max()
    return listed([f"{int(n):,} tokens ({subset})" for subset, n in counts.items()])


def _wave_panel(rows: pd.DataFrame, names: list[str], domain: list[float], title: str) -> alt.LayerChart:
    scales = series(names)
    x_axis = alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    scale = alt.Scale(domain=domain, nice=False)
    y_axis = alt.Y("entropy:Q", title="entropy (nats)", scale=scale)
    colour = alt.Color(
        "name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", symbolType="stroke", symbolOpacity=1)
    )
    band = alt.Chart(records(rows.dropna(subset=["low", "high"]))).mark_area(opacity=0.15, clip=True)
    band = band.encode(x=x_axis, y=alt.Y("low:Q", title="entropy (nats)", scale=scale), y2="high:Q", color=colour)
    line = alt.Chart(records(rows)).mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14))
    line = line.encode(
        x=x_axis,
        y=y_axis,
        color=colour,
        strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash),
        tooltip=tooltips("layer:Q", "name:N", "entropy:Q", "n_tokens:Q"),
    )
    return alt.LayerChart(layer=[band, line]).properties(width=330, height=190, title=heading(title))


def _wave_title(model: str, pooled: pd.DataFrame) -> str:
    if pooled.empty:
        return f"Entropy of the layers of {model}"
    top, bottom = (pooled.loc[pooled["entropy"].agg(which)] for which in ("idxmax", "idxmin"))
    return (
        f"On {model}, entropy is highest at layer {int(top['layer'])} ({number(top['entropy'])} nats) and lowest at"
        f" layer {int(bottom['layer'])} ({number(bottom['entropy'])} nats)"
    )


# ---------------------------------------------------------------- CKA, turning points, choices


def similarity(study: Study, model: str) -> Figure | None:
    """Draw the CKA of all pairs of layers; above it the turning score, below it what selectors chose."""
    pairs = of_model(study.cka, model)
    if pairs.empty:
        return None
    layers = sorted(set(pairs["layer_a"]) | set(pairs["layer_b"]))
    cell = min(22.0, max(5.0, 470 / len(layers)))
    order = [int(layer) for layer in layers]
    every = max(1, len(order) // 16)
    axis = alt.Axis(values=order[::every], labelAngle=0)
    chosen, turning = _chosen(study, model), of_model(study.turning, model)
    panels: list[alt.Chart | alt.LayerChart] = []
    if len(turning):
        panels.append(_turning_panel(turning, order, cell, axis))
    panels.append(_heatmap(pairs, turning, order, cell, axis))
    if len(chosen):
        panels.append(_choice_panel(chosen, order, cell, axis))
    points = [f"{int(layer)}" for layer in turning[turning["is_turning_point"].eq(True)]["layer"]]
    off = pairs[pairs["layer_a"] != pairs["layer_b"]]["value"]
    caption = (
        f"Debiased linear CKA of each pair of layers on the {int(pairs['n_tokens'].max()):,} most uncertain tokens,"
        f" sinks left out (off the diagonal {number(off.min())} to {number(off.max())}). Above: turning score between"
        " a layer and the next; a diamond is a local maximum above mean + 1 sd. Below: the layers that"
        " each selector chose. Frames are the runs of layers between turning points."
    )
    title = f"{model} turns after {'layer' if len(points) == 1 else 'layers'} {listed(points, 8)}"
    if not points:
        title = f"No layer of {model} is a turning point"
    return Figure(file_name("similarity", model), title, caption, specification(alt.vconcat(*panels, spacing=10)))


def _heatmap(
    pairs: pd.DataFrame, turning: pd.DataFrame, order: list[int], cell: float, axis: alt.Axis
) -> alt.LayerChart:
    size = cell * len(order)
    known = pairs["value"].dropna()
    lowest = min(0.9, math.floor(float(known.min()) * 10) / 10) if len(known) else 0.0  # tells near-equal layers apart
    values = (
        alt.Chart(records(pairs[["layer_a", "layer_b", "value", "ci_low", "ci_high"]]))
        .mark_rect()
        .encode(
            x=alt.X("layer_a:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order)),
            y=alt.Y("layer_b:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order)),
            color=alt.Color("value:Q", title="CKA", scale=alt.Scale(scheme="cividis", domain=[lowest, 1], clamp=True)),
            tooltip=tooltips("layer_a:O", "layer_b:O", "value:Q", "ci_low:Q", "ci_high:Q"),
        )
    )
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
    return alt.LayerChart(layer=[values, frames]).properties(width=size, height=size)


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
    marks = rows.assign(choice=labels)[["choice", "layers", "k", "label"]].explode("layers")
    return marks.rename(columns={"layers": "layer"}).sort_values(["k", "label"])


def _choice_panel(chosen: pd.DataFrame, order: list[int], cell: float, axis: alt.Axis) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(records(chosen[["choice", "layer"]]))
        .mark_square(size=min(90.0, cell * cell * 0.6), opacity=1, color="#0072B2")
        .encode(
            x=alt.X("layer:O", title="layer", sort=order, axis=axis, scale=alt.Scale(domain=order)),
            y=alt.Y("choice:N", title=None, sort=list(dict.fromkeys(chosen["choice"])), axis=alt.Axis(grid=True)),
            tooltip=tooltips("choice:N", "layer:O"),
        )
        .properties(width=cell * len(order), height=alt.Step(18))
    )
    return chart


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
    title = "reduction of the variance over prompts"
    x_scale = alt.Scale(domain=domain, nice=False)
    y_axis = alt.Y("segment:N", title="part of the depth", sort=order)
    offset = alt.YOffset("name:N", sort=list(columns.values()))
    colour = alt.Color("name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top"))
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(strokeDash=[4, 3]).encode(x="zero:Q")
    limits = alt.Chart(records(with_limits(long, "cut"))).mark_rule(strokeWidth=1.6)
    limits = limits.encode(
        x=alt.X("cut_low:Q", title=title, scale=x_scale, axis=alt.Axis(format="%")),
        x2="cut_high:Q",
        y=y_axis,
        yOffset=offset,
        color=colour,
    )
    points = alt.Chart(records(long)).mark_point(filled=True, size=60, opacity=1)
    points = points.encode(
        x=alt.X("cut:Q", title=title, scale=x_scale, axis=alt.Axis(format="%")),
        y=y_axis,
        yOffset=offset,
        color=colour,
        shape=alt.Shape("name:N", title=None, scale=scales.shape),
        tooltip=tooltips("segment:N", "name:N", "cut:Q", "cut_low:Q", "cut_high:Q"),
    )
    chart = alt.LayerChart(layer=[zero, limits, points]).properties(width=460, height=alt.Step(22))
    caption = (
        "1 − variance on the most uncertain tokens ÷ variance on the tokens compared with; right of 0 the filter makes"
        f" prompts more alike. Bars are 95 % limits by jackknife over {count(int(long['n_prompts'].max()), 'prompt')}."
        " Only the random control has as few tokens as the filter."
    )
    return Figure(file_name("filter", model), _filter_title(model, rows), caption, specification(chart))


def _filter_title(model: str, rows: pd.DataFrame) -> str:
    told: dict[str, list[str]] = {}
    for row in rows_of(rows):
        value, low, high = row["reduction"], row["reduction_low"], row["reduction_high"]
        clear = low > 0 or high < 0
        word = (
            f"{'cuts' if value > 0 else 'raises'} it by {percent(abs(value))}"
            if clear
            else "does not visibly change it"
        )
        told.setdefault(word, []).append(str(row["segment"]))
    parts = [f"{word} in the {' and '.join(segments)} part" for word, segments in told.items()]
    return f"Entropy varies over the prompts of {model}; the token filter {listed(parts, 6)}"


def figures(study: Study, model: str) -> list[Figure]:
    """Return one model's figures of its layers, those without data left out."""
    drawn = (
        *(wave(study, model), similarity(study, model), filter_effect(study, model)),
        *(calibration_figures.filter_sweep(study, model), calibration_figures.convergence(study, model)),
    )
    return [figure for figure in drawn if figure is not None]
