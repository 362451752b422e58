"""EAGLE-2's dynamic draft tree: which candidates are worth verifying (arXiv 2406.16858, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from speclayers.errors import UserError
from speclayers.names import ShapeName


class TreeShape(NamedTuple):
    """How large a draft tree may grow.

    Args:
        nodes: Nodes kept, the root counted.
        depth: Longest drafted path, in tokens.
        top_k: Children tried for each expanded node, and nodes expanded at each level.
    """

    nodes: int
    depth: int
    top_k: int


def shape_of(name: ShapeName, depth: int, top_k: int) -> TreeShape:
    """Return the shape of a tree, or of a chain, which is as deep as its nodes allow and tries one child a node.

    Args:
        name: Nodes, and whether they are a chain.
        depth: Longest drafted path of a tree, in tokens.
        top_k: Children tried for each node of a tree.

    Raises:
        UserError: The tree has too few nodes for its depth.
    """
    if name.chain:
        return TreeShape(name.nodes, name.nodes - 1, 1)
    if depth > name.nodes - 1:
        raise UserError(f"depth: {depth} is more than a tree of {name.nodes} nodes can hold below its root")
    return TreeShape(name.nodes, depth, top_k)


class Beams(NamedTuple):
    """The nodes of one level that are expanded.

    Args:
        tokens: Their draft ids (beams,).
        parents: Index of each one's parent among the beams of the level above (beams,); zeros at level 1.
    """

    tokens: Tensor
    parents: Tensor


class DraftTree(NamedTuple):
    """The kept candidates, level by level, parents before children, likelier siblings first.

    Args:
        tokens: Draft ids (kept,), the root not among them.
        parents: Node index of each parent (kept,): 0 is the root, i + 1 the candidate i.
    """

    tokens: Tensor
    parents: Tensor


Expand = Callable[[Beams], Tensor]
"""Returns the log-probabilities (beams, vocabulary) of what follows each beam; called once a level."""


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values along the last axis, falling, and their indices; of equals the lower index is first.

    Args:
        values: (…, n), without NaN.
        k: At most n.
    """
    # torch.topk breaks ties as it pleases, and a stable sort of a whole vocabulary costs as much as the head.
    best, indices = values.topk(k, dim=-1)
    if bool(((values >= best[..., -1:]).sum(-1) > k).any()):  # more candidates than places
        best, indices = values.sort(dim=-1, descending=True, stable=True)
        return best[..., :k], indices[..., :k]
    indices = indices.sort(dim=-1).values
    best, order = values.gather(-1, indices).sort(dim=-1, descending=True, stable=True)
    return best, indices.gather(-1, order)


def build_tree(first: Tensor, expand: Expand, shape: TreeShape) -> DraftTree:
    """Grow a tree by cumulative log-probability and keep its best nodes.

    `top_k` of the `top_k` children of every beam are expanded at each level down to `depth`; of all
    candidates met on the way the best `nodes − 1` are kept.

    Args:
        first: Log-probabilities (vocabulary,) of what follows the root.
        expand: Gives them for the beams of a level.
        shape: How large the tree may grow.

    Returns:
        The kept candidates, closed under parents.
    """
    width = min(shape.top_k, first.shape[-1])
    scores, tokens = stable_topk(first, width)
    beams = Beams(tokens, torch.zeros_like(tokens))
    scores = scores.clamp(max=0)
    level_tokens, level_scores, level_parents = [tokens], [scores], [torch.full_like(tokens, -1)]
    beam_places = torch.arange(width, device=first.device)  # where the beams stand among all candidates
    met = width
    for _ in range(1, shape.depth):
        gains, tokens = stable_topk(expand(beams), width)
        # A child must never beat its parent, or the best nodes would not be closed under parents; of equals
        # the parent comes first, since it stands earlier.
        children = (scores[:, None] + gains.clamp(max=0)).flatten()
        level_tokens.append(tokens.flatten())
        level_scores.append(children)
        level_parents.append(beam_places.repeat_interleave(width))
        scores, chosen = stable_topk(children, min(shape.top_k, len(children)))
        beams = Beams(tokens.flatten()[chosen], chosen // width)
        beam_places = met + chosen
        met += len(children)
    kept = _best(torch.cat(level_scores), shape.nodes - 1)
    return DraftTree(torch.cat(level_tokens)[kept], _renumbered(torch.cat(level_parents), kept))


def _best(scores: Tensor, count: int) -> Tensor:
    """Return the places of the best candidates, ascending."""
    _, places = stable_topk(scores, min(count, len(scores)))
    return places.sort().values


def _renumbered(parents: Tensor, kept: Tensor) -> Tensor:
    """Return the parents of the kept candidates as node indices."""
    node_of = torch.zeros(
        len(parents) + 1, dtype=torch.long, device=parents.device
    )  # the last entry serves −1, the root
    node_of[kept] = torch.arange(1, len(kept) + 1, device=parents.device)
    return node_of[parents[kept]]


def ancestor_mask(parents: Tensor) -> Tensor:
    """Return which nodes each node sees: itself and its ancestors.

    Args:
        parents: Index of each node's parent (nodes,); −1 for the root, node 0.

    Returns:
        Boolean (nodes, nodes), rows looking at columns.
    """
    upward = parents.clamp(min=0)  # the root is its own parent, so that climbing stops there
    nodes = torch.arange(len(parents), device=parents.device)
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool, device=parents.device)
    seen = nodes
    while bool(seen.any()):
        mask[nodes, seen] = True
        seen = upward[seen]
    mask[:, 0] = True
    return mask
