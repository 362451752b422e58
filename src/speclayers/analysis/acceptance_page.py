"""Tables of the page about acceptance: power, positions, questions left out, and what equals plain decoding."""

from __future__ import annotations

from speclayers.analysis.acceptance_figures import at_setting, first_setting, shown_sets
from speclayers.analysis.estimates import EFFECTS
from speclayers.analysis.page_tables import PageTable, page_table
from speclayers.analysis.study import HEADLINE_METRIC, Study, of_model, rows_of
from speclayers.analysis.wording import (
    confidence_level,
    draft_size,
    estimate,
    layers_in_words,
    number,
    percent,
    setting,
)
from speclayers.decoding.exactness import TIE

MOST_ROWS = 50
"""Rows of a list that the page shows."""


def skipped_questions(study: Study) -> PageTable:
    """Return the questions that were too long for a model, the first MOST_ROWS."""
    rows = study.skipped.head(MOST_ROWS)
    names = ("model", "question_id", "category", "turn", "prompt_tokens", "positions", "limit")
    caption = (
        f"Questions skipped for every drafter: {len(rows)} of {len(study.skipped)}. A question is skipped where the"
        " prompt of one of its turns, the longest answer and the deepest drafted path together need more positions"
        " than the model has."
    )
    head = ["model", "#question", "category", "#turn", "#prompt tokens", "#positions needed", "#positions"]
    return page_table(caption, head, [[row[name] for name in names] for row in rows_of(rows)])


def power(study: Study, model: str) -> PageTable:
    """Return how many questions it would take to see differences of some sizes."""
    rows = of_model(study.power, model)
    rows = rows[rows["metric"] == HEADLINE_METRIC]
    cells = []
    for (layer_set, temperature, _), part in rows.groupby(["layer_set", "temperature", "nodes"], sort=False):
        first = part.iloc[0]
        size, spread = draft_size(first["nodes"], first["chain"]), number(first["spread"], 3)
        needed = [number(value, 0) for value in part["questions_needed"]]  # in the order of EFFECTS
        cells.append([layers_in_words(str(layer_set)), f"{temperature:g}", size, spread, first["questions"], *needed])
    head = ["layers", "#T", "#nodes", "#spread", "#questions", *(f"#for {percent(effect)}" for effect in EFFECTS)]
    caption = (
        "Questions that it would take to see a difference of so many per cent of the reference's τ in 80 % of such"
        f" runs, by one comparison at {confidence_level(study.confidence)}, judged by the spread over the questions"
        " measured (standard deviation of the paired difference of a question). From three training seeds on a dash"
        " means that their own variation hides such a difference, however many questions are asked."
    )
    return page_table(caption, head, cells)


def positions(study: Study, model: str) -> PageTable:
    """Return τ by position in the answer at the first setting, for the sets that figures show."""
    where = first_setting(of_model(study.tau, model))
    rows = at_setting(study.positions, model, where)
    shown = shown_sets(study, model, where)
    rows = rows[rows["layer_set"].isin(shown["layer_set"])].sort_values(["first_position", "layer_set"])
    cells = []
    for row in rows_of(rows):
        tau = estimate(row["tau_pooled"], row["tau_pooled_low"], row["tau_pooled_high"])
        span = f"{row['first_position']} to {row['last_position']}"
        cells.append([span, layers_in_words(row["layer_set"]), tau, row["cycles"], row["questions"]])
    caption = (
        f"τ by the position in the answer, in tokens, at which a verification begins, at {setting(*where)}, with"
        f" {confidence_level(study.confidence)} limits. Only long answers reach late positions, so that rows differ in"
        " their questions, too."
    )
    return page_table(caption, ["#position", "layers", "#τ, pooled", "#verifications", "#questions"], cells)


def exactness(study: Study) -> PageTable:
    """Return how many turns equal plain greedy decoding, run by run."""
    cells = [
        [row["model"], row["drafter"], f"{row['temperature']:g}", draft_size(row["nodes"], row["chain"]), row["turns"]]
        + [number(row[name], 0) for name in ("identical", "as_generate", "ties", "different")]
        + [percent(1 - row["identical"] / row["turns"], 1), number(row["median_margin"], 4), row["exactness"]]
        for row in rows_of(study.runs)
    ]
    head = [
        "model",
        "drafter",
        "#T",
        "#nodes",
        "#turns",
        "#identical",
        "#as generate",
        "#ties",
        "#different",
        "#diverging",
        "#gap there, median",
        "verdict",
    ]
    caption = (
        "Token ids against plain greedy decoding, counted anew from the ids. As generate: of the identical ones, those"
        " that are also what transformers' own generate answers greedily; a dash where that was not asked"
        " (acceptance.check_generate). A tie: plain decoding's two best logits"
        f" are closer than {TIE:g} at the first difference. Diverging: the share of turns that are not"
        " identical, and plain decoding's median gap where they first differ, which says how near a tie that was."
        " Not applicable where tokens are sampled (T > 0)."
    )
    return page_table(caption, head, cells)


def disagreements(study: Study) -> PageTable:
    """Return the turns that differ from plain greedy decoding, the first MOST_ROWS."""
    rows = study.disagreements
    cells = [
        [
            row["model"],
            row["drafter"],
            draft_size(row["nodes"], row["chain"]),
            row["question_id"],
            row["turn"],
            number(row["first_difference"], 0),
            number(row["margin_there"], 4),
        ]
        for row in rows_of(rows.head(MOST_ROWS))
    ]
    caption = f"Turns that differ at T = 0: {len(cells)} of {len(rows)}, with plain decoding's top-2 logit gap there."
    return page_table(caption, ["model", "drafter", "#nodes", "#question", "#turn", "#position", "#gap"], cells)
