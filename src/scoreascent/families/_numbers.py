"""What the families share: checked arrays, the inverse of softplus, moments of weighted points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import canonical, canonical_dtype, default_dtype
from scoreascent._layout import is_spread

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def vector(name: str, value: Any) -> Float[Array, " d"]:
    """`value` as a vector of finite floats, or a ValueError that names it."""
    shape = np.shape(value)
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"{name} must be a vector of at least one entry, got shape {shape}")
    return _finite(name, value)


def matrix(name: str, value: Any) -> Float[Array, "n m"]:
    """`value` as a matrix of finite floats, or a ValueError that names it."""
    shape = np.shape(value)
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"{name} must be a matrix of at least one entry, got shape {shape}")
    return _finite(name, value)


def _finite(name: str, value: Any) -> Float[Array, ...]:
    array = value
    if not isinstance(value, jax.core.Tracer):
        if isinstance(value, np.ndarray | jax.Array) and value.dtype.kind == "f":
            value = canonical(value, name)
        # while jax traces, what was a constant may have become one of its own
        array = jnp.asarray(value, canonical_dtype(value)) if known(value) else value
        if jnp.issubdtype(array.dtype, jnp.integer):
            array = array.astype(default_dtype())
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} must be real and floating, got dtype {array.dtype}")
    if known(array) and not np.all(np.isfinite(np.asarray(array))):
        raise ValueError(f"{name} must be finite, got {array}")
    return array


def known(*arrays: Any) -> bool:
    """Tell whether the numbers are there to be looked at, which they are not while jax traces."""
    return not any(isinstance(x, jax.core.Tracer) for x in arrays)


def check_fit(shapes: dict[str, tuple[int, ...]], **arrays: Any) -> None:
    """Raise unless the arrays have these shapes and one dtype."""
    dtypes = {x.dtype for x in arrays.values()}
    if len(dtypes) > 1 or any(arrays[name].shape != shape for name, shape in shapes.items()):
        got = " and ".join(f"{x.shape} {x.dtype}" for x in arrays.values())
        raise ValueError(
            f"{' and '.join(arrays)} must have the same dtype and shapes that fit, got {got}"
        )


def check_scale(scale: Any) -> None:
    """Raise unless `scale` is a positive number, as far as one can look at it."""
    if known(scale) and not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive, got {scale}")


def inverse_softplus(x: Float[Array, ...]) -> Float[Array, ...]:
    """The ω with softplus(ω) = x; log(expm1(x)) written so that neither end overflows."""
    return x + jnp.log(-jnp.expm1(-x))


def dot(a: Float[Array, ...], b: Float[Array, ...]) -> Float[Array, ...]:
    """A product of matrices in the full width of its dtype.

    Accelerators otherwise shorten float32, and draws would then not be those of the density that
    kernels weigh them with.
    """
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def masked(
    z: Float[Array, "n d"], weight: Float[Array, " n"], instead: Float[Array, " d"]
) -> Float[Array, "n d"]:
    """`z`, and `instead` in the place of points without weight: those may lie anywhere."""
    return jnp.where(weight[:, None] > 0, z.astype(instead.dtype), instead)


def spread(
    x: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""]
) -> tuple[Float[Array, " d"], Float[Array, "n+1 d"]]:
    """x̄ = Σ w x, and rows Y with YᵀY = γ Σ w (x − x̄)(x − x̄)ᵀ + γ(1 − γ) x̄ x̄ᵀ.

    With x in coordinates in which q is standard, the expectation parameters (1 − γ)θ + γ Σ w T(x)
    belong to the mean γ x̄ and the covariance (1 − γ)I + YᵀY.
    """
    mean = dot(weight, x)
    rows = jnp.sqrt(rate * weight)[:, None] * (x - mean)
    return mean, jnp.concatenate([rows, (jnp.sqrt(rate * (1 - rate)) * mean)[None]])


def moved(
    x: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """x̄ of `spread`, and the Cholesky factor of (1 − γ)I + YᵀY.

    Where points are spread over devices, these exchange no points but the d² sums of YᵀY.
    """
    if not is_spread(len(x)):
        mean, rows = spread(x, weight, rate)
        return mean, matched_factor(rows, rate)
    mean = dot(weight, x)
    rows = jnp.sqrt(rate * weight)[:, None] * (x - mean)
    product = dot(rows.T, rows) + rate * (1 - rate) * jnp.outer(mean, mean)
    return mean, _factor(product, jnp.trace(product), rate)


def matched_factor(rows: Float[Array, "n d"], rate: Float[Array, ""]) -> Float[Array, "d d"]:
    """The Cholesky factor of C = (1 − γ)I + YᵀY, positive definite in floating point too.

    The identity keeps the eigenvalues of C above 1 − γ. Points so far out that rounding in YᵀY
    would outweigh it, and γ = 1 with fewer points than dimensions, get as much of the identity as
    the rounding needs; in all other cases nothing is added.
    """
    return _factor(dot(rows.T, rows), jnp.sum(rows**2), rate)


def _factor(
    product: Float[Array, "d d"], total: Float[Array, ""], rate: Float[Array, ""]
) -> Float[Array, "d d"]:
    """The same, of YᵀY and its trace."""
    ridge = jnp.maximum(1 - rate, 10 * jnp.finfo(product.dtype).eps * total)
    return jnp.linalg.cholesky(product + ridge * jnp.eye(product.shape[-1], dtype=product.dtype))
