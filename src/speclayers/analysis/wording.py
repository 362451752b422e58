"""Numbers, layer sets and settings as words, the same in the answer, the charts and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

MISSING = "–"


def number(value: Any, digits: int = 2) -> str:
    """Return a number with a true minus sign; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """Return a number that shows its sign."""
    text = number(value, digits)
    return text if text[0] in f"−{MISSING}" else f"+{text}"


def percent(value: Any, digits: int = 0) -> str:
    """Return a share in per cent."""
    text = number(None if value is None else value * 100, digits)
    return text if text == MISSING else f"{text} %"


def interval(low: float, high: float, digits: int = 2) -> str:
    """Return limits in brackets; nothing where they are not known."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def estimate(value: float, low: float, high: float, digits: int = 2) -> str:
    """Return an estimate with its limits."""
    return f"{number(value, digits)} {interval(low, high, digits)}".rstrip()


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, such as `1 set` or `3 sets`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def span(counts: Iterable[float], noun: str) -> str:
    """Return the range of some counts with their noun, such as `2 to 8 questions`."""
    known = [int(value) for value in counts if math.isfinite(value)]
    if not known:
        return f"no {noun}s"
    low, high = min(known), max(known)
    return count(high, noun) if low == high else f"{low:,} to {high:,} {noun}s"


def setting(temperature: float, nodes: float) -> str:
    """Return a temperature and a tree size, such as `T = 0, 30 nodes`."""
    return f"T = {temperature:g}, {int(nodes)} nodes"


def set_name(layer_set: str, selectors: str) -> str:
    """Return a layer set with who chose it, such as `l02-l15-l27 (eagle3)`."""
    return f"{layer_set} ({selectors})" if selectors else layer_set


def listed(words: Sequence[str], most: int = 4) -> str:
    """Join words with commas; beyond `most` only their number is told."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def confidence_level(confidence: float) -> str:
    """Return the level of the intervals, such as `95 %`."""
    return f"{confidence * 100:g} %"
