"""Time and memory of a dry run of a large study whose layers are chosen: 50 models × 12 selectors × 3 k × 4 settings.

The files before the selection are made up, so that the checkpoints are passed; nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from speclayers.layout import GEOMETRY_TABLES, SPLITS, Layout

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = Layout("large")
SELECTORS = (
    *("beam", "cka_farthest", "elsi", "elsi_c", "entropy_cka", "exhaustive", "lens", "min_entropy", "per_segment"),
    *("random", "uniform", "turning"),
)
SIZES = (1, 2, 3)
LAYERS = 36


def main() -> None:
    """Prepare the study in a temporary folder, dry-run it, and print what that took."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--models", type=int, default=50, help="number of models")
    models = [f"model-{number:02d}" for number in range(arguments.parse_args().models)]
    known = {path.stem for path in (ROOT / "src/speclayers/selection/selectors").glob("[!_]*.py")}
    selectors = [name for name in SELECTORS if name in known]
    selectors += sorted(known - {*selectors, "pinned", "eagle2", "eagle3"})[: len(SELECTORS) - len(selectors)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for link in ("Snakefile", "config.yaml", "rules", "scripts", "envs"):
            (folder / link).symlink_to(ROOT / link)
        (folder / "study.yaml").write_text(json.dumps(study(models, selectors)), encoding="utf-8")
        for model in models:
            choose(folder, model, len(selectors))
        words = ("-m", "snakemake", "-n", "--cores", "2", "--quiet", "rules", "--configfile", "study.yaml")
        start = time.perf_counter()
        done = subprocess.run((sys.executable, *words), cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    jobs = re.findall(r"^total +(\d+)", done.stdout + done.stderr, re.MULTILINE)[0]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(models)} models x {len(selectors)} selectors x {len(SIZES)} k x 4 settings: {jobs} jobs")
    print(f"{seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of processor, {used.ru_maxrss / 1024:.0f} MB")


def study(models: list[str], selectors: list[str]) -> dict[str, object]:
    """Return the study's config."""
    size = {"parameters": 4e9, "layers": LAYERS, "width": 2560, "vocabulary": 151936}
    source = {"kind": "hub", "repo": "made/up"}
    return {
        "study": {"name": LAYOUT.study, "models": models},
        "models": {model: {"source": source, "size": size} for model in models},
        "selection": {"selectors": [{"name": name, "k": list(SIZES)} for name in selectors]},
        "statistics": {"reference": selectors[0]},
        "acceptance": {"temperatures": [0, 1], "nodes": [30, 60]},
    }


def choose(folder: Path, model: str, selectors: int) -> None:
    """Make up what a model has once its layers are chosen: as many sets as there can be, all different."""
    sets = [
        {"layers": [start + step * (k + 1) for step in range(k)], "selectors": ["x"]}
        for k in SIZES
        for start in range(1, selectors + 1)
    ]
    manifest = {"layers": LAYERS, "width": 2560, "vocabulary": 151936, "parameters": 4_000_000_000, "context": 1}
    manifest |= dict.fromkeys(("name", "architecture", "dtype", "tokenizer_hash", "template_hash"), "x")
    manifest |= {"tied": True, "has_chat_template": True, "stop_ids": [], "source": {}, "files": {}}
    manifest |= {"pad_token_id": 0, "revision": None, "licence": None}
    for path, text in (
        (LAYOUT.manifest(model), json.dumps(manifest)),
        *((LAYOUT.corpus(model, split), "") for split in SPLITS),
        (LAYOUT.activations(model), ""),
        *((LAYOUT.geometry(model, table), "") for table in GEOMETRY_TABLES),
        (LAYOUT.selections(model), ""),
        (LAYOUT.selection_trace(model), ""),
        (LAYOUT.heads(model), json.dumps({"heads": sets})),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
