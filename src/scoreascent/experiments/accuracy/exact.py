"""Targets whose moments and quantiles are known: Gaussians, modes and a funnel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.moments import LEVELS, Moments, gaussian_moments
from scoreascent.models.gaussian import Gaussian, wishart_gaussian
from scoreascent.target import Target


def autoregressive_gaussian(dim: int = 50, rho: float = 0.9) -> Gaussian:
    """A Gaussian with unit variances and correlations ρ^|i−j|.

    >>> autoregressive_gaussian(3).cov[0].round(2).tolist()
    [1.0, 0.9, 0.81]
    """
    at = np.arange(dim)
    return Gaussian(np.zeros(dim), rho ** np.abs(at[:, None] - at))


# -- modes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Modes:
    """A mixture of Gaussians of unit variance."""

    weights: NDArray[Any]
    centres: NDArray[Any]  # (modes, d)

    @property
    def target(self) -> Target:
        """The mixture's density."""
        dtype = jnp.zeros(()).dtype
        data = (np.log(self.weights).astype(dtype), self.centres.astype(dtype))
        return Target(_log_mixture, dim=self.centres.shape[1], data=data)

    @property
    def moments(self) -> Moments:
        """The moments within and between the modes; the quantiles are roots."""
        mean = self.weights @ self.centres
        sd = np.sqrt(1 + self.weights @ (self.centres - mean) ** 2)
        rows = [_quantiles(self._cdf(i), c.min() - 9, c.max() + 9) for i, c in
                enumerate(self.centres.T)]  # fmt: skip
        return Moments(mean, sd, np.array(rows))

    @property
    def masses(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The centres and the mass of each."""
        return self.centres, self.weights

    def _cdf(self, i: int) -> Callable[[float], float]:
        """The distribution function of one coordinate."""
        return lambda x: float(self.weights @ ndtr(x - self.centres[:, i]))


def _log_mixture(z: Any, data: tuple[Any, Any]) -> Any:
    log_weights, centres = data
    return jax.nn.logsumexp(log_weights - 0.5 * jnp.sum((z - centres) ** 2, -1))


def two_modes() -> Modes:
    """Two modes ten sds apart along the diagonal of ℝ⁵, weights 0.4 and 0.6."""
    step = np.full(5, 5 / np.sqrt(5))
    return Modes(np.array([0.4, 0.6]), np.stack([-step, step]))


def three_modes() -> Modes:
    """Three modes, a triangle of side eight in ℝ³, weights 0.5, 0.3 and 0.2."""
    corners = 8 / np.sqrt(2) * np.eye(3)
    return Modes(np.array([0.5, 0.3, 0.2]), corners - corners.mean(0))


# -- a funnel --------------------------------------------------------------------------------------

FUNNEL_DIM, FUNNEL_SD = 10, 3.0


def log_funnel(z: Any) -> Any:
    """Neal's funnel: v ~ N(0, 3²), every x ~ N(0, eᵛ)."""
    v, x = z[0], z[1:]
    return -0.5 * (v / FUNNEL_SD) ** 2 - 0.5 * jnp.sum(x**2) * jnp.exp(-v) - 0.5 * len(x) * v


def funnel_target() -> Target:
    """The funnel in ten dimensions; v is the first."""
    return Target(log_funnel, dim=FUNNEL_DIM)


def funnel_moments() -> Moments:
    """The funnel's moments.

    Var x = E eᵛ; the law of x is a mixture of normals over v, integrated on a grid.
    """
    v = np.linspace(-8, 8, 4001)
    weights = np.exp(-0.5 * v**2)
    weights /= weights.sum()
    scale = np.exp(FUNNEL_SD * v / 2)
    tails = _quantiles(lambda x: weights @ ndtr(x / scale), -1e4, 1e4)
    sd = np.full(FUNNEL_DIM, np.exp(FUNNEL_SD**2 / 4))
    sd[0] = FUNNEL_SD
    rows = [FUNNEL_SD * ndtri(LEVELS), *[tails] * (FUNNEL_DIM - 1)]
    return Moments(np.zeros(FUNNEL_DIM), sd, np.array(rows))


def _quantiles(cdf: Callable[[float], float], low: float, high: float) -> NDArray[Any]:
    return np.array([brentq(lambda x, p=p: cdf(x) - p, low, high, xtol=1e-10) for p in LEVELS])


# -- entries of the suite --------------------------------------------------------------------------

GAUSSIANS: dict[str, Entry] = {
    "gaussian-ar1": Entry(
        50,
        "neighbours correlate by 0.9",
        density=lambda: autoregressive_gaussian().target,
        exact=lambda: gaussian_moments(autoregressive_gaussian()),
    ),
    "gaussian-wishart": Entry(
        100,
        "a hundred dimensions, every pair correlates a little, sds from 1 to 14",
        density=lambda: wishart_gaussian(100, 100).target,
        exact=lambda: gaussian_moments(wishart_gaussian(100, 100)),
    ),
}
IRREGULAR: dict[str, Entry] = {
    "funnel": Entry(
        10,
        "Neal's funnel: the scale of nine coordinates is the exponential of the tenth",
        density=funnel_target,
        exact=funnel_moments,
        regular=False,
    ),
    "bimodal": Entry(
        5,
        "two modes ten sds apart, 0.4 and 0.6",
        density=lambda: two_modes().target,
        exact=lambda: two_modes().moments,
        masses=lambda: two_modes().masses,
        regular=False,
    ),
    "trimodal": Entry(
        3,
        "three modes eight sds apart, 0.5, 0.3 and 0.2",
        density=lambda: three_modes().target,
        exact=lambda: three_modes().moments,
        masses=lambda: three_modes().masses,
        regular=False,
        held_out=True,
    ),
}
