"""log N(f; 0, K) and its gradient, at the price of one Cholesky factorisation."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from scoreascent._triangles import inverse

if TYPE_CHECKING:
    from jaxtyping import Array, Float

PANEL = 128  # columns that an accelerator factorises at a time
LEAF = 64  # rows of the blocks that are inverted by substitution


def cholesky(k: Float[Array, "... n n"]) -> Float[Array, "... n n"]:
    """L with LLᵀ = K, from the lower triangle of K; NaN if there is none."""
    return jax.lax.linalg.cholesky(k, symmetrize_input=False)


@jax.custom_vjp
def log_gaussian(k: Float[Array, "n n"], f: Float[Array, " n"]) -> Float[Array, ""]:
    """Return log N(f; 0, K); NaN where K is not positive definite."""
    white, diagonal = jax.lax.platform_dependent(
        _bordered(k, f), cpu=lambda b: _read(cholesky(b)), default=lambda b: _read_panels(panels(b))
    )
    return _value(white, diagonal)


def _bordered(k: Any, f: Any) -> Any:
    """Return K with f as one more row.

    There the factorisation leaves (L⁻¹f)ᵀ: a batch of triangular solves with one right-hand side
    each would be slow on a GPU.
    """
    corner = jnp.full((1,), jnp.finfo(k.dtype).max / 2)  # any number that keeps it definite
    row = jnp.concatenate([f, corner])
    return jnp.concatenate([jnp.pad(k, ((0, 0), (0, 1))), row[None]])


def _read(root: Any) -> tuple[Any, Any]:
    """Return L⁻¹f and the diagonal of L from the factor of K with f below."""
    return root[-1, :-1], jnp.diagonal(root)[:-1]


def _read_panels(found: list[Any]) -> tuple[Any, Any]:
    """Return the same from panels of the factor, which then need not be put together."""
    white = jnp.concatenate([p[-1] for p in found])[:-1]
    return white, jnp.concatenate([jnp.diagonal(p[: p.shape[1]]) for p in found])[:-1]


def _value(white: Any, diagonal: Any) -> Any:
    constant = 0.5 * len(white) * math.log(2 * math.pi)
    return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(diagonal)) - constant


def _forward(k: Any, f: Any) -> tuple[Any, tuple[Any, Any]]:
    """The value, and L and L⁻¹f."""
    root = jax.lax.platform_dependent(
        _bordered(k, f), cpu=cholesky, default=lambda b: _together(panels(b))
    )
    white, diagonal = _read(root)
    return _value(white, diagonal), (root[:-1, :-1], white)


def panels(k: Float[Array, "n n"]) -> list[Array]:
    """Return the Cholesky factor by its columns, `PANEL` at a time, from the diagonal downwards.

    Libraries factorise a batch of large matrices slowly. Here all but the blocks of the diagonal is
    matrix products: what is left of some columns by all those before, times the inverse of a block.
    """
    found: list[Array] = []
    for begin in range(0, len(k), PANEL):
        rest = k[begin:, begin : begin + PANEL]
        size = rest.shape[1]
        if found:
            before = [p[begin - i * PANEL :] for i, p in enumerate(found)]
            left = jnp.concatenate(before, axis=1)
            rest = rest - left @ left[:size].T
        block = cholesky(rest[:size])
        below = rest[size:] @ _by_substitution(block).T
        found.append(jnp.concatenate([block, below]))
    return found


def _together(found: list[Any]) -> Any:
    n = len(found[0])
    return jnp.concatenate([jnp.pad(p, ((n - len(p), 0), (0, 0))) for p in found], axis=1)


def _backward(saved: tuple[Any, Any], g: Any) -> tuple[Any, Any]:
    """d/dK = ½(ααᵀ − K⁻¹) and d/df = −α, α = K⁻¹f."""
    root, white = saved
    inverse = invert_triangular(root)
    alpha = inverse.T @ white
    return 0.5 * g * (jnp.outer(alpha, alpha) - inverse.T @ inverse), -g * alpha


log_gaussian.defvjp(_forward, _backward)


def invert_triangular(root: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L⁻¹ of a lower triangular L, in the way that suits the device.

    On a GPU a batch of large triangular solves is slow, and products took 0.3 of its time; on a CPU
    the solve is one LAPACK call a matrix, and best left alone.
    """
    by_blocks = functools.partial(inverse, leaf=LEAF, of_leaves=_by_substitution)
    found: Array = jax.lax.platform_dependent(root, cpu=_by_substitution, default=by_blocks)
    return found


def _by_substitution(root: Any) -> Any:
    eye = jnp.eye(root.shape[-1], dtype=root.dtype)
    return solve_triangular(root, jnp.broadcast_to(eye, root.shape), lower=True)
