"""What the token filter does to the variance of layer entropy between prompts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from speclayers.errors import UserError
from speclayers.geometry.jackknife import interval
from speclayers.geometry.tokens import RowSets, most_uncertain, share_count

SEGMENTS = ("first", "middle", "last")
_EFFECT = 3  # its own random stream, beside those of tokens.py


class EffectRows(NamedTuple):
    """Rows of the dump of each prompt that is long enough, equally many in every prompt.

    Args:
        all: The first L usable response rows, (prompts, L).
        filtered: The ⌈fL⌉ of highest predictive entropy among them, (prompts, ⌈fL⌉).
        random: As many drawn at random, (prompts, ⌈fL⌉).
    """

    all: np.ndarray
    filtered: np.ndarray
    random: np.ndarray


def effect_rows(sets: RowSets, uncertainty: np.ndarray, length: int, share: float, seed: int) -> EffectRows:
    """Choose the rows of the filter-effect table.

    Args:
        sets: Rows that count.
        uncertainty: Predictive entropy of every row of the dump, nats.
        length: Response tokens L of each prompt.
        share: Share f that the filter keeps.
        seed: Seed of the random control.

    Raises:
        UserError: Fewer than three prompts are long enough.
    """
    rows = np.sort(sets.rows["all"])
    own = [rows[sets.prompt[rows] == prompt] for prompt in range(len(sets.prompts))]
    first = [prompt[:length] for prompt in own if len(prompt) >= length]
    if len(first) < 3:
        raise UserError(
            f"geometry.effect_tokens: {len(first)} of {len(own)} prompts have {length} usable response tokens, "
            "expected at least 3; lower it or raise corpus.calibration.max_new_tokens"
        )
    generator = np.random.default_rng((seed, _EFFECT))
    count = share_count(share, length)
    order = np.arange(length)
    filtered = [p[most_uncertain(uncertainty[p], order, np.zeros(length, int), share)] for p in first]
    drawn = [np.sort(generator.choice(p, size=count, replace=False)) for p in first]
    return EffectRows(np.stack(first), np.stack(filtered), np.stack(drawn))


def variances(entropies: np.ndarray) -> np.ndarray:
    """Return the variance between prompts, averaged over the layers of each third of the depth.

    Args:
        entropies: S(l) of each prompt, (prompts, layers 1 … N), nats.

    Returns:
        (3,), nats².
    """
    by_layer = entropies.var(axis=0, ddof=1)
    return np.array([part.mean() if part.size else np.nan for part in np.array_split(by_layer, len(SEGMENTS))])


def filter_effect(everything: np.ndarray, filtered: np.ndarray, random: np.ndarray) -> pd.DataFrame:
    """Compute the filter-effect table, intervals by the jackknife over prompts.

    Args:
        everything: S(l) on all L rows, (prompts, layers 1 … N), nats.
        filtered: S(l) on the filtered rows, same shape.
        random: S(l) on the random rows, same shape.

    Returns:
        One row a segment, columns of FILTER_EFFECT.
    """
    prompts = len(everything)

    def measure(kept: np.ndarray) -> np.ndarray:
        return np.stack([variances(values[kept]) for values in (everything, filtered, random)])

    whole = measure(np.arange(prompts))
    without = np.stack([measure(np.delete(np.arange(prompts), prompt)) for prompt in range(prompts)])
    sizes = np.ones(prompts)
    value, each = _reductions(whole), _reductions(without)
    limits = interval(value, each, sizes)
    return pd.DataFrame(
        {
            "segment": SEGMENTS,
            "n_prompts": prompts,
            "variance_all": whole[0],
            "variance_filtered": whole[1],
            "variance_random": whole[2],
            "reduction": value[0],
            "reduction_low": limits.low[0],
            "reduction_high": limits.high[0],
            "reduction_random": value[1],
            "reduction_random_low": limits.low[1],
            "reduction_random_high": limits.high[1],
        }
    )


def _reductions(variance: np.ndarray) -> np.ndarray:
    """Return 1 − filtered / all and 1 − filtered / random, (..., 2, 3), from (..., 3 kinds, 3 segments)."""
    everything, filtered, random = np.moveaxis(variance, -2, 0)
    return np.stack([1 - filtered / everything, 1 - filtered / random], axis=-2)
