"""What a reference says of a posterior, coordinate by coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from scoreascent.models.gaussian import Gaussian

LEVELS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99)


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean, standard deviation and quantiles at `LEVELS` of every unconstrained coordinate."""

    mean: NDArray[Any]
    sd: NDArray[Any]
    quantiles: NDArray[Any]  # (d, levels)

    def quantile(self, level: float) -> NDArray[Any]:
        """The quantiles at one of `LEVELS`."""
        return np.asarray(self.quantiles[:, LEVELS.index(level)])


def gaussian_moments(problem: Gaussian) -> Moments:
    """The moments and quantiles of a Gaussian."""
    sd = np.sqrt(np.diag(problem.cov))
    return Moments(problem.mean, sd, problem.mean[:, None] + sd[:, None] * ndtri(LEVELS))
