"""Drafters without a head against the head of the reference's layer set, on the same questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pandas as pd

from speclayers.analysis.drafters import IS_RIVAL
from speclayers.analysis.estimates import Measured, Pair, compare, measured
from speclayers.analysis.statistics import Counts, Metric, Resampling
from speclayers.analysis.warehouse import Connection, query


def rival_names(connection: Connection) -> set[str]:
    """Return the labels of the drafters without a head."""
    return set(query(connection, f"select distinct layer_set from sets where {IS_RIVAL}")["layer_set"])


def reference_sizes(connection: Connection, references: Mapping[str, str]) -> dict[tuple[str, float], int]:
    """Return the size of the reference head's drafts that others are compared with: its smallest tree.

    Where it drafted chains only, the shortest.

    Args:
        connection: The database.
        references: Each model's reference layer set.
    """
    rows = query(
        connection,
        "select model, layer_set, temperature, arg_min(nodes, (chain, nodes)) as nodes from runs group by all",
    )
    own = rows[rows["model"].map(dict(references)) == rows["layer_set"]]
    keys = zip(own["model"], own["temperature"].astype(float), strict=True)
    return {key: int(nodes) for key, nodes in zip(keys, own["nodes"], strict=True)}


def estimate_rival_differences(
    counts: pd.DataFrame,
    rivals: set[str],
    references: Mapping[str, str],
    sizes: Mapping[tuple[str, float], int],
    plan: Resampling,
) -> pd.DataFrame:
    """Compare every drafter without a head with the reference head at the same temperature.

    Each drafts as much at once as it is set to: what is compared is two ways of drafting, not two shapes of drafts.

    Args:
        counts: Rows of `question_counts`.
        rivals: Labels of the drafters without a head.
        references: Each model's reference layer set.
        sizes: Size of the reference head's drafts, by model and temperature.
        plan: Resamples, level and seed.
    """
    rows: list[dict[str, Any]] = []
    for (model, temperature), nodes in sorted(sizes.items()):
        group = counts[(counts["model"] == model) & (counts["temperature"] == temperature)]
        own, reference = group[group["layer_set"].isin(rivals)], references[model]
        if own.empty:
            continue
        head = measured(group[(group["layer_set"] == reference) & (group["nodes"] == nodes)])
        pairs = {str(name): pair_draws(measured(part), head) for name, part in own.groupby("layer_set", sort=True)}
        drafts = own.groupby("layer_set")["nodes"].max()
        setting = {"model": model, "temperature": temperature, "reference": reference, "reference_nodes": nodes}
        for metric in get_args(Metric):
            rows += [setting | row | {"nodes": int(drafts[row["layer_set"]])} for row in compare(pairs, metric, plan)]
    return pd.DataFrame(rows)


def pair_draws(ours: Measured, reference: Measured) -> Pair:
    """Pair a drafter and a head by question; its seeds and those of training have nothing to do with each other.

    Where one of them has a single seed, or none, it is paired with every seed of the other; else the first seed of one
    with the first of the other, and so on, as far as both go.
    """
    questions = [question for question in ours.questions if question in set(reference.questions)]
    sizes = len(ours.seeds), len(reference.seeds)
    draws = max(sizes) if min(sizes) == 1 else min(sizes)
    return _drawn(ours, draws, questions), _drawn(reference, draws, questions)


def _drawn(found: Measured, draws: int, questions: list[int]) -> Counts:
    rows = [0] * draws if len(found.seeds) == 1 else list(range(draws))
    picked = np.ix_(rows, [found.questions.index(question) for question in questions])
    return Counts(found.counts.emitted[picked], found.counts.cycles[picked])
