"""The theory module against exact enumeration, quadrature and rational arithmetic.

Bounds are checked on discrete spaces small enough for every kernel to be a matrix. A check that a
bound holds comes with a mutant, a formula that is slightly wrong, which the same check rejects.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from scoreascent import theory as th

LIGHT = settings(max_examples=120, deadline=None, derandomize=True, database=None)
ROUNDING = 1e-12


def normalised(values):
    return np.asarray(values) / np.sum(values)


@st.composite
def spaces(draw, least=2, most=5):
    """A target and a proposal on one small space, with weights from about 1/50 to 50."""
    size = draw(st.integers(least, most))
    entries = st.lists(st.floats(0.02, 1.0), min_size=size, max_size=size)
    return normalised(draw(entries)), normalised(draw(entries))


def random_space(seed, size=4, concentration=0.5):
    rng = np.random.default_rng(seed)
    pi, q = rng.dirichlet(np.full(size, concentration), 2) + 0.01
    return normalised(pi), normalised(q)


def random_gaussians(seed, dim, wider):
    """Two Gaussians with Σq − wider·Σp positive definite."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, dim, dim))
    cov_p = a @ a.T / dim + 0.2 * np.eye(dim)
    cov_q = wider * cov_p + b @ b.T / dim + 0.1 * np.eye(dim)
    mean_p, mean_q = rng.normal(size=(2, dim))
    return mean_p, cov_p, mean_q, cov_q


def tv(rows, target):
    return np.abs(rows - target).sum(axis=-1) / 2


def cis_draws(q, n):
    """Every set of N − 1 fresh proposals with its probability."""
    for fresh in itertools.product(range(len(q)), repeat=n - 1):
        index = list(fresh)
        yield index, np.prod(q[index])


def cis_matrix(pi, q, n):
    w = pi / q
    matrix = np.zeros((len(pi), len(pi)))
    for fresh, probability in cis_draws(q, n):
        total = w[fresh].sum() + w
        for j in fresh:
            matrix[:, j] += probability * w[j] / total
        matrix[np.diag_indices_from(matrix)] += probability * w / total
    return matrix


def cis_moments(pi, q, n, s, retained_sign=1.0):
    """Mean and mean square of the MSC-RB gradient given each retained state (−g, scalar s)."""
    w = pi / q
    mean, square = np.zeros(len(pi)), np.zeros(len(pi))
    for fresh, probability in cis_draws(q, n):
        g = ((w[fresh] * s[fresh]).sum() + retained_sign * w * s) / (w[fresh].sum() + w)
        mean += probability * g
        square += probability * g**2
    return mean, square


power = np.linalg.matrix_power
WSTAR_LIMITS = np.array([0.0, 1e-12, 0.5, 5.0, 36.0, 300.0, 700.0, 1e4, np.inf])


# --- the exact n-step kernel ----------------------------------------------------------------


@LIGHT
@given(spaces(least=1, most=7), st.integers(1, 40))
def test_nstep_kernel_is_the_matrix_power(space, n):
    pi, q = space
    one = th.imh_matrix(pi, q)
    assert np.allclose(one.sum(axis=1), 1, atol=ROUNDING)
    assert np.allclose(pi @ one, pi, atol=ROUNDING)
    assert np.allclose(th.imh_nstep(pi, q, n), power(one, n), rtol=0, atol=ROUNDING)


def test_nstep_kernel_with_ties_large_spaces_and_many_steps():
    pi = np.array([0.2, 0.2, 0.3, 0.3])
    q = np.array([0.1, 0.1, 0.4, 0.4])
    assert np.allclose(th.imh_nstep(pi, q, 5), power(th.imh_matrix(pi, q), 5), atol=ROUNDING)
    assert np.allclose(th.imh_nstep(pi, pi, 3), np.tile(pi, (4, 1)), atol=ROUNDING)
    pi, q = random_space(1, size=60, concentration=0.3)
    for n in (1, 2, 17, 1000):
        assert np.allclose(th.imh_nstep(pi, q, n), power(th.imh_matrix(pi, q), n), atol=ROUNDING)
    assert np.allclose(th.imh_nstep(pi, q, 10**9), pi, atol=1e-9)
    assert th.imh_nstep([1.0], [1.0], 4).tolist() == [[1.0]]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_t_n_is_the_integral(n):
    pi, q = random_space(2)
    w = pi / q
    for at in [0.3 * w.min(), w.min(), 0.5 * (w.min() + w.max()), w.max(), 3 * w.max()]:
        # In u = 1/v the range is finite, and the kinks are known.
        integral, _ = integrate.quad(
            lambda u: n * th.rejection(1 / u, pi, q) ** (n - 1) if u > 0 else n,
            0,
            1 / at,
            points=sorted(u for u in 1 / w if u < 1 / at) or None,
            epsabs=1e-12,
        )
        assert th.t_n(at, n, pi, q) == pytest.approx(integral, rel=1e-9)
    grid = np.linspace(0.1, 5.0, 12).reshape(3, 4)
    assert np.allclose(th.t_n(grid, 1, pi, q), 1 / grid)
    assert th.t_n(grid, n, pi, q).shape == (3, 4)
    assert th.t_n(np.inf, n, pi, q) == 0


@LIGHT
@given(spaces())
def test_rejection_is_what_the_chain_rejects(space):
    pi, q = space
    w = pi / q
    # The diagonal holds the rejections and the accepted proposals of the state itself.
    assert np.allclose(th.rejection(w, pi, q), np.diag(th.imh_matrix(pi, q)) - q, atol=ROUNDING)
    at = np.geomspace(0.01, 100, 30)
    lower, upper = th.rejection_bounds(at, th.discrete_log_wstar(pi, q))
    exact = th.rejection(at, pi, q)
    assert np.all(lower <= exact + ROUNDING)
    assert np.all(exact <= upper + ROUNDING)
    assert np.all(np.diff(exact) >= -ROUNDING)
    assert th.rejection(np.inf, pi, q) == pytest.approx(1)


@LIGHT
@given(spaces(), st.integers(1, 12))
def test_bounds_on_the_kernel_hold(space, n):
    pi, q = space
    w, lw = pi / q, th.discrete_log_wstar(pi, q)
    at = np.concatenate([w, [0.1 * w.min(), 4 * w.max()]])
    assert np.all(th.t_n(at, n, pi, q) <= th.t_n_bound(at, n, lw) * (1 + ROUNDING))
    kernel = power(th.imh_matrix(pi, q), n)
    for f in [*np.eye(len(pi)), w, 1 / w, np.ones_like(w)]:
        bound = th.imh_expectation_bound(n, lw, q @ f, pi @ f, f)
        assert np.all(kernel @ f <= bound + ROUNDING)


# --- total variation ---------------------------------------------------------------------------


def marginal_distance(pi, q, k):
    """Largest distance of K^k(z, ·) from π over the starts z."""
    return tv(power(th.imh_matrix(pi, q), k), pi).max()


def product_distance(pi, q, n, k):
    """Largest distance of n parallel chains from Π, by the joint law."""
    rows = power(th.imh_matrix(pi, q), k)
    worst = rows[tv(rows, pi).argmax()]
    joint = target = np.ones(1)
    for _ in range(n):
        joint, target = np.outer(joint, worst).ravel(), np.outer(target, pi).ravel()
    return tv(joint, target)


@LIGHT
@given(spaces(most=4), st.integers(2, 4), st.integers(1, 6))
def test_mixing_bounds_hold(space, n, k):
    pi, q = space
    lw = th.discrete_log_wstar(pi, q)
    cis = power(cis_matrix(pi, q, n), k)
    assert np.all(tv(cis, pi) <= th.msc_mixing(k, lw, n) + ROUNDING)
    assert th.msc_rate(lw, n) <= th.msc_rb_rate(lw, n) + ROUNDING
    assert product_distance(pi, q, n, k) <= th.pmcsa_mixing(k, lw, n) + ROUNDING
    marginals = [marginal_distance(pi, q, (k - 1) * n + i) for i in range(1, n + 1)]
    assert sum(marginals) <= th.jsa_mixing(k, lw, n) + ROUNDING
    factors = th.product_tv_bound([marginal_distance(pi, q, k)] * n)
    assert product_distance(pi, q, n, k) <= factors + ROUNDING


def test_imh_rate_is_reached_at_the_largest_weight():
    pi, q = random_space(3)
    z = (pi / q).argmax()
    r = th.imh_rate(th.discrete_log_wstar(pi, q))
    for k in (1, 2, 9):
        distance = tv(power(th.imh_matrix(pi, q), k)[z], pi)
        assert distance == pytest.approx(r**k * (1 - pi[z]), rel=1e-10)


def test_mixing_mutants_are_rejected():
    uniform = np.full(8, 1 / 8)
    exact = tv(cis_matrix(uniform, uniform, 2), uniform).max()
    assert exact <= th.msc_mixing(1, 0.0, 2)
    assert exact > th.msc_mixing(1, 0.0, 3)  # N fresh proposals, the paper's pseudocode
    pi, q = normalised([0.05, 1, 1, 1]), normalised([0.01, 1, 1, 1])
    lw, k = th.discrete_log_wstar(pi, q), 10
    exact = product_distance(pi, q, 4, k)
    assert exact <= th.pmcsa_mixing(k, lw, 4)
    assert exact > th.pmcsa_mixing(k, lw, 1)  # the factor N forgotten
    marginals = sum(marginal_distance(pi, q, i) for i in range(1, 4))
    assert marginals <= th.jsa_mixing(1, lw, 3)
    assert marginals > th.jsa_mixing(2, lw, 3)  # an iteration too many


def test_mixing_is_the_formula():
    for w, n, k in itertools.product([1.5, 4.0, 60.0], [2, 3, 10], [1, 2, 7]):
        r, lw = 1 - 1 / w, np.log(w)
        assert th.msc_mixing(k, lw, n) == pytest.approx((1 - (n - 1) / (2 * w + n - 2)) ** k)
        assert th.msc_rb_rate(lw, n) == pytest.approx(2 * w / (2 * w + n - 2))
        jsa = r * (1 - r**n) / (r**n * (1 - r)) * r ** (k * n)
        assert th.jsa_mixing(k, lw, n) == pytest.approx(jsa)
        assert th.jsa_rate(lw, n) == pytest.approx(r**n)
        assert th.pmcsa_mixing(k, lw, n) == pytest.approx(n * r**k)


def test_mixing_limits():
    assert th.imh_rate(WSTAR_LIMITS)[[0, -1]].tolist() == [0, 1]
    assert th.msc_rate([0.0, np.inf], 4) == pytest.approx([0.25, 1])
    assert th.msc_rb_rate([0.0, np.inf], 4) == pytest.approx([0.5, 1])
    assert th.jsa_mixing(1, [0.0, np.inf], 4) == pytest.approx([0, 4])
    assert th.jsa_mixing(3, [0.0, np.inf], 4) == pytest.approx([0, 4])
    assert th.pmcsa_mixing(3, [0.0, np.inf], 4) == pytest.approx([0, 4])
    assert th.pmcsa_mixing(0, [0.0, np.inf], 4) == pytest.approx([4, 4])
    # What is left of a rate at w* = e^700 is −1/w* times something, and only the log shows it.
    tiny = np.exp(-700.0)
    assert th.imh_rate(700.0) == 1
    assert th.imh_rate(700.0, log=True) == pytest.approx(-tiny, rel=1e-12)
    assert th.msc_rate(700.0, 10, log=True) == pytest.approx(-9 / 2 * tiny, rel=1e-12)
    assert th.msc_rb_rate(700.0, 10, log=True) == pytest.approx(-8 / 2 * tiny, rel=1e-12)
    assert th.jsa_rate(700.0, 10, log=True) == pytest.approx(-10 * tiny, rel=1e-12)
    assert th.jsa_mixing(1, 700.0, 10, log=True) == pytest.approx(np.log(10))
    assert th.imh_rate(1e-12) == pytest.approx(1e-12, rel=1e-9)
    for values in [
        th.msc_mixing(5, WSTAR_LIMITS, 6),
        th.jsa_mixing(5, WSTAR_LIMITS, 6),
        th.pmcsa_mixing(5, WSTAR_LIMITS, 6),
    ]:
        assert np.all(np.diff(values) >= 0)  # no NaN either: a comparison with it is false


# --- the second moment of the gradient ----------------------------------------------------


def scores(space, bits):
    """A scalar score of absolute value at most one, from the bits of an integer."""
    return np.array([1.0 if bits >> i & 1 else -0.7 for i in range(len(space[0]))])


def pmcsa_second_moment(pi, q, s, n, t):
    """E g² of pMCSA from each start, all chains from the same one."""
    kernel = power(th.imh_matrix(pi, q), t)
    mean, square = kernel @ s, kernel @ s**2
    return (square - mean**2) / n + mean**2


def jsa_moments(pi, q, s, n, t):
    """E g² of JSA and its C_cov, from each start."""
    kernel = th.imh_matrix(pi, q)
    laws = [power(kernel, (t - 1) * n + i) for i in range(1, n + 1)]
    means = [law @ s for law in laws]
    variance = sum(law @ s**2 - m**2 for law, m in zip(laws, means)) / n**2
    covariance = np.zeros_like(s)
    for early, late in itertools.combinations(range(n), 2):
        product = laws[early] @ (s * (power(kernel, late - early) @ s))
        covariance += 2 / n**2 * (product - means[early] * means[late])
    return variance + covariance + (sum(means) / n) ** 2, covariance


@LIGHT
@given(spaces(most=4), st.integers(2, 4), st.integers(1, 4), st.integers(0, 31))
def test_second_moment_bounds_hold(space, n, t, bits):
    pi, q = space
    s, lw = scores(space, bits), th.discrete_log_wstar(pi, q)
    mu = abs(pi @ s)
    bias = th.mcmc_bias_bound(th.imh_rate(lw) ** t, 1.0)
    bound = th.pmcsa_bound(lw, n, 1.0, bias=bias, mu_norm=mu)
    assert np.all(pmcsa_second_moment(pi, q, s, n, t) <= bound + ROUNDING)

    exact, cov = jsa_moments(pi, q, s, n, t)
    bias = th.mcmc_bias_bound(th.jsa_mixing(t, lw, n) / n, 1.0)
    assert np.all(exact <= th.jsa_bound(n, 1.0, cov=cov, bias=bias, mu_norm=mu) + ROUNDING)

    chi2 = th.discrete_chi2(pi, q)
    mean, square = cis_moments(pi, q, n, s)
    past = power(cis_matrix(pi, q, n), t - 1)
    assert np.all(past @ cis_matrix(pi, q, n) @ s**2 <= th.msc_bound(1.0) + ROUNDING)
    assert np.all(np.abs(past @ mean - pi @ s) <= th.msc_rb_bias(t, lw, n, 1.0, chi2) + ROUNDING)
    for offset in (0.0, 0.5):
        bound = th.msc_rb_bound(t, lw, n, 1.0, chi2, mu_norm=mu, chi2_offset=offset)
        assert np.all(past @ square <= bound + ROUNDING)


def test_bias_needs_no_root_of_the_dimension():
    rng = np.random.default_rng(5)
    pi, q = random_space(5, size=6)
    s = rng.normal(size=(6, 5))
    s /= np.linalg.norm(s, axis=1, keepdims=True)
    for k in (1, 3):
        rows = power(th.imh_matrix(pi, q), k)
        bias = np.linalg.norm(rows @ s - pi @ s, axis=1)
        assert np.all(bias <= th.mcmc_bias_bound(tv(rows, pi), 1.0) + ROUNDING)
    assert th.mcmc_bias_bound(0.5, 2.0, dim=9) == pytest.approx(6)
    assert th.mcmc_bias_bound(7.0, 2.0) == pytest.approx(4)


def test_second_moment_lemma_is_reached_when_bias_and_mean_are_parallel():
    draws = np.array([1.0, 2.0, 6.0])
    mu, mean = 1.5, draws.mean()
    bound = th.second_moment_bound(draws.var(), mean - mu, mu)
    assert bound == pytest.approx((draws**2).mean())


def test_gradient_bounds_are_the_formulas():
    w, n, t, size, chi2, mu = 6.0, 5, 3, 1.7, 2.5, 0.4
    e2, gamma, lw = (n - 1) ** -0.5, 2 * w / (2 * w + n - 2), np.log(w)
    bias = 4 * size / (n - 1) * (chi2 + 1 + w) * gamma ** (t - 1)
    mse = 4 * size**2 * ((1 + e2) * chi2 / (n - 1) + (1 + 1 / e2) * (1 + w) ** 2 / n**2)
    assert th.msc_rb_bias(t, lw, n, size, chi2) == pytest.approx(bias)
    rb = th.msc_rb_bound(t, lw, n, size, chi2, mu_norm=mu)
    assert rb == pytest.approx(mse + 2 * size * bias + mu**2)
    assert th.pmcsa_bound(lw, n, size, mu_norm=mu) == pytest.approx(
        size**2 * (1 / n + (1 - 1 / w) / n) + mu**2
    )
    assert th.jsa_bound(n, size, cov=0.3, mu_norm=mu) == pytest.approx(
        size**2 * (0.5 + 1.5 / n) + 0.3 + mu**2
    )
    assert th.msc_bound(size) == pytest.approx(size**2)


def test_gradient_limits():
    assert th.pmcsa_bound([0.0, 700.0, np.inf], 4, 2.0) == pytest.approx([1, 2, 2])
    assert th.msc_rb_bound(1, [0.0, np.inf], 2, 1.0, [0.0, np.inf])[1] == np.inf
    assert th.msc_rb_bound(1, np.inf, 2, 0.0, np.inf) == 0
    assert th.msc_rb_bound(1, np.inf, 2, 0.0, np.inf, mu_norm=2.0) == pytest.approx(4)
    assert th.msc_rb_bound(1, 700.0, 10, 1.0, 1e300) == np.inf
    log = th.msc_rb_bound(9, 700.0, 10, 1.0, 1e300, log=True)
    assert log == pytest.approx(1400 + np.log(4 * 4 / 100), abs=1e-9)
    log = th.msc_rb_bias(9, 700.0, 10, 1.0, 0.0, log=True)
    assert log == pytest.approx(700 + np.log(4 / 9), abs=1e-9)


def exact_sum(n, w):
    r = 1 - 1 / Fraction(w)
    return sum(i * r ** (i - 1) + r**i for i in range(1, n + 1))


@pytest.mark.parametrize("n", [1, 2, 7, 300])
@pytest.mark.parametrize("w", [1, Fraction(17, 16), 3, 64, 2**12, 2**30, 2**90])
def test_sums_against_rational_arithmetic(n, w):
    lw = float(np.log(float(w)))
    assert th.jsa_second_moment_sum(n, lw) == pytest.approx(float(exact_sum(n, w)), rel=1e-11)
    p = 1 / Fraction(w)
    two_or_more = 1 - (1 - p) ** n - n * p * (1 - p) ** (n - 1)
    middle = th.imh_expectation_bound(n, lw, 0.0, 1.0, 0.0)
    assert middle == pytest.approx(float(two_or_more), rel=1e-11, abs=1e-300)


def test_one_step_leaves_no_rounding_in_the_middle_term():
    """At n = 1 the term is nothing, whatever the machine makes of log(1 − 1/w*) and its exp."""
    log_wstar = np.log(np.linspace(1.0, 30.0, 1000))
    assert np.all(th.imh_expectation_bound(1, log_wstar, 0.0, 1.0, 0.0) == 0)


def test_sum_limits():
    n = np.array([1, 2, 10, 10**6])
    assert th.jsa_second_moment_sum(n, np.inf) == pytest.approx(n**2 / 2 + 1.5 * n)
    assert th.jsa_second_moment_sum(n, 700.0) == pytest.approx(n**2 / 2 + 1.5 * n)
    assert th.jsa_second_moment_sum(n, 0.0) == pytest.approx(1)
    assert np.all(np.diff(th.jsa_second_moment_sum(50, WSTAR_LIMITS)) >= -1e-9)


# --- Markov chain gradient descent ----------------------------------------------------------


def test_mcgd_rates():
    t, g2 = np.array([10.0, 1000.0]), 3.0
    assert th.duchi_rate(t, g2, np.log(0.9)) == pytest.approx(
        g2 * np.log(t) / (np.log(1 / 0.9) * np.sqrt(t))
    )
    assert th.doan_nesterov_rate(t, g2) == pytest.approx(g2 * np.log(t) / np.sqrt(t))
    assert th.doan_sgd_rate(t, g2) == pytest.approx(g2 * np.log(t) / t)
    assert th.duchi_rate(10, 1.0, [0.0, -np.inf]).tolist() == [np.inf, 0]
    assert th.duchi_rate(1, 0.0, 0.0) == np.inf
    # log ρ survives where ρ = 1 in float64, so the rates of two methods still compare.
    ratio = th.duchi_rate(10, 1.0, th.imh_rate(600.0, log=True)) / th.duchi_rate(
        10, 1.0, th.jsa_rate(600.0, 8, log=True)
    )
    assert ratio == pytest.approx(8)


# --- divergences -------------------------------------------------------------------------------


def log_density(z, mean, cov):
    d = z - mean
    log_det = np.linalg.slogdet(2 * np.pi * np.atleast_2d(cov))[1]
    return -0.5 * (log_det + np.einsum("...i,ij,...j->...", d, np.linalg.inv(cov), d))


def test_gaussian_forms_against_quadrature():
    for mean_p, var_p, mean_q, var_q in [(0.3, 0.5, 1.1, 0.9), (0.0, 1.7, 0.2, 1.0)]:
        p, q = (np.array([mean_p]), np.array([[var_p]])), (np.array([mean_q]), np.array([[var_q]]))

        def log_ratio(z, p=p, q=q):
            return log_density(z, *p) - log_density(z, *q)

        grid = np.linspace(-30, 30, 200_001)[:, None]
        density = np.exp(log_density(grid, *p))
        kl = integrate.simpson(density * log_ratio(grid), x=grid[:, 0])
        chi2 = integrate.simpson(density * np.exp(log_ratio(grid)), x=grid[:, 0]) - 1
        assert th.gaussian_kl(*p, *q) == pytest.approx(kl, rel=1e-9)
        assert th.gaussian_chi2(*p, *q) == pytest.approx(chi2, rel=1e-9)
        if var_q > var_p:
            assert th.gaussian_log_wstar(*p, *q) == pytest.approx(log_ratio(grid).max(), rel=1e-7)
        else:
            assert th.gaussian_log_wstar(*p, *q) == np.inf


@pytest.mark.parametrize("dim", [2, 5])
def test_gaussian_forms_against_linear_algebra(dim):
    for seed in range(5):
        mp, cp, mq, cq = random_gaussians(seed, dim, wider=1.0)
        delta, inv = mp - mq, np.linalg.inv
        log_dets = np.linalg.slogdet(cq)[1] - np.linalg.slogdet(cp)[1]
        kl = 0.5 * (np.trace(inv(cq) @ cp) - dim + log_dets + delta @ inv(cq) @ delta)
        assert th.gaussian_kl(mp, cp, mq, cq) == pytest.approx(kl)
        gap = inv(cq - cp)
        wstar = 0.5 * log_dets + 0.5 * delta @ gap @ delta
        assert th.gaussian_log_wstar(mp, cp, mq, cq) == pytest.approx(wstar)
        # It is a supremum: reached where the gradient of the log ratio vanishes, passed nowhere.
        peak = np.linalg.solve(inv(cp) - inv(cq), inv(cp) @ mp - inv(cq) @ mq)
        near = peak + np.random.default_rng(seed).normal(size=(200, dim))
        ratio = log_density(near, mp, cp) - log_density(near, mq, cq)
        assert np.all(ratio <= wstar)
        assert log_density(peak, mp, cp) - log_density(peak, mq, cq) == pytest.approx(wstar)

        mp, cp, mq, cq = random_gaussians(seed, dim, wider=0.55)  # χ² finite, w* may be not
        wide = 2 * cq - cp
        direct = np.linalg.det(cq) / np.sqrt(np.linalg.det(cp) * np.linalg.det(wide))
        direct *= np.exp((mp - mq) @ inv(wide) @ (mp - mq))
        assert th.gaussian_chi2(mp, cp, mq, cq) == pytest.approx(direct - 1)


def test_gaussian_chi2_against_quadrature_in_two_dimensions():
    mp, cp, mq, cq = random_gaussians(11, 2, wider=0.8)
    nodes, weight = np.polynomial.hermite_e.hermegauss(120)
    points = np.stack(np.meshgrid(nodes, nodes), -1) @ np.linalg.cholesky(cp).T + mp
    mass = np.outer(weight, weight) / (2 * np.pi)
    log_ratio = log_density(points, mp, cp) - log_density(points, mq, cq)
    assert th.gaussian_kl(mp, cp, mq, cq) == pytest.approx((mass * log_ratio).sum(), rel=1e-8)
    moment = (mass * np.exp(log_ratio)).sum()
    assert th.gaussian_log1p_chi2(mp, cp, mq, cq) == pytest.approx(np.log(moment), rel=1e-6)


@LIGHT
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.3, 0.6, 1.0]))
def test_chain_of_divergences_holds_for_gaussians(seed, dim, wider):
    pair = random_gaussians(seed, dim, wider)
    kl, chi2, lw = th.gaussian_kl(*pair), th.gaussian_chi2(*pair), th.gaussian_log_wstar(*pair)
    assert th.divergence_chain_holds(kl, chi2, lw)
    # All three are invariant under affine maps, however badly scaled.
    rng = np.random.default_rng(seed)
    a = np.diag(10.0 ** rng.uniform(-6, 6, dim)) @ (np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)))
    mp, cp, mq, cq = pair
    mapped = a @ mp, a @ cp @ a.T, a @ mq, a @ cq @ a.T
    assert th.gaussian_kl(*mapped) == pytest.approx(kl, rel=1e-4)
    if wider == 1.0:
        assert th.gaussian_log_wstar(*mapped) == pytest.approx(lw, rel=1e-4)


@LIGHT
@given(spaces(least=1, most=7))
def test_chain_of_divergences_holds_on_discrete_spaces(space):
    pi, q = space
    w = pi / q
    assert th.discrete_chi2(pi, q) == pytest.approx(q @ w**2 - (q @ w) ** 2, abs=1e-12)
    assert th.discrete_kl(pi, q) == pytest.approx(pi @ np.log(w), abs=1e-12)
    assert th.discrete_log_wstar(pi, q) == pytest.approx(max(np.log(w.max()), 0), abs=1e-12)
    kl, chi2, lw = th.discrete_kl(pi, q), th.discrete_chi2(pi, q), th.discrete_log_wstar(pi, q)
    assert th.divergence_chain_holds(kl, chi2, lw)
    assert not th.divergence_chain_holds(lw + 0.01, chi2, lw)
    assert not th.divergence_chain_holds(kl, np.expm1(lw) + 0.1, lw)


def test_discrete_divergences_with_empty_states():
    pi, q = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], [0.5, 0.5, 0.0]
    assert th.discrete_kl(pi, q).tolist() == [0, np.inf]
    assert th.discrete_chi2(pi, q).tolist() == [0, np.inf]
    assert th.discrete_log_wstar(pi, q).tolist() == [0, np.inf]


def test_gaussian_limits():
    mean, cov = np.zeros(3), np.diag([1.0, 1e8, 1e-8])
    cov[0, 1] = cov[1, 0] = 9e3
    same = mean, cov, mean, cov
    assert th.gaussian_kl(*same) == pytest.approx(0, abs=1e-12)
    assert th.gaussian_chi2(*same) == pytest.approx(0, abs=1e-12)
    assert th.gaussian_log_wstar(*same) == pytest.approx(0, abs=1e-12)
    for seed in range(20):  # rounding must not turn equal covariances into w* = ∞
        _, dense, mean, _ = random_gaussians(seed, 12, wider=1.0)
        assert th.gaussian_log_wstar(mean, dense, mean, dense) == pytest.approx(0, abs=1e-12)
    # Equal variances in a direction: finite only if the means agree there.
    p, q = np.eye(2), np.diag([1.0, 2.0])
    assert th.gaussian_log_wstar([0, 1], p, [0, 0], q) == pytest.approx((np.log(2) + 1) / 2)
    assert th.gaussian_log_wstar([1e-6, 1], p, [0, 0], q) == np.inf
    assert th.gaussian_log_wstar([0, 0], p, [0, 0], np.diag([1 - 1e-9, 2.0])) == np.inf
    # χ² is finite up to twice the variance, not at it.
    assert th.gaussian_chi2([0], [[1.999]], [0], [[1.0]]) == pytest.approx(
        1 / np.sqrt(1.999 * 0.001) - 1, rel=1e-9
    )
    assert th.gaussian_chi2([0], [[2.0]], [0], [[1.0]]) == np.inf
    # Far apart, the logs go on where χ² and w* overflow.
    far = [40.0], [[1.0]], [0.0], [[2.0]]
    assert th.gaussian_log_wstar(*far) == pytest.approx((np.log(2) + 1600) / 2)
    assert th.gaussian_log1p_chi2(*far) == pytest.approx(np.log(2 / np.sqrt(3)) + 1600 / 3)
    assert th.gaussian_chi2([40.0], [[1.0]], [0.0], [[1.0]]) == np.inf
    assert th.gaussian_log1p_chi2([40.0], [[1.0]], [0.0], [[1.0]]) == pytest.approx(1600)
    narrow = np.diag([1e-300, 0.5])
    assert th.gaussian_log_wstar([0, 0], narrow, [0, 0], np.eye(2)) == pytest.approx(
        (300 * np.log(10) + np.log(2)) / 2
    )


def test_kl_star_is_the_mean_field_minimum():
    _, cov, _, _ = random_gaussians(4, 5, wider=1.0)
    floor, mean = th.kl_star(cov), np.zeros(5)
    direct = 0.5 * (np.log(np.diag(cov)).sum() - np.linalg.slogdet(cov)[1])
    assert floor == pytest.approx(direct)
    assert floor == pytest.approx(th.gaussian_kl(mean, cov, mean, np.diag(np.diag(cov))))
    rng = np.random.default_rng(0)
    for _ in range(20):
        var = np.diag(cov) * np.exp(0.1 * rng.normal(size=5))
        assert th.gaussian_kl(mean, cov, 0.1 * rng.normal(size=5), np.diag(var)) > floor
    assert th.kl_star(np.diag([1e-9, 1.0, 1e9])) == 0
    # The floor is of π to q, not of q to π.
    inverse = np.linalg.inv(cov)
    reverse = th.gaussian_kl(mean, np.diag(1 / np.diag(inverse)), mean, cov)
    assert abs(reverse - floor) > 1e-3


# --- the errata -------------------------------------------------------------------------------


def nstep_with(pi, q, rejection, n):
    """Smith and Tierney's kernel by quadrature, for a rejection probability of one's own."""
    w = pi / q

    def t_n(at):
        points = sorted(u for u in 1 / w if u < 1 / at) or None
        return integrate.quad(lambda u: n * rejection(u) ** (n - 1), 0, 1 / at, points=points)[0]

    moved = np.array([[t_n(max(a, b)) for b in w] for a in w])
    return moved * pi + np.diag([rejection(1 / a) ** n for a in w])


def test_erratum_1_rejection_is_an_average_over_q():
    pi, q = normalised([6.0, 3.0, 1.0]), normalised([2.0, 3.0, 4.0])
    w = pi / q
    for n in (1, 2):
        printed = nstep_with(pi, q, lambda u: pi @ np.maximum(1 - w * u, 0), n)
        assert np.abs(printed.sum(axis=1) - 1).max() > 0.1
        right = nstep_with(pi, q, lambda u: q @ np.maximum(1 - w * u, 0), n)
        assert np.allclose(right, th.imh_nstep(pi, q, n), atol=1e-9)
        assert np.allclose(right.sum(axis=1), 1, atol=1e-9)


def test_erratum_2_lemmas_fail_from_two_steps_on():
    pi, q = normalised([6.0, 3.0, 1.0]), normalised([2.0, 3.0, 4.0])
    w, lw = pi / q, th.discrete_log_wstar(pi, q)
    r = th.imh_rate(lw)
    f = np.eye(3)[0]
    for n in (1, 2, 5, 30):
        at = np.array([w.max(), 2 * w.max()])
        exact, printed = th.t_n(at, n, pi, q), n / at * r ** (n - 1)
        expected = th.imh_nstep(pi, q, n) @ f
        lemma = n * r ** (n - 1) * (q @ f) + r**n * f
        if n == 1:
            assert np.allclose(printed, th.t_n_bound(at, n, lw))
            assert np.allclose(lemma, th.imh_expectation_bound(n, lw, q @ f, pi @ f, f))
        else:
            assert np.any(exact > printed * (1 + 1e-6))
        if n >= 5:
            assert np.any(expected > lemma + 1e-3)
        assert np.all(exact <= th.t_n_bound(at, n, lw) + ROUNDING)
        assert np.all(expected <= th.imh_expectation_bound(n, lw, q @ f, pi @ f, f) + ROUNDING)


def test_erratum_2_two_steps_suffice():
    """At n = 2 the printed bound on E f already fails, here at f = 1 in the least likely state."""
    pi = q = normalised([1.0, 99.0])  # w* = 1, r = 0: every proposal is accepted
    f = np.array([1.0, 0.0])
    expected = th.imh_nstep(pi, q, 2) @ f
    printed = 2 * 0.0 * (q @ f) + 0.0 * f
    assert np.all(expected > printed)
    assert np.allclose(expected, th.imh_expectation_bound(2, 0.0, q @ f, pi @ f, f))


def test_erratum_3_sum_of_the_jsa_bound():
    for n, w in itertools.product([1, 3, 8], [1, 2, 10]):
        exact = exact_sum(n, w)
        r = 1 - Fraction(1, w)
        printed = w**2 + w - r**n * (w**2 + w + n * w)
        corrected = w**2 + w - 1 - r**n * (w**2 + w - 1 + n * w)
        assert corrected == exact
        assert printed - exact == 1 - r**n
    # The order term: 1/(w* + r^(tN)) would not vanish with w*, while the deviation falls as 1/w*.
    deviation = 0.5 + 1.5 / 8 - th.jsa_second_moment_sum(8, np.log([1e3, 1e4, 1e5])) / 64
    assert deviation[:-1] / deviation[1:] == pytest.approx(10, rel=0.02)


def test_erratum_4_the_joint_law_of_jsa_does_not_tend_to_the_product():
    pi, q = normalised([6.0, 3.0, 1.0]), normalised([2.0, 3.0, 4.0])
    kernel, lw, k = th.imh_matrix(pi, q), th.discrete_log_wstar(pi, q), 60
    first = power(kernel, 2 * (k - 1) + 1)
    joint = (first[:, :, None] * kernel[None]).reshape(3, -1)
    bound = th.jsa_mixing(k, lw, 2)
    assert bound < 1e-6
    assert np.all(tv(joint, np.outer(pi, pi).ravel()) > 0.1)  # the theorem's claim
    assert np.all(tv(first, pi) + tv(first @ kernel, pi) <= bound + ROUNDING)
    assert np.all(tv(joint, (pi[:, None] * kernel).ravel()) < 1e-6)  # where it tends to


def test_erratum_5_retained_term_has_the_sign_of_the_others():
    pi, q = random_space(7, size=3)
    s = np.array([1.0, -0.4, 0.3])
    right, _ = cis_moments(pi, q, 3, s)
    printed, _ = cis_moments(pi, q, 3, s, retained_sign=-1.0)
    assert pi @ right == pytest.approx(pi @ s)  # unbiased at stationarity
    assert abs(pi @ printed - pi @ s) > 0.05


def test_erratum_6_matern_of_a_squared_distance_is_no_kernel():
    x = np.linspace(0, 1, 12)

    def gram(r):
        return (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r)

    square = (x[:, None] - x) ** 2
    assert np.linalg.eigvalsh(gram(np.sqrt(square)))[0] > 0
    assert np.linalg.eigvalsh(gram(square))[0] < -0.01


def test_erratum_7_wstar_may_equal_exp_kl_and_is_infinite_at_the_mean_field_optimum():
    pi = np.array([0.2, 0.8])
    assert th.discrete_kl(pi, pi) == th.discrete_log_wstar(pi, pi) == 0
    half = [0.5, 0.5, 0.0, 0.0]  # and not only at π = q: constant weights on the support of π
    assert th.discrete_kl(half, [0.25] * 4) == pytest.approx(
        th.discrete_log_wstar(half, [0.25] * 4)
    )
    mean, cov = np.zeros(3), random_gaussians(9, 3, wider=1.0)[1]
    optimum = np.diag(np.diag(cov))
    assert th.gaussian_kl(mean, cov, mean, optimum) < np.inf
    assert th.gaussian_log_wstar(mean, cov, mean, optimum) == np.inf


# --- what the published bounds do not say -----------------------------------------------------


def test_msc_rb_bound_as_published_fails_for_large_n_near_the_target():
    """At π = q with s = ±1 the gradient is a mean of N fair signs, so E g² = 1/N at any start."""
    half, signs = np.array([0.5, 0.5]), np.array([1.0, -1.0])
    _, square = cis_moments(half, half, 5, signs)
    assert square == pytest.approx(0.2)
    n, t = np.array([100, 280, 400, 10_000]), 5
    published = th.msc_rb_bound(t, 0.0, n, 1.0, 0.0)
    assert (1 / n <= published).tolist() == [True, True, False, False]
    assert np.all(1 / n <= th.msc_rb_bound(t, 0.0, n, 1.0, 0.0, chi2_offset=0.5))


def test_jsa_sum_is_no_bound_for_small_wstar():
    """At π = q JSA averages N independent draws: variance 1/N, where the sum over N² says 1/N²."""
    half, signs, n = np.array([0.5, 0.5]), np.array([1.0, -1.0]), 6
    exact, cov = jsa_moments(half, half, signs, n, 1)
    assert exact == pytest.approx(1 / n)
    assert cov == pytest.approx(0)
    assert np.all(exact > th.jsa_second_moment_sum(n, 0.0) / n**2)
    assert np.all(exact <= th.jsa_bound(n, 1.0, cov=cov))


def test_bounds_do_not_hold_given_the_last_state():
    """F_{t−1} of the theorems: a chain that sits on a rare state of large weight stays there."""
    pi, q = np.array([0.01, 0.99]), np.array([0.0001, 0.9999])
    s, n, late = np.array([1.0, 0.0]), 10, 100_000
    lw, mu = th.discrete_log_wstar(pi, q), pi @ s
    bias = th.mcmc_bias_bound(th.imh_rate(lw) ** late, 1.0)
    bound = th.pmcsa_bound(lw, n, 1.0, bias=bias, mu_norm=mu)
    assert pmcsa_second_moment(pi, q, s, n, 1)[0] > 4 * bound  # one step from the bad state
    assert np.all(pmcsa_second_moment(pi, q, s, n, late) <= bound)  # over the whole chain
    exact, cov = jsa_moments(pi, q, s, n, 1)
    assert exact[0] > th.jsa_bound(n, 1.0, cov=cov[0], bias=bias, mu_norm=mu)


# --- shapes, types and bad input ------------------------------------------------------------------


def test_everything_broadcasts():
    k, lw, n = np.arange(1, 4)[:, None, None], np.array([0.5, 700.0])[:, None], np.array([2, 5, 9])
    for f in (th.msc_mixing, th.jsa_mixing, th.pmcsa_mixing):
        whole = f(k, lw, n)
        assert whole.shape == (3, 2, 3)
        assert whole[2, 0, 1] == f(3, 0.5, 5)
        assert np.exp(f(k, lw, n, log=True)) == pytest.approx(whole)
    assert th.imh_rate(lw).shape == (2, 1)
    for f in (th.msc_rate, th.msc_rb_rate, th.jsa_rate):
        assert f(lw, n).shape == (2, 3)
    whole = th.msc_rb_bound(k, lw / 10, n, 1.0, 2.0, mu_norm=np.ones(3))
    assert whole.shape == (3, 2, 3)
    assert whole[1, 0, 2] == pytest.approx(th.msc_rb_bound(2, 0.05, 9, 1.0, 2.0, mu_norm=1.0))
    assert th.jsa_second_moment_sum(n, lw).shape == (2, 3)
    assert th.t_n_bound(n, 3, lw).shape == (2, 3)
    assert th.imh_expectation_bound(n, lw, 1.0, 1.0, np.ones((4, 1, 1))).shape == (4, 2, 3)
    assert th.product_tv_bound(np.full((2, 3), 0.1), axis=0) == pytest.approx(0.2)


def test_gaussians_batch_over_leading_axes():
    pairs = [random_gaussians(seed, 3, wider=1.0) for seed in range(4)]
    mp, cp, mq, cq = (np.stack(x) for x in zip(*pairs))
    for f in (th.gaussian_kl, th.gaussian_log1p_chi2, th.gaussian_log_wstar, th.gaussian_chi2):
        assert f(mp, cp, mq, cq) == pytest.approx(np.array([f(*pair) for pair in pairs]))
        crossed = f(mp[:, None], cp[:, None], mq, cq)
        assert crossed.shape == (4, 4)
        assert crossed[1, 2] == pytest.approx(float(f(mp[1], cp[1], mq[2], cq[2])))
        assert f(mp[0], cp, mq, cq[0]).shape == (4,)
    assert th.kl_star(cp).shape == (4,)


def test_small_asymmetry_of_a_covariance_is_averaged():
    mp, cp, mq, cq = random_gaussians(6, 3, wider=1.0)
    skew = 1e-7 * np.array([[0, 1, 2], [-1, 0, 3], [-2, -3, 0]])
    exact = th.gaussian_kl(mp, cp, mq, cq)
    assert th.gaussian_kl(mp, cp + skew, mq, cq - skew) == pytest.approx(exact, rel=1e-12)
    assert th.kl_star(cp + skew) == pytest.approx(th.kl_star(cp), rel=1e-12)


def test_results_are_float64_scalars_or_arrays():
    single = np.float32(0.5)
    for value in (th.imh_rate(single), th.jsa_second_moment_sum(np.int32(3), single)):
        assert isinstance(value, np.float64)
    eye = np.eye(2, dtype=np.float32)
    value = th.gaussian_kl(eye[0], eye, eye[1], eye)
    assert isinstance(value, np.float64)
    assert value == pytest.approx(1)


EYE = np.eye(2)
ZERO = np.zeros(2)
HALF = [0.5, 0.5]
BAD = [
    (th.imh_rate, (-0.1,), r"log_wstar must be at least 0.*got -0.1"),
    (th.imh_rate, ([0.0, np.nan],), r"log_wstar must be .*got nan at index \(1,\)"),
    (th.imh_rate, (None,), r"log_wstar must be real numbers.*got None"),
    (th.imh_rate, ("3",), r"log_wstar must be real numbers.*got '3'"),
    (th.imh_rate, (1j,), r"log_wstar must be real numbers"),
    (th.imh_rate, ([[1.0], [1.0, 2.0]],), r"log_wstar must be real numbers"),
    (th.jsa_rate, (1.0, 0), r"n must be a whole number and at least 1, got 0"),
    (th.msc_rate, (1.0, 1), r"n must be a whole number and at least 2, got 1"),
    (th.msc_rb_rate, (1.0, 1), r"n must be a whole number and at least 2, got 1"),
    (th.msc_mixing, (-1, 1.0, 4), r"k must be a whole number and at least 0, got -1"),
    (th.msc_mixing, (1, 1.0, 1), r"n must be a whole number and at least 2"),
    (th.jsa_mixing, (0, 1.0, 4), r"k must be a whole number and at least 1, got 0"),
    (th.jsa_mixing, (1, 1.0, 2.5), r"n must be a whole number and at least 1, got 2.5"),
    (th.pmcsa_mixing, (np.inf, 1.0, 2), r"k must be a whole number"),
    (th.pmcsa_mixing, (1, [1.0, 2.0], [1, 2, 3]), r"shapes must broadcast.*log_wstar \(2,\)"),
    (th.product_tv_bound, ([0.1, -0.1],), r"tv must be finite and at least 0, got -0.1"),
    (th.product_tv_bound, (0.1,), r"tv must have an axis"),
    (th.second_moment_bound, (-1.0, 0.0, 0.0), r"variance must be finite and at least 0"),
    (th.second_moment_bound, (1.0, -1.0, 0.0), r"bias must be finite and at least 0"),
    (th.second_moment_bound, (1.0, 1.0, np.inf), r"mu_norm must be finite"),
    (th.mcmc_bias_bound, (-0.1, 1.0), r"tv must be finite and at least 0"),
    (th.msc_bound, (-1.0,), r"score_bound must be finite and at least 0, got -1.0"),
    (th.msc_bound, (np.nan,), r"score_bound must be finite and at least 0, got nan"),
    (th.msc_rb_bound, (0, 1.0, 4, 1.0, 1.0), r"t must be a whole number and at least 1"),
    (th.msc_rb_bound, (1, 1.0, 1, 1.0, 1.0), r"n must be a whole number and at least 2"),
    (th.msc_rb_bound, (1, 1.0, 4, 1.0, -0.5), r"chi2 must be .*at least 0, got -0.5"),
    (th.msc_rb_bias, (1, 1.0, 4, -1.0, 0.5), r"score_bound must be finite and at least 0"),
    (th.jsa_second_moment_sum, (0, 1.0), r"n must be a whole number and at least 1"),
    (th.jsa_bound, (0, 1.0), r"n must be a whole number and at least 1"),
    (th.pmcsa_bound, (1.0, 3, np.inf), r"score_bound must be finite"),
    (th.duchi_rate, (0, 1.0, -1.0), r"t must be a whole number and at least 1"),
    (th.duchi_rate, (5, 1.0, 0.5), r"log_rho must be the log of a number in \[0, 1\].*got 0.5"),
    (th.doan_sgd_rate, (5, -1.0), r"g2 must be finite and at least 0, got -1.0"),
    (th.doan_nesterov_rate, (5, np.nan), r"g2 must be finite"),
    (th.imh_matrix, ([0.5, 0.6], HALF), r"sum of pi must be 1, got 1.1"),
    (th.imh_matrix, ([-0.5, 1.5], HALF), r"pi must be made of finite probabilities > 0, got -0.5"),
    (th.imh_matrix, (HALF, [1.0, 0.0]), r"q must be made of finite probabilities > 0, got 0.0"),
    (th.imh_matrix, (HALF, [1.0]), r"pi and q must be vectors of the same length"),
    (th.imh_nstep, (HALF, HALF, 0), r"n must be a whole number and at least 1, got 0"),
    (th.imh_nstep, (HALF, HALF, [1, 2]), r"n must be one whole number"),
    (th.rejection, (0.0, HALF, HALF), r"w must be positive, got 0.0"),
    (th.rejection_bounds, (-1.0, 1.0), r"w must be positive, got -1.0"),
    (th.t_n, ([1.0, -1.0], 2, HALF, HALF), r"w must be positive, got -1.0 at index \(1,\)"),
    (th.t_n_bound, (np.inf, 2, 1.0), r"w must be positive and finite"),
    (th.imh_expectation_bound, (0, 1.0, 1.0, 1.0, 1.0), r"n must be a whole number"),
    (th.imh_expectation_bound, (1, 1.0, -1.0, 1.0, 1.0), r"eq_f must be finite and at least 0"),
    (th.imh_expectation_bound, (1, 1.0, 1.0, 1.0, -1.0), r"f_z must be finite and at least 0"),
    (th.gaussian_kl, (ZERO, -EYE, ZERO, EYE), r"cov_p must be positive definite.*eigenvalue of -1"),
    (th.gaussian_kl, (ZERO, EYE, ZERO, np.ones((2, 2))), r"cov_q must be positive definite"),
    (th.gaussian_chi2, (ZERO, [[1, 0.5], [0, 1]], ZERO, EYE), r"cov_p must be symmetric"),
    (th.gaussian_chi2, (ZERO, [1.0, 1.0], ZERO, EYE), r"cov_p must have shape \(..., d, d\)"),
    (
        th.gaussian_log_wstar,
        (np.zeros(3), EYE, ZERO, EYE),
        r"the same dimension d, got mean_p \(3,\)",
    ),
    (th.gaussian_log_wstar, (0.0, EYE, ZERO, EYE), r"mean_p must have shape"),
    (th.gaussian_log_wstar, ([np.nan, 0], EYE, ZERO, EYE), r"mean_p must be finite, got nan"),
    (th.gaussian_log_wstar, (ZERO, np.diag([np.inf, 1.0]), ZERO, EYE), r"cov_p must be finite"),
    (th.gaussian_kl, (np.zeros((2, 2)), EYE, np.zeros((3, 2)), EYE), r"shapes must broadcast"),
    (th.kl_star, (-EYE,), r"cov must be positive definite"),
    (th.discrete_kl, ([0.2, 0.2], HALF), r"sum of pi must be 1"),
    (th.discrete_kl, (0.5, HALF), r"pi must be a vector"),
    (th.discrete_chi2, (HALF, [1.0]), r"pi and q must have the same length"),
    (th.discrete_log_wstar, ([np.nan, 1.0], HALF), r"pi must be made of finite probabilities"),
    (th.divergence_chain_holds, (-1.0, 1.0, 1.0), r"kl must be .*at least 0, got -1.0"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), BAD)
def test_bad_input_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_bad_keywords_are_named():
    with pytest.raises(ValueError, match="cov must be finite"):
        th.jsa_bound(3, 1.0, cov=np.inf)
    with pytest.raises(ValueError, match="mu_norm must be finite and at least 0"):
        th.pmcsa_bound(1.0, 3, 1.0, mu_norm=-1.0)
    with pytest.raises(ValueError, match="chi2_offset must be finite and at least 0"):
        th.msc_rb_bound(1, 1.0, 3, 1.0, 1.0, chi2_offset=-1.0)
    with pytest.raises(ValueError, match="dim must be a whole number and at least 1"):
        th.mcmc_bias_bound(0.1, 1.0, dim=0)
    with pytest.raises(ValueError, match="axis must be an axis of tv"):
        th.product_tv_bound([0.1, 0.2], axis=1)


def test_every_public_name_is_documented():
    for name in th.__all__:
        doc = getattr(th, name).__doc__
        assert doc, name
        assert ">>>" in doc, name
