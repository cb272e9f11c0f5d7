"""What a run was: enough to tell whether a file belongs to it, and to make it again."""

from __future__ import annotations

import hashlib
import platform
import re
from typing import Any

import jax
import numpy as np
import numpyro
import optax

from scoreascent._arrays import default_dtype
from scoreascent._version import __version__


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, and the device it ran on."""
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
    """Return the settings that fix a run's numbers, as JSON."""
    return {
        "target": re.sub(r" at 0x[0-9a-f]+", "", repr(target)),  # an address is of one process
        "data": _digest(target),
        "method": repr(method),
        "update": repr(update),
        "q0": f"{jax.tree.structure(q)} {_digest(q)}",
        "average": None if start is None else f"after step {start}",
        "replications": replications,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "float": str(default_dtype()),
    }


def _digest(tree: Any) -> str:
    """Return a checksum of every leaf's shape, dtype and bytes."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        sha.update(f"{array.shape}{array.dtype}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]
