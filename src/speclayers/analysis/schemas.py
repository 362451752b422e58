"""Tables of the summary of one model and of the study's estimates: each stage's table with the keys that place it."""

from __future__ import annotations

import pyarrow as pa

from speclayers import tables
from speclayers.tables import Column, Table

_str, _i64, _i32, _f64, _bool = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()
_floats = pa.list_(pa.float64())
_layers = pa.list_(pa.int32())

MODEL = (Column("model", _str, "", "Model."),)
DRAFTER = (
    *MODEL,
    Column("drafter", _str, "", "Drafter: a trained head with its seed, or a method without training."),
    Column("layers", _layers, "", "Target layers that it reads, sorted; null when it reads none."),
    Column("k", _i32, "layers", "Number of those layers."),
    Column("train_seed", _i64, "", "Seed of its training; null without training."),
)
SETTING = (
    Column("temperature", _f64, "", "Sampling temperature; 0 is greedy."),
    Column("nodes", _i32, "tokens", "Size of the draft tree, the root counted."),
)
ORIGIN = (
    Column("fingerprint", _str, "", "Fingerprint of the settings and code behind the files."),
    Column("torch", _str, "", "Version of torch that wrote them."),
    Column("transformers", _str, "", "Version of transformers that wrote them."),
)

RUNS = Table(
    "summary/runs",
    (
        *DRAFTER,
        *SETTING,
        Column("kind", _str, "", "Kind of drafter, such as eagle3."),
        Column("layer_set", _str, "", "Label of what is compared: the layers, or the drafter without its seed."),
        Column(
            "chain",
            _bool,
            "",
            "Whether the nodes are one path of nodes − 1 drafted tokens, as vLLM serves; else a tree.",
        ),
        Column("turns", _i64, "turns", "Turns answered."),
        Column("questions", _i64, "questions", "Questions answered."),
        Column("new_tokens", _i64, "tokens", "Tokens answered."),
        Column("identical", _i64, "turns", "Turns whose ids equal plain greedy decoding's; null when T > 0."),
        Column("ties", _i64, "turns", "Turns that differ where plain decoding's two best logits tie; null when T > 0."),
        Column("different", _i64, "turns", "Turns that differ elsewhere; null when T > 0."),
        Column(
            "as_generate",
            _i64,
            "turns",
            "Turns whose ids equal those of transformers' generate too; null when T > 0 or not asked.",
        ),
        Column(
            "median_margin", _f64, "", "Median top-2 logit gap of plain decoding where turns first differ; or null."
        ),
        Column("exactness", _str, "", "exact, ties, different, diverges (below fp32), or not applicable (T > 0)."),
        *ORIGIN,
    ),
)

HEADS = Table(
    "summary/heads",
    (
        *DRAFTER,
        Column("draft_vocabulary", _i64, "tokens", "Tokens that the head can draft."),
        Column("coverage", _f64, "", "Share of training response tokens inside the draft vocabulary."),
        Column("steps", _i64, "", "Optimiser steps logged."),
        Column(
            "final_split",
            _str,
            "",
            "What the next three come from: held_out, the last evaluation on responses never trained on; train, where"
            " nothing was held out, the mean over the last tenth of the steps.",
        ),
        Column("final_loss", _floats, "nats", "Loss by TTT step."),
        Column("final_accuracy", _floats, "", "Accuracy by TTT step."),
        Column("simulated_length", _f64, "tokens", "1 + Σ_j Π_{i≤j} accuracy_i."),
        *ORIGIN,
    ),
)


SKIPPED_QUESTIONS = Table(
    "summary/skipped_questions",
    (
        *MODEL,
        Column("question_id", _i64, "", "Question that is skipped, the same for all drafters."),
        Column("category", _str, "", "Category of the question."),
        Column("turn", _i32, "", "Its first turn that the model has no room for, from 0."),
        Column("prompt_tokens", _i32, "tokens", "Length of that turn's prompt."),
        Column("positions", _i32, "tokens", "Positions that prompt, longest answer and deepest drafted path take."),
        Column("limit", _i32, "tokens", "Those the model has."),
    ),
)


def _keyed(keys: tuple[Column, ...], table: Table) -> Table:
    return Table(f"summary/{table.name.replace('/', '_')}", (*keys, *table.columns))


SUMMARIES: dict[str, Table] = {
    **{f"geometry_{name}": _keyed(MODEL, table) for name, table in tables.GEOMETRY.items()},
    "selections": _keyed(MODEL, tables.SELECTIONS),
    "screening": _keyed(MODEL, tables.SCREENING),
    "heads": HEADS,
    "training": _keyed(DRAFTER, tables.TRAINING),
    "turns": _keyed((*DRAFTER, *SETTING), tables.TURNS),
    "cycles": _keyed((*DRAFTER, *SETTING), tables.CYCLES),
    "speed": _keyed((*DRAFTER, *SETTING), tables.SPEED),
    "runs": RUNS,
    "skipped_questions": SKIPPED_QUESTIONS,
}
"""Table of each of layout.SUMMARY_TABLES."""

SET = (*MODEL, Column("layer_set", _str, "", "Layers read, or the drafter without its training seed."), *SETTING)


def _interval(name: str, unit: str, meaning: str, limit: str = "bootstrap limit") -> tuple[Column, ...]:
    return (
        Column(name, _f64, unit, meaning),
        Column(f"{name}_low", _f64, unit, f"Lower {limit} of `{name}`."),
        Column(f"{name}_high", _f64, unit, f"Upper {limit} of `{name}`."),
    )


_questions = Column("questions", _i64, "questions", "Questions measured.")

TAU_ESTIMATES = Table(
    "tau_estimates",
    (
        *SET,
        *_interval("tau_pooled", "tokens", "Tokens emitted per cycle over all cycles, mean over training seeds."),
        *_interval("tau_question", "tokens", "Mean over questions of tokens per cycle, mean over training seeds."),
        _questions,
        Column("seeds", _i64, "", "Training seeds measured."),
        Column("cycles", _i64, "", "Cycles counted."),
        Column("cut_cycles", _i64, "", "Cycles cut by the token budget and left out."),
        Column("skipped", _i64, "questions", "Questions too long for the model, skipped for all sets alike."),
    ),
)

DIFFERENCES = Table(
    "differences",
    (
        *SET,
        Column("reference", _str, "", "Layer set that it is compared with."),
        Column("metric", _str, "", "tau_question or tau_pooled."),
        *_interval("difference", "tokens", "τ minus the reference's, paired by question."),
        Column("relative", _f64, "", "Difference over the reference's τ."),
        Column("p", _f64, "", "Two-sided bootstrap p-value."),
        Column("p_holm", _f64, "", "The same, Holm over the comparisons of one model, temperature, nodes and metric."),
        Column("detectable", _f64, "tokens", "Smallest difference found at 80 % power, for one comparison."),
        _questions,
        Column("seeds", _i64, "", "Training seeds measured for both."),
        Column("scope", _str, "", "Of what the verdict speaks: these heads, or layers (three seeds or more)."),
        Column("verdict", _str, "", "higher, lower, not distinguishable, or not measured."),
    ),
)

_HOLM_OF_MOVED = "The same, Holm over the moved heads of one layer set, at one temperature, nodes and metric."
TRANSFERS = Table(
    "transfers",
    tuple(
        column._replace(meaning=_HOLM_OF_MOVED) if column.name == "p_holm" else column for column in DIFFERENCES.columns
    ),
)
"""Moved heads against those trained from scratch on their layers: `differences` with another reference."""

_REFERENCE_NODES = Column("reference_nodes", _i32, "tokens", "Size of the reference's drafts, the root counted.")
_OTHERWISE = {
    "nodes": "Most nodes that the drafter verifies at once, the root counted.",
    "reference": "Layer set of the head that it is compared with.",
    "p_holm": "The same, Holm over the drafters of one model, temperature and metric.",
    "seeds": "Seeds compared: of what the drafter draws, or of the head's training.",
}
RIVAL_DIFFERENCES = Table(
    "rival_differences",
    tuple(
        wider
        for column in DIFFERENCES.columns
        for wider in (
            column._replace(meaning=_OTHERWISE.get(column.name, column.meaning)),
            *([_REFERENCE_NODES] if column.name == "reference" else []),
        )
    ),
)
"""Drafters without a head against the reference's head: `differences` across sizes of drafts."""

CATEGORY_ESTIMATES = Table(
    "category_estimates",
    (
        *SET,
        Column("category", _str, "", "Category of the questions."),
        *_interval("tau_pooled", "tokens", "Tokens emitted per cycle."),
        *_interval("tau_question", "tokens", "Mean over questions of tokens per cycle."),
        _questions,
    ),
)

DEPTH_ESTIMATES = Table(
    "depth_estimates",
    (
        *SET,
        Column("draft_depth", _i32, "tokens", "Depth in the draft tree, from 1."),
        *_interval("acceptance", "", "Share of cycles that accepted a token there among those that reached it."),
        *_interval("marginal", "", "Share of cycles that accepted a token there among all whose tree goes that deep."),
        Column("reached", _i64, "cycles", "Cycles that accepted down to the depth before, in a tree that goes on."),
        Column("drafted", _i64, "cycles", "Cycles whose tree goes that deep."),
    ),
)

POSITION_ESTIMATES = Table(
    "position_estimates",
    (
        *SET,
        Column("first_position", _i64, "tokens", "First position, in the answer, at which these cycles begin; from 0."),
        Column("last_position", _i64, "tokens", "Last one."),
        *_interval("tau_pooled", "tokens", "Tokens emitted per cycle."),
        _questions,
        Column("cycles", _i64, "", "Cycles counted."),
    ),
)

POWER_ESTIMATES = Table(
    "power_estimates",
    (
        *SET,
        Column("reference", _str, "", "Layer set that it is compared with."),
        Column("metric", _str, "", "tau_question or tau_pooled."),
        Column("relative", _f64, "", "Difference to be seen, as a share of the reference's τ."),
        Column("effect", _f64, "tokens", "The same as a difference of τ."),
        Column("spread", _f64, "tokens", "Standard deviation over questions of what each adds to the difference."),
        _questions,
        Column(
            "questions_needed",
            _f64,
            "questions",
            "Questions that show it at 80 % power, in one comparison; null where training seeds alone hide it.",
        ),
    ),
)

SPEED_ESTIMATES = Table(
    "speed_estimates",
    (
        *SET,
        *_interval("speed_up", "", "Plain decoding's time per token over the drafter's."),
        Column("draft_share", _f64, "", "Share of the time spent drafting."),
        Column("verify_share", _f64, "", "Share of the time spent verifying."),
        Column("other_share", _f64, "", "Share of the time outside both."),
        Column("tokens_per_s", _f64, "tokens/s", "Tokens per second with the drafter."),
        Column("baseline_tokens_per_s", _f64, "tokens/s", "Tokens per second of plain decoding, interleaved."),
        Column("verify_forwards", _f64, "", "One verification's time in plain forward passes; null without τ."),
        _questions,
    ),
)

CORRELATIONS = Table(
    "correlations",
    (
        *MODEL,
        *SETTING,
        Column("k", _i32, "layers", "Number of layers of the sets."),
        Column("sets", _i64, "", "Layer sets with a score and a measured τ."),
        *_interval("rho", "", "Spearman's ρ of E(S) and tau_question; null below eight sets.", "limit"),
    ),
)

CURVE_RANKS = Table(
    "curve_ranks",
    (
        *MODEL,
        Column("budget", _i64, "tokens", "Budget of the layer curve: simulated length against the single layer."),
        Column("against", _str, "", "What its ranks are compared with: `budget`, a larger one, or `entropy`, S(l)."),
        Column("other_budget", _i64, "tokens", "That larger budget; null for entropy."),
        Column("layers", _i64, "layers", "Single layers measured in both."),
        Column("all_layers", _bool, "", "Whether these are all that were screened, not only those kept."),
        *_interval("rho", "", "Spearman's ρ of the two; null below eight layers.", "limit"),
    ),
)

JOBS = Table(
    "jobs",
    (
        Column("rule", _str, "", "Rule of the workflow."),
        Column("model", _str, "", "Model; null for a job of the whole study."),
        Column("job", _str, "", "The job's place among the measurements."),
        Column("seconds", _f64, "s", "Wall-clock time."),
        Column("cpu_seconds", _f64, "s", "Processor time; null when too short to measure."),
        Column("max_rss_mb", _f64, "MB", "Largest resident memory; null when too short to measure."),
        Column("gpus", _i64, "", "GPUs that the job asked for; null in measurements without resources."),
        Column("gpu_type", _str, "", "Types of GPU in its node; null where there is none, and outside SLURM."),
        Column("node", _str, "", "Node that it ran on; null outside SLURM."),
        Column("slurm_job", _str, "", "SLURM's id of the job; null outside SLURM."),
    ),
)

TARGETS = Table(
    "targets",
    (
        *MODEL,
        Column("architecture", _str, "", "Class of the model."),
        Column("n_layers", _i32, "layers", "Number of decoder blocks, N."),
        Column("width", _i32, "", "Width of the residual stream."),
        Column("vocabulary", _i64, "tokens", "Rows of the embedding."),
        Column("parameters", _i64, "", "Number of weights."),
    ),
)

FACTS = Table(
    "facts",
    (
        Column("model", _str, "", "Model; null for what holds for the study."),
        Column("part", _str, "", "Part of the study: target, summary, statistics or software."),
        Column("key", _str, "", "Name of the fact."),
        Column("value", _str, "", "The fact."),
    ),
)

ESTIMATES = {
    table.name: table
    for table in (
        *(TAU_ESTIMATES, DIFFERENCES, TRANSFERS, RIVAL_DIFFERENCES, CATEGORY_ESTIMATES, DEPTH_ESTIMATES),
        *(POSITION_ESTIMATES, POWER_ESTIMATES),
        *(SPEED_ESTIMATES, CORRELATIONS, CURVE_RANKS, JOBS, TARGETS, FACTS),
    )
}
