"""What the looks along a run of the tables cost, as a share of the run between them.

Two splits of the diabetes data, so that nothing but scikit-learn is needed; `make bench` runs it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import scoreascent as sa
from scoreascent import datasets
from scoreascent._structs import x64
from scoreascent.experiments.table_bnn import TABLE as BNN
from scoreascent.experiments.table_gp import TABLE as GP


def seconds(call: Any, rounds: int = 5) -> float:
    """The median time of a call, after one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        clock = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - clock)
    return float(np.median(times))


def shares(table: Any, iterations: int) -> dict[str, float]:
    """A look's time over that of the iterations between two looks, for each method."""
    found = {}
    data = datasets.load("diabetes")
    splits = [jax.tree.map(table.dtype, data.split(seed)) for seed in range(2)]
    stacked: Any = jax.tree.map(lambda *xs: np.stack(xs), *splits)
    for name, method in (("pmcsa", sa.pmcsa(10)), ("elbo", sa.elbo(1))):
        problem = table.problem(splits, name)
        score = jax.jit(jax.vmap(problem.score))
        q = jax.vmap(problem.q0)(jax.random.split(jax.random.key(0), 2))
        clocks: list[float] = []
        fit = sa.fit(
            problem.targets, method, q0=problem.q0, steps=iterations, progress=False,
            callback=lambda *_, c=clocks: c.append(time.perf_counter()), callback_every=iterations,
        )  # fmt: skip
        assert fit.status[0] == "max_steps"
        run = (clocks[-1] - clocks[0]) * table.settings.every / iterations
        found[name] = seconds(lambda score=score, q=q: score(q, stacked)) / run
    return found


def main() -> None:
    """Print the table."""
    shown = Table("table", "method", "one look over the iterations between two", title="looks")
    for table, iterations in ((BNN, 1000), (GP, 50)):
        with x64() if table.dtype is np.float64 else nullcontext():
            for method, share in shares(table, iterations).items():
                shown.add_row(table.name, method, f"{share:.2%}")
    Console().print(shown)


if __name__ == "__main__":
    main()
