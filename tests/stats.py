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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import scoreascent as sa
from scoreascent.kernels.combinators import first_tuning

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


def stationary(moves: Any, z: Any, log_p: Any, q: Any = None) -> sa.Particles:
    """An η ~ Π for `moves`, given as many exact and independent draws of π as it has `places`.

    The pairs of a Rao–Blackwellised `Parallel` have no weight on the half that was proposed. Moves
    with one chain get its state in all their places; for `CIS` the first has all the weight.
    Kernels that learn begin with what they know at q, the standard Gaussian if there is none.
    """
    q = sa.MeanField.standard(z.shape[-1], dtype=z.dtype) if q is None else q
    tuning = first_tuning(moves.kernel, q) if hasattr(moves, "kernel") else None
    n = getattr(moves, "n", 1)
    if isinstance(moves, sa.Parallel) and moves.rao_blackwell:
        z, log_p = jnp.concatenate([jnp.zeros_like(z), z]), jnp.concatenate([log_p, log_p])
        return sa.Particles(z, log_p, jnp.repeat(jnp.array([0, 1 / n], z.dtype), n))
    if not isinstance(moves, sa.Parallel):
        z, log_p = jnp.repeat(z, n, 0), jnp.repeat(log_p, n, 0)
    if isinstance(moves, sa.CIS):
        return sa.Particles(z, log_p, jnp.zeros(n, z.dtype).at[0].set(1))
    return sa.Particles(z, log_p, jnp.full(n, 1 / n, z.dtype), tuning)
