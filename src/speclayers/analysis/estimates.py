"""The study's estimates: τ, its differences to the reference and their power, acceptance by category, speed-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd

from speclayers.analysis.drafters import MOVED_KIND, REFERENCE_KIND
from speclayers.analysis.statistics import (
    Counts,
    Interval,
    Metric,
    Resampling,
    holm,
    paired_difference,
    paired_spread,
    questions_needed,
    rank_correlation,
    speed_up,
    tau_interval,
    verdict,
)
from speclayers.analysis.warehouse import Connection, query
from speclayers.names import layers_name

REFERENCE_K = 3
"""The reference selector's set with this many layers is what others are compared with."""

EFFECTS = (0.01, 0.02, 0.05)
"""Differences, as shares of the reference's τ, whose power is told."""

SET_KEYS = ["model", "layer_set", "temperature", "nodes"]

_UNTRAINED = -1  # stands for "no training seed" while grouping


class Measured(NamedTuple):
    """Counts of one layer set at one setting, with what its rows and columns are."""

    seeds: list[int]
    questions: list[int]
    counts: Counts


def question_counts(connection: Connection) -> pd.DataFrame:
    """Sum tokens and whole cycles of each drafter, setting and question; a question's turns belong together."""
    return query(
        connection,
        f"""
        select c.model, r.layer_set, c.temperature, c.nodes, c.question_id, any_value(c.category) as category,
               coalesce(c.train_seed, {_UNTRAINED}) as seed,
               coalesce(sum(c.emitted) filter (not c.cut_by_budget), 0)::double as emitted,
               (count(*) filter (not c.cut_by_budget))::double as cycles,
               count(*) filter (c.cut_by_budget) as cut_cycles
        from cycles as c join runs as r using (model, drafter, temperature, nodes)
        group by c.model, r.layer_set, c.temperature, c.nodes, c.question_id, seed
        order by all
        """,
    )


def measured(rows: pd.DataFrame) -> Measured:
    """Arrange one layer set's rows of `question_counts` as seeds × questions that every seed answered."""
    emitted = rows.pivot(index="seed", columns="question_id", values="emitted").dropna(axis=1)
    cycles = rows.pivot(index="seed", columns="question_id", values="cycles")[emitted.columns]
    counts = Counts(emitted.to_numpy(np.float64), cycles.to_numpy(np.float64))
    return Measured([int(seed) for seed in emitted.index], [int(question) for question in emitted.columns], counts)


def align(ours: Measured, reference: Measured) -> tuple[Counts, Counts] | None:
    """Pair two layer sets by question and training seed; a drafter without training pairs with every seed.

    Returns:
        Counts of equal shape, or None when they share no seed.
    """
    untrained = [_UNTRAINED]
    if untrained in (ours.seeds, reference.seeds):
        seeds = reference.seeds if ours.seeds == untrained else ours.seeds
    else:
        seeds = [seed for seed in ours.seeds if seed in reference.seeds]
    if not seeds:
        return None
    questions = [question for question in ours.questions if question in set(reference.questions)]
    return _pick(ours, seeds, questions), _pick(reference, seeds, questions)


def _pick(measured: Measured, seeds: list[int], questions: list[int]) -> Counts:
    rows = [0 if measured.seeds == [_UNTRAINED] else measured.seeds.index(seed) for seed in seeds]
    columns = [measured.questions.index(question) for question in questions]
    picked = np.ix_(rows, columns)
    return Counts(measured.counts.emitted[picked], measured.counts.cycles[picked])


def columns(name: str, interval: Interval) -> dict[str, float]:
    """Return an estimate and its limits as three columns."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def of_sets(counts: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield each layer set at each setting with its rows."""
    for key, rows in counts.groupby(SET_KEYS, sort=True):
        yield dict(zip(SET_KEYS, key, strict=True)), rows


def estimate_tau(counts: pd.DataFrame, skipped: Mapping[str, int], plan: Resampling) -> pd.DataFrame:
    """Estimate both τ of every layer set at every setting.

    Args:
        counts: Rows of `question_counts`.
        skipped: How many questions were too long for each model; none where it is not named.
        plan: Resamples, level and seed.
    """
    rows = []
    for key, of_set in of_sets(counts):
        found = measured(of_set)
        row = key | {"questions": int(found.counts.measured().sum()), "seeds": len(found.seeds)}
        row |= {"cycles": int(of_set["cycles"].sum()), "cut_cycles": int(of_set["cut_cycles"].sum())}
        row["skipped"] = skipped.get(key["model"], 0)
        for metric in get_args(Metric):
            row |= columns(metric, tau_interval(found.counts, metric, plan))
        rows.append(row)
    return pd.DataFrame(rows)


def estimate_categories(counts: pd.DataFrame, plan: Resampling) -> pd.DataFrame:
    """Estimate both τ of every layer set in each category of questions."""
    rows = []
    for key, of_set in of_sets(counts):
        for category, part in of_set.groupby("category", sort=True):
            found = measured(part)
            row = key | {"category": category, "questions": int(found.counts.measured().sum())}
            for metric in get_args(Metric):
                row |= columns(metric, tau_interval(found.counts, metric, plan))
            rows.append(row)
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- comparisons


def reference_sets(connection: Connection, reference: str) -> dict[str, str]:
    """Return each model's reference layer set: that of REFERENCE_K layers, else of the fewest asked for."""
    rows = query(
        connection,
        """
        select model, arg_min(layer_set, (k <> ?, k, seed, layer_set)) as layer_set
        from selected where selector = ? group by model
        """,
        [REFERENCE_K, reference],
    )
    return dict(zip(rows["model"], rows["layer_set"], strict=True))


def estimate_differences(counts: pd.DataFrame, references: dict[str, str], plan: Resampling) -> pd.DataFrame:
    """Compare every layer set with its model's reference, at the same temperature and tree size.

    Args:
        counts: Rows of `question_counts`.
        references: Each model's reference layer set.
        plan: Resamples, level and seed.
    """
    rows: list[dict[str, Any]] = []
    for setting, pairs in _pairs(counts, references):
        for metric in get_args(Metric):
            rows += [setting | row for row in compare(pairs, metric, plan)]
    return pd.DataFrame(rows)


def estimate_power(counts: pd.DataFrame, references: dict[str, str], plan: Resampling) -> pd.DataFrame:
    """Estimate how many questions it would take to see differences of EFFECTS, from the spread over those measured.

    Args:
        counts: Rows of `question_counts`.
        references: Each model's reference layer set.
        plan: Level of the comparison.
    """
    rows = []
    for setting, pairs in _pairs(counts, references):
        for (name, pair), metric, relative in product(pairs.items(), get_args(Metric), EFFECTS):
            spread = paired_spread(*pair, metric)
            effect, questions = relative * spread.base, spread.influence.size
            row = setting | {"layer_set": name, "metric": metric, "relative": relative, "effect": effect}
            row |= {"spread": spread.influence.std(ddof=1) if questions > 1 else np.nan, "questions": questions}
            rows.append(row | {"questions_needed": questions_needed(spread, effect, plan.confidence)})
    return pd.DataFrame(rows)


Pair = tuple[Counts, Counts]
"""Counts of a layer set and of its reference, of equal shape."""


def _pairs(counts: pd.DataFrame, references: dict[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, Pair]]]:
    """Yield each setting with every layer set that can be compared with the reference there."""
    for (model, temperature, nodes), group in counts.groupby(["model", "temperature", "nodes"], sort=True):
        sets = {str(name): measured(part) for name, part in group.groupby("layer_set", sort=True)}
        reference = references.get(str(model))
        if reference not in sets:
            continue
        setting = {"model": model, "temperature": temperature, "nodes": nodes, "reference": reference}
        found = {name: align(one, sets[reference]) for name, one in sets.items() if name != reference}
        yield setting, {name: pair for name, pair in found.items() if pair is not None}


def compare(pairs: Mapping[str, Pair], metric: Metric, plan: Resampling) -> list[dict[str, Any]]:
    """Compare several layer sets, or drafters, with a reference and adjust their p-values together.

    Args:
        pairs: Counts of each and of the reference, by its label.
        metric: Which τ.
        plan: Resamples, level and seed.
    """
    rows = []
    for name, pair in pairs.items():
        spread = paired_spread(*pair, metric)
        gap = paired_difference(spread, plan)
        row = {"layer_set": name, "metric": metric} | columns("difference", Interval(gap.value, gap.low, gap.high))
        row |= {"relative": gap.value / spread.base}
        row |= {"p": gap.p, "detectable": gap.detectable, "questions": gap.questions, "seeds": gap.seeds}
        rows.append(row | {"scope": "layers" if gap.speaks_of_layers else "these heads"})
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row |= {"p_holm": adjusted, "verdict": verdict(float(row["difference"]), adjusted, plan.confidence)}
    return rows


def estimate_transfers(counts: pd.DataFrame, sets: pd.DataFrame, plan: Resampling) -> pd.DataFrame:
    """Compare every moved head with those trained from scratch on its layers, at the same temperature and tree size.

    Args:
        counts: Rows of `question_counts`.
        sets: Columns model, layer_set, kind and layers.
        plan: Resamples, level and seed.
    """
    moved = sets[sets["kind"] == MOVED_KIND]
    scratch = [layers_name([int(layer) for layer in layers]) for layers in moved["layers"]]
    rows: list[pd.DataFrame] = []
    for (model, reference), group in moved.assign(scratch=scratch).groupby(["model", "scratch"], sort=True):
        of_model = counts[(counts["model"] == model) & counts["layer_set"].isin({reference, *group["layer_set"]})]
        rows.append(estimate_differences(of_model, {str(model): str(reference)}, plan))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def estimate_correlations(tau: pd.DataFrame, sets: pd.DataFrame, plan: Resampling) -> pd.DataFrame:
    """Correlate E(S) with τ over the layer sets of equal size.

    Args:
        tau: Rows of `estimate_tau`.
        sets: Columns model, layer_set, kind, k and score, the set's E(S).
        plan: Level of the interval.
    """
    if tau.empty:
        return pd.DataFrame()
    joined = tau.merge(sets[sets["kind"] == REFERENCE_KIND], on=["model", "layer_set"])
    joined = joined.dropna(subset=["score", "tau_question", "k"])
    rows = []
    for key, group in joined.groupby(["model", "temperature", "nodes", "k"], sort=True):
        rho = rank_correlation(group["score"].to_numpy(), group["tau_question"].to_numpy(), plan.confidence)
        names = ("model", "temperature", "nodes", "k")
        rows.append(dict(zip(names, key, strict=True)) | {"sets": len(group)} | columns("rho", rho))
    return pd.DataFrame(rows)


def estimate_curve_ranks(connection: Connection, plan: Resampling) -> pd.DataFrame:
    """Correlate the screening's layer curve at each budget with that at each larger one, and with the entropy S(l).

    A curve is the simulated length of the single layers. Where only the layers that were kept saw the larger budget,
    the correlation is over those alone, which are alike: it says less.
    """
    rows = query(
        connection,
        """
        select s.model, s.budget, s.layers[1] as layer, s.simulated_length, e.entropy
        from screening as s
        left join geometry_entropy as e
            on e.model = s.model and e.layer = s.layers[1] and e.alpha = 1 and e.subset = 'filtered'
            and not e.sinks_kept and e.sample_id is null
        where len(s.layers) = 1
        order by all
        """,
    )
    found: list[dict[str, Any]] = []
    for model, group in rows.groupby("model", sort=True):
        curves = group.pivot(index="layer", columns="budget", values="simulated_length")
        entropy = group.groupby("layer")["entropy"].first()
        for place, budget in enumerate(curves):
            others = [("budget", other, curves[other]) for other in curves.columns[place + 1 :]]
            for against, other_budget, values in (*others, ("entropy", None, entropy)):
                both = pd.DataFrame({"curve": curves[budget], "other": values}).dropna()
                rho = rank_correlation(both["curve"].to_numpy(), both["other"].to_numpy(), plan.confidence)
                row = {"model": model, "budget": budget, "against": against, "other_budget": other_budget}
                row |= {"layers": len(both), "all_layers": len(both) == len(curves)}
                found.append(row | columns("rho", rho))
    return pd.DataFrame(found).astype({"other_budget": "Int64"}) if found else pd.DataFrame()


# ---------------------------------------------------------------- speed


def estimate_speed(connection: Connection, plan: Resampling) -> pd.DataFrame:
    """Estimate the speed-up over plain decoding, and where the time goes.

    A turn's first token comes from the prompt's forward pass, which is not timed, so it is not counted either.
    One verification in plain forward passes is its time per token × τ ÷ plain decoding's time per token.
    """
    rows = query(
        connection,
        """
        with passes as (
            select model, drafter, temperature, nodes, sum(emitted) / count(*) as emitted_per_cycle
            from cycles group by all
        ), labels as (select distinct model, drafter, layer_set from runs)
        select s.model, coalesce(l.layer_set, s.drafter) as layer_set, s.temperature, s.nodes, s.question_id,
               sum(s.baseline_wall_s) as baseline_s, sum(s.baseline_new_tokens - 1)::double as baseline_tokens,
               sum(s.wall_s) as wall_s, sum(s.new_tokens - 1)::double as tokens,
               sum(s.draft_s) as draft_s, sum(s.verify_s) as verify_s, sum(s.other_s) as other_s,
               avg(p.emitted_per_cycle) as emitted_per_cycle
        from speed as s
        left join labels as l using (model, drafter)
        left join passes as p using (model, drafter, temperature, nodes)
        group by s.model, l.layer_set, s.drafter, s.temperature, s.nodes, s.question_id
        order by all
        """,
    )
    found = [key | _speed(group, plan) for key, group in of_sets(rows)]
    return pd.DataFrame(found)


def _speed(group: pd.DataFrame, plan: Resampling) -> dict[str, Any]:
    by_question = group.groupby("question_id").sum(numeric_only=True)
    sums = by_question.astype(np.float64)
    interval = speed_up(
        sums["baseline_s"].to_numpy(),
        sums["baseline_tokens"].to_numpy(),
        sums["wall_s"].to_numpy(),
        sums["tokens"].to_numpy(),
        plan,
    )
    total = {str(name): float(value) for name, value in by_question.sum().items()}
    plain = _ratio(total["baseline_s"], total["baseline_tokens"])
    verify = _ratio(total["verify_s"], total["tokens"]) * float(group["emitted_per_cycle"].mean())
    return columns("speed_up", interval) | {
        **{f"{part}_share": _ratio(total[f"{part}_s"], total["wall_s"]) for part in ("draft", "verify", "other")},
        "tokens_per_s": _ratio(total["tokens"], total["wall_s"]),
        "baseline_tokens_per_s": _ratio(total["baseline_tokens"], total["baseline_s"]),
        "verify_forwards": _ratio(verify, plain),
        "questions": len(by_question),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
