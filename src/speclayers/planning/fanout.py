"""Which drafters a study makes and which runs it makes of them: models × layer sets × seeds × temperatures × nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from speclayers.config import MOST_STEPS, AcceptanceConfig, ReplicaSettings, RivalConfig, SpeedConfig, Study
from speclayers.errors import UserError
from speclayers.fingerprint import rival_needs
from speclayers.names import HeadName, Layers, PretrainedName, RivalName, ShapeName, temperature_name

LAYERS_A_PASS = 40
"""Layers that one run of the target stores at most: their names are one file name."""


class LayerSet(NamedTuple):
    """A layer set to train heads on, as in the selection's heads.json, and the selectors that chose it."""

    layers: Layers
    selectors: tuple[str, ...]


class Run(NamedTuple):
    """A run of a drafter at a setting, as it is named in paths."""

    head: HeadName | PretrainedName | RivalName
    temperature: str
    nodes: ShapeName


def shapes(settings: AcceptanceConfig | ReplicaSettings | SpeedConfig) -> list[ShapeName]:
    """Return the trees and chains that some settings ask for."""
    trees = [ShapeName(nodes) for nodes in settings.nodes]
    return [*trees, *(ShapeName(tokens + 1, chain=True) for tokens in settings.chains)]


def trained_heads(study: Study, sets: Iterable[LayerSet]) -> list[HeadName]:
    """Return the heads of some layer sets, one a seed."""
    return [HeadName(layers=chosen.layers, seed=seed) for chosen in sets for seed in study.draft.seeds]


def moved_heads(study: Study, sets: Sequence[LayerSet]) -> list[HeadName]:
    """Return the heads that keep one set's weights on another set's layers, where the study asks for them."""
    if study.transfer is None:
        return []
    starts = [chosen.layers for chosen in sets if study.transfer.start in chosen.selectors]
    ends = [chosen.layers for chosen in sets if set(study.transfer.to) & set(chosen.selectors)]
    return [
        HeadName(layers=end, seed=seed, start=start, percent=percent)
        for start in starts
        for end in ends
        if end != start
        for seed in study.draft.seeds
        for percent in study.transfer.percents
    ]


def pretrained_heads(study: Study, model: str) -> list[PretrainedName]:
    """Return the heads from elsewhere that draft for a model, as they came and trained on, the latter one a seed."""
    return [
        PretrainedName(entry, percent, seed)
        for entry, head in study.pretrained.items()
        if head.model == model
        for percent in head.percents
        for seed in (study.draft.seeds if percent else (None,))
    ]


def acceptance_runs(study: Study, heads: Iterable[HeadName | PretrainedName]) -> list[Run]:
    """Return all runs that are counted: a replica only where replicas are wanted."""
    settings = study.acceptance
    replicas = settings.replicas or settings
    return [
        Run(head, temperature_name(temperature), nodes)
        for head in heads
        for temperature in settings.temperatures
        for nodes in shapes(settings)
        if head.seed in (None, study.draft.seeds[0])
        or (temperature in replicas.temperatures and nodes in shapes(replicas))
    ]


def speed_runs(study: Study, heads: Iterable[HeadName | PretrainedName]) -> list[Run]:
    """Return all runs that are timed."""
    return [
        Run(head, temperature_name(temperature), nodes)
        for head in heads
        if head.seed is None or head.seed in study.speed.seeds
        if not (isinstance(head, HeadName) and head.start)  # moving a head changes no shape, so no time either
        for temperature in study.speed.temperatures
        for nodes in shapes(study.speed)
    ]


def rival_runs(study: Study, model: str) -> list[Run]:
    """Return all runs of a model's drafters without heads that are counted; each has trees of its own size."""
    temperatures = [temperature_name(temperature) for temperature in study.acceptance.temperatures]
    chosen = _rivals_of(study, model)
    return [Run(run, t, ShapeName(rival.nodes)) for rival in chosen for run in rival.runs() for t in temperatures]


def _rivals_of(study: Study, model: str) -> list[RivalConfig]:
    return [rival for rival in study.rivals if rival.models is None or model in rival.models]


def trained_rivals(study: Study, model: str) -> list[RivalName]:
    """Return the names of those of a model's rivals that have weights to train.

    Raises:
        UserError: There is no such drafter, or its settings are none of a training.
    """
    names = list[RivalName]()
    for rival in _rivals_of(study, model):
        label = rival.runs()[0].label
        if "weights" in rival_needs(rival.name):
            if rival.draft_length > MOST_STEPS:
                raise UserError(
                    f"rivals.{label}.draft_length: {rival.draft_length} heads are more than the {MOST_STEPS} steps "
                    "that can be trained"
                )
            names += rival.runs()
        elif rival.training is not None:
            raise UserError(f"rivals.{label}.training: this drafter has nothing to train; leave it out")
    return names


def timed_rival_runs(study: Study, model: str) -> list[Run]:
    """Return those that are timed: of a drafter's seeds the first."""
    first = {rival.runs()[0] for rival in study.rivals}
    temperatures = {temperature_name(temperature) for temperature in study.speed.temperatures}
    return [run for run in rival_runs(study, model) if run.head in first and run.temperature in temperatures]


def searched_rivals(study: Study, model: str) -> list[RivalName]:
    """Return the runs of a model's drafters without heads for which layers to skip are searched first."""
    runs = dict.fromkeys(run.head for run in rival_runs(study, model))
    return [run for run in runs if isinstance(run, RivalName) and "skipped" in rival_needs(run.kind)]


def most_sets(study: Study, model: str) -> list[LayerSet]:
    """Return as many layer sets as the selectors can choose at most: selectors × k × seeds, all different.

    Which layers they hold is not known before the selection has run: these are numbered from 1 on instead.
    """
    found: list[LayerSet] = []
    for selector in study.selection.selectors:
        if not selector.train or (selector.models is not None and model not in selector.models):
            continue
        for k in selector.k:
            listed = [layers for layers in selector.options.get("sets", ()) if len(layers) == k]
            for _ in range(len(listed) or len(selector.seeds)):  # a selector of listed sets chooses all of them
                start = 1 + sum(len(other.layers) for other in found)
                found.append(LayerSet(tuple(range(start, start + k)), (selector.name,)))
    return found
