"""The Gaussian whose covariance matrix is of low rank, plus a diagonal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

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
    spread,
    vector,
)
from scoreascent.families.base import Gaussian

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

DEFAULT_RANK = 10
FACTOR_SHARE = 0.01  # the share of the variance that a fresh member gives to its factor


@pytree
@dataclass(frozen=True)
class LowRank(Gaussian):
    """A Gaussian N(loc, F Fᵀ + diag(s²)), F = factor of shape (d, r), s = softplus(omega).

    Time and memory are linear in d: only `cov` makes a matrix of shape (d, d). Its base noise has
    d + r numbers. It fits what r directions explain of the posterior's correlations, and all of
    its marginal standard deviations.

    >>> q = LowRank.standard(1000, rank=5)
    >>> q.factor.shape, round(float(q.sd[0]), 5)
    ((1000, 5), 1.0)
    >>> q.sample(jax.random.key(0), (3,)).shape
    (3, 1000)
    """

    is_sparse: ClassVar[bool] = True

    loc: Float[Array, " d"]
    factor: Float[Array, "d r"]
    omega: Float[Array, " d"]

    def __post_init__(self) -> None:
        loc, omega = vector("loc", self.loc), vector("omega", self.omega)
        factor = matrix("factor", self.factor)
        shapes = {"factor": (len(loc), factor.shape[1]), "omega": loc.shape}
        check_fit(shapes, loc=loc, factor=factor, omega=omega)
        for name, value in {"loc": loc, "factor": factor, "omega": omega}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def standard(
        cls, dim: int, rank: int | None = None, scale: float = 1.0, dtype: Any = None
    ) -> LowRank:
        """Means 0 and standard deviations `scale` on ℝᵈ; see `from_moments` for the factor.

        >>> LowRank.standard(3).rank
        3
        """
        dim = check_count("dim", dim, 1)
        check_scale(scale)
        ones = jnp.ones(dim, dtype)
        return cls.from_moments(0 * ones, scale * ones, rank)

    @classmethod
    def from_moments(cls, mean: Any, sd: Any, rank: int | None = None) -> LowRank:
        """A member with these means and standard deviations, and hardly any correlation.

        At F = 0 the gradient in F vanishes whatever the points are, and equal columns stay equal,
        so F starts with cosines of r frequencies that carry a hundredth of the variance. `rank` is
        10, or the dimension if that is less, unless given.
        """
        mean, sd = vector("mean", mean), vector("sd", sd)
        dim = len(mean)
        if known(sd) and not np.all(np.asarray(sd) > 0):
            raise ValueError(f"sd must be positive everywhere, got {sd}")
        rank = check_count("rank", min(DEFAULT_RANK, dim) if rank is None else rank, 1)
        if rank > dim:
            raise ValueError(
                f"rank must be at most the dimension {dim}, got {rank}; "
                "FullRank has no more parameters than that"
            )
        angle = np.outer(np.arange(dim) + 0.5, np.arange(rank)) * (math.pi / dim)
        factor = sd[:, None] * jnp.asarray(math.sqrt(FACTOR_SHARE / rank) * np.cos(angle), sd.dtype)
        rest = jnp.sqrt(sd**2 - jnp.sum(factor**2, -1))
        return cls(mean, factor, inverse_softplus(rest))

    @property
    def rank(self) -> int:
        """The number of columns r of the factor."""
        return int(self.factor.shape[-1])

    @property
    def own_sd(self) -> Float[Array, " d"]:
        """The standard deviation s that a coordinate has apart from the factor, softplus(ω)."""
        return jax.nn.softplus(self.omega)

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""
        return jnp.sqrt(self.own_sd**2 + jnp.sum(self.factor**2, -1))

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix, which is large where d is."""
        own = self.own_sd[..., None] ** 2 * jnp.eye(self.dim, dtype=self.loc.dtype)
        return dot(self.factor, jnp.swapaxes(self.factor, -1, -2)) + own

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d+r"]:
        """A standard normal vector of length d + r."""
        return jax.random.normal(key, (self.dim + self.rank,), self.loc.dtype)

    def transport(self, noise: Float[Array, " d+r"]) -> Float[Array, " d"]:
        """Return loc + s ε + F ε′; ε is the first d numbers of the noise, ε′ the other r."""
        own, common = noise[: self.dim], noise[self.dim :]
        return self.loc + self.own_sd * own + dot(self.factor, common)

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ), by the Woodbury identity."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        own = self.own_sd
        scaled, root = self.woodbury()
        x = (z - self.loc) * (1 / own)
        log_scale = (
            jnp.sum(jnp.log(own))
            + jnp.sum(jnp.log(jnp.diagonal(root)))
            + 0.5 * self.dim * math.log(2 * math.pi)
        )
        return -0.5 * square(scaled, root, x) - log_scale

    def woodbury(self) -> tuple[Float[Array, "d r"], Float[Array, "r r"]]:
        """G = diag(s)⁻¹ F and the Cholesky factor of I + GᵀG."""
        scaled = self.factor / self.own_sd[:, None]
        return scaled, jnp.linalg.cholesky(
            jnp.eye(self.rank, dtype=self.loc.dtype) + dot(scaled.T, scaled)
        )

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> LowRank:
        """A step of length γ, 0 < γ ≤ 1, on the inclusive KL: moment matching, then a projection.

        Let S be the covariance that `FullRank.match` would reach from here. The new means and
        standard deviations are those of S. The new factor is the best one for S given today's s:
        the leading r directions of S in units of s, each without the variance that s explains; what
        they leave goes to the diagonal. So the members at which the expected step vanishes are
        stationary points of the inclusive KL. No s shrinks by more than √(1 − γ). Points of weight
        zero do not count.

        >>> z = jnp.array([[3.0, 3.1], [-3.0, -3.1], [0.1, -0.1], [-0.1, 0.1]])
        >>> q = LowRank.standard(2, rank=1).match(z, jnp.full(4, 0.25), 1.0)
        >>> [round(float(v), 5) for v in q.sd**2]
        [4.505, 4.81]
        """
        weight, rate = weight.astype(self.loc.dtype), jnp.asarray(rate, self.loc.dtype)
        own = self.own_sd
        x = (masked(z, weight, self.loc) - self.loc) / own
        mean, rows = spread(x, weight, rate)
        old = self.factor / own[:, None]
        # in units of s, the covariance is now M Mᵀ + (1 − γ)I
        columns = jnp.concatenate([jnp.sqrt(1 - rate) * old, rows.T], -1)
        factor = _nearest(_leading(columns, self.rank, rate), old)
        # what the factor leaves is not negative but for rounding
        rest = jnp.maximum(jnp.sum(columns**2, -1) - jnp.sum(factor**2, -1), 0)
        return unchecked(
            self,
            loc=self.loc + rate * own * mean,
            factor=own[:, None] * factor,
            omega=inverse_softplus(own * jnp.sqrt(1 - rate + rest)),
        )

    def covariance_parts(self) -> tuple[Float[Array, "d r"], Float[Array, " d"]]:
        """Return F and s²."""
        return self.factor, self.own_sd**2

    def half_log_det(self) -> Float[Array, ""]:
        """Return ½ log |Σ|."""
        root = self.woodbury()[1]
        return jnp.sum(jnp.log(self.own_sd)) + jnp.sum(jnp.log(jnp.diagonal(root)))

    def precision_form(self, x: Float[Array, "d k"]) -> Float[Array, ""]:
        """Return tr xᵀ Σ⁻¹ x."""
        return square(*self.woodbury(), x / self.own_sd[:, None])

    def precision_trace(self, variance: Float[Array, " d"]) -> Float[Array, ""]:
        """Return tr Σ⁻¹ diag(v)."""
        scaled, root = self.woodbury()
        explained = jnp.sum(solve(root, scaled.T) ** 2, 0)
        return jnp.sum(variance / self.own_sd**2 * (1 - explained))

    def describe(self) -> str:
        """Name the family and its rank."""
        return f"LowRank of rank {self.rank}"

    def pooled(self) -> LowRank:
        """Return the member with means and sds of the mixture of members stacked along an axis.

        The factor is their average, and what that leaves of the variances goes to the diagonal.

        >>> q = [LowRank.from_moments([m, 0.0], [1.0, 2.0], rank=1) for m in (1.0, -1.0)]
        >>> both = jax.tree.map(lambda *x: jnp.stack(x), *q).pooled()
        >>> [round(float(x), 4) for x in both.sd**2]
        [2.0, 4.0]
        """
        loc, factor = (np.asarray(x, np.float64) for x in (self.loc, self.factor))
        var = np.asarray(jax.nn.softplus(self.omega), np.float64) ** 2 + np.sum(factor**2, -1)
        total = var.mean(0) + loc.var(0)
        factor = factor.mean(0)
        own = np.sqrt(np.maximum(total - np.sum(factor**2, -1), 1e-6 * total))
        dtype = self.loc.dtype
        return unchecked(
            self,
            loc=jnp.asarray(loc.mean(0), dtype),
            factor=jnp.asarray(factor, dtype),
            omega=inverse_softplus(jnp.asarray(own, dtype)),
        )


def square(
    scaled: Float[Array, "d r"], root: Float[Array, "r r"], x: Float[Array, ...]
) -> Float[Array, ""]:
    """Return tr xᵀ(I + GGᵀ)⁻¹x.

    Written as min_b ‖x − Gb‖² + ‖b‖², where errors of b count in second order only: the usual
    ‖x‖² − ‖…‖² cancels where the factor explains nearly all of x.
    """
    b = cho_solve((root, True), dot(scaled.T, x))
    return jnp.sum((x - dot(scaled, b)) ** 2) + jnp.sum(b**2)


def _leading(
    columns: Float[Array, "d k"], rank: int, rate: Float[Array, ""]
) -> Float[Array, "d r"]:
    """Return the G for which I + GGᵀ is nearest in KL to M Mᵀ + (1 − γ)I.

    That is the leading directions of M Mᵀ with their eigenvalues λ lowered by γ; they come from
    the smaller of the two Gram matrices.
    """
    if columns.shape[0] < columns.shape[1]:
        values, axes = jnp.linalg.eigh(dot(columns, columns.T))
        leading = axes[:, -rank:] * jnp.sqrt(jnp.maximum(values[-rank:], 0))
    else:
        _, axes = jnp.linalg.eigh(dot(columns.T, columns))
        leading = dot(columns, axes[:, -rank:])
    value = jnp.maximum(jnp.sum(leading**2, 0), jnp.finfo(columns.dtype).tiny)
    # a direction that explains less than s does is kept very small, for a zero has no gradient
    return leading * jnp.sqrt(jnp.maximum(1 - rate / value, 1e-6))


def _nearest(new: Float[Array, "d r"], old: Float[Array, "d r"]) -> Float[Array, "d r"]:
    """Return `new` with its columns rotated to be as near as can be to `old`; new newᵀ stays.

    So the factor moves continuously, and averages of it along a run mean something.
    """
    left, _, right = jnp.linalg.svd(dot(new.T, old))
    return dot(new, dot(left, right))
