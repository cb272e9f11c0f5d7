"""Posteriors of small models whose moments are exact: flat priors, centred hierarchies.

Given one coordinate, the logarithm of a scale, all others are Gaussian; it alone is integrated, in
closed form or by quadrature. The data are drawn here, from fixed seeds.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma

from scoreascent.experiments.verdict.shapes import Numbers, Shape

NODES = 40_001  # of the quadrature over log τ
LOWEST, HIGHEST = -30.0, 8.0  # its range, in which all mass is but e⁻³⁰
PRIOR_OF_MU, PRIOR_OF_TAU = 10.0, 5.0  # sds of a normal and of a half-normal


def flat_prior(rows: int, coefficients: int, with_scale: bool, seed: int) -> Shape:
    """A regression with a flat prior on its coefficients and on the logarithm of its noise.

    The coefficients are multivariate t with rows − coefficients degrees of freedom, and 1/σ² is
    Gamma. The last coordinate is log σ, unless it is integrated out.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, coefficients)).astype(np.float32)
    y = (x @ rng.normal(size=coefficients) + rng.normal(size=rows)).astype(np.float32)
    x64, y64 = x.astype(np.float64), y.astype(np.float64)
    inverse = np.linalg.inv(x64.T @ x64)
    mean = inverse @ x64.T @ y64
    left = float(np.sum((y64 - x64 @ mean) ** 2))
    df = rows - coefficients
    sd = np.sqrt(np.diag(inverse) * left / (df - 2))

    def marginal(z: Any) -> Any:
        return -0.5 * rows * jnp.log(jnp.sum((y - x @ z) ** 2))

    def joint(z: Any) -> Any:
        away = (y - x @ z[:-1]) * jnp.exp(-z[-1])
        return -rows * z[-1] - 0.5 * jnp.sum(away**2)

    if not with_scale:
        return Shape("flat prior", marginal, mean, sd, False)
    log_sigma = 0.5 * (np.log(left / 2) - digamma(df / 2))
    its_sd = 0.5 * np.sqrt(polygamma(1, df / 2))
    return Shape("flat prior", joint, np.append(mean, log_sigma), np.append(sd, its_sd), False)


def centred(groups: int, noise: tuple[float, float], seed: int) -> Shape:
    """A hierarchy z = (μ, log τ, θ): θ ~ N(μ, τ²), each of them seen with noise of a known sd.

    The sds of the noise go geometrically from one to the other of `noise`; μ and τ were 1.
    """
    rng = np.random.default_rng(seed)
    s = np.geomspace(*noise, groups).astype(np.float32)
    y = (1.0 + rng.normal(size=groups) + s * rng.normal(size=groups)).astype(np.float32)

    def log_density(z: Any) -> Any:
        mu, log_tau, theta = z[0], z[1], z[2:]
        prior = -0.5 * (mu / PRIOR_OF_MU) ** 2 - 0.5 * (jnp.exp(log_tau) / PRIOR_OF_TAU) ** 2
        effects = (theta - mu) * jnp.exp(-log_tau)
        seen = (y - theta) / s
        return prior + (1 - groups) * log_tau - 0.5 * jnp.sum(effects**2) - 0.5 * jnp.sum(seen**2)

    mean, sd = _centred_moments(y.astype(np.float64), s.astype(np.float64))
    return Shape("centred", log_density, mean, sd, False)


def _centred_moments(y: Numbers, s: Numbers) -> tuple[Numbers, Numbers]:
    """Means and sds of (μ, log τ, θ): a sum over log τ, given which the rest is Gaussian."""
    log_tau = np.linspace(LOWEST, HIGHEST, NODES)[:, None]
    tau2 = np.exp(2 * log_tau)
    total = tau2 + s**2  # of y given μ
    precision = 1 / PRIOR_OF_MU**2 + np.sum(1 / total, 1, keepdims=True)
    mu = np.sum(y / total, 1, keepdims=True) / precision
    log_mass = (
        log_tau - 0.5 * tau2 / PRIOR_OF_TAU**2 - 0.5 * np.log(precision)
        - 0.5 * np.sum(np.log(total) + y**2 / total, 1, keepdims=True) + 0.5 * precision * mu**2
    )  # fmt: skip
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    share = tau2 / total  # of y in θ's mean; the rest is μ's
    means = np.concatenate([mu, log_tau, share * y + (1 - share) * mu], 1)
    theta_variance = share * s**2 + (1 - share) ** 2 / precision
    variances = np.concatenate([1 / precision, 0 * log_tau, theta_variance], 1)
    mean = np.sum(mass * means, 0)
    return mean, np.sqrt(np.sum(mass * (variances + (means - mean) ** 2), 0))


POSTERIORS = {
    "flat-prior-5": flat_prior(8, 5, with_scale=False, seed=1),
    "flat-prior-6": flat_prior(8, 5, with_scale=True, seed=2),
    "centred-18": centred(16, (0.5, 2.0), seed=1),
    "centred-26": centred(24, (1.0, 3.0), seed=2),
    "centred-mild-18": centred(16, (0.4, 1.2), seed=3),
    "centred-mild-26": centred(24, (0.4, 1.2), seed=4),
}
