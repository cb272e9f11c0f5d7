"""Hierarchies written centred and left to the fit, beside the same written non-centred by hand.

`python -m benchmarks.centring [--seeds 3] [--models schools ages] [--fronts PyMC]`
fits four models through NumPyro and through PyMC: centred eight schools and two regressions whose
groups say little of their own effects, and one whose groups say nearly all. Each is fitted written
centred with `centring="auto"`, written non-centred, and (NumPyro alone, one seed, for it takes
long) centred as written. Errors are those of the numbers that the result shows, in the model's own
space, against four NUTS chains of the non-centred model with 10 000 draws each; gradients are all
of the fit's, and seconds those of the clock, compiling included for the first seed of each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
from rich.console import Console
from sklearn import datasets

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.experiments.accuracy import own
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "centring.csv"
CENTRED, BY_HAND, AS_WRITTEN = "centred, auto", "non-centred by hand", "centred, as written"
FRONTS = ["NumPyro", "PyMC"]
DRAWS, WARMUP = 10_000, 2000


class Words(NamedTuple):
    """What a model is said in, so that each is said once."""

    normal: Callable[..., Any]
    positive: Callable[..., Any]  # half-normal
    effects: Callable[..., Any]  # a name, loc, scale, how many, and degrees of freedom
    observe: Callable[..., Any]


def in_numpyro(by_hand: bool) -> Words:
    def effects(name: str, loc: Any, scale: Any, n: int, df: float | None = None) -> Any:
        where = (0.0, 1.0) if by_hand else (loc, scale)
        kind = dist.Normal(*where) if df is None else dist.StudentT(df, *where)
        x = numpyro.sample(f"{name}_raw" if by_hand else name, kind.expand([n]).to_event(1))
        return numpyro.deterministic(name, loc + scale * x) if by_hand else x

    return Words(
        lambda name, sd: numpyro.sample(name, dist.Normal(0, sd)),
        lambda name, sd: numpyro.sample(name, dist.HalfNormal(sd)),
        effects,
        lambda y, mean, sd: numpyro.sample("y", dist.Normal(mean, sd), obs=y),
    )


def in_pymc(by_hand: bool) -> Words:
    def effects(name: str, loc: Any, scale: Any, n: int, df: float | None = None) -> Any:
        where = {} if by_hand else {"mu": loc, "sigma": scale}
        own_name = f"{name}_raw" if by_hand else name
        if df is None:
            x = pm.Normal(own_name, shape=n, **where)
        else:
            x = pm.StudentT(own_name, df, shape=n, **{"mu": 0.0, "sigma": 1.0, **where})
        return pm.Deterministic(name, loc + scale * x) if by_hand else x

    return Words(
        lambda name, sd: pm.Normal(name, 0, sd),
        pm.HalfNormal,
        effects,
        lambda y, mean, sd: pm.Normal("y", mean, sd, observed=y),
    )


def standard(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def schools(say: Words) -> None:
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    s = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    theta = say.effects("theta", say.normal("mu", 5), say.positive("tau", 10), 8)
    say.observe(y, theta, s)


def ages(say: Words) -> None:
    """Diabetes a year later by blood pressure and weight: an intercept for each of 58 ages."""
    raw = datasets.load_diabetes(scaled=False)
    bmi, bp, y = standard(raw.data[:, 2]), standard(raw.data[:, 3]), standard(raw.target)
    years, group = np.unique(raw.data[:, 0], return_inverse=True)
    alpha = say.effects("alpha", say.normal("mu", 1), say.positive("tau", 1), len(years))
    mean = alpha[group] + say.normal("weight", 1) * bmi + say.normal("pressure", 1) * bp
    say.observe(y, mean, say.positive("sigma", 1))


def bands(say: Words) -> None:
    """The same by weight: a line for every five years and sex, slopes Student-t around one."""
    raw = datasets.load_diabetes(scaled=False)
    bmi, y = standard(raw.data[:, 2]), standard(raw.target)
    band = np.stack([raw.data[:, 0] // 5, raw.data[:, 1]])
    kinds, group = np.unique(band, axis=1, return_inverse=True)
    n, group = kinds.shape[1], np.ravel(group)
    alpha = say.effects("alpha", say.normal("mu", 1), say.positive("tau", 1), n)
    slope = say.effects("slope", say.normal("weight", 1), say.positive("spread", 1), n, df=4.0)
    say.observe(y, alpha[group] + slope[group] * bmi, say.positive("sigma", 1))


def digits(say: Words) -> None:
    """How much ink each of ten digits takes, of 1797 written ones: groups of 174 and more."""
    raw = datasets.load_digits()
    alpha = say.effects("alpha", say.normal("mu", 1), say.positive("tau", 1), 10)
    say.observe(standard(raw.data.mean(1)), alpha[raw.target], say.positive("sigma", 1))


MODELS = {"schools": schools, "ages": ages, "bands": bands, "digits": digits}


def target_of(model: Callable[[Words], None], front: str, written: str) -> sa.Target:
    by_hand = written == BY_HAND
    centring = "as written" if written == AS_WRITTEN else "auto"
    if front == "NumPyro":
        return sa.from_numpyro(lambda: model(in_numpyro(by_hand)), centring=centring)
    with pm.Model() as made:
        model(in_pymc(by_hand))
    return sa.from_pymc(made, centring=centring)


def reference(model: Callable[[Words], None]) -> dict[str, tuple[float, float]]:
    """The mean and sd of every scalar, by NUTS."""
    target = target_of(model, "NumPyro", BY_HAND)
    sampler = nuts_sampler(target, warmup=WARMUP, draws=DRAWS, target_accept_prob=0.95)
    sampler.run(jax.random.key(1), init_params=np.zeros((4, target.dim), np.float32))
    found = own.of_draws(target, sampler.get_samples())
    return {name: (row[0], row[1]) for name, row in zip(found.names, found.numbers)}


def measure(target: sa.Target, seed: int, truth: dict[str, tuple[float, float]]) -> dict[str, Any]:
    clock = time.perf_counter()
    result = sa.fit(target, key=seed, progress=False)
    took = time.perf_counter() - clock
    assert result.diagnosis is not None
    assert result.evaluations is not None
    rows = [row for row in result.summary() if not row["name"].split("[")[0].endswith("_raw")]
    mean, sd = np.array([truth[row["name"]] for row in rows]).T
    off = np.abs([row["mean"] for row in rows] - mean) / sd
    spread = np.abs(np.log([row["sd"] for row in rows] / sd))
    c = np.asarray(result.target.data[-1]) if result.target.data else np.array([])
    return {
        "seed": seed,
        "verdict": result.diagnosis.verdict,
        "worst_mean": np.max(off),
        "worst_log_sd": np.max(spread),
        "gradients": result.evaluations[1],
        "seconds": took,
        "centredness": f"{c.min():.2g} to {c.max():.2g}" if c.size else "",
    }


def main() -> None:
    """Measure every model, show the rows as they come, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--fronts", nargs="+", default=FRONTS, choices=FRONTS)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    console = Console(width=150)
    rows = []
    ways = [("NumPyro", CENTRED), ("NumPyro", BY_HAND), ("NumPyro", AS_WRITTEN),
            ("PyMC", CENTRED), ("PyMC", BY_HAND)]  # fmt: skip
    for name in given.models:
        truth = reference(MODELS[name])
        for front, written in (way for way in ways if way[0] in given.fronts):
            target = target_of(MODELS[name], front, written)
            for seed in range(1 if written == AS_WRITTEN else given.seeds):
                about = {"model": name, "dim": target.dim, "front": front, "written": written}
                rows.append({**about, **measure(target, seed, truth)})
                console.print(
                    *(f"{x:.3g}" if isinstance(x, float) else x for x in rows[-1].values())
                )
            jax.clear_caches()
    made = "; ".join(f"{k} {v}" for k, v in versions().items())
    made += f"; pymc {pm.__version__}; seeds 0 to {given.seeds - 1}"
    text = pd.DataFrame(rows).to_csv(index=False, float_format="%.4g")
    given.out.write_text(f"# python -m benchmarks.centring; {made}\n{text}")


if __name__ == "__main__":
    main()
