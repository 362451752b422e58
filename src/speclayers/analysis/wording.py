"""Numbers, layer sets and settings as words, the same in the answer, the charts and the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from speclayers.errors import UserError
from speclayers.names import layers_of
from speclayers.tables import HELD_OUT, TRAIN

MISSING = "–"

SPLIT_IN_WORDS = {TRAIN: "training", HELD_OUT: "held-out"}
"""The training table's splits as adjectives of responses."""

FILTER_SCOPES = {"per_prompt": "share of each prompt", "pooled": "share of all", "absolute": "by threshold"}
"""What the token filter keeps a share of."""

TERMS = (
    (
        "target and drafter",
        "The target is the language model that answers; the drafter proposes tokens for it to check.",
    ),
    ("verification", "One forward pass of the target over a tree of proposed tokens; also called a cycle."),
    (
        "τ, mean accepted tokens per verification",
        "Proposed tokens that the target accepts in one verification, and the one token that it adds itself."
        " Without any drafter τ would be 1.",
    ),
    (
        "Δτ and its verdict",
        "τ of a set minus that of the reference's set, question by question. Higher, lower or not distinguishable: the"
        " verdict after Holm's correction, which asks more of each set the more sets are compared.",
    ),
    (
        "mean over questions, pooled",
        "The first counts every question alike; the second counts every verification alike, so that long answers weigh"
        " more.",
    ),
    (
        "limits, [a, b]",
        "An interval that holds the true value in about as many of 100 such studies as its level says: 95 at 95 %.",
    ),
    ("layer l", "The output of the target's block l; layer 0 is the embedding. {2, 15, 27} is a set of three layers."),
    ("head", "A trained EAGLE-3 drafter: a small network that reads the states of one set of layers."),
    ("k", "How many layers a set has, or was asked to have."),
    ("T", "Sampling temperature; at T = 0 the target always takes its likeliest token."),
    (
        "nodes",
        "Size of the tree that is verified, the token that it starts from counted; a chain is a tree of one path.",
    ),
    ("selector", "A rule that chooses layers before any head is trained; pinned sets are written in the config."),
    (
        "matrix entropy, E(S)",
        "How many directions the states of a layer, or of a set S of layers, spread over, in nats; S(l) is that of"
        " layer l. The selector lens goes by another entropy: how unsure a next token read off that layer would be.",
    ),
    (
        "order 2, E₂(S)",
        "A form of matrix entropy that is quick to compute; searches over many sets go by it where E(S) is too slow.",
    ),
    (
        "token filter",
        "Keeps the tokens at which the target was least certain of the next one (filtered); beside it, as a control,"
        " stand as many tokens drawn at random.",
    ),
    (
        "half-samples",
        "Random halves of the calibration prompts: a choice that comes back on most of them depends little on the"
        " prompts.",
    ),
    ("sink", "A token, mostly the first, whose states are so large that they hide all others; dropped by default."),
    ("turning point", "A layer after which the states change direction more than after most others."),
    ("CKA", "Similarity of two layers' states: 1 is the same up to rotation and scale, 0 unrelated."),
    ("seed", "Heads of several training seeds differ by chance alone; from three on, verdicts speak of layers."),
)
"""Words of the page for those who read of speculative decoding for the first time."""


_BREAKS = re.compile(r"(?<=\d) (?=%)|(?<=\b[kT]) (?== )|(?<=\b[kT] =) (?=\d)")


def unbroken(text: str) -> str:
    """Return a text whose numbers stay on one line with their per cent sign, and `T = 0` and `k = 3` as a whole."""
    return _BREAKS.sub("\u00a0", text)


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


def difference(value: float, low: float, high: float) -> str:
    """Return a difference with its sign and limits, such as `+0.171 [0.009, 0.332]`."""
    return f"{signed(value)} {interval(low, high, 3)}".rstrip()


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


def setting(temperature: float, nodes: float, chain: bool = False) -> str:
    """Return a temperature and a draft's size, such as `T = 0, 30 nodes`, or `T = 0, chain of 6 nodes`."""
    return f"T = {temperature:g}, {'chain of ' if chain else ''}{int(nodes)} nodes"


def draft_size(nodes: float, chain: bool) -> str:
    """Return a draft's size as a cell says it: `30` for a tree, `6, chain`."""
    return f"{int(nodes)}, chain" if chain else str(int(nodes))


def layers_in_words(layer_set: str) -> str:
    """Return a layer set as prose writes it, such as `{2, 15, 27}` for l02-l15-l27; a method's name as it is."""
    try:
        return f"{{{', '.join(str(layer) for layer in sorted(layers_of(layer_set)))}}}"
    except UserError:
        return layer_set


def drafter_in_words(layer_set: str, layers: Sequence[int] | None) -> str:
    """Return a layer set in words, and the layers of a head trained elsewhere: `pretrained.published {2, 9}`."""
    words = layers_in_words(layer_set)
    if layers is None or words != layer_set:
        return words
    return f"{words} {{{', '.join(str(int(layer)) for layer in layers)}}}"


def set_name(layer_set: str, selectors: str) -> str:
    """Return a layer set with who chose it, such as `{2, 15, 27} (eagle3)`."""
    words = layers_in_words(layer_set)
    return f"{words} ({selectors})" if selectors else words


def listed(words: Sequence[str], most: int = 4) -> str:
    """Join words with commas; beyond `most` only their number is told."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def joined(words: Sequence[str]) -> str:
    """Join words as a sentence does, such as `first, middle and last`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def confidence_level(confidence: float) -> str:
    """Return the level of the intervals, such as `95 %`."""
    return f"{confidence * 100:g} %"
