"""The BNN table: regression networks on eight data sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import scoreascent as sa
from scoreascent.datasets import Split
from scoreascent.experiments.regression import Problem, Settings, Table
from scoreascent.models.bnn import BNN

SETTINGS = Settings(
    datasets=("yacht", "concrete", "airfoil", "energy", "wine", "boston", "sml", "gas"),
    methods=(("elbo", 1), ("elbo", 10), ("pmcsa", 10), ("jsa", 10), ("msc", 10), ("msc_rb", 10)),
    steps=50_000,
    every=1000,
)


def problem(splits: list[Split], method: str) -> Problem:
    """Networks with 50 hidden units; λ₀ has means 0.1 N(0, I) and sd 1.1."""
    net = BNN(splits[0].x_train.shape[1])

    def q0(key: Any) -> sa.MeanField:
        means = 0.1 * jax.random.normal(key, (net.dim,))
        return sa.MeanField.from_moments(means, jnp.full(net.dim, 1.1))

    def score(q: sa.MeanField, split: Split) -> dict[str, Any]:
        mean, var = net.predict(q, split.x_test)
        mean, sd = split.y_mean + split.y_sd * mean, split.y_sd * jnp.sqrt(var)
        return {
            "lpd": jnp.mean(norm.logpdf(split.y_test, mean, sd)),
            "rmse": jnp.sqrt(jnp.mean((split.y_test - mean) ** 2)),
        }

    targets = [net.target(s.x_train, s.y_train) for s in splits]
    return Problem(targets, q0, score)


TABLE = Table(
    name="table-bnn",
    settings=SETTINGS,
    quick=replace(SETTINGS, datasets=("diabetes",), steps=1000, every=100, splits=2),
    problem=problem,
    dtype=np.float32,
    cost=lambda rows, features: rows * (features + 10.0),
    weights=slice(None, -2),
)
