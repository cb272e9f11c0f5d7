"""log N(f; 0, K) and its gradient, at the price of one Cholesky factorisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def cholesky(k: Float[Array, "... n n"]) -> Float[Array, "... n n"]:
    """L with LLᵀ = K, from the lower triangle of K; NaN if there is none."""
    return jax.lax.linalg.cholesky(k, symmetrize_input=False)


@jax.custom_vjp
def log_gaussian(k: Float[Array, "n n"], f: Float[Array, " n"]) -> Float[Array, ""]:
    """Log N(f; 0, K); NaN where K is not positive definite."""
    return _forward(k, f)[0]


def _forward(k: Any, f: Any) -> tuple[Any, tuple[Any, Any]]:
    """The value, and L and L⁻¹f.

    f rides along as one more row of K, where the factorisation leaves (L⁻¹f)ᵀ: a batch of
    triangular solves with one right-hand side each would be slow on a GPU.
    """
    n = len(f)
    corner = jnp.full((1,), jnp.finfo(k.dtype).max / 2)  # any number that keeps it definite
    row = jnp.concatenate([f, corner])
    bordered = jnp.concatenate([jnp.pad(k, ((0, 0), (0, 1))), row[None]])
    root = cholesky(bordered)
    white, diagonal = root[n, :n], jnp.diagonal(root)[:n]
    value = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(diagonal)) - 0.5 * n * math.log(2 * math.pi)
    return value, (root[:n, :n], white)


def _backward(saved: tuple[Any, Any], g: Any) -> tuple[Any, Any]:
    """d/dK = ½(ααᵀ − K⁻¹) and d/df = −α, α = K⁻¹f."""
    root, white = saved
    inverse = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
    alpha = inverse.T @ white
    return 0.5 * g * (jnp.outer(alpha, alpha) - inverse.T @ inverse), -g * alpha


log_gaussian.defvjp(_forward, _backward)
