"""Prompts made up by a small grammar, for training and calibration where no data set can be fetched.

The grammar is data: `bundled/prompt_parts.json` maps each symbol to its options. An option is text with
slots, and a slot is filled as follows:

    {town}             one of the options of `town`, expanded in turn
    {town:a}           the same, but every `{town:a}` of a prompt is the same town
    {person:a.name}    the field `name` of an option that is an object
    {^town}            the same with a capital first letter
    {20-60}            a whole number from 20 to 60, ends included (a label may follow here, too)
    {n*m+k}            one of the numbers of `_draw_numbers`, which fit together in a sum

A prompt never uses an option of one symbol twice, so two towns of a prompt are two different towns.
"""

import json
import random
import re
from functools import cache
from importlib.resources import files

from speclayers.corpus.prompts import Prompt
from speclayers.corpus.questions import CATEGORIES

Option = str | dict[str, str]

_SLOT = re.compile(r"\{(?P<capital>\^?)(?P<symbol>[^{}:.^]+)(?::(?P<label>\w+))?(?:\.(?P<field>\w+))?\}")
_RANGE = re.compile(r"(\d+)-(\d+)")
_ATTEMPTS = 1000  # draws that may repeat an earlier prompt before the grammar counts as exhausted


def generate_prompts(count: int, seed: int) -> list[Prompt]:
    """Make up `count` distinct single-turn prompts, the six categories in rotation.

    The list depends on nothing but its arguments, and a longer list starts with the shorter one.

    Args:
        count: How many prompts to make; at least 4,000 are available for any seed.
        seed: Seeds the random choices; it is part of the prompt ids as well.

    Raises:
        ValueError: If the grammar has no further prompt to offer.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    prompts = []
    for index in range(count):
        category = CATEGORIES[index % len(CATEGORIES)]
        text = _draw_new_text(category, rng, seen)
        seen.add(text)
        prompts.append(Prompt(f"generated-{seed}-{index:06d}", category, (text,)))
    return prompts


def _draw_new_text(category: str, rng: random.Random, seen: set[str]) -> str:
    """Draw a text of `category` that is not among those `seen`."""
    for _ in range(_ATTEMPTS):
        text = _Expansion(rng).expand("{" + category + "}")
        if text not in seen:
            return text
    raise ValueError(f"no new {category} prompt in {_ATTEMPTS} draws after {len(seen)} prompts in all")


@cache
def _options() -> dict[str, list[Option]]:
    """The bundled grammar: the options of each symbol."""
    text = files("speclayers.corpus").joinpath("bundled/prompt_parts.json").read_text(encoding="utf-8")
    options: dict[str, list[Option]] = json.loads(text)
    return options


class _Expansion:
    """The making of one prompt: what its labels stand for and which options are used up."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = _draw_numbers(rng)
        self._labelled: dict[tuple[str, str], Option] = {}
        self._used: dict[str, set[int]] = {}

    def expand(self, text: str) -> str:
        """Fill every slot of `text`, and the slots of what fills them."""
        return _SLOT.sub(self._fill, text)

    def _fill(self, slot: re.Match[str]) -> str:
        symbol, label, field = slot["symbol"], slot["label"], slot["field"]
        if label is None:
            option = self._draw(symbol)
        else:
            if (symbol, label) not in self._labelled:
                self._labelled[symbol, label] = self._draw(symbol)
            option = self._labelled[symbol, label]
        text = option if isinstance(option, str) else option[field]
        return text[:1].upper() + text[1:] if slot["capital"] else text

    def _draw(self, symbol: str) -> Option:
        """Draw what a slot stands for, with the slots in it filled."""
        if symbol in self._numbers:
            return str(self._numbers[symbol])
        if limits := _RANGE.fullmatch(symbol):
            return str(self._rng.randint(int(limits[1]), int(limits[2])))
        options = _options()[symbol]
        used = self._used.setdefault(symbol, set())
        choice = self._rng.choice([index for index in range(len(options)) if index not in used])
        used.add(choice)
        option = options[choice]
        return self.expand(option) if isinstance(option, str) else option


def _draw_numbers(rng: random.Random) -> dict[str, int]:
    """Draw the numbers of a sum such that the sums of the grammar come out even.

    `k` is a multiple of `m`, both `m` and `n` are smaller than `k`, and `h` counts hundreds.
    """
    n = rng.randint(3, 11)
    m = rng.randint(2, 8)
    k = m * rng.randint(6, 10)
    h = rng.randint(12, 30)
    return {
        "n": n,
        "m": m,
        "k": k,
        "percent": rng.choice((20, 50, 60, 75, 80)),
        "n+m": n + m,
        "n*m": n * m,
        "n*k": n * k,
        "n*m+k": n * m + k,
        "n*m+k*n": n * m + k * n,
        "m+10": m + 10,
        "2m": 2 * m,
        "3m": 3 * m,
        "4m": 4 * m,
        "5m": 5 * m,
        "2k+n": 2 * k + n,
        "10n": 10 * n,
        "10m": 10 * m,
        "10k": 10 * k,
        "100h": 100 * h,
        "10h(n+m)": 10 * h * (n + m),
    }
