"""The suite: posteriors of many kinds, each with its data and the reason why it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from scoreascent.adapters import from_numpyro
from scoreascent.experiments.accuracy import exact, regressions, structured
from scoreascent.experiments.accuracy.exact import Moments
from scoreascent.experiments.accuracy.regressions import Arrays
from scoreascent.models.gaussian import wishart_gaussian
from scoreascent.target import Target


@dataclass(frozen=True)
class Entry:
    """A posterior of the suite: a NumPyro `model` with its `data`, or a `density` of its own.

    A `regular` one has a single mode, and no region where its scale shrinks without end: a fit can
    be asked to be right. Of the others it is asked not to be called good. What is `held_out` was
    not looked at while the library's defaults were chosen; the flags were set before any of them
    were tried. `exact` gives moments where they are known.
    """

    dim: int
    why: str
    model: Callable[..., None] | None = None
    data: Callable[[], Arrays] | None = None
    size: int | None = None  # the model's last argument, where it needs a number of groups
    density: Callable[[], Target] | None = None
    exact: Callable[[], Moments] | None = None
    regular: bool = True
    held_out: bool = False

    def target(self) -> Target:
        """The posterior in jax's present precision."""
        if self.density is not None:
            return self.density()
        assert self.model is not None
        return from_numpyro(self.model, *self.arguments())

    def arguments(self) -> tuple[Any, ...]:
        """What the NumPyro model is called with.

        Data are rounded to 32 bits in both precisions, so that a reference in 64 bits is of the
        same posterior.
        """
        assert self.data is not None
        arrays = tuple(_rounded(x) for x in self.data())
        return arrays if self.size is None else (*arrays, self.size)


def _rounded(x: Any) -> Any:
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(jnp.zeros((), int).dtype)
    return x.astype(np.float32).astype(jnp.zeros(()).dtype)


MODELS: dict[str, Entry] = {
    # -- Gaussians: everything is known ----------------------------------------------------------
    "gaussian-ar1": Entry(
        50,
        "neighbours correlate by 0.9",
        density=lambda: exact.autoregressive_gaussian().target,
        exact=lambda: exact.gaussian_moments(exact.autoregressive_gaussian()),
    ),
    "gaussian-wishart": Entry(
        100,
        "a hundred dimensions, every pair correlates a little, sds from 1 to 14",
        density=lambda: wishart_gaussian(100, 100).target,
        exact=lambda: exact.gaussian_moments(wishart_gaussian(100, 100)),
    ),
    # -- regressions -----------------------------------------------------------------------------
    "regression-raw": Entry(
        12,
        "badly scaled: predictors in their own units, not centred",
        regressions.badly_scaled,
        regressions.diabetes_raw,
    ),
    "regression-collinear": Entry(
        8,
        "predictors that correlate by up to 0.998",
        regressions.linear,
        regressions.cell_sizes,
    ),
    "regression-robust": Entry(
        13,
        "Student-t noise, outliers, degrees of freedom unknown",
        regressions.robust,
        regressions.diabetes_with_outliers,
        held_out=True,
    ),
    "logistic": Entry(7, "a binary response", regressions.logistic, regressions.cancer),
    "softmax": Entry(
        10,
        "three classes, one of which is separable: skewed",
        regressions.softmax,
        regressions.iris,
        held_out=True,
    ),
    "poisson": Entry(4, "counts, few rows", regressions.poisson, regressions.chins),
    "negative-binomial": Entry(
        6, "overdispersed counts", regressions.negative_binomial, regressions.visits
    ),
    "horseshoe": Entry(
        22,
        "sparse coefficients: heavy-tailed scales, products of parameters, a slab",
        regressions.horseshoe,
        regressions.diabetes,
    ),
    # -- hierarchies -----------------------------------------------------------------------------
    "eight-schools": Entry(
        10, "non-centred, little data", structured.eight_schools, structured.schools
    ),
    "varying-means": Entry(
        23,
        "centred, informative groups",
        structured.varying_means,
        structured.twenty_groups,
        size=20,
    ),
    "varying-slopes": Entry(
        30,
        "centred, with a correlation matrix",
        structured.varying_slopes,
        structured.twelve_lines,
        size=12,
        held_out=True,
    ),
    "beta-binomial": Entry(
        22,
        "rates around a common one",
        structured.beta_binomial,
        structured.twenty_rates,
        held_out=True,
    ),
    # -- series ----------------------------------------------------------------------------------
    "stochastic-volatility": Entry(
        153,
        "150 latent log variances, non-centred",
        structured.stochastic_volatility,
        structured.returns,
        held_out=True,
    ),
    "local-level": Entry(
        82,
        "a random walk seen through noise, both scales unknown",
        structured.local_level,
        structured.walk,
    ),
    "ar2": Entry(4, "a short series", structured.autoregression, structured.cycle),
    # -- curves ----------------------------------------------------------------------------------
    "gp": Entry(
        5,
        "hyperparameters of a Gaussian process, hardly identified",
        structured.gaussian_process,
        structured.sixty_patients,
    ),
    "growth": Entry(
        4,
        "a nonlinear curve, two parameters trade off",
        structured.growth,
        structured.culture,
        held_out=True,
    ),
    # -- what no Gaussian fits ---------------------------------------------------------------------
    "funnel": Entry(
        10,
        "Neal's funnel: the scale of nine coordinates is the exponential of the tenth",
        density=exact.funnel_target,
        exact=exact.funnel_moments,
        regular=False,
    ),
    "bimodal": Entry(
        5,
        "two modes ten sds apart, 0.4 and 0.6",
        density=lambda: exact.two_modes().target,
        exact=lambda: exact.two_modes().moments,
        regular=False,
    ),
    "trimodal": Entry(
        3,
        "three modes eight sds apart, 0.5, 0.3 and 0.2",
        density=lambda: exact.three_modes().target,
        exact=lambda: exact.three_modes().moments,
        regular=False,
        held_out=True,
    ),
}


def entry(name: str) -> Entry:
    """The model of that name.

    >>> entry("ar2").dim
    4
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name]


def coordinates(target: Target) -> list[str]:
    """A name for every unconstrained coordinate.

    >>> coordinates(entry("ar2").target())
    ['constant', 'phi[0]', 'phi[1]', 'sigma']
    """
    shapes = getattr(target.log_density, "free_shapes", None) or target._free_shapes
    return [
        name + (f"[{','.join(map(str, index))}]" if index else "")
        for name, shape in zip(target.site_names, shapes)
        for index in np.ndindex(shape)
    ]
