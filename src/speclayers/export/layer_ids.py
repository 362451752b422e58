"""This project's layer indices as serving engines number the same tensors.

The one place where indices are converted. A wrong offset goes unnoticed: an engine serves a neighbouring
layer, and acceptance collapses (vllm-project/vllm issue 50170, sgl-project/sglang pull request 25454).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from speclayers.errors import UserError

CONVENTION = (
    "l is the hidden-state index: 0 the embedding's output, l the output of decoder block l counted from 1, "
    "N the last block's output before the final norm"
)


class Engine(NamedTuple):
    """How an engine numbers the states that a drafter reads, and which of them it can capture.

    Args:
        name: The engine, or engines that agree.
        key: Where the ids are written.
        convention: What an id means, in words.
        offset: Id minus layer index.
        last_captured: Whether layer N can be captured.
        fewer: What to do with fewer than three layers.
        more: What to do with more than three layers.
    """

    name: str
    key: str
    convention: str
    offset: int
    last_captured: bool
    fewer: str
    more: str

    def note(self, k: int) -> str:
        """Say what else the engine needs for k layers; nothing for three, which every engine expects."""
        return self.fewer if k < EXPECTED else self.more if k > EXPECTED else ""


EXPECTED = 3
_PAD = "pad the head to three layers with zero columns of fc, which changes no output"
_WIDTH = "also write num_aux_hidden_states, since the ids alone do not set the width of fc"

ENGINES = {
    "eagle": Engine(
        name="EAGLE",
        key="none: replace the indices 2, N // 2 and N - 3 in the target's modelling code",
        convention="id l is the state that enters decoder block l counted from 0, which is layer l here",
        offset=0,
        last_captured=False,
        fewer=f"its fc reads three layers: {_PAD}",
        more="its fc reads three layers: it cannot serve more",
    ),
    "vllm": Engine(
        name="vLLM, speculators",
        key="eagle_aux_hidden_state_layer_ids",
        convention="id l is layer l here; id N is the last block's output before the final norm",
        offset=0,
        last_captured=True,
        fewer=_WIDTH,
        more=_WIDTH,
    ),
    "sglang": Engine(
        name="SGLang, SpecForge",
        key="eagle_config.eagle_aux_hidden_state_layer_ids",
        convention=(
            "id l - 1 is layer l here, as the engine adds 1; ids count decoder blocks from 0 by their output. Some of"
            " its models have added 1 only where the first id is 1: check the acceptance length"
        ),
        offset=-1,
        last_captured=False,
        fewer=f"it skips fc for one layer, and SpecForge trains three only: {_PAD}",
        more=f"{_WIDTH}; SpecForge trains three only",
    ),
}
"""Engines by the name that files use."""


def obstacle(engine: str, layers: Sequence[int], n_layers: int) -> str:
    """Say why an engine cannot capture a layer set; nothing where it can.

    Args:
        engine: A key of ENGINES.
        layers: Layer indices.
        n_layers: Number of decoder blocks N.
    """
    found = ENGINES[engine]
    if min(layers) < 1:
        return "layer 0, the embedding's output, is not captured"
    if max(layers) == n_layers and not found.last_captured:
        return f"layer {n_layers}, the last block's output, is never captured: states are taken as they enter a block"
    return ""


def layer_ids(engine: str, layers: Sequence[int], n_layers: int) -> list[int]:
    """Return the ids that an engine uses for some layers, ascending.

    Args:
        engine: A key of ENGINES.
        layers: Layer indices, distinct.
        n_layers: Number of decoder blocks N.

    Raises:
        UserError: The engine is unknown, a layer is outside 0 to N or named twice, or cannot be captured.
    """
    if engine not in ENGINES:
        raise UserError(f"engine '{engine}' is unknown; known are {', '.join(ENGINES)}")
    if not layers or len(set(layers)) < len(layers):
        raise UserError(f"layers {list(layers)}: expected one layer or more, each once")
    outside = [layer for layer in layers if not 0 <= layer <= n_layers]
    if outside:
        raise UserError(f"layers {list(layers)}: {outside[0]} is outside 0 to {n_layers}")
    if reason := obstacle(engine, layers, n_layers):
        raise UserError(f"{ENGINES[engine].name} cannot serve layers {sorted(layers)}: {reason}")
    return [layer + ENGINES[engine].offset for layer in sorted(layers)]
