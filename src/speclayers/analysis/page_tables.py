"""The tables of the report's page: words and numbers, ready to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from speclayers.analysis.study import (
    HEADLINE_METRIC,
    Study,
    judged_apart,
    of_model,
    rows_of,
    runners_up,
    search_steps,
    stability,
)
from speclayers.analysis.wording import (
    FILTER_SCOPES,
    MISSING,
    SPLIT_IN_WORDS,
    confidence_level,
    difference,
    draft_size,
    drafter_in_words,
    estimate,
    layers_in_words,
    number,
    percent,
    set_name,
)
from speclayers.names import layers_name

MOST_STEPS = 12
"""Steps shown of a search, beside its last: more are read in the database."""


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Args:
        caption: What it tells and how to read it.
        head: Column titles; those of `numbers` are set flush right.
        rows: Cells as text.
        numbers: Places of the columns that hold numbers.
    """

    caption: str
    head: Sequence[str]
    rows: list[list[str]]
    numbers: frozenset[int]


def page_table(caption: str, head: Sequence[str], rows: list[list[Any]]) -> PageTable:
    """Build a table; a title that starts with # is that of a column of numbers."""
    numbers = frozenset(place for place, title in enumerate(head) if title.startswith("#"))
    cells = [[MISSING if _unknown(cell) else str(cell) for cell in row] for row in rows]
    return PageTable(caption, [title.removeprefix("#") for title in head], cells, numbers)


def _unknown(cell: object) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and cell != cell)


def _in_words(layers: Sequence[int]) -> str:
    return layers_in_words(layers_name([int(layer) for layer in layers]))


def _whole(value: Any) -> str:
    return number(value, 0)


def _estimate(row: dict[str, Any], name: str, digits: int = 2) -> str:
    return estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], digits)


def tau(study: Study) -> PageTable:
    """Return τ of every layer set at every setting."""
    rows = [
        [
            row["model"],
            drafter_in_words(row["layer_set"], row["layers"]),
            row["selectors"],
            f"{row['temperature']:g}",
            draft_size(row["nodes"], row["chain"]),
        ]
        + [_estimate(row, "tau_question"), _estimate(row, "tau_pooled")]
        + [row[name] for name in ("questions", "skipped", "seeds", "cycles", "cut_cycles")]
        for model in study.models
        for row in rows_of(of_model(study.tau, model))
    ]
    level = confidence_level(study.confidence)
    caption = (
        "Mean accepted tokens per verification, τ: accepted draft tokens and the target's own one, with"
        f" {level} limits by bootstrap over questions. Verifications that the token budget cut short are left out and"
        " counted in the last column; questions too long for the model are skipped for all sets alike."
    )
    head = [
        "model",
        "layers",
        "chosen by",
        "#T",
        "#nodes",
        "#τ, mean over questions",
        "#τ, pooled",
    ]
    return page_table(caption, [*head, "#questions", "#skipped", "#seeds", "#verifications", "#cut"], rows)


def comparisons(study: Study, model: str) -> PageTable:
    """Return one model's differences to the reference, with verdicts."""
    rows = of_model(study.comparisons, model)
    keys = ["layer_set", "temperature", "nodes"]
    pooled = rows[rows["metric"] != HEADLINE_METRIC].set_index(keys)
    cells = []
    for row in rows_of(rows[rows["metric"] == HEADLINE_METRIC]):
        other = pooled.loc[tuple(row[key] for key in keys)].to_dict()
        cells.append(
            [
                drafter_in_words(row["layer_set"], row["layers"]),
                row["selectors"],
                f"{row['temperature']:g}",
                draft_size(row["nodes"], row["chain"]),
                _difference(row),
                percent(row["relative"], 1),
                number(row["p_holm"], 4),
                row["verdict"],
                number(row["detectable"], 3),
                _difference(other),
            ]
        )
    reference = set_name(rows["reference"].iloc[0], study.reference) if len(rows) else MISSING
    scopes = [f"{'the' if scope == 'layers' else ''} {scope}".strip() for scope in sorted(set(rows["scope"]))]
    caption = (
        f"Differences of τ to {reference}, paired by question, with {confidence_level(study.confidence)} limits. The"
        " p-value and the verdict are corrected (Holm) for the sets compared at one temperature and tree size, and"
        f" speak of {' or '.join(scopes) or MISSING}. Smallest: the difference that one comparison would have found"
        " in 80 % of such runs."
    )
    head = [
        "layers",
        "chosen by",
        "#T",
        "#nodes",
        "#Δτ, mean over questions",
        "#relative",
        "#p, corrected",
        "verdict",
    ]
    return page_table(caption, [*head, "#smallest", "#Δτ, pooled"], cells)


def _difference(row: dict[str, Any]) -> str:
    return difference(row["difference"], row["difference_low"], row["difference_high"])


def filter_effect(study: Study, model: str) -> PageTable:
    """Return how much the token filter changes the variance over prompts, beside its random control."""
    cells = [
        [row["segment"], _whole(row["n_prompts"])]
        + [number(row[f"variance_{name}"], 4) for name in ("all", "filtered", "random")]
        + [_share(row, "reduction"), _share(row, "reduction_random")]
        for row in rows_of(of_model(study.filter_effect, model))
    ]
    head = ["part", "#prompts", "#variance, all", "#filtered", "#random", "#cut against all", "#cut against random"]
    caption = "Variance over prompts of a layer's entropy (nats²), mean over the layers of each third of the depth."
    return page_table(caption, head, cells)


def _share(row: dict[str, Any], name: str) -> str:
    high = min(row[f"{name}_high"], 1.0)  # a variance is not below 0
    limits = [percent(limit) for limit in (row[f"{name}_low"], high)]
    shown = "" if MISSING in limits else f" [{', '.join(limits)}]"
    return percent(row[name]) + shown


def filter_sets(study: Study, model: str) -> PageTable:
    """Return which layers elsi would choose at each share of tokens, filtered and random."""
    rows = of_model(study.filter_sets, model)
    cells = []
    for (scope, share), part in rows.groupby(["scope", "share"], sort=False):
        chosen = {(r["subset"], r["k"]): _in_words(r["layers"]) for r in rows_of(part)}
        sets = [chosen.get((subset, k)) for k in (1, 3) for subset in ("filtered", "random")]
        cells.append([FILTER_SCOPES.get(str(scope), scope), number(share, 2), _whole(part["n_tokens"].max()), *sets])
    head = ["kept", "#share", "#tokens", "k = 1, filtered", "k = 1, random", "k = 3, filtered", "k = 3, random"]
    caption = (
        "What elsi would choose at each share, by entropy of order 2 on at most 1,024 of the tokens kept: a quick"
        " relative of the selection. Where filtered and random differ little, the filter decides little."
    )
    return page_table(caption, head, cells)


def gaps(study: Study) -> PageTable:
    """Return how far every choice is from the best of all sets, and who chose the same."""
    cells = []
    for row in rows_of(study.selected):
        alike = study.selected[(study.selected["model"] == row["model"]) & (study.selected["k"] == row["k"])]
        best = alike[alike["selector"] == "exhaustive"]["score"].max()
        same = alike[(alike["layer_set"] == row["layer_set"]) & (alike["label"] != row["label"])]["label"]
        gap = number(best - row["score"], 3) if len(row["layers"]) == row["k"] else MISSING  # E(S) grows with layers
        cells.append([row["model"], row["label"], _whole(row["k"]), _in_words(row["layers"]), gap, ", ".join(same)])
    caption = (
        "Distance in E(S), nats, from the best of all sets of this k, as the selector exhaustive finds it; a dash where"
        " the study does not ask it, or where a selector found fewer than k layers. A greedy search that reaches 0"
        " found the best; below 0, it found a better one than the sets of highest E₂(S) that exhaustive scores again."
    )
    return page_table(caption, ["model", "selector", "#k", "layers", "#below exhaustive", "the same set by"], cells)


def engine_ids(recommendations: Sequence[dict[str, Any]]) -> PageTable:
    """Return the layer ids that each serving engine uses.

    Args:
        recommendations: What recommendation.json holds of each model.
    """
    engines = recommendations[0]["engines"]
    cells = []
    for found in recommendations:
        for entry in found["selections"]:
            ids = [_ids(entry["ids"][name]) for name in engines]
            cells.append([found["model"], entry["selector"], _whole(entry["k"]), layers_in_words(entry["name"]), *ids])
    conventions = "; ".join(f"{e['engine']} ({e['key']}): {e['convention']}" for e in engines.values())
    caption = f"Ids to paste. Layer {recommendations[0]['convention']}. {conventions}."
    return page_table(caption, ["model", "selector", "#k", "layers", *(e["engine"] for e in engines.values())], cells)


def _ids(found: dict[str, Any]) -> str:
    if found["ids"] is None:
        return f"none: {found['refused']}"
    return f"{found['ids']}" + (f"; {found['note']}" if found["note"] else "")


def selections(study: Study) -> PageTable:
    """Return what every selector chose, and why."""
    cells = []
    for row in rows_of(study.selected):
        shares = ", ".join(f"{layer}: {percent(share)}" for layer, share in stability(row["stability"]))
        if judged := judged_apart(row):
            shares = f"of {_in_words(judged)}, which order 2 chooses on all prompts: {shares}"
        found = runners_up(row["runner_up"])
        others = [f"{_in_words(layers)} {number(score, 3)}" for layers, score in found]
        cells.append(
            [
                row["model"],
                row["label"],
                _whole(row["k"]),
                layers_in_words(row["layer_set"]),
                number(row["score"], 3),
                shares,
                "; ".join(others[:2]),
                "yes" if row["trained"] else "no",
                row["reason"],
            ]
        )
    head = [
        "model",
        "selector",
        "#k",
        "layers",
        "#E(S), nats",
        "layers picked in half-samples",
        "runners-up, E(S)",
        "trained",
        "reason",
    ]
    caption = (
        "Chosen layers: 0 is the embedding's output, l that of block l. E(S) is the entropy of the states of the set"
        " S together. Half-samples: the share of random halves of the prompts on which a selector picks each layer;"
        " sets are searched there by order 2, and where that chooses another set on all prompts, it is named."
    )
    return page_table(caption, head, cells)


def searches(study: Study, model: str) -> PageTable | None:
    """Return one model's searches step by step; None where no selector searched."""
    cells = []
    for row in rows_of(of_model(study.selected, model)):
        steps = search_steps(row["trace"])
        for place, step in enumerate(steps, start=1):
            if MOST_STEPS < place < len(steps):
                continue
            left_out = len(steps) - MOST_STEPS - 1 if place > MOST_STEPS else 0
            note = f"{step.note} ({left_out} steps before this one left out)" if left_out > 0 else step.note
            layers = _in_words(step.layers) if step.layers else MISSING
            cells.append([row["label"], _whole(row["k"]), place, step.action, layers, number(step.value, 4), note])
    if not cells:
        return None
    caption = (
        f"How the selectors searched on {model}, step by step: what was done, the set afterwards, and the value that"
        f" decided it. Of longer searches the first {MOST_STEPS} steps and the last; all of them are in the column"
        " trace of the table selections. Selectors that only apply a rule have no steps; reasons and runners-up stand"
        " in the table above."
    )
    head = ["selector", "#k", "#step", "action", "layers", "#value", "what the value is"]
    return page_table(caption, head, cells)


def heads(study: Study) -> PageTable:
    """Return how the trained heads ended."""
    cells = [
        [row["model"], row["drafter"], _whole(row["draft_vocabulary"]), percent(row["coverage"], 1), row["steps"]]
        + [" / ".join(number(value) for value in row[name]) for name in ("final_loss", "final_accuracy")]
        + [number(row["simulated_length"]), SPLIT_IN_WORDS[row["final_split"]]]
        for row in rows_of(study.heads)
    ]
    head = ["model", "head", "#draft vocabulary", "#coverage", "#steps", "#loss by TTT step", "#accuracy by TTT step"]
    caption = (
        "Trained heads: loss in nats and accuracy by step of training-time test (TTT). On held-out responses, which no"
        " head is trained on, after the last step; where nothing is held out, on the training responses, mean over the"
        " last tenth of the steps. Coverage: the share of training tokens that the draft vocabulary holds."
    )
    return page_table(caption, [*head, "#simulated tokens", "measured on"], cells)


def speed(study: Study) -> PageTable:
    """Return speed-up and where the time goes."""
    cells = [
        [
            row["model"],
            layers_in_words(row["layer_set"]),
            f"{row['temperature']:g}",
            draft_size(row["nodes"], row["chain"]),
        ]
        + [_estimate(row, "speed_up")]
        + [number(row["tokens_per_s"], 1), number(row["baseline_tokens_per_s"], 1)]
        + [percent(row[f"{part}_share"]) for part in ("draft", "verify", "other")]
        + [number(row["verify_forwards"], 1), row["questions"]]
        for row in rows_of(study.speed)
    ]
    head = [
        "model",
        "drafter",
        "#T",
        "#nodes",
        "#speed-up",
        "#tokens/s",
        "#plain tokens/s",
        "#drafting",
        "#verifying",
    ]
    caption = (
        "Speed-up: plain decoding's time per token over the drafter's, both interleaved on the same questions, the"
        " prompt's forward pass and the token that it gives left out;"
        f" {confidence_level(study.confidence)} limits by bootstrap over questions. Passes: how many"
        " plain forward passes one verification takes. All of it holds for the machine that timed it."
    )
    return page_table(caption, [*head, "#other", "#passes", "#questions"], cells)


def costs(study: Study) -> PageTable:
    """Return what the jobs of each rule cost."""
    cells = [
        [
            row["rule"],
            row["model"],
            row["jobs"],
            number(row["seconds"], 1),
            number(row["cpu_seconds"], 1),
            _whole(row["max_rss_mb"]),
            _whole(row["gpu_seconds"]),
            row["gpu_type"],
            number(row["tokens_per_s"], 1),
        ]
        for row in rows_of(study.costs)
    ]
    head = ["rule", "model", "#jobs", "#seconds", "#processor seconds", "#most memory, MB"]
    head += ["#GPU seconds", "GPU", "#tokens/s"]
    return page_table(
        "Job seconds by rule and model; a dash where a job was too short to sample, and where nothing is known.",
        head,
        cells,
    )


def provenance(study: Study) -> PageTable:
    """Return versions, hashes, seeds and settings."""
    rows: pd.DataFrame = study.provenance
    cells = [[row["model"], row["part"], row["key"], row["value"]] for row in rows_of(rows)]
    return page_table("Where the numbers come from.", ["model", "part", "fact", "value"], cells)
