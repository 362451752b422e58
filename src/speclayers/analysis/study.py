"""The whole study: built from the summaries, and read back for the answer, the charts and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from speclayers.analysis import cycle_estimates, estimates, rival_estimates
from speclayers.analysis.drafters import IS_RIVAL, MOVED_KIND
from speclayers.analysis.provenance import facts_frame, read_jobs, targets_frame
from speclayers.analysis.statistics import Resampling
from speclayers.analysis.warehouse import (
    Connection,
    create_set_views,
    create_views,
    query,
    unite_summaries,
    write_estimate,
)
from speclayers.errors import UserError
from speclayers.specs import AggregateSpec
from speclayers.targets.manifest import Manifest

HEADLINE_METRIC = "tau_question"
"""The τ whose comparisons the answer speaks of: questions are what is resampled."""


@dataclass(frozen=True)
class Study:
    """What the answer and the page tell, one table each; see `schemas` and `views.sql` for the columns."""

    facts: pd.DataFrame
    targets: pd.DataFrame
    tau: pd.DataFrame
    drafters: pd.DataFrame
    skip_overlap: pd.DataFrame
    skip_changes: pd.DataFrame
    moved: pd.DataFrame
    transfers: pd.DataFrame
    comparisons: pd.DataFrame
    categories: pd.DataFrame
    depths: pd.DataFrame
    positions: pd.DataFrame
    power: pd.DataFrame
    speed: pd.DataFrame
    correlations: pd.DataFrame
    selected: pd.DataFrame
    sets: pd.DataFrame
    screening: pd.DataFrame
    curve_ranks: pd.DataFrame
    entropy: pd.DataFrame
    cka: pd.DataFrame
    turning: pd.DataFrame
    filter_effect: pd.DataFrame
    filter_sweep: pd.DataFrame
    filter_sets: pd.DataFrame
    convergence: pd.DataFrame
    agreement: pd.DataFrame
    training: pd.DataFrame
    heads: pd.DataFrame
    runs: pd.DataFrame
    costs: pd.DataFrame
    provenance: pd.DataFrame
    disagreements: pd.DataFrame
    skipped: pd.DataFrame

    @property
    def models(self) -> list[str]:
        """Models of the study, in its order."""
        return list(self.targets["model"])

    def fact(self, part: str, key: str) -> str:
        """Return a fact that holds for the whole study."""
        found = self.facts[(self.facts["part"] == part) & (self.facts["key"] == key)]
        return str(found["value"].iloc[0])

    @property
    def reference(self) -> str:
        """Selector that every set is compared with."""
        return self.fact("statistics", "reference")

    @property
    def confidence(self) -> float:
        """Level of the intervals."""
        return float(self.fact("statistics", "confidence"))


def of_model(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return one model's rows."""
    return rows[rows["model"] == model]


def rival_labels(study: Study) -> set[str]:
    """Return the labels of the drafters without a head."""
    return set(study.drafters[study.drafters["layers"].isna()]["layer_set"])


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's rows, each a value by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


SETTING_ORDER = ["temperature", "chain", "nodes"]
"""What settings are sorted by: the first one, which the answer speaks of, is a tree's."""


def settings_of(rows: pd.DataFrame) -> list[tuple[float, int, pd.DataFrame]]:
    """Return the settings among some rows, by temperature, trees before chains, by size; each with its rows."""
    keys = rows[SETTING_ORDER].drop_duplicates().sort_values(SETTING_ORDER)
    found = zip(keys["temperature"].tolist(), keys["nodes"].tolist(), strict=True)
    return [(t, n, rows[(rows["temperature"] == t) & (rows["nodes"] == n)]) for t, n in found]


_ENTROPY = """
    select model, layer, subset, sinks_kept, preprocessing, 'pooled' as aggregation, n_tokens,
           entropy, ci_low as low, ci_high as high, 1 as prompts
    from geometry_entropy where alpha = 1 and sample_id is null
    union all
    select model, layer, subset, sinks_kept, preprocessing, 'per prompt' as aggregation, sum(n_tokens)::bigint,
           avg(entropy), avg(entropy) - stddev_samp(entropy), avg(entropy) + stddev_samp(entropy), count(*)
    from geometry_entropy where alpha = 1 and sample_id is not null
    group by model, layer, subset, sinks_kept, preprocessing
    order by all
"""

_TRAINING = """
    with bins as (
        select *, ceil(step * 60.0 / max(step) over (partition by model, drafter)) as bin
        from training where not contains(drafter, '.from-')
    )
    select model, drafter, split, ttt_step, max(step) as step, avg(loss) as loss, avg(accuracy) as accuracy
    from bins group by model, drafter, split, ttt_step, bin order by model, drafter, split, ttt_step, step
"""

_DISAGREEMENTS = """
    select model, drafter, temperature, nodes, question_id, turn, first_difference, margin_there
    from turns where identical_to_greedy = false order by all
"""


def read_study(connection: Connection) -> Study:
    """Read what the answer and the page tell from a study's database."""
    whole = {
        "facts": "facts",
        "targets": "targets",
        "tau": (
            f"acceptance_summary where kind <> '{MOVED_KIND}' and not ({IS_RIVAL})"
            " order by model, temperature, nodes, tau_question desc"
        ),
        "drafters": "drafters order by model, temperature, tau_question desc",
        "skip_overlap": "skip_overlap",
        "skip_changes": "skip_changes",
        "moved": f"acceptance_summary where kind = '{MOVED_KIND}'",
        "transfers": "transfers order by model, temperature, nodes, metric desc, layer_set",
        "comparisons": "comparisons",
        "categories": "category_estimates order by all",
        "depths": "depth_estimates order by all",
        "positions": "position_estimates order by all",
        "power": "power_estimates order by all",
        "speed": "speed_estimates order by all",
        "correlations": "correlations order by all",
        "selected": "selected order by model, selector, k, seed",
        "sets": "sets order by model, layer_set",
        "screening": "screening order by model, rung, simulated_length desc, candidate",
        "curve_ranks": "curve_ranks order by all",
        "turning": "geometry_turning order by model, layer",
        "filter_effect": "geometry_filter_effect",
        "filter_sweep": "geometry_filter_sweep",
        "filter_sets": "geometry_filter_sets",
        "convergence": "geometry_convergence order by model, n_tokens, layer",
        "agreement": "selector_agreement",
        "heads": "heads order by model, drafter",
        "runs": "runs order by model, temperature, nodes, drafter",
        "costs": "costs",
        "skipped": "skipped_questions order by all",
        "provenance": "provenance",
    }
    tables = {name: query(connection, f"from {source}") for name, source in whole.items()}
    tables["disagreements"] = query(connection, _DISAGREEMENTS)
    for name, frame in tables.items():
        if "nodes" in frame and "chain" not in frame:
            tables[name] = frame.assign(chain=_are_chains(frame, tables["runs"]))
    cka = "select * from geometry_cka where estimator = 'debiased' and subset = 'filtered' order by all"
    return Study(
        **tables,
        cka=query(connection, cka),
        entropy=query(connection, _ENTROPY),
        training=query(connection, _TRAINING),
    )


def _are_chains(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Tell of each row whether heads drafted chains there: one without a head may have trees of as many nodes."""
    keys = [key for key in ("model", "layer_set", "drafter", "nodes") if key in rows]
    chains = set(runs[runs["chain"]][keys].itertuples(index=False, name=None))
    found = [row in chains for row in rows[keys].itertuples(index=False, name=None)]
    return pd.Series(found, index=rows.index, dtype=bool)


def build_study(
    connection: Connection,
    summaries: Mapping[str, Path],
    manifests: Mapping[str, Manifest],
    benchmarks: Path | None,
    spec: AggregateSpec,
    fingerprint: str,
) -> None:
    """Fill an empty database with all models' tables, the estimates and the views.

    Args:
        connection: The database.
        summaries: Folder of each model's summary.
        manifests: What each fetched target is.
        benchmarks: Folder of what Snakemake measured of the jobs.
        spec: Settings of the statistics.
        fingerprint: Fingerprint of the aggregation.

    Raises:
        UserError: A summary, manifest or measurement is missing or broken.
    """
    if set(manifests) != set(summaries):
        apart = sorted(set(manifests) ^ set(summaries))
        raise UserError(f"--target and --summary: name different models: {', '.join(apart)}")
    manifests = {model: manifests[model] for model in summaries}
    plan = Resampling(spec.statistics.resamples, spec.statistics.confidence, spec.statistics.seed)
    unite_summaries(connection, summaries)
    connection.execute("set threads = 1")  # sums of floats in one order: what follows repeats to the last digit
    jobs = pd.DataFrame() if benchmarks is None else read_jobs(benchmarks, *_declared(connection, manifests))
    write_estimate(connection, "jobs", jobs)
    write_estimate(connection, "targets", targets_frame(manifests))
    create_set_views(connection)
    write_estimate(connection, "facts", facts_frame(manifests, summaries, spec, fingerprint))
    counts = estimates.question_counts(connection)
    skipped = query(connection, "select model, count(*) as n from skipped_questions group by model")
    tau = estimates.estimate_tau(counts, dict(zip(skipped["model"], skipped["n"], strict=True)), plan)
    write_estimate(connection, "tau_estimates", tau)
    write_estimate(connection, "category_estimates", estimates.estimate_categories(counts, plan))
    write_estimate(connection, "depth_estimates", cycle_estimates.estimate_depths(connection, plan))
    write_estimate(connection, "position_estimates", cycle_estimates.estimate_positions(connection, plan))
    write_estimate(connection, "speed_estimates", estimates.estimate_speed(connection, plan))
    write_estimate(connection, "curve_ranks", estimates.estimate_curve_ranks(connection, plan))
    _write_comparisons(connection, counts, tau, spec.statistics.reference, plan)
    create_views(connection)


def _declared(
    connection: Connection, manifests: Mapping[str, Manifest]
) -> tuple[set[str], dict[str, set[tuple[str, ...]]]]:
    """Return the models whose jobs belong to the study, teachers too, and its jobs that have heads or settings."""
    sources = [manifest.source for manifest in manifests.values()]
    teachers = [str(source["teacher"]) for source in sources if "teacher" in source]
    setting = "model, drafter, printf('T%g-n%d%s', temperature, nodes, if(chain, 'c', ''))"
    timed = f"select {setting} from runs semi join speed using (model, drafter, temperature, nodes)"
    found = {
        "decode_baseline": "select model, printf('T%g', temperature) from runs",
        **dict.fromkeys(("train_draft", "continue_draft"), "select model, drafter from heads"),
        **dict.fromkeys(("train_medusa", "search_skips"), "select model, drafter from runs"),
        **dict.fromkeys(("measure_acceptance", "measure_rival"), f"select {setting} from runs"),
        **dict.fromkeys(("measure_speed", "time_rival"), timed),
    }
    runs = {rule: set(connection.sql(sql).fetchall()) for rule, sql in found.items()}
    return {*manifests, *teachers}, runs


def _write_comparisons(
    connection: Connection, counts: pd.DataFrame, tau: pd.DataFrame, reference: str, plan: Resampling
) -> None:
    references = estimates.reference_sets(connection, reference)
    sets = query(connection, "select model, layer_set, kind, layers, k, score from sets")
    moved = counts["layer_set"].isin(sets[sets["kind"] == MOVED_KIND]["layer_set"])
    rivals = rival_estimates.rival_names(connection)
    own = counts[~moved & ~counts["layer_set"].isin(rivals)]  # others stand in no Holm correction of layer sets
    write_estimate(connection, "differences", estimates.estimate_differences(own, references, plan))
    write_estimate(connection, "power_estimates", estimates.estimate_power(own, references, plan))
    sizes = rival_estimates.reference_sizes(connection, references)
    apart = rival_estimates.estimate_rival_differences(counts, rivals, references, sizes, plan)
    write_estimate(connection, "rival_differences", apart)
    write_estimate(connection, "transfers", estimates.estimate_transfers(counts, sets, plan))
    write_estimate(connection, "correlations", estimates.estimate_correlations(tau, sets, plan))


def stability(text: str | None) -> list[tuple[int, float]]:
    """Read a selection's stability: each layer with the share of half-samples that picked it."""
    return [(int(layer), float(share)) for layer, share in json.loads(text or "{}").items()]


def judged_apart(row: dict[str, Any] | pd.Series) -> tuple[int, ...]:
    """Return what the search of the half-samples chooses on all prompts, where that is not the selection itself."""
    judged, layers = (tuple(int(layer) for layer in row[name]) for name in ("half_sample_set", "layers"))
    return () if judged == layers else judged


def runners_up(text: str | None) -> list[tuple[list[int], float]]:
    """Read a selection's runner-up sets with their E(S), best first."""
    return [([int(layer) for layer in entry["layers"]], float(entry["score"])) for entry in json.loads(text or "[]")]


class SearchStep(NamedTuple):
    """A step of a selector's search: what was done, the layers afterwards, and what decided it."""

    action: str
    layers: list[int]
    value: float
    note: str


def search_steps(text: str | None) -> list[SearchStep]:
    """Read the steps of a selection's search, in their order."""
    return [SearchStep(**step) for step in json.loads(text or "[]")]
