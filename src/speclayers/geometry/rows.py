"""Rows of all layers at once, kept on disk and read a tile at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speclayers.config import Preprocessing
from speclayers.errors import UserError
from speclayers.geometry.entropy import preprocess, refuse_constant, squares

_READ_ROWS = 2048  # rows of one layer in memory at once, so that a longer text needs no more


@dataclass(frozen=True)
class RowStore:
    """States of all layers, usually mapped from disk.

    Args:
        states: (layers, rows, width) float32, which holds every stored precision exactly.
    """

    states: np.ndarray

    @property
    def n_layers(self) -> int:
        """Number of layers, the embedding included."""
        return int(self.states.shape[0])

    def put(self, layer: int, states: np.ndarray) -> None:
        """Store one layer's rows, (rows, width)."""
        self.states[layer] = states


def create_store(path: Path, shape: tuple[int, int, int]) -> RowStore:
    """Make an empty store on disk.

    Args:
        path: File to create.
        shape: (layers, rows, width).

    Raises:
        UserError: The disk has no room for it.
    """
    try:
        return RowStore(np.memmap(path, np.float32, "w+", shape=shape))
    except OSError as error:
        size = 4 * shape[0] * shape[1] * shape[2] / 2**30
        raise UserError(f"{path}: {size:.1f} GiB of scratch space are needed: {error.strerror or error}") from error


@dataclass(frozen=True)
class Rows:
    """Rows of one subset in a store, preprocessed and scaled to unit trace when read.

    Args:
        store: Where the states lie.
        rows: Row numbers in the store, ordered by block.
        block: Block of each row, (n,), ascending.
        how: Preprocessing.
        mean: Mean of each layer's rows, (layers, 1, width); zero when rows are not centred.
        scale: One over the root of each layer's trace, (layers,).
    """

    store: RowStore
    rows: np.ndarray
    block: np.ndarray
    how: Preprocessing
    mean: np.ndarray
    scale: np.ndarray

    @property
    def n_layers(self) -> int:
        """Number of layers, the embedding included."""
        return self.store.n_layers

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return int(self.store.states.shape[2])

    @property
    def bytes_per_row(self) -> int:
        """Size of one row of all layers in fp64."""
        return 8 * self.n_layers * self.width

    def layer(self, layer: int) -> np.ndarray:
        """Return Z of one layer, (n, width) fp64, of unit trace."""
        prepared = preprocess(self.store.states[layer, self.rows], self.how, self.mean[layer])
        prepared *= self.scale[layer]
        return prepared

    def tile(self, part: slice, layers: slice = slice(None)) -> np.ndarray:
        """Return some rows of Z of all layers or of some, (layers, rows, width) fp64."""
        prepared = preprocess(self.store.states[layers, self.rows[part]], self.how, self.mean[layers])
        prepared *= self.scale[layers, None, None]
        return prepared


def open_rows(store: RowStore, rows: np.ndarray, block: np.ndarray, how: Preprocessing) -> Rows:
    """Measure the means and traces of a subset.

    Args:
        store: States of all layers.
        rows: Row numbers in the store, ordered by block.
        block: Block of each row, (n,), ascending.
        how: Preprocessing.

    Raises:
        UserError: A layer is constant.
    """
    mean, scale = np.zeros((store.n_layers, 1, store.states.shape[2])), np.empty(store.n_layers)
    parts = [rows[start : start + _READ_ROWS] for start in range(0, len(rows), _READ_ROWS)]
    for layer in range(store.n_layers):
        states = store.states[layer]
        if how in ("centre", "centre_row_norm"):
            mean[layer] = sum(states[part].sum(axis=0, dtype=np.float64) for part in parts) / len(rows)
        spread = sum(float(squares(preprocess(states[part], how, mean[layer]))) for part in parts)
        refuse_constant(spread, sum(float(squares(states[part])) for part in parts), len(rows), layer)
        scale[layer] = 1 / np.sqrt(spread)
    return Rows(store, rows, block, how, mean, scale)
