"""What every figure of the report shares: data in, a titled and captioned Vega-Lite chart out."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's colours without yellow, which is lost on white, and with grey instead of black, lost on dark."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3], [10, 4])
"""One shape and dash a colour, so that colour alone never tells series apart."""

MOST_SERIES = len(COLOURS)

TITLE_WIDTH, CAPTION_WIDTH = 92, 118
"""Letters in a line of a file's title and caption: about as wide as the charts."""

LABEL_WIDTH = 250
"""Pixels of the longest label; longer ones end in an ellipsis and are whole in the tooltip."""

PICKED = "picked"
"""Parameter of charts that follow the page: the sets that its reader picked, in words; empty for all."""

FAINT = 0.15
"""Opacity of what is not picked."""

INK, RULE = "#1b1f24", "#c9ced6"
PAGE_INK, PAGE_RULE = "currentColor", "var(--rule)"
PAPER, PAGE_PAPER = "#ffffff", "var(--paper)"

HALO = "halo"
"""Style of a text drawn below itself in the paper's colour, so that no line strikes it through."""

_FONT = "Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A chart with what a reader needs beside it.

    Args:
        name: File name without its ending.
        title: What the data say, in a sentence.
        caption: Units, numbers behind it and how to read it.
        chart: Vega-Lite specification without a title; ink and rules are CSS on the page.
    """

    name: str
    title: str
    caption: str
    chart: dict[str, Any]

    @property
    def alt(self) -> str:
        """Text for those who cannot see the chart."""
        return f"{self.title}. {self.caption}"

    @property
    def has_switches(self) -> bool:
        """Whether a reader can switch between views of it."""
        return any("bind" in parameter for parameter in self.chart.get("params", []))

    def for_page(self) -> dict[str, Any]:
        """Return the specification whose text and lines take the page's colours, light, dark or printed."""
        return self.chart | {"config": _config(PAGE_INK, PAGE_RULE, PAGE_PAPER)}

    def for_file(self) -> dict[str, Any]:
        """Return the specification for a file of its own, with title and caption, on white."""
        return self.chart | {"config": _config(INK, RULE, PAPER)} | self.frame

    @property
    def frame(self) -> dict[str, Any]:
        """What a file has around the chart: title, caption, paper."""
        text = {"text": _lines(self.title, TITLE_WIDTH), "fontSize": 13, "lineHeight": 17}
        text |= {"subtitle": _lines(self.caption, CAPTION_WIDTH), "subtitleFontSize": 11}
        text |= {"subtitleLineHeight": 15, "subtitlePadding": 6, "anchor": "start", "frame": "bounds", "offset": 14}
        return {"title": text, "background": "white", "padding": 14}


def _lines(text: str, width: int) -> list[str]:
    """Break a text into lines, never between a number and its per cent sign."""
    return textwrap.wrap(text.replace(" %", "\u00a0%"), width) or [""]


def _config(ink: str, rule: str, paper: str) -> dict[str, Any]:
    text = {"labelColor": ink, "titleColor": ink, "labelFont": _FONT, "titleFont": _FONT}
    return {
        "background": "transparent",
        "font": _FONT,
        "axis": text
        | {"gridColor": rule, "gridOpacity": 0.6, "domainColor": rule, "tickColor": rule, "labelFontSize": 11}
        | {"labelLimit": LABEL_WIDTH, "titleFontWeight": "normal"},
        "legend": text
        | {"labelLimit": LABEL_WIDTH + 60, "symbolStrokeWidth": 2, "titleFontWeight": "normal", "labelFontSize": 11},
        "header": text | {"titleFontWeight": "normal", "labelFontWeight": "bold", "labelFontSize": 11},
        "title": {"color": ink, "font": _FONT, "subtitleColor": ink, "subtitleFont": _FONT},
        "text": {"color": ink, "font": _FONT},
        "rule": {"color": ink},
        "style": {HALO: {"stroke": paper, "strokeWidth": 4}},
        "view": {"stroke": rule},
    }


def file_name(kind: str, model: str) -> str:
    """Return the name of a model's figure, safe as a file's whatever the model is called."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', model)}"


class _Rows(alt.InlineData):
    """Data of a chart, shared by all copies: Altair copies a chart whenever it is put into another."""

    def __deepcopy__(self, _: Any) -> _Rows:
        return self


def records(frame: pd.DataFrame) -> alt.InlineData:
    """Return rows as data of a chart: numbers of seven digits, which halves a page; what is not finite becomes null."""
    columns = {str(name): [_plain(value) for value in frame[name]] for name in frame.columns}
    values = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return _Rows(values=values)


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return str(value)


def with_limits(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows whose interval is known: a rule with one end missing would run to zero."""
    return frame.dropna(subset=[f"{name}_low", f"{name}_high"])


class Series(NamedTuple):
    """Scales of named series, so that each has its colour, shape and dash in every panel."""

    colour: alt.Scale
    shape: alt.Scale
    dash: alt.Scale


def series(names: Sequence[str]) -> Series:
    """Return the scales of at most MOST_SERIES named series, in this order."""
    domain = list(names)
    n = len(domain)
    return Series(
        colour=alt.Scale(domain=domain, range=list(COLOURS[:n])),
        shape=alt.Scale(domain=domain, range=list(SHAPES[:n])),
        dash=alt.Scale(domain=domain, range=[list(dash) for dash in DASHES[:n]]),
    )


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Return the fields shown when a mark is pointed at, numbers with at most three decimals."""
    return [alt.Tooltip(field, format=".3~f") if field.endswith(":Q") else alt.Tooltip(field) for field in fields]


def heading(text: str | alt.ExprRef) -> alt.Title:
    """Return the heading of one panel; an expression follows the chart's switches."""
    return alt.Title(text, fontSize=11.5, anchor="start", fontWeight="bold", offset=6)


def faded() -> Any:
    """Return the opacity of marks whose rows have a column `set`: faint where others are picked."""
    return alt.condition(f"!length({PICKED}) || indexof({PICKED}, datum.set) >= 0", alt.value(1), alt.value(FAINT))


AnyChart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart


def specification(chart: AnyChart, *, linked: bool = False) -> dict[str, Any]:
    """Return a chart's Vega-Lite specification, without the look that `Figure` adds.

    Altair checks every part as it is made; a second check of the whole would double the time.

    Args:
        chart: The chart.
        linked: Whether its marks fade with `faded`.
    """
    built: dict[str, Any] = chart.to_dict(validate=False)
    built.pop("config", None)
    if linked:
        built["params"] = [*built.get("params", []), {"name": PICKED, "value": []}]
    return built


def padded(values: pd.Series, share: float = 0.08) -> list[float]:
    """Return a domain a little wider than the finite values."""
    known = values[np.isfinite(values.astype(float))]
    if known.empty:
        return [0.0, 1.0]
    low, high = float(known.min()), float(known.max())
    margin = (high - low) * share or max(abs(high) * share, 0.1)
    return [low - margin, high + margin]
