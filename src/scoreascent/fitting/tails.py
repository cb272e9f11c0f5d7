"""Student-t or Gaussian: which of them the states of chains are likelier under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from scoreascent.families import FullRankStudentT

if TYPE_CHECKING:
    from jaxtyping import ArrayLike

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

FREEDOMS = (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0)  # degrees of freedom that are tried
STEPS = 20  # of expectation and maximisation
SOME_STATES, MAX_STATES = 4000, 40_000  # that tell the degrees of freedom, and the rest
MAX_DIM = 50  # beyond, a scale that all coordinates share is known from them, whatever its tail
STATES_A_NUMBER = 20  # of the covariance, at the least
MIN_GAIN = 0.03  # nats a state, over a Gaussian


def heavier(states: ArrayLike) -> FullRankStudentT | None:
    """Return the multivariate t that is likelier than a Gaussian at these states (n, d), if any.

    >>> rng = np.random.default_rng(0)
    >>> normal = rng.normal(size=(4000, 3))
    >>> heavier(normal) is None
    True
    >>> z = normal / np.sqrt(rng.chisquare(4, (4000, 1)) / 4)
    >>> heavier(z.astype(np.float32)).df
    4.0
    """
    z = np.asarray(states)
    dtype, dim = z.dtype, z.shape[1]
    z = z[np.all(np.isfinite(z), 1)].astype(np.float64)
    if dim > MAX_DIM or len(z) < STATES_A_NUMBER * dim or not np.all(z.std(0) > 0):
        return None
    centre, unit = z.mean(0), z.std(0)
    z = (_some(z, MAX_STATES) - centre) / unit
    few = _some(z, SOME_STATES)
    heights = [_fitted(few, df)[0] for df in FREEDOMS]
    df = FREEDOMS[int(np.argmax(heights))]
    if not max(heights) > _gaussian_height(few) + MIN_GAIN:
        return None
    _, loc, scatter = _fitted(z, df)
    cov = df / (df - 2) * scatter * unit[:, None] * unit
    return FullRankStudentT.from_moments((centre + unit * loc).astype(dtype), cov.astype(dtype), df)


def _some(z: Numbers, n: int) -> Numbers:
    """Return about n of the states, or all of them."""
    return z[:: max(1, len(z) // n)]


def _gaussian_height(z: Numbers) -> float:
    """Return the mean log density of the likeliest Gaussian at z."""
    _, log_det = _squares(z, _covariance(z))
    return -0.5 * (z.shape[1] * (1 + np.log(2 * np.pi)) + log_det)


def _covariance(z: Numbers) -> Numbers:
    away = z - z.mean(0)
    return away.T @ away / len(z)


def _fitted(z: Numbers, df: float) -> tuple[float, Numbers, Numbers]:
    """Return the mean log density of the likeliest t at z, its location and its scale matrix."""
    n, dim = z.shape
    loc, scatter = z.mean(0), _covariance(z) * (df - 2) / df
    for _ in range(STEPS):
        square, _ = _squares(z - loc, scatter)
        u = (df + dim) / (df + square)
        loc = u @ z / u.sum()
        away = z - loc
        scatter = (u[:, None] * away).T @ away / n
    square, log_det = _squares(z - loc, scatter)
    norm = gammaln(0.5 * (df + dim)) - gammaln(0.5 * df) - 0.5 * dim * np.log(df * np.pi)
    log_q = norm - 0.5 * log_det - 0.5 * (df + dim) * np.log1p(square / df)
    return float(log_q.mean()), loc, scatter


def _squares(away: Numbers, scatter: Numbers) -> tuple[Numbers, float]:
    """Return Mahalanobis' squared distances, and the log determinant of the matrix."""
    tril = np.linalg.cholesky(scatter)
    x = solve_triangular(tril, away.T, lower=True)
    return np.sum(x**2, 0), 2 * float(np.sum(np.log(np.diagonal(tril))))
