"""Whether counts come from given probabilities."""

import numpy as np
from scipy.stats import chisquare


def p_value(counts, probabilities):
    """Return the χ² test's p-value; cells that expect fewer than five are pooled, and an impossible one is p = 0."""
    counts, expected = counts.ravel(), probabilities.ravel() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    common = expected >= 5
    pooled = np.array([[*values[common], values[~common].sum()] for values in (counts, expected)])
    return chisquare(*pooled[:, pooled[1] > 0]).pvalue
