"""Random densities with exact moments, each told by its number.

Rules were mended on numbers 0 to 29 of an earlier `FIRST`; no rule was chosen on these.

Three kinds take turns: mixtures of a few Gaussians wherever they fall; linear combinations of
skewed and heavy-tailed transformations of normals; and linear regressions, whose posteriors are
Gaussian.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from scoreascent.experiments.verdict.shapes import Shape, mixture

FIRST = 20_000  # seed of the first
MAX_DIM = 8
NODES = 200  # of the quadrature for moments of one coordinate


def random_shape(number: int) -> Shape:
    """Return the shape of this number.

    >>> [random_shape(i).kind for i in range(3)]
    ['random mixture', 'random transform', 'random regression']
    """
    rng = np.random.default_rng(FIRST + number)
    return (_random_mixture, _random_transform, _random_regression)[number % 3](rng)


def _random_mixture(rng: np.random.Generator) -> Shape:
    """Up to four Gaussians whose centres are up to six apart and whose sds differ tenfold."""
    dim, k = rng.integers(1, MAX_DIM + 1), rng.integers(2, 5)
    centres = rng.uniform(0, 6) * rng.normal(size=(k, dim)) / np.sqrt(dim)
    sds = np.exp(rng.uniform(np.log(0.2), np.log(2), k))
    return mixture("random mixture", rng.dirichlet(np.ones(k)), centres, sds)


def _random_transform(rng: np.random.Generator) -> Shape:
    """z = b + A y, where y = sinh((asinh x + skew)/weight) and x is standard normal.

    Weights below one make tails heavier, above one lighter. It is regular where both are mild.
    """
    dim = int(rng.integers(1, MAX_DIM + 1))
    skew, weight = rng.uniform(-0.6, 0.6, dim), rng.uniform(0.6, 1.4, dim)
    nodes, mass = np.polynomial.hermite_e.hermegauss(NODES)
    y = np.sinh((np.arcsinh(nodes)[:, None] + skew) / weight)
    mean = mass @ y / mass.sum()
    variance = mass @ (y - mean) ** 2 / mass.sum()
    scale = np.exp(rng.uniform(-2, 2, dim))
    mix = scale[:, None] * (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)))
    shift = 3 * rng.normal(size=dim)
    back, centre, tilt, power = (
        np.asarray(a, np.float32) for a in (np.linalg.inv(mix), shift, skew, weight)
    )

    def log_density(z: Any) -> Any:
        y = back @ (z - centre)
        x = jnp.sinh(power * jnp.arcsinh(y) - tilt)
        slope = 0.5 * jnp.log1p(x**2) - 0.5 * jnp.log1p(y**2)
        return jnp.sum(slope - 0.5 * x**2)

    mild = bool(np.all(weight > 0.8) and np.all(np.abs(skew) < 0.4))
    sd = np.sqrt(mix**2 @ variance)
    return Shape("random transform", log_density, shift + mix @ mean, sd, mild)


def _random_regression(rng: np.random.Generator) -> Shape:
    """Coefficients with normal priors, correlated predictors of different units, known noise."""
    dim, rows = int(rng.integers(1, MAX_DIM + 1)), int(rng.integers(5, 60))
    units = np.exp(rng.uniform(-3, 3, dim))
    x = (rng.normal(size=(rows, dim)) + rng.uniform(0, 2) * rng.normal(size=(rows, 1))) * units
    x32, noise, prior = x.astype(np.float32), float(np.exp(rng.uniform(-1, 1))), 1 / units
    y32 = (x @ (prior * rng.normal(size=dim)) + noise * rng.normal(size=rows)).astype(np.float32)
    precision = np.diag(prior**-2.0) + x32.T.astype(float) @ x32.astype(float) / noise**2
    cov = np.linalg.inv(precision)
    mean = cov @ (x32.T.astype(float) @ y32.astype(float)) / noise**2
    rate = np.asarray(1 / prior, np.float32)

    def log_density(z: Any) -> Any:
        away = (y32 - x32 @ z) / noise
        return -0.5 * jnp.sum((rate * z) ** 2) - 0.5 * jnp.sum(away**2)

    return Shape("random regression", log_density, mean, np.sqrt(np.diag(cov)), True)
