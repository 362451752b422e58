"""Figures of how heads were trained, where decoding spends its time, and what the study's jobs cost."""

from __future__ import annotations

import altair as alt
import pandas as pd

from speclayers.analysis.acceptance_figures import first_setting, shown_sets
from speclayers.analysis.answer import speed_sentence
from speclayers.analysis.drafters import parse_drafter
from speclayers.analysis.figures import (
    MOST_SERIES,
    Figure,
    file_name,
    heading,
    records,
    series,
    specification,
    tooltips,
)
from speclayers.analysis.study import Study, of_model, rows_of
from speclayers.analysis.wording import count, number, percent, setting

_PARTS = {"draft_share": "drafting", "verify_share": "verifying", "other_share": "other"}


def training(study: Study, model: str) -> Figure | None:
    """Draw loss and accuracy by training step, a column a TTT step, a line a head."""
    rows = of_model(study.training, model)
    if rows.empty:
        return None
    rows = rows.assign(name=[parse_drafter(drafter).layer_set for drafter in rows["drafter"]])
    names = _line_names(study, model, rows)
    kept = rows[rows["name"].isin(names)]
    ttt_steps = sorted(kept["ttt_step"].unique())
    width = max(90, int(660 / len(ttt_steps)) - 40)
    panels = [
        alt.hconcat(*(_curve(kept, metric, label, int(j), names, width) for j in ttt_steps), spacing=12)
        for metric, label in (("loss", "loss (nats)"), ("accuracy", "accuracy"))
    ]
    heads = of_model(study.heads, model).dropna(subset=["simulated_length"])
    heads = heads[[len(losses) > 0 for losses in heads["final_loss"]]]
    best = heads.sort_values("simulated_length").iloc[-1] if len(heads) else None
    title = f"Training of the heads of {model}"
    if best is not None:
        title = (
            f"On {model}, {parse_drafter(best['drafter']).layer_set} trains best: {number(best['simulated_length'])}"
            " tokens a cycle simulated on its training responses"
        )
    shown = "all heads" if len(names) == rows["name"].nunique() else f"{len(names)} of {rows['name'].nunique()} sets"
    caption = (
        f"Soft cross-entropy (nats) and top-1 accuracy on training responses by optimiser step, mean over 60 bins;"
        f" columns are steps of training-time test. Shown: {shown}, {count(kept['drafter'].nunique(), 'head')}."
    )
    return Figure(file_name("training", model), title, caption, specification(alt.vconcat(*panels, spacing=12)))


def _line_names(study: Study, model: str, rows: pd.DataFrame) -> list[str]:
    tau = of_model(study.tau, model)
    trained = list(dict.fromkeys(rows["name"]))
    first = [] if tau.empty else list(shown_sets(study, model, first_setting(tau))["layer_set"])
    ranked = [name for name in first if name in trained]
    return [*ranked, *(name for name in trained if name not in ranked)][:MOST_SERIES]


def _curve(rows: pd.DataFrame, metric: str, label: str, ttt_step: int, names: list[str], width: int) -> alt.Chart:
    part = rows[rows["ttt_step"] == ttt_step].dropna(subset=[metric])
    scales = series(names)
    span = rows[metric].dropna()
    domain = [0.0, max(0.01, float(span.max()) * 1.05)] if len(span) else [0.0, 1.0]
    chart: alt.Chart = (
        alt.Chart(records(part))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4)),
            y=alt.Y(f"{metric}:Q", title=label if ttt_step == 0 else None, scale=alt.Scale(domain=domain, nice=False)),
            color=alt.Color("name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", columns=4)),
            strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash),
            detail="drafter:N",
            tooltip=tooltips("drafter:N", "step:Q", f"{metric}:Q"),
        )
        .properties(width=width, height=130, title=heading(f"TTT step {ttt_step}"))
    )
    return chart


def time_split(study: Study, model: str) -> Figure | None:
    """Draw the time per token with each drafter, split into its parts, beside plain decoding's."""
    rows = of_model(study.speed, model).dropna(subset=["tokens_per_s", "baseline_tokens_per_s"])
    if rows.empty:
        return None
    where = first_setting(rows)
    rows = rows[(rows["temperature"] == where[0]) & (rows["nodes"] == where[1])]
    bars = [
        {"name": row["layer_set"], "part": part, "ms": 1000 * row[share] / row["tokens_per_s"], "order": place}
        for row in rows_of(rows)
        for place, (share, part) in enumerate(_PARTS.items())
    ]
    plain = float((1000 / rows["baseline_tokens_per_s"]).mean())
    bars.append({"name": "plain decoding", "part": "plain decoding", "ms": plain, "order": 3})
    parts = [*_PARTS.values(), "plain decoding"]
    names = ["plain decoding", *rows.sort_values("tokens_per_s", ascending=False)["layer_set"]]
    chart = _bars(pd.DataFrame(bars), parts, names).properties(width=430, height=alt.Step(24))
    reference = rows.sort_values("tokens_per_s", ascending=False).iloc[0]
    sentence = speed_sentence(reference)
    caption = (
        f"Milliseconds per emitted token at {setting(*where)}, the prompt's forward pass left out; drafter and plain"
        f" decoding interleaved on {count(int(rows['questions'].max()), 'question')}. Drafting takes"
        f" {percent(reference['draft_share'])}, verifying {percent(reference['verify_share'])} of the time with"
        f" {reference['layer_set']}."
    )
    return Figure(file_name("time", model), f"On {model}, {sentence}", caption, specification(chart))


def _bars(rows: pd.DataFrame, parts: list[str], names: list[str]) -> alt.LayerChart:
    colour = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=parts, range=["#56B4E9", "#0072B2", "#CC79A7", "#7F7F7F"]),
        legend=alt.Legend(orient="top"),
    )
    totals = rows.groupby("name", sort=False, as_index=False)["ms"].sum()
    totals = totals.assign(text=[f"{number(ms, 0)} ms" for ms in totals["ms"]])
    scale = alt.Scale(domain=[0, float(totals["ms"].max()) * 1.15], nice=False)
    x_axis = alt.X("ms:Q", title="time per token (ms)", stack="zero", scale=scale)
    base = alt.Chart(records(rows)).encode(y=alt.Y("name:N", title=None, sort=names), order="order:Q")
    bars = base.mark_bar(stroke="white", strokeWidth=0.5).encode(
        x=x_axis, color=colour, tooltip=tooltips("name:N", "part:N", "ms:Q")
    )
    labels = alt.Chart(records(totals)).mark_text(align="left", dx=4, fontSize=11)
    labels = labels.encode(
        x=alt.X("ms:Q", title="time per token (ms)", scale=scale), y=alt.Y("name:N", sort=names), text="text:N"
    )
    return alt.LayerChart(layer=[bars, labels])


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
    x_axis = alt.X(
        "seconds:Q", title="job seconds", scale=alt.Scale(domain=[0, float(rows["seconds"].max()) * 1.3 or 1.0])
    )
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
