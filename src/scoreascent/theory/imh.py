"""The n-step independent Metropolis–Hastings kernel, exactly, and the bounds on it.

On a discrete space with target π, proposal q and weights w = π/q, Smith and Tierney (1996) give

    Kⁿ(z, z′) = T_n(w(z) ∨ w(z′)) π(z′) + λⁿ(w(z)) 1[z = z′]
    λ(w)      = E_q[(1 − w(z′)/w)₊]                          the probability of a rejection at w
    T_n(w)    = ∫_w^∞ n v⁻² λ^(n−1)(v) dv

Between neighbouring weights λ is a − b/v, so the integral has a closed form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scoreascent.theory._checks import (
    Floats,
    at_least,
    counts,
    log_weight_bound,
    one_count,
    positive,
    same_shape,
    unwrap,
    weights,
)
from scoreascent.theory._logs import log_power, log_r, two_or_more


def imh_matrix(pi: ArrayLike, q: ArrayLike) -> Floats:
    """One-step transition matrix: propose z′ ~ q, accept with probability min(1, w(z′)/w(z)).

    Args:
        pi: target probabilities, all positive.
        q: proposal probabilities, all positive, of the same length.

    Returns:
        The matrix K with ``K[i, j]`` the probability to go from i to j.

    >>> imh_matrix([0.75, 0.25], [0.5, 0.5]).round(3).tolist()
    [[0.833, 0.167], [0.5, 0.5]]
    """
    pi, q, w = weights(pi, q)
    matrix = q[None, :] * np.minimum(1.0, w[None, :] / w[:, None])
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix


def rejection(w: ArrayLike, pi: ArrayLike, q: ArrayLike) -> Floats:
    """Probability that IMH rejects at a state of weight w: ``λ(w) = E_q[(1 − w(z′)/w)₊]``.

    Erratum 1: the paper (eq:T_lambda) prints an integral against π; it is against q. With π the
    rows of the kernel do not sum to one.

    Args:
        w: weights > 0, not only those that occur; ``inf`` gives 1.
        pi: target probabilities, all positive.
        q: proposal probabilities, all positive.

    >>> round(float(rejection(1.5, [0.75, 0.25], [0.5, 0.5])), 12)
    0.333333333333
    """
    at, (pi, q, w_all) = positive("w", w, infinite=True), weights(pi, q)
    return unwrap(np.maximum(1.0 - w_all / at[..., None], 0.0) @ q)


def _segment(low: Floats, high: Floats, mass: Floats, at_low: Floats, n: int) -> Floats:
    """Integrate ``n v⁻² λ^(n−1)`` from low to high where λ(v) = a − mass/v and λ(low) is given.

    In u = 1/v the integral is a difference of nth powers of λ, written as a geometric sum so that
    nothing cancels and mass = 0 (below the least weight, where λ = 0) needs no division.
    """
    width = 1 / low - 1 / high
    at_high = at_low + mass * width
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = mass * width / at_high
        terms = np.where(gap > 0, -np.expm1(n * np.log1p(-np.minimum(gap, 1.0))) / gap, float(n))
    result: Floats = width * at_high ** (n - 1) * terms
    return result


def t_n(w: ArrayLike, n: int, pi: ArrayLike, q: ArrayLike) -> Floats:
    """Coefficient ``T_n(w) = ∫_w^∞ n v⁻² λ^(n−1)(v) dv`` of π in the n-step kernel, exactly.

    ``T_1(w) = 1/w``, and ``T_n(w) = 1 − (1−1/w)ⁿ`` from w* on (eq:T_lambda with erratum 1).

    Args:
        w: weights > 0; ``inf`` gives 0.
        n: number of transitions ≥ 1.
        pi: target probabilities, all positive.
        q: proposal probabilities, all positive.

    >>> round(float(t_n(0.5, 1, [0.75, 0.25], [0.5, 0.5])), 12)
    2.0
    """
    at, n, (pi, q, w_all) = positive("w", w, infinite=True), one_count("n", n, 1), weights(pi, q)
    order = np.argsort(w_all)
    knots = w_all[order]
    mass = np.concatenate([[0.0], np.cumsum(pi[order])])  # slope of λ in −1/v, by segment
    steps = _segment(knots[:-1], knots[1:], mass[1:-1], rejection(knots[:-1], pi, q), n)
    beyond = _beyond(knots[-1:], n)
    tails = np.concatenate([np.cumsum(np.concatenate([beyond, steps[::-1]]))[::-1], beyond])
    segment = np.searchsorted(knots, at, side="right")
    inside = segment < knots.size
    upper = knots[np.minimum(segment, knots.size - 1)]
    low = np.where(inside, at, upper)
    first = _segment(low, upper, mass[segment], rejection(low, pi, q), n)
    return unwrap(np.where(inside, first + tails[segment], _beyond(at, n)))


def _beyond(w: Floats, n: int) -> Floats:
    """T_n at and beyond w*, where λ(v) = 1 − 1/v."""
    with np.errstate(divide="ignore"):
        result: Floats = -np.expm1(n * np.log1p(-np.minimum(1 / w, 1.0)))
    return result


def imh_nstep(pi: ArrayLike, q: ArrayLike, n: int) -> Floats:
    """Transition matrix of n IMH steps by Smith and Tierney's formula (eq:imh_exact_kernel).

    The cost does not grow with n. It equals ``np.linalg.matrix_power(imh_matrix(pi, q), n)``.

    Args:
        pi: target probabilities, all positive.
        q: proposal probabilities, all positive.
        n: number of transitions ≥ 1.

    >>> K = imh_matrix([0.7, 0.2, 0.1], [0.2, 0.3, 0.5])
    >>> bool(np.allclose(imh_nstep([0.7, 0.2, 0.1], [0.2, 0.3, 0.5], 3), K @ K @ K))
    True
    """
    n, (pi, q, w) = one_count("n", n, 1), weights(pi, q)
    moved = t_n(w, n, pi, q)
    # T_n falls in w, so T_n(w ∨ w′) is the smaller of the two values.
    matrix: Floats = np.minimum(moved[:, None], moved[None, :]) * pi[None, :]
    matrix[np.diag_indices_from(matrix)] += rejection(w, pi, q) ** n
    return matrix


def rejection_bounds(w: ArrayLike, log_wstar: ArrayLike) -> tuple[Floats, Floats]:
    """Bounds on λ(w) from w* alone: ``max(1−1/w, 0) ≤ λ(w) ≤ 1 − 1/max(w, w*)``.

    The paper (thm:lambda_bound) has ``1 − 1/w*`` on the right for every w. That fails beyond w*,
    where λ(w) = 1 − 1/w, and thm:tn_bound integrates it there: the root of erratum 2.

    >>> lower, upper = rejection_bounds(2.0, np.log(4.0))
    >>> float(lower), round(float(upper), 12)
    (0.5, 0.75)
    """
    at, lw = positive("w", w, infinite=True), log_weight_bound(log_wstar)
    same_shape(w=at, log_wstar=lw)
    upper = np.exp(log_r(np.maximum(np.maximum(np.log(at), 0.0), lw)))
    return unwrap(np.maximum(1 - 1 / at, 0.0) + 0.0 * upper), unwrap(upper)


def t_n_bound(w: ArrayLike, n: ArrayLike, log_wstar: ArrayLike) -> Floats:
    """Bound on T_n from w* alone: ``(n/w) r^(n−1) + 1 − rⁿ − n r^(n−1)/w*``.

    Erratum 2: the paper (thm:tn_bound) has the first term only, which tends to 0 with n while
    T_n tends to 1. The rest is ``P(Binomial(n, 1/w*) ≥ 2)``, nothing at n = 1.

    Args:
        w: weights > 0.
        n: number of transitions ≥ 1.
        log_wstar: log w* ≥ 0.

    >>> round(float(t_n_bound(2.0, 1, np.log(4.0))), 12)
    0.5
    """
    at, n, lw = positive("w", w), counts("n", n, 1), log_weight_bound(log_wstar)
    same_shape(w=at, n=n, log_wstar=lw)
    proposal, target, _ = _expectation_weights(n, lw)
    return unwrap(proposal / at + target)


def imh_expectation_bound(
    n: ArrayLike, log_wstar: ArrayLike, eq_f: ArrayLike, epi_f: ArrayLike, f_z: ArrayLike
) -> Floats:
    """Bound on ``E[f(z_n) | z_0 = z]`` after n IMH steps, for f ≥ 0 (thm:imh_expecation).

    ``n r^(n−1) E_q f + (1 − rⁿ − n r^(n−1)/w*) E_π f + rⁿ f(z)``. Erratum 2: the paper leaves out
    the middle term, which is false for n ≥ 2; as n grows the left side tends to E_π f. At n = 1,
    the case that pMCSA uses, the two agree.

    Args:
        n: number of transitions ≥ 1.
        log_wstar: log w* ≥ 0.
        eq_f: E_q f ≥ 0.
        epi_f: E_π f ≥ 0.
        f_z: f(z) ≥ 0 at the starting point.

    >>> round(float(imh_expectation_bound(1, np.log(2.0), 3.0, 5.0, 4.0)), 12)
    5.0
    """
    n, lw = counts("n", n, 1), log_weight_bound(log_wstar)
    means = [at_least(a, x, 0.0) for a, x in [("eq_f", eq_f), ("epi_f", epi_f), ("f_z", f_z)]]
    same_shape(n=n, log_wstar=lw, eq_f=means[0], epi_f=means[1], f_z=means[2])
    proposal, target, stay = _expectation_weights(n, lw)
    return unwrap(proposal * means[0] + target * means[1] + stay * means[2])


def _expectation_weights(n: Floats, log_wstar: Floats) -> tuple[Floats, Floats, Floats]:
    """The coefficients of E_q f, E_π f and f(z)."""
    log_rate = log_r(log_wstar)
    proposal = n * np.exp(log_power(n - 1, log_rate))
    target = two_or_more(n, log_wstar) * np.exp(-2 * log_wstar)
    return proposal, target, np.exp(log_power(n, log_rate))
