"""Layers that a head does not read: zero columns of fc, for engines that take no fewer than three.

Exact without a norm over all layers at once: fc multiplies what such a layer gives with zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from speclayers.drafting.head import HeadConfig

FC = "fc.weight"


def pad(
    head: HeadConfig, tensors: Mapping[str, Tensor], layers: tuple[int, ...]
) -> tuple[HeadConfig, dict[str, Tensor]]:
    """Return a head that captures more layers than it reads.

    Args:
        head: Its sizes, without norm_before_fc, under which padding would change the output.
        tensors: Its weights by name.
        layers: What it shall capture, ascending; its own layers are among them.
    """
    if head.norm_before_fc:
        raise ValueError("a norm over all layers sees the padding")
    own = {layer: place for place, layer in enumerate(head.layers)}
    blocks = tensors[FC].chunk(len(head.layers), dim=1)
    zero = torch.zeros_like(blocks[0])
    padded = {name: tensor for name, tensor in tensors.items() if not name.startswith("fc_norm.")}
    padded[FC] = torch.cat([blocks[own[layer]] if layer in own else zero for layer in layers], dim=1)
    if head.fc_norm:
        for place, layer in enumerate(layers):
            padded[_norm(place)] = tensors[_norm(own[layer])] if layer in own else torch.ones(head.width)
    return head.model_copy(update={"layers": layers}), padded


def without_padding(head: HeadConfig, tensors: Mapping[str, Tensor]) -> tuple[HeadConfig, dict[str, Tensor]]:
    """Return a head that captures only what it reads: layers whose columns of fc are all zero are dropped."""
    blocks = tensors[FC].chunk(len(head.layers), dim=1)
    kept = [place for place, block in enumerate(blocks) if bool(block.any())]
    if head.norm_before_fc or not kept or len(kept) == len(blocks):
        return head, dict(tensors)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("fc_norm.")}
    own[FC] = torch.cat([blocks[place] for place in kept], dim=1)
    if head.fc_norm:
        own |= {_norm(new): tensors[_norm(old)] for new, old in enumerate(kept)}
    return head.model_copy(update={"layers": tuple(head.layers[place] for place in kept)}), own


def _norm(place: int) -> str:
    return f"fc_norm.{place}.weight"
