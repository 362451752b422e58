"""Questions that nobody answers, because the model has no room for one of their turns."""

from __future__ import annotations

import pandas as pd


def answered(baseline: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of table BASELINE that plain decoding, and so every drafter, answered."""
    return baseline[_fits(baseline)].reset_index(drop=True)


def skipped(baseline: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of table BASELINE that name the skipped questions, each by its first turn without room."""
    return baseline[~_fits(baseline)].reset_index(drop=True)


def _fits(baseline: pd.DataFrame) -> pd.Series:
    return baseline["positions"] <= baseline["limit"]
