"""What PyTensor has JAX for only through a library that today's jax breaks."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp

FAR, TERMS = 3.0, 40  # beyond, so many terms of the continued fraction are exact to 64 bits


def erfcx(x: Any) -> Any:
    """exp(x²) erfc(x), which tails of normal distributions are made of.

    >>> [round(float(erfcx(jnp.float32(x))), 5) for x in (-1.0, 0.0, 2.0, 50.0)]
    [5.00898, 1.0, 0.2554, 0.01128]
    """
    near = jnp.where(x > FAR, 0.0, x)
    far = jnp.where(x > FAR, x, FAR)
    fraction = far
    for i in range(TERMS, 0, -1):
        fraction = far + (i / 2) / fraction
    inside = jnp.exp(near**2) * jax.scipy.special.erfc(near)
    return jnp.where(x > FAR, 1 / (math.sqrt(math.pi) * fraction), inside)


def supply() -> None:
    """Give PyTensor what it lacks: `erfcx`, of censored and truncated normal distributions.

    It is left alone where tensorflow-probability is there.
    """
    from pytensor.link.jax.dispatch.basic import jax_funcify
    from pytensor.scalar.math import Erfcx

    with contextlib.suppress(Exception):
        jax_funcify.dispatch(Erfcx)(Erfcx)
        return
    jax_funcify.register(Erfcx)(lambda op, **kwargs: erfcx)
