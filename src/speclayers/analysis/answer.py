"""The answer in three lines: what was asked, what was found, what must be kept in mind."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from speclayers.analysis.statistics import SEEDS_FOR_LAYERS
from speclayers.analysis.study import (
    HEADLINE_METRIC,
    SETTING_ORDER,
    Study,
    of_model,
    rival_labels,
    rows_of,
    settings_of,
)
from speclayers.analysis.wording import (
    confidence_level,
    count,
    difference,
    estimate,
    joined,
    layers_in_words,
    listed,
    number,
    set_name,
    setting,
    signed,
    span,
)

NAMED = 4
"""So many models are named one by one where all of them are spoken of."""

_VERDICTS = {"higher": "more with", "lower": "fewer with"}


class Answer(NamedTuple):
    """Three lines of plain text; `found` holds a few sentences a model, `overview` one over several models."""

    asked: str
    found: list[str]
    caveat: str
    overview: str = ""

    def text(self) -> str:
        """Return three lines."""
        found = " ".join([self.overview, *self.found]).lstrip()
        return "\n".join((f"Asked: {self.asked}", f"Found: {found}", f"Keep in mind: {self.caveat}")) + "\n"


def models_in_words(study: Study) -> str:
    """Return the names of a study's models, or how many there are where a sentence would be long."""
    return joined(study.models) if len(study.models) <= NAMED else f"each of {len(study.models)} models"


def answer(study: Study) -> Answer:
    """Say in words what a study asked and found."""
    asked = (
        f"Which layers of {models_in_words(study)} should feed an EAGLE-3 drafter? Sets of layers are judged by the"
        " mean accepted tokens per verification (τ, mean over questions) and compared with the set that"
        f" {study.reference} takes."
    )
    return Answer(asked, [finding(study, model) for model in study.models], _caveat(study), overview(study))


def overview(study: Study) -> str:
    """Say in one sentence on how many models a set differs from the reference; nothing for a single model."""
    if len(study.models) < 2 or study.tau.empty:
        return ""
    decided: dict[str, list[str]] = {"higher": [], "lower": []}
    same, missing = [], []
    for model in study.models:
        groups = settings_of(headline_comparisons(study, model))
        verdicts = set(groups[0][2]["verdict"]) if groups else set()
        for word in set(decided) & verdicts:
            decided[word].append(model)
        if not verdicts & {*decided, "not distinguishable"}:
            missing.append(model)
        elif not verdicts & set(decided):
            same.append(model)
    parts = [
        f"on {_models(found)} some set yields {word} tokens than {study.reference}'s"
        for word, found in (("more", decided["higher"]), ("fewer", decided["lower"]))
        if found
    ]
    parts += [f"on {_models(same)} no set is distinguishable from {study.reference}'s"] if same else []
    parts += [f"on {_models(missing)} nothing can be compared"] if missing else []
    return f"Of {count(len(study.models), 'model')}: {'; '.join(parts)}."


def _models(names: list[str]) -> str:
    return joined(names) if len(names) <= 2 else str(len(names))


# ---------------------------------------------------------------- what was found


def headline_comparisons(study: Study, model: str) -> pd.DataFrame:
    """Return one model's comparisons of the τ that the answer speaks of."""
    rows = of_model(study.comparisons, model)
    return rows[rows["metric"] == HEADLINE_METRIC]


def finding(study: Study, model: str) -> str:
    """Say in a few sentences what was found for a model."""
    tau = of_model(study.tau, model)
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
    groups = [(setting(t, nodes, bool(part["chain"].iloc[0])), part) for t, nodes, part in settings_of(rows)]
    first = groups[0][1]
    sentences = [_reference(study, model, first), _verdicts(study, first), _detectable(first)]
    return f"{model}: {'. '.join([*sentences, *_elsewhere(groups)])}."


def _reference(study: Study, model: str, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    tau = of_model(study.tau, model)
    row = tau[
        (tau["layer_set"] == first["reference"])
        & (tau["temperature"] == first["temperature"])
        & (tau["nodes"] == first["nodes"])
    ].iloc[0]
    shown = estimate(row["tau_question"], row["tau_question_low"], row["tau_question_high"])
    drafts = "chains" if first["chain"] else "trees"
    where = f"temperature T = {first['temperature']:g}, draft {drafts} of {int(first['nodes'])} nodes"
    return f"{set_name(first['reference'], study.reference)} yields {shown} tokens per verification ({where})"


def _verdicts(study: Study, rows: pd.DataFrame) -> str:
    same = [layers_in_words(name) for name in rows[rows["verdict"] == "not distinguishable"]["layer_set"]]
    unmeasured = int((rows["verdict"] == "not measured").sum())
    parts = []
    for verdict, words in _VERDICTS.items():
        found = [_named(study, row) for row in rows_of(rows[rows["verdict"] == verdict])]
        if found:
            parts.append(f"{words} {listed(found)}")
    if len(same) == len(rows):
        parts.append(f"No other set is distinguishable from it ({count(len(rows), 'set')} compared)")
    elif same:
        parts.append(f"not distinguishable from it: {listed(same)}")
    if unmeasured:
        parts.append(f"{count(unmeasured, 'set')} could not be compared")
    told = "; ".join(parts)
    return told[0].upper() + told[1:]


def _named(study: Study, row: dict[str, Any]) -> str:
    gap = difference(row["difference"], row["difference_low"], row["difference_high"])
    told = f"{set_name(row['layer_set'], row['selectors'])} by {gap}"
    rows = of_model(study.comparisons, row["model"])
    for key in ("layer_set", "temperature", "nodes"):
        rows = rows[rows[key] == row[key]]
    other = rows[rows["metric"] != HEADLINE_METRIC].iloc[0]
    if other["verdict"] == row["verdict"]:
        return told
    return f"{told} (pooled over verifications {signed(other['difference'])}, {other['verdict']})"


def _detectable(rows: pd.DataFrame) -> str:
    known = rows.dropna(subset=["detectable", "relative"])
    if known.empty:
        return "One question does not tell how small a difference would have been noticed"
    low, high = known["detectable"].min(), known["detectable"].max()
    shown = number(low) if number(low) == number(high) else f"{number(low)} to {number(high)}"
    base = (known["difference"] / known["relative"]).median()
    ends = [number(100 * end / base, 0) for end in (low, high)] if base > 0 else []
    share = f" ({' to '.join(dict.fromkeys(ends))} % of τ)" if ends else ""
    return f"Differences below about {shown}{share} would probably have gone unnoticed"


def _elsewhere(groups: list[tuple[str, pd.DataFrame]]) -> list[str]:
    """Say at which other settings the verdicts are the first one's, and what they are where not."""
    found = [(where, _decided(rows)) for where, rows in groups]
    same = [where for where, decided in found[1:] if decided == found[0][1]]
    sentences = [f"The verdicts are the same at {'; '.join(same)}"] if same else []
    for where, decided in found[1:]:
        if decided != found[0][1]:
            told = [f"{_VERDICTS[word]} {listed(sets)}" for word, sets in decided.items() if sets]
            sentences.append(f"At {where}: {'; '.join(told) or 'no set is distinguishable'}")
    return sentences


def _decided(rows: pd.DataFrame) -> dict[str, list[str]]:
    by_name = rows.sort_values("layer_set")
    return {
        word: [layers_in_words(name) for name in by_name[by_name["verdict"] == word]["layer_set"]] for word in _VERDICTS
    }


def _chosen(study: Study, model: str) -> str:
    rows = of_model(study.selected, model)
    if rows.empty:
        return "no selector chose layers"
    return "chosen were " + listed([set_name(*pair) for pair in zip(rows["layer_set"], rows["label"], strict=True)])


# ---------------------------------------------------------------- what to keep in mind


def _caveat(study: Study) -> str:
    if study.tau.empty:
        return "without acceptance runs this study describes layers; it says nothing about drafting."
    return "; ".join([_sample(study), *_skipped(study), *_speed(study), *_exactness(study)]) + "."


def _sample(study: Study) -> str:
    questions = span(study.tau["questions"], "question")
    compared = study.comparisons if len(study.comparisons) else study.tau
    seeds = compared["seeds"]
    told = (
        f"brackets are {confidence_level(study.confidence)} intervals over {questions}; each set was trained with"
        f" {span(seeds, 'seed')}"
    )
    if seeds.min() >= SEEDS_FOR_LAYERS:
        return f"{told}, so verdicts speak of layers"
    if seeds.max() < SEEDS_FOR_LAYERS:
        return f"{told}, so verdicts speak of these trained heads, not of their layers in general"
    return f"{told}: only comparisons over {SEEDS_FOR_LAYERS} seeds or more speak of layers, the others of these heads"


def _skipped(study: Study) -> list[str]:
    counts = study.skipped["model"].value_counts(sort=False)
    return [
        f"{count(int(n), 'question')} too long for {model} left out for every drafter" for model, n in counts.items()
    ]


def _speed(study: Study) -> list[str]:
    sentences, heads = [], study.speed[~study.speed["layer_set"].isin(rival_labels(study))]
    for model, rows in heads.groupby("model", sort=False):
        reference = of_model(study.comparisons, str(model))["reference"]
        of_reference = rows[rows["layer_set"].isin(set(reference))]
        row = (of_reference if len(of_reference) else rows).sort_values(SETTING_ORDER, kind="stable").iloc[0]
        sentences.append(f"on {model} {speed_sentence(row)}")
    return sentences if len(sentences) <= NAMED else [_speeds(heads)]


def _speeds(speed: pd.DataFrame) -> str:
    """Say in one sentence how fast decoding with drafters was on many models."""
    slower = speed.groupby("model", sort=False)["speed_up_high"].max() < 1
    return (
        f"on the machine that timed it drafting was {number(speed['speed_up'].min())} to"
        f" {number(speed['speed_up'].max())} times as fast as plain decoding, and slower with every set on"
        f" {int(slower.sum())} of {count(len(slower), 'model')}"
    )


def speed_sentence(row: pd.Series) -> str:
    """Say how fast decoding with a drafter was, and why.

    Args:
        row: A row of `speed_estimates`.
    """
    low, high = row["speed_up_low"], row["speed_up_high"]
    word = "slower than" if high < 1 else "faster than" if low > 1 else "not distinguishable in speed from"
    shown = estimate(row["speed_up"], low, high)
    text = (
        f"drafting with {layers_in_words(row['layer_set'])} was {word} plain decoding on the machine that timed it"
        f" ({shown} times its speed)"
    )
    if pd.notna(row["verify_forwards"]):
        forwards = number(row["verify_forwards"], 1)
        text += f", where verifying {int(row['nodes'])} nodes took as long as {forwards} plain forward passes"
    return text


def _exactness(study: Study) -> list[str]:
    failed = study.runs[study.runs["exactness"] == "different"]  # below float32 turns diverge, which is no failure
    if failed.empty:
        return []
    turns, runs = count(int(failed["different"].sum()), "turn"), count(len(failed), "run")
    return [f"NOT EXACT: {turns} of {runs} in float32 differ from plain greedy decoding"]
