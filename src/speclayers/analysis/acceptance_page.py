"""Tables of the page about acceptance: questions left out, the power to see differences, positions in the answer."""

from __future__ import annotations

from speclayers.analysis.acceptance_figures import at_setting, first_setting, shown_sets
from speclayers.analysis.page_tables import MOST_ROWS, PageTable, page_table
from speclayers.analysis.study import HEADLINE_METRIC, Study, of_model, rows_of
from speclayers.analysis.wording import confidence_level, estimate, layers_in_words, number, percent, setting


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
    effects = sorted(set(rows["relative"]))
    cells = []
    for (layer_set, temperature, nodes), part in rows.groupby(["layer_set", "temperature", "nodes"], sort=False):
        needed = part.set_index("relative")["questions_needed"]
        first = part.iloc[0]
        cells.append(
            [layers_in_words(str(layer_set)), f"{temperature:g}", nodes, number(first["spread"], 3), first["questions"]]
            + [number(needed[effect], 0) for effect in effects]
        )
    head = ["layers", "#T", "#nodes", "#spread", "#questions", *(f"#for {percent(effect)}" for effect in effects)]
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
