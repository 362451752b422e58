"""What could mislead a reader of a model's layers: few tokens, an idle filter, searches that fall short."""

from __future__ import annotations

from collections.abc import Iterator

from speclayers.analysis.calibration_figures import measured_settling, settling
from speclayers.analysis.study import Study, judged_apart, of_model, rows_of
from speclayers.analysis.wording import joined, layers_in_words, listed, number
from speclayers.names import layers_name

BEHIND = 0.01
"""Nats of E(S) by which a search may fall short of `exhaustive` before it is told."""


def layer_warnings(study: Study) -> list[str]:
    """Return the warnings of all models, model by model."""
    return [told for model in study.models for told in warnings_of(study, model)]


def warnings_of(study: Study, model: str) -> Iterator[str]:
    """Yield the warnings of one model."""
    for check in (few_tokens, not_settled, filter_like_random, short_of_the_best, judged_by_another_set):
        yield from check(study, model)


def few_tokens(study: Study, model: str) -> Iterator[str]:
    """Warn of fewer filtered tokens than four times the model's width."""
    tokens = of_model(study.cka, model)["n_tokens"].max()
    width = int(of_model(study.targets, model)["width"].iloc[0])
    if tokens < 4 * width:
        yield (
            f"{model} was measured on {int(tokens):,} filtered tokens, fewer than 4 × its width {width}: read the"
            " debiased CKA, and raise corpus.calibration.count for narrower intervals."
        )


def not_settled(study: Study, model: str) -> Iterator[str]:
    """Warn of layers that still move as tokens are added."""
    found = measured_settling(study, model)
    if found is not None and not found.enough:
        yield f"{settling(study, model)}. Raise corpus.calibration.count or geometry.max_tokens."


def filter_like_random(study: Study, model: str) -> Iterator[str]:
    """Warn where the token filter makes prompts no more alike than random tokens do."""
    rows = of_model(study.filter_effect, model).dropna(subset=["reduction_random_low"])
    better = rows[rows["reduction_random_low"] > 0]["segment"]
    if len(rows) and better.empty:
        yield (
            f"On {model}, as many random tokens make prompts as alike as the token filter does, or more, in every part"
            " of the depth: do not credit the filter with that."
        )


def short_of_the_best(study: Study, model: str) -> Iterator[str]:
    """Warn of searches by E(S) that end visibly below the best of all sets, and of choices without that check."""
    rows = of_model(study.selected, model)
    searches = rows[rows["selector"].isin(["elsi", "beam"])]  # those that have no other aim than E(S)
    unchecked = []
    for row in rows_of(searches):
        best = rows[(rows["selector"] == "exhaustive") & (rows["k"] == row["k"])]["score"].max()
        if best - row["score"] > BEHIND:
            yield (
                f"On {model}, {row['label']} with k = {row['k']} ends {number(best - row['score'], 3)} nats of E(S)"
                " below the best of all sets: its search got stuck."
            )
        elif best != best:
            unchecked.append(f"{row['label']} with k = {row['k']}")
    if unchecked:
        yield (
            f"On {model}, how far {listed(unchecked)} is from the best of all sets is not known: the study does not ask"
            " the selector exhaustive for this k."
        )


def judged_by_another_set(study: Study, model: str) -> Iterator[str]:
    """Warn of selections that half-samples cannot judge, since order 2 chooses other layers on all prompts."""
    apart = [
        f"{row['label']} with k = {row['k']} ({layers_in_words(layers_name(list(judged)))} in place of"
        f" {layers_in_words(row['layer_set'])})"
        for row in rows_of(of_model(study.selected, model))
        if (judged := judged_apart(row))
    ]
    if apart:
        yield (
            f"On {model}, half-samples do not tell how stable {joined(apart)} is: sets are searched there by order 2,"
            " which on all prompts chooses the first set in place of the second."
        )
