"""Searching attention and MLPs to skip: calibration prompts are answered with each set that is tried.

Source: Self-SD (arXiv 2309.08168), whose objective is time; passes repeat exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from optuna.distributions import CategoricalDistribution

from speclayers.config import SkipSearch
from speclayers.decoding.clock import clock_for
from speclayers.decoding.loop import Cycle, speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.sampling import GREEDY
from speclayers.decoding.turns import Room, position_limit
from speclayers.drafting.drafter import Drafter
from speclayers.drafting.sublayers import BayesianSearch, Sublayers
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.fingerprint import digest
from speclayers.tables import SKIP_SEARCH
from speclayers.targets.skipping import Skipped, require_skippable
from speclayers.targets.target import Target

LOG_EVERY = 10

logger = logging.getLogger(__name__)

Row = dict[str, Any]
"""A row of table SKIP_SEARCH, as JSON holds it."""


class Searched(NamedTuple):
    """Whom a search is for.

    Args:
        key: Where the config speaks of it.
        build: Builds the drafter that skips a set.
        free: Blocks that may be skipped, counted from 1.
        seed: Seed of the search.
        settings: How much is tried, and what is made small.
    """

    key: str
    build: Callable[[Skipped], Drafter]
    free: Sequence[int]
    seed: int
    settings: SkipSearch


def search_skips(target: Target, corpus: pd.DataFrame, searched: Searched, work: Path) -> pd.DataFrame:
    """Try sets of attention and MLPs to skip: first none, then every second block, then what the search proposes.

    Every set tried is a file in `work`, so that a killed search continues to the same table.

    Args:
        target: The model.
        corpus: Rows of the calibration corpus, whose prompts are answered.
        searched: Whom the search is for.
        work: Folder of the sets tried, for the caller to remove.

    Returns:
        Table SKIP_SEARCH.

    Raises:
        UserError: The target cannot be run without single parts, there are too few prompts, or no verification of
            their answers is whole.
    """
    require_skippable(target, parts=True)
    settings, sublayers = searched.settings, Sublayers(searched.free)
    prompts = _prompts(target, corpus, searched)
    if settings.objective == "time":
        _answer(target, searched.build(Skipped()), prompts[:1], settings)  # first calls allocate and compile
    search = BayesianSearch(sublayers.names, CategoricalDistribution((0.0, 1.0)), searched.seed)
    first = [Skipped(), Skipped.blocks(searched.free[1::2])]
    trials: list[Row] = []
    tried: set[Skipped] = set()
    for number in range(settings.trials):
        skipped = first[number] if number < len(first) else sublayers.above(search.ask())
        row = _kept(
            work, skipped, lambda s: _row(s, _answer(target, searched.build(s), prompts, settings), searched, target)
        )
        search.tell(sublayers.point(skipped), -row[_OBJECTIVES[settings.objective]])
        if skipped in tried:
            row["search_layer_forwards"] = 0.0
        tried.add(skipped)
        trials.append({"trial": number} | row)
        if (number + 1) % LOG_EVERY == 0 or number + 1 == settings.trials:
            best = min(trial[_OBJECTIVES[settings.objective]] for trial in trials)
            logger.info("%s: %d of %d trials, best %.3f", searched.key, number + 1, settings.trials, best)
    return _table(trials, settings)


_OBJECTIVES = {"layer_forwards": "layer_forwards_per_token", "time": "seconds_per_token"}
"""Column that an objective makes small."""


def chosen(table: pd.DataFrame) -> dict[str, Any]:
    """Return the best set of table SKIP_SEARCH, as the drafter reads it, and what finding it took."""
    row = table[table["best"]].iloc[-1]
    parts = {name: [int(block) for block in row[name]] for name in ("skipped_attention", "skipped_mlp")}
    return parts | {
        "trial": int(row["trial"]),
        "trials": len(table),
        "layer_forwards_per_token": float(row["layer_forwards_per_token"]),
        "search_layer_forwards": float(table["search_layer_forwards"].sum()),
    }


def _prompts(target: Target, corpus: pd.DataFrame, searched: Searched) -> list[list[int]]:
    """Return the first calibration prompts that the model has room for."""
    wanted, room = searched.settings.prompts, _room(searched.build(Skipped()), searched.settings)
    limit = position_limit(target)
    rows = zip(corpus["input_ids"], corpus["response_start"], strict=True)
    prompts = [[int(token) for token in ids[:start]] for ids, start in rows if room.positions(int(start)) <= limit]
    if len(prompts) < wanted:
        raise UserError(
            f"{searched.key}.options.prompts: found {wanted}, but {len(prompts)} calibration prompts leave room for "
            f"{room.budget} tokens; lower it, or raise corpus.calibration.count"
        )
    return prompts[:wanted]


def _room(drafter: Drafter, settings: SkipSearch) -> Room:
    return Room(budget=settings.new_tokens, depth=drafter.depth, rows=drafter.rows)


class _Answers(NamedTuple):
    """Cycles of the answers to all prompts, and the time that they took where it is measured."""

    prompts: int
    cycles: list[Cycle]
    seconds: float | None


def _answer(target: Target, drafter: Drafter, prompts: Sequence[list[int]], settings: SkipSearch) -> _Answers:
    room, clock, cycles = _room(drafter, settings), clock_for(target.device), list[Cycle]()
    for prompt in prompts:
        passes = TargetPasses(target, room.capacity(len(prompt)), drafter.rows)
        cycles += speculate(passes, drafter, prompt, room.budget, GREEDY, torch.Generator(), clock).cycles
    timed = settings.objective == "time"
    return _Answers(len(prompts), cycles, sum(clock.seconds().values()) if timed else None)


def _row(skipped: Skipped, answers: _Answers, searched: Searched, target: Target) -> Row:
    cycles = answers.cycles
    whole = [cycle for cycle in cycles if not cycle.cut_by_budget]  # as in τ: else long chains would look worse
    if not whole:
        raise UserError(
            f"{searched.key}.options.new_tokens: within {searched.settings.new_tokens} tokens of an answer no "
            "verification ends; raise it, or use other calibration prompts"
        )

    def passes(of: Sequence[Cycle]) -> float:
        return sum(cycle.layer_forwards + target.n_layers for cycle in of)

    tokens = sum(cycle.emitted for cycle in cycles)
    return {
        "skipped_attention": sorted(skipped.attention),
        "skipped_mlp": sorted(skipped.mlp),
        "tokens": tokens,
        "cycles": len(cycles),
        "accepted": sum(cycle.accepted for cycle in cycles),
        "layer_forwards_per_token": passes(whole) / sum(cycle.emitted for cycle in whole),
        "seconds_per_token": None if answers.seconds is None else answers.seconds / tokens,
        "search_layer_forwards": passes(cycles) + answers.prompts * target.n_layers,
    }


def _kept(work: Path, skipped: Skipped, compute: Callable[[Skipped], Row]) -> Row:
    path = work / f"{digest(str(sorted(skipped.attention)), str(sorted(skipped.mlp)))}.json"
    if not path.exists():
        write_json(path, compute(skipped))
    row: Row = read_json(path)  # also what was just computed, so that a continued search takes no other way
    return row


def _table(trials: Sequence[Row], settings: SkipSearch) -> pd.DataFrame:
    costs = np.array([trial[_OBJECTIVES[settings.objective]] for trial in trials])
    before = np.minimum.accumulate(np.concatenate([[np.inf], costs]))[:-1]
    rows = [trial | {"best": bool(better)} for trial, better in zip(trials, costs < before, strict=True)]
    return pd.DataFrame(rows, columns=[column.name for column in SKIP_SEARCH.columns], dtype=object)
