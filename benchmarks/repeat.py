"""Does a compiled cell of a table give the same bits twice? For machines that one has doubts about.

    python -m benchmarks.repeat table-bnn gas msc_rb --steps 50000

runs the cell as `scoreascent reproduce` would, in chunks, and repeats from the same state every
tenth chunk and each one in which an update was skipped because the new q was not finite.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import scoreascent as sa
from scoreascent import datasets
from scoreascent._structs import x64
from scoreascent.experiments import table_bnn, table_gp
from scoreascent.experiments.methods import METHODS
from scoreascent.loop import run_chunk
from scoreascent.target import stack
from scoreascent.update import gradient

TABLES = {t.name: t for t in (table_bnn.TABLE, table_gp.TABLE)}


def compare(setup: tuple[Any, ...], state: Any, steps: int, chunk: int) -> None:
    repeated = differ = events = 0
    jax.block_until_ready(run_chunk(*setup, state, jnp.int32(0)))  # compiles
    clock = time.perf_counter()
    for i in range(steps // chunk):
        new, trace, _ = run_chunk(*setup, state, jnp.int32(chunk))
        skipped = np.asarray(trace.skipped)[:chunk]
        if i % 10 == 0 or skipped.any():
            again, second, _ = run_chunk(*setup, state, jnp.int32(chunk))
            repeated += 1
            same = jax.tree.map(np.array_equal, (new.q, trace), (again.q, second))
            differ += not all(jax.tree.leaves(same))
        for step in np.flatnonzero(skipped.any(1)):
            events += 1
            loss, other = np.asarray(trace.loss)[step], np.asarray(second.loss)[step]
            print(
                f"iteration {i * chunk + step + 1}: skipped by {skipped[step].sum()} splits, when "
                f"repeated by {np.asarray(second.skipped)[step].sum()}; the loss is the same on "
                f"{np.sum(loss == other)} of {loss.size} splits"
            )
        state = new
    each = (time.perf_counter() - clock) / max(1, steps + repeated * chunk) * 1e6
    print(f"{steps} iterations, {each:.0f} µs each: {events} with skipped updates")
    print(f"{differ} of {repeated} repeated chunks differ in some bit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("dataset")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--chunk", type=int, default=1000)
    asked = parser.parse_args()
    table, n = TABLES[asked.table], 10
    with x64() if table.dtype is np.float64 else nullcontext():
        data = datasets.load(asked.dataset)
        splits = [jax.tree.map(table.dtype, data.split(seed)) for seed in range(asked.splits)]
        problem = table.problem(splits, asked.method)
        method, optimizer = METHODS[asked.method].make(n), optax.adam(table.settings.step_size)
        key = jax.random.fold_in(jax.random.key(table.settings.seed), 0)
        begun = sa.fit(problem.targets, method, q0=problem.q0, optimizer=optimizer, key=key,
                       progress=False, steps=0)  # fmt: skip
        setup = (stack(problem.targets), method, gradient(optimizer), "data")
        compare(setup, begun.state, asked.steps, asked.chunk)


if __name__ == "__main__":
    main()
