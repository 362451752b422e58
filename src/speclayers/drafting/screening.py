"""Screening: which candidate layers a short training ranks best, by successive halving (see `halving`)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.features import extract
from speclayers.drafting.halving import Judged, Result, Rung, plan_rungs, race
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.training import Trainer
from speclayers.drafting.training_data import (
    TrainingData,
    held_out_rows,
    read_samples,
    sequence_order,
    trained_responses,
)
from speclayers.drafting.training_log import simulated_length
from speclayers.drafting.ttt import ttt_loss
from speclayers.drafting.vocabulary import choose_vocabulary
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.fingerprint import digest
from speclayers.geometry.jackknife import interval
from speclayers.names import Layers, layers_name
from speclayers.specs import ScreenSpec
from speclayers.tables import Origin
from speclayers.targets.target import Target

SINGLE = "single layer"
"""Who proposes a candidate of one layer, beside the selectors."""

logger = logging.getLogger(__name__)


def screen(
    target: Target, corpus: pd.DataFrame, selections: pd.DataFrame, spec: ScreenSpec, origin: Origin, work: Path
) -> pd.DataFrame:
    """Run the race over all candidates; a killed one continues to the same table.

    Args:
        target: The model.
        corpus: Rows of the training corpus.
        selections: Rows of table SELECTIONS; every set in it is a candidate, trained or not.
        spec: Settings.
        origin: Goes into the features' index; its fingerprint is part of their key.
        work: Folder of features, checkpoints and results so far, for the caller to remove.

    Returns:
        The SCREENING table, rung by rung; the last rung's kept candidate has won.

    Raises:
        UserError: A candidate layer does not exist, there are too few candidates or responses, or the loss diverged.
    """
    proposed = candidates(selections, spec.screen.layers, target.n_layers)
    rungs = plan_rungs(len(proposed), spec.screen.budget, spec.screen.keep)
    chosen = choose_responses(target, corpus, spec, rungs[-1].budget)
    wanted = sorted({layer for layers in proposed for layer in layers})
    manifest = work / "features" / "manifest.json"
    stored = extract(target, chosen, wanted, manifest, work / "features-work", origin)
    folder = work / digest(stored.key, *map(layers_name, proposed))
    entrants = _Entrants(target, chosen, FeatureStore([manifest]), spec, rungs, folder)
    results = race(list(proposed), rungs, entrants.judge, entrants.drop, spec.screen.whole_curve)
    judged = chosen.loc[held_out_rows(chosen, spec.draft.held_out), "prompt_id"].nunique()
    return _table(results, proposed, judged)


def candidates(selections: pd.DataFrame, layers: Sequence[int] | None, n_layers: int) -> dict[Layers, str]:
    """Return the candidates, single layers first, each with who proposes it.

    Args:
        selections: Rows of table SELECTIONS.
        layers: Single layers; 1 to N when not given.
        n_layers: N.

    Raises:
        UserError: A layer does not exist, or there are fewer than two candidates.
    """
    singles = range(1, n_layers + 1) if layers is None else sorted(layers)
    beyond = [layer for layer in singles if layer > n_layers]
    if beyond:
        raise UserError(f"screen.layers: layer {beyond[0]} does not exist; the model has layers 0 to {n_layers}")
    proposed: dict[Layers, list[str]] = {(layer,): [SINGLE] for layer in singles}
    chosen = sorted({(tuple(int(x) for x in s), str(n)) for s, n in selections[["layers", "selector"]].to_numpy()})
    for chosen_layers, selector in chosen:
        proposed.setdefault(chosen_layers, []).append(selector)
    if len(proposed) < 2:
        raise UserError("screen.layers: there is one candidate; expected two or more, with the selectors' sets")
    ordered = sorted(proposed, key=lambda found: (len(found), found))
    return {found: ", ".join(proposed[found]) for found in ordered}


def choose_responses(target: Target, corpus: pd.DataFrame, spec: ScreenSpec, budget: int) -> pd.DataFrame:
    """Take the first held-out prompts to judge on, and as many of the other responses as the largest budget asks.

    Responses without a token to draft from are passed over. Where there are too few, learning starts over.

    Returns:
        Rows of the corpus, in its order.

    Raises:
        UserError: There are too few to judge on or learn from, or the first rung ends within the first step.
    """
    tokens = np.array([sample.response_tokens for sample in read_samples(corpus, target, steps=1)], dtype=np.int64)
    held_out = held_out_rows(corpus, spec.draft.held_out)
    judging = _judging(corpus, np.flatnonzero(held_out & (tokens > 0)), spec)
    learnt = np.flatnonzero(~held_out & (tokens > 0))
    if not len(learnt):
        raise UserError(f"draft.held_out: {spec.draft.held_out} leaves no training response to learn from; lower it")
    learnt = learnt[: int(np.searchsorted(tokens[learnt].cumsum(), budget)) + 1]
    first = islice(sequence_order(len(learnt), spec.screen.seed), spec.draft.sequences_per_step)
    least = int(tokens[learnt[list(first)]].sum())
    if spec.screen.budget < least:
        raise UserError(
            f"screen.budget: {spec.screen.budget} tokens are fewer than the {least} of the first step; "
            "raise it, or lower sequences_per_step"
        )
    places = np.sort(np.concatenate([judging, learnt]))
    return corpus.iloc[places].reset_index(drop=True)


def _judging(corpus: pd.DataFrame, held_out: np.ndarray, spec: ScreenSpec) -> np.ndarray:
    """Return which of the held-out places judge: every turn of the first prompts."""
    prompts = corpus["prompt_id"].iloc[held_out]
    first = prompts.unique()[: spec.screen.judged_prompts]
    if len(first) < 2:
        raise UserError(
            f"draft.held_out: {spec.draft.held_out} holds out {len(first)} of {corpus['prompt_id'].nunique()} training "
            "prompts; screening judges on two or more, raise it or corpus.training.count"
        )
    return np.asarray(held_out[prompts.isin(first).to_numpy()])


class _Entrants:
    """Trains and judges the candidates; what is done lies in the folder, and is not done again."""

    def __init__(
        self,
        target: Target,
        corpus: pd.DataFrame,
        store: FeatureStore,
        spec: ScreenSpec,
        rungs: Sequence[Rung],
        folder: Path,
    ) -> None:
        self._target, self._corpus, self._store = target, corpus, store
        self._rungs, self._folder, self._seed = rungs, folder, spec.screen.seed
        self._draft = spec.draft.model_copy(update={"tokens": rungs[-1].budget})
        responses = trained_responses(corpus, spec.draft.held_out)
        self._vocabulary = choose_vocabulary(responses, spec.draft.vocabulary, target.vocabulary, target.stop_ids)

    def judge(self, layers: Layers, rung: Rung) -> Judged:
        """Train a candidate on to a rung's budget and measure it on the held-out responses."""
        name = layers_name(layers)
        path = self._folder / "judged" / f"{rung.number}-{name}.json"
        if not path.exists():
            write_json(path, self._judge(layers, rung)._asdict())
        judged = Judged(**read_json(path))  # read back, so that a continued race takes no other way
        logger.info(
            "rung %d of %d, %s: simulated length %.3f [%.3f, %.3f] after %d tokens",
            *(rung.number + 1, len(self._rungs), name, judged.length, judged.low, judged.high, judged.tokens),
        )
        return judged

    def drop(self, layers: Layers) -> None:
        """Delete what a candidate would have gone on from."""
        shutil.rmtree(self._checkpoints(layers), ignore_errors=True)

    def _judge(self, layers: Layers, rung: Rung) -> Judged:
        ids, steps = self._vocabulary.ids, self._draft.ttt_steps
        data = TrainingData(self._target, self._corpus, self._store, layers, ids, steps)
        learnt, held_out = data.split(self._draft.held_out)
        trainer = self._trainer(layers, learnt)
        trainer.run(until=trainer.steps_of(rung.budget))
        for older in sorted(self._checkpoints(layers).glob("step-*"))[:-1]:
            older.unlink()  # all candidates of a rung keep one at once, which is a lot of space
        table = trainer.table()
        tokens = int(table.loc[table["ttt_step"] == 0, "slots"].sum())
        return Judged(tokens, *held_out_length(*count_correct(trainer.head.eval(), held_out)))

    def _trainer(self, layers: Layers, data: TrainingData) -> Trainer:
        key = self._store.manifest.key
        config = head_config(self._target, self._draft, layers, self._seed, key, self._vocabulary)
        head = new_head(config, self._vocabulary, self._target, self._draft.initialise).to(self._target.device)
        folder = self._checkpoints(layers)
        folder.mkdir(parents=True, exist_ok=True)
        # held-out responses are not for the trainer, which evaluates as it goes: the race judges at its own times
        return Trainer(head, data, self._draft, folder, f"{layers_name(layers)}/{key}")

    def _checkpoints(self, layers: Layers) -> Path:
        return self._folder / "checkpoints" / layers_name(layers)


@torch.no_grad()
def count_correct(head: Eagle3Head, data: TrainingData) -> tuple[np.ndarray, np.ndarray]:
    """Count a head's right best tokens, and all that counted: each (prompts, TTT steps).

    The turns of a conversation are counted together: they are too alike to vary as two.
    """
    counts: dict[str, np.ndarray] = {}
    for index in range(len(data)):
        (reading,) = data.read([index])
        batch = data.batch([reading])
        _, metrics = ttt_loss(head, batch.sequences, batch.targets, decay=1.0)
        found = np.array([[round((m.accuracy or 0.0) * m.slots), m.slots] for m in metrics])
        prompt = reading.sample.prompt_id
        counts[prompt] = counts.get(prompt, np.zeros_like(found)) + found
    both = np.stack(list(counts.values()))
    return both[..., 0], both[..., 1]


def held_out_length(correct: np.ndarray, slots: np.ndarray) -> tuple[float, float, float]:
    """Return the simulated acceptance length over some prompts, with 95 % limits by the jackknife over them.

    Args:
        correct: (prompts, TTT steps) right best tokens; two prompts or more.
        slots: (prompts, TTT steps) slots that counted; at step 0 more than none in each prompt.
    """

    def length(right: np.ndarray, counted: np.ndarray) -> float:
        return simulated_length([r / c if c else None for r, c in zip(right.tolist(), counted.tolist(), strict=True)])

    value = length(correct.sum(axis=0), slots.sum(axis=0))
    without = np.array(
        [length(correct.sum(0) - r, slots.sum(0) - c) for r, c in zip(correct, slots, strict=True)], dtype=np.float64
    )
    low, high = interval(np.array(value), without, slots[:, 0])
    return value, float(low), float(high)


def _table(results: Iterable[Result], proposed: dict[Layers, str], judged: int) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "candidate": layers_name(result.layers),
            "layers": list(result.layers),
            "proposed_by": proposed[result.layers],
            "rung": result.rung.number,
            "budget": result.rung.budget,
            "tokens": result.judged.tokens,
            "simulated_length": result.judged.length,
            "ci_low": result.judged.low,
            "ci_high": result.judged.high,
            "responses": judged,
            "in_race": result.in_race,
            "kept": result.kept,
        }
        for result in results
    ]
    return pd.DataFrame(rows)


def winner(model: str, table: pd.DataFrame) -> dict[str, Any]:
    """Return who won, as the workflow reads it.

    Args:
        model: Name of the model.
        table: Rows of table SCREENING.
    """
    last = table[table["kept"] & (table["rung"] == table["rung"].max())].iloc[0]
    return {"model": model, "layers": [int(layer) for layer in last["layers"]]}
