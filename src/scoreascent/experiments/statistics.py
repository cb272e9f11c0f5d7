"""Statistics over train–test splits: bootstrap intervals, Friedman's and Nemenyi's tests.

Scores are higher for the better method. Splits are blocks: methods are only compared within one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import stats

Array = np.ndarray[Any, Any]


def bootstrap(
    values: Any,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    of: Literal["mean", "median"] = "mean",
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean or median; NaN if there is no telling.

    That is with fewer than two values, or with one that is not finite.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 1:
        raise ValueError(f"values must be one row of numbers, not of shape {values.shape}")
    low, high = bootstrap_band(values[:, None], level, draws, seed, of)
    return float(low[0]), float(high[0])


def bootstrap_band(
    values: Any,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    of: Literal["mean", "median"] = "mean",
) -> tuple[Array, Array]:
    """`bootstrap` of every column; the columns share their resamples of the rows."""
    values = np.asarray(values, np.float64)
    if values.ndim != 2:
        raise ValueError(f"values must have rows and columns, not shape {values.shape}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    rows, columns = values.shape
    low, high = np.full(columns, np.nan), np.full(columns, np.nan)
    if rows < 2:
        return low, high
    chosen = np.random.default_rng(seed).integers(0, rows, (draws, rows))
    tails = [(1 - level) / 2, (1 + level) / 2]
    average = np.mean if of == "mean" else np.median
    for column in np.flatnonzero(np.isfinite(values).all(0)):
        low[column], high[column] = np.quantile(average(values[chosen, column], axis=1), tails)
    return low, high


def friedman(scores: Any) -> float:
    """The p-value of Friedman's test that all methods (columns) are alike over splits (rows).

    Ties share their ranks and NaN ranks below everything. Where nothing can be compared, with one
    method, no split, or ties throughout, the p-value is 1. Two methods make it a sign test.
    """
    ranks = _ranks(scores)
    n, k = ranks.shape
    spread = float(np.sum((ranks - (k + 1) / 2) ** 2))
    if spread == 0:
        return 1.0
    between = float(np.sum((ranks.sum(0) - n * (k + 1) / 2) ** 2))
    return float(stats.chi2.sf((k - 1) * between / spread, k - 1))


def nemenyi(scores: Any) -> Array:
    """P-values of Nemenyi's test for blocked data, for every pair of methods (columns)."""
    ranks = _ranks(scores)
    n, k = ranks.shape
    if k < 2 or n < 1:
        return np.ones((k, k))
    mean = ranks.mean(0)
    first, second = np.triu_indices(k, 1)  # each pair once: a p-value is an integral
    q = np.abs(mean[first] - mean[second]) / np.sqrt(k * (k + 1) / (6 * n))
    p = np.ones((k, k))
    p[first, second] = np.clip(stats.studentized_range.sf(q * np.sqrt(2), k, np.inf), 0.0, 1.0)
    p[second, first] = p[first, second]
    return p


def indistinct(scores: Any, level: float = 0.05) -> Array:
    """Which methods (columns) cannot be told from the one with the highest mean.

    All of them, unless Friedman's test says that there is a difference; then Nemenyi's decides.
    """
    scores = np.asarray(scores, np.float64)
    if friedman(scores) > level:
        return np.ones(scores.shape[1], bool)
    mean = scores.mean(0)
    best = int(np.argmax(np.where(np.isnan(mean), -np.inf, mean)))
    return nemenyi(scores)[best] > level


def _ranks(scores: Any) -> Array:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2:
        raise ValueError(f"scores must be splits × methods, not of shape {scores.shape}")
    lowest = np.where(np.isnan(scores), -np.inf, scores)
    ranks: Array = stats.rankdata(lowest, axis=1) if scores.size else lowest
    return ranks
