"""Particles that come from far away to the posterior by degrees, with densities alone.

A search ends in the place whose slope it feels, which far out is that of the widest. Particles of
a reference many times as wide as q, moved and drawn again by their weights while the reference
gives way to π, also settle in places that are narrow: π^β is wide there while β is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from scoreascent._arrays import as_default, impossible
from scoreascent._batches import log_probs
from scoreascent.families import Family
from scoreascent.target import Target

if TYPE_CHECKING:
    from scoreascent.searches import Vector

PARTICLES = 256
MARGIN = 1.0  # sds beyond the furthest state; what is just outside would draw all particles
WIDTHS = (3.0, 6.0)  # of the reference, in sds of q: a half of the particles each
MAX_LEVELS = 12
MOVES = 2  # at every level
BISECTIONS = 20  # for a step of β
KEPT = 0.75  # of the effective particles, at a step of β
SMALLEST = 0.1  # of the length of a random-walk step; they differ, since places do


def anneal(
    target: Target,
    q: Family,
    is_new: Callable[[Vector, Vector, float], Any],
    unit: Vector,
    rng: np.random.Generator,
) -> tuple[Vector, Vector, int]:
    """Return particles z (n, d) where the fit has not been, log p, and the densities it took.

    `is_new(log p, log q, margin)` tells where that is; elsewhere the density counts for nothing, so
    that the particles have nowhere else to go. `unit` is a factor of q's covariance, a matrix or a
    diagonal. The last particle is the likeliest of all places that were looked at on the way.
    """
    mean = np.asarray(q.mean, np.float64)
    dim = len(mean)
    cost, best = 0, (-np.inf, mean)

    def to_z(x: Vector) -> Vector:
        found: Vector = mean + (x @ unit.T if unit.ndim == 2 else x * unit)
        return found

    def log_p(x: Vector) -> Vector:
        nonlocal cost, best
        cost += len(x)
        z = to_z(x)
        found = log_probs(target, as_default(z))
        new = is_new(found, log_probs(q, as_default(z)), MARGIN)
        found = np.where(impossible(found) | ~new, -np.inf, found)
        i = int(np.argmax(found))
        best = max(best, (float(found[i]), z[i]), key=lambda pair: pair[0])
        return found

    widths = np.repeat(WIDTHS, PARTICLES // len(WIDTHS))
    x = widths[:, None] * rng.standard_normal((len(widths), dim))
    p, r, beta = log_p(x), _log_reference(x), 0.0
    for _ in range(MAX_LEVELS):
        beta, log_w = _next(beta, p - r)
        chosen = _systematic(log_w, rng)
        x, p, r = x[chosen], p[chosen], r[chosen]
        spread = np.cov(x.T).reshape(dim, dim) if len(x) > dim else np.diag(np.var(x, 0))
        root = np.linalg.cholesky(spread + 1e-9 * np.trace(spread) / dim * np.eye(dim))
        for _ in range(MOVES):
            length = 2.4 / np.sqrt(dim) * SMALLEST ** rng.uniform(size=(len(x), 1))
            new = x + length * (rng.standard_normal(x.shape) @ root.T)
            new_p, new_r = log_p(new), _log_reference(new)
            with np.errstate(invalid="ignore"):
                gain = beta * (new_p - p) + (1 - beta) * (new_r - r)
            moved = np.log(rng.uniform(size=len(x))) < gain
            x = np.where(moved[:, None], new, x)
            p, r = np.where(moved, new_p, p), np.where(moved, new_r, r)
        if beta == 1:
            break
    return np.vstack([to_z(x), best[1]]), np.append(p, best[0]), cost


def _log_reference(x: Vector) -> Any:
    """Return the log density of the reference, up to a constant."""
    square, dim = np.sum(x**2, 1), x.shape[1]
    parts = [-0.5 * square / w**2 - dim * np.log(w) for w in WIDTHS]
    return np.logaddexp.reduce(parts)


def _next(beta: float, log_ratio: Vector) -> tuple[float, Vector]:
    """Return the largest next β at which weights leave enough effective particles, and these."""

    def weights(b: float) -> Vector:
        with np.errstate(invalid="ignore"):
            log_w = np.where(np.isfinite(log_ratio), (b - beta) * log_ratio, -np.inf)
        found: Vector = log_w - _log_sum(log_w)
        return found

    if not np.any(np.isfinite(log_ratio)):
        return 1.0, np.zeros_like(log_ratio)

    wanted = np.log(KEPT * np.sum(np.isfinite(log_ratio)))
    low, high = beta, 1.0
    if -_log_sum(2 * weights(high)) >= wanted:
        return high, weights(high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = -_log_sum(2 * weights(middle)) >= wanted
        low, high = (middle, high) if enough else (low, middle)
    return high, weights(high)


def _log_sum(log_w: Vector) -> float:
    """Return the log of the sum of weights, of which one at least is not zero."""
    most = np.max(log_w)
    return float(most + np.log(np.sum(np.exp(log_w - most))))


def _systematic(log_w: Vector, rng: np.random.Generator) -> Any:
    """Draw as many particles as there are, by their weights."""
    n = len(log_w)
    total = np.cumsum(np.exp(log_w - np.max(log_w)))
    return np.searchsorted(total, (np.arange(n) + rng.uniform()) / n * total[-1]).clip(0, n - 1)
