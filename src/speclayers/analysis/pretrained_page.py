"""Heads trained elsewhere on the page: which layers they read, and who chooses the same here."""

from __future__ import annotations

from typing import Any

import pandas as pd

from speclayers.analysis.drafters import PRETRAINED_KIND
from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import Study, of_model, rows_of
from speclayers.analysis.wording import layers_in_words
from speclayers.names import PretrainedName, layers_name


def pretrained_sets(study: Study) -> pd.DataFrame:
    """Return the heads trained elsewhere, a row each."""
    return study.sets[study.sets["kind"] == PRETRAINED_KIND]


def heads(study: Study) -> PageTable:
    """Return the layers of every head trained elsewhere."""
    rows = pretrained_sets(study)
    cells = [_line(study, row) for model in study.models for row in rows_of(of_model(rows, model))]
    caption = (
        "Heads trained elsewhere: the layers that they read, and the selectors that choose the same here. As it came:"
        " measured with the weights that it was published with; else trained on here for so many per cent of a head's"
        " training. They stand in the comparisons under these names."
    )
    return page_table(caption, ["model", "head", "layers", "chosen here by", "training here"], cells)


def _line(study: Study, row: dict[str, Any]) -> list[str]:
    name = layers_name([int(layer) for layer in row["layers"]])
    chosen = of_model(study.selected, row["model"])
    same = chosen[chosen["layer_set"] == name]["label"]
    percent = PretrainedName.parse(row["layer_set"]).percent
    training = f"{percent} %" if percent else "as it came"
    return [row["model"], row["layer_set"], layers_in_words(name), ", ".join(same) or "no selector", training]
