"""Inner products of the Gram matrices of all pairs of layers, exactly, in bounded memory, by two routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from speclayers.geometry.device import PROCESSOR, Device
from speclayers.geometry.rows import Rows

Route = Literal["tiles", "covariance"]

_TILE = 256  # rows: a Gram tile of 256² fp64 is half a megabyte a layer
_HELD_BYTES = 2**27

Unit = TypeVar("Unit")


class Pair(NamedTuple):
    """Two blocks of prompts, or two layers, the first not above the second."""

    first: int
    second: int


@dataclass(frozen=True)
class Share:
    """One of several equal shares of the work.

    Args:
        index: Which one, from 0.
        count: Number of shares.
    """

    index: int
    count: int

    def of(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Return this share's units, neighbours together; the shares of a list are disjoint and make it up."""
        start, stop = (len(units) * edge // self.count for edge in (self.index, self.index + 1))
        return units[start:stop]


WHOLE = Share(0, 1)


def pairs_of(count: int) -> list[Pair]:
    """Return all pairs of so many blocks or layers."""
    return [Pair(*pair) for pair in combinations_with_replacement(range(count), 2)]


def cheaper_route(tokens: int, width: int, n_layers: int, n_blocks: int) -> Route:
    """Return the route of fewer multiplications.

    With T tokens, L layers of width d and B blocks of prompts, tiles take T²/2 · (L d + L²): the Gram tiles, and
    their inner products. Cross-covariances take L (L + 1)/2 · d² (T + B²): the matrices, and theirs. For many
    tokens and few blocks these meet near T = L d² / (d + L), somewhat below T = L d.

    Args:
        tokens: Number of rows.
        width: Width of the residual stream.
        n_layers: Number of layers, the embedding included.
        n_blocks: Number of blocks of prompts.
    """
    by_tiles = tokens**2 / 2 * n_layers * (width + n_layers)
    by_covariance = n_layers * (n_layers + 1) / 2 * width**2 * (tokens + n_blocks**2)
    return "covariance" if by_covariance < by_tiles else "tiles"


def inner_products(
    rows: Rows,
    n_blocks: int,
    share: Share = WHOLE,
    name: str = "",
    device: Device = PROCESSOR,
    route: Route | None = None,
) -> np.ndarray:
    """Compute <K_a, K_b> of all pairs of layers over pairs of blocks.

    Both routes are exact. Tiles form every layer's Gram matrix piece by piece. Cross-covariances use
    <K_a, K_b> = <C, C'>, the rows in one block and the columns in another, where C = Z_aᵀ Z_b of the first block's
    rows and C' of the second's (arXiv 1905.00414, equation 1, by blocks). The memory of neither grows with the
    rows. An entry is summed in the same order whatever the share.

    Args:
        rows: Rows of the subset.
        n_blocks: Number of blocks.
        share: What to do of it. Each entry is found by one share alone, so the shares' results add up exactly.
        name: Shown by the progress bar.
        device: Where the products are formed.
        route: How; the cheaper one when not given.

    Returns:
        (layers, layers, blocks, blocks), symmetric in the layers and in the blocks, zero where not done.
    """
    how = route or cheaper_route(len(rows.block), rows.width, rows.n_layers, n_blocks)
    accumulate = _by_covariance if how == "covariance" else _by_tiles
    products = accumulate(rows, n_blocks, share, f"Gram {name}".strip(), device)
    later, earlier = np.tril_indices(n_blocks, -1)
    products[:, :, later, earlier] = products[:, :, earlier, later]
    later, earlier = np.tril_indices(rows.n_layers, -1)
    products[later, earlier] = products[earlier, later]
    return products


# ---------------------------------------------------------------- Gram tiles


class _Tile(NamedTuple):
    """Some rows of one block."""

    block: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


def _by_tiles(rows: Rows, n_blocks: int, share: Share, name: str, device: Device) -> np.ndarray:
    """Share out pairs of blocks; form the Gram tiles of all layers for each pair of tiles of rows."""
    wanted = set(share.of(pairs_of(n_blocks)))
    products = device.put(np.zeros((n_blocks, n_blocks, rows.n_layers, rows.n_layers)))
    tiles = list(_tiles(rows.block))
    place = {tile: number for number, tile in enumerate(tiles)}
    first = {pair.first for pair in wanted}
    groups = [group for group in _groups(tiles, rows) if any(tile.block in first for tile in group)]
    for group in tqdm(groups, desc=name, disable=None, mininterval=1):
        held: dict[_Tile, Any] = {}  # the group before is let go of first, or memory would hold two
        held.update((tile, device.put(rows.tile(tile.rows))) for tile in group)
        for right in tiles[place[group[0]] :]:
            others = [t for t in group if place[t] <= place[right] and Pair(t.block, right.block) in wanted]
            if not others:
                continue
            states = held[right] if right in held else device.put(rows.tile(right.rows))
            for left in others:
                found = _tile_products(held[left], states)
                twice = left.block == right.block and left != right  # the mirrored tile lies in the same block
                products[left.block, right.block] += 2 * found if twice else found
    return np.ascontiguousarray(device.get(products).transpose(2, 3, 0, 1))


def _tile_products(left: Any, right: Any) -> Any:
    """Return the inner products of all layers' Gram tiles, (layers, layers), from (layers, rows, width) each."""
    tiles = (left @ right.swapaxes(1, 2)).reshape(len(left), -1)
    return tiles @ tiles.T


def _tiles(block: np.ndarray) -> Iterator[_Tile]:
    """Cut every block's rows into tiles, in order."""
    for wanted in np.unique(block):
        start, stop = (int(edge) for edge in np.searchsorted(block, [wanted, wanted + 1]))
        for begin in range(start, stop, _TILE):
            yield _Tile(int(wanted), begin, min(begin + _TILE, stop))


def _groups(tiles: list[_Tile], rows: Rows) -> Iterator[list[_Tile]]:
    """Join tiles that are held in memory together, so that the others are read fewer times."""
    group: list[_Tile] = []
    for tile in tiles:
        if group and (tile.stop - group[0].start) * rows.bytes_per_row > _HELD_BYTES:
            yield group
            group = []
        group.append(tile)
    yield group


# ---------------------------------------------------------------- cross-covariances


class _Fan(NamedTuple):
    """One layer paired with neighbouring ones."""

    left: int
    right: slice


def _by_covariance(rows: Rows, n_blocks: int, share: Share, name: str, device: Device) -> np.ndarray:
    """Share out pairs of layers; form their cross-covariances of every block, as many as are held together."""
    products = device.put(np.zeros((rows.n_layers, rows.n_layers, n_blocks, n_blocks)))
    tiles = list(_tiles(rows.block))
    bytes_per_feature = 8 * n_blocks * rows.width  # of the left layer, in one pair's cross-covariances
    features = min(rows.width, max(1, _HELD_BYTES // bytes_per_feature))
    partners = max(1, _HELD_BYTES // (bytes_per_feature * features))
    for fan in tqdm(_fans(share.of(pairs_of(rows.n_layers)), partners), desc=name, disable=None, mininterval=1):
        for start in range(0, rows.width, features):
            strip = slice(start, min(start + features, rows.width))
            products[fan.left, fan.right] += _cross_products(rows, fan, strip, n_blocks, tiles, device)
    return device.get(products)


def _cross_products(rows: Rows, fan: _Fan, strip: slice, n_blocks: int, tiles: Sequence[_Tile], device: Device) -> Any:
    """Return the inner products of blocks' cross-covariances, (right layers, blocks, blocks).

    Args:
        rows: Rows of the subset.
        fan: Pairs of layers.
        strip: Features of the left layer; what strips give adds up.
        n_blocks: Number of blocks.
        tiles: Tiles of all rows.
        device: Where the products are formed.
    """
    shape = (fan.right.stop - fan.right.start, n_blocks, strip.stop - strip.start, rows.width)
    cross = device.put(np.zeros(shape))
    for tile in tiles:
        turned = device.put(rows.tile(tile.rows, slice(fan.left, fan.left + 1))[0, :, strip]).T
        cross[:, tile.block] += turned @ device.put(rows.tile(tile.rows, fan.right))
    flat = cross.reshape(*shape[:2], -1)
    return flat @ flat.swapaxes(1, 2)


def _fans(pairs: Sequence[Pair], partners: int) -> list[_Fan]:
    """Join pairs of layers with the same first one, at most so many."""
    fans: list[_Fan] = []
    for left, right in pairs:
        last = fans[-1] if fans else None
        if last is not None and last.left == left and right - last.right.start < partners:
            fans[-1] = _Fan(left, slice(last.right.start, right + 1))
        else:
            fans.append(_Fan(left, slice(right, right + 1)))
    return fans
