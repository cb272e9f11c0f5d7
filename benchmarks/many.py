"""Many fits at once: how long each takes, and how many wrong ones are called good.

`python -m benchmarks.many [--fits 10000] [--sample 100] [--shapes logistic poisson …]`
fits many simulated posteriors of a shape by `sa.fit([…])`; few of them twice, for the time without
compilation. Beside that stands a loop over `sa.fit` and one over NumPyro's NUTS (four chains of
500 + 500 side by side, compiled once) for the first `beside` of them. The numbers of the first
`sample` fits, and of half as many that were fitted by themselves, are held against means and sds
that are known well: a fit is wrong if a mean is off by more than 0.1 posterior sds or an sd by more
than 10 %, beyond three standard errors of the reference. That is importance sampling by a wide
Student-t where its weights are good, and long NUTS where they are not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jax.scipy import stats
from numpyro.infer import MCMC, NUTS
from rich.console import Console

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.diagnostics.chains import ess_bulk
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "many.csv"
DRAWS, FREEDOM, WIDER = 100_000, 5, 1.2  # of the reference by importance weights
MIN_EFFECTIVE = 20_000
NOISES = 3.0
WARMUP, LONG, CHAINS = 1000, 5000, 8  # of the reference by NUTS


# -- shapes ----------------------------------------------------------------------------------------


def logistic(z: Any, data: Any) -> Any:
    """200 rows, five coefficients N(0, 2²)."""
    x, y = data
    logits = x @ z
    return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2) / 4


def logistic_data(rng: Any) -> Any:
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 4))])
    y = rng.uniform(size=200) < 1 / (1 + np.exp(-x @ rng.normal(size=5)))
    return x, y


def poisson(z: Any, data: Any) -> Any:
    """Ten rows with few counts."""
    x, y = data
    eta = x @ z
    return jnp.sum(y * eta - jnp.exp(eta)) - 0.5 * jnp.sum(z**2) / 4


def poisson_data(rng: Any) -> Any:
    x = np.column_stack([np.ones(10), rng.normal(size=(10, 2))])
    return x, rng.poisson(np.exp(np.clip(x @ rng.normal(size=3) - 1, -5, 4)))


def robust(z: Any, data: Any) -> Any:
    """A regression with Student-t errors, three degrees of freedom, and their scale."""
    x, y = data
    residual = (y - x @ z[:3]) * jnp.exp(-z[3])
    prior = -0.5 * jnp.sum(z[:3] ** 2) / 25 - 0.5 * z[3] ** 2
    return prior + jnp.sum(stats.t.logpdf(residual, 3.0) - z[3])


def robust_data(rng: Any) -> Any:
    x = np.column_stack([np.ones(25), rng.normal(size=(25, 2))])
    return x, x @ rng.normal(size=3) + rng.standard_t(1.5, size=25)


def schools(z: Any, data: Any) -> Any:
    """Six groups about a mean and the log of their spread: a funnel where data say little."""
    y, error = data
    mu, log_tau, theta = z[0], z[1], z[2:]
    prior = -0.5 * mu**2 / 25 - 0.5 * (log_tau / 1.5) ** 2
    groups = jnp.sum(-0.5 * ((theta - mu) * jnp.exp(-log_tau)) ** 2 - log_tau)
    return prior + groups + jnp.sum(-0.5 * ((y - theta) / error) ** 2)


def schools_data(rng: Any) -> Any:
    error = rng.uniform(0.2, 2, size=6)
    theta = rng.normal() + np.exp(rng.normal()) * rng.normal(size=6)
    return theta + error * rng.normal(size=6), error


def modes(z: Any, data: Any) -> Any:
    """Two Gaussians whose distance and masses differ from fit to fit."""
    gap, weight = data
    one = -0.5 * jnp.sum(z**2)
    return jnp.logaddexp(one, jnp.log(weight) - 0.5 * jnp.sum((z - gap) ** 2))


def modes_data(rng: Any) -> Any:
    return rng.uniform(0, 8) * np.array([1.0, 0.5]), np.exp(rng.uniform(-4, 0))


class Shape(NamedTuple):
    """A log density, its dimension, and data drawn by a generator."""

    log_density: Callable[[Any, Any], Any]
    dim: int
    data: Callable[[Any], Any]


SHAPES = {
    "logistic": Shape(logistic, 5, logistic_data),
    "poisson": Shape(poisson, 3, poisson_data),
    "robust": Shape(robust, 4, robust_data),
    "schools": Shape(schools, 8, schools_data),
    "modes": Shape(modes, 2, modes_data),
}


def target(name: str, i: int) -> sa.Target:
    """Posterior i of a shape."""
    shape = SHAPES[name]
    data = shape.data(np.random.default_rng([list(SHAPES).index(name), i]))
    data = jax.tree.map(lambda x: np.asarray(x, np.float32), data)
    return sa.Target(shape.log_density, dim=shape.dim, data=data)


# -- references ------------------------------------------------------------------------------------


class Known(NamedTuple):
    """Means and sds that are known well, their errors in sds, and how they are known."""

    mean: Any
    sd: Any
    error: Any
    how: str


def reference(one: sa.Target, result: sa.Result, key: int) -> Known:
    """Return the moments of a posterior by weights of a wide Student-t; else by long NUTS."""
    rng = np.random.default_rng([1, key])
    mean, cov = np.asarray(result.q.mean, float), np.asarray(getattr(result.q, "cov", None), float)
    if cov.ndim == 2 and np.all(np.isfinite(cov)):
        tril = WIDER * np.linalg.cholesky(cov)
        x = rng.standard_normal((DRAWS, one.dim)) / np.sqrt(
            rng.chisquare(FREEDOM, (DRAWS, 1)) / FREEDOM
        )
        z = (mean + x @ tril.T).astype(np.float32)
        x = np.linalg.solve(tril, (z - mean).T).T
        log_q = -0.5 * (FREEDOM + one.dim) * np.log1p(np.sum(x**2, 1) / FREEDOM)
        log_w = np.asarray(_densities(one, z), np.float64) - log_q
        w = np.exp(log_w - np.nanmax(log_w))
        w = np.nan_to_num(w) / np.nansum(w)
        if 1 / np.sum(w**2) > MIN_EFFECTIVE and np.max(w) < 1e-3:
            m = w @ z
            away = z - m
            sd = np.sqrt(w @ away**2)
            error = np.sqrt(w**2 @ (away / sd) ** 2)
            of_sd = np.sqrt(w**2 @ ((away / sd) ** 2 - 1) ** 2) / 2
            return Known(m, sd, np.maximum(error, of_sd), "importance weights")
    sampler = nuts_sampler(one, warmup=WARMUP, draws=LONG, chains=CHAINS)
    sampler.run(jax.random.key(key), init_params=jnp.asarray(result.sample(key, CHAINS)["z"]))
    z = np.asarray(sampler.get_samples(group_by_chain=True), np.float64)
    error = 1 / np.sqrt(np.maximum(ess_bulk(z), 1.0))
    return Known(z.mean((0, 1)), z.std((0, 1)), error, "NUTS")


@jax.jit
def _densities(one: sa.Target, z: Any) -> Any:
    return jax.lax.map(one.log_prob, z, batch_size=4000)


def is_wrong(result: sa.Result, known: Known) -> bool:
    """Tell whether a mean or an sd is off by more than the tolerance, beyond what is noise."""
    rows = result.summary()
    mean, sd = (np.array([row[k] for row in rows]) for k in ("mean", "sd"))
    limit = result.tolerance + NOISES * known.error
    off = np.abs(mean - known.mean) > limit * known.sd
    with np.errstate(all="ignore"):
        return bool(np.any(off | (np.abs(sd / known.sd - 1) > limit)))


# -- timings ---------------------------------------------------------------------------------------


def one_by_one(targets: list[sa.Target]) -> float:
    """Seconds a fit of a loop over `sa.fit`, less the first, which compiles."""
    sa.fit(targets[0], key=0, progress=False)
    began = time.perf_counter()
    for i, one in enumerate(targets[1:], 1):
        sa.fit(one, key=i, progress=False)
    return (time.perf_counter() - began) / max(1, len(targets) - 1)


def by_nuts(targets: list[sa.Target]) -> float:
    """Seconds a posterior of NumPyro's NUTS, compiled once for all, the first left out."""
    log_density, dim = targets[0].log_density, targets[0].dim

    def model(data: Any) -> None:
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (dim,)))
        numpyro.factor("density", log_density(z, data))

    sampler = MCMC(
        NUTS(model), num_warmup=500, num_samples=500, num_chains=4, chain_method="vectorized",
        progress_bar=False, jit_model_args=True,
    )  # fmt: skip
    began = 0.0
    for i, one in enumerate(targets):
        sampler.run(jax.random.key(i), one.data)
        jax.block_until_ready(sampler.get_samples()["z"])
        began = began or time.perf_counter()
    return (time.perf_counter() - began) / max(1, len(targets) - 1)


def row(name: str, fits: int, sample: int, seed: int, beside: int) -> dict[str, Any]:
    """Fit all of a shape, and tell how long it took and how right it is."""
    targets = [target(name, i) for i in range(fits)]
    seconds = []
    for _ in range(2 if fits <= beside else 1):
        began, worked = time.perf_counter(), time.process_time()
        found = sa.fit(targets, key=seed, progress=True)
        seconds.append(time.perf_counter() - began)
        cpu = time.process_time() - worked
    left = [i for i in range(fits) if found.verdicts[i] != "failed" and _alone(found, i)]
    told: dict[str, Any] = {
        "shape": name,
        "d": targets[0].dim,
        "fits": fits,
        "seconds a fit": seconds[-1] / fits,
        "processor seconds a fit": cpu / fits,
        "seconds of the first call": seconds[0],
        "good": sum(v == GOOD for v in found.verdicts),
        "fitted by themselves": len(left),
        "failed": len(found.failures),
    }
    some = sorted({*range(min(sample, fits)), *left[: sample // 2]})
    some = [i for i in some if i not in found.failures]
    known = {i: reference(targets[i], found[i], i) for i in some}
    wrong = {i: is_wrong(found[i], known[i]) for i in some}
    told |= {
        "looked at": len(some),
        "reference by NUTS": sum(k.how == "NUTS" for k in known.values()),
        "wrong": sum(wrong.values()),
        "wrong called good": sum(wrong[i] and found.verdicts[i] == GOOD for i in some),
        "right not called good": sum(not wrong[i] and found.verdicts[i] != GOOD for i in some),
    }
    few = targets[: min(beside, fits)]
    told["seconds of sa.fit, one by one"] = one_by_one(few)
    told["seconds of NUTS, 4 x (500 + 500)"] = by_nuts(few)
    return told


def _alone(found: sa.Fits, i: int) -> bool:
    """Tell whether a fit was left over by the batch."""
    part, at = found._find(i)
    return at in part.others


def main(shapes: list[str], fits: int, sample: int, seed: int, beside: int, note: str) -> None:
    """Run, print and store."""
    console = Console(width=160)
    command = f"python -m benchmarks.many --fits {fits} --sample {sample}"
    rows = []
    if RESULT.exists():
        old = pd.read_csv(RESULT)
        rows = [r for r in old.to_dict("records") if r["shape"] not in shapes]
    for name in shapes:
        told = row(name, fits, sample, seed, beside)
        extra = {"seed": seed, "command": f"{command} --shapes {name}", "note": note}
        rows.append({**told, **versions(), **extra})
        console.print(pd.Series(told).to_string())
        pd.DataFrame(rows).round(4).to_csv(RESULT, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", default=["logistic"], choices=list(SHAPES))
    parser.add_argument("--fits", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--beside", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    main(given.shapes, given.fits, given.sample, given.seed, given.beside, given.note)
