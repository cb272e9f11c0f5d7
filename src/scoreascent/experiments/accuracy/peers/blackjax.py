"""BlackJAX: its variational methods and its pathfinder."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import scoreascent as sa
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.peers import base
from scoreascent.experiments.accuracy.peers.base import Begin, Peer, Read, Seeded


def _vi(name: str) -> Begin:
    def begin(entry: Entry, target: sa.Target) -> Seeded:
        module = importlib.import_module(f"blackjax.vi.{name}")
        optimizer = optax.adam(base.RATE)

        @jax.jit
        def run(key: Any, target: sa.Target) -> Any:
            def step(state: Any, key: Any) -> tuple[Any, None]:
                return module.step(key, state, target.log_prob, optimizer)[0], None

            first = module.init(jnp.zeros(target.dim), optimizer)
            return jax.lax.scan(step, first, jax.random.split(key, base.STEPS))[0]

        def root(state: Any) -> Any:
            if name == "meanfield_vi":
                return jnp.diag(jnp.exp(state.rho))
            return module._unflatten_cholesky(state.chol_params, target.dim)

        def fit(seed: int) -> Read:
            state = jax.block_until_ready(run(jax.random.key(seed), target))
            cost = 5.0 * base.STEPS  # samples a step, by default

            def read() -> Fit:
                factor = np.asarray(root(state), np.float64)
                return base.gaussian_fit(state.mu, factor @ factor.T, target, seed, cost)

            return read

        return fit

    return begin


def _pathfinder(entry: Entry, target: sa.Target) -> Seeded:
    from blackjax.vi import pathfinder

    run = jax.jit(lambda key, z, t: pathfinder.approximate(key, t.log_prob, z)[0])

    def fit(seed: int) -> Read:
        key, start, key_draw = jax.random.split(jax.random.key(seed), 3)
        state = jax.block_until_ready(run(key, base.uniform_start(start, (target.dim,)), target))

        def read() -> Fit:
            draws, log_q = pathfinder.sample(key_draw, state, base.DRAWS)
            host = np.asarray(draws, np.float64)
            weights = base.weights_of(target, draws, log_q)
            # thirty iterations of L-BFGS, each with 200 draws; its line searches are not told
            return Fit(host.mean(0), host.std(0, ddof=1), host, weights, 31.0 * 200, 30.0)

        return read

    return fit


PEERS = {
    "blackjax-mean-field": Peer(
        _vi("meanfield_vi"), "meanfield_vi, ADAM", "o", "#fdae6b", "blackjax"
    ),
    "blackjax-full-rank": Peer(_vi("fullrank_vi"), "fullrank_vi, ADAM", "s", "#e6550d", "blackjax"),
    "blackjax-pathfinder": Peer(_pathfinder, "pathfinder, one path", "X", "#fd8d3c", "blackjax"),
}
