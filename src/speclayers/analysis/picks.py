"""What a reader of the page can pick: layer sets by who chose them, in words as the charts write them."""

from __future__ import annotations

import re

from speclayers.analysis.study import Study
from speclayers.analysis.wording import layers_in_words

Picks = dict[str, dict[str, list[str]]]
"""Layer sets in words, by label and model."""


def picks(study: Study) -> Picks:
    """Return the measured sets by the selectors that chose them; the chosen ones where nothing was measured.

    A set that no selector chose, such as a published head's, is its own label.
    """
    found: Picks = {}
    if study.tau.empty:
        labels = [re.sub(r" \{.*\}$", "", label) for label in study.selected["label"]]
        rows = zip(study.selected["model"], study.selected["layer_set"], labels, strict=True)
    else:
        rows = zip(study.tau["model"], study.tau["layer_set"], study.tau["selectors"], strict=True)
    for model, layer_set, selectors in rows:
        words = layers_in_words(layer_set)
        for label in selectors.split(", ") if selectors else [words]:
            sets = found.setdefault(label, {}).setdefault(model, [])
            if words not in sets:
                sets.append(words)
    return {label: found[label] for label in sorted(found)}
