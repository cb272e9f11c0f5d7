"""Gaussian targets, with everything about a mean-field fit to them in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import default_dtype
from scoreascent._structs import check_count
from scoreascent.families import MeanField
from scoreascent.target import Target
from scoreascent.theory import kl_star

if TYPE_CHECKING:
    from jaxtyping import Array, Float


__all__ = ["Gaussian", "wishart_gaussian"]


def log_density(z: Float[Array, " d"], data: tuple[Any, Any]) -> Float[Array, ""]:
    """Return log N(z; mean, cov) up to a constant; `data` is (mean, W) with WᵀW = cov⁻¹."""
    mean, whiten = data
    return -0.5 * jnp.sum((whiten @ (z - mean)) ** 2)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, cov) as a target, and the exact divergences and scores of a mean-field q.

    >>> problem = Gaussian(np.zeros(2), np.array([[1.0, 0.8], [0.8, 1.0]]))
    >>> round(problem.kl_floor, 3)  # what a mean-field q must leave
    0.511
    """

    mean: np.ndarray[Any, Any]
    cov: np.ndarray[Any, Any]

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.cov.shape != (len(self.mean),) * 2:
            raise ValueError(
                f"cov must be square and as long as mean, got {self.cov.shape}, {self.mean.shape}"
            )
        try:
            np.linalg.cholesky(self.cov)
        except np.linalg.LinAlgError:
            raise ValueError("cov must be positive definite") from None

    @property
    def target(self) -> Target:
        """The target; its precision's factor is computed in float64 and rounded once."""
        whiten = np.linalg.inv(np.linalg.cholesky(self.cov))
        dtype = default_dtype()
        data = (self.mean.astype(dtype), whiten.astype(dtype))
        return Target(log_density, dim=len(self.mean), data=data)

    @property
    def kl_floor(self) -> float:
        """The smallest KL(π‖q) of any mean-field q: ½[Σ log Σ_ii − log|Σ|]."""
        return float(kl_star(self.cov))

    def kl(self, q: MeanField) -> Float[Array, ""]:
        """KL(π‖q): the floor plus a one-dimensional KL for every coordinate."""
        var, delta = jnp.diag(jnp.asarray(self.cov)), jnp.asarray(self.mean) - q.mean
        ratio = var / q.sd**2
        return self.kl_floor + 0.5 * jnp.sum(ratio - 1 - jnp.log(ratio) + (delta / q.sd) ** 2)

    def score_variance(self, q: MeanField) -> Float[Array, ""]:
        """Return tr Cov_π(s), s the score of q in (loc, omega): pMCSA's gradient variance, times N.

        Under π the coordinate z_i − loc_i is N(Δ_i, Σ_ii), so the score in loc has variance
        Σ_ii/σ_i⁴ and that in σ has (2Σ_ii² + 4Σ_ii Δ_i²)/σ_i⁶; dσ/dω = sigmoid(ω).
        """
        var, delta = jnp.diag(jnp.asarray(self.cov)), jnp.asarray(self.mean) - q.mean
        in_loc = var / q.sd**4
        in_sd = (2 * var**2 + 4 * var * delta**2) / q.sd**6
        return jnp.sum(in_loc + in_sd * jax.nn.sigmoid(q.omega) ** 2)


def wishart_gaussian(dim: int, nu: float, seed: int = 0) -> Gaussian:
    """The target of the paper's simulations: cov ~ Wishart(dim + nu, S), mean ~ N(0, I).

    S = diag(1/dim, 2/dim, …, 1), so variances grow along the coordinates up to about dim + nu.

    >>> wishart_gaussian(3, 500).target
    Target(log_density, dim=3, data=…)
    """
    dim = check_count("dim", dim, 1)
    if not nu > -1:
        raise ValueError(f"nu must exceed −1 (the degrees of freedom are dim + nu), got {nu}")
    rng = np.random.default_rng(seed)
    # Bartlett: cov = L A Aᵀ Lᵀ, A lower triangular with χ on the diagonal and normals below
    a = np.tril(rng.normal(size=(dim, dim)), -1)
    a[np.diag_indices(dim)] = np.sqrt(rng.chisquare(dim + nu - np.arange(dim)))
    root = np.sqrt(np.arange(1, dim + 1) / dim)[:, None] * a
    return Gaussian(rng.normal(size=dim), root @ root.T)
