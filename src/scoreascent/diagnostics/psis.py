"""Pareto smoothed importance sampling (Vehtari, Simpson, Gelman, Yao, Gabry 2024).

The largest importance weights are replaced by the quantiles of a generalised Pareto distribution
fitted to them; its shape k̂ says whether the weights can be trusted: below 0.7 they can.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scoreascent.theory._checks import Floats, positive, real

_LEAST_TAIL = 5  # no shape is fitted to fewer weights
_FLAT = 1e-10  # log weights of a tail that differ by less than this differ by rounding
_LEAST_LOG = math.log(np.finfo(np.float64).tiny)  # weights below this times the largest are zero
_PRIOR_SHAPE, _PRIOR_COUNT = 0.5, 10  # k̂ is drawn towards 0.5 as if by ten more weights


class Psis(NamedTuple):
    """Smoothed weights, in the order in which they came, and the shape of their tail."""

    log_weights: Floats  # they sum to one: logsumexp is 0
    k_hat: float


def psis(log_weights: ArrayLike, reff: float = 1.0) -> Psis:
    """Smooth the tail of importance weights, and estimate its shape k̂.

    The tail is what exceeds the (M+1)th largest of n weights, M = ⌈min(n/5, 3√(n/reff))⌉; no
    weight is made larger than the largest. All is as in ArviZ 0.23, and as in ArviZ 1 where that
    has the same tail: it rounds M down, counts weights equal to the (M+1)th to the tail, and fits
    no tail of five.

    Where there is nothing to fit, the weights come back normalised but not smoothed, and k̂ is

    - ``+inf`` if there is no telling: n < 21, or four weights or fewer in the tail;
    - ``-inf`` if the tail is flat, which is as bounded as weights can be: all are equal, or the
      largest is there many times. ArviZ has ``+inf``, a number far below 0 or an error here.

    Args:
        log_weights: the logs of n ≥ 1 weights, up to a constant; ``-inf`` is a weight of zero.
        reff: effective sample size over n of the draws, 1 if they are independent.

    >>> draws = np.random.default_rng(0).normal(size=1000)  # and a target three times as wide
    >>> round(psis(draws**2 / 2 - (draws / 3) ** 2 / 2).k_hat, 1)
    1.0
    """
    x, eff = _shifted(log_weights), positive("reff", reff)
    if eff.ndim:
        raise ValueError(f"reff must be one number, got an array of shape {eff.shape}")
    n = x.size
    length = math.ceil(min(n / 5, 3 * math.sqrt(n / float(eff))))
    if length < _LEAST_TAIL:
        return Psis(_normalised(x), math.inf)
    order = np.argsort(x, kind="stable")
    cutoff = max(float(x[order[-length - 1]]), _LEAST_LOG)
    tail = order[x[order] > cutoff]
    if -cutoff < _FLAT or (tail.size >= _LEAST_TAIL and -x[tail[0]] < _FLAT):
        return Psis(_normalised(x), -math.inf)
    if tail.size < _LEAST_TAIL:
        return Psis(_normalised(x), math.inf)
    shape, scale = _fit(math.exp(cutoff) * np.expm1(x[tail] - cutoff))
    if not (math.isfinite(shape) and math.isfinite(scale)):
        return Psis(_normalised(x), math.inf)
    excess = scale * _quantiles(shape, tail.size)
    x[tail] = np.minimum(np.log(excess + math.exp(cutoff)), 0.0)
    return Psis(_normalised(x), shape)


def tail_shape(x: ArrayLike) -> float:
    """The shape of the tail of |x − median|: moments of order 1/shape and above do not exist.

    It is fitted to the M largest, M as in `psis`; ``-inf`` if they are too few or all the same.

    >>> draws = np.random.default_rng(0).standard_cauchy(4000)
    >>> round(tail_shape(draws), 1), tail_shape(np.arctan(draws)) < 0
    (1.0, True)
    """
    values = real("x", x)
    size = np.sort(np.abs(values - np.median(values)))
    length = math.ceil(min(size.size / 5, 3 * math.sqrt(size.size)))
    tail = size[-length:] - size[-length - 1] if length < size.size else size[:0]
    tail = tail[tail > 0]
    if tail.size < _LEAST_TAIL or not np.all(np.isfinite(tail)):
        return -math.inf
    shape, _ = _fit(tail / tail[-1])
    return shape if math.isfinite(shape) else -math.inf


def effective_sample_size(log_weights: ArrayLike) -> float:
    """``1/Σ w²`` of the normalised weights: n if all are equal, 1 if one has it all.

    >>> round(effective_sample_size([0.3, 0.3, -np.inf]), 12)
    2.0
    """
    return float(1 / np.sum(np.exp(2 * _normalised(_shifted(log_weights)))))


def _shifted(log_weights: ArrayLike) -> Floats:
    """Check log weights, and move the largest to 0."""
    x = real("log_weights", log_weights)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"log_weights must have shape (n,) with n ≥ 1, got {x.shape}")
    wrong = np.flatnonzero(np.isnan(x) | (x == np.inf))
    if wrong.size:
        raise ValueError(
            "log_weights must be finite, or -inf for a weight of zero, "
            f"got {x[wrong[0]]} at index {wrong[0]} ({wrong.size} such of {x.size})"
        )
    largest = x.max()
    if largest == -np.inf:
        raise ValueError(f"log_weights must have one above -inf, got {x.size} weights of zero")
    with np.errstate(over="ignore"):
        shifted: Floats = x - largest
    return shifted


def _normalised(x: Floats) -> Floats:
    """Normalise log weights of which the largest is near 0."""
    result: Floats = x - np.log(np.sum(np.exp(x)))
    return result


def _fit(x: Floats) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution from its draws in ascending order.

    The estimate of Zhang and Stephens (2009): in θ = −shape/scale the profile likelihood is
    averaged over a grid. The shape is then drawn towards 0.5 by the paper's weak prior.
    """
    n = x.size
    points = 30 + math.isqrt(n)
    quartile = x[math.floor(n / 4 + 0.5) - 1]
    with np.errstate(all="ignore"):
        spread = 1 - np.sqrt(points / (np.arange(points) + 0.5))
        theta = 1 / x[-1] + spread / (3 * quartile)
        shapes = np.log1p(-theta[:, None] * x).mean(axis=1)
        log_likelihood = n * (np.log(-theta / shapes) - shapes - 1)
        usable = np.isfinite(log_likelihood)  # θ = 0 is not, and adds nothing to the mean
        if not usable.any():
            return math.nan, math.nan
        weight = np.exp(log_likelihood[usable] - log_likelihood[usable].max())
        mean = float(np.sum(weight * theta[usable]) / weight.sum())
        shape = float(np.log1p(-mean * x).mean())
        scale = -shape / mean if mean else float(x.mean())
    return (n * shape + _PRIOR_COUNT * _PRIOR_SHAPE) / (n + _PRIOR_COUNT), scale


def _quantiles(shape: float, n: int) -> Floats:
    """Quantiles of the unit generalised Pareto distribution at (j − ½)/n."""
    exponential = -np.log1p(-(np.arange(n) + 0.5) / n)
    if shape == 0:
        return exponential
    with np.errstate(over="ignore"):  # +∞ is then cut at the largest weight
        result: Floats = np.expm1(shape * exponential) / shape
    return result
