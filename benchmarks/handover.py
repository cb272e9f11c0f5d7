"""Gradients that NUTS takes after a fit, beside those with a warm-up of its own.

`python -m benchmarks.handover [--models ar2 logistic …] [--seed 0]`
runs NumPyro's NUTS, four chains of 500 draws on the density of each model as it is written, three
times: with its own warm-up of 1000 iterations (NumPyro's habit) and of 300, and with the places and
the metric of a fit (`result.to_nuts()`) and 50 iterations for the step size. What is compared is
the number of leapfrog steps, each a gradient, of the warm-up and of as many draws as have 400
effective ones (of the coordinate known worst, ArviZ's bulk ESS). The fit's own gradients are in a
column beside them, and whether the two runs agree: the largest difference of a mean, in sds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpyro.infer import MCMC
from rich.console import Console

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.experiments.accuracy.models import entry
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "handover.csv"
MODELS = [
    "logistic",
    "regression-raw",
    "regression-collinear",
    "negative-binomial",
    "eight-schools",
    "varying-means",
    "varying-slopes",
    "ar2",
]
CHAINS, DRAWS, ENOUGH = 4, 500, 400
OWN, SHORT, OURS = 1000, 300, 50


def count(sampler: MCMC, key: Any, init: Any) -> dict[str, float]:
    """Warm up, draw, and count."""
    fields = ("num_steps", "diverging")
    key_warm, key_draw = jax.random.split(key)
    sampler.warmup(key_warm, init_params=init, extra_fields=fields, collect_warmup=True)
    warmup = int(np.sum(sampler.get_extra_fields()["num_steps"]))
    sampler.run(key_draw, init_params=init, extra_fields=fields)
    extra = sampler.get_extra_fields()
    draws = np.asarray(sampler.get_samples(group_by_chain=True), np.float64)
    steps, ess = int(np.sum(extra["num_steps"])), float(np.min(ess_bulk(draws)))
    return {
        "warm-up gradients": warmup,
        "gradients a draw": steps / (CHAINS * DRAWS),
        "min ESS of 2000": ess,
        "max R-hat": float(np.max(rhat(draws))),
        "divergences": int(np.sum(extra["diverging"])),
        f"gradients for {ENOUGH}": warmup + steps * ENOUGH / ess,
        "draws": draws,  # type: ignore[dict-item]
    }


def rows(name: str, seed: int) -> list[dict[str, Any]]:
    """Fit a model, hand it over, and run NUTS three times."""
    result = sa.fit(entry(name).target(), key=seed, progress=False)
    assert result.evaluations is not None
    assert result.diagnosis is not None
    handed = result.to_nuts(seed, CHAINS)
    key = jax.random.key(seed)
    box = jax.random.uniform(key, (CHAINS, handed.target.dim), minval=-2, maxval=2)
    found: list[dict[str, Any]] = []
    for what, warmup, init in (
        ("own warm-up", OWN, box), ("shorter", SHORT, box), ("handed over", OURS, handed.z)
    ):  # fmt: skip
        options: dict[str, Any] = {}
        if what == "handed over":
            kernel, _ = handed.numpyro(model=False)
            options = {k: v for k, v in kernel.items() if k != "potential_fn"}
        sampler = nuts_sampler(handed.target, warmup=warmup, draws=DRAWS, chains=CHAINS, **options)
        row = {"model": name, "d": handed.target.dim, "warm-up": what, "iterations": warmup}
        found.append(row | count(sampler, key, init))
        found[-1]["fit's gradients"] = result.evaluations[1] if what == "handed over" else 0
        found[-1]["verdict"] = result.diagnosis.verdict if what == "handed over" else ""
    draws = [row.pop("draws").reshape(-1, handed.target.dim) for row in found]
    for row, z in zip(found, draws):
        off = np.abs(z.mean(0) - draws[0].mean(0)) / draws[0].std(0)
        row["largest difference of a mean"] = float(np.max(off))
    return found


def main(models: list[str], seed: int, path: Path | None) -> pd.DataFrame:
    """Run, print and store."""
    console = Console(width=200)
    table = []
    for name in models:
        table += rows(name, seed)
        console.print(
            pd.DataFrame(table[-3:]).round(3).to_string(index=False, header=name == models[0])
        )
        frame = pd.DataFrame(table)
        if path is not None:
            frame.assign(**versions()).round(4).to_csv(path, index=False)
    column = f"gradients for {ENOUGH}"
    by = frame.pivot(index="model", columns="warm-up", values=column)
    for what in ("own warm-up", "shorter"):
        ratio = (by[what] / by["handed over"]).to_numpy()
        console.print(f"{what}: {np.median(ratio):.1f} times as many gradients in the median, "
                      f"{ratio.min():.1f} to {ratio.max():.1f}")  # fmt: skip
    return frame


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.models, arguments.seed, RESULT if arguments.models == MODELS else None)
