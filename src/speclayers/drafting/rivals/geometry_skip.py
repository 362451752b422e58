"""Blocks that CKA calls redundant are skipped: no search while decoding, no training."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from speclayers.drafting.rival import Given, Rival
from speclayers.drafting.skip_options import BlockOptions
from speclayers.drafting.skipping import SkippingDrafter
from speclayers.errors import UserError
from speclayers.geometry.redundancy import redundant_blocks
from speclayers.tables import CKA, read_table
from speclayers.targets.skipping import Skipped

NEEDS = ("cka",)
STARTS_ANEW = True


class Options(BlockOptions):
    """Which tokens' CKA is read."""

    subset: Literal["all", "filtered", "random"] = Field("all", description="Tokens that CKA is measured on.")


def build(given: Given, options: Options) -> SkippingDrafter:
    """Skip the blocks whose leaving out costs least CKA."""
    matrix = _matrix(read_table(given.files["cka"], CKA), options.subset, given.target.n_layers)
    unknown = np.argwhere(np.isnan(matrix))
    if len(unknown):
        first, second = unknown[0]
        raise UserError(
            f"{given.key}: CKA of layers {first} and {second} is not known, as too few tokens differ; raise "
            "geometry.max_tokens"
        )
    blocks = redundant_blocks(matrix, options.count(given), options.free(given))
    return SkippingDrafter(given.target, str(given.name), options.chain(given), Skipped.blocks(blocks))


def _matrix(cka: pd.DataFrame, subset: str, n_layers: int) -> np.ndarray:
    """Return debiased CKA of every pair of layers (N + 1, N + 1); NaN where it is not known."""
    rows = cka[(cka["estimator"] == "debiased") & (cka["subset"] == subset)]
    matrix = np.full((n_layers + 1, n_layers + 1), np.nan)
    np.fill_diagonal(matrix, 1.0)
    first, second = rows["layer_a"].to_numpy(), rows["layer_b"].to_numpy()
    matrix[first, second] = matrix[second, first] = rows["value"].to_numpy()
    return matrix


RIVAL = Rival(build, Options)
