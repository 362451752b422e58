"""Drafters without a head on the page: what they yield and cost, beside the heads."""

from __future__ import annotations

from typing import Any

import pandas as pd

from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import Study, of_model, rival_labels, rows_of
from speclayers.analysis.wording import (
    confidence_level,
    difference,
    draft_size,
    drafter_in_words,
    estimate,
    layers_in_words,
    listed,
    number,
    percent,
    setting,
)
from speclayers.names import RivalName

_ITSELF = "Drafts with the target itself, skipping"
MEANINGS = {
    "clasp": f"{_ITSELF} blocks that it chooses anew while decoding (CLaSp).",
    "self_sd": f"{_ITSELF} attention layers and MLPs that a search before decoding chose (Self-SD).",
    "swift": f"{_ITSELF} attention layers and MLPs that a search while decoding finds (SWIFT).",
    "uniform_skip": f"{_ITSELF} blocks at equal distances: a control.",
    "random_skip": f"{_ITSELF} blocks drawn at random once: a control.",
    "geometry_skip": f"{_ITSELF} the blocks whose input and output CKA finds most alike.",
    "prompt_lookup": "Copies what followed the last few tokens where they stood before in the text; no model drafts.",
    "lookahead": "Proposes sequences that the target itself guessed on the way, many tokens at a time (Lookahead).",
    "medusa": "Small networks on the target's last state, each trained to guess one of the next tokens (Medusa).",
}
"""What the drafters without a head do that come with the project."""

KEYS = ["model", "layer_set", "temperature", "nodes"]
HEAD = ["drafter", "#T", "#nodes"]


def is_rival(drafters: pd.DataFrame) -> pd.Series:
    """Tell of each row whether it is a drafter without a head."""
    return drafters["layers"].isna()


def terms(study: Study) -> list[tuple[str, str]]:
    """Return what those of a study's drafters without a head do that are known."""
    kinds = {RivalName.parse(label).kind for label in rival_labels(study)}
    return [(kind, meaning) for kind, meaning in MEANINGS.items() if kind in kinds]


def lossless(study: Study, model: str) -> pd.DataFrame:
    """Return a model's drafters whose greedy answers in float32 are plain decoding's; only these are in the tables."""
    rows = of_model(study.drafters, model)
    return rows[rows["lossless"]]


def yields(study: Study, model: str) -> PageTable:
    """Return what every drafter yields, most accepted tokens first, those without a head against the reference's."""
    rows = lossless(study, model)
    cells = [
        [
            *_keys(row),
            *(_estimate(row, name) for name in ("tau_question", "tau_pooled")),
            *_gap(row),
            _estimate(row, "speed_up"),
        ]
        for row in rows_of(rows)
    ]
    compared = rows.dropna(subset=["reference"])
    against = "which was not measured"
    if len(compared):
        first = compared.iloc[0]
        against = f"{layers_in_words(first['reference'])} with {int(first['reference_nodes'])} nodes"
    caption = (
        "Drafters that need no head, and the heads. Words used here, below, say what the former do. τ counts the"
        " target's own token. Δτ: mean over questions, against"
        f" the head of {study.reference}, paired by question ({against}); p-value"
        " and verdict are corrected (Holm) for the drafters without a head at one temperature; heads are compared"
        f" above. Limits: {confidence_level(study.confidence)}, bootstrap over questions. Speed-up: plain decoding's"
        " time per token over the drafter's. All verify without changing the target's answers"
        f"{_left_out(study, model)}."
    )
    head = [*HEAD, "#τ, mean over questions", "#τ, pooled", "#Δτ", "#p, corrected", "verdict", "#speed-up"]
    return page_table(caption, head, cells)


def costs(study: Study, model: str) -> PageTable:
    """Return what every drafter costs: while drafting, and before."""
    cells = [_cost_line(row) for row in rows_of(lossless(study, model))]
    caption = (
        "What drafting costs. Accepted: draft tokens, the target's own not counted. Layer passes, for each token"
        " emitted: of a head its one layer, of a drafter that skips layers the target's others, attention or MLP alone"
        " counting half. A search while drafting looks for layers to skip; its passes may run over several states,"
        " counted beside, and its score is what it reached: CLaSp's cosine at the top, SWIFT's matchness. Memory: how"
        " far the run's largest resident memory lies above plain decoding's. Training and search: seconds of the jobs"
        " that made this drafter alone, mean over its seeds; what several drafters share, such as training responses,"
        " their states, and CKA, is not in them. A dash where it was not measured, or where it was done elsewhere."
    )
    head = [*HEAD, "#accepted drafts", "#layer passes", "#search: passes", "#states", "#score", "#memory, MB"]
    return page_table(caption, [*head, "#training, s", "#search before, s"], cells)


def _cost_line(row: dict[str, Any]) -> list[Any]:
    searched = bool(row["search_rows_per_token"])
    return [
        *(*_keys(row), number(row["accepted_per_cycle"]), number(row["layer_forwards_per_token"], 1)),
        number(row["search_layer_forwards_per_token"], 1) if searched else "",
        number(row["search_rows_per_token"], 1) if searched else "",
        number(row["search_score"], 3) if searched else "",
        *(number(row[name], 0) for name in ("extra_mb", "training_s", "search_s")),
    ]


def categories(study: Study, model: str) -> PageTable:
    """Return τ by category of the drafters without a head, and of the head that they are compared with."""
    rows = lossless(study, model)
    heads = rows[is_rival(rows)][["model", "temperature", "reference", "reference_nodes"]].dropna().drop_duplicates()
    heads = heads.set_axis(["model", "temperature", "layer_set", "nodes"], axis=1)
    shown = pd.concat([rows[is_rival(rows)][KEYS], heads]).merge(
        rows[[*KEYS, "layers", "chain", "tau_question"]], on=KEYS
    )
    shown = shown.sort_values("tau_question", ascending=False, kind="stable")
    found = shown[KEYS].merge(study.categories, on=KEYS)
    names = sorted(found["category"].unique())
    by_key = {key: part.set_index("category") for key, part in found.groupby(KEYS)}
    cells = []
    for _, group in shown.groupby("temperature", sort=True):
        for row in rows_of(group):
            own = by_key[tuple(row[key] for key in KEYS)]
            told = {name: _estimate(dict(own.loc[name]), "tau_question") for name in own.index}
            cells.append([*_keys(row), *(told.get(name, "") for name in names)])
    caption = (
        "τ by category of question, mean over its questions, of the drafters without a head and of the head that they"
        f" are compared with; {confidence_level(study.confidence)} limits, where there are questions enough."
    )
    return page_table(caption, [*HEAD, *(f"#{name.replace('_', ' ')}" for name in names)], cells)


def _left_out(study: Study, model: str) -> str:
    rows = of_model(study.drafters, model)
    names = sorted({layers_in_words(name) for name in rows[~rows["lossless"]]["layer_set"]})
    return f"; left out, since greedy answers differ from plain decoding's: {listed(names)}" if names else ""


def _keys(row: dict[str, Any]) -> list[Any]:
    name = drafter_in_words(row["layer_set"], row["layers"])
    return [name, f"{row['temperature']:g}", draft_size(row["nodes"], row["chain"])]


def _gap(row: dict[str, Any]) -> list[str]:
    if not isinstance(row["verdict"], str):
        return ["", "", ""]
    gap = difference(row["difference"], row["difference_low"], row["difference_high"])
    return [gap, number(row["p_holm"], 4), str(row["verdict"])]


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
