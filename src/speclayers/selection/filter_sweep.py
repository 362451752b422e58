"""The token filter at many shares: what it does to entropies, and which layers would be chosen there.

Two things are kept cheap. Prompts are compared on their first L tokens, whose small Gram matrices are formed
once per layer and cut down for every setting. Sets are searched by order 2 from Q, which needs no eigenvalues,
on at most SET_ROWS rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from speclayers.config import GeometryConfig, Preprocessing, Scope
from speclayers.geometry.dump import Dump, check_rows, read_layer, read_tokens
from speclayers.geometry.entropy import ConstantLayerError, entropy_of, gram_spectra
from speclayers.geometry.filter_effect import SEGMENTS, effect_rows, variances
from speclayers.geometry.gram import gram_sums, similarity
from speclayers.geometry.jackknife import interval
from speclayers.geometry.rows import RowStore, create_store, open_rows
from speclayers.geometry.tokens import (
    FEWEST_ROWS,
    RowSets,
    choose_rows,
    most_uncertain,
    random_control,
    search_sample,
    uncertain_enough,
)
from speclayers.selection.layer_geometry import LayerGeometry, LayerOptions
from speclayers.selection.selectors import elsi

_log = logging.getLogger(__name__)

SET_ROWS = 1024
SIZES = (1, 3)
_SWEEP = 4  # its own random stream, beside those of tokens.py and filter_effect.py


class Sweep(NamedTuple):
    """The sweep's tables, columns as in tables.py."""

    filter_sweep: pd.DataFrame
    filter_sets: pd.DataFrame


class Setting(NamedTuple):
    """One point of the sweep.

    Args:
        scope: Where the share is taken.
        share: Share kept; for the absolute scope the share that the threshold happens to keep of all rows.
        subset: filtered, or random at equal numbers.
        rows: Row numbers of the dump, ordered by block, prompt and position.
        mask: Which of the prompts' first L rows are kept, (prompts, L) bool.
    """

    scope: Scope
    share: float
    subset: str
    rows: np.ndarray
    mask: np.ndarray


def filter_sweep(dump: Dump, config: GeometryConfig, scratch: Path) -> Sweep:
    """Sweep the share of tokens that the filter keeps, in each of its scopes, beside random tokens.

    Args:
        dump: The activation dump.
        config: Shares, threshold, preprocessing, `effect_tokens` and seed; its own filter does not matter.
        scratch: Folder for a float32 copy of the rows that count.

    Raises:
        UserError: Too few tokens or long prompts, a constant layer, states that are not finite.
    """
    tokens = read_tokens(dump.parts)
    sets = choose_rows(tokens, config.model_copy(update={"filter_scope": "per_prompt", "keep_share": 1.0}))
    uncertainty = tokens["predictive_entropy"].to_numpy(float)
    first = effect_rows(sets, uncertainty, config.effect_tokens, 1.0, config.seed).all
    settings = list(_settings(sets, first, uncertainty, config))
    everything = sets.rows["all"]
    store = create_store(scratch / "states.f32", (dump.n_layers + 1, len(everything), dump.width))
    entropies = []
    for layer in tqdm(range(dump.n_layers + 1), desc="sweep", unit="layer", disable=None, mininterval=1):
        states = read_layer(dump.parts, layer)
        check_rows(states, dump.tokens, layer)
        store.put(layer, states[everything])
        if layer > 0:
            entropies.append(_prompt_entropies(states[first], settings, config.preprocessing))
    by_setting = np.stack(entropies, axis=-1)  # (settings, prompts, layers 1 … N)
    return Sweep(
        filter_sweep=pd.concat(
            [_sweep_rows(setting, values) for setting, values in zip(settings, by_setting, strict=True)]
        ),
        filter_sets=pd.DataFrame(list(_set_rows(settings, sets, store, config))),
    )


# ---------------------------------------------------------------- which tokens


def _settings(sets: RowSets, first: np.ndarray, uncertainty: np.ndarray, config: GeometryConfig) -> Iterator[Setting]:
    """Yield filtered and random tokens for every scope and share."""
    rows = np.sort(sets.rows["all"])
    prompt, place = sets.prompt[rows], np.arange(len(rows))
    for scope in ("per_prompt", "pooled"):
        for share in sorted(config.sweep_shares):
            kept = rows[most_uncertain(uncertainty[rows], place, prompt, share, scope)]
            long = _kept_of_first(first, uncertainty, share, scope)
            yield from _both(sets, first, scope, share, kept, long, config.seed)
    kept = rows[uncertain_enough(uncertainty[rows], config.entropy_threshold)]
    long = uncertainty[first] >= config.entropy_threshold
    yield from _both(sets, first, "absolute", len(kept) / len(rows), kept, long, config.seed)


def _kept_of_first(first: np.ndarray, uncertainty: np.ndarray, share: float, scope: Scope) -> np.ndarray:
    """Mark which of the prompts' first L rows the filter keeps, applied to them alone, (prompts, L)."""
    prompts, length = first.shape
    prompt, place = np.repeat(np.arange(prompts), length), np.tile(np.arange(length), prompts)
    mask = np.zeros(first.size, bool)
    mask[most_uncertain(uncertainty[first.ravel()], place, prompt, share, scope)] = True
    return mask.reshape(first.shape)


def _both(
    sets: RowSets, first: np.ndarray, scope: Scope, share: float, kept: np.ndarray, long: np.ndarray, seed: int
) -> Iterator[Setting]:
    """Yield the filter's tokens and as many random ones of each prompt."""
    generator = np.random.default_rng((seed, _SWEEP))
    yield Setting(scope, share, "filtered", sets.ordered(kept), long)
    control = random_control(np.sort(sets.rows["all"]), sets.prompt, kept, generator)
    order = generator.random(first.shape).argsort(axis=1).argsort(axis=1)
    yield Setting(scope, share, "random", sets.ordered(control), order < long.sum(axis=1, keepdims=True))


# ---------------------------------------------------------------- entropies of prompts


def _prompt_entropies(states: np.ndarray, settings: list[Setting], how: Preprocessing) -> np.ndarray:
    """Return Shannon's S(l) of each prompt in each setting, (settings, prompts); NaN below two rows.

    Args:
        states: The prompts' first L rows, (prompts, L, width).
        settings: What is kept of them.
        how: Preprocessing, over the rows that are kept.
    """
    states = states.astype(np.float64)
    if how in ("centre", "centre_row_norm"):
        states -= states.mean(axis=1, keepdims=True)  # a shift changes nothing there, and keeps digits
    gram = states @ states.transpose(0, 2, 1)
    found = np.full((len(settings), len(states)), np.nan)
    for place, setting in enumerate(settings):
        counts = setting.mask.sum(axis=1)
        for count in np.unique(counts[counts >= 2]):
            prompts = np.flatnonzero(counts == count)
            kept = np.nonzero(setting.mask[prompts])[1].reshape(len(prompts), count)
            part = gram[prompts[:, None, None], kept[:, :, None], kept[:, None, :]]
            found[place, prompts] = entropy_of(gram_spectra(part, how))
    return found


def _sweep_rows(setting: Setting, entropies: np.ndarray) -> pd.DataFrame:
    """Return one setting's rows of FILTER_SWEEP.

    Args:
        setting: The setting.
        entropies: S(l) of each prompt, (prompts, layers 1 … N); NaN where a prompt keeps fewer than two rows.
    """
    known = np.isfinite(entropies).all(axis=1)
    values = entropies[known]
    prompts = len(values)
    variance = low = high = mean = np.full(len(SEGMENTS), np.nan)
    if prompts >= 3:
        variance = variances(values)
        without = np.stack([variances(np.delete(values, prompt, axis=0)) for prompt in range(prompts)])
        low, high = interval(variance, without, np.ones(prompts))
        parts = np.array_split(values.mean(axis=0), len(SEGMENTS))
        mean = np.array([part.mean() if part.size else np.nan for part in parts])
    return pd.DataFrame(
        {
            "scope": setting.scope,
            "share": setting.share,
            "subset": setting.subset,
            "segment": SEGMENTS,
            "n_prompts": prompts,
            "n_tokens": int(setting.mask[known].sum()),
            "entropy": mean,
            "variance": variance,
            "variance_low": low,
            "variance_high": high,
        }
    )


# ---------------------------------------------------------------- sets


def _set_rows(
    settings: list[Setting], sets: RowSets, store: RowStore, config: GeometryConfig
) -> Iterator[dict[str, object]]:
    """Yield the rows of FILTER_SETS.

    A setting of fewer than FEWEST_ROWS rows, or of rows that do not differ in some layer, has none.
    """
    known: dict[bytes, np.ndarray] = {}
    for setting in tqdm(settings, desc="sets", disable=None, mininterval=1):
        rows = sets.ordered(search_sample(setting.rows, SET_ROWS, config.seed))
        if len(rows) < FEWEST_ROWS:
            continue
        key = rows.tobytes()  # at share 1 all scopes and subsets keep the same rows
        if key not in known:
            block = np.zeros(len(rows), int)  # one block: nothing is left out here
            try:
                opened = open_rows(store, sets.places(rows), block, config.preprocessing)
            except ConstantLayerError as error:
                _log.warning("%s, %s share %g: no sets; %s", setting.scope, setting.subset, setting.share, error)
                continue
            known[key] = similarity(gram_sums(opened, 1)).gram
        for k in SIZES:
            if k < store.n_layers:
                layers = _elsi(known[key], k)
                head = {"scope": setting.scope, "share": setting.share, "subset": setting.subset}
                yield head | {"n_tokens": len(rows), "k": k, "layers": list(layers)}


def _elsi(gram: np.ndarray, k: int) -> tuple[int, ...]:
    """Return what `elsi` chooses by order 2.

    Args:
        gram: Q, (layers, layers).
        k: Layers wanted.
    """
    entropy = -np.log(np.diagonal(gram))
    unknown = np.full(gram.shape, np.nan)  # no option of elsi looks at CKA
    geometry = LayerGeometry(entropy, entropy, unknown, gram)
    (choice,) = elsi.choose(geometry, k, LayerOptions(), np.random.default_rng(0))
    return choice.layers
