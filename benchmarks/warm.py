"""`sa.fit` on a device: the first fit of a model, then others of the same shape by other keys.

`python -m benchmarks.warm --out warm.csv poisson-glmm rows-1e6` fits large models by name and
`rows-1e6`, a logistic regression of a million rows and 20 coefficients, whose reference is the
Gaussian at its mode: with so many rows the posterior is one. `--chains` overrules the rule.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import scoreascent as sa
from scoreascent.experiments.large.models import large_model
from scoreascent.experiments.large.reference import load
from scoreascent.fitting.provenance import versions

NAMES = ("poisson-glmm", "slopes", "capture", "counties", "factors-regression", "rows-1e6")
ROWS, COEFFICIENTS = 10**6, 20


def logistic(z: Any, data: Any) -> Any:
    """Bernoulli answers, a standard normal prior on every coefficient."""
    X, y = data
    eta = X @ z
    return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) - 0.5 * jnp.sum(z**2)


def rows() -> tuple[sa.Target, Any, Any]:
    """The logistic regression, and its mean and sds by Newton's method in 64 bits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COEFFICIENTS)).astype(np.float32)
    beta = rng.normal(size=COEFFICIENTS) / 3
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-X @ beta))).astype(np.float32)
    wide, z = X.astype(np.float64), np.zeros(COEFFICIENTS)
    for _ in range(12):
        p = 1 / (1 + np.exp(-wide @ z))
        precision = (wide * (p * (1 - p))[:, None]).T @ wide + np.eye(COEFFICIENTS)
        z = z + np.linalg.solve(precision, wide.T @ (y - p) - z)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    return sa.Target(logistic, dim=COEFFICIENTS, data=(X, y)), z, sd


def measure(name: str, fits: int, chains: int | None) -> list[dict[str, Any]]:
    """Fit a model a few times; the first is cold."""
    if name == "rows-1e6":
        target, mean, sd = rows()
    else:
        reference = load(name)
        target, mean, sd = large_model(name).target(), reference.mean, reference.sd
    target = jax.block_until_ready(jax.device_put(target))
    table = []
    for key in range(fits):
        clock = time.perf_counter()
        result = sa.fit(target, key=key, progress=False, chains=chains)
        seconds = time.perf_counter() - clock
        assert result.diagnosis is not None
        assert result.evaluations is not None
        off = np.abs(np.asarray(result.q.mean, np.float64) - mean) / sd
        logs = np.abs(np.log(np.asarray(result.q.sd, np.float64) / sd))
        row = {
            "model": name,
            "dim": target.dim,
            "key": key,
            "chains": result.method.chains,
            "seconds": round(seconds, 2),
            "steps": result.steps,
            "gradients": result.evaluations[1],
            "mean_error": round(float(off.max()), 3),
            "worst_sd_error": round(float(logs.max()), 3),
            "verdict": result.diagnosis.verdict,
        }
        print(row, flush=True)
        table.append(row)
    return table


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="Cold and warm fits on a device.")
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--chains", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table: list[dict[str, Any]] = []
    for name in given.names:
        table += measure(name, given.fits, given.chains)
        if given.out is not None:
            about = {"device": jax.devices()[0].device_kind, "jax": versions()["jax"]}
            pd.DataFrame([row | about for row in table]).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
