"""Whether numbers are uniform on (0, 1): exact simultaneous bands of their distribution function.

Simulation-based calibration asks it of the ranks of true parameters among draws of their
posteriors (Talts et al., 2018). The band around the empirical distribution function at several
points at once is that of Säilynoja, Bürkner and Vehtari (2022): pointwise binomial intervals of one
level, which is chosen so that all of them hold together as often as is asked. The probability that
they do is computed exactly, by a recursion over the points.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import bdtr, gammaln, xlog1py, xlogy

if TYPE_CHECKING:
    from jaxtyping import Float

MAX_POINTS = 100  # at which the distribution function is looked at
BISECTIONS = 40
LEAST_LEVEL = 1e-15  # of a pointwise interval: what lies outside is impossible


def points(n: int) -> Float[np.ndarray, " k"]:
    """Return where the distribution function of n numbers is looked at.

    >>> points(4)
    array([0.2, 0.4, 0.6, 0.8])
    """
    k = min(n, MAX_POINTS)
    return np.arange(1, k + 1) / (k + 1)


def band(n: int, level: float) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return bounds that hold the distribution function at all points, with at least this level.

    >>> low, high = band(50, 0.95)
    >>> bool(np.all(low < points(50)) and np.all(points(50) < high))
    True
    """
    low, high = _bounds(n, _pointwise(n, level))
    return low / n, high / n


def p_value(x: Float[np.ndarray, " n"]) -> float:
    """Return how often as many uniform numbers would be as far from uniform as these, or further.

    Far is what their worst point says, by its own binomial distribution.

    >>> p_value(np.linspace(0.01, 0.99, 99)) > 0.9
    True
    >>> p_value(np.linspace(0.3, 0.7, 99)) < 1e-6
    True
    """
    n, at = len(x), points(len(x))
    counts = np.searchsorted(np.sort(x), at, side="right")
    tails = np.minimum(bdtr(counts, n, at), 1 - _below(counts, n, at))
    worst = max(2 * float(tails.min()), LEAST_LEVEL)
    # a band that this point is just outside of: any that is a little wider holds it
    return float(np.clip(1 - _coverage(n, *_bounds(n, worst * (1 + 1e-9))), 0.0, 1.0))


def _bounds(n: int, alpha: float) -> tuple[Any, Any]:
    """Return counts between which every point's count lies with probability 1 − alpha at least."""
    at, counts = points(n), np.arange(n + 1)[:, None]
    low = np.sum(bdtr(counts, n, at) < alpha / 2, axis=0)
    high = n - np.sum(1 - _below(counts, n, at) < alpha / 2, axis=0)
    return low, high


def _below(counts: Any, n: int, at: Any) -> Any:
    """Return the probability of fewer than so many."""
    return np.where(counts > 0, bdtr(np.maximum(counts - 1, 0), n, at), 0.0)


@functools.lru_cache(maxsize=128)
def _pointwise(n: int, level: float) -> float:
    """Return the largest alpha of a point at which all points hold with this level together."""
    low, high = np.log(LEAST_LEVEL), np.log(1 - level)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _coverage(n, *_bounds(n, np.exp(middle))) >= level:
            low = middle
        else:
            high = middle
    return float(np.exp(low))


def _coverage(n: int, low: Any, high: Any) -> float:
    """Return the probability that the counts of n uniform numbers lie within bounds at all points.

    Between two points every number that is not yet counted falls with the same probability.
    """
    at = np.concatenate([[0.0], points(n)])
    counts, known = np.array([0]), np.array([1.0])
    for k in range(1, len(at)):
        share = (at[k] - at[k - 1]) / (1 - at[k - 1])
        after = np.arange(low[k - 1], high[k - 1] + 1)
        new, left = after[None, :] - counts[:, None], (n - counts)[:, None]
        possible = (new >= 0) & (new <= left)
        safe = np.where(possible, new, 0)
        log_p = gammaln(left + 1) - gammaln(safe + 1) - gammaln(left - safe + 1)
        log_p = log_p + xlogy(safe, share) + xlog1py(left - safe, -share)
        known = known @ np.where(possible, np.exp(log_p), 0.0)
        counts = after
    return float(known.sum())
