"""The models side by side: one line a model, and each selector's difference to the reference on all of them."""

from __future__ import annotations

import altair as alt
import pandas as pd

from speclayers.analysis.acceptance_figures import at_setting, first_setting, forest_panel
from speclayers.analysis.answer import headline_comparisons
from speclayers.analysis.figures import Figure, padded, specification
from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import Study, of_model
from speclayers.analysis.wording import (
    MISSING,
    confidence_level,
    count,
    difference,
    estimate,
    joined,
    layers_in_words,
    number,
    set_name,
    setting,
    span,
)

MOST_PANELS = 8
"""Selectors that the figure shows, those of most models first."""

_WORDS = {"higher": "more on", "lower": "fewer on", "not distinguishable": "not distinguishable on"}


def first_comparisons(study: Study) -> pd.DataFrame:
    """Return every model's comparisons at its first setting, those of the τ that the answer speaks of."""
    found = [headline_comparisons(study, model) for model in study.models]
    parts = [
        at_setting(rows, model, first_setting(rows))
        for model, rows in zip(study.models, found, strict=True)
        if len(rows)
    ]
    return pd.concat(parts, ignore_index=True) if parts else study.comparisons.head(0)


def side_by_side(study: Study) -> Figure | None:
    """Draw the difference to the reference of each selector's set on every model, a panel a selector."""
    rows = first_comparisons(study)
    if rows["model"].nunique() < 2:
        return None
    words = rows["layer_set"].map(layers_in_words)
    rows = rows.assign(set=rows["model"] + " " + words, name=rows["model"])
    by = [text.split(", ") if text else [word] for text, word in zip(rows["selectors"], words, strict=True)]
    rows = (
        rows.assign(by=pd.Series(by, index=rows.index))
        .explode("by")
        .sort_values(["by", "k", "layer_set"], kind="stable")
    )
    rows = rows.drop_duplicates(["by", "model"], keep="last")  # a selector's largest set speaks for it
    order = rows["by"].value_counts(sort=False).sort_values(ascending=False, kind="stable").index
    shown = list(order[:MOST_PANELS])
    domain = padded(pd.concat([rows[c] for c in ("difference", "difference_low", "difference_high")]))
    domain = [min(domain[0], 0.0), max(domain[1], 0.0)]
    seen = set(rows[rows["by"].isin(shown)]["verdict"])
    panels = []
    for selector in shown:
        part = rows[rows["by"] == selector]
        models = [model for model in study.models if model in set(part["model"])]
        panels.append(forest_panel(part, selector, domain, seen, models, 240))
    settings = rows[["temperature", "nodes", "chain"]].drop_duplicates()
    where = joined([setting(*row) for row in settings.itertuples(index=False)])
    caption = (
        f"Δτ: accepted tokens per verification, mean over questions, minus those of {study.reference}'s set on the same"
        f" model, at {where}; right of 0 a selector's set does better. A panel a selector; where it chose several sets,"
        f" its largest. Bars are {confidence_level(study.confidence)} limits, paired bootstrap over"
        f" {span(rows['questions'], 'question')} and {span(rows['seeds'], 'training seed')}; symbols give the verdict"
        " after Holm's correction within a model. Models differ in what is measured: do not add up their Δτ."
    )
    if len(order) > len(shown):
        caption += f" Shown are {len(shown)} of {len(order)} selectors."
    chart = alt.concat(*panels, columns=2, spacing=18)
    return Figure("models", _title(study, rows, shown), caption, specification(chart, linked=True))


def _title(study: Study, rows: pd.DataFrame, shown: list[str]) -> str:
    compared = rows[rows["verdict"] != "not measured"]
    if len(compared) and set(compared["verdict"]) == {"not distinguishable"}:
        models = count(compared["model"].nunique(), "model")
        return f"No selector's set is distinguishable from that of {study.reference} on any of {models}"
    told = []
    for selector in shown:
        verdicts = rows[rows["by"] == selector]["verdict"].value_counts()
        total = int(verdicts.sum())
        found = [f"{word} {verdicts[name]}" for name, word in _WORDS.items() if name in verdicts]
        decided = int(verdicts.reindex(["higher", "lower"]).sum())
        if found:
            told.append((-decided, f"{selector} {joined(found)} of {count(total, 'model')}"))
    best = [text for _, text in sorted(told, key=lambda pair: pair[0])[:3]]
    return f"Accepted tokens against {study.reference}: {'; '.join(best) or 'nothing could be compared'}"


def models_table(study: Study) -> PageTable:
    """Return one line a model: the reference's τ, the set that differs most, how sure that is, and exactness."""
    rows = first_comparisons(study)
    cells = []
    for model in study.models:
        target = of_model(study.targets, model).iloc[0]
        cells.append([model, number(target["n_layers"], 0), *_line(study, of_model(rows, model)), _exact(study, model)])
    head = ["model", "#blocks", "reference", "#its τ", "highest other set", "#Δτ", "verdict", "#smallest", "#questions"]
    caption = (
        f"One line a model, at its first setting: τ of {study.reference}'s set, and the set of highest Δτ against it,"
        f" with {confidence_level(study.confidence)} limits. The highest of several is picked after the fact: go by its"
        " verdict, not by its Δτ. Smallest: the difference that one comparison would have found in 80 % of such runs."
        " Answers: of all runs at T = 0, those identical to plain decoding's."
    )
    return page_table(caption, [*head, "#seeds", "answers equal plain decoding's"], cells)


def _line(study: Study, rows: pd.DataFrame) -> list[object]:
    if rows.empty:
        return [MISSING] * 8
    best = rows.sort_values("difference", ascending=False).iloc[0]
    tau = at_setting(study.tau, str(best["model"]), (best["temperature"], best["nodes"]))
    own = tau[tau["layer_set"] == best["reference"]].iloc[0]
    return [
        layers_in_words(str(best["reference"])),
        estimate(own["tau_question"], own["tau_question_low"], own["tau_question_high"]),
        set_name(str(best["layer_set"]), str(best["selectors"])),
        difference(best["difference"], best["difference_low"], best["difference_high"]),
        *(best["verdict"], number(best["detectable"], 3), best["questions"], best["seeds"]),
    ]


def _exact(study: Study, model: str) -> str:
    runs = of_model(study.runs, model)
    runs = runs[runs["exactness"] != "not applicable"]
    if runs.empty:
        return ""
    worst = [word for word in ("different", "diverges", "ties") if word in set(runs["exactness"])]
    return f"{', '.join(worst) or 'exact'}: {int(runs['identical'].sum()):,} of {int(runs['turns'].sum()):,}"
