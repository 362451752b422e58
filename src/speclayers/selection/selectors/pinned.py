"""Layer sets written in the config, such as those that a paper reports."""

from __future__ import annotations

import numpy as np
from pydantic import Field, field_validator

from speclayers.config import Section
from speclayers.errors import UserError
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.search import fixed
from speclayers.selection.selector import Choice, Selector


class Options(Section):
    """The sets, and what happens to those that a model is too shallow for."""

    sets: list[list[int]] = Field(min_length=1, description="Layer sets; one of k layers is used where k is asked for.")
    skip_beyond: bool = Field(False, description="Leave out sets that reach beyond a model's last layer.")

    @field_validator("sets")
    @classmethod
    def _layers_differ(cls, sets: list[list[int]]) -> list[list[int]]:
        for layers in sets:
            if not layers or len(set(layers)) < len(layers):
                raise ValueError(f"the set {layers} is empty or names a layer twice")
        return sets


def choose(geometry: LayerGeometry, k: int, options: Options, generator: np.random.Generator) -> list[Choice]:
    """Return every set of k layers, each a selection of its own."""
    where = "selection.selectors.pinned.options.sets"
    sets = [layers for layers in options.sets if len(layers) == k]
    if not sets:
        raise UserError(f"{where}: no set has {k} layers, but selection.selectors.pinned.k asks for them")
    choices = []
    for layers in sets:
        outside = [layer for layer in layers if not 0 <= layer <= geometry.n_layers]
        if outside and not (options.skip_beyond and min(layers) >= 0):
            raise UserError(f"{where}: layer {outside[0]} of {layers} is outside 0 to {geometry.n_layers}")
        if not outside:
            choices.append(fixed(geometry, layers, "written in the config"))
    return choices


SELECTOR = Selector(choose, Options, measures=False)
