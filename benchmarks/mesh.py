"""What a mesh of one device costs an iteration, as a ratio in one run; at most 3 % is allowed.

    python -m benchmarks.mesh

Both loops are compiled whole; timings alternate between them, and the median of the rounds' ratios
is reported, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

import scoreascent as sa
from scoreascent._layout import Layout
from scoreascent._random import as_key
from scoreascent.fitting.devices import put
from scoreascent.loop import first_state, run_chunk

ALLOWED = 1.03
METHODS = {"proposals": sa.pmcsa(64), "gradients": sa.pmcsa(64, sa.HMC())}


def log_density(z: Any, data: Any) -> Any:
    logits = data[0] @ z
    return jnp.sum(data[1] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2)


def target(rows: int, dim: int) -> sa.Target:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, dim)).astype(np.float32)
    y = (x.sum(1) + 2 * rng.normal(size=rows) > 0).astype(np.float32)
    return sa.Target(log_density, dim=dim, data=(x, y), rows=True)


def ratio(method: Any, rows: int, dim: int, steps: int, rounds: int) -> tuple[float, float]:
    """The median ratio, mesh over none, and seconds an iteration without."""
    mesh = Layout(Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("chains", "rows")))
    q, moments, calls = sa.FullRank.standard(dim), sa.moment_matching(), []
    for layout in (None, mesh):
        setup = (put(target(rows, dim), layout), method, moments, "nothing")
        state = first_state(*setup, False, q, as_key(0), np.int32(0), layout=layout)

        def call(setup: Any = setup, state: Any = state, layout: Any = layout) -> float:
            clock = time.perf_counter()
            jax.block_until_ready(run_chunk(*setup, state, np.int32(steps), layout=layout))
            return time.perf_counter() - clock

        call()  # compiles
        calls.append(call)
    pairs = []
    for i in range(rounds):
        first = i % 2  # who goes first alternates too
        times = [0.0, 0.0]
        for at in (first, 1 - first):
            times[at] = calls[at]()
        pairs.append(times)
    plain = statistics.median(a for a, _ in pairs) / steps
    return statistics.median(b / a for a, b in pairs), plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    shown = Table("64 chains of", "mesh / none", "µs an iteration", "allowed")
    for name, method in METHODS.items():
        found, each = ratio(method, args.rows, args.dim, args.steps, args.rounds)
        shown.add_row(name, f"{found:.3f}", f"{1e6 * each:.0f}", f"{ALLOWED}")
    Console().print(shown)


if __name__ == "__main__":
    main()
