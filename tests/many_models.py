"""A made-up study of many models and its page, to see how the page looks when a study is large.

    python -m tests.many_models --models 20 --output build/many

Every table that the stages before the analysis write is made up (`tests.synthetic`), and the stages of the analysis run
on them as in any study. Models differ in depth (8 to 48 blocks) and in what their layers yield; among them are names of
forty letters, a model without acceptance runs, one with a single set, one whose answers differ from plain decoding's,
one in bfloat16, one that was screened, chains, skipped questions and moved heads.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from speclayers.analysis.report import page, write_report
from speclayers.analysis.twin import write_twin
from speclayers.files import write_text
from tests.synthetic import MadeUpModel, made_up_study

SEED = 0
LONG = "a-name-of-exactly-forty-characters-12345"
ODD: dict[int, dict[str, object]] = {
    1: {"name": LONG, "screened": True, "nodes": (30, 60), "chains": (6,)},
    2: {"questions": 0},
    3: {"different_turns": 2, "skipped": 3},
    4: {"dtype": "bfloat16", "different_turns": 1},
    5: {"moved": (("eagle3", "elsi", 10),)},
    6: {"train_seeds": (0, 1, 2), "seed_spread": 0.01},
}


def many_models(count: int) -> Iterator[MadeUpModel]:
    """Yield so many models, the same ones at every call."""
    rng = np.random.default_rng(SEED)
    for place in range(count):
        n = int(rng.integers(8, 49))
        draw = [tuple(sorted(rng.choice(np.arange(1, n + 1), 3, replace=False).tolist())) for _ in range(3)]
        sets = {"eagle3": (2, n // 2, n - 3), "elsi": draw[0], "elsi_c": draw[1], "random": draw[2]}
        sets |= {"min_entropy": (1, 2, 3), "max_entropy": (n,)}
        effects = {name: 0.6 + rng.normal(0, 0.04) for name in sets} | {"min_entropy": 0.48}
        odd = ODD.get(place, {})
        if place == 7:
            sets = {"eagle3": sets["eagle3"]}
        settings = {"name": f"model-{place:02d}-of-{n}-blocks", "sets": sets, "effects": effects, "n_layers": n}
        yield MadeUpModel(**settings | odd)  # the last word has what is odd


def main() -> None:
    """Write the study and its page."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--models", type=int, default=20, help="number of models")
    arguments.add_argument("--output", type=Path, required=True, help="folder to write")
    arguments.add_argument("--page-only", action="store_true", help="no figures as files, which take most of the time")
    args = arguments.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    study = made_up_study(args.output, *many_models(args.models))
    if args.page_only:
        write_text(args.output / "report.html", page(study))
    else:
        write_report(study, args.output / "report.html", args.output / "figures")
    write_twin(study, *(args.output / name for name in ("summary.md", "comparison.tex", "comparison.csv")))


if __name__ == "__main__":
    main()
