"""Drafters without a head on the page: what they yield and cost, beside the heads."""

from __future__ import annotations

from typing import Any

import pandas as pd

from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import Study, of_model, rows_of
from speclayers.analysis.wording import confidence_level, estimate, layers_in_words, number, percent, setting

KEYS = ["model", "layer_set", "temperature", "nodes"]


def rivals(study: Study) -> PageTable:
    """Return every drafter without a head beside the heads of each setting, most accepted tokens first."""
    measured = pd.concat([study.rivals, study.tau], ignore_index=True)
    columns = ["speed_up", "speed_up_low", "speed_up_high"]
    speed = study.speed.reindex(columns=[*KEYS, *columns])
    rows = measured.merge(speed, on=KEYS, how="left").sort_values("tau_question", ascending=False, kind="stable")
    cells = [
        _line(row)
        for model in study.models
        for _, group in of_model(rows, model).groupby("temperature", sort=True)
        for row in rows_of(group)
    ]
    caption = (
        "Drafters that need no head, and the heads. τ counts the target's own token; accepted draft tokens do not."
        " Layer passes are those of the drafter for each token emitted: of a head its one layer, of a drafter that"
        " skips layers the target's others, attention or MLP alone counting half. A search looks for layers to skip;"
        " its passes may run over several states, counted beside, and its score is what it reached: CLaSp's cosine at"
        f" the top, SWIFT's matchness. Limits: {confidence_level(study.confidence)}, bootstrap over questions."
    )
    head = [
        "model",
        "drafter",
        "#T",
        "#nodes",
        "#τ, mean over questions",
        "#τ, pooled",
        "#accepted drafts",
        "#speed-up",
    ]
    head += ["#layer passes", "#search: passes", "#states", "#score"]
    return page_table(caption, head, cells)


def _line(row: dict[str, Any]) -> list[Any]:
    searched = bool(row["search_rows_per_token"])
    return [
        *(row["model"], layers_in_words(row["layer_set"]), f"{row['temperature']:g}", row["nodes"]),
        *(_estimate(row, name) for name in ("tau_question", "tau_pooled")),
        *(number(row["accepted_per_cycle"]), _estimate(row, "speed_up"), number(row["layer_forwards_per_token"], 1)),
        number(row["search_layer_forwards_per_token"], 1) if searched else "",
        number(row["search_rows_per_token"], 1) if searched else "",
        number(row["search_score"], 3) if searched else "",
    ]


def _estimate(row: dict[str, Any], name: str) -> str:
    return "" if row[name] != row[name] else estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], 2)


def skipped_layers(study: Study) -> PageTable:
    """Return how the skipped blocks change, and whether they are those that CKA calls redundant."""
    rows = study.skip_overlap.merge(study.skip_changes, on=KEYS, how="left")
    cells = [
        [
            *(row["model"], row["layer_set"], setting(row["temperature"], row["nodes"])),
            *(number(row["skipped_blocks"], 1), percent(row["redundant_share"]), percent(row["share_by_chance"])),
            _share(row["kept_share"]),
        ]
        for model in study.models
        for row in rows_of(of_model(rows, model))
    ]
    caption = (
        "Blocks that are skipped while drafting, mean over verifications. Redundant: among as many blocks as are"
        " skipped whose input and output have the highest CKA, filtered tokens. Kept: share of what is skipped that the"
        " search before, in the same turn, had chosen, too."
    )
    head = ["model", "drafter", "setting", "#blocks skipped", "#redundant", "#by chance", "#kept"]
    return page_table(caption, head, cells)


def _share(value: float) -> str:
    return "" if value != value else percent(value)
