"""Running a target without some of its decoder blocks, or without some blocks' attention or MLP.

What is skipped passes its input on, and its keys and values of the tokens run over are never written: run such
passes inside `PreallocatedCache.session`, which forgets the rows that the other blocks wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speclayers.errors import UserError
from speclayers.targets.target import Target

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Skipped:
    """What is skipped: parts of decoder blocks, which are counted from 1.

    Args:
        attention: Blocks whose attention is skipped.
        mlp: Blocks whose MLP is skipped.
    """

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def blocks(cls, blocks: Iterable[int]) -> Skipped:
        """Skip whole blocks."""
        whole = frozenset(blocks)
        return cls(whole, whole)

    @property
    def whole(self) -> frozenset[int]:
        """Blocks that are skipped altogether."""
        return self.attention & self.mlp

    @property
    def parts(self) -> frozenset[int]:
        """Blocks of which either attention or MLP is skipped, not both."""
        return self.attention ^ self.mlp

    def layer_passes(self, n_layers: int) -> float:
        """Return how many decoder-layer passes one forward pass takes; attention or MLP alone counts half."""
        return n_layers - (len(self.attention) + len(self.mlp)) / 2


@contextmanager
def skip_layers(target: Target, skipped: Skipped) -> Iterator[None]:
    """Skip blocks and parts of blocks in every forward pass inside the block.

    Args:
        target: A model that `require_skippable` accepts.
        skipped: What is skipped.

    Raises:
        ValueError: A block lies outside 1 … N.
        UserError: A part of a block is to be skipped that cannot be found.
    """
    blocks = target.anatomy.blocks
    outside = sorted(block for block in skipped.attention | skipped.mlp if not 1 <= block <= len(blocks))
    if outside:
        raise ValueError(f"{target.name}: block {outside[0]} is outside 1 … {len(blocks)}")
    forwards: dict[nn.Module, Forward] = {blocks[block - 1]: _pass_on for block in skipped.whole}
    for block in skipped.parts:
        kind, forward = ("attention", _no_attention) if block in skipped.attention else ("mlp", _no_mlp)
        forwards[_part(target, block, kind)] = forward
    with replaced_forwards(forwards):
        yield


def require_skippable(target: Target, parts: bool = False) -> None:
    """Refuse a model that cannot be run without some of its blocks.

    Args:
        target: The model.
        parts: Whether attention and MLP are to be skipped separately, too.

    Raises:
        UserError: Its blocks return something else than the states, or their attention or MLP cannot be found
            or is no plain summand of the residual stream.
    """
    seen: dict[int, tuple[Any, Any]] = {}

    def watched(block: int, forward: Forward) -> Forward:
        def watching(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            output = forward(hidden_states, *args, **kwargs)
            seen[block] = hidden_states, output
            return output

        return watching

    blocks = {module: watched(block, module.forward) for block, module in enumerate(target.anatomy.blocks, start=1)}
    family = target.manifest.architecture
    with replaced_forwards(blocks):
        _short_pass(target)
        for block, (before, after) in seen.items():
            if not isinstance(after, Tensor) or after.shape != before.shape:
                raise UserError(
                    f"{target.name}: block {block} of {family} returns {_in_words(after)}, expected its input's shape "
                    f"{tuple(before.shape)}; its layers cannot be skipped"
                )
        if not parts:
            return
        nothing: dict[nn.Module, Forward] = {}
        for block in range(1, target.n_layers + 1):
            nothing |= {_part(target, block, "attention"): _no_attention, _part(target, block, "mlp"): _no_mlp}
        with replaced_forwards(nothing):
            _short_pass(target)
    for block, (before, after) in seen.items():
        if not torch.equal(before, after):
            raise UserError(
                f"{target.name}: block {block} of {family} changes its input without attention and MLP; "
                "only whole blocks of it can be skipped"
            )


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Give modules other forward functions inside the block; their hooks stay."""
    before = {module: module.__dict__.get("forward") for module in forwards}  # accelerate puts one of its own there
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def _pass_on(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def _no_attention(hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return torch.zeros_like(hidden_states), None


def _no_mlp(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.zeros_like(hidden_states)


_WORDS = {"attention": ("attention",), "mlp": ("mlp", "feedforward", "moe")}
"""What the class names of a block's parts contain."""


def _part(target: Target, block: int, kind: str) -> nn.Module:
    """Find a block's attention or MLP by the name of its class."""
    children = target.anatomy.blocks[block - 1].children()
    found = [child for child in children if any(word in type(child).__name__.lower() for word in _WORDS[kind])]
    if len(found) != 1:
        raise UserError(
            f"{target.name}: found {len(found)} modules of {kind} in block {block} of {target.manifest.architecture}, "
            "expected one; only whole blocks of it can be skipped"
        )
    return found[0]


@torch.inference_mode()
def _short_pass(target: Target) -> None:
    ids = torch.zeros(1, 2, dtype=torch.long, device=target.device)
    target.anatomy.body(input_ids=ids, use_cache=False)


def _in_words(found: Any) -> str:
    return f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
