"""How often the error bars of `log_evidence` hold the truth, and whether rivals come in order.

`python -m benchmarks.evidence [--seeds 100] [--cases regression bimodal] [--rivals no]`
fits densities whose evidence is known, with a hundred seeds each, and counts how often the interval
of 90 % holds it: conjugate linear regressions (new data with each seed), two and five modes, tails
of a Student-t with 5 degrees of freedom in 60 dimensions (a bridge, from chains that move by
themselves), and Neal's funnel (three seeds, for it takes long). `five-modes, given` is told where
the modes are. `wrong` are intervals that miss by more than five errors, which would be no matter of
chance; `spread` is the standard deviation of the differences in errors, which should be one. Then
three regressions on the diabetes data, held against long runs of BlackJAX's tempered SMC, and
against quadrature over the noise where it alone has no closed form.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from rich.console import Console
from scipy.special import logsumexp
from sklearn import datasets

import scoreascent as sa
from scoreascent.experiments.accuracy import shapes
from scoreascent.experiments.accuracy.models import MODELS
from scoreascent.experiments.accuracy.peers.smc import runner
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "evidence.csv"
LEVEL, FAR = 0.9, 5.0  # of the intervals; errors beyond which a miss is no chance
FEW = 3  # seeds of what takes long
FULL_TURN = math.log(2 * math.pi)
RUNS, PARTICLES, MOVES = 2, 1000, 50  # of SMC


# -- what is known ---------------------------------------------------------------------------------


def regression(seed: int, rows: int = 40, dim: int = 5) -> tuple[sa.Target, float]:
    """Unit noise and a standard normal prior."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, dim))
    y = X @ rng.normal(size=dim) + rng.normal(size=rows)
    cov = np.eye(rows) + X @ X.T
    exact = -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(2 * np.pi * cov)[1])
    return sa.Target(_regression, dim=dim, data=(np.float32(X), np.float32(y))), float(exact)


def _regression(z: Any, data: Any) -> Any:
    X, y = data
    norm = -0.5 * (len(y) + len(z)) * FULL_TURN
    return norm - 0.5 * (jnp.sum((y - X @ z) ** 2) + jnp.sum(z**2))


def of_suite(name: str, log_z: float) -> Callable[[int], tuple[sa.Target, float]]:
    target = MODELS[name].target()
    return lambda seed: (target, log_z)


def tails(dim: int = 60, df: float = 5.0) -> Callable[[int], tuple[sa.Target, float]]:
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    target = sa.Target(lambda z: jnp.sum(norm - (df + 1) / 2 * jnp.log1p(z**2 / df)), dim=dim)
    return lambda seed: (target, 0.0)


CASES: dict[str, Callable[[int], tuple[sa.Target, float]]] = {
    "regression": regression,
    "bimodal": of_suite("bimodal", 2.5 * FULL_TURN),
    "five-modes": of_suite("five-modes", 5 * FULL_TURN),
    "five-modes, given": of_suite("five-modes", 5 * FULL_TURN),
    "tails": tails(),
    "funnel": of_suite("funnel", 5 * FULL_TURN + math.log(3)),
}
LONG = ("funnel",)


def start(name: str, target: sa.Target) -> Any:
    """Searches that begin at the modes, if the case says so."""
    if not name.endswith(", given"):
        return None
    centres = [x.astype(np.float32) for x in shapes.five_modes().centres]
    return sa.laplace(target, searches=len(centres), initial=centres)


def covered(name: str, seeds: int) -> dict[str, Any]:
    """Count how often the interval holds the truth."""
    off, errors, hows, refusals, inside = [], [], set(), [], 0
    for seed in range(min(seeds, FEW) if name in LONG else seeds):
        target, exact = CASES[name](seed)
        result = sa.fit(target, q0=start(name, target), key=seed, progress=False)
        try:
            found = result.log_evidence(seed)
        except ValueError as error:
            refusals.append(str(error).splitlines()[0])
            continue
        low, high = found.interval(LEVEL)
        inside += low <= exact <= high
        off.append((found.value - exact) / found.error)
        errors.append(found.error)
        hows.add(found.how)
    jax.clear_caches()
    return {
        "case": name,
        "seeds": len(off) + len(refusals),
        "refused": len(refusals),
        "inside": inside,
        "wrong": int(np.sum(np.abs(off) > FAR)),
        "spread": np.std(off) if off else np.nan,
        "error": np.median(errors) if errors else np.nan,
        "says": "; ".join((*sorted(hows), *dict.fromkeys(refusals))),
    }


# -- rivals ----------------------------------------------------------------------------------------


def prior_sd(X: Any) -> Any:
    return np.where(np.arange(X.shape[1]) < 10, 0.5, 0.2).astype(np.float32)


def by_quadrature(X: Any, y: Any, heavy: bool) -> float:
    """Given σ, y is Gaussian; NaN if the noise is not normal."""
    if heavy:
        return np.nan
    X, y = X.astype(float), y.astype(float)
    values, vectors = np.linalg.eigh((X * prior_sd(X) ** 2) @ X.T)
    square, sigma = (vectors.T @ y) ** 2, np.linspace(0.4, 1.4, 2001)
    v = np.maximum(values, 0) + sigma[:, None] ** 2
    log_p = -0.5 * np.sum(square / v + np.log(2 * np.pi * v), 1)
    log_p += math.log(2) - 0.5 * FULL_TURN - 0.5 * sigma**2
    return float(logsumexp(log_p) + np.log(sigma[1] - sigma[0]))


def diabetes(X: Any, y: Any, heavy: bool) -> None:
    """The disease a year later by ten numbers, or by these and the products of sex with each."""
    beta = numpyro.sample("beta", dist.Normal(0, prior_sd(X)).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    noise = dist.StudentT(5.0, X @ beta, sigma) if heavy else dist.Normal(X @ beta, sigma)
    numpyro.sample("y", noise, obs=y)


def rivals(console: Console) -> list[dict[str, Any]]:
    """The evidence of three regressions, by fits and by SMC."""
    X, y = datasets.load_diabetes(return_X_y=True)
    X, y = X / X.std(0), ((y - y.mean()) / y.std()).astype(np.float32)
    more = np.hstack([X, X[:, [1]] * np.delete(X, 1, axis=1)]).astype(np.float32)
    X = X.astype(np.float32)
    models = {"plain": (X, y, False), "interactions": (more, y, False), "Student-t": (X, y, True)}
    targets = {n: sa.from_numpyro(diabetes, *data) for n, data in models.items()}
    table = sa.compare({n: sa.fit(t, progress=False) for n, t in targets.items()})
    console.print(str(table))
    rows = []
    for row in table.rows:
        run = runner(targets[row.name], PARTICLES, MOVES)
        by_smc = [run(jax.random.key(seed)).log_evidence for seed in range(RUNS)]
        assert row.evidence is not None
        rows.append(
            {
                "case": f"diabetes, {row.name}",
                "exact": by_quadrature(*models[row.name]),
                "value": row.evidence.value,
                "error": row.evidence.error,
                "smc": np.mean(by_smc),
                "smc_error": np.std(by_smc, ddof=1) / np.sqrt(RUNS),
                "says": row.evidence.how,
            }
        )
        console.print(*(f"{x:.4g}" if isinstance(x, float) else x for x in rows[-1].values()))
    return rows


def main() -> None:
    """Measure, show the rows as they come, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rivals", default="yes", choices=["yes", "no"])
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    console = Console(width=150)
    rows: list[dict[str, Any]] = []
    warnings.simplefilter("ignore", RuntimeWarning)  # of fits that did not converge
    made = "; ".join(f"{k} {v}" for k, v in versions().items())
    head = f"# python -m benchmarks.evidence; {made}; seeds 0 to {given.seeds - 1}\n"

    def keep() -> None:
        text = pd.DataFrame(rows).to_csv(index=False, float_format="%.5g")
        given.out.write_text(head + text)

    for name in given.cases:
        rows.append(covered(name, given.seeds))
        console.print(*(f"{x:.3g}" if isinstance(x, float) else x for x in rows[-1].values()))
        keep()
    if given.rivals == "yes":
        rows += rivals(console)
        keep()


if __name__ == "__main__":
    main()
