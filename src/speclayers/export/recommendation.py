"""What a model's selections recommend, with the ids to paste into each engine."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from speclayers.errors import UserError
from speclayers.export.layer_ids import CONVENTION, ENGINES, layer_ids, obstacle
from speclayers.names import layers_name


def recommendation(model: str, n_layers: int, selections: pd.DataFrame) -> dict[str, Any]:
    """Return the contents of recommendation.json.

    Args:
        model: Name of the model.
        n_layers: Number of its decoder blocks N.
        selections: Rows of SELECTIONS.

    Raises:
        UserError: A selection holds a layer that the model does not have.
    """
    for selector, layers in zip(selections["selector"], selections["layers"], strict=True):
        outside = [int(layer) for layer in layers if not 0 <= layer <= n_layers]
        if outside:
            raise UserError(f"selections of {model}: {selector} chose layer {outside[0]}, expected 0 to {n_layers}")
    return {
        "model": model,
        "n_layers": n_layers,
        "convention": CONVENTION,
        "engines": {
            name: {"engine": engine.name, "key": engine.key, "convention": engine.convention}
            for name, engine in ENGINES.items()
        },
        "selections": [_entry(row, n_layers) for row in selections.to_dict("records")],
    }


def _entry(row: dict[Any, Any], n_layers: int) -> dict[str, Any]:
    layers = [int(layer) for layer in row["layers"]]
    return {
        "selector": row["selector"],
        "k": int(row["k"]),
        "seed": int(row["seed"]),
        "layers": layers,
        "name": layers_name(layers),
        "score": float(row["score"]),
        "stability": json.loads(row["stability"]),
        "half_sample_set": [int(layer) for layer in row["half_sample_set"]],
        "runner_up": json.loads(row["runner_up"]),
        "reason": row["reason"],
        "ids": {engine: _ids(engine, layers, n_layers) for engine in ENGINES},
    }


def _ids(engine: str, layers: list[int], n_layers: int) -> dict[str, Any]:
    """Return the ids, or why there are none; and what else the engine needs for this number of layers."""
    reason = obstacle(engine, layers, n_layers)
    return {
        "ids": None if reason else layer_ids(engine, layers, n_layers),
        "refused": reason or None,
        "note": None if reason else ENGINES[engine].note(len(layers)) or None,
    }
