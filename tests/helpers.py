"""What several test files share: the library's inner parts, comparisons, and one small fit.

No test file imports another; what two of them need is here, in `registry` (a row for each kernel,
family and method), in `stats` (z-tests and what they start from) or in `models` (posteriors that
are stated for several libraries).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import scoreascent as sa
from scoreascent import searches
from scoreascent._layout import Layout
from scoreascent._progress import Bar

# The inner parts of the library that tests look into, each imported here and nowhere else.
from scoreascent._structs import Config, pytree, x64
from scoreascent.fitting import host, stopping
from scoreascent.fitting.automatic import WITH_GRADIENTS
from scoreascent.fitting.devices import put
from scoreascent.loop import State, advance, first_state, run_chunk
from scoreascent.target import stack
from scoreascent.update import MomentMatching, gradient
from tests.registry import METHODS

__all__ = [
    "OPTIMIZER",
    "OTHER",
    "RHO",
    "STEPS",
    "TARGET",
    "TARGETS",
    "TRACES",
    "WITH_GRADIENTS",
    "Bar",
    "Config",
    "Layout",
    "MomentMatching",
    "State",
    "advance",
    "arrays",
    "first_state",
    "fit",
    "gradient",
    "host",
    "make_target",
    "nan_density",
    "put",
    "pytree",
    "run_chunk",
    "same_bits",
    "same_run",
    "searches",
    "stack",
    "stopping",
    "x64",
]


# -- comparisons ---------------------------------------------------------------------------------


def arrays(tree: Any) -> list[np.ndarray]:
    """The leaves, keys as their numbers."""
    leaves = []
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaves.append(np.asarray(leaf))
    return leaves


def same_bits(a: Any, b: Any) -> bool:
    one, two = arrays(a), arrays(b)
    return len(one) == len(two) and all(
        x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(one, two)
    )


def same_run(a: sa.Result, b: sa.Result) -> bool:
    return same_bits((a.state, a.trace, a.q), (b.state, b.trace, b.q)) and a.status == b.status


# -- one small fit, the same program for every file that uses it ---------------------------------

TRACES = [0]  # how often jax has asked for the density below
RHO = 0.8


def log_density(z: Any, data: Any) -> Any:
    """A correlated Gaussian."""
    TRACES[0] += 1
    x = (z - data["centre"]) / data["scale"]
    return -0.5 * (x[0] ** 2 - 2 * RHO * x[0] * x[1] + x[1] ** 2) / (1 - RHO**2)


def make_target(shift: float = 0.0, dtype: Any = None) -> sa.Target:
    centre, scale = jnp.array([1.0, -0.5], dtype) + shift, jnp.array([0.8, 1.2], dtype) - shift / 4
    return sa.Target(log_density, dim=2, data={"centre": centre, "scale": scale})


TARGET, OTHER = make_target(), make_target(0.7)
TARGETS = (TARGET, OTHER, make_target(-2.0))
OPTIMIZER = optax.adam(0.05)
STEPS = 40


def fit(name: str, target: Any = TARGET, steps: int = STEPS, **options: Any) -> sa.Result:
    options = {"progress": False, "key": 3, "optimizer": OPTIMIZER} | options
    return sa.fit(target, METHODS[name], steps=steps, **options)


def nan_density(z: Any, data: Any) -> Any:
    """Zero everywhere, but its gradient is NaN: the old trap of `where`."""
    return jnp.where(z[0] ** 2 >= 0, 0.0, jnp.sqrt(-1 - z[0] ** 2))
