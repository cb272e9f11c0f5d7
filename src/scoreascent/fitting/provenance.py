"""What a run was: enough to tell whether a file belongs to it, and to make it again."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

from scoreascent._arrays import as_default, default_dtype
from scoreascent._batches import log_probs
from scoreascent._layout import to_host
from scoreascent._version import __version__
from scoreascent.families import Family
from scoreascent.loop import Replicate
from scoreascent.target import Target

MAX_HASHED = 2**26  # numbers, beyond which the bytes of spread arrays are not brought together


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, and the device it ran on."""
    return {
        "scoreascent": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
        "numpyro": numpyro.__version__,
        "device": _device(),
    }


def _device() -> str:
    """Return the kind of the device that jax computes on, or why there is none."""
    try:
        return jax.devices()[0].device_kind
    except (RuntimeError, AssertionError):  # jax says the first only once
        asked = os.environ.get("JAX_PLATFORMS", "")
        return f"none: JAX_PLATFORMS asks for {asked!r}, which is not there"


def describe(
    target: Any,
    method: Any,
    update: Any,
    q: Any,
    start: int | None,
    replications: int | None,
    key: Any,
) -> dict[str, Any]:
    """Return the settings that fix a run's numbers, as JSON."""
    return {
        "target": printed(target),
        "data": digest(target),
        "method": repr(method),
        "update": repr(update),
        "q0": f"{jax.tree.structure(q)} {digest(q)}",
        "average": None if start is None else f"after step {start}",
        "replications": replications,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "float": str(default_dtype()),
    }


def posterior(target: Target, q: Family, replicate: Replicate) -> dict[str, Any]:
    """Return what tells a posterior from others, as JSON; q says where to ask for its density.

    How a model's sites are centred is no part of it: that changes z, not the posterior.
    """
    data = target.data
    if getattr(target.model, "centrable", ()):
        data = data[:-1]
    return {
        "target": printed(target),
        "float": str(default_dtype()),
        "named": target.is_named,
        "names": list(target.site_names),
        "dim": target.dim,
        "data": digest(data),
        "log_density": density_at_fixed_points(target, q, replicate),
    }


def printed(target: Any) -> str:
    """Return how a target prints, less addresses in memory, which are of one process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(target))


def density_at_fixed_points(target: Target, q: Family, replicate: Replicate) -> list[str]:
    """Return log p at a few places that depend on nothing but the dimension and the first q.

    Neither a function nor what it closes over can be compared between two processes, so a model is
    told by what it computes. With replications the first one stands for all.
    """
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    target = first(target) if replicate == "data" else target
    q = q if replicate == "nothing" else first(q)
    waves = np.cos(np.outer(np.arange(1, 5), 1.7 + np.arange(target.dim)))
    near = np.asarray(q.mean) + np.asarray(q.sd) * waves
    places = np.concatenate([np.array([[0.1], [0.5], [1.0], [2.0]]) * waves, near])
    return [f"{x:.17g}" for x in log_probs(target, as_default(places))]


def digest(tree: Any) -> str:
    """Return a checksum of every leaf's shape, dtype and bytes.

    Large arrays that lie on devices of several processes are summed up where they are.
    """
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and leaf.size > MAX_HASHED:
            sha.update(f"{leaf.shape}{leaf.dtype}{np.asarray(_checksum(leaf)).tolist()}".encode())
            continue
        array = to_host(leaf)
        sha.update(f"{array.shape}{array.dtype}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


@jax.jit
def _checksum(x: Any) -> Any:
    """Return two numbers that all of an array's bits and places have a part in."""
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.float32)  # which has room for all of its values
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        place = place * jnp.uint32(0x9E3779B1) + jax.lax.broadcasted_iota(
            jnp.uint32, bits.shape, axis
        )
        place = (place ^ (place >> 15)) * jnp.uint32(0x85EBCA77)
    place = place ^ (place >> 13)
    return jnp.stack([jnp.sum(bits * (place | 1)), jnp.sum(bits ^ place)])
