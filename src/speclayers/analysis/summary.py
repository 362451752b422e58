"""One model's results united: every stage's table with the keys that place its rows in the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from speclayers import tables
from speclayers.analysis.drafters import PRETRAINED_KIND, DrafterName, parse_drafter
from speclayers.analysis.schemas import ORIGIN, SUMMARIES
from speclayers.decoding.exactness import compare
from speclayers.decoding.skipping import answered, skipped
from speclayers.errors import UserError
from speclayers.files import read_json
from speclayers.tables import Origin, Table, read_origin, read_table, write_table
from speclayers.targets.manifest import Manifest


class Run(NamedTuple):
    """An acceptance or speed run: drafter and setting."""

    drafter: str
    temperature: float
    nodes: int
    chain: bool = False


@dataclass(frozen=True)
class ModelResults:
    """Where one model's results lie.

    Args:
        model: Name of the model.
        dtype: Precision of its forward passes: exactness is gated in float32 only.
        manifest: What the fetched target is.
        geometry: Folder of the geometry tables.
        selections: Table of the chosen layer sets.
        heads: Folder of each head, heads trained elsewhere among them.
        acceptance: Folder of each acceptance run.
        baselines: Plain decoding's table at each temperature; that of 0 says which questions were skipped.
        speed: Table of each timed run.
        screening: Table of the screening, where the study has one.
    """

    model: str
    dtype: str
    manifest: Manifest
    geometry: Path
    selections: Path
    heads: Mapping[str, Path] = field(default_factory=dict)
    acceptance: Mapping[Run, Path] = field(default_factory=dict)
    baselines: Mapping[float, Path] = field(default_factory=dict)
    speed: Mapping[Run, Path] = field(default_factory=dict)
    screening: Path | None = None

    def name(self, drafter: str) -> DrafterName:
        """Take a drafter's name apart; what a head trained elsewhere reads stands in its config.

        Raises:
            UserError: It is no drafter's name, or that head's config is missing or broken.
        """
        name = parse_drafter(drafter)
        if name.kind != PRETRAINED_KIND:
            return name
        if drafter not in self.heads:
            raise UserError(f"--head: none for {drafter}, which was measured")
        return name._replace(layers=list(read_json(self.heads[drafter] / "config.json")["layers"]))


EXACTNESS_COUNTS = ("identical", "ties", "different", "as_generate")


class Exactness(NamedTuple):
    """How many turns equal plain greedy decoding, ours and transformers' generate; None where that is not asked.

    `median_margin` is of plain decoding's top-2 logit gaps where turns first differ; NaN where none does.
    """

    identical: int | None
    ties: int | None
    different: int | None
    as_generate: int | None
    median_margin: float
    verdict: str


def write_summary(results: ModelResults, output: Path, origin: Origin) -> None:
    """Write one Parquet file for each of layout.SUMMARY_TABLES.

    Args:
        results: Where the results lie.
        output: Folder to write to.
        origin: Goes into each file's metadata.

    Raises:
        UserError: A result is missing, broken, incomplete, or does not belong to this target.
    """
    for name, frame in _summaries(results):
        write_table(output / f"{name}.parquet", SUMMARIES[name], frame, origin)


def _summaries(results: ModelResults) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, table in tables.GEOMETRY.items():
        frame = _of_model(results.geometry / f"{name}.parquet", table, results.model)
        if name == "gram":
            frame = frame[frame["block_a"].isna()]  # pairs of blocks serve the selection's half-samples only
        yield f"geometry_{name}", frame.assign(model=results.model)
    path = results.screening
    screening = _of_model(path, tables.SCREENING, results.model) if path else None
    yield "selections", _selections(results, screening)
    parts = [] if screening is None else [screening.assign(model=results.model)]
    yield "screening", _united(parts, SUMMARIES["screening"])
    yield from _head_tables(results)
    yield from _acceptance_tables(results)
    parts = [_keyed(read_table(path, tables.SPEED), results, run.drafter, run) for run, path in results.speed.items()]
    yield "speed", _united(parts, SUMMARIES["speed"])


def _of_model(path: Path, table: Table, model: str) -> pd.DataFrame:
    """Read a table that must be this model's."""
    frame = read_table(path, table)
    if (found := read_origin(path).get("model")) != model:
        raise UserError(f"{path}: is of model {found}, expected {model}")
    return frame


SCREEN = "screen"
"""What the screening is called among the selectors."""


def _selections(results: ModelResults, screening: pd.DataFrame | None) -> pd.DataFrame:
    """Return what the selectors chose and, beside them, what the screening left."""
    frame = _of_model(results.selections, tables.SELECTIONS, results.model)
    if screening is not None:
        frame = pd.concat([frame, _screened(screening, frame)], ignore_index=True)
    for selector, layers in zip(frame["selector"], frame["layers"], strict=True):
        if len(layers) and max(layers) > results.manifest.layers:
            raise UserError(
                f"{results.selections}: selector {selector} chose layer {max(layers)},"
                f" but {results.model} has {results.manifest.layers}"
            )
    return frame.assign(model=results.model)


def _screened(screening: pd.DataFrame, selections: pd.DataFrame) -> pd.DataFrame:
    """Return the winner of a screening as a selection; E(S) is known where a selector chose the same set."""
    last = screening[screening["rung"] == screening["rung"].max()]
    won = last[last["kept"]].iloc[0]
    same = selections[[list(layers) == list(won["layers"]) for layers in selections["layers"]]]
    reason = (
        f"won the screening of {(screening['rung'] == 0).sum()} candidates: simulated length"
        f" {won['simulated_length']:.3f} on {won['responses']} held-out prompts after {won['tokens']} tokens"
    )
    layers = won["layers"]
    row = {"selector": SCREEN, "k": len(layers), "seed": 0, "layers": layers, "trained": True, "reason": reason}
    row |= {
        "score": same["score"].max(),
        "runner_up": "[]",
        "stability": "{}",
        "half_sample_set": layers,
        "trace": "[]",
    }
    return pd.DataFrame([row]).astype({"k": "int32", "score": "float64"})


def _united(parts: list[pd.DataFrame], table: Table) -> pd.DataFrame:
    if parts:
        return pd.concat(parts, ignore_index=True)
    nothing: pd.DataFrame = table.schema.empty_table().to_pandas()
    return nothing


def _keyed(frame: pd.DataFrame, results: ModelResults, drafter: str, run: Run | None = None) -> pd.DataFrame:
    """Add the key columns of a drafter, and of its setting, to every row."""
    name = results.name(drafter)
    keys: dict[str, Any] = {
        "model": results.model,
        "drafter": drafter,
        "layers": pd.Series([name.layers] * len(frame), index=frame.index, dtype=object),
        "k": pd.Series([None if name.layers is None else len(name.layers)] * len(frame), index=frame.index).astype(
            "Int32"
        ),
        "train_seed": pd.Series([name.seed] * len(frame), index=frame.index).astype("Int64"),
    }
    if run is not None:
        keys |= {"temperature": run.temperature, "nodes": run.nodes}
    return frame.assign(**keys)


def _origin_columns(path: Path) -> dict[str, str | None]:
    found = read_origin(path)
    return {column.name: found.get(column.name) for column in ORIGIN}


# ---------------------------------------------------------------- heads


def _head_tables(results: ModelResults) -> Iterator[tuple[str, pd.DataFrame]]:
    heads, curves = [], []
    for drafter, folder in results.heads.items():
        config = read_json(folder / "config.json")
        _check_target(folder / "config.json", config, results)
        if results.name(drafter).kind == PRETRAINED_KIND and results.name(drafter).seed is None:
            continue  # as it came: how it was trained is not known
        training = read_table(folder / "training.parquet", tables.TRAINING)
        curves.append(_keyed(training, results, drafter))
        row = _final(training) | _origin_columns(folder / "training.parquet")
        row |= {key: config.get(key) for key in ("draft_vocabulary", "coverage")}
        heads.append(_keyed(pd.DataFrame([row]), results, drafter))
    yield "heads", _united(heads, SUMMARIES["heads"])
    yield "training", _united(curves, SUMMARIES["training"])


def _check_target(path: Path, config: Mapping[str, Any], results: ModelResults) -> None:
    found, expected = config.get("target_hash"), results.manifest.target_hash
    if found is not None and found != expected:
        raise UserError(
            f"{path}: target_hash {found[:12]}… is not that of {results.model} ({expected[:12]}…); train the head again"
        )


def _final(training: pd.DataFrame) -> dict[str, Any]:
    """Take the last evaluation on held-out responses; without one, the mean over the last tenth of the steps."""
    steps = np.unique(training["step"])
    held_out = training[training["split"] == tables.HELD_OUT]
    split = tables.TRAIN if held_out.empty else tables.HELD_OUT
    counted = np.unique(held_out["step"])[-1:] if len(held_out) else steps[-max(1, len(steps) // 10) :]
    last = training[(training["split"] == split) & training["step"].isin(counted)]
    by_ttt_step = last.groupby("ttt_step")[["loss", "accuracy"]].mean()
    return {
        "steps": int(steps.max()) if steps.size else 0,
        "final_split": split,
        "final_loss": by_ttt_step["loss"].to_list(),
        "final_accuracy": by_ttt_step["accuracy"].to_list(),
        "simulated_length": last["simulated_length"].mean(),
    }


# ---------------------------------------------------------------- acceptance


def _acceptance_tables(results: ModelResults) -> Iterator[tuple[str, pd.DataFrame]]:
    all_turns, all_cycles, runs = [], [], []
    plain = {t: read_table(path, tables.BASELINE) for t, path in results.baselines.items()}
    baselines = {t: answered(frame) for t, frame in plain.items()}
    for run, folder in results.acceptance.items():
        turns = read_table(folder / "turns.parquet", tables.TURNS)
        cycles = read_table(folder / "cycles.parquet", tables.CYCLES)
        if run.temperature not in baselines:
            raise UserError(f"--baseline: none for temperature {run.temperature}, which {folder} was measured at")
        _check_complete(folder / "turns.parquet", turns, baselines[run.temperature])
        counts = exactness(folder / "turns.parquet", turns, baselines[run.temperature], run.temperature, results.dtype)
        name = results.name(run.drafter)
        row = {
            "kind": name.kind,
            "layer_set": name.layer_set,
            "chain": run.chain,
            "turns": len(turns),
            "questions": turns["question_id"].nunique(),
            "new_tokens": turns["new_tokens"].sum(),
            "median_margin": counts.median_margin,
            "exactness": counts.verdict,
        } | _origin_columns(folder / "cycles.parquet")
        frame = pd.DataFrame([row]).assign(
            **{key: pd.array([getattr(counts, key)], dtype="Int64") for key in EXACTNESS_COUNTS}
        )
        runs.append(_keyed(frame, results, run.drafter, run))
        all_turns.append(_keyed(turns, results, run.drafter, run))
        all_cycles.append(_keyed(cycles, results, run.drafter, run))
    yield "turns", _united(all_turns, SUMMARIES["turns"])
    yield "cycles", _united(all_cycles, SUMMARIES["cycles"])
    yield "runs", _united(runs, SUMMARIES["runs"])
    parts = [skipped(plain[0.0])] if 0.0 in plain else []
    columns = [column.name for column in SUMMARIES["skipped_questions"].columns]
    listed = [part.assign(model=results.model, prompt_tokens=part["prompt_ids"].map(len)) for part in parts]
    yield "skipped_questions", _united(listed, SUMMARIES["skipped_questions"])[columns]


def _check_complete(path: Path, turns: pd.DataFrame, baseline: pd.DataFrame) -> None:
    """Refuse a run that answered other turns than plain decoding did."""
    answered, asked = (set(zip(f["question_id"], f["turn"], strict=True)) for f in (turns, baseline))
    if len(answered) != len(turns):
        raise UserError(f"{path}: holds a turn twice; delete it and run again")
    if answered != asked:
        question, turn = min(answered ^ asked)
        where = "is missing" if (question, turn) in asked else "was not asked in plain decoding"
        raise UserError(f"{path}: question {question} turn {turn} {where}; delete it and run again")


def exactness(path: Path, turns: pd.DataFrame, baseline: pd.DataFrame, temperature: float, dtype: str) -> Exactness:
    """Count anew, from the token ids, which turns equal plain greedy decoding.

    Args:
        path: Where the turns were read, for messages.
        turns: Rows of an acceptance run.
        baseline: Plain decoding's rows for the same turns.
        temperature: Above 0 nothing is compared.
        dtype: Precision of the forward passes; below float32 differences are expected.

    Raises:
        UserError: The run's own count says otherwise.
    """
    if temperature > 0:
        return Exactness(None, None, None, None, float("nan"), "not applicable")
    plain = {(row["question_id"], row["turn"]): row for row in baseline.to_dict("records")}
    identical = ties = different = as_generate = 0
    margins = []
    for row in turns.to_dict("records"):
        question, turn = row["question_id"], row["turn"]
        expected = plain[question, turn]
        agreement = compare(row["output_ids"], expected["output_ids"], expected["top2_margin"])
        if agreement.identical != bool(row["identical_to_greedy"]):
            raise UserError(
                f"{path}: question {question} turn {turn}: identical_to_greedy is"
                f" {row['identical_to_greedy']}, but the ids say otherwise; delete it and run again"
            )
        margins += [] if agreement.margin is None else [agreement.margin]
        identical += agreement.identical
        as_generate += agreement.identical and bool(expected["equals_generate"])
        ties += agreement.tie
        different += not (agreement.identical or agreement.tie)
    if dtype == "float32":
        verdict = "different" if different else "ties" if ties else "exact"
    else:
        verdict = "exact" if identical == len(turns) else "diverges"
    asked = baseline["equals_generate"].notna().all()
    median = float(np.median(margins)) if margins else float("nan")
    return Exactness(identical, ties, different, as_generate if asked else None, median, verdict)
