"""The mean-field Gaussian, σ = softplus(ω)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._structs import check_count, pytree, unchecked
from scoreascent.families._numbers import inverse_softplus, known, masked, vector
from scoreascent.families.base import Gaussian

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
@dataclass(frozen=True)
class MeanField(Gaussian):
    """Independent Gaussians: z_i ~ N(loc_i, σ_i²) with σ = softplus(omega).

    Its inclusive-KL optimum has the posterior's own means and marginal standard deviations,
    however correlated the posterior is; that is what score ascent fits.

    >>> q = MeanField.from_moments([0.0, 1.0], [1.0, 2.0])
    >>> q.mean.tolist(), [round(float(s), 5) for s in q.sd]
    ([0.0, 1.0], [1.0, 2.0])
    >>> q.sample(jax.random.key(0), (5,)).shape
    (5, 2)
    """

    loc: Float[Array, " d"]
    omega: Float[Array, " d"]

    def __post_init__(self) -> None:
        for name in ("loc", "omega"):
            object.__setattr__(self, name, vector(name, getattr(self, name)))
        if self.loc.shape != self.omega.shape or self.loc.dtype != self.omega.dtype:
            raise ValueError(
                f"loc and omega must have the same shape and dtype, got {self.loc.shape} "
                f"{self.loc.dtype} and {self.omega.shape} {self.omega.dtype}"
            )

    @classmethod
    def standard(cls, dim: int, scale: float = 1.0, dtype: Any = None) -> MeanField:
        """N(0, scale² I) on ℝᵈ.

        >>> MeanField.standard(2).sd.tolist()
        [1.0, 1.0]
        """
        dim = check_count("dim", dim, 1)
        ones = jnp.ones(dim, dtype)
        return cls.from_moments(0 * ones, scale * ones)

    @classmethod
    def from_moments(cls, mean: Any, sd: Any) -> MeanField:
        """The member with these means and standard deviations."""
        mean, sd = vector("mean", mean), vector("sd", sd)
        if known(sd) and not np.all(np.asarray(sd) > 0):
            raise ValueError(f"sd must be positive everywhere, got {sd}")
        return cls(mean, inverse_softplus(sd))

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate, softplus(ω)."""
        return jax.nn.softplus(self.omega)

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The (diagonal) covariance matrix."""
        return jnp.diag(self.sd**2)

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + σ ε."""
        return self.loc + self.sd * noise

    def forward(self, noise: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return z = T(ε), and log |det T'(ε)|."""
        return self.transport(noise), jnp.sum(jnp.log(self.sd))

    def inverse(self, z: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return ε = T⁻¹(z), and log |det T'(ε)| there."""
        return (z - self.loc) / self.sd, jnp.sum(jnp.log(self.sd))

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        noise = (z - self.loc) * (1 / self.sd)
        log_scale = jnp.sum(jnp.log(self.sd)) + 0.5 * self.dim * math.log(2 * math.pi)
        return -0.5 * jnp.sum(noise**2) - log_scale

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> MeanField:
        """The member whose E z and E z² are (1 − γ) of this one's plus γ of the weighted points'.

        That is the natural-gradient step of length γ, 0 < γ ≤ 1, on the inclusive KL: means and
        variances follow the points with no scale of their own. Points of weight zero do not count.

        >>> q = MeanField.standard(1).match(jnp.array([[0.0], [4.0]]), jnp.array([0.5, 0.5]), 1.0)
        >>> round(float(q.mean[0]), 5), round(float(q.sd[0]), 5)
        (2.0, 2.0)
        """
        weight, rate = weight.astype(self.loc.dtype), jnp.asarray(rate, self.loc.dtype)
        x = (masked(z, weight, self.loc) - self.loc) / self.sd
        loc, omega = matched(self.loc, self.sd, x, weight[:, None], rate)
        return unchecked(self, loc=loc, omega=omega)

    def covariance_parts(self) -> tuple[None, Float[Array, " d"]]:
        """Return no columns, and the variances."""
        return None, self.sd**2

    def half_log_det(self) -> Float[Array, ""]:
        """Return ½ log |Σ|."""
        return jnp.sum(jnp.log(self.sd))

    def precision_form(self, x: Float[Array, "d k"]) -> Float[Array, ""]:
        """Return tr xᵀ Σ⁻¹ x."""
        return jnp.sum((x / self.sd[:, None]) ** 2)

    def precision_trace(self, variance: Float[Array, " d"]) -> Float[Array, ""]:
        """Return tr Σ⁻¹ diag(v)."""
        return jnp.sum(variance / self.sd**2)


def matched(
    loc: Float[Array, " d"],
    scale: Float[Array, " d"],
    x: Float[Array, "n d"],
    weight: Float[Array, "n ..."],
    rate: Float[Array, ...],
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """The new loc and omega, given points x = (z − loc)/scale; coordinates may weigh them anew."""
    mean = jnp.sum(weight * x, 0)
    about = jnp.sum(weight * (x - mean) ** 2, 0)
    grown = jnp.sqrt(1 - rate + rate * about + rate * (1 - rate) * mean**2)
    return loc + rate * scale * mean, inverse_softplus(scale * grown)
