"""Intervals cover what they should, differences are paired, corrections and counts agree with hand values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from speclayers.analysis.statistics import (
    QUESTIONS_FOR_LIMITS,
    Counts,
    Resampling,
    holm,
    paired_difference,
    paired_spread,
    question_weights,
    questions_needed,
    rank_correlation,
    ratio_interval,
    speed_up,
    tau_by_seed,
    tau_interval,
    two_sided_p,
    verdict,
)

PLAN = Resampling(resamples=800, confidence=0.95, seed=3)


def counts(ratios, cycles=20.0):
    """Counts whose τ of each question are `ratios`, (seeds, questions)."""
    ratios = np.atleast_2d(np.asarray(ratios, dtype=float))
    return Counts(ratios * cycles, np.full(ratios.shape, cycles))


def compared(ours, reference, metric, plan=PLAN):
    return paired_difference(paired_spread(ours, reference, metric), plan)


def test_both_taus_by_hand():
    made = Counts(emitted=np.array([[6.0, 10.0]]), cycles=np.array([[2.0, 5.0]]))
    assert tau_by_seed(made, "tau_pooled") == pytest.approx([16 / 7])
    assert tau_by_seed(made, "tau_question") == pytest.approx([(3 + 2) / 2])


def test_a_question_without_a_whole_cycle_is_left_out():
    made = Counts(emitted=np.array([[6.0, 0.0, 10.0]]), cycles=np.array([[2.0, 0.0, 5.0]]))
    assert tau_interval(made, "tau_question", PLAN).value == pytest.approx(2.5)
    assert tau_interval(made, "tau_pooled", PLAN).value == pytest.approx(16 / 7)


def test_few_questions_have_a_value_and_no_limits():
    few = np.arange(QUESTIONS_FOR_LIMITS) + 1.0
    interval = tau_interval(counts(few[1:]), "tau_question", PLAN)
    assert interval.value == 3.5
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert math.isnan(compared(counts(few[1:]), counts(few[:-1]), "tau_question").p)
    assert tau_interval(counts(few), "tau_question", PLAN).low < 3.0


def test_limits_of_tau_stop_at_one():
    skewed = tau_interval(counts([1.0, 1.0, 1.1, 1.1, 1.2, 9.0]), "tau_question", PLAN)
    assert skewed.low == 1.0
    assert skewed.high > 6


def test_nothing_measured_is_not_a_number():
    empty = Counts(np.zeros((1, 2)), np.zeros((1, 2)))
    assert math.isnan(tau_interval(empty, "tau_pooled", PLAN).value)
    assert math.isnan(compared(empty, empty, "tau_pooled", PLAN).value)


def test_each_resample_draws_as_many_questions_as_there_are():
    weights = question_weights(7, 50, 0)
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert (question_weights(7, 50, 0) == weights).all()
    assert (question_weights(7, 50, 1) != weights).any()


@pytest.mark.parametrize("questions", [30, 12])
def test_the_interval_agrees_with_scipy_where_questions_are_many_and_is_wider_where_few(questions):
    values = np.random.default_rng(0).gamma(4, 0.5, questions)
    plan = Resampling(6000, 0.95, 0)
    ours = tau_interval(counts(values), "tau_question", plan)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=6000, method="BCa", rng=np.random.default_rng(1))
    low, high = theirs.confidence_interval
    assert (ours.high - ours.low) / (high - low) == pytest.approx({30: 1.06, 12: 1.25}[questions], abs=0.06)
    assert (ours.low + ours.high) / 2 == pytest.approx(values.mean())


@pytest.mark.parametrize("metric", ["tau_question", "tau_pooled"])
def test_the_interval_of_tau_covers_the_truth(metric):
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        cycles = rng.integers(15, 25, size=(1, 60)).astype(float)
        emitted = cycles * rng.normal(2.0, 0.5, size=(1, 60))
        interval = tau_interval(Counts(emitted, cycles), metric, PLAN)
        covered += interval.low <= 2.0 <= interval.high
    assert 0.90 <= covered / 300 <= 0.985


def test_the_paired_interval_covers_the_truth_and_ignores_what_questions_share():
    rng = np.random.default_rng(5)
    covered, widths = 0, []
    for _ in range(300):
        shared = rng.gamma(8, 0.4, size=60) + 1
        ours = shared + 0.1 + rng.normal(0, 0.15, size=60)
        found = compared(counts(ours), counts(shared), "tau_question", PLAN)
        covered += found.low <= 0.1 <= found.high
        widths.append(found.high - found.low)
        assert not found.speaks_of_layers
    assert 0.90 <= covered / 300 <= 0.985
    assert np.mean(widths) < 2.2 * 1.96 * 0.15 / np.sqrt(60)  # questions themselves vary by 1.1


SKEWED = {"normal": lambda rng, n: rng.standard_normal(n), "gamma": lambda rng, n: rng.gamma(2, 1, n) - 2}


@pytest.mark.parametrize("shape", SKEWED)
@pytest.mark.parametrize("questions", [6, 12])
def test_limits_over_few_questions_cover_the_truth_where_percentiles_do_not(shape, questions):
    rounds = 800
    rng = np.random.default_rng(8)
    ours = percentiles = false_alarms = 0
    for _ in range(rounds):
        values = 0.2 * SKEWED[shape](rng, questions)
        found = compared(counts(3 + values), counts(np.full(questions, 3.0)), "tau_question")
        ours += found.low <= 0 <= found.high
        false_alarms += found.p <= 0.05
        means = question_weights(questions, PLAN.resamples, PLAN.seed) @ values / questions
        percentiles += np.quantile(means, 0.025) <= 0 <= np.quantile(means, 0.975)
    assert percentiles / rounds < 0.92 < ours / rounds < 0.98
    assert false_alarms / rounds == pytest.approx(1 - ours / rounds, abs=0.005)


def test_many_equal_differences_keep_limits_narrow_and_covering():
    rng = np.random.default_rng(14)
    covered, widths = 0, []
    for _ in range(400):
        gaps = np.where(rng.random(12) < 0.3, rng.normal(0.1, 0.3, 12), 0)  # no difference at most questions
        found = compared(counts(3 + gaps), counts(np.full(12, 3.0)), "tau_question")
        covered += found.low <= 0.03 <= found.high
        widths.append(found.high - found.low)
    assert 0.90 <= covered / 400 <= 0.985
    assert np.mean(widths) < 0.5


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.05), (5, 0.05), (5, 0.0)])
def test_the_hierarchical_interval_covers_the_truth_over_new_seeds(seeds, spread):
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        shared = rng.gamma(8, 0.4, size=(1, 60)) + 1
        ours = shared + 0.1 + rng.normal(0, spread, size=(seeds, 1)) + rng.normal(0, 0.15, size=(1, 60))
        found = compared(counts(ours), counts(shared + np.zeros((seeds, 1))), "tau_question", PLAN)
        covered += found.low <= 0.1 <= found.high
        assert found.speaks_of_layers
    assert 0.91 <= covered / 300 <= 0.995


def test_questions_alone_would_be_too_sure_about_layers():
    rng = np.random.default_rng(7)
    shared = rng.gamma(8, 0.4, size=(1, 80)) + 1
    ours = shared + np.array([[-0.1], [0.0], [0.1]]) + rng.normal(0, 0.1, size=(1, 80))
    reference = counts(shared + np.zeros((3, 1)))
    over_seeds = compared(counts(ours), reference, "tau_question", PLAN)
    two_seeds = compared(counts(ours[:2]), counts(shared + np.zeros((2, 1))), "tau_question", PLAN)
    assert two_seeds.high - two_seeds.low < (over_seeds.high - over_seeds.low) / 3
    assert not two_seeds.speaks_of_layers


def test_the_hierarchical_p_value_keeps_its_level_where_holm_needs_it():
    rng = np.random.default_rng(8)
    plan = Resampling(2000, 0.95, 0)
    false_alarms = 0
    for _ in range(400):
        shared = rng.gamma(8, 0.4, size=(1, 40)) + 1
        ours = shared + rng.normal(0, 0.1, size=(3, 1)) + rng.normal(0, 0.1, size=(1, 40))
        false_alarms += compared(counts(ours), counts(shared + np.zeros((3, 1))), "tau_question", plan).p <= 0.01
    assert false_alarms <= 12  # 4 expected of 400


def test_shapes_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="shapes"):
        compared(counts([[1.0, 2.0]]), counts([[1.0]]), "tau_pooled", PLAN)


def test_equal_sets_are_not_distinguishable():
    same = counts(np.random.default_rng(0).gamma(4, 0.5, 30) + 1)
    found = compared(same, same, "tau_pooled", PLAN)
    assert (found.value, found.p, found.detectable) == (0.0, 1.0, 0.0)
    assert verdict(found.value, holm([found.p])[0], 0.95) == "not distinguishable"


def drawn_pair(rng, questions, difference, sd=0.2, seeds=1, seed_sd=0.0):
    shared = rng.gamma(8, 0.4, size=(1, questions)) + 1 + np.zeros((seeds, 1))
    ours = shared + difference + rng.normal(0, sd, size=(1, questions)) + rng.normal(0, seed_sd, size=(seeds, 1))
    return counts(ours), counts(shared)


@pytest.mark.parametrize("n", [12, 50])
def test_the_smallest_difference_is_found_four_times_in_five(n):
    rng = np.random.default_rng(9)
    told = np.mean([compared(*drawn_pair(rng, n, 0), "tau_question").detectable for _ in range(200)])
    assert told == pytest.approx((stats.t.ppf(0.975, n - 1) + 0.84) * 0.2 / math.sqrt(n), rel=0.08)
    found = [compared(*drawn_pair(rng, n, told), "tau_question").p <= 0.05 for _ in range(400)]
    assert 0.74 <= np.mean(found) <= 0.88


@pytest.mark.parametrize(("seeds", "seed_sd"), [(1, 0.0), (4, 0.02)])
def test_as_many_questions_as_the_table_of_power_says_find_the_effect_four_times_in_five(seeds, seed_sd):
    rng = np.random.default_rng(10)
    effect = 0.12
    pilots = (drawn_pair(rng, 40, 0.0, 0.3, seeds, seed_sd) for _ in range(100))
    needed = np.nanmedian([questions_needed(paired_spread(*pair, "tau_question"), effect, 0.95) for pair in pilots])
    assert 45 <= needed <= 80
    pairs = (drawn_pair(rng, int(needed), effect, 0.3, seeds, seed_sd) for _ in range(400))
    assert 0.73 <= np.mean([compared(*pair, "tau_question").p <= 0.05 for pair in pairs]) <= 0.9


def test_no_number_of_questions_shows_what_training_seeds_hide():
    pair = drawn_pair(np.random.default_rng(11), 40, 0.0, 0.1, seeds=3, seed_sd=0.2)
    assert math.isnan(questions_needed(paired_spread(*pair, "tau_question"), 0.05, 0.95))
    heads = tuple(Counts(one.emitted[:1], one.cycles[:1]) for one in pair)
    assert 20 < questions_needed(paired_spread(*heads, "tau_question"), 0.05, 0.95) < 60


def test_a_tenth_of_the_effect_needs_a_hundred_times_the_questions():
    spread = paired_spread(*drawn_pair(np.random.default_rng(12), 60, 0.0), "tau_question")
    many, more = (questions_needed(spread, effect, 0.95) for effect in (0.02, 0.002))
    assert more == pytest.approx(100 * many, rel=0.01)


@pytest.mark.parametrize("seeds", [1, 3])
def test_false_alarms_are_one_in_twenty_and_pooling_keeps_that(seeds):
    rng = np.random.default_rng(13)
    alarms = dict.fromkeys(("tau_question", "tau_pooled"), 0)
    for _ in range(400):
        cycles = rng.integers(5, 40, size=(seeds, 24)).astype(float)
        ease = rng.gamma(2, 0.3, size=(1, 24)) + 1
        sides = [
            Counts(
                cycles * (ease + rng.normal(0, 0.2, (1, 24)) + rng.normal(0, 0.03 * (seeds > 1), (seeds, 1))), cycles
            )
            for _ in range(2)
        ]
        for metric in alarms:
            alarms[metric] += compared(*sides, metric).p <= 0.05
    least = 0.015 if seeds == 1 else 0.002  # Student's t of two degrees of freedom is on the safe side
    assert all(least <= count / 400 <= 0.085 for count in alarms.values()), alarms


def test_holm_by_hand():
    # Holm (1979): 0.01·4, then 0.02·3 = 0.06, 0.03·2 = 0.06, 0.04·1 raised to 0.06
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]).size == 0


def test_holm_leaves_out_what_was_not_measured():
    adjusted = holm([0.01, math.nan, 0.04])
    assert adjusted[[0, 2]] == pytest.approx([0.02, 0.04])
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_p_and_bonferroni_and_keeps_the_order(p):
    adjusted = holm(p)
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= np.minimum(1, len(p) * np.array(p))).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


def test_p_is_never_zero_and_never_above_one():
    assert two_sided_p(0.5, np.full(99, 0.4)) == pytest.approx(1 / 100)
    assert two_sided_p(-0.5, np.full(99, -0.5)) == 1.0


@pytest.mark.parametrize(
    ("difference", "p", "word"),
    [
        (0.1, 0.01, "higher"),
        (-0.1, 0.01, "lower"),
        (0.1, 0.2, "not distinguishable"),
        (math.nan, math.nan, "not measured"),
    ],
)
def test_verdicts_in_words(difference, p, word):
    assert verdict(difference, p, 0.95) == word


def test_a_ratio_is_of_sums_not_of_means():
    interval = ratio_interval(np.array([1.0, 9.0, 5, 4, 6, 0]), np.array([10.0, 10.0, 10, 10, 10, 0]), PLAN)
    assert interval.value == 0.5
    assert interval.low < 0.5 < interval.high
    assert math.isnan(ratio_interval(np.zeros(3), np.zeros(3), PLAN).value)
    assert math.isnan(ratio_interval(np.ones(6), np.array([2.0, 2, 2, 2, 0, 0]), PLAN).low)


def test_speed_up_by_hand():
    interval = speed_up(
        np.array([4.0, 8.0]), np.array([10.0, 20.0]), np.array([1.0, 5.0]), np.array([10.0, 10.0]), PLAN
    )
    assert interval.value == pytest.approx((12 / 30) / (6 / 20))
    assert math.isnan(speed_up(*(np.zeros(2) for _ in range(4)), PLAN).value)


def test_the_interval_of_the_speed_up_covers_the_truth():
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(300):
        tokens = rng.integers(20, 60, size=40).astype(float)
        baseline, wall = tokens * rng.normal(0.05, 0.004, 40), tokens * rng.normal(0.1, 0.02, 40)
        interval = speed_up(baseline, tokens, wall, tokens, PLAN)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.90 <= covered / 300 <= 0.985


def test_rank_correlation_needs_eight_sets():
    x = np.arange(8.0)
    assert math.isnan(rank_correlation(x[:7], x[:7], 0.95).value)
    assert math.isnan(rank_correlation(x, np.ones(8), 0.95).value)
    perfect = rank_correlation(x, x, 0.95)
    assert perfect.value == pytest.approx(1.0)
    assert perfect.low > 0.9
    assert perfect.high <= 1.0


def test_the_interval_of_the_rank_correlation_covers_no_correlation():
    rng = np.random.default_rng(12)
    covered = 0
    for _ in range(400):
        interval = rank_correlation(rng.normal(size=12), rng.normal(size=12), 0.95)
        covered += interval.low <= 0 <= interval.high
    assert 0.91 <= covered / 400 <= 0.99
