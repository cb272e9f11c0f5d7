"""Defensive mixtures: heavier tails for the proposals of a kernel, never for the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from numpyro import distributions as dist

from scoreascent._structs import Config
from scoreascent.families.base import Family

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


@dataclass(frozen=True, repr=False)
class Defensive(Config):
    """Propose from q_def = α q + (1 − α) ν with a heavy-tailed ν, so that π/q_def stays bounded.

    `tail="student"` takes for ν independent Student-t with `df` degrees of freedom around q: its
    means, and `scale` times its standard deviations. `tail="cauchy"` takes independent standard
    Cauchy in the unconstrained space, whatever q is, as the paper's authors did.

    >>> Defensive(alpha=0.8)
    Defensive(alpha=0.8)
    """

    alpha: float = 0.9
    tail: Literal["student", "cauchy"] = "student"
    df: float = 3.0
    scale: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie strictly between 0 and 1, got {self.alpha}")
        if self.tail not in ("student", "cauchy"):
            raise ValueError(f"tail must be 'student' or 'cauchy', got {self.tail!r}")
        if not (self.df > 0 and self.scale > 0):
            raise ValueError(f"df and scale must be positive, got {self.df} and {self.scale}")

    def _nu(self, q: Family) -> dist.Distribution:
        if self.tail == "cauchy":
            return dist.Cauchy(jnp.zeros_like(q.mean), 1.0)
        return dist.StudentT(self.df, q.mean, self.scale * q.sd)

    def sample(self, key: PRNGKeyArray, q: Family) -> Float[Array, " d"]:
        """One draw of q_def."""
        key_which, key_q, key_nu = jax.random.split(key, 3)
        from_nu = self._nu(q).sample(key_nu).astype(q.mean.dtype)
        return jnp.where(jax.random.bernoulli(key_which, self.alpha), q.sample(key_q), from_nu)

    def log_prob(self, q: Family, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q_def(z)."""
        return jnp.logaddexp(
            jnp.log(self.alpha) + q.log_prob(z),
            jnp.log1p(-self.alpha) + jnp.sum(self._nu(q).log_prob(z)),
        )
