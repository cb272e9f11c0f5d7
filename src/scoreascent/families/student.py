"""Student-t families: heavier tails than a Gaussian's, of a fixed number of degrees of freedom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._structs import check_count, pytree, unchecked
from scoreascent._triangles import solve
from scoreascent.families import fullrank, meanfield
from scoreascent.families._numbers import (
    check_fit,
    check_scale,
    dot,
    inverse_softplus,
    known,
    masked,
    matrix,
    vector,
)
from scoreascent.families.base import Located
from scoreascent.families.fullrank import cholesky, lower, raw_of, tril_of, whiten

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

DEFAULT_DF = 5.0


@pytree(static=("df",))
@dataclass(frozen=True)
class StudentT(Located):
    """Independent Student-t: (z_i − loc_i)/s_i has `df` degrees of freedom, s = softplus(omega).

    Proposals from it reach into tails that a Gaussian's do not. `df` is not fitted, and must exceed
    2; `sd` is the standard deviation s √(df/(df − 2)), not the scale s.

    >>> q = StudentT.from_moments([0.0, 1.0], [1.0, 2.0])
    >>> q.df, [round(float(s), 5) for s in q.sd]
    (5.0, [1.0, 2.0])
    """

    loc: Float[Array, " d"]
    omega: Float[Array, " d"]
    df: float = DEFAULT_DF

    def __post_init__(self) -> None:
        loc, omega = vector("loc", self.loc), vector("omega", self.omega)
        check_fit({"omega": loc.shape}, loc=loc, omega=omega)
        for name, value in {"loc": loc, "omega": omega, "df": _check_df(self.df)}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def standard(
        cls, dim: int, scale: float = 1.0, dtype: Any = None, df: float = DEFAULT_DF
    ) -> StudentT:
        """Means 0 and standard deviations `scale` on ℝᵈ.

        >>> [round(float(s), 5) for s in StudentT.standard(2).sd]
        [1.0, 1.0]
        """
        dim = check_count("dim", dim, 1)
        check_scale(scale)
        ones = jnp.ones(dim, dtype)
        return cls.from_moments(0 * ones, scale * ones, df)

    @classmethod
    def from_moments(cls, mean: Any, sd: Any, df: float = DEFAULT_DF) -> StudentT:
        """The member with these means and standard deviations."""
        mean, sd = vector("mean", mean), vector("sd", sd)
        if known(sd) and not np.all(np.asarray(sd) > 0):
            raise ValueError(f"sd must be positive everywhere, got {sd}")
        return cls(mean, inverse_softplus(sd / _stretch(df)), df)

    @property
    def scale(self) -> Float[Array, " d"]:
        """The scale s of every coordinate, softplus(ω)."""
        return jax.nn.softplus(self.omega)

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""
        return _stretch(self.df) * self.scale

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The (diagonal) covariance matrix."""
        return self.sd[..., None] ** 2 * jnp.eye(self.dim, dtype=self.loc.dtype)

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Independent Student-t variables."""
        # Bailey's polar method: a radius with P(r > x) = (1 + x²/ν)^(−ν/2) and an angle, as for
        # normal variables, with no rejection
        u, v = jax.random.uniform(key, (2, *self.loc.shape), self.loc.dtype)
        radius = jnp.sqrt(self.df * jnp.expm1(-2 / self.df * jnp.log1p(-u)))
        return radius * jnp.cos(2 * math.pi * v)

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + s ε."""
        return self.loc + self.scale * noise

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        noise = (z - self.loc) * (1 / self.scale)
        log_scale = jnp.sum(jnp.log(self.scale)) + self.dim * _log_norm(self.df, 1)
        return -0.5 * (self.df + 1) * jnp.sum(jnp.log1p(noise**2 / self.df)) - log_scale

    def radius(self, fall: Any) -> Any:
        """Return the distance, in scales, along a diagonal; it is shorter along an axis."""
        each = np.expm1(2 * np.maximum(fall, 1e-12) / (self.dim * (self.df + 1)))
        return np.sqrt(self.dim * self.df * each)

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> StudentT:
        """A step of length γ, 0 < γ ≤ 1, on the inclusive KL: moment matching of weighted EM.

        A t variable is a Gaussian of random precision u, and E[u | z] = (ν + 1)/(ν + x²) with
        x = (z − loc)/s: the expectation parameters of that Gaussian follow the points so weighted.
        The step is the natural gradient's, shortened by (ν + 1)/(ν + 3), and it vanishes in
        expectation where the inclusive KL is stationary. Points of weight zero do not count.
        """
        weight, rate = weight.astype(self.loc.dtype), jnp.asarray(rate, self.loc.dtype)
        x = (masked(z, weight, self.loc) - self.loc) / self.scale
        precision = (self.df + 1) / (self.df + x**2)
        weight, rate = _reweighted(weight[:, None], precision, rate)
        loc, omega = meanfield.matched(self.loc, self.scale, x, weight, rate)
        return unchecked(self, loc=loc, omega=omega)


@pytree(static=("df",))
@dataclass(frozen=True)
class FullRankStudentT(Located):
    """The multivariate Student-t: L⁻¹(z − loc) is spherical t; L is made of raw as in `FullRank`.

    `df` is not fitted, and must exceed 2; `cov` is the covariance matrix L Lᵀ df/(df − 2), not the
    scale matrix L Lᵀ.

    >>> q = FullRankStudentT.from_moments([0.0, 1.0], [[1.0, 0.6], [0.6, 1.0]], df=4)
    >>> [[round(float(c), 5) for c in row] for row in q.cov]
    [[1.0, 0.6], [0.6, 1.0]]
    """

    loc: Float[Array, " d"]
    raw: Float[Array, "d d"]
    df: float = DEFAULT_DF

    def __post_init__(self) -> None:
        loc, raw = vector("loc", self.loc), matrix("raw", self.raw)
        check_fit({"raw": 2 * loc.shape}, loc=loc, raw=raw)
        for name, value in {"loc": loc, "raw": lower(raw), "df": _check_df(self.df)}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def standard(
        cls, dim: int, scale: float = 1.0, dtype: Any = None, df: float = DEFAULT_DF
    ) -> FullRankStudentT:
        """Mean 0 and covariance scale² I on ℝᵈ.

        >>> [round(float(s), 5) for s in FullRankStudentT.standard(2).sd]
        [1.0, 1.0]
        """
        dim = check_count("dim", dim, 1)
        check_scale(scale)
        diagonal = inverse_softplus(scale / _stretch(df) * jnp.ones(dim, dtype))
        return cls(0 * diagonal, jnp.diag(diagonal), df)

    @classmethod
    def from_moments(cls, mean: Any, cov: Any, df: float = DEFAULT_DF) -> FullRankStudentT:
        """The member with this mean and this covariance matrix."""
        mean, tril = vector("mean", mean), cholesky(cov)
        check_fit({"cov": 2 * mean.shape}, mean=mean, cov=tril)
        return cls(mean, raw_of(tril / _stretch(df)), df)

    @property
    def tril(self) -> Float[Array, "d d"]:
        """The Cholesky factor L of the scale matrix."""
        return tril_of(self.raw)

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""
        return _stretch(self.df) * jnp.sqrt(jnp.sum(self.tril**2, -1))

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix."""
        return _stretch(self.df) ** 2 * dot(self.tril, jnp.swapaxes(self.tril, -1, -2))

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """A spherical Student-t vector: its numbers share one random scale."""
        key_normal, key_scale = jax.random.split(key)
        normal = jax.random.normal(key_normal, self.loc.shape, self.loc.dtype)
        precision = jax.random.gamma(key_scale, 0.5 * self.df, dtype=self.loc.dtype)
        return normal * jax.lax.rsqrt(precision / (0.5 * self.df))

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + L ε."""
        return self.loc + dot(self.tril, noise)

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        tril = self.tril
        noise = solve(tril, z - self.loc)
        log_scale = jnp.sum(jnp.log(jnp.diagonal(tril))) + _log_norm(self.df, self.dim)
        return -0.5 * (self.df + self.dim) * jnp.log1p(jnp.sum(noise**2) / self.df) - log_scale

    def radius(self, fall: Any) -> Any:
        """Return ‖L⁻¹(z − loc)‖ where log q has fallen by so many nats."""
        return np.sqrt(self.df * np.expm1(2 * np.maximum(fall, 1e-12) / (self.df + self.dim)))

    def describe(self) -> str:
        """Name the family, for a person."""
        return f"{type(self).__name__} with {self.df:g} degrees of freedom"

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> FullRankStudentT:
        """A step of length γ, 0 < γ ≤ 1, on the inclusive KL: moment matching of weighted EM.

        As for `StudentT`, with one precision u = (ν + d)/(ν + ‖x‖²) a point, x = L⁻¹(z − loc): the
        natural gradient's step, shortened by (ν + d)/(ν + d + 2). No direction shrinks by more than
        √(1 − γ′), γ′ = γ ū/(1 − γ + γ ū).
        """
        weight, rate = weight.astype(self.loc.dtype), jnp.asarray(rate, self.loc.dtype)
        tril = self.tril
        x = whiten(self.loc, tril, masked(z, weight, self.loc))
        precision = (self.df + self.dim) / (self.df + jnp.sum(x**2, -1))
        loc, raw = fullrank.matched(self.loc, tril, x, *_reweighted(weight, precision, rate))
        return unchecked(self, loc=loc, raw=raw)


def _check_df(df: Any) -> float:
    try:
        number = float(df)
    except (TypeError, ValueError):
        number = math.nan
    if not 2 < number < math.inf:
        raise ValueError(
            f"df must be a number above 2, for which standard deviations exist, got {df!r}"
        )
    return number


def _stretch(df: Any) -> float:
    """Return what a scale has to be multiplied with to be a standard deviation."""
    df = _check_df(df)
    return math.sqrt(df / (df - 2))


def _log_norm(df: float, dim: int) -> float:
    """The log of the constant by which a standard t density on ℝᵈ is divided."""
    gammas = math.lgamma(0.5 * df) - math.lgamma(0.5 * (df + dim))
    return gammas + 0.5 * dim * math.log(df * math.pi)


def _reweighted(
    weight: Float[Array, "n ..."], precision: Float[Array, "n ..."], rate: Float[Array, ""]
) -> tuple[Float[Array, "n ..."], Float[Array, ...]]:
    """The weights and the rate of a Gaussian step whose points count u times.

    q itself has E u = 1, so (1 − γ) of it and γ ū of the points make the new Gaussian. Dividing by
    their sum rather than by one leaves the fixed point where it is, and gets there sooner.
    """
    each = weight * precision
    total = jnp.sum(each, 0)
    return each / total, rate * total / (1 - rate + rate * total)
