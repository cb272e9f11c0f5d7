"""The Gaussian whose coordinates are independent but for a few directions: a metric for many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from scoreascent._structs import pytree
from scoreascent.families._numbers import check_fit, dot, matrix, vector
from scoreascent.families.base import Located

if TYPE_CHECKING:
    from jaxtyping import Array, Float


@pytree
@dataclass(frozen=True)
class FewDirections(Located):
    """A Gaussian N(loc, F Fᵀ), F = diag(unit) (I + B (diag(stretch) − I) Bᵀ), BᵀB = I.

    In units of its own each coordinate is as wide as any other, but along the columns of B, where
    it is wider or narrower. A draw takes time linear in d where a Cholesky factor takes d². It is
    no family for an optimiser: nothing would keep B's columns orthonormal.

    >>> q = FewDirections([0.0, 0.0], [1.0, 2.0], [[0.6], [0.8]], [3.0])
    >>> [[round(float(c), 5) for c in row] for row in q.cov]
    [[3.88, 7.68], [7.68, 24.48]]
    """

    loc: Float[Array, " d"]
    unit: Float[Array, " d"]
    basis: Float[Array, "d k"]
    stretch: Float[Array, " k"]

    def __post_init__(self) -> None:
        values: dict[str, Any] = {
            "loc": vector("loc", self.loc),
            "unit": vector("unit", self.unit),
            "basis": matrix("basis", self.basis),
            "stretch": vector("stretch", self.stretch),
        }
        dim, few = values["basis"].shape
        check_fit({"basis": (dim, few), "loc": (dim,), "unit": (dim,), "stretch": (few,)}, **values)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def root(self) -> Float[Array, "d d"]:
        """F, which is large where d is."""
        middle = dot(self.basis * (self.stretch - 1), self.basis.T)
        return self.unit[:, None] * (jnp.eye(self.dim, dtype=self.loc.dtype) + middle)

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix F Fᵀ."""
        return dot(self.root, self.root.T)

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""
        return self.unit * jnp.sqrt(1 + jnp.sum(self.basis**2 * (self.stretch**2 - 1), -1))

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + F ε."""
        return self.loc + self.unit * self._along(noise, self.stretch)

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        noise = self._along((z - self.loc) / self.unit, 1 / self.stretch)
        log_scale = jnp.sum(jnp.log(self.unit)) + jnp.sum(jnp.log(self.stretch))
        return -0.5 * jnp.sum(noise**2) - log_scale - 0.5 * self.dim * math.log(2 * math.pi)

    def _along(self, x: Float[Array, " d"], factor: Float[Array, " k"]) -> Float[Array, " d"]:
        """Return x with its part along each direction multiplied."""
        return x + dot(self.basis, (factor - 1) * dot(self.basis.T, x))

    @classmethod
    def plain(cls, mean: Any, sd: Any, few: int) -> FewDirections:
        """The member with these means and sds, and so many directions that are not used yet.

        >>> FewDirections.plain(jnp.zeros(3), jnp.ones(3), 2).log_prob(jnp.zeros(3)).shape
        ()
        """
        mean, sd = jnp.asarray(mean), jnp.asarray(sd)
        basis, stretch = jnp.eye(len(mean), few, dtype=mean.dtype), jnp.ones(few, mean.dtype)
        return cls(mean, sd, basis, stretch)
