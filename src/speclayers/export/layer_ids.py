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
        first_captured: Whether layer 0, the embedding's output, can be captured.
        last_captured: Whether layer N can be captured.
        least: Fewest layers that it serves as they are.
        most: Most layers that it serves; no limit when not given.
        fewer: What to do with fewer than three layers.
        more: What to do with more than three layers.
    """

    name: str
    key: str
    convention: str
    offset: int
    first_captured: bool
    last_captured: bool
    least: int
    most: int | None
    fewer: str
    more: str

    def note(self, k: int) -> str:
        """Say what else the engine needs for k layers; nothing for three, which every engine expects."""
        return self.fewer if k < EXPECTED else self.more if k > EXPECTED else ""


EXPECTED = 3
_PAD = "pad the head to three layers with zero columns of fc, which changes no output"
_WIDTH = "also write num_aux_hidden_states, since the ids alone do not set the width of fc"

_VLLM = Engine(
    name="vLLM",
    key="eagle_aux_hidden_state_layer_ids",
    convention="id l is layer l here; id N is the last block's output before the final norm",
    offset=0,
    first_captured=True,
    last_captured=True,
    least=1,
    most=None,
    fewer=_WIDTH,
    more=_WIDTH,
)
_NESTED = "vLLM needs num_aux_hidden_states inside transformer_layer_config, too"

ENGINES = {
    "eagle": Engine(
        name="EAGLE",
        key="none: replace the indices 2, N // 2 and N - 3 in the target's modelling code",
        convention="id l is the state that enters decoder block l counted from 0, which is layer l here",
        offset=0,
        first_captured=False,
        last_captured=False,
        least=EXPECTED,
        most=EXPECTED,
        fewer=f"its fc reads three layers: {_PAD}",
        more="its fc reads three layers: it cannot serve more",
    ),
    "vllm": _VLLM,
    "speculators": _VLLM._replace(name="speculators", fewer=_NESTED, more=_NESTED),  # vLLM serves its folders
    "sglang": Engine(
        name="SGLang, SpecForge",
        key="eagle_config.eagle_aux_hidden_state_layer_ids",
        convention=(
            "id l - 1 is layer l here, as the engine adds 1; ids count decoder blocks from 0 by their output. Some of"
            " its models have added 1 only where the first id is 1: check the acceptance length"
        ),
        offset=-1,
        first_captured=False,
        last_captured=False,
        least=2,
        most=None,
        fewer=f"it skips fc for one layer, and SpecForge trains three only: {_PAD}",
        more=f"{_WIDTH}; SpecForge trains three only",
    ),
}
"""Engines by the name that files use."""


def eagle_layers(n_layers: int) -> tuple[int, ...]:
    """Return the layers that EAGLE-3's code captures and that engines fall back to: 2, N // 2, N - 3."""
    return (2, n_layers // 2, n_layers - 3)


def obstacle(engine: str, layers: Sequence[int], n_layers: int) -> str:
    """Say why an engine cannot capture a layer set; nothing where it can.

    Args:
        engine: A key of ENGINES.
        layers: Layer indices.
        n_layers: Number of decoder blocks N.
    """
    found = ENGINES[engine]
    if min(layers) < 1 and not found.first_captured:
        return "layer 0, the embedding's output, is not captured"
    if max(layers) == n_layers and not found.last_captured:
        return f"layer {n_layers}, the last block's output, is never captured: states are taken as they enter a block"
    return ""


def served_layers(engine: str, layers: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """Return the layers that an engine is told to capture: those of the head, padded where it takes no fewer.

    Padding prefers the layers that engines capture by default, so that a head of some of these needs no others.

    Args:
        engine: A key of ENGINES.
        layers: Layer indices that the head reads, distinct.
        n_layers: Number of decoder blocks N.

    Raises:
        UserError: The engine does not serve so many layers, or there are too few to pad with.
    """
    found = ENGINES[engine]
    if found.most is not None and len(layers) > found.most:
        raise UserError(f"{found.name} cannot serve {len(layers)} layers: {found.more}")
    if len(layers) >= found.least:
        return tuple(sorted(layers))
    spare = [layer for layer in eagle_layers(n_layers) if 1 <= layer < n_layers]
    spare = [layer for layer in dict.fromkeys((*spare, *range(1, n_layers))) if layer not in layers]
    if len(layers) + len(spare) < EXPECTED:
        raise UserError(f"{found.name} cannot serve {len(layers)} layers: {n_layers} blocks are too few to pad with")
    return tuple(sorted((*layers, *spare[: EXPECTED - len(layers)])))


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


def layers_of_ids(engine: str, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the layer indices that an engine's ids mean, in their order."""
    return tuple(number - ENGINES[engine].offset for number in ids)
