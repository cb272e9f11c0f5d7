"""z-tests with a fixed threshold, and starts in exact stationarity, for the statistical tests.

Every statistical test of the suite asks one question: do independent replicas have the mean that a
closed form gives? The answer is the largest |z| over all components, which must stay below
`Z_MAX`. Seeds are fixed, so a test passes always or never; at 5σ a right kernel fails one
component of one test in 1.7 million. A test is worth something only if it can fail: beside each
stands a mutant, a kernel or an objective broken on purpose, whose |z| must exceed `Z_MUTANT`.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import scoreascent as sa
from tests.registry import FAMILIES, MOVES, TARGETS

Z_MAX = 5.0
Z_MUTANT = 8.0


def _quick_options() -> dict[str, Any]:
    """Options of the compiler that make it hurry, as far as this version of it has them."""
    options = {}
    for name, value in {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    }.items():
        with contextlib.suppress(Exception):
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
            options[name] = value
    return options


# Programs of the tests run once or twice: nearly all of their time would go into optimising them.
quick_jit = functools.partial(jax.jit, compiler_options=_quick_options())


def z_score(samples: Any, expected: Any) -> float:
    """The largest |mean − expected| / standard error over the components of `samples`.

    The first axis counts independent replicas; the rest must broadcast with `expected`. A
    component without any spread scores 0 if it equals what is expected to six digits, else ∞; NaN
    anywhere scores ∞, so that it cannot pass.

    >>> z_score([[1.0], [1.0], [1.0]], 1.0), z_score([[1.0], [1.0]], 2.0)
    (0.0, inf)
    >>> round(z_score([0.0, 1.0, 0.0, 1.0], 1.5), 3)
    3.464
    """
    samples = np.asarray(samples, np.float64)
    # subtracting a row first keeps the variance of a constant column at exactly zero
    centred = samples - samples[:1]
    error = centred.std(0, ddof=1) / np.sqrt(len(samples))
    off = np.abs(samples[0] + centred.mean(0) - np.asarray(expected, np.float64))
    scale = 1e-6 * (1 + np.abs(np.asarray(expected, np.float64)))
    z = np.where(error > 0, off / np.where(error > 0, error, 1), np.where(off <= scale, 0, np.inf))
    return float(np.max(np.where(np.isnan(z), np.inf, z)))


def places(moves: Any) -> int:
    """How many independent draws of π an η of `moves` in stationarity is made of."""
    return moves.n if isinstance(moves, sa.Parallel) else 1


def stationary(
    moves: Any, z: Any, log_p: Any, q: Any = None, target: sa.Target | None = None
) -> sa.Particles:
    """An η ~ Π for `moves`, given as many exact and independent draws of π as it has `places`.

    The pairs of a Rao–Blackwellised `Parallel` have no weight on the half that was proposed. Moves
    with one chain get its state in all their places; for `CIS` the first has all the weight.
    Kernels that learn begin with what they know at q, the standard Gaussian if there is none, and a
    step size as if after so many steps that it hardly moves. With the target, chains have all that
    their kernel keeps of a state.
    """
    q = sa.MeanField.standard(z.shape[-1], dtype=z.dtype) if q is None else q
    tuning = None
    if hasattr(moves, "kernel"):
        tuning = moves.kernel.afresh(moves.kernel.first_tuning(q), 10**9)
    n = getattr(moves, "n", 1)
    if isinstance(moves, sa.Parallel) and moves.rao_blackwell:
        z, log_p = jnp.concatenate([jnp.zeros_like(z), z]), jnp.concatenate([log_p, log_p])
        return sa.Particles(z, log_p, jnp.repeat(jnp.array([0, 1 / n], z.dtype), n))
    if not isinstance(moves, sa.Parallel):
        z, log_p = jnp.repeat(z, n, 0), jnp.repeat(log_p, n, 0)
    if isinstance(moves, sa.CIS):
        return sa.Particles(z, log_p, jnp.zeros(n, z.dtype).at[0].set(1))
    points: Any = sa.Point(z, log_p)
    if isinstance(moves, sa.Parallel) and target is not None:
        points = jax.vmap(lambda point: moves.kernel.prepare(target, point))(points)
    gradient = getattr(points, "gradient", None)
    return sa.Particles(z, log_p, jnp.full(n, 1 / n, z.dtype), tuning, gradient)


# -- invariance ----------------------------------------------------------------------------------

MOST_PLACES = max(map(places, MOVES.values()))


def functionals(z: Any) -> Any:
    """What is compared: two moments, two bounded functions, and the moment of neighbours."""
    return jnp.concatenate([z, z**2, jnp.tanh(2 * z), z > 0.3, z[:-1] * z[1:]])


def expectations(moves: Any, eta: Any) -> Any:
    """The weighted means of the functionals; for many chains also their dependence on each other.

    Π is a product, so Π-invariance asks more of `Parallel` than the right marginals.
    """
    values = jax.vmap(functionals)(eta.z)
    means = eta.weight @ values
    if not (isinstance(moves, sa.Parallel) and moves.n > 1):
        return means
    tanh = jnp.tanh(2 * eta.z[:, 0])
    chains = jnp.sum((moves.n * eta.weight * tanh).reshape(-1, moves.n), 0)  # one number a chain
    return jnp.append(means, chains[0] * chains[1])


@functools.cache
def qs_of(family: str, dim: int) -> Any:
    """λ before each of two steps, stacked."""
    q = FAMILIES[family](dim)
    return jax.tree.map(lambda x: jnp.stack([x, x - 0.4]), q)


@functools.cache
def exact_draws(name: str) -> Any:
    """Independent draws of π for every replica, as many as the largest η needs."""
    known = TARGETS[name]
    draw = jax.vmap(jax.vmap(known.sample))
    shape = (20_000 if known.dim == 1 else 10_000, MOST_PLACES)
    return np.asarray(quick_jit(lambda key: draw(jax.random.split(key, shape)))(jax.random.key(1)))


@functools.cache
def switchable(dim: int) -> dict[str, sa.Target]:
    """The targets of one dimension as one function of two arguments, so that it compiles once."""
    names = [name for name, known in TARGETS.items() if known.dim == dim]
    densities = [TARGETS[name].log_density for name in names]

    def log_density(z: Any, which: Any) -> Any:
        return jax.lax.switch(which, densities, z)

    return {name: sa.Target(log_density, dim, data=jnp.int32(i)) for i, name in enumerate(names)}


@functools.partial(quick_jit, static_argnames="moves")
def changes(moves: Any, target: sa.Target, qs: Any, key: Any, z: Any) -> Any:
    """The change of every functional after one and after two steps, and the weights."""

    def replica(key: Any, z: Any) -> Any:
        first = jax.tree.map(lambda leaf: leaf[0], qs)
        start = stationary(moves, z, jax.vmap(target.log_prob)(z), first, target)
        before = expectations(moves, start)

        def step(eta: Any, inputs: Any) -> Any:
            key, q = inputs
            eta, _ = moves.step(key, target, q, eta)
            return eta, (expectations(moves, eta) - before, eta.weight)

        return jax.lax.scan(step, start, (jax.random.split(key), qs))[1]

    return jax.vmap(replica)(jax.random.split(key, len(z)), z)


@dataclass
class Verdict:
    z: float  # largest |z| of all functionals
    moved: float  # share of the replicas whose expectations moved at all
    weights_ok: bool  # nonnegative and of sum one


def check_invariance(moves: Any, name: str, family: str = "mean-field") -> Verdict:
    """Two steps of `moves` from stationarity, λ moving between them."""
    z = exact_draws(name)[:, : places(moves)]
    dim = z.shape[-1]
    target = switchable(dim)[name]
    change, weight = changes(moves, target, qs_of(family, dim), jax.random.key(0), z)
    change, weight = np.asarray(change, np.float64), np.asarray(weight, np.float64)
    return Verdict(
        z_score(change, 0.0),
        float(np.mean(np.any(np.abs(change[:, -1]) > 1e-3, -1))),
        bool(np.all(weight >= 0) and np.allclose(weight.sum(-1), 1, atol=1e-5)),
    )
