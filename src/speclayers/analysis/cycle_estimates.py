"""Estimates within the draft tree and within the answer: acceptance by depth, τ by position."""

from __future__ import annotations

from typing import Any

import pandas as pd

from speclayers.analysis.estimates import SET_KEYS, columns
from speclayers.analysis.statistics import Interval, Resampling, ratio_interval
from speclayers.analysis.warehouse import Connection, query

FIRST_SPAN = 16
"""Tokens of the first span of an answer; each later one begins where the last ends, and reaches twice as far."""


def estimate_depths(connection: Connection, plan: Resampling) -> pd.DataFrame:
    """Estimate acceptance at each depth: among cycles that accepted down to the one before, and among all.

    A depth counts in cycles whose drafted tree goes that deep; a path that ends earlier than the
    tree's longest one counts as not accepted below its end. An answer that ends at a drafted token
    (nothing of the target's own was emitted) says nothing about the depths behind it.
    """
    rows = query(
        connection,
        """
        select c.model, r.layer_set, c.temperature, c.nodes, d.draft_depth, c.question_id,
               count(*)::double as drafted,
               (count(*) filter (c.accepted >= d.draft_depth - 1))::double as reached,
               (count(*) filter (c.accepted >= d.draft_depth))::double as accepted
        from cycles as c
        join runs as r using (model, drafter, temperature, nodes),
        lateral (select unnest(range(1, c.depth + 1)) as draft_depth) as d
        where not c.cut_by_budget and (c.accepted >= d.draft_depth or c.emitted > c.accepted)
        group by all order by all
        """,
    )
    found = []
    for key, group in rows.groupby([*SET_KEYS, "draft_depth"], sort=True):
        accepted, reached, drafted = (group[name].to_numpy() for name in ("accepted", "reached", "drafted"))
        named = dict(zip([*SET_KEYS, "draft_depth"], key, strict=True))
        named |= columns("acceptance", _share(ratio_interval(accepted, reached, plan)))
        named |= columns("marginal", _share(ratio_interval(accepted, drafted, plan)))
        found.append(named | {"reached": int(reached.sum()), "drafted": int(drafted.sum())})
    return pd.DataFrame(found)


def _share(interval: Interval) -> Interval:
    """Cut the limits of a share at 0 and 1."""
    return Interval(interval.value, max(interval.low, 0.0), min(interval.high, 1.0))


def estimate_positions(connection: Connection, plan: Resampling) -> pd.DataFrame:
    """Estimate τ by the position in the answer at which a cycle begins.

    Only long answers reach late positions: spans differ in their questions, too.
    """
    rows = query(
        connection,
        f"""
        with placed as (
            select c.*, r.layer_set,
                   1 + coalesce(sum(c.emitted) over before, 0) as position
            from cycles as c join runs as r using (model, drafter, temperature, nodes)
            window before as (
                partition by c.model, c.drafter, c.temperature, c.nodes, c.question_id, c.turn
                order by c.cycle rows between unbounded preceding and 1 preceding
            )
        )
        select model, layer_set, temperature, nodes,
               case when position < {FIRST_SPAN} then 0
                    else ({FIRST_SPAN} * 2 ** floor(log2(position / {FIRST_SPAN}))) end::bigint as first_position,
               question_id, sum(emitted)::double as emitted, count(*)::double as cycles
        from placed where not cut_by_budget group by all order by all
        """,
    )
    found = []
    for key, group in rows.groupby([*SET_KEYS, "first_position"], sort=True):
        named: dict[str, Any] = dict(zip([*SET_KEYS, "first_position"], key, strict=True))
        named["last_position"] = int(named["first_position"]) * 2 - 1 if named["first_position"] else FIRST_SPAN - 1
        named |= columns("tau_pooled", ratio_interval(group["emitted"].to_numpy(), group["cycles"].to_numpy(), plan))
        found.append(named | {"cycles": int(group["cycles"].sum()), "questions": group["question_id"].nunique()})
    return pd.DataFrame(found)
