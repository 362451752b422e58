"""Where the study's numbers come from, and what its jobs cost."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from speclayers.errors import UserError
from speclayers.specs import AggregateSpec
from speclayers.tables import read_origin
from speclayers.targets.manifest import Manifest

SOFTWARE = ("duckdb", "numpy", "pandas", "scipy", "altair", "vl-convert-python")


def read_jobs(folder: Path, models: Collection[str], runs: Mapping[str, Collection[tuple[str, ...]]]) -> pd.DataFrame:
    """Read what Snakemake measured of the study's jobs, `rule/wildcards….jsonl`, one JSON object a line.

    Measurements stay when a study no longer needs their jobs; those are left out.

    Args:
        folder: Root of the measurements.
        models: Names of the study's models, and of those that others learnt from.
        runs: By rule, the wildcards of the jobs of heads and settings that the study has: of these rules no other
            jobs count.

    Raises:
        UserError: The folder is missing or a line is no JSON.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: folder of job measurements is missing")

    def counts(path: Path) -> bool:
        rule, *wildcards = (*path.relative_to(folder).parent.parts, path.name.removesuffix(".jsonl"))
        if rule in runs:
            return any(tuple(wildcards[: len(run)]) == run for run in runs[rule])
        return wildcards[0] in {*models, WHOLE_STUDY}

    paths = [path for path in sorted(folder.rglob("*.jsonl")) if counts(path)]
    return pd.DataFrame([row for path in paths for row in _jobs(path, folder, models)])


WHOLE_STUDY = "all"
"""What stands in a path in place of wildcards."""


def _jobs(path: Path, folder: Path, models: Collection[str]) -> Iterator[dict[str, Any]]:
    rule, *wildcards = path.relative_to(folder).with_suffix("").parts
    model = next((name for name in wildcards if name in models), None)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            seconds = float(record["s"])
            resources = record.get("resources", {})
            ran_on = json.loads(resources.get("ran_on", "{}"))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: line {number} is no measurement of a job; delete the file") from None
        yield {
            "rule": rule,
            "model": model,
            "job": "/".join(wildcards) or rule,
            "seconds": seconds,
            "cpu_seconds": _number(record.get("cpu_time")),
            "max_rss_mb": _number(record.get("max_rss")),
            "gpus": resources.get("gpu", 0) if "resources" in record else None,
            **{key: ran_on.get(key) for key in ("gpu_type", "node", "slurm_job")},
        }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None  # "NA" for jobs too short to sample


def targets_frame(manifests: Mapping[str, Manifest]) -> pd.DataFrame:
    """Return the sizes of the targets, one row a model."""
    return pd.DataFrame(
        [
            {
                "model": model,
                "architecture": manifest.architecture,
                "n_layers": manifest.layers,
                "width": manifest.width,
                "vocabulary": manifest.vocabulary,
                "parameters": manifest.parameters,
            }
            for model, manifest in manifests.items()
        ]
    )


def facts_frame(
    manifests: Mapping[str, Manifest], summaries: Mapping[str, Path], spec: AggregateSpec, fingerprint: str
) -> pd.DataFrame:
    """Return versions, hashes, seeds and settings, one row a fact.

    Args:
        manifests: What each fetched target is.
        summaries: Folder of each model's summary.
        spec: Settings of the statistics.
        fingerprint: Fingerprint of the aggregation.

    Raises:
        UserError: A summary is missing.
    """
    rows: list[tuple[str | None, str, str, Any]] = [(None, "study", "name", spec.study)]
    rows.append((None, "study", "fingerprint", fingerprint))
    rows += [(None, "statistics", key, value) for key, value in spec.statistics.model_dump().items()]
    rows += [(None, "software", name, version(name)) for name in SOFTWARE]
    rows.append((None, "software", "python", platform.python_version()))
    for model, manifest in manifests.items():
        rows += [(model, "target", key, value) for key, value in _target_facts(manifest)]
    for model, folder in summaries.items():
        rows += [(model, "summary", key, value) for key, value in read_origin(folder / "runs.parquet").items()]
    kept = [row for row in rows if row[2] not in ("ARROW:schema", "pandas")]
    frame = pd.DataFrame(kept, columns=["model", "part", "key", "value"])
    return frame.assign(value=frame["value"].map(str))


def _target_facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "source", json.dumps(manifest.source, sort_keys=True)
    yield "target_hash", manifest.target_hash
    for key in ("revision", "architecture", "dtype", "tokenizer_hash", "template_hash", "licence"):
        value = getattr(manifest, key)
        yield key, "none" if value is None else str(value)
    for name, digest in sorted(manifest.files.items()):
        yield f"sha256 of {name}", digest
