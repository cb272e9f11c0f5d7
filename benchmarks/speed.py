"""Time per iteration on an airfoil-sized BNN, as ratios in one run. `make bench` prints the table.

The model is that of the paper: 1352 rows, 5 features and a bias, 50 hidden units, 353 unknowns;
the data are simulated. Every contender runs its whole loop compiled; timings alternate between
contenders, and the median over rounds is reported, so that a busy machine hurts all alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro import distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from rich.console import Console
from rich.table import Table

import scoreascent as sa
from scoreascent._random import as_key
from scoreascent.fitting.provenance import versions
from scoreascent.loop import first_state, run_chunk
from scoreascent.models.bnn import BNN
from scoreascent.update import DEFAULT

ROWS, N = 1352, 10
bnn = BNN(inputs=5)
DIM = bnn.dim


def simulate() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, bnn.inputs))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=ROWS)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def density_alone(data: Any) -> Callable[[int], None]:
    """The vmapped log density at N points, nothing else; the points move so that nothing hoists."""

    @jax.jit
    def run(z: Any, data: Any, n: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            z, total = carry
            log_p = jax.vmap(lambda z: bnn(z, data))(z)
            return z + 1e-20 * log_p[:, None], total + log_p

        return jax.lax.fori_loop(0, n, body, (z, jnp.zeros(N)))

    z = 0.1 * jax.random.normal(jax.random.key(0), (N, DIM))
    return lambda n: jax.block_until_ready(run(z, data, n))


def ours(data: Any, method: Any) -> Callable[[int], None]:
    target = sa.Target(bnn, dim=DIM, data=data)
    q = sa.MeanField.from_moments(0.1 * np.ones(DIM, np.float32), 1.1 * np.ones(DIM, np.float32))
    setup = (target, method, DEFAULT, "nothing")
    state = first_state(*setup, False, q, as_key(0), jnp.int32(0))
    return lambda n: jax.block_until_ready(run_chunk(*setup, state, jnp.int32(n)))


def ours_fit(data: Any, progress: bool) -> Callable[[int], Any]:
    """The whole of `fit`, with its chunks, trace and progress bar."""
    target = sa.Target(bnn, dim=DIM, data=data)
    method = sa.pmcsa(N)
    return lambda n: sa.fit(target, method, steps=n, progress=progress)


def numpyro_svi(data: Any) -> Callable[[int], None]:
    def model(data: Any) -> None:
        z = numpyro.sample("z", dist.ImproperUniform(constraints.real_vector, (), (DIM,)))
        numpyro.factor("log_p", bnn(z, data))

    loss = Trace_ELBO(num_particles=N, vectorize_particles=True)
    svi = SVI(model, AutoNormal(model, init_scale=1.1), optax.adam(0.01), loss)
    state = svi.init(jax.random.key(0), data)

    @jax.jit
    def run(state: Any, data: Any, n: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, s: svi.update(s, data)[0], state)

    return lambda n: jax.block_until_ready(run(state, data, n))


def blackjax_vi(data: Any) -> Callable[[int], None]:
    import blackjax

    algorithm = blackjax.meanfield_vi(partial(bnn, data=data), optax.adam(0.01), N)
    state = algorithm.init(jnp.zeros(DIM))
    key = jax.random.key(0)

    @jax.jit
    def run(state: Any, n: Any) -> Any:
        def body(i: Any, s: Any) -> Any:
            return algorithm.step(jax.random.fold_in(key, i), s)[0]

        return jax.lax.fori_loop(0, n, body, state)

    return lambda n: jax.block_until_ready(run(state, n))


def measure(runs: dict[str, Callable[[int], Any]], n: int, rounds: int) -> dict[str, float]:
    """Median seconds per iteration of each, the contenders taking turns."""
    for run in runs.values():
        run(2)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            clock = time.perf_counter()
            run(n)
            times[name].append((time.perf_counter() - clock) / n)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()
    data = simulate()
    runs = {
        "log density alone, vmapped": density_alone(data),
        "scoreascent pmcsa": ours(data, sa.pmcsa(N)),
        "scoreascent pmcsa, Rao–Blackwellised": ours(data, sa.pmcsa(N, rao_blackwell=True)),
        "scoreascent jsa": ours(data, sa.jsa(N)),
        "scoreascent msc": ours(data, sa.msc(N)),
        "scoreascent msc_rb": ours(data, sa.msc_rb(N)),
        "scoreascent elbo": ours(data, sa.elbo(N)),
        "NumPyro SVI, AutoNormal": numpyro_svi(data),
        "BlackJAX mean-field VI": blackjax_vi(data),
    }
    times = measure(runs, args.iterations, args.rounds)
    whole = measure(
        {"fit, progress off": ours_fit(data, False), "fit, progress on": ours_fit(data, True)},
        4 * args.iterations,
        args.rounds,
    )
    report(times, whole, args.json)


def report(times: dict[str, float], whole: dict[str, float], as_json: bool) -> None:
    base = times["log density alone, vmapped"]
    pmcsa = times["scoreascent pmcsa"]
    if as_json:
        ratios = {name: t / base for name, t in times.items()}
        print(json.dumps({"microseconds": {k: 1e6 * t for k, t in (times | whole).items()},
                          "over_density": ratios, "versions": versions()}))  # fmt: skip
        return
    table = Table(title=f"{bnn!r}, {ROWS} rows, N = {N}: one iteration")
    for column in ("", "µs", "over the density alone", "over pmcsa"):
        table.add_column(column, justify="right" if column else "left")
    for name, t in times.items():
        table.add_row(name, f"{1e6 * t:.0f}", f"{t / base:.2f}", f"{t / pmcsa:.2f}")
    console = Console()
    console.print(table)
    off, on = whole["fit, progress off"], whole["fit, progress on"]
    console.print(
        f"fit as a whole: {1e6 * off:.0f} µs an iteration; progress bar {on / off - 1:+.1%}"
    )


if __name__ == "__main__":
    main()
