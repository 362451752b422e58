"""A made-up study: every table that the stages before the analysis write, small, valid and seeded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from speclayers import tables
from speclayers.analysis.study import Study, build_study, read_study
from speclayers.analysis.summary import ModelResults, Run, write_summary
from speclayers.analysis.warehouse import new_database
from speclayers.config import StatisticsConfig
from speclayers.drafting.halving import Judged, Rung, plan_rungs, race
from speclayers.files import write_json
from speclayers.layout import Layout
from speclayers.names import PRETRAINED, HeadName, PretrainedName, ShapeName, layers_name
from speclayers.specs import AggregateSpec
from speclayers.tables import Origin, write_table
from speclayers.targets.manifest import Manifest, read_manifest

CATEGORIES = ("writing", "translation", "summarization", "qa", "math_reasoning", "rag")
STUDY = "made-up"
RIVAL_NODES = 7
UNSKIPPED = (None, None, 0.0, 0, None)
"""What a cycle's row holds of skipped layers where a head drafts."""


@dataclass(frozen=True)
class MadeUpModel:
    """What is made up of one model.

    Args:
        name: Name of the model.
        n_layers: Decoder blocks.
        sets: Layer set of each selector, all trained.
        effects: Probability of acceptance of each selector's set; 0.6 where not given.
        train_seeds: One head per seed and set.
        seed_spread: Standard deviation of acceptance between training seeds.
        temperatures: Temperatures measured.
        nodes: Tree sizes measured.
        chains: Sizes of chains measured, the root counted.
        questions: Questions, spread over the categories; none when 0.
        skipped: Questions that are too long for it.
        different_turns: Turns at T=0 whose ids differ from plain decoding's.
        pinned: Sets of the selector `pinned`, chosen and not trained.
        dtype: Precision of the forward passes.
        moved: Selector whose heads are moved, selector whose layers they get, per cent of training that follows.
        pretrained: Layers of heads trained elsewhere, by the rest of their names: published, published.p10.s0.
        rivals: Probability of acceptance of drafters without a head, which draft six tokens in a row, by their names.
        screened: Whether its layers were screened; alone, deeper layers draft better, so the last one wins.
        whole_curve: Whether that trained the single layers to every budget.
    """

    name: str
    n_layers: int = 12
    sets: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {
            "eagle3": (2, 6, 9),
            "elsi": (4, 8, 11),
            "min_entropy": (1, 2, 3),
        }
    )
    effects: Mapping[str, float] = field(default_factory=lambda: {"min_entropy": 0.45})
    train_seeds: Sequence[int] = (0,)
    seed_spread: float = 0.0
    temperatures: Sequence[float] = (0.0, 1.0)
    nodes: Sequence[int] = (30,)
    chains: Sequence[int] = ()
    questions: int = 12
    skipped: int = 0
    different_turns: int = 0
    pinned: Sequence[Sequence[int]] = ()
    dtype: str = "float32"
    moved: Sequence[tuple[str, str, int]] = ()
    pretrained: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rivals: Mapping[str, float] = field(default_factory=dict)
    screened: bool = False
    whole_curve: bool = True


def origin(model: str) -> Origin:
    return Origin(model=model, fingerprint="0123456789abcdef")


def layout(root: Path) -> Layout:
    return Layout(STUDY, str(root))


def write_model(root: Path, made_up: MadeUpModel) -> ModelResults:
    """Write one model's results and return where they lie."""
    rng = np.random.default_rng(sum(map(ord, made_up.name)))
    where = layout(root)
    write_json(Path(where.manifest(made_up.name)), _manifest(made_up).model_dump(mode="json"))
    _write_geometry(where, made_up, rng)
    _write_selections(where, made_up)
    heads, acceptance, speed, baselines = {}, {}, {}, {}
    if made_up.questions:
        for temperature in made_up.temperatures:
            baselines[temperature] = _write_baseline(where, made_up, temperature)
        for name, layers, probability in _named_heads(made_up, rng):
            head = str(name)
            heads[head] = _write_head(where, made_up, head, layers, name.seed, rng)
            for temperature in made_up.temperatures:
                for shape in [*((n, False) for n in made_up.nodes), *((n, True) for n in made_up.chains)]:
                    run = Run(head, temperature, *shape)
                    acceptance[run] = _write_acceptance(where, made_up, run, probability, rng)
                    timed = name.seed in (None, made_up.train_seeds[0]) and not getattr(name, "start", ())
                    if temperature == 0 and timed:
                        speed[run] = _write_speed(where, made_up, run, rng)
        for rival, probability in made_up.rivals.items():
            for temperature in made_up.temperatures:
                run = Run(rival, temperature, RIVAL_NODES)
                acceptance[run] = _write_acceptance(where, made_up, run, probability, rng)
                if temperature == 0:
                    speed[run] = _write_speed(where, made_up, run, rng)
    return ModelResults(
        model=made_up.name,
        dtype=made_up.dtype,
        manifest=_manifest(made_up),
        geometry=Path(where.geometry(made_up.name, "cka")).parent,
        selections=Path(where.selections(made_up.name)),
        heads=heads,
        acceptance=acceptance,
        baselines=baselines,
        speed=speed,
        screening=_write_screening(where, made_up) if made_up.screened else None,
    )


def _named_heads(
    made_up: MadeUpModel, rng: np.random.Generator
) -> Iterator[tuple[HeadName | PretrainedName, Sequence[int], float]]:
    """Yield every head, its layers and its probability of acceptance.

    A moved head loses 0.4 and regains it with training.
    """
    for selector, layers in made_up.sets.items():
        for seed in made_up.train_seeds:
            name = HeadName(layers=tuple(layers), seed=seed)
            yield name, layers, made_up.effects.get(selector, 0.6) + rng.normal(0, made_up.seed_spread)
    for start, end, percent in made_up.moved:
        for seed in made_up.train_seeds:
            layers = tuple(made_up.sets[end]), tuple(made_up.sets[start])
            name = HeadName(layers=layers[0], seed=seed, start=layers[1], percent=percent)
            yield name, layers[0], made_up.effects.get(end, 0.6) - 0.4 * (1 - percent / 50)
    for name, own in made_up.pretrained.items():
        yield PretrainedName.parse(f"{PRETRAINED}{name}"), own, made_up.effects.get(name, 0.6)


def write_study(root: Path, *models: MadeUpModel, resamples: int = 500, benchmarks: bool = True) -> dict[str, Any]:
    """Write all models' results and summaries; return the arguments of `build_study`, the connection aside."""
    where = layout(root)
    summaries, manifests = {}, {}
    for made_up in models:
        results = write_model(root, made_up)
        folder = Path(where.summary(made_up.name, "runs")).parent
        write_summary(results, folder, origin(made_up.name))
        summaries[made_up.name] = folder
        manifests[made_up.name] = read_manifest(Path(where.target(made_up.name)))
        if benchmarks:
            write_benchmarks(where, made_up.name, next(iter(results.heads), ""))
    statistics = StatisticsConfig(resamples=resamples)
    return {
        "summaries": summaries,
        "manifests": manifests,
        "benchmarks": Path(where.root) / "benchmarks" if benchmarks else None,
        "spec": AggregateSpec(study=STUDY, statistics=statistics),
        "fingerprint": "fedcba9876543210",
    }


def made_up_study(root: Path, *models: MadeUpModel, **settings: Any) -> Study:
    """Write all models' results, build the database `study.duckdb` in `root` and read it."""
    with new_database(root / "study.duckdb", threads=1) as connection:
        build_study(connection, **write_study(root, *models, **settings))
        return read_study(connection)


def write_benchmarks(where: Layout, model: str, head: str) -> None:
    """Write measurements as Snakemake does, one of them of a job too short to sample, some of jobs no longer needed."""
    for rule, wildcards, seconds, rss in (
        ("build_corpus", (model,), 91.5, 1203.2),
        ("train_draft", (model, head), 340.1, 2210.0),
        ("train_draft", (model, "eagle3.l01.s99"), 5.0, 2210.0),
        ("decode_baseline", (model, "T0.123"), 6.0, 100.0),
        ("build_corpus", ("dropped",), 7.0, 100.0),
        ("fetch_model", (model,), 0.2, "NA"),
    ):
        if "" in wildcards:
            continue
        path = Path(where.benchmark(rule, *wildcards))
        path.parent.mkdir(parents=True, exist_ok=True)
        cpu = "NA" if rss == "NA" else seconds * 1.6
        path.write_text(json.dumps({"s": seconds, "h:m:s": "0:00:00", "max_rss": rss, "cpu_time": cpu}) + "\n")


def _manifest(made_up: MadeUpModel) -> Manifest:
    return Manifest(
        name=made_up.name,
        source={"kind": "hub", "repo": "made/up", "revision": "main"},
        revision="0" * 40,
        files={"config.json": "a" * 64, "model.safetensors": "b" * 64},
        architecture="LlamaForCausalLM",
        layers=made_up.n_layers,
        width=64,
        vocabulary=512,
        parameters=1_000_000,
        dtype="float32",
        context=2048,
        tied=True,
        tokenizer_hash="c" * 64,
        template_hash="d" * 64,
        has_chat_template=True,
        pad_token_id=0,
        stop_ids=[2],
        licence="apache-2.0",
    )


# ---------------------------------------------------------------- geometry and selection


def _wave(n_layers: int, subset: str, sinks_kept: bool) -> np.ndarray:
    depth = np.linspace(0, 1, n_layers + 1)
    wave = 4.5 - 2.2 * np.exp(-(((depth - 0.25) / 0.12) ** 2)) + 0.6 * depth - 0.9 * (depth > 0.97)
    wave -= {"all": 0.0, "filtered": 0.15, "random": 0.03}[subset]
    return np.where(depth > 0.4, 0.2, wave) if sinks_kept else wave


def _write_geometry(where: Layout, made_up: MadeUpModel, rng: np.random.Generator) -> None:
    n = made_up.n_layers
    entropy = []
    for subset in ("all", "filtered", "random"):
        for sinks_kept in (False, True):
            for alpha in (1.0, 2.0):
                wave = _wave(n, subset, sinks_kept) * (1.0 if alpha == 1 else 0.8)
                for sample in [None, *(f"p{i}" for i in range(4))]:
                    values = wave + (0 if sample is None else rng.normal(0, 0.2, n + 1) - 0.3)
                    for layer, value in enumerate(values):
                        pooled = sample is None
                        entropy.append(
                            (layer, subset, sinks_kept, alpha, "centre", sample, 900 if pooled else 40, value)
                            + (value / np.log(900 if pooled else 40), value / np.log(64 if pooled else 40), None)
                            + ((value - 0.05, value + 0.05, 80.0) if pooled else (None, None, None))
                        )
    _write(where, made_up.name, "entropy", tables.ENTROPY, entropy)
    _write_pairs(where, made_up)
    score = np.full(n, 0.02)
    score[[2, n - 2]] = 0.5
    turning = [(layer, score[layer], layer in (2, n - 2), int(layer > 2) + int(layer > n - 2)) for layer in range(n)]
    _write(where, made_up.name, "turning", tables.TURNING, turning)
    effect = [
        (segment, 40, 0.04, filtered, 0.05, 1 - filtered / 0.04, low, high, 1 - filtered / 0.05, low, high + 0.1)
        for segment, filtered, low, high in (
            ("first", 0.03, 0.1, 0.4),
            ("middle", 0.045, -0.3, 0.06),
            ("last", 0.041, -0.2, 0.15),
        )
    ]
    _write(where, made_up.name, "filter_effect", tables.FILTER_EFFECT, effect)
    _write_sweep(where, made_up)
    lens = [(layer, 256, 9.0 - 0.6 * layer, 8.8 - 0.6 * layer, 9.2 - 0.6 * layer) for layer in range(n + 1)]
    _write(where, made_up.name, "lens", tables.LENS, lens)
    waves = _wave(n, "filtered", False)
    steps = [
        (layer, blocks, 30 * blocks, waves[layer] * (1 - 0.4 / blocks), None if layer == n else 0.9 - 0.1 / blocks)
        for blocks in (2, 4, 8)
        for layer in range(n + 1)
    ]
    _write(where, made_up.name, "convergence", tables.CONVERGENCE, steps)


def _write_sweep(where: Layout, made_up: MadeUpModel) -> None:
    n = made_up.n_layers
    points = [(scope, share) for scope in ("per_prompt", "pooled") for share in (0.1, 0.3, 1.0)] + [("absolute", 0.42)]
    both = [(*point, subset) for point in points for subset in ("filtered", "random")]
    sweep = [
        (*point, segment, 40, int(1280 * point[1]), 2.0 + point[1], value, value - 0.004, value + 0.004)
        for point in both
        for segment, value in (("first", 0.05 - 0.02 * point[1]), ("middle", 0.03), ("last", 0.04))
    ]
    _write(where, made_up.name, "filter_sweep", tables.FILTER_SWEEP, sweep)
    sets = [
        (*point, 900, len(layers), list(layers))
        for point in both
        for layers in ((n,), (2, n - 2 if point[1] < 0.2 else n - 1, n))
    ]
    _write(where, made_up.name, "filter_sets", tables.FILTER_SETS, sets)


def _write_pairs(where: Layout, made_up: MadeUpModel) -> None:
    n = made_up.n_layers
    cka, gram = [], []
    for subset in ("all", "filtered", "random"):
        for a in range(n + 1):
            for b in range(n + 1):
                same_block = (a > 2) == (b > 2) and (a > n - 2) == (b > n - 2)
                value = 1.0 if a == b else (0.97 if same_block else 0.45) - 0.01 * abs(a - b)
                for estimator in ("debiased", "biased"):
                    shown = value if estimator == "debiased" else min(1.0, value + 0.02)
                    cka.append((a, b, estimator, subset, 900, shown, shown - 0.02, shown + 0.02))
                gram.append((a, b, subset, None, None, value * 0.02))
    _write(where, made_up.name, "cka", tables.CKA, cka)
    _write(where, made_up.name, "gram", tables.GRAM, gram)


def _write(where: Layout, model: str, name: str, table: tables.Table, rows: list[tuple]) -> None:
    frame = pd.DataFrame(rows, columns=[column.name for column in table.columns])
    write_table(Path(where.geometry(model, name)), table, frame, origin(model))


def _steps(layers: tuple[int, ...]) -> list[dict[str, object]]:
    """Return the steps of a search that adds one layer after the other."""
    found = [list(layers[:size]) for size in range(1, len(layers) + 1)]
    return [
        {"action": f"add {own[-1]}", "layers": own, "value": 3.0 + place, "note": "E(S), the highest"}
        for place, own in enumerate(found)
    ]


def _write_selections(where: Layout, made_up: MadeUpModel) -> None:
    rows = [
        {
            "selector": selector,
            "k": len(layers),
            "seed": 0,
            "layers": list(layers),
            "trained": True,
            "score": 4.0 + 0.1 * np.mean(layers),
            "runner_up": json.dumps([{"layers": [1, 2], "score": 3.9}]),
            "trace": json.dumps(_steps(layers)),
            "stability": json.dumps({str(layer): 0.8 for layer in layers}),
            "half_sample_set": list(layers),
            "reason": f"highest E(S) among {made_up.n_layers} layers",
        }
        for selector, layers in made_up.sets.items()
    ]
    rows.append(rows[0] | {"selector": "uniform", "trained": False})
    rows += [
        rows[0]
        | {
            "selector": "pinned",
            "k": len(layers),
            "layers": list(layers),
            "half_sample_set": list(layers),
            "trained": False,
        }
        for layers in made_up.pinned
    ]
    write_table(Path(where.selections(made_up.name)), tables.SELECTIONS, pd.DataFrame(rows), origin(made_up.name))


def _write_screening(where: Layout, made_up: MadeUpModel) -> Path:
    def judge(layers: tuple[int, ...], rung: Rung) -> Judged:
        length = 1.3 + 0.05 * float(np.mean(layers)) + 0.1 * rung.number
        return Judged(rung.budget + 7, length, length - 0.2, length + 0.2)

    singles = [(layer,) for layer in range(1, made_up.n_layers + 1)]
    sets = list(dict.fromkeys([*singles, *(tuple(layers) for layers in made_up.sets.values())]))
    rungs = plan_rungs(len(sets), 1000, 0.5)
    results = race(sets, rungs, judge, lambda layers: None, made_up.whole_curve)
    proposed = [("single layer" if len(r.layers) == 1 else "elsi", r.rung.number, r.rung.budget) for r in results]
    rows = [
        (layers_name(r.layers), list(r.layers), *by, *r.judged, 16, r.in_race, r.kept)
        for r, by in zip(results, proposed, strict=True)
    ]
    path = Path(where.screening(made_up.name))
    frame = pd.DataFrame(rows, columns=[column.name for column in tables.SCREENING.columns])
    write_table(path, tables.SCREENING, frame, origin(made_up.name))
    return path


# ---------------------------------------------------------------- heads, acceptance, speed


def _write_head(
    where: Layout, made_up: MadeUpModel, head: str, layers: Sequence[int], seed: int | None, rng: np.random.Generator
) -> Path:
    path = Path(where.head(made_up.name, head, "training.parquet"))
    config = {"layers": list(layers), "seed": seed or 0, "draft_vocabulary": 128, "coverage": 0.93}
    write_json(path.parent / "config.json", config | {"target_hash": _manifest(made_up).target_hash})
    if seed is None:  # as it came: how it was trained is not known
        return path.parent
    rows = []
    for step in range(1, 101):
        accuracies = [0.45 * (1 - np.exp(-step / 30)) * 0.85**j + rng.normal(0, 0.01) for j in range(3)]
        length = 1 + float(np.cumprod(accuracies).sum())
        loss = 9 * np.exp(-step / 40) + 3
        for j, accuracy in enumerate(accuracies):
            rows.append((step, step / 50, "train", j, loss + 0.3 * j, accuracy, accuracy, length, 150))
        if step % 50 == 0:
            for j, accuracy in enumerate(accuracies):
                held_out = (loss + 0.5 + 0.3 * j, 0.8 * accuracy, 0.8 * accuracy, 0.9 * length, 150)
                rows.append((step, step / 50, "held_out", j, *held_out))
    frame = pd.DataFrame(rows, columns=[column.name for column in tables.TRAINING.columns])
    write_table(path, tables.TRAINING, frame, origin(made_up.name))
    return path.parent


def _turns(made_up: MadeUpModel) -> list[tuple[int, str, int]]:
    found = []
    for question in range(made_up.questions):
        category = CATEGORIES[question % len(CATEGORIES)]
        found += [(question, category, turn) for turn in range(2 if category == "writing" else 1)]
    return found


def _answer(question: int, turn: int) -> list[int]:
    return np.random.default_rng((question, turn)).integers(3, 512, size=40).tolist()


def _write_baseline(where: Layout, made_up: MadeUpModel, temperature: float) -> Path:
    rows = []
    for question, category, turn in _turns(made_up):
        ids = _answer(question, turn)
        rows.append(
            (question, category, turn, [1, 2, 3], 50, 2048, ids, [2.0] * len(ids), None if temperature else True)
        )
    rows += [
        (900 + i, "rag", 0, [1] * 3000, 3047, 2048, [], [], None) for i in range(0 if temperature else made_up.skipped)
    ]
    frame = pd.DataFrame(rows, columns=[column.name for column in tables.BASELINE.columns])
    path = Path(where.baseline(made_up.name, str(temperature)))
    write_table(path, tables.BASELINE, frame, origin(made_up.name))
    return path


def _write_acceptance(
    where: Layout, made_up: MadeUpModel, run: Run, probability: float, rng: np.random.Generator
) -> Path:
    cycles, turns = [], []
    for place, (question, category, turn) in enumerate(_turns(made_up)):
        ids = _answer(question, turn)
        ease = np.random.default_rng(question).normal(0, 0.08) - 0.05 * run.temperature
        left, cycle = len(ids), 0
        while left:
            reached = int(np.argmin(np.append(rng.random(6) < probability + ease, False)))
            emitted = min(reached + 1, left)
            cut = emitted < reached + 1
            cycles.append((question, category, turn, cycle, run.nodes - 1, reached, emitted, cut, 6, 6, 6, *UNSKIPPED))
            left, cycle = left - emitted, cycle + 1
        differs = run.temperature == 0 and place < made_up.different_turns
        ids = [*ids[:5], 1, *ids[6:]] if differs else ids
        greedy = None if run.temperature else not differs
        margin = (5, 2.0) if differs else (None, None)
        turns.append((question, category, turn, 3, len(ids), cycle, greedy, *margin, ids))
    paths = {}
    for name, table, rows in (("cycles", tables.CYCLES, cycles), ("turns", tables.TURNS, turns)):
        frame = pd.DataFrame(rows, columns=[column.name for column in table.columns])
        paths[name] = Path(
            where.acceptance(made_up.name, run.drafter, str(run.temperature), ShapeName(run.nodes, run.chain), name)
        )
        write_table(paths[name], table, frame, origin(made_up.name))
    return paths["cycles"].parent


def _write_speed(where: Layout, made_up: MadeUpModel, run: Run, rng: np.random.Generator) -> Path:
    rows = []
    for question, category, turn in _turns(made_up):
        draft, verify, other, plain = np.array([0.8, 2.5, 0.05, 2.2]) * rng.uniform(0.9, 1.1, 4)
        rows.append((question, category, turn, draft, verify, other, draft + verify + other, plain, 40, 40))
    frame = pd.DataFrame(rows, columns=[column.name for column in tables.SPEED.columns])
    path = Path(where.speed(made_up.name, run.drafter, str(run.temperature), ShapeName(run.nodes, run.chain)))
    write_table(path, tables.SPEED, frame, origin(made_up.name))
    return path
