"""Which of a study's heads to serve, and what was measured of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from speclayers.analysis.answer import headline_comparisons
from speclayers.analysis.drafters import REFERENCE_KIND, parse_drafter
from speclayers.analysis.study import Study, of_model, rows_of, settings_of
from speclayers.analysis.wording import layers_in_words, setting, signed
from speclayers.errors import UserError


class Recommended(NamedTuple):
    """A layer set as paths name it, and why it."""

    layer_set: str
    reason: str


def recommended_set(study: Study, model: str) -> Recommended:
    """Choose the layer set to serve: the reference's, unless another is told to yield more.

    Judged at the lowest temperature and smallest tree, by the verdicts that the report gives. Heads moved to other
    layers and heads trained elsewhere are not candidates.

    Raises:
        UserError: Nothing was measured for this model.
    """
    tau = of_model(study.tau, model)
    tau = tau[tau["kind"] == REFERENCE_KIND]
    if tau.empty:
        raise UserError(f"{model}: no head was measured, so none can be recommended; name the head to export")
    temperature, nodes, measured = settings_of(tau)[0]
    where = setting(temperature, nodes)
    rows = headline_comparisons(study, model)
    rows = rows[(rows["temperature"] == temperature) & (rows["nodes"] == nodes) & (rows["kind"] == REFERENCE_KIND)]
    better = rows[rows["verdict"] == "higher"].sort_values("difference", ascending=False)
    if len(better):
        row = better.iloc[0]
        return Recommended(
            str(row["layer_set"]),
            f"{layers_in_words(row['layer_set'])} yields {signed(row['difference'])} tokens per verification over"
            f" {study.reference} at {where}",
        )
    if len(rows):
        reference = str(rows.iloc[0]["reference"])
        return Recommended(reference, f"no other set is told to yield more than {study.reference}'s at {where}")
    best = measured.sort_values("tau_question", ascending=False).iloc[0]
    return Recommended(str(best["layer_set"]), f"highest τ measured at {where}; there was nothing to compare it with")


def measured_acceptance(study: Study, model: str, drafter: str) -> list[dict[str, Any]]:
    """Return τ, its interval and what it rests on, at each setting at which a drafter's layer set was measured."""
    tau = of_model(study.tau, model)
    rows = tau[tau["layer_set"] == parse_drafter(drafter).layer_set].sort_values(["temperature", "nodes"])
    columns = {
        **{"tau": "tau_question", "low": "tau_question_low", "high": "tau_question_high"},
        **{key: key for key in ("temperature", "nodes", "questions", "seeds")},
    }
    frame = pd.DataFrame({name: rows[column] for name, column in columns.items()})
    return rows_of(frame.assign(confidence=study.confidence))
