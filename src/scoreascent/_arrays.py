"""Small questions about arrays and trees of them that several rooms of the house ask."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def default_dtype() -> np.dtype[Any]:
    """The dtype of floats under the current x64 setting."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def canonical_dtype(x: Any) -> np.dtype[Any]:
    """The dtype that jax will give `x` under the current x64 setting."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.asarray(x).dtype))


def as_default(x: Any) -> Any:
    """`x` in jax's default dtype, on the host: compiled programs take it as it is."""
    return np.asarray(x, default_dtype())


def impossible(log_p: Any) -> Any:
    """Tell whether a log density is NaN or +∞, which no density can be; −∞ is a legal value."""
    return (log_p != log_p) | (log_p == math.inf)


def all_finite(tree: Any) -> Any:
    """Tell whether every number of a tree is finite, as one traced boolean.

    0 · x is 0 if x is finite and NaN if it is not, so one sum tells about all numbers at once.
    """
    return sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves(tree)) == 0


def select(condition: Any, new: T, old: T) -> T:
    """The tree `new` where a traced condition holds, else the tree `old`."""
    return cast(T, jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old))


def last_tenth(x: Any) -> Any:
    """The last tenth of a trace along its last axis, at least one row if there is any."""
    return x[..., -max(1, x.shape[-1] // 10) :]


def canonical(data: Any, name: str) -> Any:
    """Arrays for jax; float64 that jax would narrow in silence is narrowed aloud."""
    narrowed = 0

    def convert(x: Any) -> Any:
        nonlocal narrowed
        if isinstance(x, jax.core.Tracer):
            return x
        if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1:
            return x  # it lies on many devices, and fits none
        host = np.asarray(x)
        if not (np.issubdtype(host.dtype, np.number) or host.dtype == bool):
            raise ValueError(f"{name} must hold numeric arrays, got dtype {host.dtype}")
        dtype = canonical_dtype(host)
        if dtype != host.dtype:
            # a Python number has no width of its own, so only arrays are narrowed
            narrowed += isinstance(x, np.ndarray | np.generic | jax.Array)
            with np.errstate(over="ignore"):
                lost = np.isfinite(host) & ~np.isfinite(host.astype(dtype))
            if np.any(lost) or (dtype.kind in "iu" and np.any(host != host.astype(dtype))):
                raise ValueError(
                    f"{name} holds {host.dtype} values that do not fit {dtype}; "
                    'call jax.config.update("jax_enable_x64", True) first, or rescale them'
                )
        return jnp.asarray(host, dtype)

    converted = jax.tree.map(convert, data)
    if narrowed:
        warnings.warn(
            f"{name}: {narrowed} 64-bit array(s) are stored with 32 bits because x64 is off; "
            'call jax.config.update("jax_enable_x64", True) first to keep them, '
            "or pass float32 arrays to say that this is meant",
            UserWarning,
            stacklevel=4,
        )
    return converted
