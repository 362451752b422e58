"""Which tokens count: response positions without sinks, the token-entropy filter and its random control."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from speclayers.config import GeometryConfig, Scope
from speclayers.errors import UserError

Subset = Literal["all", "filtered", "random"]
SUBSETS: tuple[Subset, ...] = get_args(Subset)

FEWEST_ROWS = 8
_BLOCKS, _CONTROL, _SEARCH = range(3)  # independent random streams under one seed


@dataclass(frozen=True)
class RowSets:
    """Rows of the dump that count, ordered by block, prompt and position.

    Args:
        rows: Row numbers of each subset, without sinks.
        first: Row number of position 0 of each prompt, (prompts,).
        prompt: Prompt of each row of the dump, as an index into `prompts`; -1 where no row counts.
        prompts: Sample ids, in the order of the dump.
        block: Block of each prompt, (prompts,).
    """

    rows: dict[Subset, np.ndarray]
    first: np.ndarray
    prompt: np.ndarray
    prompts: tuple[str, ...]
    block: np.ndarray

    @property
    def n_blocks(self) -> int:
        """Number of blocks of prompts."""
        return int(self.block.max()) + 1

    def subset(self, name: Subset, sinks_kept: bool = False) -> np.ndarray:
        """Return a subset's row numbers, with position 0 of each prompt added back if asked."""
        return self.ordered(np.concatenate([self.first, self.rows[name]])) if sinks_kept else self.rows[name]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return where these rows lie among those of `all`, for a store that holds only these."""
        place = np.full(len(self.prompt), -1)
        place[self.rows["all"]] = np.arange(len(self.rows["all"]))
        return np.asarray(place[rows])

    def ordered(self, rows: np.ndarray) -> np.ndarray:
        """Return row numbers ordered by block, prompt and place in the dump."""
        prompt = self.prompt[rows]
        order = np.lexsort((rows, prompt, self.block[prompt]))
        return np.asarray(rows[order])

    def block_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the block of each of these rows."""
        return np.asarray(self.block[self.prompt[rows]])


def choose_rows(tokens: pd.DataFrame, config: GeometryConfig) -> RowSets:
    """Choose the rows of every statistic.

    Args:
        tokens: One row a token of the dump: sample_id, position, is_response, predictive_entropy (nats), is_sink.
        config: Share, scope, blocks and seed.

    Raises:
        UserError: Too few usable tokens or prompts, a prompt without position 0, or a predictive entropy
            that is not a number.
    """
    usable = tokens["is_response"].to_numpy(bool) & ~tokens["is_sink"].to_numpy(bool)
    counted = tokens["sample_id"].where(usable)
    prompt, names = pd.factorize(counted)
    _check(int(usable.sum()), len(names), "usable response tokens")
    uncertainty = tokens["predictive_entropy"].to_numpy(float)
    if not np.isfinite(uncertainty[usable]).all():
        sample = tokens["sample_id"].to_numpy()[usable & ~np.isfinite(uncertainty)][0]
        raise UserError(f"activations: predictive_entropy of sample {sample} is not a number; delete the dump")
    rows = np.flatnonzero(usable)
    position = tokens["position"].to_numpy(int)
    kept = rows[_filter(uncertainty[rows], position[rows], prompt[rows], config)]
    _check(len(kept), len(np.unique(prompt[kept])), "tokens that pass the filter", config)
    control = random_control(rows, prompt, kept, np.random.default_rng((config.seed, _CONTROL)))
    all_prompts = pd.Index(names).get_indexer(tokens["sample_id"])
    sets = RowSets(
        rows={},
        first=_first_positions(all_prompts, position, names),
        prompt=all_prompts,
        prompts=tuple(map(str, names)),
        block=prompt_blocks(len(names), config.blocks, config.seed),
    )
    sets.rows.update({"all": sets.ordered(rows), "filtered": sets.ordered(kept), "random": sets.ordered(control)})
    return sets


def _filter(uncertainty: np.ndarray, position: np.ndarray, prompt: np.ndarray, config: GeometryConfig) -> np.ndarray:
    """Return the indices of the tokens that the config's filter keeps."""
    if config.filter_scope == "absolute":
        return uncertain_enough(uncertainty, config.entropy_threshold)
    return most_uncertain(uncertainty, position, prompt, config.keep_share, config.filter_scope)


def _check(rows: int, prompts: int, what: str, filtered: GeometryConfig | None = None) -> None:
    remedy = "raise corpus.calibration.count or max_new_tokens"
    if filtered is not None and filtered.filter_scope == "absolute":
        remedy = f"lower geometry.entropy_threshold, found {filtered.entropy_threshold:g} nats, or {remedy}"
    if rows < FEWEST_ROWS:
        raise UserError(f"activations: {rows} {what}, expected at least {FEWEST_ROWS}; {remedy}")
    if prompts < 2:
        raise UserError(f"activations: {what} come from {prompts} prompt, expected at least 2; {remedy}")


def _first_positions(prompt: np.ndarray, position: np.ndarray, names: pd.Index) -> np.ndarray:
    """Return the row of position 0 of each prompt."""
    rows = np.flatnonzero((position == 0) & (prompt >= 0))
    first = np.full(len(names), -1)
    first[prompt[rows]] = rows
    if (first < 0).any():
        raise UserError(f"activations: sample {names[int(np.argmin(first))]} has no position 0; delete the dump")
    return first


def share_count(share: float, count: int) -> int:
    """Return ⌈share · count⌉, not one too many where the product is a whole number up to rounding."""
    return math.ceil(share * count - 1e-9)


def most_uncertain(
    uncertainty: np.ndarray,
    position: np.ndarray,
    prompt: np.ndarray,
    share: float,
    scope: Scope = "per_prompt",
) -> np.ndarray:
    """Return the indices of the ⌈share · n⌉ tokens of highest predictive entropy.

    Args:
        uncertainty: Predictive entropy, (n,) nats.
        position: Position in the sequence, (n,); the lower one wins a tie.
        prompt: Prompt of each token, (n,); with the pooled scope the earlier one wins a tie.
        share: Share that is kept, in each prompt or over all.
        scope: Where the share is taken: per_prompt or pooled.

    Returns:
        Indices into the arguments, ascending.

    Raises:
        ValueError: The scope is absolute, which knows no share (a bug of the caller).
    """
    if scope == "absolute":
        raise ValueError("the absolute scope takes a threshold, not a share")
    if scope == "pooled":
        order = np.lexsort((position, prompt, -uncertainty))
        return np.sort(order[: share_count(share, len(order))])
    order = np.lexsort((position, -uncertainty, prompt))
    _, starts, counts = np.unique(prompt[order], return_index=True, return_counts=True)
    kept = [order[start : start + share_count(share, n)] for start, n in zip(starts, counts, strict=True)]
    return np.sort(np.concatenate(kept))


def uncertain_enough(uncertainty: np.ndarray, threshold: float) -> np.ndarray:
    """Return the indices of the tokens whose predictive entropy reaches a threshold, both in nats, ascending."""
    return np.flatnonzero(uncertainty >= threshold)


def random_control(
    rows: np.ndarray, prompt: np.ndarray, kept: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draw, in each prompt, as many of its rows as the filter keeps there.

    Args:
        rows: Row numbers to draw from, ascending.
        prompt: Prompt of each row of the dump.
        kept: Row numbers that the filter keeps, all among `rows`.
        generator: Source of the draws.

    Returns:
        Row numbers, ascending.
    """
    wanted = np.bincount(prompt[kept], minlength=prompt.max() + 1)
    drawn = [generator.choice(rows[prompt[rows] == p], size=n, replace=False) for p, n in enumerate(wanted)]
    return np.sort(np.concatenate(drawn))


def prompt_blocks(prompts: int, blocks: int, seed: int) -> np.ndarray:
    """Deal prompts to blocks at random, sizes differing by one at most.

    Args:
        prompts: Number of prompts.
        blocks: Blocks wanted; with fewer prompts every prompt is a block.
        seed: Seed of the dealing.

    Returns:
        Block of each prompt, (prompts,).
    """
    order = np.random.default_rng((seed, _BLOCKS)).permutation(prompts)
    block = np.empty(prompts, int)
    block[order] = np.arange(prompts) % min(blocks, prompts)
    return block


def search_sample(rows: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw the rows on which E(S) of layer sets is computed; all of them when there are no more.

    Args:
        rows: Row numbers.
        count: Rows wanted.
        seed: Seed of the draw.

    Returns:
        At most `count` of them, ascending.
    """
    if len(rows) <= count:
        return np.sort(rows)
    return np.sort(np.random.default_rng((seed, _SEARCH)).choice(rows, size=count, replace=False))
