"""Gathering what selectors see: from the geometry tables and the activation dump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.dump import Dump, read_layer, read_tokens
from speclayers.geometry.entropy import preprocess, require_spread, set_entropy, unit_trace_gram
from speclayers.geometry.gram import GramSums, RowSums, join_row_sums, layer_row_sums, similarity
from speclayers.geometry.lens import LensRows, lens_rows
from speclayers.geometry.tokens import RowSets, choose_rows, search_sample
from speclayers.names import Layers
from speclayers.selection.half_entropy import BlockMoments, block_moments
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.tables import CKA, ENTROPY, GRAM, read_origin, read_table

HALF = 0.5  # share of the blocks in a half-sample


@dataclass(frozen=True)
class SetEntropy:
    """Shannon's E(S) of layer sets on the search rows; what was computed once is remembered.

    Args:
        grams: Unit-trace Gram matrix of each layer 0 … N, each (n, n).
        known: What was computed so far.
    """

    grams: Sequence[np.ndarray]
    known: dict[Layers, float] = field(default_factory=dict)

    def __call__(self, layers: Layers) -> float:
        """Return E(S) in nats."""
        if layers not in self.known:
            self.known[layers] = set_entropy([self.grams[layer] for layer in layers])
        return self.known[layers]


@dataclass(frozen=True)
class Evidence:
    """A model's geometry on all prompts, and what half-samples of them need.

    Args:
        whole: Geometry on all prompts.
        sums: Gram sums of the filtered rows by block.
        moments: What Shannon's S(l) of the filtered rows of some blocks needs, layer by layer.
        prompt_entropy: Shannon entropy of each prompt's filtered rows, (N + 1, prompts) nats; NaN where
            a prompt has fewer than two.
        prompt_block: Block of each prompt, (prompts,).
        lens: Logit-lens entropies of the sampled tokens.
    """

    whole: LayerGeometry
    sums: GramSums
    moments: Sequence[BlockMoments]
    prompt_entropy: np.ndarray
    prompt_block: np.ndarray
    lens: LensRows

    def half_samples(self, count: int, seed: int) -> Iterator[LayerGeometry]:
        """Yield the geometry of random halves of the blocks, drawn without replacement.

        Args:
            count: Half-samples wanted.
            seed: Seed of the draws.
        """
        generator = np.random.default_rng(seed)
        blocks = self.sums.n_blocks
        for _ in range(count):
            kept = np.zeros(blocks, bool)
            kept[generator.choice(blocks, size=max(1, int(blocks * HALF)), replace=False)] = True
            yield self.of_blocks(kept)

    def of_blocks(self, kept: np.ndarray) -> LayerGeometry:
        """Return the geometry of some blocks: S(l) is Shannon's to second order, E(S) of sets is of order 2.

        Args:
            kept: Which blocks count, (blocks,) bool; with all of them it is what half-samples are compared with.
        """
        found = similarity(self.sums, kept)
        entropy = np.array([moments.entropy(kept) for moments in self.moments])
        own = _mean_over_prompts(self.prompt_entropy[:, kept[self.prompt_block]])
        return LayerGeometry(entropy, own, found.debiased, found.gram, lens=self.lens.mean(kept))


def gather(dump: Dump, entropy: Path, cka: Path, gram: Path, config: GeometryConfig) -> Evidence:
    """Read the geometry tables, and from the dump what E(S) and half-samples need.

    Args:
        dump: Activation dump that the tables were measured on.
        entropy: ENTROPY table.
        cka: CKA table.
        gram: GRAM table.
        config: Settings of the geometry.

    Raises:
        UserError: A table is broken, or belongs to another model, another dump or other settings.
    """
    _refuse_strangers(dump, (entropy, cka, gram))
    sets = choose_rows(read_tokens(dump.parts), config)
    layers = dump.n_layers + 1
    similar = read_table(cka, CKA).query("subset == 'filtered' and estimator == 'debiased'")
    products = read_table(gram, GRAM).query("subset == 'filtered'")
    pooled, by_prompt = _entropies(read_table(entropy, ENTROPY), layers, sets.prompts)
    whole_products, parts = products[products["block_a"].isna()], products[products["block_a"].notna()]
    pairs = layers * (layers + 1) // 2
    expected = pairs * sets.n_blocks * (sets.n_blocks + 1) // 2
    tokens = {len(sets.rows["filtered"])}
    if (len(similar), len(whole_products), len(parts), set(similar["n_tokens"])) != (pairs, pairs, expected, tokens):
        raise UserError(f"{cka}: was not measured on this dump with these settings; delete it and run again")
    shannon, rows, moments = _from_dump(dump, sets, config)
    lens = lens_rows(dump.parts, sets, dump.n_layers)
    whole = LayerGeometry(
        entropy=pooled,
        prompt_entropy=_mean_over_prompts(by_prompt),
        cka=_symmetric(similar, "value", layers),
        gram=_symmetric(whole_products, "inner_product", layers),
        shannon=shannon,
        lens=lens.mean(),
    )
    sums = GramSums(_by_block(parts, layers, sets.n_blocks), rows, config.preprocessing == "centre")
    return Evidence(whole, sums, moments, by_prompt, sets.block, lens)


def _refuse_strangers(dump: Dump, paths: Sequence[Path]) -> None:
    """Check that tables are of the dump's model, and all of one run.

    Raises:
        UserError: One is not.
    """
    origins = [read_origin(path) for path in paths]
    for path, origin in zip(paths, origins, strict=True):
        if origin.get("model") != dump.model:
            raise UserError(f"{path}: is of model {origin.get('model')}, expected {dump.model}")
        if origin.get("fingerprint") != origins[0].get("fingerprint"):
            raise UserError(
                f"{path}: was measured in another run than {paths[0].name} (fingerprints {origin.get('fingerprint')}"
                f" and {origins[0].get('fingerprint')}); delete the folder and run again"
            )


def _entropies(table: pd.DataFrame, layers: int, prompts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return Shannon entropies of the filtered rows without sinks: pooled (layers,), by prompt (layers, prompts)."""
    wanted = table[(table["subset"] == "filtered") & ~table["sinks_kept"] & (table["alpha"] == 1)]
    pooled = wanted[wanted["sample_id"].isna()].set_index("layer")["entropy"]
    own = wanted[wanted["sample_id"].notna()].pivot(index="layer", columns="sample_id", values="entropy")
    by_prompt = own.reindex(index=range(layers), columns=list(prompts))
    return pooled.reindex(range(layers)).to_numpy(float), by_prompt.to_numpy(float)


def _mean_over_prompts(entropies: np.ndarray) -> np.ndarray:
    """Return the mean over the prompts that have an entropy, (layers,); NaN where none has."""
    counted = ~np.isnan(entropies)
    counts = counted.sum(axis=1)
    sums = np.where(counted, entropies, 0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _from_dump(dump: Dump, sets: RowSets, config: GeometryConfig) -> tuple[SetEntropy, RowSums, list[BlockMoments]]:
    """Read every layer once: its Gram matrix on the search rows, its sums and moments on the filtered rows."""
    rows = sets.rows["filtered"]
    search = search_sample(rows, config.search_rows, config.seed)
    block = sets.block_of(rows)
    grams, sums, moments = [], [], []
    for layer in tqdm(range(dump.n_layers + 1), desc="reading", unit="layer", disable=None, mininterval=1):
        states = read_layer(dump.parts, layer)
        grams.append(unit_trace_gram(states[search], layer, config.preprocessing))
        z = preprocess(states[rows], config.preprocessing)
        require_spread(states[rows], z, layer)
        z /= np.sqrt(np.square(z).sum())
        sums.append(layer_row_sums(z, block, sets.n_blocks))
        moments.append(block_moments(z, block, sets.n_blocks, config.preprocessing == "centre"))
    return SetEntropy(grams), join_row_sums(sums, block), moments


def _symmetric(pairs: pd.DataFrame, column: str, layers: int) -> np.ndarray:
    """Return a matrix of all pairs of layers from a table with each pair once."""
    matrix = np.empty((layers, layers))
    first, second = pairs["layer_a"].to_numpy(int), pairs["layer_b"].to_numpy(int)
    matrix[first, second] = matrix[second, first] = pairs[column].to_numpy(float)
    return matrix


def _by_block(pairs: pd.DataFrame, layers: int, blocks: int) -> np.ndarray:
    """Return inner products by pair of layers and pair of blocks, (layers, layers, blocks, blocks)."""
    first, second, left, right = (pairs[name].to_numpy(int) for name in ("layer_a", "layer_b", "block_a", "block_b"))
    products = np.empty((layers, layers, blocks, blocks))
    for a, b in ((first, second), (second, first)):
        products[a, b, left, right] = products[a, b, right, left] = pairs["inner_product"].to_numpy(float)
    return products
