"""KL divergences of Gaussian families, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from scoreascent.families.base import Family
from scoreascent.families.fullrank import FullRank
from scoreascent.families.lowrank import LowRank, square
from scoreascent.families.meanfield import MeanField

if TYPE_CHECKING:
    from jaxtyping import Array, Float

GAUSSIANS = (MeanField, FullRank, LowRank)


def kl(p: Family, q: Family) -> Float[Array, ""]:
    """KL(p‖q) = E_p log p/q of two Gaussians, each a `MeanField`, a `FullRank` or a `LowRank`.

    It is differentiable in both. Without a `FullRank`, nothing of shape (d, d) is made.

    >>> p = MeanField.from_moments([1.0], [1.0])
    >>> round(float(kl(p, FullRank.standard(1))), 5)
    0.5
    """
    for name, family in {"p": p, "q": q}.items():
        if not isinstance(family, GAUSSIANS):
            raise ValueError(
                f"{name} must be a MeanField, a FullRank or a LowRank, got {family!r}: its KL has "
                "no closed form; average p.log_prob(z) − q.log_prob(z) over draws z of p"
            )
    if p.dim != q.dim:
        raise ValueError(f"p and q must have one dimension, got {p.dim} and {q.dim}")
    columns, variance = _parts(p)
    trace = _quadratic(q, (p.mean - q.mean)[:, None])
    if columns is not None:
        trace += _quadratic(q, columns)
    if variance is not None:
        trace += _of_diagonal(q, variance)
    twice = trace - q.dim + 2 * (_half_log_det(q) - _half_log_det(p))
    return jnp.maximum(0.5 * twice, 0)  # rounding must not make it negative at p = q


def _parts(p: Any) -> tuple[Float[Array, "d k"] | None, Float[Array, " d"] | None]:
    """B and v, either of them missing, with Σ = B Bᵀ + diag(v)."""
    if isinstance(p, MeanField):
        return None, p.sd**2
    if isinstance(p, FullRank):
        return p.tril, None
    return p.factor, p.own_sd**2


def _half_log_det(q: Any) -> Float[Array, ""]:
    """½ log |Σ|."""
    if isinstance(q, MeanField):
        return jnp.sum(jnp.log(q.sd))
    if isinstance(q, FullRank):
        return jnp.sum(jnp.log(jnp.diagonal(q.tril)))
    return jnp.sum(jnp.log(q.own_sd)) + jnp.sum(jnp.log(jnp.diagonal(q.woodbury()[1])))


def _quadratic(q: Any, x: Float[Array, "d k"]) -> Float[Array, ""]:
    """Tr xᵀ Σ⁻¹ x."""
    if isinstance(q, MeanField):
        return jnp.sum((x / q.sd[:, None]) ** 2)
    if isinstance(q, FullRank):
        return jnp.sum(solve_triangular(q.tril, x, lower=True) ** 2)
    scaled, root = q.woodbury()
    return square(scaled, root, x / q.own_sd[:, None])


def _of_diagonal(q: Any, variance: Float[Array, " d"]) -> Float[Array, ""]:
    """Tr Σ⁻¹ diag(v)."""
    if isinstance(q, MeanField):
        return jnp.sum(variance / q.sd**2)
    if isinstance(q, FullRank):
        return _quadratic(q, jnp.diag(jnp.sqrt(variance)))
    scaled, root = q.woodbury()
    explained = jnp.sum(solve_triangular(root, scaled.T, lower=True) ** 2, 0)
    return jnp.sum(variance / q.own_sd**2 * (1 - explained))
