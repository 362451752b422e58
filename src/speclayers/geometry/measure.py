"""All geometry tables of one model, from its activation dump."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from speclayers.config import GeometryConfig
from speclayers.geometry.convergence import convergence
from speclayers.geometry.device import Device, open_device
from speclayers.geometry.dump import Dump, check_rows, read_layer, read_tokens
from speclayers.geometry.entropy import entropy_of
from speclayers.geometry.filter_effect import EffectRows, effect_rows, filter_effect
from speclayers.geometry.gram import GramSums, Similarity, gram_sums, similarity, without_each_block
from speclayers.geometry.jackknife import interval
from speclayers.geometry.lens import lens_profile, lens_rows
from speclayers.geometry.products import inner_products
from speclayers.geometry.profile import EntropyRow, layer_profile, prompt_spectra
from speclayers.geometry.rows import RowStore, create_store
from speclayers.geometry.shards import Shards, subset_rows
from speclayers.geometry.tokens import SUBSETS, RowSets, Subset, choose_rows
from speclayers.geometry.turning import layer_blocks, turning_points, turning_scores

_log = logging.getLogger(__name__)


class Geometry(NamedTuple):
    """The geometry tables, columns as in tables.py."""

    entropy: pd.DataFrame
    cka: pd.DataFrame
    gram: pd.DataFrame
    turning: pd.DataFrame
    filter_effect: pd.DataFrame
    convergence: pd.DataFrame
    lens: pd.DataFrame


def measure(dump: Dump, config: GeometryConfig, scratch: Path, shards: Shards | None = None) -> Geometry:
    """Measure entropy, CKA, Gram products, turning points, the filter's effect and how all this settles.

    Args:
        dump: The activation dump.
        config: What is measured. Shannon entropy is measured whatever the orders, as selectors need it.
        scratch: Folder for a float32 copy of the rows that count.
        shards: Where other jobs left the Gram products; they are formed here when not given.

    Raises:
        UserError: Too few tokens, a constant layer, states that are not finite, no such device, a broken shard.
    """
    device = open_device(config.device)
    tokens = read_tokens(dump.parts)
    sets = choose_rows(tokens, config)
    uncertainty = tokens["predictive_entropy"].to_numpy(float)
    effect = effect_rows(sets, uncertainty, config.effect_tokens, config.keep_share, config.seed)
    everything = sets.rows["all"]
    known = {} if shards is None else shards.products(dump.n_layers + 1, sets.n_blocks)
    store = create_store(scratch / "states.f32", (dump.n_layers + 1, len(everything), dump.width))
    alphas = sorted({1.0, *config.alpha})
    profile: list[EntropyRow] = []
    by_layer = []
    for layer, states in _layers(dump):
        store.put(layer, states[everything])
        profile += layer_profile(layer, states, sets, alphas, config)
        by_layer.append(_effect_entropies(states, effect, config))
    sums = {subset: _gram(store, sets, subset, config, device, known.get(subset)) for subset in SUBSETS}
    _warn_of_few_rows(len(sets.rows["filtered"]), dump.width)
    found = {subset: similarity(value) for subset, value in sums.items()}
    _warn_of_unknown_similarity(found["filtered"])
    return Geometry(
        entropy=pd.DataFrame(profile, columns=EntropyRow._fields).astype(
            dict.fromkeys(("share_of_maximum", "information_flow", "ci_low", "ci_high", "effective_rank"), float)
        ),
        cka=pd.concat([_cka_frame(subset, found[subset], sums[subset]) for subset in SUBSETS]),
        gram=pd.concat([_gram_frame(subset, found[subset], sums[subset]) for subset in SUBSETS]),
        turning=_turning_frame(found["filtered"], config),
        filter_effect=filter_effect(*np.stack(by_layer[1:], axis=-1)),
        convergence=convergence(sums["filtered"]),
        lens=lens_profile(lens_rows(dump.parts, sets, dump.n_layers), sets.n_blocks),
    )


def _layers(dump: Dump) -> Iterator[tuple[int, np.ndarray]]:
    """Read layer after layer, each (tokens, width)."""
    for layer in tqdm(range(dump.n_layers + 1), desc="entropy", unit="layer", disable=None, mininterval=1):
        states = read_layer(dump.parts, layer)
        check_rows(states, dump.tokens, layer)
        if layer % 10 == 0:
            _log.info("entropy: layer %d of %d", layer, dump.n_layers)
        yield layer, states


def _effect_entropies(states: np.ndarray, effect: EffectRows, config: GeometryConfig) -> np.ndarray:
    """Return Shannon entropy of each prompt on all, filtered and random rows, (3, prompts)."""
    return np.stack([entropy_of(prompt_spectra(states[rows], config.preprocessing)) for rows in effect])


def _gram(
    store: RowStore, sets: RowSets, subset: Subset, config: GeometryConfig, device: Device, known: np.ndarray | None
) -> GramSums:
    """Return the Gram sums of a subset; the store holds the rows of `all` in their order."""
    rows = subset_rows(store, sets, subset, config)
    products = inner_products(rows, sets.n_blocks, name=subset, device=device) if known is None else known
    return gram_sums(rows, sets.n_blocks, products)


def _warn_of_few_rows(rows: int, width: int) -> None:
    if rows < 4 * width:
        _log.warning(
            "%d filtered tokens are fewer than 4 × width %d: biased CKA is inflated; read the debiased one", rows, width
        )


def _warn_of_unknown_similarity(found: Similarity) -> None:
    unknown = np.flatnonzero(np.isnan(np.diagonal(found.debiased)))
    if unknown.size:
        _log.warning("too few filtered tokens differ for debiased CKA of layers %s: left empty", unknown.tolist())


def _cka_frame(subset: Subset, found: Similarity, sums: GramSums) -> pd.DataFrame:
    """Return both estimators of every pair of layers, each pair once."""
    without, sizes = without_each_block(sums)
    first, second = _pairs(len(found.gram))
    frames = []
    for estimator in ("debiased", "biased"):
        value = getattr(found, estimator)
        limits = interval(value, getattr(without, estimator), sizes)
        frames.append(
            pd.DataFrame(
                {
                    "layer_a": first,
                    "layer_b": second,
                    "estimator": estimator,
                    "subset": subset,
                    "n_tokens": len(sums.rows.block),
                    "value": value[first, second],
                    "ci_low": limits.low[first, second],
                    "ci_high": limits.high[first, second],
                }
            )
        )
    return pd.concat(frames)


def _gram_frame(subset: Subset, found: Similarity, sums: GramSums) -> pd.DataFrame:
    """Return Q of every pair of layers, and of the filtered rows also by pair of blocks, each pair once."""
    first, second = _pairs(len(found.gram))
    whole = pd.DataFrame({"layer_a": first, "layer_b": second, "inner_product": found.gram[first, second]})
    frames = [whole.assign(block_a=None, block_b=None)]
    if subset == "filtered":
        blocks_a, blocks_b = _pairs(sums.n_blocks)
        values = sums.products[first[:, None], second[:, None], blocks_a, blocks_b]
        parts = whole.loc[whole.index.repeat(len(blocks_a))].assign(inner_product=values.ravel())
        frames.append(parts.assign(block_a=np.tile(blocks_a, len(first)), block_b=np.tile(blocks_b, len(first))))
    frame = pd.concat([f.astype({"block_a": "Int32", "block_b": "Int32"}) for f in frames])
    return frame.assign(subset=subset)


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs, the first not above the second."""
    first, second = np.triu_indices(count)
    return first, second


def _turning_frame(found: Similarity, config: GeometryConfig) -> pd.DataFrame:
    """Return the turning table; the last layer has no next one, hence no score."""
    scores = turning_scores(found.debiased, config.turning_score)
    points = turning_points(scores)
    return pd.DataFrame(
        {
            "layer": np.arange(len(scores) + 1),
            "score": np.append(scores, np.nan),
            "is_turning_point": np.append(points, False),
            "block": layer_blocks(points),
        }
    )
