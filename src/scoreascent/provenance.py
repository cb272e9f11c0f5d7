"""What a run was: enough to tell whether a file belongs to it, and to make it again."""

from __future__ import annotations

import hashlib
import platform
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

from scoreascent._version import __version__
from scoreascent.update import norm


def versions() -> dict[str, str]:
    """The versions that a result depends on, and the device it ran on."""
    return {
        "scoreascent": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
        "numpyro": numpyro.__version__,
        "device": jax.devices()[0].device_kind,
    }


def describe(
    target: Any,
    method: Any,
    update: Any,
    q: Any,
    start: int | None,
    replications: int | None,
    key: Any,
) -> dict[str, Any]:
    """The settings that fix a run's numbers, as JSON."""
    return {
        "target": re.sub(r" at 0x[0-9a-f]+", "", repr(target)),  # an address is of one process
        "data": _digest(target),
        "method": repr(method),
        "update": repr(update),
        "q0": f"{jax.tree.structure(q)} {_digest(q)}",
        "average": None if start is None else f"after step {start}",
        "replications": replications,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "float": str(jnp.zeros(()).dtype),
    }


def _digest(tree: Any) -> str:
    """A checksum of every leaf's shape, dtype and bytes."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        sha.update(f"{array.shape}{array.dtype}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def first_steps(update: Any, q: Any) -> str:
    """How far the update would move q under three fixed gradients.

    optax optimisers do not say what they are, so a step size is told by what it does.
    """
    if not hasattr(update, "optimizer"):
        return "unknown"
    try:
        optimizer = optax.with_extra_args_support(update.optimizer)
        memory, moves = optimizer.init(q), []
        for slope in (1.0, -0.5, 2.0):
            g = jax.tree.map(lambda x, slope=slope: jnp.full_like(x, slope), q)
            step, memory = optimizer.update(
                g, memory, q, value=jnp.ones(()), grad=g, value_fn=lambda _: jnp.ones(())
            )
            moves.append(f"{float(norm(step)):.5g}")
    except (TypeError, ValueError, KeyError, AttributeError):  # it wants more than a gradient
        return "unknown"
    return " ".join(moves)
