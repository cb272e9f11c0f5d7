"""Log densities of many points outside the loop, by one compiled program whatever their number."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

ROWS = 32
# Rows of data times points whose densities a CPU computes at a time: more memory than that the
# system gives anew each time, page by page, which took as long as the densities.
PIECE = 2**23


def piece(density: Any) -> int | None:
    """Return how many points' densities should be computed at a time; None if it does not matter.

    >>> import jax.numpy as jnp
    >>> from scoreascent.target import Target
    >>> log_density = lambda z, x: -jnp.sum((x - z) ** 2)
    >>> target = Target(log_density, dim=1, data=np.zeros((10**6, 1), np.float32))
    >>> piece(target), piece(Target(log_density, dim=1, data=np.zeros((100, 1), np.float32)))
    (8, None)
    """
    leaves = jax.tree.leaves(getattr(density, "data", None))
    rows = max((np.shape(x)[0] for x in leaves if np.ndim(x)), default=0)
    most = max(1, PIECE // max(1, rows))
    return most if most < ROWS and jax.default_backend() == "cpu" else None


@functools.partial(jax.jit, static_argnames="some")
def _rows(density: Any, z: Any, some: int | None) -> Any:
    if some is None:
        return jax.vmap(density.log_prob)(z)
    return jax.lax.map(density.log_prob, z, batch_size=some)


def over_fits(function: Any, *trees: Any, some: int | None = None) -> Any:
    """Map a function, inside compiled code, over the first axis of trees: over fits.

    On a CPU they come one after the other, or `some` at a time: each then ends its loops when it is
    done, the same bits come out however many there are, and what one needs fits the processor's
    cache. An accelerator has them side by side.
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda xs: function(*xs), trees, batch_size=some)
    return jax.vmap(function)(*trees)


def densities(density: Any, z: Any, some: int) -> Any:
    """Return log densities of the rows of z inside compiled code, so many rows at a time."""
    if some >= len(z):
        return jax.vmap(density.log_prob)(z)
    return jax.lax.map(density.log_prob, z, batch_size=some)


def log_probs(density: Any, z: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return log densities of the rows of z under a target or a family, 32 rows at a time.

    >>> from scoreascent.families import MeanField
    >>> log_probs(MeanField.standard(2), np.zeros((70, 2), np.float32)).shape
    (70,)
    """
    z = np.asarray(z)
    n = len(z)
    z = np.concatenate([z, np.repeat(z[-1:], -n % ROWS, axis=0)])  # the compiler sees one shape
    some = piece(density)
    # one after the other: several at a time, each a sum over devices, can wait for each other
    alone = any(len(x.devices()) > 1 for x in jax.tree.leaves(density) if isinstance(x, jax.Array))
    parts: list[Any] = []
    for i in range(0, n, ROWS):
        part = _rows(density, z[i : i + ROWS], some)
        parts.append(np.asarray(part) if alone else part)
    return np.concatenate([np.asarray(p, np.float64) for p in parts] or [np.empty(0)])[:n]
