"""Intervals cover, tests keep their level, and both agree with other people's code."""

import numpy as np
import pytest
from scipy import stats

from scoreascent.experiments.statistics import (
    bootstrap,
    bootstrap_band,
    friedman,
    indistinct,
    nemenyi,
)

RNG = np.random.default_rng(1)
CASES = [
    RNG.normal(size=(20, 6)),
    RNG.normal([0, 0, 0.5, 1, 2], size=(20, 5)),
    RNG.normal(size=(4, 3)),
    RNG.integers(0, 3, (15, 4)).astype(float),  # ties
]


# -- bootstrap -------------------------------------------------------------------------------------


def test_bootstrap_is_the_percentile_interval():
    values = np.arange(20.0)
    low, high = bootstrap(values)
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        method="percentile",
        n_resamples=10_000,
        random_state=np.random.default_rng(9),
    ).confidence_interval
    assert (low, high) == (pytest.approx(theirs.low, abs=0.1), pytest.approx(theirs.high, abs=0.1))
    assert bootstrap(values) == (low, high)
    assert bootstrap(values, seed=1) != (low, high)
    narrow = bootstrap(values, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_bootstrap_covers_the_mean():
    """About 0.92 for twenty normal values: the percentile interval is a little narrow."""
    covered = [
        low <= 0 <= high
        for low, high in (bootstrap(row, draws=500) for row in RNG.normal(size=(1000, 20)))
    ]
    assert 0.88 < np.mean(covered) < 0.96


def test_the_median_is_not_moved_by_one_bad_split():
    values = np.append(RNG.normal(size=19), -1000.0)
    low, high = bootstrap(values, of="median")
    assert -2 < low < np.median(values) < high < 2
    assert bootstrap(values)[0] < -50


def test_a_band_is_the_interval_of_every_column():
    values = RNG.normal(size=(20, 3))
    low, high = bootstrap_band(values)
    for column in range(3):
        assert (low[column], high[column]) == bootstrap(values[:, column])


@pytest.mark.parametrize("values", [[], [1.0], [1.0, np.nan, 2.0], [1.0, -np.inf]])
def test_no_interval(values):
    assert np.all(np.isnan(bootstrap(values)))


def test_equal_values_have_no_width():
    assert bootstrap([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"values": [[1.0]]}, "values must be one row"),
        ({"values": [1.0, 2.0], "level": 95}, "level must lie between 0 and 1, not 95"),
        ({"values": [1.0, 2.0], "draws": 0}, "draws must be at least 1, not 0"),
    ],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(ValueError, match=says):
        bootstrap(**arguments)


# -- the tests beside other implementations --------------------------------------------------------


@pytest.mark.parametrize("scores", CASES)
def test_friedman_is_scipys(scores):
    assert friedman(scores) == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)


@pytest.mark.parametrize("scores", CASES)
def test_nemenyi_is_that_of_scikit_posthocs(scores):
    posthocs = pytest.importorskip("scikit_posthocs")
    theirs = posthocs.posthoc_nemenyi_friedman(scores).to_numpy()
    np.testing.assert_allclose(nemenyi(scores), theirs, rtol=1e-4, atol=1e-6)


def test_nemenyi_by_hand():
    """Three methods, always in one order, over six splits: mean ranks 1, 2, 3.

    q = 1 / √(3 · 4 / 36) = √3 for neighbours and 2√3 for the ends, and the tabulated critical
    difference at 0.05, q = 2.343, lies between.
    """
    scores = np.tile([1.0, 2.0, 3.0], (6, 1))
    p = nemenyi(scores)
    range_of_3 = lambda q: stats.studentized_range.sf(q, 3, np.inf)  # noqa: E731
    assert p[0, 1] == p[1, 2] == pytest.approx(range_of_3(np.sqrt(6)))
    assert p[0, 2] == pytest.approx(range_of_3(2 * np.sqrt(6)))
    assert p[0, 2] < 0.05 < p[0, 1]
    assert np.array_equal(np.diag(p), [1, 1, 1])
    assert range_of_3(2.343 * np.sqrt(2)) == pytest.approx(0.05, abs=1e-3)


def test_two_methods_make_a_sign_test():
    scores = np.tile([0.0, 1.0], (16, 1))
    assert friedman(scores) == pytest.approx(stats.chi2.sf(16, 1))
    assert nemenyi(scores)[0, 1] == pytest.approx(stats.chi2.sf(16, 1), rel=1e-3)


# -- edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores", [np.ones((5, 4)), np.ones((5, 1)), np.ones((0, 3)), np.full((5, 3), np.nan)]
)
def test_nothing_to_compare(scores):
    assert friedman(scores) == 1
    assert np.all(nemenyi(scores) == 1)
    assert indistinct(scores).all()
    assert len(indistinct(scores)) == scores.shape[1]


def test_one_split_tells_nothing():
    assert indistinct([[1.0, 5.0, 3.0]]).all()


def test_nan_ranks_lowest():
    scores = RNG.normal(size=(20, 3))
    scores[:, 1] = np.nan
    assert indistinct(scores).tolist() == [True, False, True]
    scores[:, 1] = -1e9
    worst = nemenyi(scores)
    scores[:, 1] = np.nan
    np.testing.assert_array_equal(nemenyi(scores), worst)


def test_scores_need_two_axes():
    with pytest.raises(ValueError, match=r"splits × methods, not of shape \(3,\)"):
        friedman([1.0, 2.0, 3.0])


# -- calibration -----------------------------------------------------------------------------------


def false_alarms(p_values, level=0.05):
    """How far the rate of p ≤ level lies above it, in standard errors, and the rate."""
    rate = np.mean(np.asarray(p_values) <= level)
    return (rate - level) / np.sqrt(level * (1 - level) / len(p_values)), rate


def test_the_level_is_kept():
    """Six equal methods, twenty splits with large differences between splits."""
    rng = np.random.default_rng(7)
    scores = rng.normal(size=(1000, 20, 6)) + 10 * rng.normal(size=(1000, 20, 1))
    for p_values in ([friedman(s) for s in scores], [nemenyi(s).min() for s in scores]):
        z, rate = false_alarms(p_values)
        assert z < 5
        assert rate > 0.03
    assert 0.02 < np.mean([not indistinct(s).all() for s in scores]) < 0.065
    # without a correction for the fifteen pairs there are many false alarms
    mutant = [
        min(stats.wilcoxon(s[:, 0], s[:, j]).pvalue for j in range(1, 6)) for s in scores[:300]
    ]
    assert false_alarms(mutant)[0] > 8


def test_a_better_method_is_found():
    rng = np.random.default_rng(8)
    found = np.zeros(6)
    for _ in range(200):
        scores = rng.normal(size=(20, 6)) + 10 * rng.normal(size=(20, 1))
        scores[:, 2] += 2
        found += indistinct(scores)
    assert found[2] == 200
    assert np.all(np.delete(found, 2) < 0.1 * 200)
