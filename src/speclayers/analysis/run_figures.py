"""Figures of how heads were trained, where decoding spends its time, and what the study's jobs cost."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from speclayers.analysis.acceptance_figures import first_setting, shown_sets
from speclayers.analysis.answer import speed_sentence
from speclayers.analysis.drafters import MOVED_KIND, parse_drafter
from speclayers.analysis.figures import (
    MOST_SERIES,
    Figure,
    faded,
    file_name,
    heading,
    records,
    series,
    specification,
    tooltips,
)
from speclayers.analysis.study import Study, of_model, rival_labels, rows_of
from speclayers.analysis.wording import (
    SPLIT_IN_WORDS,
    confidence_level,
    count,
    layers_in_words,
    number,
    percent,
    setting,
    span,
)
from speclayers.tables import HELD_OUT, TRAIN

_PARTS = {"draft_share": "drafting", "verify_share": "verifying", "other_share": "other"}


def training(study: Study, model: str) -> Figure | None:
    """Draw loss and accuracy by training step, a column a TTT step, a line a head, points on held-out responses."""
    rows = of_model(study.training, model)
    if rows.empty:
        return None
    rows = rows.assign(name=[layers_in_words(parse_drafter(drafter).layer_set) for drafter in rows["drafter"]])
    names = _line_names(study, model, rows)
    kept = rows[rows["name"].isin(names)].assign(set=rows["name"])
    ttt_steps = sorted(kept["ttt_step"].unique())
    width = max(90, int(780 / len(ttt_steps)) - 40)
    panels = [
        alt.hconcat(*(_curve(kept, metric, label, int(j), names, width) for j in ttt_steps), spacing=12)
        for metric, label in (("loss", "loss (nats)"), ("accuracy", "accuracy"))
    ]
    heads = of_model(study.heads, model).dropna(subset=["simulated_length"])
    moved = [parse_drafter(str(drafter)).kind == MOVED_KIND for drafter in heads["drafter"]]
    heads = heads.loc[~np.array(moved, dtype=bool)]
    heads = heads[[len(losses) > 0 for losses in heads["final_loss"]]]
    title = f"Training of the heads of {model}"
    if len(heads):
        ends = heads["simulated_length"]
        best = layers_in_words(parse_drafter(str(heads["drafter"].iloc[int(ends.argmax())])).layer_set)
        split = " and ".join(SPLIT_IN_WORDS[split] for split in sorted(heads["final_split"].unique()))
        title = (
            f"On {model}, heads end at {number(ends.min())} to {number(ends.max())} simulated tokens per verification"
            f" on {split} responses, most with {best}"
        )
    shown = "all heads" if len(names) == rows["name"].nunique() else f"{len(names)} of {rows['name'].nunique()} sets"
    caption = (
        "Loss (nats) and top-1 accuracy by optimiser step. Lines: training responses, mean over 60 bins."
        " Points: held-out responses, which no head is trained on. Columns are the steps of training-time test (TTT):"
        " at step j a head drafts from its own outputs of the j steps before. Simulated is what a single chain of"
        " drafts would get accepted if every step were reached by its accuracy alone, so it is no test."
        f" Shown: {shown}, {count(kept['drafter'].nunique(), 'head')}."
    )
    chart = alt.vconcat(*panels, spacing=12)
    return Figure(file_name("training", model), title, caption, specification(chart, linked=True))


def _line_names(study: Study, model: str, rows: pd.DataFrame) -> list[str]:
    tau = of_model(study.tau, model)
    trained = list(dict.fromkeys(rows["name"]))
    first = [] if tau.empty else list(shown_sets(study, model, first_setting(tau))["layer_set"])
    ranked = [name for name in map(layers_in_words, first) if name in trained]
    return [*ranked, *(name for name in trained if name not in ranked)][:MOST_SERIES]


def _curve(rows: pd.DataFrame, metric: str, label: str, ttt_step: int, names: list[str], width: int) -> alt.LayerChart:
    part = rows[rows["ttt_step"] == ttt_step].dropna(subset=[metric])
    scales = series(names)
    legend = alt.Legend(orient="top", columns=4, symbolType="stroke", symbolOpacity=1)
    known = rows[metric].dropna()
    domain = [0.0, max(0.01, float(known.max()) * 1.05)] if len(known) else [0.0, 1.0]
    lines = alt.Chart(records(part[part["split"] == TRAIN])).mark_line(strokeWidth=1.5)
    points = alt.Chart(records(part[part["split"] == HELD_OUT])).mark_point(filled=True, size=28)
    lines, points = (
        marks.encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4)),
            y=alt.Y(
                f"{metric}:Q",
                title=label if ttt_step == 0 else None,
                axis=alt.Axis(minExtent=30),  # panels below each other start at one place
                scale=alt.Scale(domain=domain, nice=False),
            ),
            color=alt.Color("name:N", title=None, scale=scales.colour, legend=legend),
            detail="drafter:N",
            opacity=faded(),
            tooltip=tooltips("drafter:N", "split:N", "step:Q", f"{metric}:Q"),
        )
        for marks in (lines, points)
    )
    lines = lines.encode(strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash))
    chart = alt.LayerChart(layer=[lines, points])
    return chart.properties(width=width, height=130, title=heading(f"TTT step {ttt_step}"))


def time_split(study: Study, model: str) -> Figure | None:
    """Draw the time per token with each drafter, split into its parts, in plain decoding's time per token."""
    rows = of_model(study.speed, model).dropna(subset=["speed_up", "tokens_per_s"])
    if rows.empty:
        return None
    without_head = rows["layer_set"].isin(rival_labels(study))  # each of these has a size of its own
    where = first_setting(rows if without_head.all() else rows[~without_head])
    same_size = without_head | (rows["nodes"] == where[1])
    rows = rows[(rows["temperature"] == where[0]) & same_size].sort_values("speed_up")
    rows = rows.assign(name=rows["layer_set"].map(layers_in_words), slowness=1 / rows["speed_up"])
    rows = rows.assign(slowness_low=1 / rows["speed_up_high"], slowness_high=1 / rows["speed_up_low"])
    chart = _bars(rows).properties(width=520, height=alt.Step(26))
    fastest = rows.iloc[-1]
    sizes = rows[rows["nodes"] != where[1]]["nodes"]
    others = f" ({span(sizes, 'node')} for drafters without a head)" if len(sizes) else ""
    caption = (
        f"Time per token at {setting(*where)}{others} over that of plain decoding, interleaved on the same"
        f" {count(int(rows['questions'].max()), 'question')}; the prompt's forward pass and the token that it gives are"
        f" left out. Lines are {confidence_level(study.confidence)} limits, bootstrap over questions. The title"
        f" speaks of the fastest drafter: drafting takes {percent(fastest['draft_share'])}, verifying"
        f" {percent(fastest['verify_share'])} of its time."
    )
    title = f"On {model}, {speed_sentence(fastest)}"
    return Figure(file_name("time", model), title, caption, specification(chart, linked=True))


def _bars(rows: pd.DataFrame) -> alt.LayerChart:
    plain = "plain decoding"
    bars = [
        {"name": row["name"], "set": row["name"], "part": part, "time": row[share] * row["slowness"], "order": place}
        for row in rows_of(rows)
        for place, (share, part) in enumerate(_PARTS.items())
    ]
    bars.append({"name": plain, "set": plain, "part": plain, "time": 1.0, "order": len(_PARTS)})
    names = [plain, *rows.sort_values("slowness")["name"]]
    colours = alt.Scale(domain=[*_PARTS.values(), plain], range=["#56B4E9", "#0072B2", "#CC79A7", "#7F7F7F"])
    colour = alt.Color("part:N", title=None, scale=colours, legend=alt.Legend(orient="top"))
    ends = pd.concat([rows["slowness"], rows["slowness_high"], pd.Series([1.0])])
    scale = alt.Scale(domain=[0, float(ends.max()) * 1.4], nice=False)
    title = "time per token (plain decoding = 1)"
    y_axis = alt.Y("name:N", title=None, sort=names)
    parts = alt.Chart(records(pd.DataFrame(bars))).mark_bar(stroke="white", strokeWidth=0.5)
    parts = parts.encode(
        x=alt.X("time:Q", title=title, stack="zero", scale=scale, axis=alt.Axis(tickCount=6)),
        y=y_axis,
        order="order:Q",
        color=colour,
        opacity=faded(),
        tooltip=tooltips("name:N", "part:N", "time:Q"),
    )
    known = rows.dropna(subset=["slowness_low", "slowness_high"])
    limits = alt.Chart(records(known)).mark_rule(strokeWidth=1.6)
    limits = limits.encode(x=alt.X("slowness_low:Q", title=title, scale=scale), x2="slowness_high:Q", y=y_axis)
    texts = [f"{number(row['slowness'])} ({number(1000 / row['tokens_per_s'], 1)} ms a token)" for row in rows_of(rows)]
    labelled = rows.assign(text=texts, end=rows["slowness_high"].fillna(rows["slowness"]))
    labels = alt.Chart(records(labelled)).mark_text(align="left", dx=6, fontSize=11)
    labels = labels.encode(x=alt.X("end:Q", title=title, scale=scale), y=y_axis, text="text:N")
    return alt.LayerChart(layer=[parts, limits, labels])


def costs(study: Study) -> Figure | None:
    """Draw the job seconds of every rule."""
    if study.costs.empty:
        return None
    rows = (
        study.costs.groupby("rule", as_index=False)[["seconds", "jobs"]].sum().sort_values("seconds", ascending=False)
    )
    total = float(rows["seconds"].sum())
    rows = rows.assign(
        text=[
            f"{seconds:,.1f} s in {count(int(n), 'job')}"
            for seconds, n in zip(rows["seconds"], rows["jobs"], strict=True)
        ]
    )
    y_axis = alt.Y("rule:N", title=None, sort=list(rows["rule"]))
    scale = alt.Scale(domain=[0, float(rows["seconds"].max()) * 1.3 or 1.0])
    x_axis = alt.X("seconds:Q", title="job seconds", scale=scale, axis=alt.Axis(tickCount=6))
    bars = (
        alt.Chart(records(rows))
        .mark_bar(color="#0072B2")
        .encode(x=x_axis, y=y_axis, tooltip=tooltips("rule:N", "seconds:Q", "jobs:Q"))
    )
    labels = (
        alt.Chart(records(rows)).mark_text(align="left", dx=4, fontSize=11).encode(x=x_axis, y=y_axis, text="text:N")
    )
    chart = alt.LayerChart(layer=[bars, labels]).properties(width=520, height=alt.Step(22))
    first = rows.iloc[0]
    share = percent(first["seconds"] / total) if total else "none"
    title = f"{first['rule']} takes {share} of the {total / 60:,.1f} job minutes"
    caption = (
        f"Wall-clock seconds of {count(int(rows['jobs'].sum()), 'job')}, as the workflow measured them; jobs that ran"
        " side by side both count, and jobs whose results were there already show the time of the run that made them."
    )
    return Figure("costs", title, caption, specification(chart))
