"""Sums of log densities, up to constants that no parameter is in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def normal(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Any:
    """Normal variables; on positive ones, half-normal."""
    return jnp.sum(-0.5 * ((x - loc) / scale) ** 2 - jnp.log(scale))


def cauchy(x: Any, scale: float = 1.0) -> Any:
    """Cauchy variables around zero; on positive ones, half-Cauchy."""
    return -jnp.sum(jnp.log1p((x / scale) ** 2))


def poisson_log(y: Any, eta: Any) -> Any:
    """Counts y of log rates η."""
    return jnp.sum(y * eta - jnp.exp(eta))


def bernoulli_logit(y: Any, eta: Any) -> Any:
    """Answers y, 0 or 1, of log odds η."""
    return jnp.sum(y * eta - jax.nn.softplus(eta))
