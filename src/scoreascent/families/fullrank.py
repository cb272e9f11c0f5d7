"""The Gaussian with a full covariance matrix, by its Cholesky factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import default_dtype
from scoreascent._layout import by_chain
from scoreascent._structs import check_count, pytree, unchecked
from scoreascent._triangles import solve
from scoreascent.families._numbers import (
    check_fit,
    check_scale,
    dot,
    inverse_softplus,
    known,
    masked,
    matrix,
    moved,
    vector,
)
from scoreascent.families.base import Gaussian

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
@dataclass(frozen=True)
class FullRank(Gaussian):
    """A Gaussian N(loc, L Lᵀ); L has the strict lower part of raw, and softplus of its diagonal.

    Nothing above the diagonal of `raw` counts: it is set to zero, and its gradient is zero. The
    inclusive-KL optimum has the posterior's means and its whole covariance matrix, and proposals
    from it follow the posterior's correlations.

    >>> q = FullRank.from_moments([0.0, 1.0], [[1.0, 0.6], [0.6, 1.0]])
    >>> [[round(float(c), 5) for c in row] for row in q.tril]
    [[1.0, 0.0], [0.6, 0.8]]
    >>> q.sample(jax.random.key(0), (5,)).shape
    (5, 2)
    """

    loc: Float[Array, " d"]
    raw: Float[Array, "d d"]

    def __post_init__(self) -> None:
        loc, raw = vector("loc", self.loc), matrix("raw", self.raw)
        check_fit({"raw": 2 * loc.shape}, loc=loc, raw=raw)
        object.__setattr__(self, "loc", loc)
        object.__setattr__(self, "raw", lower(raw))

    @classmethod
    def standard(cls, dim: int, scale: float = 1.0, dtype: Any = None) -> FullRank:
        """N(0, scale² I) on ℝᵈ.

        >>> FullRank.standard(2).sd.tolist()
        [1.0, 1.0]
        """
        dim = check_count("dim", dim, 1)
        check_scale(scale)
        dtype = default_dtype() if dtype is None else dtype
        return cls.from_factor(np.zeros(dim, dtype), scale * np.eye(dim, dtype=dtype))

    @classmethod
    def from_moments(cls, mean: Any, cov: Any) -> FullRank:
        """The member with this mean and this covariance matrix."""
        mean, tril = vector("mean", mean), cholesky(cov)
        check_fit({"cov": 2 * mean.shape}, mean=mean, cov=tril)
        return cls(mean, raw_of(tril))

    @classmethod
    def from_factor(cls, mean: Any, tril: Any) -> FullRank:
        """The member with this mean and this Cholesky factor of the covariance matrix.

        >>> q = FullRank.from_factor([0.0, 1.0], [[1.0, 0.0], [0.6, 0.8]])
        >>> [[round(float(c), 5) for c in row] for row in q.cov]
        [[1.0, 0.6], [0.6, 1.0]]
        """
        mean, tril = vector("mean", mean), matrix("tril", tril)
        check_fit({"tril": 2 * mean.shape}, mean=mean, tril=tril)
        if known(tril) and not np.all(np.diagonal(np.asarray(tril)) > 0):
            raise ValueError("tril must have a positive diagonal")
        return cls(mean, raw_of(tril))

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""
        return row_norms(self.tril)

    @property
    def tril(self) -> Float[Array, "d d"]:
        """The Cholesky factor L of the covariance matrix."""
        return tril_of(self.raw)

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix L Lᵀ."""
        return dot(self.tril, jnp.swapaxes(self.tril, -1, -2))

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + L ε."""
        return self.loc + dot(self.tril, noise)

    def forward(self, noise: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return z = T(ε), and log |det T'(ε)|."""
        return self.transport(noise), self.half_log_det()

    def inverse(self, z: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return ε = T⁻¹(z), and log |det T'(ε)| there."""
        return solve(self.tril, z - self.loc), self.half_log_det()

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        tril = self.tril
        noise = solve(tril, z - self.loc)
        log_scale = jnp.sum(jnp.log(jnp.diagonal(tril))) + 0.5 * self.dim * math.log(2 * math.pi)
        return -0.5 * jnp.sum(noise**2) - log_scale

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> FullRank:
        """The member whose E z and E z zᵀ are (1 − γ) of this one's plus γ of the weighted points'.

        That is the natural-gradient step of length γ, 0 < γ ≤ 1, on the inclusive KL: means and
        covariances follow the points with no scale of their own. It is taken where q is standard,
        x = L⁻¹(z − loc), so that an ill-conditioned L does not matter, and no direction shrinks by
        more than √(1 − γ). Points of weight zero do not count.

        >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> q = FullRank.standard(2).match(z, jnp.full(4, 0.25), 1.0)
        >>> [[round(float(c), 5) for c in row] for row in q.cov]
        [[0.5, 0.0], [0.0, 2.0]]
        """
        weight, rate = weight.astype(self.loc.dtype), jnp.asarray(rate, self.loc.dtype)
        x = whiten(self.loc, self.tril, masked(z, weight, self.loc))
        loc, raw = matched(self.loc, self.tril, x, weight, rate)
        return unchecked(self, loc=loc, raw=raw)

    def covariance_parts(self) -> tuple[Float[Array, "d d"], None]:
        """Return L, and no diagonal beside it."""
        return self.tril, None

    def half_log_det(self) -> Float[Array, ""]:
        """Return ½ log |Σ|."""
        return jnp.sum(jnp.log(jnp.diagonal(self.tril)))

    def precision_form(self, x: Float[Array, "d k"]) -> Float[Array, ""]:
        """Return tr xᵀ Σ⁻¹ x."""
        return jnp.sum(solve(self.tril, x) ** 2)

    def pooled(self) -> FullRank:
        """Return the member with the moments of the mixture of members stacked along a first axis.

        >>> q = FullRank.from_moments([1.0], [[1.0]]), FullRank.from_moments([-1.0], [[3.0]])
        >>> both = jax.tree.map(lambda *x: jnp.stack(x), *q).pooled()
        >>> [round(float(x), 5) for x in (both.mean[0], both.cov[0, 0])]
        [0.0, 3.0]
        """
        loc = np.asarray(self.loc, np.float64)
        tril = np.asarray(tril_of(self.raw), np.float64)
        away = loc - loc.mean(0)
        cov = np.mean(tril @ np.swapaxes(tril, -1, -2) + away[:, :, None] * away[:, None], 0)
        dtype = self.loc.dtype
        root = jnp.asarray(np.linalg.cholesky(cov), dtype)
        return unchecked(self, loc=jnp.asarray(loc.mean(0), dtype), raw=raw_of(root))


def whiten(
    loc: Float[Array, " d"], tril: Float[Array, "d d"], z: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """Return x = L⁻¹(z − loc), row by row."""
    return by_chain(_whitened, (loc, tril))(z)


def _whitened(whole: Any, z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    loc, tril = whole
    return solve(tril, (z - loc).T).T


def matched(
    loc: Float[Array, " d"],
    tril: Float[Array, "d d"],
    x: Float[Array, "n d"],
    weight: Float[Array, " n"],
    rate: Float[Array, ""],
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The new loc and raw, given points x = L⁻¹(z − loc)."""
    mean, factor = moved(x, weight, rate)
    return loc + rate * dot(tril, mean), raw_of(dot(tril, factor))


def lower(raw: Any) -> Float[Array, "d d"]:
    """`raw` with zeros above its diagonal; nothing is compiled for numbers that are there."""
    return jnp.asarray(np.tril(np.asarray(raw))) if known(raw) else jnp.tril(raw)


# For numbers that are there nothing is compiled: numpy has them at once.


def row_norms(matrix: Float[Array, "*b d k"]) -> Float[Array, "*b d"]:
    """The Euclidean length of every row."""
    if known(matrix):
        return jnp.asarray(np.sqrt(np.sum(np.asarray(matrix) ** 2, -1)))
    return jnp.sqrt(jnp.sum(matrix**2, -1))


def tril_of(raw: Float[Array, "*b d d"]) -> Float[Array, "*b d d"]:
    """The strict lower part of `raw`, and softplus of its diagonal."""
    if known(raw):
        softplus = lambda x: np.logaddexp(x, np.zeros_like(x))  # noqa: E731
        return jnp.asarray(_with_diagonal(np.asarray(raw), softplus))
    diagonal = jax.nn.softplus(jnp.diagonal(raw, axis1=-2, axis2=-1))
    return jnp.tril(raw, -1) + diagonal[..., None] * jnp.eye(raw.shape[-1], dtype=raw.dtype)


def raw_of(tril: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The `raw` of this Cholesky factor."""
    if known(tril):
        return jnp.asarray(_with_diagonal(np.asarray(tril), lambda x: x + np.log(-np.expm1(-x))))
    return jnp.tril(tril, -1) + jnp.diag(inverse_softplus(jnp.diagonal(tril)))


def _with_diagonal(matrix: Any, change: Callable[[Any], Any]) -> Any:
    """The lower triangle of matrices, their diagonals changed."""
    low, at = np.tril(matrix), np.arange(matrix.shape[-1])
    low[..., at, at] = change(low[..., at, at])
    return low


def cholesky(cov: Any) -> Float[Array, "d d"]:
    """The Cholesky factor of a covariance matrix, or a ValueError that says what it is not."""
    cov = matrix("cov", cov)
    if cov.shape[0] != cov.shape[1]:
        raise ValueError(f"cov must be square, got shape {cov.shape}")
    if not known(cov):
        return jnp.linalg.cholesky(cov)
    host = np.asarray(cov, np.float64)
    scale = np.sqrt(np.abs(np.outer(np.diag(host), np.diag(host))))
    if not np.all(np.abs(host - host.T) <= 1e-5 * scale):
        raise ValueError(
            f"cov must be symmetric, but differs from its transpose by up to "
            f"{np.max(np.abs(host - host.T)):.3g}; pass (cov + cov.T) / 2 if that is rounding"
        )
    try:
        tril = np.linalg.cholesky((host + host.T) / 2)
    except np.linalg.LinAlgError:
        raise ValueError(
            "cov must be positive definite, but its smallest eigenvalue is "
            f"{np.linalg.eigvalsh(host)[0]:.3g}; add a small multiple of the identity, or drop "
            "coordinates that others determine"
        ) from None
    return jnp.asarray(tril, cov.dtype)
