"""The answer in three lines: what was asked, what was found, what must be kept in mind."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from speclayers.analysis.statistics import SEEDS_FOR_LAYERS
from speclayers.analysis.study import HEADLINE_METRIC, Study, rows_of, settings_of
from speclayers.analysis.wording import (
    count,
    estimate,
    interval,
    listed,
    number,
    percent,
    set_name,
    setting,
    signed,
    span,
)


class Answer(NamedTuple):
    """Three lines of plain text; `found` holds one sentence a model."""

    asked: str
    found: list[str]
    caveat: str

    def text(self) -> str:
        """Return three lines."""
        found = " ".join(self.found)
        return "\n".join((f"Asked: {self.asked}", f"Found: {found}", f"Keep in mind: {self.caveat}")) + "\n"


def answer(study: Study) -> Answer:
    """Say in words what a study asked and found."""
    asked = (
        f"which layers of {listed(study.models, 6)} should feed an EAGLE-3 drafter, judged by the mean tokens"
        f" accepted per verification (τ, mean over questions) against the layers of {study.reference}?"
    )
    return Answer(asked, [finding(study, model) for model in study.models], _caveat(study))


# ---------------------------------------------------------------- what was found


def headline_comparisons(study: Study, model: str) -> pd.DataFrame:
    """Return one model's comparisons of the τ that the answer speaks of."""
    rows = study.comparisons
    return rows[(rows["model"] == model) & (rows["metric"] == HEADLINE_METRIC)]


def finding(study: Study, model: str) -> str:
    """Say in one sentence what was found for a model."""
    tau = study.tau[study.tau["model"] == model]
    rows = headline_comparisons(study, model)
    if tau.empty:
        return f"{model}: no acceptance was measured, so nothing is known beyond the geometry; {_chosen(study, model)}."
    if rows.empty:
        pairs = tau[["layer_set", "selectors"]].drop_duplicates().itertuples(index=False)
        only = listed([set_name(*pair) for pair in pairs])
        best = number(tau["tau_question"].max())
        return (
            f"{model}: measured was only {only} (τ at most {best}), so nothing can be compared with {study.reference}."
        )
    groups = [(setting(temperature, nodes), part) for temperature, nodes, part in settings_of(rows)]
    first = _at_setting(study, model, groups[0][1], groups[0][0])
    return f"{model}: {'; '.join([first, *_elsewhere(groups)])}."


def _elsewhere(groups: list[tuple[str, pd.DataFrame]]) -> list[str]:
    """Say at which other settings the verdicts are the first one's, and what they are where not."""
    found = [(where, _decided(rows)) for where, rows in groups]
    same = [where for where, decided in found[1:] if decided == found[0][1]]
    words = [f"the verdicts are the same at {listed(same)}"] if same else []
    for where, (higher, lower) in found[1:]:
        if (higher, lower) != found[0][1]:
            told = [f"{listed(sets)} {word}" for word, sets in (("higher", higher), ("lower", lower)) if sets]
            words.append(f"at {where}: {' and '.join(told) or 'no set'} {'' if told else 'distinguishable'}".rstrip())
    return words


def _decided(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    by_name = rows.sort_values("layer_set")
    higher, lower = (list(by_name[by_name["verdict"] == word]["layer_set"]) for word in ("higher", "lower"))
    return higher, lower


def _chosen(study: Study, model: str) -> str:
    rows = study.selected[study.selected["model"] == model]
    if rows.empty:
        return "no selector chose layers"
    return "chosen were " + listed([set_name(*pair) for pair in zip(rows["layer_set"], rows["label"], strict=True)])


def _at_setting(study: Study, model: str, rows: pd.DataFrame, where: str) -> str:
    reference = _reference(study, model, rows)
    parts = []
    for word in ("higher", "lower"):
        found = [_named(row) for row in rows_of(rows[rows["verdict"] == word])]
        if found:
            parts.append(f"{word}: {listed(found)}")
    same = rows[rows["verdict"] == "not distinguishable"]
    if len(same) == len(rows):
        parts.append(f"no other set is distinguishable from them ({count(len(rows), 'set')} compared)")
    elif len(same):
        parts.append(f"not distinguishable: {listed(list(same['layer_set']))}")
    unmeasured = int((rows["verdict"] == "not measured").sum())
    if unmeasured:
        parts.append(f"{count(unmeasured, 'set')} could not be compared")
    return f"at {where}, {reference}; {'; '.join(parts)}; {_detectable(rows)}"


def _reference(study: Study, model: str, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    tau = study.tau
    row = tau[
        (tau["model"] == model)
        & (tau["layer_set"] == first["reference"])
        & (tau["temperature"] == first["temperature"])
        & (tau["nodes"] == first["nodes"])
    ].iloc[0]
    shown = estimate(row["tau_question"], row["tau_question_low"], row["tau_question_high"])
    return f"the layers of {study.reference}, {first['reference']}, reach τ {shown}"


def _named(row: dict[str, Any]) -> str:
    limits = interval(row["difference_low"], row["difference_high"], 3)
    name = set_name(row["layer_set"], row["selectors"])
    return f"{name} by {signed(float(str(row['difference'])))} {limits}".rstrip()


def _detectable(rows: pd.DataFrame) -> str:
    known = rows.dropna(subset=["detectable", "relative"])
    if known.empty:
        return "one question says nothing about the smallest difference to be seen"
    low, high = known["detectable"].min(), known["detectable"].max()
    span = number(low) if number(low) == number(high) else f"{number(low)} to {number(high)}"
    base = (known["difference"] / known["relative"]).median()
    share = f" (about {percent(known['detectable'].median() / base)})" if base > 0 else ""
    return f"the smallest difference this run could have seen is {span} tokens{share}"


# ---------------------------------------------------------------- what to keep in mind


def _caveat(study: Study) -> str:
    if study.tau.empty:
        return "without acceptance runs this study describes layers; it says nothing about drafting."
    parts = [_sample(study), *_speed(study), *_exactness(study)]
    return "; ".join(parts) + "."


def _sample(study: Study) -> str:
    questions = span(study.tau["questions"], "question")
    compared = study.comparisons if len(study.comparisons) else study.tau
    seeds = compared["seeds"]
    told = f"{questions} and {span(seeds, 'training seed')} a set"
    if seeds.min() >= SEEDS_FOR_LAYERS:
        return f"{told}, so verdicts speak of layers"
    if seeds.max() < SEEDS_FOR_LAYERS:
        return f"{told}, so verdicts speak of these heads, not of their layers"
    return f"{told}: only comparisons over {SEEDS_FOR_LAYERS} seeds or more speak of layers, the others of these heads"


def _speed(study: Study) -> list[str]:
    sentences = []
    for model, rows in study.speed.groupby("model", sort=False):
        reference = study.comparisons[study.comparisons["model"] == model]["reference"]
        of_reference = rows[rows["layer_set"].isin(set(reference))]
        row = (of_reference if len(of_reference) else rows).iloc[0]
        sentences.append(f"on {model} {speed_sentence(row)}")
    return sentences


def speed_sentence(row: pd.Series) -> str:
    """Say how fast decoding with a drafter was, and why.

    Args:
        row: A row of `speed_estimates`.
    """
    low, high = row["speed_up_low"], row["speed_up_high"]
    word = (
        "not distinguishable in speed from"
        if not high < 1 and not low > 1
        else "slower than"
        if high < 1
        else "faster than"
    )
    shown = estimate(row["speed_up"], low, high)
    text = f"decoding with {row['layer_set']} was {word} plain decoding on the machine it ran on (speed-up {shown})"
    if pd.notna(row["verify_forwards"]):
        text += (
            f", where verifying {int(row['nodes'])} nodes takes about as long as"
            f" {number(row['verify_forwards'], 1)} plain forward passes"
        )
    return text


def _exactness(study: Study) -> list[str]:
    failed = study.runs[study.runs["exactness"] == "different"]  # below float32 turns diverge, which is no failure
    if failed.empty:
        return []
    turns, runs = count(int(failed["different"].sum()), "turn"), count(len(failed), "run")
    return [f"NOT EXACT: {turns} of {runs} in float32 differ from plain greedy decoding"]
