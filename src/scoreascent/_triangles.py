"""Triangular systems as matrix products.

A library's solve is a call out of the compiled program. OpenBLAS gives even a small one to its
threads, which wait for each other: beside another busy process it took a thousand times longer. On
a GPU batches of solves are slow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

LEAF = 8  # rows of the blocks that are inverted entry by entry
product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@jax.custom_jvp
def solve(tril: Float[Array, "n n"], b: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Return L⁻¹ b, b a vector or a matrix; L⁻¹ is shared by all b that are mapped over.

    >>> solve(jnp.array([[2.0, 0.0], [1.0, 1.0]]), jnp.array([2.0, 3.0]))
    Array([1., 2.], dtype=float32)
    """
    return product(inverse(tril), b)


@solve.defjvp
def _slope(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """d(L⁻¹b) = L⁻¹(db − dL L⁻¹b)."""
    (tril, b), (d_tril, d_b) = primals, tangents
    root = inverse(tril)
    x = product(root, b)
    return x, product(root, d_b - product(jnp.tril(d_tril), x))


def inverse(
    tril: Float[Array, "n n"],
    leaf: int = LEAF,
    of_leaves: Callable[[Any], Any] | None = None,
) -> Float[Array, "n n"]:
    """Invert blocks of the diagonal as one batch, then join neighbours until one is left.

    [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹BA⁻¹, C⁻¹]], so that all but the first is matrix products.
    """
    n = len(tril)
    count = 2 ** max(0, math.ceil(math.log2(n / leaf)))
    size = -(-n // count)
    if size * count > n:  # room for whole blocks
        tril = jnp.eye(size * count, dtype=tril.dtype).at[:n, :n].set(tril)
    found = (of_leaves or _by_entries)(_diagonal_blocks(tril, size))
    while count > 1:
        a, c = found[::2], found[1::2]
        b = _diagonal_blocks(tril, 2 * size)[:, size:, :size]
        below = jnp.concatenate([-product(product(c, b), a), c], axis=2)
        found = jnp.concatenate([jnp.pad(a, ((0, 0), (0, 0), (0, size))), below], axis=1)
        count, size = count // 2, 2 * size
    return found[0, :n, :n]


def _by_entries(blocks: Float[Array, "count n n"]) -> Float[Array, "count n n"]:
    """Invert small triangular blocks, row by row from above."""
    n = blocks.shape[-1]
    rows: list[Any] = []
    for i in range(n):
        unit = jnp.zeros((n,), blocks.dtype).at[i].set(1)
        rest = unit - sum(blocks[:, i, j, None] * rows[j] for j in range(i))
        rows.append(rest / blocks[:, i, i, None])
    return jnp.stack(rows, axis=1)


def _diagonal_blocks(tril: Float[Array, "n n"], size: int) -> Float[Array, "count size size"]:
    count = len(tril) // size
    blocks = tril.reshape(count, size, count, size)
    return jnp.stack([blocks[i, :, i] for i in range(count)])
