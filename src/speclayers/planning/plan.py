"""The plan of a study: its jobs before any has run, and what they take together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speclayers.config import Study, TrainedSource
from speclayers.files import read_json
from speclayers.fingerprint import rival_jobs
from speclayers.layout import SPLITS, Layout
from speclayers.names import TOP_LAYER, HeadName, PretrainedName, RivalName, layers_name, temperature_name
from speclayers.planning import constants as known
from speclayers.planning.constants import GPU, HOST, PROCESSOR
from speclayers.planning.cost import Cost
from speclayers.planning.costs import Costs
from speclayers.planning.fanout import (
    LAYERS_A_PASS,
    LayerSet,
    Run,
    acceptance_runs,
    most_sets,
    moved_heads,
    pretrained_heads,
    rival_runs,
    searched_rivals,
    speed_runs,
    timed_rival_runs,
    trained_heads,
    trained_rivals,
)


class Job(NamedTuple):
    """A job: its rule and wildcards, and what it takes."""

    stage: str
    model: str
    cost: Cost


class Line(NamedTuple):
    """The jobs of one stage of one model together.

    Args:
        stage: Their rule.
        model: The model; empty for jobs of the whole study.
        jobs: Their number, at most.
        hours: Of all of them, one after the other.
        gpu_hours: The same, each hour counted once for every GPU.
        memory_mb: Largest memory of one.
        disk_mb: What they leave.
        work_mb: What one needs on disk while it runs.
    """

    stage: str
    model: str
    jobs: int
    hours: float
    gpu_hours: float
    memory_mb: float
    disk_mb: float
    work_mb: float


@dataclass(frozen=True)
class Plan:
    """What a study takes.

    Args:
        lines: A line for each model and stage, in the order in which they run.
        assumptions: What was taken for granted, a sentence each.
    """

    lines: tuple[Line, ...]
    assumptions: tuple[str, ...]

    @property
    def total(self) -> Line:
        """All jobs together."""
        return _line("total", "", self.lines)

    @property
    def disk_mb(self) -> float:
        """Disk that the study needs at most: for what its jobs leave, and for the one that needs most meanwhile."""
        return self.total.disk_mb + self.total.work_mb


def plan_study(study: Study, layout: Layout) -> Plan:
    """Return the plan of a study, whether or not some of its jobs have run.

    Args:
        study: Its config.
        layout: Where its results lie: sizes of fetched models and chosen layers are read there.

    Raises:
        UserError: A manifest or a list of heads is broken.
    """
    costs = Costs(study, layout)
    jobs = list(_models_jobs(costs))
    for model in study.study.models:
        jobs += _jobs(costs, model)
    jobs += [Job(stage, "", costs.of(stage, {})) for stage in ("aggregate_study", "render_report")]
    together: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        together.setdefault((job.model, job.stage), []).append(job)
    lines = tuple(_line(stage, model, map(_of_job, found)) for (model, stage), found in together.items())
    return Plan(lines, tuple(_assumptions(costs)))


def _of_job(job: Job) -> Line:
    hours = job.cost.seconds / 3600
    cost = job.cost
    return Line(job.stage, job.model, 1, hours, hours * cost.gpus, cost.memory_mb, cost.disk_mb, cost.work_mb)


def _line(stage: str, model: str, lines: Iterable[Line]) -> Line:
    jobs, hours, gpu_hours, memory, disk, work = zip(*(line[2:] for line in lines), strict=True)
    return Line(stage, model, sum(jobs), sum(hours), sum(gpu_hours), max(memory), sum(disk), max(work))


def _models_jobs(costs: Costs) -> Iterator[Job]:
    """Yield the jobs that give the models: teachers first, which a study need not name."""
    study = costs.study
    sources = {model: study.models[model].source for model in study.study.models}
    teachers = [source.teacher for source in sources.values() if isinstance(source, TrainedSource)]
    for model in dict.fromkeys((*teachers, *sources)):
        trained = isinstance(study.models[model].source, TrainedSource)
        for stage in ("build_teacher", "make_tiny_model") if trained else ("fetch_model",):
            yield Job(stage, model, costs.of(stage, {"model": model}))


def chosen_sets(study: Study, layout: Layout, model: str) -> tuple[list[LayerSet], bool]:
    """Return the layer sets to train on, and whether they are known; if not, as many as there can be at most."""
    path = Path(layout.heads(model))
    if path.exists():
        heads = read_json(path)["heads"]
        return [LayerSet(tuple(head["layers"]), tuple(head["selectors"])) for head in heads], True
    return most_sets(study, model), False


def _jobs(costs: Costs, model: str) -> Iterator[Job]:
    """Yield the jobs of one model, as many as there can be at most where its layers are not chosen yet."""
    study = costs.study

    def job(stage: str, **wildcards: object) -> Job:
        return Job(stage, model, costs.of(stage, {"model": model, **{k: str(v) for k, v in wildcards.items()}}))

    yield from (job("build_corpus", split=split) for split in SPLITS)
    yield job("dump_activations")
    shards = study.geometry.shards
    yield from (job("accumulate_gram", shard=shard) for shard in range(shards if shards > 1 else 0))
    yield from (job(stage) for stage in ("measure_geometry", "sweep_filter", "select_layers"))
    sets, _ = chosen_sets(study, costs.layout, model)
    if study.draft.features == "cached" and sets:
        layers = min(sum(len(chosen.layers) for chosen in sets), costs.size(model).layers)
        passes = math.ceil(layers / LAYERS_A_PASS)
        share = layers_name(list(range(math.ceil(layers / passes))))
        yield from (job("extract_features", layers=share) for _ in range(passes))
    if study.screen is not None:
        yield job("screen_layers")
        won = (costs.size(model).layers,)
        sets = [*sets, LayerSet(won, ("screen",))]
        yield from [job("extract_features", layers=layers_name(won))] if study.draft.features == "cached" else []
    heads = trained_heads(study, sets) + moved_heads(study, sets)
    trained = trained_rivals(study, model)
    yield from [job("extract_features", layers=TOP_LAYER)] if study.draft.features == "cached" and trained else []
    yield from (job("train_draft", head=head) for head in heads)
    yield from (job("train_medusa", rival=rival) for rival in trained)
    foreign = pretrained_heads(study, model)
    yield from (job("import_draft", name=entry) for entry in dict.fromkeys(head.entry for head in foreign))
    yield from (job("continue_draft", percent=head.percent) for head in foreign if head.percent)
    measured: list[HeadName | PretrainedName] = [*heads, *foreign]
    ranges = range(study.acceptance.shards)
    yield from (
        job("decode_baseline", temperature=temperature_name(t)) for t in study.acceptance.temperatures for _ in ranges
    )
    yield from (job("measure_acceptance", **_setting(run)) for run in acceptance_runs(study, measured) for _ in ranges)
    yield from (job("measure_speed", **_setting(run)) for run in speed_runs(study, measured))
    yield from (job("search_skips", rival=run) for run in searched_rivals(study, model))
    for run in rival_runs(study, model):
        kind = RivalName.parse(str(run.head)).kind
        jobs = rival_jobs(kind, study.acceptance.shards)
        yield from (job("measure_rival", rival=run.head, temperature=run.temperature) for _ in range(jobs))
    for run in timed_rival_runs(study, model):
        yield job("time_rival", rival=run.head, temperature=run.temperature)
    yield job("summarise_model")


def _setting(run: Run) -> dict[str, object]:
    return {"head": run.head, "temperature": run.temperature, "nodes": run.nodes}


def _assumptions(costs: Costs) -> Iterator[str]:
    study = costs.study
    for model in study.study.models:
        size = costs.size(model)
        yield (
            f"{model}: {size.parameters / 1e6:,.0f} million weights, {size.layers} layers, width {size.width},"
            f" vocabulary {size.vocabulary:,} ({size.known_from})"
        )
        sets, are_known = chosen_sets(study, costs.layout, model)
        what = "chosen" if are_known else "at most, selectors × k × seeds: fewer where selectors agree"
        yield f"{model}: {len(sets)} layer sets to train on ({what})"
    yield "every answer is as long as it may be; hours are those of jobs one after the other, finished ones included"
    yield (
        f"a processor's job: one core, {PROCESSOR.forward_flops / 1e9:.0f} GFLOP/s forward,"
        f" {PROCESSOR.training_flops / 1e9:.0f} in training, as measured in the default study"
    )
    if any(config.device != "cpu" for config in map(study.models.__getitem__, study.study.models)):
        yield (
            f"a GPU's job: {GPU.forward_flops / 1e12:.0f} TFLOP/s forward, {GPU.training_flops / 1e12:.0f} in training,"
            f" {GPU.layer_seconds * 1e3:.1f} ms a layer and pass: not measured, so the hours are a guess"
        )
    if any(study.models[model].source.kind == "hub" for model in study.study.models):
        yield f"downloads at {HOST.network_bytes / 1e6:.0f} MB/s"
    yield f"{known.TOKENS_A_CYCLE} tokens a verification"


def lines_of_text(plan: Plan, free_mb: float) -> Iterator[str]:
    """Yield the plan as text.

    Args:
        plan: The plan.
        free_mb: Free space where the results go.
    """
    rows: list[tuple[str, ...]] = [("model", "stage", "jobs", "hours", "GPU-hours", "memory", "disk")]
    rows += [_row(line) for line in (*plan.lines, plan.total)]
    yield from _aligned(rows)
    yield ""
    yield from (f"- {sentence}" for sentence in plan.assumptions)
    yield ""
    yield f"Disk: {_gigabytes(plan.disk_mb)} while it runs, {_gigabytes(plan.total.disk_mb)} stay."
    if plan.disk_mb > free_mb:
        yield f"warning: only {_gigabytes(free_mb)} are free where the results go"


def _row(line: Line) -> tuple[str, ...]:
    hours = (f"{line.hours:.2f}", f"{line.gpu_hours:.2f}" if line.gpu_hours else "-")
    return line.model, line.stage, str(line.jobs), *hours, _gigabytes(line.memory_mb), _gigabytes(line.disk_mb)


def _gigabytes(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
