"""The inner products of the Gram matrices, shared out over jobs and put together again.

Every product is formed by one job alone, in the same order of sums as by a single job. So what is put together does
not depend on which job ran when, and on one kind of processor with as many threads equals a single job's to the last
bit. On a GPU, whose kernels may depend on how much work they get at once, it equals it up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.device import open_device
from speclayers.geometry.dump import Dump, check_rows, read_layer, read_tokens
from speclayers.geometry.products import Share, inner_products
from speclayers.geometry.rows import Rows, RowStore, create_store, open_rows
from speclayers.geometry.tokens import SUBSETS, RowSets, Subset, choose_rows
from speclayers.tables import Column, Origin, Table, read_origin, read_table

GRAM_SHARD = Table(
    "geometry/gram_shard",
    (
        Column("subset", pa.string(), "", "Tokens used: all, filtered or random."),
        Column("layer_a", pa.int32(), "", "First layer, not above the second."),
        Column("layer_b", pa.int32(), "", "Second layer."),
        Column("block_a", pa.int32(), "", "Block of prompts of the Gram matrices' rows, not above block_b."),
        Column("block_b", pa.int32(), "", "Block of prompts of their columns."),
        Column("inner_product", pa.float64(), "", "As in `gram` by block; zeros, and what other jobs form, left out."),
    ),
)


def share_of(config: GeometryConfig, index: int) -> Share:
    """Return a job's share.

    Args:
        config: Says among how many.
        index: Number of the job, from 0.

    Raises:
        UserError: There is no such job.
    """
    if not 0 <= index < config.shards:
        raise UserError(f"--shard: found {index}, expected 0 to {config.shards - 1} (geometry.shards)")
    return Share(index, config.shards)


def shard_origin(origin: Origin, share: Share) -> Origin:
    """Return the origin of one share's file, which says which share it is."""
    return Origin(origin.model, f"{origin.fingerprint}/{share.index}-of-{share.count}")


def subset_rows(store: RowStore, sets: RowSets, subset: Subset, config: GeometryConfig) -> Rows:
    """Open the rows of a subset in a store that holds the rows of `all` in their order."""
    rows = sets.rows[subset]
    return open_rows(store, sets.places(rows), sets.block_of(rows), config.preprocessing)


def gram_shard(dump: Dump, config: GeometryConfig, share: Share, scratch: Path) -> pd.DataFrame:
    """Form one share of the inner products of all subsets.

    Args:
        dump: The activation dump.
        config: Which rows, how prepared, where multiplied.
        share: The share.
        scratch: Folder for a float32 copy of the rows that count.

    Returns:
        Columns of GRAM_SHARD; products that are zero are left out.

    Raises:
        UserError: Too few tokens, a constant layer, states that are not finite, no such device.
    """
    device = open_device(config.device)
    sets = choose_rows(read_tokens(dump.parts), config)
    everything = sets.rows["all"]
    store = create_store(scratch / "states.f32", (dump.n_layers + 1, len(everything), dump.width))
    for layer in range(dump.n_layers + 1):
        states = read_layer(dump.parts, layer)
        check_rows(states, dump.tokens, layer)
        store.put(layer, states[everything])
    frames = []
    for subset in SUBSETS:
        rows = subset_rows(store, sets, subset, config)
        frames.append(_frame(subset, inner_products(rows, sets.n_blocks, share, subset, device)))
    return pd.concat(frames)


def _frame(subset: Subset, products: np.ndarray) -> pd.DataFrame:
    """Return the products that are not zero, each pair of layers and of blocks once."""
    layer_a, layer_b, block_a, block_b = np.nonzero(products)
    once = (layer_a <= layer_b) & (block_a <= block_b)
    places = tuple(index[once] for index in (layer_a, layer_b, block_a, block_b))
    columns = dict(zip(("layer_a", "layer_b", "block_a", "block_b"), places, strict=True))
    return pd.DataFrame({"subset": subset} | columns | {"inner_product": products[places]})


class Shards(NamedTuple):
    """The files of all shares, in their order.

    Args:
        paths: The files.
        origin: Model, and fingerprint of the jobs that wrote them.
    """

    paths: Sequence[Path]
    origin: Origin

    def products(self, n_layers: int, n_blocks: int) -> dict[Subset, np.ndarray]:
        """Put the shares together.

        Args:
            n_layers: Number of layers, the embedding included.
            n_blocks: Number of blocks of prompts.

        Returns:
            What `inner_products` gives for each subset, (layers, layers, blocks, blocks).

        Raises:
            UserError: A file is missing, truncated, of another share, or of other settings.
        """
        shape = (n_layers, n_layers, n_blocks, n_blocks)
        products: dict[Subset, np.ndarray] = {subset: np.zeros(shape) for subset in SUBSETS}
        for index, path in enumerate(self.paths):
            self._check(path, Share(index, len(self.paths)))
            table = read_table(path, GRAM_SHARD)
            for subset in SUBSETS:
                own = table[table["subset"] == subset]
                a, b, i, j = (own[name].to_numpy() for name in ("layer_a", "layer_b", "block_a", "block_b"))
                for places in ((a, b, i, j), (b, a, i, j), (a, b, j, i), (b, a, j, i)):
                    products[subset][places] = own["inner_product"].to_numpy()
        return products

    def _check(self, path: Path, share: Share) -> None:
        expected, found = shard_origin(self.origin, share), read_origin(path)
        for key, wanted in (("model", expected.model), ("fingerprint", expected.fingerprint)):
            if found.get(key) != wanted:
                raise UserError(f"{path}: {key} is {found.get(key)!r}, expected {wanted!r}; delete it and run again")
