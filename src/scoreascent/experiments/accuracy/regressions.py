"""Regressions of the suite, on data that ship with scikit-learn: NumPyro models and their data."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray

from scoreascent._extras import require
from scoreascent.experiments.accuracy.entry import Arrays, Entry


def standardised(x: NDArray[Any]) -> NDArray[Any]:
    """Every column with mean 0 and standard deviation 1."""
    return np.asarray((x - x.mean(0)) / x.std(0))


def badly_scaled(X: Any, y: Any) -> None:
    """Linear regression in the units of the measurement: the sds of z span three decades."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 500))
    beta = numpyro.sample("beta", dist.Normal(0, 50).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(200))
    numpyro.sample("y", dist.Normal(intercept + X @ beta, sigma), obs=y)


def diabetes_raw() -> Arrays:
    """Age in years, blood pressure in mm Hg, …, none of them centred."""
    raw = _sklearn().load_diabetes(scaled=False)
    return raw.data, raw.target


def linear(X: Any, y: Any) -> None:
    """Linear regression with weak priors, for standardised data."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(intercept + X @ beta, sigma), obs=y)


def cell_sizes() -> Arrays:
    """Six sizes of cell nuclei, of which pairs correlate by up to 0.998, and their concavity."""
    raw = _cancer()
    names = ["mean radius", "mean perimeter", "mean area", "worst radius", "worst perimeter",
             "worst area"]  # fmt: skip
    return standardised(raw[names].to_numpy()), standardised(raw["mean concavity"].to_numpy())


def robust(X: Any, y: Any) -> None:
    """Linear regression whose noise is Student-t with unknown degrees of freedom."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.StudentT(nu, intercept + X @ beta, sigma), obs=y)


def diabetes_with_outliers() -> Arrays:
    """The diabetes data, standardised, every 20th response off by five sds up or down."""
    X, y = (standardised(x) for x in diabetes_raw())
    y[::20] += 5 * (-1.0) ** np.arange(len(y[::20]))
    return X, y


def logistic(X: Any, y: Any) -> None:
    """Logistic regression."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2.5))
    beta = numpyro.sample("beta", dist.Normal(0, 2.5).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + X @ beta), obs=y)


def cancer() -> Arrays:
    """200 tumours, six features that do not separate them, benign or not."""
    raw = _cancer()[:200]
    names = ["mean texture", "mean smoothness", "mean compactness", "mean symmetry",
             "mean fractal dimension", "mean radius"]  # fmt: skip
    return standardised(raw[names].to_numpy()), raw["target"].to_numpy()


def poisson(X: Any, y: Any) -> None:
    """Poisson regression, log link."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(intercept + X @ beta)), obs=y)


def chins() -> Arrays:
    """How many chin-ups twenty men did, against their weight, waist and pulse."""
    raw = _sklearn().load_linnerud()
    return standardised(raw.target), raw.data[:, 0].astype(int)


def negative_binomial(X: Any, y: Any) -> None:
    """Regression of counts that spread more than Poisson's."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.Gamma(2, 0.5))
    mean = jnp.exp(intercept + X @ beta)
    numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def visits() -> Arrays:
    """Simulated counts on four columns of the diabetes data, 200 rows."""
    X = standardised(diabetes_raw()[0])[:200, [2, 3, 4, 8]]
    rng = np.random.default_rng(20)
    rate = np.exp(1.0 + X @ np.array([0.4, 0.2, -0.3, 0.1])) * rng.gamma(1.5, 1 / 1.5, len(X))
    return X, rng.poisson(rate)


def softmax(X: Any, y: Any) -> None:
    """Multinomial logistic regression; the first of three classes has score 0."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2).expand([2]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([X.shape[1], 2]).to_event(2))
    scores = intercept + X @ beta
    scores = jnp.concatenate([jnp.zeros_like(scores[:, :1]), scores], 1)
    numpyro.sample("y", dist.Categorical(logits=scores), obs=y)


def iris() -> Arrays:
    """Three species of iris by four measures."""
    raw = _sklearn().load_iris()
    return standardised(raw.data), raw.target


def horseshoe(X: Any, y: Any) -> None:
    """Sparse regression, non-centred: β = scale · raw, the scales a horseshoe's with a slab of 1.

    Without the slab, four chains of 100 000 draws of NUTS had an ESS of 3129 on these data: there
    would be no reference.
    """
    tau = numpyro.sample("tau", dist.HalfNormal(0.3))
    lam = numpyro.sample("lam", dist.HalfCauchy(1).expand([X.shape[1]]).to_event(1))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    scale = tau * lam / jnp.sqrt(1 + (tau * lam) ** 2)
    numpyro.sample("y", dist.Normal(X @ (scale * raw), sigma), obs=y)


def diabetes() -> Arrays:
    """The diabetes data, standardised."""
    X, y = diabetes_raw()
    return standardised(X), standardised(y)


def _cancer() -> Any:
    return _sklearn().load_breast_cancer(as_frame=True).frame


def _sklearn() -> Any:
    return require("sklearn.datasets", "cli", "the data of this model")


# -- entries of the suite --------------------------------------------------------------------------

REGRESSIONS: dict[str, Entry] = {
    "regression-raw": Entry(
        12,
        "badly scaled: predictors in their own units, not centred",
        badly_scaled,
        diabetes_raw,
    ),
    "regression-collinear": Entry(
        8,
        "predictors that correlate by up to 0.998",
        linear,
        cell_sizes,
    ),
    "regression-robust": Entry(
        13,
        "Student-t noise, outliers, degrees of freedom unknown",
        robust,
        diabetes_with_outliers,
        held_out=True,
    ),
    "logistic": Entry(7, "a binary response", logistic, cancer),
    "softmax": Entry(
        10,
        "three classes, one of which is separable: skewed",
        softmax,
        iris,
        held_out=True,
    ),
    "poisson": Entry(4, "counts, few rows", poisson, chins),
    "negative-binomial": Entry(6, "overdispersed counts", negative_binomial, visits),
    "horseshoe": Entry(
        22,
        "sparse coefficients: heavy-tailed scales, products of parameters, a slab",
        horseshoe,
        diabetes,
    ),
}
