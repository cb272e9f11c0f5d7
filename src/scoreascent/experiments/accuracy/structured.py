"""Hierarchies, series, a process and a growth curve: NumPyro models and their data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from scoreascent.experiments.accuracy.entry import Arrays, Entry
from scoreascent.experiments.accuracy.regressions import diabetes_raw, standardised

# -- hierarchies -----------------------------------------------------------------------------------


def eight_schools(effect: Any, error: Any) -> None:
    """Rubin's eight schools, non-centred: θ = μ + τ·raw."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([effect.shape[0]]).to_event(1))
    numpyro.sample("effect", dist.Normal(mu + tau * raw, error), obs=effect)


def schools() -> Arrays:
    """Effects of coaching and their standard errors."""
    effect = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return effect, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def varying_means(group: Any, y: Any, groups: int) -> None:
    """Means of groups, centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([groups]).to_event(1))
    numpyro.sample("y", dist.Normal(theta[group], sigma), obs=y)


def twenty_groups() -> Arrays:
    """Twenty groups of fifteen: each says more of its mean than the other groups do."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 15)
    return group, rng.normal(3, 1.5, 20)[group] + rng.normal(0, 1, len(group))


def varying_slopes(group: Any, x: Any, y: Any, groups: int) -> None:
    """A line for every group; intercepts and slopes correlate. Centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(2).expand([2]).to_event(1))
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 2))
    lines = dist.MultivariateNormal(mu, scale_tril=tau[:, None] * chol)
    line = numpyro.sample("line", lines.expand([groups]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(line[group, 0] + line[group, 1] * x, sigma), obs=y)


def twelve_lines() -> Arrays:
    """Twelve groups of twelve points."""
    rng = np.random.default_rng(2)
    group, x = np.repeat(np.arange(12), 12), np.tile(np.linspace(-1, 1, 12), 12)
    lines = rng.multivariate_normal([1.0, 2.0], [[1.0, -0.4], [-0.4, 0.64]], 12)
    return group, x, lines[group, 0] + lines[group, 1] * x + rng.normal(0, 0.6, len(x))


def beta_binomial(trials: Any, hits: Any) -> None:
    """Rates of groups around a common one."""
    rate = numpyro.sample("rate", dist.Beta(2, 2))
    kappa = numpyro.sample("kappa", dist.LogNormal(3, 1))
    beta = dist.Beta(rate * kappa, (1 - rate) * kappa)
    theta = numpyro.sample("theta", beta.expand([trials.shape[0]]).to_event(1))
    numpyro.sample("hits", dist.Binomial(trials, theta), obs=hits)


def twenty_rates() -> Arrays:
    """Twenty groups of 30 to 69 trials."""
    rng = np.random.default_rng(3)
    trials = rng.integers(30, 70, 20)
    return trials, rng.binomial(trials, rng.beta(0.3 * 12, 0.7 * 12, 20))


# -- series ----------------------------------------------------------------------------------------


def stochastic_volatility(y: Any) -> None:
    """Log variances follow an AR(1), non-centred: h_t = μ + σ x_t, x_t = φ x_{t−1} + ε_t."""
    n = y.shape[0]
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    phi = numpyro.sample("phi", dist.Beta(20, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([n]).to_event(1))
    first = noise.at[0].divide(jnp.sqrt(1 - phi**2))  # the first is of the stationary law
    _, x = jax.lax.scan(lambda x, e: (phi * x + e,) * 2, jnp.zeros_like(mu), first)
    numpyro.sample("y", dist.Normal(0, jnp.exp((mu + sigma * x) / 2)), obs=y)


def returns() -> Arrays:
    """150 simulated returns, in per cent."""
    rng, h = np.random.default_rng(4), [0.0]
    for _ in range(149):
        h.append(0.95 * h[-1] + 0.3 * rng.normal())
    return (np.exp((-0.5 + np.array(h)) / 2) * rng.normal(size=150),)


def local_level(y: Any) -> None:
    """A random walk seen through noise; its steps are the latent variables."""
    n = y.shape[0]
    start = numpyro.sample("start", dist.Normal(0, 5))
    step = numpyro.sample("step", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.Normal(0, 1).expand([n - 1]).to_event(1))
    level = start + step * jnp.concatenate([jnp.zeros(1), jnp.cumsum(noise)])
    numpyro.sample("y", dist.Normal(level, sigma), obs=y)


def walk() -> Arrays:
    """Eighty simulated observations."""
    rng = np.random.default_rng(5)
    return (2 + np.cumsum(rng.normal(0, 0.4, 80)) + rng.normal(0, 0.6, 80),)


def autoregression(y: Any) -> None:
    """AR(2) given its first two values."""
    constant = numpyro.sample("constant", dist.Normal(0, 1))
    phi = numpyro.sample("phi", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    mean = constant + phi[0] * y[1:-1] + phi[1] * y[:-2]
    numpyro.sample("y", dist.Normal(mean, sigma), obs=y[2:])


def cycle() -> Arrays:
    """120 values of an AR(2) that swings."""
    rng, y = np.random.default_rng(6), [0.0, 0.5]
    for _ in range(118):
        y.append(0.3 + 1.2 * y[-1] - 0.5 * y[-2] + 0.5 * rng.normal())
    return (np.array(y),)


# -- curves ----------------------------------------------------------------------------------------


def gaussian_process(X: Any, y: Any) -> None:
    """Regression with a squared-exponential kernel, f integrated out; a length for each feature."""
    amplitude = numpyro.sample("amplitude", dist.LogNormal(0, 0.7))
    length = numpyro.sample("length", dist.LogNormal(1, 0.7).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-0.5, 0.7))
    scaled = X / length
    square = jnp.sum((scaled[:, None] - scaled) ** 2, -1)
    kernel = amplitude**2 * jnp.exp(-0.5 * square) + sigma**2 * jnp.eye(X.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(X.shape[0]), kernel), obs=y)


def sixty_patients() -> Arrays:
    """Body mass, blood pressure and one serum value of sixty rows of the diabetes data."""
    X, y = diabetes_raw()
    return standardised(X[:60, [2, 3, 8]]), standardised(y[:60])


def growth(t: Any, y: Any) -> None:
    """Logistic growth: where it ends, how fast, when."""
    limit = numpyro.sample("limit", dist.LogNormal(2, 1))
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    middle = numpyro.sample("middle", dist.Normal(5, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(limit / (1 + jnp.exp(-rate * (t - middle))), sigma), obs=y)


def culture() -> Arrays:
    """Thirty simulated measurements; the limit is seen only at the end."""
    rng, t = np.random.default_rng(7), np.linspace(0, 9, 30)
    return t, 10 / (1 + np.exp(-0.9 * (t - 5.5))) + rng.normal(0, 0.4, 30)


# -- entries of the suite --------------------------------------------------------------------------

STRUCTURED: dict[str, Entry] = {
    "eight-schools": Entry(10, "non-centred, little data", eight_schools, schools),
    "varying-means": Entry(
        23,
        "centred, informative groups",
        varying_means,
        twenty_groups,
        groups=20,
    ),
    "varying-slopes": Entry(
        30,
        "centred, with a correlation matrix",
        varying_slopes,
        twelve_lines,
        groups=12,
        held_out=True,
    ),
    "beta-binomial": Entry(
        22,
        "rates around a common one",
        beta_binomial,
        twenty_rates,
        held_out=True,
    ),
    "stochastic-volatility": Entry(
        153,
        "150 latent log variances, non-centred",
        stochastic_volatility,
        returns,
        held_out=True,
    ),
    "local-level": Entry(
        82,
        "a random walk seen through noise, both scales unknown",
        local_level,
        walk,
    ),
    "ar2": Entry(4, "a short series", autoregression, cycle),
    "gp": Entry(
        5,
        "hyperparameters of a Gaussian process, hardly identified",
        gaussian_process,
        sixty_patients,
    ),
    "growth": Entry(
        4,
        "a nonlinear curve, two parameters trade off",
        growth,
        culture,
        held_out=True,
    ),
}
