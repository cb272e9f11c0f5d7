"""Six posteriors as NumPyro models and by hand, for tests that state them for several libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy import stats
from numpyro.distributions import constraints

import scoreascent as sa

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 2))
Y = RNG.normal(size=12)
COUNTS = RNG.poisson(2.0, size=12)
TRIALS = np.array([5, 8, 10])
HEADS = np.array([1, 6, 9])
ROWS = RNG.normal(size=(7, 3))
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def gaussian(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(jnp.array([1.0, -1.0]), 2.0).to_event(1))
    numpyro.sample("y", dist.MultivariateNormal(mu, jnp.array([[1.0, 0.5], [0.5, 2.0]])), obs=y)


def gaussian_by_hand(p: Any, y: Any) -> Any:
    prior = jnp.sum(stats.norm.logpdf(p["mu"], jnp.array([1.0, -1.0]), 2.0))
    cov = jnp.array([[1.0, 0.5], [0.5, 2.0]])
    return prior + jnp.sum(stats.multivariate_normal.logpdf(y, p["mu"], cov))


def schools(n: int, sigma: Any, y: Any = None) -> None:
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", n):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def schools_by_hand(p: Any, data: Any) -> Any:
    sigma, y = data
    prior = stats.norm.logpdf(p["mu"], 0, 5) + jnp.sum(stats.norm.logpdf(p["raw"]))
    prior += jnp.log(2.0) + stats.cauchy.logpdf(p["tau"], 0, 5)
    return prior + jnp.sum(stats.norm.logpdf(y, p["mu"] + p["tau"] * p["raw"], sigma))


def line(x: Any, y: Any, rate: float = 2.0) -> None:
    sigma = numpyro.sample("sigma", dist.Exponential(rate))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def line_by_hand(p: Any, data: Any) -> Any:
    x, y = data
    prior = jnp.sum(stats.norm.logpdf(p["beta"])) + jnp.log(2.0) - 2.0 * p["sigma"]
    return prior + jnp.sum(stats.norm.logpdf(y, x @ p["beta"], p["sigma"]))


def poisson(x: Any, counts: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0), sample_shape=(2,))
    a = numpyro.sample("a", dist.StudentT(4.0, 0.0, 1.0))
    with numpyro.plate("row", len(x)):
        numpyro.sample("counts", dist.Poisson(jnp.exp(a + x @ b)), obs=counts)


def poisson_by_hand(p: Any, data: Any) -> Any:
    x, counts = data
    prior = jnp.sum(stats.norm.logpdf(p["b"])) + stats.t.logpdf(p["a"], 4.0)
    return prior + jnp.sum(stats.poisson.logpmf(counts, jnp.exp(p["a"] + x @ p["b"])))


def coins(trials: Any, heads: Any) -> None:
    with numpyro.plate("coin", 3):
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        numpyro.sample("heads", dist.Binomial(trials, p), obs=heads)


def coins_by_hand(p: Any, data: Any) -> Any:
    trials, heads = data
    prior = jnp.sum(stats.beta.logpdf(p["p"], 2.0, 3.0))
    return prior + jnp.sum(stats.binom.logpmf(heads, trials, p["p"]))


def covariance(rows: Any) -> None:
    with numpyro.plate("column", 3):
        scale = numpyro.sample("scale", dist.HalfNormal(1.5))
    chol = numpyro.sample("chol", dist.LKJCholesky(3, 2.0))
    with numpyro.plate("row", len(rows)):
        normal = dist.MultivariateNormal(0.0, scale_tril=scale[:, None] * chol)
        numpyro.sample("rows", normal, obs=rows)


def covariance_by_hand(p: Any, rows: Any) -> Any:
    prior = jnp.sum(jnp.log(2.0) + stats.norm.logpdf(p["scale"], 0, 1.5))
    prior += dist.LKJCholesky(3, 2.0).log_prob(p["chol"])
    cov = jnp.diag(p["scale"]) @ p["chol"] @ p["chol"].T @ jnp.diag(p["scale"])
    return prior + jnp.sum(stats.multivariate_normal.logpdf(rows, jnp.zeros(3), cov))


class Case(NamedTuple):
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_hand: Callable[..., Any]
    params: dict[str, Any]
    data: Any


P = sa.Param
positive = constraints.positive
CASES = {
    "gaussian": Case(gaussian, (X,), {}, gaussian_by_hand, {"mu": P(shape=(2,))}, X),
    "schools": Case(
        schools, (8, ERRORS), {"y": EFFECTS}, schools_by_hand,
        {"mu": P(), "raw": P(shape=(8,)), "tau": positive}, (ERRORS, EFFECTS),
    ),
    "line": Case(
        line, (X, Y), {}, line_by_hand, {"beta": P(shape=(2,)), "sigma": positive}, (X, Y)
    ),
    "poisson": Case(
        poisson, (X, COUNTS), {}, poisson_by_hand, {"a": P(), "b": P(shape=(2,))}, (X, COUNTS)
    ),
    "coins": Case(
        coins, (TRIALS, HEADS), {}, coins_by_hand,
        {"p": P(constraints.unit_interval, (3,))}, (TRIALS, HEADS),
    ),
    "covariance": Case(
        covariance, (ROWS,), {}, covariance_by_hand,
        {"chol": P(constraints.corr_cholesky, (3, 3)), "scale": P(positive, (3,))}, ROWS,
    ),
}  # fmt: skip


def narrow(tree: Any) -> Any:
    """Arrays with 32 bits, so that nothing is narrowed aloud."""
    return jax.tree.map(
        lambda x: jnp.asarray(x).astype("i4" if x.dtype.kind == "i" else "f4")
        if isinstance(x, np.ndarray) else x, tree,
    )  # fmt: skip
