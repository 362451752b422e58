"""All selections of one model, and the heads that are trained on them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from speclayers.config import SelectionConfig
from speclayers.names import Layers
from speclayers.selection.evidence import Evidence
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.selector import Choice, Request, requests
from speclayers.selection.stability import stability

_log = logging.getLogger(__name__)


class Selected(NamedTuple):
    """A choice, who made it, and how stable it is.

    Args:
        request: Who was asked for what.
        choice: What it chose on all prompts.
        half_sample_set: What the search of the half-samples chooses on all prompts; the choice itself where no
            measurement decides, empty where half-samples were not asked.
        stability: Share of half-samples in which each layer is chosen.
    """

    request: Request
    choice: Choice
    half_sample_set: Layers
    stability: dict[int, float]

    @property
    def reason(self) -> str:
        """Why these layers, and a warning where the half-samples judge another set."""
        if self.half_sample_set in ((), self.choice.layers):
            return self.choice.reason
        judged = ", ".join(str(layer) for layer in self.half_sample_set)
        return (
            f"{self.choice.reason}; warning: the shares of half-samples are those of a search by order 2, which on all"
            f" prompts chooses {{{judged}}} instead"
        )


def select(config: SelectionConfig, evidence: Evidence) -> list[Selected]:
    """Let every selector choose, on all prompts and on half-samples.

    Args:
        config: The selectors, and how their stability is judged.
        evidence: The model's geometry.

    Raises:
        UserError: A selector, its k, seeds or options do not fit.
    """
    wanted = requests(config.selectors, evidence.whole.n_layers)
    drawn = list(evidence.half_samples(config.half_samples, config.seed))
    halves = [half for half in drawn if half.known()]
    if len(halves) < len(drawn):
        _log.warning(
            "%d of %d half-samples left out: too few of their tokens differ", len(drawn) - len(halves), len(drawn)
        )
    everything = evidence.of_blocks(np.ones(evidence.sums.n_blocks, bool))
    return [
        selected
        for request in tqdm(wanted, desc="selectors", disable=None, mininterval=1)
        for selected in _ask(request, evidence.whole, everything, halves)
    ]


def _ask(
    request: Request, whole: LayerGeometry, everything: LayerGeometry, halves: Sequence[LayerGeometry]
) -> Iterator[Selected]:
    """Yield a selector's choices on all prompts, each with what half-samples say about it."""
    asked = bool(halves) or not request.selector.measures
    choices = request.choose(whole)
    alike = request.choose(everything) if request.selector.measures else choices
    for place, choice in enumerate(choices):
        judged = alike[place].layers if asked and place < len(alike) else ()
        yield Selected(request, choice, judged, stability(request, halves, choice.layers))


def heads(model: str, selected: Sequence[Selected]) -> dict[str, Any]:
    """Return the distinct layer sets to train heads on, as `heads.json` holds them.

    Args:
        model: Name of the model.
        selected: All selections.
    """
    selectors: dict[Layers, set[str]] = {}
    for entry in selected:
        if entry.request.config.train:
            selectors.setdefault(entry.choice.layers, set()).add(entry.request.config.name)
    return {
        "model": model,
        "heads": [{"layers": list(layers), "selectors": sorted(selectors[layers])} for layers in sorted(selectors)],
    }


def selections_frame(selected: Sequence[Selected]) -> pd.DataFrame:
    """Return the SELECTIONS table."""
    trained = {entry.choice.layers for entry in selected if entry.request.config.train}
    return pd.DataFrame(
        [
            {
                "selector": entry.request.config.name,
                "k": entry.request.k,
                "seed": entry.request.seed,
                "layers": list(entry.choice.layers),
                "trained": entry.choice.layers in trained,
                "score": entry.choice.score,
                "runner_up": json.dumps([{"layers": r.layers, "score": r.score} for r in entry.choice.runners_up]),
                "stability": json.dumps({str(layer): share for layer, share in entry.stability.items()}),
                "half_sample_set": list(entry.half_sample_set),
                "reason": entry.reason,
                "trace": json.dumps([step._asdict() for step in entry.choice.trace]),
            }
            for entry in selected
        ]
    )


def trace(selected: Sequence[Selected]) -> list[dict[str, Any]]:
    """Return every step of every selector, as `trace.json` holds them."""
    return [
        {
            "selector": entry.request.config.name,
            "k": entry.request.k,
            "seed": entry.request.seed,
            "layers": list(entry.choice.layers),
            "reason": entry.reason,
            "steps": [step._asdict() for step in entry.choice.trace],
        }
        for entry in selected
    ]
