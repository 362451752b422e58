"""The page of the layers alone, which needs no training: which layers, how sure, and why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from speclayers.analysis import page_tables
from speclayers.analysis.answer import NAMED, Answer, models_in_words
from speclayers.analysis.calibration_figures import measured_settling, settling
from speclayers.analysis.figures import Figure
from speclayers.analysis.layer_warnings import layer_warnings
from speclayers.analysis.picks import picks
from speclayers.analysis.report import (
    Block,
    Section,
    layers_section,
    provenance_section,
    render_page,
    selections_section,
)
from speclayers.analysis.study import Study, build_study, judged_apart, of_model, read_study, runners_up, stability
from speclayers.analysis.summary import ModelResults, write_summary
from speclayers.analysis.warehouse import new_database
from speclayers.analysis.wording import count, joined, layers_in_words, listed, number, percent
from speclayers.errors import UserError
from speclayers.files import read_json, write_text
from speclayers.names import layers_name
from speclayers.specs import AggregateSpec
from speclayers.tables import Origin

FIXED = ("eagle2", "eagle3", "pinned", "random", "uniform")
"""Selectors whose reasons say nothing of the layers' states."""

BY_JOINT_ENTROPY = ("elsi", "elsi_c", "beam", "exhaustive")
"""Selectors that maximise E(S), with or without a limit on similarity."""


def read_layers(results: Mapping[str, ModelResults], spec: AggregateSpec, fingerprint: str, scratch: Path) -> Study:
    """Read what is known of the layers, as a study in which nothing was trained.

    Args:
        results: Where each model's results lie.
        spec: Name and settings of the study.
        fingerprint: Fingerprint of the page, for the provenance.
        scratch: Folder for the summaries and the database.

    Raises:
        UserError: A table is missing, broken, or another model's.
    """
    summaries = {model: scratch / model for model in results}
    for model, found in results.items():
        write_summary(found, summaries[model], Origin(model, fingerprint))
    manifests = {model: found.manifest for model, found in results.items()}
    with new_database(scratch / "layers.duckdb", threads=1) as connection:
        build_study(connection, summaries, manifests, None, spec, fingerprint)
        return read_study(connection)


def write_layers_page(
    results: Mapping[str, ModelResults],
    recommendations: Mapping[str, Path],
    spec: AggregateSpec,
    fingerprint: str,
    page: Path,
) -> None:
    """Write the page.

    Args:
        results: Where each model's results lie; heads and runs are not looked at.
        recommendations: Each model's recommendation.json.
        spec: Name and settings of the study.
        fingerprint: Fingerprint of the page, for the provenance.
        page: HTML file to write.

    Raises:
        UserError: A table is missing, broken, or another model's.
    """
    page.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".layers.", dir=page.parent) as scratch:
        study = read_layers(results, spec, fingerprint, Path(scratch))
    write_text(page, layers_page(study, [_recommended(path, model) for model, path in recommendations.items()]))


def _recommended(path: Path, model: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(path)
    if found.get("model") != model:
        raise UserError(f"{path}: is of model {found.get('model')}, expected {model}")
    return found


def layers_page(study: Study, recommendations: list[dict[str, Any]]) -> str:
    """Return the page as HTML.

    Args:
        study: What is told.
        recommendations: What recommendation.json holds of each model.
    """
    parts = [
        Section("selections", "Which layers were chosen", list(selections_section(study))),
        Section("ids", "Ids for serving engines", [Block("table", page_tables.engine_ids(recommendations))]),
        Section("layers", "The layers", list(layers_section(study, warned=False))),
        Section("provenance", "Provenance", list(provenance_section(study))),
    ]
    drawn = [block.content for part in parts for block in part.blocks if isinstance(block.content, Figure)]
    title = f"The layers before any training. Study {study.fact('study', 'name')}"
    return render_page(title, layers_answer(study), layer_warnings(study), parts, drawn, picks(study))


# ---------------------------------------------------------------- the answer in words


def layers_answer(study: Study) -> Answer:
    """Say which layers geometry would choose, how sure that is, and why."""
    asked = f"Which layers of {models_in_words(study)} does geometry choose for a drafter, how sure is that, and why?"
    caveat = (
        "joint entropy says how much the layers hold together, not how many tokens a drafter will gain from them; only"
        " trained heads tell (the study's own page)."
    )
    found = [line for model in study.models for line in _of_model(study, model)]
    return Answer(asked, found, caveat, _overview(study) if len(study.models) > NAMED else "")


def _overview(study: Study) -> str:
    """Say on how many models the measurement has settled."""
    settled = [found.enough for model in study.models if (found := measured_settling(study, model)) is not None]
    return f"{sum(settled)} of {count(len(study.models), 'model')} were measured on enough tokens."


def _of_model(study: Study, model: str) -> Iterator[str]:
    rows = of_model(study.selected, model)
    sizes = sorted(set(rows["k"]))
    if not sizes:
        yield f"{model}: no selector chose layers."
    for k in sizes:
        yield f"{model}, k = {k}: {_of_size(rows[rows['k'] == k])}."
    yield f"{settling(study, model)}."


def _of_size(rows: pd.DataFrame) -> str:
    """Tell the set of highest E(S) among those chosen, who chose it, how stable it is, and why."""
    known = rows.dropna(subset=["score"])
    if known.empty:
        return "no set has a score"
    best = known.assign(fixed=known["selector"].isin(FIXED)).sort_values(
        ["score", "fixed", "label"], ascending=[False, True, True]
    )
    row = best.iloc[0]
    own = known[known["layer_set"] == row["layer_set"]]
    parts = [
        f"{layers_in_words(row['layer_set'])} holds the most joint entropy of the sets chosen"
        f" ({number(row['score'], 3)} nats), chosen by {listed(list(own['label']))},"
        f" {count(len(own), 'selection')} of {len(known)}{_one_opinion(own)}"
    ]
    parts.append(f"why: {row['reason']}")
    parts.append(f"how sure: {_certainty(row)}")
    others = known[known["selector"] == "eagle3"]
    if len(others) and others.iloc[0]["layer_set"] != row["layer_set"]:
        behind = row["score"] - others.iloc[0]["score"]
        parts.append(
            f"EAGLE-3's own {layers_in_words(others.iloc[0]['layer_set'])} holds {number(behind, 3)} nats less"
        )
    return "; ".join(parts)


def _one_opinion(rows: pd.DataFrame) -> str:
    """Say that selectors with the same aim do not confirm each other."""
    alike = sorted(set(rows["selector"]) & set(BY_JOINT_ENTROPY))
    return f" ({joined(alike)} all maximise E(S): one opinion)" if len(alike) > 1 else ""


def _certainty(row: pd.Series) -> str:
    """Tell a choice's stability on half-samples and the distance of its runner-up."""
    shares = dict(stability(row["stability"]))
    judged = judged_apart(row)
    layers = [int(layer) for layer in judged or row["layers"]]
    told = [f"layer {layer} again in {percent(shares.get(layer, 0.0))}" for layer in layers]
    least = min((shares.get(layer, 0.0) for layer in layers), default=0.0)
    word = (
        "it hardly depends on the prompts"
        if least >= 0.9
        else "part of it depends on the prompts"
        if least >= 0.5
        else "it depends on the prompts"
    )
    halves = f"(on half of them {listed(told, 8)} of the half-samples)"
    if not shares:
        text = "stability was not judged"
    elif judged:
        text = f"half-samples judge {layers_in_words(layers_name(layers))} instead, order 2's choice: {word} {halves}"
    else:
        text = f"{word} {halves}"
    others = runners_up(row["runner_up"])
    if others:
        following, score = others[0]
        text += (
            f", and {layers_in_words(layers_name(following))} comes next, {number(row['score'] - score, 3)} nats behind"
        )
    return text
