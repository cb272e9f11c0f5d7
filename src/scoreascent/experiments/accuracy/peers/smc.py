"""BlackJAX's adaptive tempered sequential Monte Carlo, with HMC that learns from its particles."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import scoreascent as sa
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.peers.base import Peer, Read, Seeded

PARTICLES = 2000
MOVES, LEAPS = 10, 5  # at each level: BlackJAX's own number of moves, and leapfrog steps of each
KEPT = 0.5  # of the particles, effectively, from one level to the next
WIDE = 10.0  # sds of the normal prior that the density is divided by
ACCEPTANCE = 0.65
MAX_LEVELS = 200
NOTHING = -1e30  # the log of a density of zero; −∞ times a temperature of zero is no number


class Swarm(NamedTuple):
    """Weighted particles of the posterior, the log evidence and the levels they took."""

    z: NDArray[Any]
    weights: NDArray[Any]
    log_evidence: float
    levels: int


def runner(target: sa.Target, particles: int = PARTICLES, moves: int = MOVES) -> Any:
    """Return the function of a key that takes particles from N(0, 10²) to the posterior."""
    import blackjax
    from blackjax.smc import extend_params, resampling
    from blackjax.smc.inner_kernel_tuning import as_top_level_api
    from blackjax.smc.tuning.from_particles import inverse_mass_matrix_from_particles

    def log_prior(z: Any) -> Any:
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, scale=WIDE))

    def log_rest(z: Any, target: sa.Target) -> Any:
        log_p = target.log_prob(z) - log_prior(z)
        return jnp.nan_to_num(log_p, nan=NOTHING, posinf=NOTHING, neginf=NOTHING)

    @jax.jit
    def run(key: Any, target: sa.Target) -> Any:
        key_first, key_rest = jax.random.split(key)
        z = WIDE * jax.random.normal(key_first, (particles, target.dim))

        def tuned(step: Any, state: Any) -> Any:
            shared = {
                "step_size": step,
                "inverse_mass_matrix": inverse_mass_matrix_from_particles(state.particles),
                "num_integration_steps": LEAPS,
            }
            return extend_params(shared)

        def update(key: Any, state: Any, info: Any, step: Any) -> Any:
            accepted = jnp.mean(info.update_info.acceptance_rate)
            return tuned(step * jnp.exp(accepted - ACCEPTANCE), state)

        def algorithm(step: Any) -> Any:
            return as_top_level_api(
                blackjax.adaptive_tempered_smc,
                log_prior,
                lambda z: log_rest(z, target),
                blackjax.hmc.build_kernel(),
                blackjax.hmc.init,
                resampling.systematic,
                lambda key, state, info: update(key, state, info, step),
                tuned(step, blackjax.smc.tempered.init(z)),
                num_mcmc_steps=moves,
                target_ess=KEPT,
            )

        def level(carry: Any) -> Any:
            state, log_z, count = carry
            step = state.parameter_override["step_size"][0]
            key = jax.random.fold_in(key_rest, count)
            state, info = algorithm(step).step(key, state)
            return state, log_z + info.log_likelihood_increment, count + 1

        def goes_on(carry: Any) -> Any:
            state, _, count = carry
            return (state.sampler_state.tempering_param < 1) & (count < MAX_LEVELS)

        first = algorithm(jnp.asarray(target.dim**-0.25, z.dtype)).init(z)
        first = jax.tree.map(jnp.asarray, first)
        return jax.lax.while_loop(goes_on, level, (first, jnp.zeros((), z.dtype), 0))

    def of_key(key: Any) -> Swarm:
        state, log_z, count = jax.block_until_ready(run(key, target))
        found = state.sampler_state
        if not float(found.tempering_param) >= 1:
            raise RuntimeError(f"the particles did not reach the posterior in {MAX_LEVELS} levels")
        weights = np.asarray(found.weights, np.float64)
        z = np.asarray(found.particles, np.float64)
        return Swarm(z, weights / weights.sum(), float(log_z), int(count))

    return of_key


def _smc(entry: Entry, target: sa.Target) -> Seeded:
    run = runner(target)

    def fit(seed: int) -> Read:
        found = run(jax.random.key(seed))

        def read() -> Fit:
            rng, n = np.random.default_rng(seed), len(found.z)
            at = (np.arange(n) + rng.uniform()) / n
            chosen = np.searchsorted(np.cumsum(found.weights), at).clip(0, n - 1)
            mean = found.weights @ found.z
            sd = np.sqrt(found.weights @ (found.z - mean) ** 2)
            gradients = float(n * (1 + MOVES * LEAPS) * found.levels)
            return Fit(mean, sd, found.z[chosen], None, 2.0 * n * found.levels, gradients)

        return read

    return fit


PEERS = {
    "blackjax-smc": Peer(
        _smc,
        f"adaptive_tempered_smc from N(0, {WIDE:g}²), {PARTICLES} particles, {MOVES} moves of HMC",
        "d",
        "#a63603",
        "blackjax",
    ),
}
