"""Capturing a model's residual stream while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from speclayers.targets.target import Target


class CapturedStates(Mapping[int, torch.Tensor]):
    """States of the latest forward pass, by layer: (batch, tokens, width), on the device of their block."""

    def __init__(self, layers: Sequence[int]) -> None:
        """Prepare for `layers`."""
        self._layers = tuple(dict.fromkeys(layers))
        self._states: dict[int, torch.Tensor] = {}
        self._running = False

    def __getitem__(self, layer: int) -> torch.Tensor:
        """Return a layer's states; a KeyError before the first forward pass and for layers not asked for."""
        return self._states[layer]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the layers captured so far."""
        return iter(self._states)

    def __len__(self) -> int:
        """Return the number of layers captured so far."""
        return len(self._states)

    def _hook(self, target: Target) -> list[Any]:
        anatomy = target.anatomy
        handles = [
            anatomy.body.register_forward_pre_hook(self._start),
            anatomy.body.register_forward_hook(self._stop, always_call=True),
        ]
        for layer in self._layers:
            handles.append(_reader(target, layer).register_forward_pre_hook(self._keep(layer), with_kwargs=True))
        return handles

    def _start(self, _module: nn.Module, _args: Any) -> None:
        self._states.clear()
        self._running = True

    def _stop(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._running = False

    def _keep(self, layer: int) -> Any:
        def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # Outside the body the final norm also runs for `target.logits`, which must not overwrite anything.
            if self._running:
                self._states[layer] = args[0] if args else kwargs["hidden_states"]

        return keep


def _reader(target: Target, layer: int) -> nn.Module:
    """Return the module whose input is a layer's state."""
    # hidden_states[N] is post-norm in transformers, so layer N is read at the final norm's input.
    return target.anatomy.final_norm if layer == target.n_layers else target.anatomy.blocks[layer]


@contextmanager
def capture_states(target: Target, layers: Sequence[int]) -> Iterator[CapturedStates]:
    """Capture the states of some layers in every forward pass inside the block.

    Args:
        target: The model.
        layers: Layer indices: 0 is what enters block 1, N what enters the final norm.

    Yields:
        The states of the latest forward pass, by layer.

    Raises:
        ValueError: A layer lies outside 0 … N.
    """
    outside = [layer for layer in layers if not 0 <= layer <= target.n_layers]
    if outside:
        raise ValueError(f"{target.name}: layer {outside[0]} is outside 0 … {target.n_layers}")
    captured = CapturedStates(layers)
    handles = captured._hook(target)
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
