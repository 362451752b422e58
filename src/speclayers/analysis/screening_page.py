"""The screening on the page: the layer curve, how its ranks agree between budgets, and how the race went."""

from __future__ import annotations

import altair as alt
import pandas as pd

from speclayers.analysis.figures import MOST_SERIES, Figure, file_name, padded, records, series, specification, tooltips
from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.statistics import SETS_FOR_CORRELATION
from speclayers.analysis.study import Study, of_model, rows_of
from speclayers.analysis.wording import confidence_level, count, estimate, layers_in_words, number

_LENGTH = "simulated length (tokens)"


def curve(study: Study, model: str) -> Figure | None:
    """Draw how long heads that read one layer draft, layer by layer, after each budget."""
    rows = of_model(study.screening, model)
    rows = rows[rows["layers"].map(len) == 1]
    if rows.empty:
        return None
    budgets = sorted(set(rows["budget"]))
    budgets = budgets if len(budgets) <= MOST_SERIES else [budgets[0], *budgets[1 - MOST_SERIES :]]
    rows = rows[rows["budget"].isin(budgets)]
    rows = rows.assign(layer=rows["layers"].map(lambda layers: int(layers[0])), name=rows["budget"].map(_tokens))
    caption = (
        "Simulated acceptance length on held-out responses, 1 + accuracy of step 0 + product of the first two + ..., of"
        " heads that read one layer, after each budget of response tokens; vertical lines are 95 % limits by jackknife"
        f" over {count(int(rows['responses'].max()), 'prompt')}. All heads are judged on the same responses, so"
        " differences between layers are surer than the lines say."
    )
    if not of_model(study.curve_ranks, model)["all_layers"].all():
        caption += " Larger budgets show only the layers that were kept."
    return Figure(
        file_name("curve", model), _curve_title(study, model, rows), caption, specification(_curve_chart(rows, budgets))
    )


def _tokens(budget: int) -> str:
    return f"{budget:,} tokens"


def _curve_chart(rows: pd.DataFrame, budgets: list[int]) -> alt.LayerChart:
    scales = series([_tokens(budget) for budget in budgets])
    scale = alt.Scale(domain=padded(pd.concat([rows["ci_low"], rows["ci_high"], rows["simulated_length"]])), nice=False)
    base = alt.Chart(records(rows.drop(columns=["layers"])))
    x_axis = alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1))
    y_axis = alt.Y("simulated_length:Q", title=_LENGTH, scale=scale)
    colour = alt.Color("name:N", title=None, scale=scales.colour, legend=alt.Legend(orient="top", symbolOpacity=1))
    rules = base.mark_rule(opacity=0.3, clip=True).encode(
        x=x_axis, y=alt.Y("ci_low:Q", title=_LENGTH, scale=scale), y2="ci_high:Q", color=colour
    )
    lines = base.mark_line(strokeWidth=1.6).encode(
        x=x_axis, y=y_axis, color=colour, strokeDash=alt.StrokeDash("name:N", title=None, scale=scales.dash)
    )
    points = base.mark_point(filled=True, size=34, opacity=1).encode(
        x=x_axis,
        y=y_axis,
        color=colour,
        shape=alt.Shape("name:N", title=None, scale=scales.shape),
        tooltip=tooltips("layer:O", "name:N", "simulated_length:Q", "ci_low:Q", "ci_high:Q"),
    )
    return alt.LayerChart(layer=[rules, lines, points]).properties(width=560, height=240)


def _curve_title(study: Study, model: str, rows: pd.DataFrame) -> str:
    """Name the best and the worst single layer at the largest budget that saw all, and how ranks agree with it."""
    sizes = rows.groupby("budget").size()
    budget = int(sizes[sizes == sizes.max()].index.max())
    whole = rows[rows["budget"] == budget].sort_values(["simulated_length", "layer"], ascending=[False, True])
    best, worst = whole.iloc[0], whole.iloc[-1]
    told = (
        f"Alone, layer {best['layer']} of {model} drafts best after {_tokens(budget)}"
        f" ({number(best['simulated_length'])}), layer {worst['layer']} worst ({number(worst['simulated_length'])})"
    )
    ranks = of_model(study.curve_ranks, model)
    ranks = ranks[(ranks["against"] == "budget") & (ranks["other_budget"] == budget)].dropna(subset=["rho"])
    if ranks.empty:
        return told
    first = ranks.sort_values("budget").iloc[0]
    return f"{told}; ranks after {_tokens(int(first['budget']))} agree with these by ρ = {number(first['rho'])}"


def ranks(study: Study) -> PageTable:
    """Return how the ranks of the single layers agree between budgets, and with their entropy."""
    cells = []
    for row in rows_of(study.curve_ranks):
        against = "S(l)" if row["against"] == "entropy" else _tokens(int(row["other_budget"]))
        layers = "all screened" if row["all_layers"] else "those kept"
        rho = estimate(row["rho"], row["rho_low"], row["rho_high"])
        cells.append([row["model"], _tokens(int(row["budget"])), against, row["layers"], layers, rho])
    caption = (
        "Spearman's ρ of the single layers' simulated lengths at one budget with those at a larger one, or with their"
        f" matrix entropy S(l), with {confidence_level(study.confidence)} limits; a dash below"
        f" {SETS_FOR_CORRELATION} layers. Layers that were kept are alike, so that their ranks agree less than all"
        " layers' would. Budgets of one head share its training, which makes them agree. Limits take"
        " layers for independent draws; neighbours are alike, so the limits are too narrow."
    )
    return page_table(caption, ["model", "#budget", "#against", "#layers", "which", "#ρ"], cells)


def race(study: Study, model: str) -> PageTable:
    """Return how every candidate of one model did, best first."""
    rows = of_model(study.screening, model)
    budgets = sorted(set(rows["budget"]))
    last = int(rows["rung"].max())
    order = []
    for _, found in rows.groupby("candidate", sort=True):
        found = found.sort_values("rung")
        final = found[found["in_race"]].iloc[-1]
        outcome = f"out after {_tokens(int(final['budget']))}"
        if final["kept"] and final["rung"] == last:
            outcome = "won"
        lengths = {
            row["budget"]: estimate(row["simulated_length"], row["ci_low"], row["ci_high"]) for row in rows_of(found)
        }
        cells = [layers_in_words(str(final["candidate"])), final["proposed_by"]]
        cells += [lengths.get(budget, "") for budget in budgets] + [outcome]
        order.append(((-final["rung"], not final["kept"], -final["simulated_length"]), cells))
    prompts = count(int(rows["responses"].max()), "held-out prompt")
    caption = (
        f"Screening of {model}: simulated acceptance length on {prompts} after each budget of response tokens, with"
        " 95 % limits by jackknife over prompts. The best at each budget go on to the next; where the whole curve was"
        " asked for, single layers are trained on out of the race, too."
    )
    head = ["layers", "proposed by", *(f"#{_tokens(budget)}" for budget in budgets), "outcome"]
    return page_table(caption, head, [cells for _, cells in sorted(order, key=lambda entry: entry[0])])
