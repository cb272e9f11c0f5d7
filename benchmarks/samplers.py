"""Effective draws per gradient of the chains' own moves beside other trajectories and dynamics.

`python -m benchmarks.samplers` fits four posteriors of `bench large`, and then lets 32 chains go on
from where they are, in coordinates in which the fitted q is standard: by the kernel of an automatic
fit; by HMC with lengths spread about four means (the best of these is the most that a rule which
tunes one length, such as ChEES, could find); and by BlackJAX's adjusted microcanonical sampler with
the same lengths, times √d for it moves at unit speed. Step sizes are learnt first, so that 80 % of
the proposals are accepted (90 % of the microcanonical, as its authors advise). It writes
`docs/results/samplers.csv`: the fewest effective draws of any mean and of any sd, for a thousand
gradients.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from blackjax.mcmc import adjusted_mclmc, integrators
from rich.console import Console

import scoreascent as sa
from scoreascent.experiments.large.models import MODELS
from scoreascent.fitting.automatic import ON_THEIR_OWN
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "samplers.csv"
NAMES = ("poisson-glmm", "slopes", "irt-2pl", "logistic-groups")
LENGTHS = (0.75, 1.5, 3.0, 6.0)
CHAINS, LEARNING, STEPS, REPEATS = 32, 150, 200, 4
TURN = 0.6180339887498949


def effective(x: Any) -> tuple[float, float]:
    """Return the fewest independent draws that tell a mean, and an sd, as well as these do.

    Of states (times, chains, d) whose chains are independent, by the spread of their averages.
    """
    x = np.asarray(x, np.float64)
    square = (x - x.mean((0, 1))) ** 2
    worth = lambda y: x.shape[1] * y.var((0, 1)) / y.mean(0).var(0, ddof=1)  # noqa: E731
    return float(np.min(worth(x))), float(np.min(worth(square)))


def by_hmc(kernel: sa.HMC, target: Any, key: Any, z: Any) -> tuple[Any, float]:
    """Return states of chains moved by the kernel, and the gradients of each chain."""
    method = sa.pmcsa(CHAINS, kernel)
    q = sa.FullRank.standard(z.shape[1])

    @functools.partial(jax.jit, static_argnames="n")
    def run(key: Any, eta: Any, n: int) -> Any:
        def step(eta: Any, key: Any) -> Any:
            eta, _ = method.step(key, target, q, eta)
            return eta, eta.z

        return jax.lax.scan(step, eta, jax.random.split(key, n))

    eta = method.init(key, target, q, sa.Places(z))
    eta, _ = run(jax.random.fold_in(key, 1), eta, LEARNING)
    before = int(eta.tuning.gradients)
    eta, states = run(jax.random.fold_in(key, 2), eta, REPEATS * STEPS)
    return states, float(int(eta.tuning.gradients) - before)


def microcanonical(length: float, target: Any, key: Any, z: Any) -> tuple[Any, float]:
    """Return the same by BlackJAX's adjusted microcanonical sampler, lengths spread as ours are."""
    kernel = adjusted_mclmc.build_kernel(integrator=integrators.isokinetic_velocity_verlet)
    goal = length * np.sqrt(z.shape[1])

    @functools.partial(jax.jit, static_argnames=("n", "learns"))
    def run(key: Any, state: Any, log_step: Any, n: int, learns: bool) -> Any:
        def step(carry: Any, t: Any) -> Any:
            state, log_step, gradients = carry
            turn = jnp.mod((t + 1) * TURN, 1.0)
            leaps = jnp.ceil((0.1 + 1.8 * turn) * goal / jnp.exp(log_step)).astype(jnp.int32)
            leaps = jnp.clip(leaps, 1, 64)
            keys = jax.random.split(jax.random.fold_in(key, t), CHAINS)
            one = lambda k, s: kernel(k, s, target.log_prob, jnp.exp(log_step), (leaps,))  # noqa: E731
            state, info = jax.vmap(one)(keys, state)
            rate = jnp.mean(info.acceptance_rate)
            if learns:
                log_step = log_step + (t + 1.0) ** -0.6 * (rate - 0.9)
            return (state, log_step, gradients + leaps), state.position

        start = (state, log_step, jnp.int32(0))
        (state, log_step, gradients), states = jax.lax.scan(step, start, jnp.arange(n))
        return state, log_step, gradients, states

    state = jax.vmap(lambda z: adjusted_mclmc.init(z, target.log_prob))(z)
    first = jnp.log(jnp.asarray(0.2 * np.sqrt(z.shape[1]), z.dtype))
    state, log_step, _, _ = run(key, state, first, LEARNING, True)
    again = jax.random.fold_in(key, 1)
    _, _, gradients, states = run(again, state, log_step, REPEATS * STEPS, False)
    return states, float(gradients)


def measure(name: str) -> list[dict[str, Any]]:
    """Run every sampler on one model, from the states that its fit has left."""
    model = MODELS[name].target()
    result = sa.fit(model, key=0, progress=False)
    q: Any = result.q
    white = sa.Target(lambda x, model: model.log_prob(q.transport(x)), dim=model.dim, data=model)
    states = np.asarray(result.states[-1])
    tril, away = np.asarray(q.tril, np.float64), states - np.asarray(q.mean)
    x = jnp.asarray(np.linalg.solve(tril, away.T).T.astype(states.dtype))
    key = jax.random.key(1)
    ways: dict[str, Any] = {"lengths 0.6 to 3": lambda: by_hmc(ON_THEIR_OWN, white, key, x)}
    for mean in LENGTHS:
        spread = sa.HMC(length=(0.1 * mean, 1.9 * mean), acceptance=0.8, max_steps=64)
        ways[f"HMC, mean length {mean}"] = functools.partial(by_hmc, spread, white, key, x)
    for mean in LENGTHS:
        ways[f"microcanonical, {mean} √d"] = functools.partial(microcanonical, mean, white, key, x)
    rows = []
    for way, go in ways.items():
        z, gradients = go()
        worth = np.array(effective(z)) * 1000 / (CHAINS * gradients)
        about = {"model": name, "dim": model.dim, "sampler": way}
        rows.append({**about, "mean_per_1000": worth[0], "sd_per_1000": worth[1],
                     "gradients_a_step": gradients / (REPEATS * STEPS)})  # fmt: skip
    return rows


def main() -> None:
    """Measure every model, show the table, write it."""
    console = Console(width=120)
    rows = []
    for name in NAMES:
        rows += measure(name)
        console.print(pd.DataFrame(rows[-9:]).to_string(index=False, float_format="%.3g"))
        jax.clear_caches()
    about = "; ".join(f"{k} {v}" for k, v in versions().items())
    about += f"; blackjax {blackjax.__version__}"
    text = pd.DataFrame(rows).to_csv(index=False, float_format="%.4g")
    RESULT.write_text(f"# python -m benchmarks.samplers; {about}\n{text}")


if __name__ == "__main__":
    main()
