"""Small stable pieces that several theorems share."""

from __future__ import annotations

import numpy as np

from scoreascent.theory._checks import Floats, unwrap

_NEARLY_FLAT = 1e-8  # N/w* below this: r, …, r^N sum to N(1 − (N+1)/(2w*)) to rounding
_SERIES_BELOW = 0.1  # the series has 14 terms with ratio < 0.1, so it is exact to rounding


def log1mexp(x: Floats) -> Floats:
    """``log(1 − e^(−x))`` for x ≥ 0, accurate at both ends."""
    with np.errstate(divide="ignore"):
        near_zero = np.log(-np.expm1(-x))
        far = np.log1p(-np.exp(-x)) + 0.0  # + 0.0 turns −0 into 0
    result: Floats = np.where(x < np.log(2.0), near_zero, far)
    return result


def log_r(log_wstar: Floats) -> Floats:
    """``log r`` with r = 1 − 1/w*: −inf at w* = 1, 0 at w* = ∞."""
    return log1mexp(log_wstar)


def log_power(exponent: Floats, log_base: Floats) -> Floats:
    """``exponent · log_base`` with 0⁰ = 1, so 0 · (−∞) = 0."""
    with np.errstate(invalid="ignore"):
        result: Floats = np.where(exponent == 0, 0.0, exponent * log_base)
    return result


def exp_unless(log_value: Floats, log: bool) -> Floats:
    """Return the log as it is, or its exponential; an overflow to +∞ is meant."""
    if log:
        return unwrap(log_value)
    with np.errstate(over="ignore"):
        return unwrap(np.exp(log_value))


def log_geometric_sum(n: Floats, log_wstar: Floats) -> Floats:
    """``log Σ_{i≤n} r^i = log[r(1−rⁿ)/(1−r)]``: −inf at w* = 1, log n at w* = ∞."""
    log_rate, p = log_r(log_wstar), np.exp(-log_wstar)
    flat = n * p < _NEARLY_FLAT
    nearly_n = np.log(n) + np.log1p(-np.where(flat, (n + 1) * p, 0.0) / 2)
    # The branch that is not taken is kept free of ∞ − ∞.
    steep = log1mexp(-log_power(n, np.where(flat, -1.0, log_rate)))
    result: Floats = np.where(flat, nearly_n, log_rate + steep + np.where(flat, 0.0, log_wstar))
    return result


def two_or_more(n: Floats, log_wstar: Floats) -> Floats:
    """``P(Binomial(n, p) ≥ 2) / p²`` with p = 1/w*; tends to n(n−1)/2 as w* → ∞.

    The tail ``1 − rⁿ − n p r^(n−1)`` cancels to nothing for small p, where its expansion
    ``p² Σ_j (−p)^j (j+1) C(n, j+2)`` takes over. One trial cannot give two successes: the value is
    0 at n = 1, without the rounding error that the tail has there.
    """
    p = np.exp(-log_wstar)
    small = n * p < _SERIES_BELOW
    term = n * (n - 1) / 2
    series = term
    for j in range(14):
        term = -term * np.where(small, p, 0.0) * (j + 2) / (j + 1) * (n - 2 - j) / (j + 3)
        series = series + term
    log_rate = log_r(log_wstar)
    tail = -np.expm1(log_power(n, log_rate)) - n * p * np.exp(log_power(n - 1, log_rate))
    several = np.where(small, series, tail / np.where(small, 1.0, p) ** 2)
    result: Floats = np.where(n < 2, 0.0, several)
    return result
