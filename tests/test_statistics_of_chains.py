"""PSIS, R̂ and effective sample sizes: against ArviZ, against known truths, and at the edges."""

import numpy as np
import pytest

from scoreascent.diagnostics.chains import ess_bulk, ess_tail, rhat
from scoreascent.diagnostics.psis import Psis, effective_sample_size, psis
from tests.stats import Z_MAX, Z_MUTANT, z_score

# -- ArviZ: version 0 takes log weights, version 1 their negatives, log likelihoods ----------------


@pytest.fixture(scope="module")
def arviz():
    return pytest.importorskip("arviz")


def is_version_0(arviz):
    return arviz.__version__.startswith("0.")


def arviz_psis(arviz, log_weights, reff=1.0):
    if is_version_0(arviz):
        return Psis(*arviz.psislw(np.array(log_weights), reff))
    from arviz_stats.base import array_stats

    return Psis(*array_stats.psislw(-np.asarray(log_weights), r_eff=reff))


def arviz_chains(arviz, name, x):
    """One coordinate at a time, (chains, draws) being what both versions take."""
    if x.ndim > 2:
        columns = x.reshape(*x.shape[:2], -1)
        each = [arviz_chains(arviz, name, columns[..., i]) for i in range(columns.shape[-1])]
        return np.reshape(each, x.shape[2:])
    if name == "rhat":
        return float(arviz.rhat(x))
    # version 1 has other tails unless told
    prob = {} if name == "bulk" else {"prob": (0.05, 0.95)}
    return float(arviz.ess(x, method=name, **prob))


# -- PSIS ------------------------------------------------------------------------------------------


def pareto(shape, n, seed=0):
    """Logs of 1 + a generalised Pareto variable."""
    u = np.random.default_rng(seed).uniform(size=n)
    return np.log1p(np.expm1(-shape * np.log(u)) / shape)


def normal_ratio(sd, n, seed=0):
    """Log weights of a normal target of standard deviation `sd` under draws of the standard one."""
    z = np.random.default_rng(seed).normal(size=n)
    return z**2 / 2 - (z / sd) ** 2 / 2


RNG = np.random.default_rng(3)
ZEROS = np.where(np.arange(900) % 3 == 0, -np.inf, pareto(0.4, 900, 5))
# sizes at which both versions have tails of one length
WEIGHTS = {
    "narrow target": (normal_ratio(0.5, 2500), 1.0),
    "wide target": (normal_ratio(1.3, 2500), 1.0),
    "far too wide target": (normal_ratio(4.0, 10_000), 1.0),
    "k = 0.3": (pareto(0.3, 10_000), 1.0),
    "k = 0.7": (pareto(0.7, 2500), 1.0),
    "k = 1.2": (pareto(1.2, 400), 1.0),
    "k = 1.2, shifted": (pareto(1.2, 400) - 1e5, 1.0),
    "bounded": (np.log(RNG.uniform(size=900)), 1.0),
    "small": (pareto(0.5, 30), 1.0),
    "a fifth": (pareto(0.5, 150), 1.0),
    "dependent draws": (pareto(0.5, 450), 0.5),
    "antithetic draws": (pareto(0.5, 1600), 4.0),
    "steep": (50 * RNG.normal(size=2500), 1.0),
    "steeper than floats": (1e300 * RNG.normal(size=400), 1.0),
    "zero weights": (ZEROS, 1.0),
    "single precision": (pareto(0.6, 900, 8).astype(np.float32), 1.0),
}


def assert_same_psis(ours, theirs, tied=False):
    if np.isfinite(theirs.k_hat):
        assert ours.k_hat == pytest.approx(float(theirs.k_hat), rel=1e-8, abs=1e-8)
    else:  # version 0 has ∞ where version 1 has NaN
        assert ours.k_hat == np.inf
    pair = ours.log_weights, theirs.log_weights
    if tied:  # which of two equal weights gets the larger quantile is up to the sorting
        pair = np.sort(pair[0]), np.sort(pair[1])
    np.testing.assert_allclose(*pair, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", WEIGHTS)
def test_psis_is_arvizs(arviz, name):
    log_weights, reff = WEIGHTS[name]
    kept = log_weights.copy()
    ours = psis(log_weights, reff)
    np.testing.assert_array_equal(log_weights, kept)
    with np.errstate(all="ignore"):
        assert_same_psis(ours, arviz_psis(arviz, log_weights.astype(np.float64), reff))


def test_psis_of_ties_is_arvizs(arviz):
    twice = np.repeat(pareto(0.6, 200), 2)  # the tail is the top sixty: no tie at its edge
    assert_same_psis(psis(twice), arviz_psis(arviz, twice), tied=True)


@pytest.mark.parametrize("n", [21, 22, 101, 226, 333, 1000, 4321])
@pytest.mark.parametrize("reff", [0.3, 1.0, 1.7])
def test_psis_of_any_size_is_that_of_arviz_0(arviz, n, reff):
    """And near that of ArviZ 1, whose tail may be one weight shorter."""
    log_weights = pareto(0.7, n, n)
    ours = psis(log_weights, reff)
    if is_version_0(arviz):
        assert_same_psis(ours, arviz_psis(arviz, log_weights, reff))
    elif n >= 226:
        assert ours.k_hat == pytest.approx(float(arviz_psis(arviz, log_weights, reff)[1]), abs=0.05)


@pytest.mark.parametrize(
    "log_weights",
    [
        np.round(pareto(0.7, 1000), 1),  # ties at the edge of the tail
        np.where(np.arange(1000) < 970, -np.inf, pareto(0.7, 1000)),  # thirty that are not zero
        np.where(np.arange(1000) < 997, -np.inf, 0.0),  # three
        np.where(np.arange(1000) < 999, -np.inf, 3.0),  # one
        np.where(np.arange(1000) < 995, 0.0, np.arange(1000.0)),  # five above the rest
        pareto(0.7, 20),
        pareto(0.7, 3),
    ],
)
def test_psis_of_odd_tails_is_that_of_arviz_0(arviz, log_weights):
    if not is_version_0(arviz):
        pytest.skip("ArviZ 1 counts ties to the tail and has errors for short tails")
    assert_same_psis(psis(log_weights), arviz_psis(arviz, log_weights), tied=True)


@pytest.mark.parametrize("shape", [0.3, 0.7, 1.2])
def test_k_hat_is_the_shape_of_a_pareto_tail(shape):
    """Up to its prior, and a bias below 1/30 of three hundred weights in the tail."""
    k_hat = [psis(pareto(shape, 10_000, seed)).k_hat for seed in range(30)]
    drawn = (300 * shape + 5) / 310
    assert z_score(k_hat, drawn) < Z_MAX
    assert z_score(k_hat, drawn + 0.2) > Z_MUTANT


def test_smoothing_makes_estimates_steadier():
    """The mean weight of a tail whose variance is infinite, for one."""
    raw, smooth = [], []
    for seed in range(200):
        x = pareto(0.75, 400, seed)
        raw.append(np.mean(np.exp(x)))
        ours = psis(x).log_weights
        low = np.argmin(x)  # not in the tail, so smoothing has left it where it was
        smooth.append(np.mean(np.exp(ours - ours[low] + x[low])))
    assert np.std(smooth) < 0.8 * np.std(raw)


def test_weights_are_normalised_and_keep_their_order():
    x = pareto(0.8, 1000)
    ours = psis(x)
    assert isinstance(ours.k_hat, float)
    assert ours.log_weights.dtype == np.float64
    assert np.log(np.sum(np.exp(ours.log_weights))) == pytest.approx(0, abs=1e-12)
    np.testing.assert_array_equal(np.argsort(ours.log_weights), np.argsort(x))
    body = np.argsort(x)[:900]  # moved by the normalisation alone
    np.testing.assert_allclose(np.ptp((ours.log_weights - x)[body]), 0, atol=1e-12)
    assert np.max(ours.log_weights - ours.log_weights[body[0]]) <= np.max(x - x[body[0]]) + 1e-12
    moved = psis(x + 700.0)
    assert moved.k_hat == pytest.approx(ours.k_hat, abs=1e-8)
    np.testing.assert_allclose(moved.log_weights, ours.log_weights, atol=1e-8)
    assert psis(x.tolist()).k_hat == ours.k_hat


@pytest.mark.parametrize("n", [1, 2, 20])
def test_few_weights_have_no_tail(n):
    ours = psis(np.arange(n))
    assert ours.k_hat == np.inf
    np.testing.assert_allclose(np.exp(ours.log_weights).sum(), 1)
    np.testing.assert_allclose(np.diff(ours.log_weights), 1)
    assert np.isfinite(psis(np.log(np.arange(1, 22))).k_hat)


@pytest.mark.parametrize(
    "log_weights",
    [
        np.zeros(100),
        np.full(100, 1e300),
        np.where(np.arange(1000) < 500, 0.0, -1.0),  # the largest weight fills the tail
        np.where(np.arange(1000) < 95, 0.0, -1.0 - np.arange(1000) / 1000),  # exactly
        np.where(np.arange(1000) < 500, 0.0, -np.inf),
        5.0 + 1e-15 * np.random.default_rng(0).integers(-3, 4, 1000),  # equal but for rounding
    ],
)
def test_a_flat_tail_is_bounded_and_left_alone(log_weights):
    ours = psis(log_weights)
    assert ours.k_hat == -np.inf
    weights = np.exp(log_weights - np.max(log_weights))
    np.testing.assert_allclose(np.exp(ours.log_weights), weights / weights.sum(), rtol=1e-12)


def test_a_few_weights_that_carry_everything_are_no_flat_tail():
    for n in (1, 4):
        assert psis(np.where(np.arange(1000) < n, 0.0, -50.0)).k_hat == np.inf


@pytest.mark.parametrize("spread", [1e-9, 1e-6, 300.0, 1e4, 1e308])
def test_psis_has_no_warnings_at_any_scale(spread):
    with np.errstate(all="raise", under="ignore"):
        ours = psis(spread * np.random.default_rng(2).uniform(-1, 1, 1000))
    assert not np.isnan(ours.k_hat)
    assert np.exp(ours.log_weights).sum() == pytest.approx(1)


def test_effective_sample_size_of_weights():
    assert effective_sample_size(np.full(7, -3.0)) == pytest.approx(7)
    assert effective_sample_size([0.0, -np.inf, -np.inf]) == pytest.approx(1)
    assert effective_sample_size([1e300, -1e300]) == pytest.approx(1)
    weights = np.random.default_rng(0).dirichlet(np.ones(50))
    expected = 1 / np.sum(weights**2)
    assert effective_sample_size(np.log(weights) + 800) == pytest.approx(expected)
    assert effective_sample_size([5.0]) == pytest.approx(1)


@pytest.mark.parametrize("function", [psis, effective_sample_size])
@pytest.mark.parametrize(
    ("log_weights", "message"),
    [
        ([0.0, np.nan, np.nan], r"log_weights must be finite.*got nan at index 1 \(2 such of 3\)"),
        ([np.inf, 0.0], r"log_weights must be finite.*got inf at index 0"),
        ([-np.inf, -np.inf], "log_weights must have one above -inf, got 2 weights of zero"),
        ([], r"log_weights must have shape \(n,\) with n ≥ 1, got \(0,\)"),
        (0.0, r"log_weights must have shape \(n,\)"),
        (np.zeros((2, 3)), r"log_weights must have shape .* got \(2, 3\)"),
        (["a"], "log_weights must be real numbers"),
        (None, "log_weights must be real numbers"),
        ([1j], "log_weights must be real numbers"),
    ],
)
def test_bad_log_weights(function, log_weights, message):
    with pytest.raises(ValueError, match=message):
        function(log_weights)


@pytest.mark.parametrize("reff", [0.0, -1.0, np.nan, np.inf, "1", [1.0, 1.0]])
def test_bad_reff(reff):
    with pytest.raises(ValueError, match="reff must be"):
        psis(np.zeros(100), reff)


# -- chains ----------------------------------------------------------------------------------------


def autoregressive(rho, shape, seed=0):
    """Stationary Gaussian chains with autocorrelation ρ, of shape (chains, draws, ...)."""
    x = np.random.default_rng(seed).normal(size=shape)
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def metropolis(shape, seed=0):
    """Random walks that repeat their state when they reject."""
    rng = np.random.default_rng(seed)
    x = np.zeros(shape)
    x[:, 0] = rng.normal(size=shape[0])
    for t in range(1, shape[1]):
        proposed = x[:, t - 1] + 2 * rng.normal(size=shape[0])
        accept = np.log(rng.uniform(size=shape[0])) < (x[:, t - 1] ** 2 - proposed**2) / 2
        x[:, t] = np.where(accept, proposed, x[:, t - 1])
    return x


def independent(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


CHAINS = {
    "independent": independent(4, 500),
    "odd": independent(3, 501),
    "two": independent(2, 40),
    "one": independent(1, 300),
    "many short": independent(50, 9),
    "autoregressive": autoregressive(0.9, (4, 1000)),
    "hardly moving": autoregressive(0.999, (4, 300)),
    "antithetic": autoregressive(-0.9, (4, 500)),
    "shifted": independent(4, 200) + np.arange(4)[:, None],
    "spread": independent(4, 200) * (1 + np.arange(4)[:, None]),
    "drifting": independent(4, 200) + np.arange(200) / 50,
    "heavy tails": np.random.default_rng(0).standard_cauchy((4, 333)),
    "metropolis": metropolis((4, 1000)),
    "metropolis, odd": metropolis((5, 401), 1),
    "whole numbers": np.random.default_rng(0).poisson(20.0, (4, 250)).astype(float),
    "huge": 1e150 * independent(4, 100),
    "far": 1e9 + independent(4, 100),
    "several coordinates": autoregressive(0.5, (4, 200, 3, 2)),
}
CHAINS |= {f"{n} draws": independent(3, n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)}
STATISTICS = {"rhat": rhat, "bulk": ess_bulk, "tail": ess_tail}


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_arvizs(arviz, name, statistic):
    x = CHAINS[name]
    theirs = arviz_chains(arviz, statistic, x)
    np.testing.assert_allclose(STATISTICS[statistic](x), theirs, rtol=1e-10)


@pytest.mark.parametrize("n", [100, 101])
def test_constant_chains(arviz, n):
    """As in ArviZ, but for what rounding does to its zeros."""
    same = np.full((4, n), 0.1)
    stuck = same + np.arange(4)[:, None]
    assert np.isnan(rhat(same))
    assert rhat(stuck) == np.inf
    with np.errstate(all="ignore"):
        assert not arviz_chains(arviz, "rhat", stuck) < 1e6
    for name in ("bulk", "tail"):
        for x in (same, stuck):
            ours = STATISTICS[name](x)
            np.testing.assert_allclose(ours, arviz_chains(arviz, name, x), rtol=1e-10)
    assert ess_bulk(same) == ess_tail(same) == 4 * (n - n % 2)
    assert ess_bulk(stuck) < 10


def test_one_stuck_chain(arviz):
    x = independent(4, 200)
    x[2] = 0.3
    for name, statistic in STATISTICS.items():
        np.testing.assert_allclose(statistic(x), arviz_chains(arviz, name, x), rtol=1e-10)
    assert rhat(x) > 1.1


def test_two_values_about_their_median_have_the_rhat_of_their_ranks():
    """All are equally far from the median, which says nothing about the spread."""
    x = np.tile([-1.0, 1.0], (4, 50))
    assert rhat(x) == pytest.approx(np.sqrt(49 / 50))
    x[0] = 1.0
    assert rhat(x) > 1.05


def test_rhat_of_chains_that_agree_and_of_others():
    x = independent(4, 1000, 200)
    assert np.all(np.abs(rhat(x) - 1) < 0.01)
    assert np.all(rhat(x + np.arange(4)[:, None, None]) > 1.3)
    assert np.all(rhat(x * (1 + np.arange(4))[:, None, None]) > 1.05)  # spreads alone
    assert np.all(rhat(x + np.linspace(0, 2, 1000)[:, None]) > 1.05)  # halves alone


def test_ess_of_independent_draws_is_their_number():
    x = independent(4, 1000, 100)
    for ess in (ess_bulk, ess_tail):
        assert np.mean(ess(x)) / 4000 == pytest.approx(1, abs=0.05)
        assert np.mean(ess(np.repeat(x, 4, axis=1))) / 4000 == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("rho", [-0.3, 0.5, 0.9])
def test_ess_of_autoregressive_chains(rho):
    x = autoregressive(rho, (8, 2000, 50))
    n, share = 16_000, (1 - rho) / (1 + rho)
    assert np.mean(ess_bulk(x)) / n == pytest.approx(share, rel=0.05)
    if rho > 0:
        assert 1.05 * share < np.mean(ess_tail(x)) / n < 1  # indicators forget sooner
    shuffled = np.random.default_rng(1).permutation(x.reshape(n, 50)).reshape(x.shape)
    assert np.mean(ess_bulk(shuffled)) / n == pytest.approx(1, abs=0.05)


def test_trailing_axes_are_coordinates(monkeypatch):
    x = autoregressive(0.5, (4, 101, 3, 5))
    for statistic in STATISTICS.values():
        together = statistic(x)
        assert together.shape == (3, 5)
        assert isinstance(statistic(x[..., 0, 0]), float)
        for i, j in np.ndindex(3, 5):
            assert together[i, j] == pytest.approx(statistic(x[..., i, j]), rel=1e-12)
        assert statistic(x[..., :0]).shape == (3, 0)
        monkeypatch.setattr("scoreascent.diagnostics.chains._BLOCK", 4 * 101 * 4)
        np.testing.assert_allclose(statistic(x), together, rtol=1e-12)
        monkeypatch.undo()


def test_ranks_do_not_change_under_a_monotone_map():
    x = autoregressive(0.7, (4, 200))
    assert ess_bulk(np.exp(x)) == pytest.approx(ess_bulk(x), rel=1e-12)
    assert ess_bulk(x.astype(np.float32)) == pytest.approx(ess_bulk(x), rel=1e-6)
    assert ess_tail(x > 0) == ess_tail((x > 0).astype(int))
    for seed in range(50):  # a quantile between equal draws is equal to them, whatever the scale
        tied = np.random.default_rng(seed).integers(0, 9, (4, 52)).astype(float)
        assert ess_tail(tied / 10) == pytest.approx(ess_tail(tied), rel=1e-12)


@pytest.mark.parametrize("statistic", STATISTICS.values())
def test_a_coordinate_that_is_not_finite_is_nan_and_leaves_the_others(statistic):
    x = independent(4, 100, 3)
    expected = statistic(x)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[1, 50, 1] = bad
        with np.errstate(all="raise"):
            ours = statistic(broken)
        np.testing.assert_array_equal(np.isnan(ours), [False, True, False])
        np.testing.assert_allclose(ours[[0, 2]], expected[[0, 2]], rtol=1e-12)
    assert np.isnan(statistic(np.full((4, 100), np.nan)))


def test_too_little_to_tell_is_nan():
    for statistic in STATISTICS.values():
        assert np.isnan(statistic(independent(4, 3)))
        assert np.isnan(statistic(independent(4, 0)))
        assert np.isnan(statistic(independent(4, 3, 2))).all()
        assert np.isfinite(statistic(independent(4, 4)))
    assert np.isnan(rhat(independent(1, 100)))
    assert np.isfinite(ess_bulk(independent(1, 100)))


@pytest.mark.parametrize("statistic", STATISTICS.values())
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(10), r"x must have shape \(chains, draws, ...\), got \(10,\)"),
        (1.0, r"x must have shape \(chains, draws, ...\), got \(\)"),
        (np.zeros((0, 10)), r"x must have shape .* got \(0, 10\)"),
        ([["a", "b"]], "x must be real numbers"),
        ([[1.0], [1.0, 2.0]], "x must be real numbers in a rectangular array"),
        (None, "x must be real numbers"),
    ],
)
def test_bad_chains(statistic, x, message):
    with pytest.raises(ValueError, match=message):
        statistic(x)
