"""Bounds on E‖g‖², the second moment of the gradient that each method follows.

All are for a chain that starts anywhere and runs at a fixed λ, in expectation over the chain. The
order terms of the paper are explicit: what is left of the start enters as ``bias``, a bound on
‖E g − E_π g‖ (for IMH ``mcmc_bias_bound(imh_rate(log_wstar) ** t, score_bound)``), and is left out
by default, which is the value at stationarity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scoreascent.theory._checks import (
    Floats,
    at_least,
    counts,
    log_weight_bound,
    real,
    same_shape,
    unwrap,
)
from scoreascent.theory._logs import exp_unless, log_geometric_sum, log_power, log_r, two_or_more
from scoreascent.theory.mixing import msc_rb_rate


def second_moment_bound(variance: ArrayLike, bias: ArrayLike, mu_norm: ArrayLike) -> Floats:
    """``E‖g‖² ≤ V[g] + Bias² + 2 Bias ‖μ‖ + ‖μ‖²`` (thm:second_moment_bound).

    Args:
        variance: V[g] = E‖g − E g‖² ≥ 0.
        bias: ‖E g − μ‖ ≥ 0.
        mu_norm: ‖μ‖ ≥ 0.

    >>> float(second_moment_bound(1.0, 0.5, 2.0))
    7.25
    """
    v = at_least("variance", variance, 0.0)
    b, mu = at_least("bias", bias, 0.0), at_least("mu_norm", mu_norm, 0.0)
    same_shape(variance=v, bias=b, mu_norm=mu)
    return unwrap(v + (b + mu) ** 2)


def mcmc_bias_bound(tv: ArrayLike, score_bound: ArrayLike, *, dim: ArrayLike = 1) -> Floats:
    """Bias of an average over a chain that is ``tv`` away from its target: ``2 √D L d_TV``.

    The paper (thm:mcmc_bias) has the factor √D, by way of the maximum norm. The projection on the
    direction of the bias shows that ``2 L d_TV`` holds in every dimension: the default, dim = 1.

    Args:
        tv: (a bound on) the total-variation distance ≥ 0; above one it is taken as one.
        score_bound: L ≥ 0.
        dim: D ≥ 1, for the printed form.

    >>> float(mcmc_bias_bound(0.25, 3.0))
    1.5
    """
    distance, bound = at_least("tv", tv, 0.0), at_least("score_bound", score_bound, 0.0)
    d = counts("dim", dim, 1)
    same_shape(tv=distance, score_bound=bound, dim=d)
    return unwrap(2 * np.sqrt(d) * bound * np.minimum(distance, 1.0))


def msc_bound(score_bound: ArrayLike) -> Floats:
    """``E‖g‖² ≤ L²`` for MSC, whatever N is (thm:msc).

    >>> float(msc_bound(3.0))
    9.0
    """
    return unwrap(at_least("score_bound", score_bound, 0.0) ** 2)


def _rb_arguments(
    t: ArrayLike, log_wstar: ArrayLike, n: ArrayLike, score_bound: ArrayLike, chi2: ArrayLike
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    t, lw, n = counts("t", t, 1), log_weight_bound(log_wstar), counts("n", n, 2)
    bound = at_least("score_bound", score_bound, 0.0)
    chi2 = at_least("chi2", chi2, 0.0, infinite=True)
    same_shape(t=t, log_wstar=lw, n=n, score_bound=bound, chi2=chi2)
    return t, lw, n, bound, chi2


def _log_times(log_factor: Floats, log_value: Floats) -> Floats:
    """Product in logs with 0 · ∞ = 0: a score that is bounded by 0 is 0."""
    with np.errstate(invalid="ignore"):
        result: Floats = np.where(log_factor == -np.inf, -np.inf, log_factor + log_value)
    return result


def _log(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        result: Floats = np.log(x)
    return result


def msc_rb_bias(
    t: ArrayLike,
    log_wstar: ArrayLike,
    n: ArrayLike,
    score_bound: ArrayLike,
    chi2: ArrayLike,
    *,
    log: bool = False,
) -> Floats:
    """Bias of MSC-RB: ``4L/(N−1) · (χ² + 1 + w*) · γ^(t−1)`` (proof of thm:mscrb).

    Args:
        t: iteration ≥ 1.
        log_wstar: log w* ≥ 0.
        n: N ≥ 2, with the retained point.
        score_bound: L ≥ 0.
        chi2: χ²(π‖q) ≥ 0, may be ``inf``.
        log: return the log of the bound.

    >>> round(float(msc_rb_bias(1, np.log(4.0), 9, 1.0, 1.0)), 12)
    3.0
    """
    t, lw, n, bound, chi2 = _rb_arguments(t, log_wstar, n, score_bound, chi2)
    decay = log_power(t - 1, msc_rb_rate(lw, n, log=True))
    size = np.logaddexp(np.log1p(chi2), lw) - np.log(n - 1) + decay
    return exp_unless(_log_times(np.log(4.0) + _log(bound), size), log)


def msc_rb_bound(
    t: ArrayLike,
    log_wstar: ArrayLike,
    n: ArrayLike,
    score_bound: ArrayLike,
    chi2: ArrayLike,
    *,
    mu_norm: ArrayLike = 0.0,
    chi2_offset: float = 0.0,
    log: bool = False,
) -> Floats:
    """Second moment of MSC-RB (thm:mscrb, after Cardoso et al. 2022), with ε² = (N−1)^(−1/2).

    ``4L²[(1+ε²) χ²/(N−1) + (1+ε⁻²)(1+w*)²/N²] + 2L Bias + ‖μ‖²``, Bias as in `msc_rb_bias`.
    Erratum 5: the gradient it speaks of weighs the retained point with the same sign as the rest.

    As it stands the formula fails where q is near π and N is large: at π = q the gradient is a
    mean of N draws, with variance of order 1/N, while the bound falls like N^(−3/2) and is passed
    near N = 290 once the bias has died away. A self-normalised estimate errs by the second moment
    of the weights rather than by their variance. With
    ``(N−1)(ĝ−μ) = w₀(s₀−ĝ) + Σ(w_i s_i − μ) − ĝ Σ(w_i − 1)``, ĝ = −g, one finds that ``χ² + ½`` in
    the place of χ² bounds the squared error for every N, w* and state: set ``chi2_offset=0.5``.

    Args:
        t: iteration ≥ 1.
        log_wstar: log w* ≥ 0.
        n: N ≥ 2, with the retained point.
        score_bound: L ≥ 0.
        chi2: χ²(π‖q) ≥ 0, may be ``inf``.
        mu_norm: ‖E_π s‖ ≥ 0.
        chi2_offset: what to add to χ² in the first term: 0 as published, ½ for a true bound.
        log: return the log of the bound, which passes 1e308 from w* ≈ e^354 on.

    >>> round(float(msc_rb_bound(1, 0.0, 5, 1.0, 0.0)), 12)  # 4 · 3 · 4/25 + 2 · 4/4 · 2
    5.92
    >>> round(float(msc_rb_bound(1, 700.0, 5, 1.0, 0.0, log=True)), 6)
    1399.266031
    """
    t, lw, n, bound, chi2 = _rb_arguments(t, log_wstar, n, score_bound, chi2)
    mu, offset = at_least("mu_norm", mu_norm, 0.0), at_least("chi2_offset", chi2_offset, 0.0)
    same_shape(mu_norm=mu, others=np.broadcast_arrays(t, lw, n, bound, chi2)[0])
    epsilon2, log_l = (n - 1) ** -0.5, _log(bound)
    fresh = np.log1p(epsilon2) + _log(chi2 + offset) - np.log(n - 1)
    retained = np.log1p(1 / epsilon2) + 2 * (np.logaddexp(0.0, lw) - np.log(n))
    mse = _log_times(np.log(4.0) + 2 * log_l, np.logaddexp(fresh, retained))
    log_bias = msc_rb_bias(t, lw, n, bound, chi2, log=True)
    bias = _log_times(np.log(2.0) + log_l, log_bias)
    return exp_unless(np.logaddexp(np.logaddexp(mse, bias), 2 * _log(mu)), log)


def jsa_second_moment_sum(n: ArrayLike, log_wstar: ArrayLike) -> Floats:
    """``Σ_{n≤N} [n r^(n−1) + rⁿ] = w²+w−1 − r^N (w²+w−1+Nw)``, w = w* (proof of thm:jsa).

    Erratum 3: the paper drops both −1. The closed form cancels for large w*, so it is evaluated
    as ``P(Binomial(N+1, 1/w) ≥ 2) w² + (w−1)(1 − r^N)``; it is 1 at w* = 1 and tends to
    N²/2 + 3N/2 as w* → ∞.

    Args:
        n: N ≥ 1.
        log_wstar: log w* ≥ 0.

    >>> round(float(jsa_second_moment_sum(2, np.log(2.0))), 12)  # (1 + 1/2) + (2/2 + 1/4)
    2.75
    >>> float(jsa_second_moment_sum(10, np.inf))
    65.0
    """
    n, lw = counts("n", n, 1), log_weight_bound(log_wstar)
    same_shape(n=n, log_wstar=lw)
    return unwrap(two_or_more(n + 1, lw) + np.exp(log_geometric_sum(n, lw)))


def jsa_bound(
    n: ArrayLike,
    score_bound: ArrayLike,
    *,
    cov: ArrayLike = 0.0,
    bias: ArrayLike = 0.0,
    mu_norm: ArrayLike = 0.0,
) -> Floats:
    """Second moment of JSA: ``L²[½ + 3/(2N)] + C_cov + Bias² + 2 Bias‖μ‖ + ‖μ‖²`` (thm:jsa).

    Erratum 3: the order term of the theorem is O(1/w* + r^(tN)). Its second part is ``bias``. Its
    first part needs no term: ‖s‖ ≤ L alone gives L²/N + C_cov, which is never more than this. (The
    sum `jsa_second_moment_sum` over N², from which the ½ comes, rests on a lemma that erratum 2
    withdraws, and is no bound for small w*: at w* = 1 it is 1/N², where the truth may be 1/N.) So
    what keeps JSA from gaining by N is C_cov, which the paper leaves open.

    Args:
        n: N ≥ 1.
        score_bound: L ≥ 0.
        cov: ``C_cov = 2/N² Σ_{m<n} Cov(s_n, s_m)``, of either sign.
        bias: bound on ‖E g + μ‖, of order r^(tN) ≥ 0.
        mu_norm: ‖E_π s‖ ≥ 0.

    >>> float(jsa_bound(3, 2.0))
    4.0
    """
    n, bound = counts("n", n, 1), at_least("score_bound", score_bound, 0.0)
    c = real("cov", cov)
    if not np.all(np.isfinite(c)):
        raise ValueError(f"cov must be finite, got {cov!r}")
    b, mu = at_least("bias", bias, 0.0), at_least("mu_norm", mu_norm, 0.0)
    same_shape(n=n, score_bound=bound, cov=c, bias=b, mu_norm=mu)
    return unwrap(bound**2 * (0.5 + 1.5 / n) + c + (b + mu) ** 2)


def pmcsa_bound(
    log_wstar: ArrayLike,
    n: ArrayLike,
    score_bound: ArrayLike,
    *,
    bias: ArrayLike = 0.0,
    mu_norm: ArrayLike = 0.0,
) -> Floats:
    """Second moment of pMCSA: ``L²[1/N + r/N] + Bias² + 2 Bias‖μ‖ + ‖μ‖²`` (thm:pmcsa).

    The theorem's O(r^t) is ``bias``. The first term bounds the variance even given the last state
    of the chains; the bias is of order r^t only over the whole chain.

    Args:
        log_wstar: log w* ≥ 0.
        n: N ≥ 1 chains.
        score_bound: L ≥ 0.
        bias: bound on ‖E g + μ‖ ≥ 0.
        mu_norm: ‖E_π s‖ ≥ 0.

    >>> round(float(pmcsa_bound(np.log(2.0), 3, 2.0)), 12)
    2.0
    """
    lw, n = log_weight_bound(log_wstar), counts("n", n, 1)
    bound = at_least("score_bound", score_bound, 0.0)
    b, mu = at_least("bias", bias, 0.0), at_least("mu_norm", mu_norm, 0.0)
    same_shape(log_wstar=lw, n=n, score_bound=bound, bias=b, mu_norm=mu)
    return unwrap(bound**2 * (1 + np.exp(log_r(lw))) / n + (b + mu) ** 2)
