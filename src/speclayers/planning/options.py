"""What only a selector's or a drafter's own file knows, checked before anything runs: options, sizes, seeds."""

from __future__ import annotations

from speclayers.config import Study
from speclayers.planning.fanout import trained_rivals


def refuse_unfit_options(study: Study) -> None:
    """Check the options, numbers of layers and seeds of all selectors and drafters of a study.

    Raises:
        UserError: One does not fit, or a selector's or drafter's file cannot be read.
    """
    # late: these files bring numpy and torch, which a run needs once, where it starts, and not in each of its jobs
    from speclayers.selection.selector import requests

    configs = study.selection.selectors
    requests(configs, max(k for selector in configs for k in selector.k))
    for model in study.study.models:
        trained_rivals(study, model)
    if study.rivals:
        from speclayers.drafting.rival import checked_rival

        for rival in study.rivals:
            checked_rival(rival, rival.runs()[0])
