"""Give our answer files to Spec-Bench's own `speed` and `equal`, and compare what they say with our tables.

    python -m tests.oracles.by_hand.spec_bench --checkout DIR --study spec_bench_sample --model smollm2-135m \
        --head eagle3.l02-l15-l27.s0 --nodes 30

The checkout is of https://github.com/hemingkx/Spec-Bench at fd2c1cd; nothing of it is kept. The study must have timed
as many new tokens a turn as it counted. Three things are compared, and the exit status is 1 where one differs:

- mean accepted tokens, overall and by category, with τ pooled over verifications in `study.duckdb`;
- tokens per second, which is a mean over questions there, and the ratio to plain decoding's, with the speed table.
  Theirs counts plain decoding's tokens by encoding its text again, less one for the token that Llama puts in front;
- whether all texts equal plain decoding's, with `identical_to_greedy`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pandas as pd
from transformers import AutoTokenizer

from speclayers.analysis.drafters import parse_drafter
from speclayers.corpus.questions import CATEGORIES
from speclayers.layout import Layout

ROOT = Path(__file__).parents[3]


def module(checkout: Path, name: str) -> ModuleType:
    """Load a file of its folder `evaluation`."""
    spec = importlib.util.spec_from_file_location(name, checkout / "evaluation" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def write(options: argparse.Namespace, folder: Path, *words: str) -> tuple[Path, Path]:
    """Write both answer files with the script that everyone uses."""
    place = ("--study", options.study, "--model", options.model, "--head", options.head, "--nodes", options.nodes)
    command = [sys.executable, ROOT / "scripts" / "write_answers.py", *place, *words, "--output", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    drafted, plain = map(Path, done.stdout.split())
    return drafted, plain


def lines(path: Path) -> list[dict[str, Any]]:
    """Read an answer file back."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Compare, one line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="checkout of hemingkx/Spec-Bench")
    for name in ("study", "model", "head", "nodes"):
        parser.add_argument(f"--{name}", required=True, help=f"the run's {name}; temperature is 0")
    options = parser.parse_args()
    layout = Layout(options.study)
    setting = f"model = '{options.model}' and layer_set = '{parse_drafter(options.head).layer_set}' and temperature = 0"
    setting += f" and nodes = {options.nodes.removesuffix('c')}"
    with duckdb.connect(layout.database, read_only=True) as database:
        overall = database.sql(f"select tau_pooled from acceptance_summary where {setting}").fetchall()
        by_category = database.sql(f"select category, tau_pooled from category_estimates where {setting}").fetchall()
    taus = {**dict(by_category), "overall": overall[0][0]}
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drafted, plain = write(options, folder)
        timed, timed_plain = write(options, folder / "timed", "--timed")
        speed, equal = module(options.checkout, "speed").speed, module(options.checkout, "equal").run_compare
        tokenizer = layout.target(options.model)
        with_times = _with_times(drafted, folder / "all.jsonl"), _with_times(plain, folder / "all-plain.jsonl")
        for task in (*CATEGORIES, "overall"):
            if task in taus:
                lengths = speed(*map(str, with_times), tokenizer, task=task, report=False)[3]
                found.append((f"mean accepted tokens, {task}", taus[task], sum(lengths) / len(lengths)))
        theirs = speed(str(timed), str(timed_plain), tokenizer, task="overall", report=False)
        table = pd.read_parquet(layout.speed(options.model, options.head, "0", options.nodes))
        names = ("tokens/s", "plain tokens/s", "speed-up")
        found += list(zip(names, _speeds(table, timed_plain, tokenizer), theirs[:3], strict=True))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            equal(f"{folder}/", drafted.name, plain.name)
        turns = pd.read_parquet(layout.acceptance(options.model, options.head, "0", options.nodes, "turns"))
        found.append(
            ("texts equal", float(turns["identical_to_greedy"].all()), float("totally Equal" in said.getvalue()))
        )
    agree = True
    for figure, ours, their in found:
        same = abs(ours - their) <= 1e-9 * max(abs(ours), 1)
        print(json.dumps({"figure": figure, "ours": ours, "spec_bench": float(their), "agree": bool(same)}))
        agree = agree and same
    sys.exit(not agree)


def _with_times(path: Path, copy: Path) -> Path:
    """Copy an answer file with a second a turn, which `speed` divides by: only accept lengths are read from it then."""
    rows = lines(path)
    for row in rows:
        row["choices"][0]["wall_time"] = [1.0] * len(row["choices"][0]["turns"])
    copy.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return copy


def _speeds(table: pd.DataFrame, plain: Path, folder: str) -> tuple[float, float, float]:
    """Return tokens per second with the drafter and plainly, and their ratio, as Spec-Bench defines them."""
    sums = table.groupby("question_id")[["new_tokens", "wall_s", "baseline_wall_s"]].sum()
    drafted = float((sums["new_tokens"] / sums["wall_s"]).mean())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = {row["question_id"]: row["choices"][0]["turns"] for row in lines(plain)}
    counted = pd.Series({q: sum(len(tokenizer(text).input_ids) - 1 for text in turns) for q, turns in texts.items()})
    ours = float((counted / sums["baseline_wall_s"]).mean())
    return drafted, ours, drafted / ours


if __name__ == "__main__":
    main()
