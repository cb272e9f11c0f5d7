"""What a run was: enough to tell whether a file belongs to it, and to make it again."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

from scoreascent._version import __version__


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
    target: Any, method: Any, update: Any, q: Any, average: Any, replications: Any, key: Any
) -> dict[str, Any]:
    """The settings that fix a run's numbers, as JSON."""
    return {
        "target": repr(target),
        "data": _digest(target),
        "method": repr(method),
        "update": f"{update!r}, first steps {_probe(update, q)}",
        "q0": _digest(q),
        "average": average,
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


def _probe(update: Any, q: Any) -> str:
    """How the update moves one number under three fixed gradients.

    optax optimisers do not say what they are, so the step size is told by what it does.
    """
    if not hasattr(update, "optimizer"):
        return ""
    try:
        optimizer = optax.with_extra_args_support(update.optimizer)
        x = jnp.ones(())
        state, moves = optimizer.init(x), []
        for g in (1.0, -0.5, 2.0):
            step, state = optimizer.update(
                jnp.asarray(g), state, x, value=x, grad=jnp.asarray(g), value_fn=lambda x: x
            )
            moves.append(f"{float(step):.5g}")
    except (TypeError, ValueError, KeyError):  # it needs parameters of a certain structure
        return "unknown"
    return " ".join(moves)
