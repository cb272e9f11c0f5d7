"""How far a fit is from a reference, coordinate by coordinate, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from scoreascent.diagnostics.psis import psis
from scoreascent.experiments.accuracy.moments import LEVELS, Moments

# a fit is called right up to these errors
RIGHT_MEAN = 0.1  # posterior sds
RIGHT_SD = 0.05  # logarithms of ratios of sds
RIGHT_MASS = 0.02  # of a mode


@dataclass(frozen=True, eq=False)
class Fit:
    """What a method says of a posterior on ℝᵈ, and what that took.

    `draws` are of the fitted q, or of a chain; `log_weights` are log π/q at them, if there is a q.
    A gradient counts once, its value included; `densities` are evaluations without one. `shown` are
    the numbers that the method shows of the model's own space, if they are not those of `draws`,
    and `shown_z` the draws (n, d) that it shows, likewise.
    """

    mean: NDArray[Any]
    sd: NDArray[Any]
    draws: NDArray[Any]
    log_weights: NDArray[Any] | None = None
    densities: float = np.nan
    gradients: float = np.nan
    verdict: str = ""
    shown: Any = None
    shown_z: NDArray[Any] | None = None


def compare(fit: Fit, reference: Moments) -> dict[str, float]:
    """The errors of a fit; numbers that are not finite are errors without bound.

    - `mean_error`: the worst error of a mean, in sds of the reference;
    - `sd_error`: the mean over coordinates of |log(sd/reference sd)|;
    - `sd_ratio`: the ratio of sds that is farthest from 1;
    - `coverage`: the reference's mass between the 5 and the 95 % points of the fit, on average;
    - `k_hat`: the shape of the tail of the weights.
    """
    with np.errstate(all="ignore"):
        mean_error = np.abs(fit.mean - reference.mean) / reference.sd
        logs = np.log(fit.sd / reference.sd)
        low, high = np.quantile(fit.draws, [0.05, 0.95], axis=0)
        mass = mass_below(reference, high) - mass_below(reference, low)
    worst = lambda x: np.where(np.isnan(x), np.inf, x)  # noqa: E731
    return {
        "mean_error": float(np.max(worst(mean_error))),
        "sd_error": float(np.mean(worst(np.abs(logs)))),
        "sd_ratio": float(np.exp(logs[np.argmax(worst(np.abs(logs)))])),
        "coverage": float(np.mean(mass)),
        "k_hat": np.nan if fit.log_weights is None else k_hat_of(fit.log_weights),
    }


def mass_error(draws: NDArray[Any], centres: NDArray[Any], masses: NDArray[Any]) -> float:
    """The largest error of a mode's mass; a draw belongs to the nearest centre.

    >>> draws, centres = np.array([[-1.0], [1.0], [3.0], [9.0]]), np.array([[0.0], [4.0]])
    >>> round(mass_error(draws, centres, np.array([0.4, 0.6])), 3)
    0.1
    """
    if not np.all(np.isfinite(draws)):
        return np.inf
    square = np.sum(centres**2, 1) - 2 * draws @ centres.T  # up to what all centres have
    owned = np.bincount(np.argmin(square, 1), minlength=len(masses)) / len(draws)
    return float(np.max(np.abs(owned - masses)))


def is_right(mean_error: Any, sd_error: Any) -> Any:
    """Whether errors are small enough to use the fit in place of a long run of NUTS."""
    return (mean_error <= RIGHT_MEAN) & (sd_error <= RIGHT_SD)


def mass_below(reference: Moments, x: NDArray[Any]) -> NDArray[Any]:
    """P(coordinate ≤ x) under the reference, for one x a coordinate.

    Between the stored quantiles a normal score is linear in x, and beyond them too: exact for a
    Gaussian.
    """
    scores = ndtri(LEVELS)
    return np.array([ndtr(_interpolated(q, scores, at)) for q, at in zip(reference.quantiles, x)])


def _interpolated(knots: NDArray[Any], values: NDArray[Any], x: float) -> float:
    """Interpolate linearly, and go on beyond both ends."""
    i = int(np.clip(np.searchsorted(knots, x), 1, len(knots) - 1))
    slope = (values[i] - values[i - 1]) / (knots[i] - knots[i - 1])
    return float(values[i - 1] + slope * (x - knots[i - 1]))


def k_hat_of(log_weights: NDArray[Any]) -> float:
    """Return the shape of the tail of weights, of which some may not be numbers."""
    usable = ~np.isnan(log_weights) & (log_weights < np.inf)
    weights = np.where(usable, log_weights, -np.inf)
    return psis(weights).k_hat if np.any(weights > -np.inf) else np.inf
