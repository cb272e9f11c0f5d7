"""Gaussian process regression with Student-t noise, the paper's second experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jax.scipy.stats import gamma, norm, t

from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.models._gaussian_prior import cholesky, log_gaussian
from scoreascent.models.bnn import check_rows
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float

JITTER = 1e-6
SCALE_SD, LENGTH_SD = 4.0, 0.2  # prior sds of the log scales and of the log length scales
NU_SHAPE, NU_SCALE = 4.0, 10.0  # of the Gamma prior of ν
NODES = 128  # of the integral over the noise's precision

__all__ = ["Hyper", "Predictive", "RobustGP"]

Formula = Literal["correct", "published"]


class Hyper(NamedTuple):
    """The hyperparameters in z, on their log scales.

    >>> hyper, latent = RobustGP(inputs=2, rows=3).unpack(jnp.zeros(9))
    >>> hyper.log_length.shape, latent.shape
    ((2,), (3,))
    """

    log_noise: Float[Array, ""]  # ε_y
    log_nugget: Float[Array, ""]  # ε_f
    log_amplitude: Float[Array, ""]  # σ_f
    log_nu: Float[Array, ""]
    log_length: Float[Array, " inputs"]


class Predictive(NamedTuple):
    """The distribution of y at new rows: ∫ t_ν(y; f, scale) N(f; mean, var) df.

    >>> said = Predictive(jnp.zeros(1), jnp.zeros(1), jnp.float32(5), jnp.float32(1))
    >>> round(float(said.log_prob(jnp.zeros(1))[0]), 2)  # of a Student-t with 5 degrees of freedom
    -0.97
    """

    mean: Float[Array, " m"]
    var: Float[Array, " m"]
    nu: Float[Array, ""]
    scale: Float[Array, ...]

    def log_prob(self, y: Float[Array, " m"]) -> Float[Array, " m"]:
        """Return the log density at y.

        A Student-t is a normal whose precision w / scale² has w ~ Gamma(ν/2, rate ν/2). Given w the
        integral over f is a normal density, so only log w is left: the trapezoid rule on the range
        that matters for this y is good to 10⁻⁶ for ν ≥ 1, whatever the spreads. (Gauss–Hermite over
        f misses a noise much narrower than f's sd.)
        """
        a = self.nu / 2
        outlying = jnp.log1p(((y - self.mean) / self.scale) ** 2 / self.nu)
        low = -(40 / (a + 0.5) + 9 / jnp.sqrt(a)) - outlying
        high = jnp.log1p(30 / a + 10 / jnp.sqrt(a))
        step = (high - low) / (NODES - 1)
        log_w = low + step * jnp.arange(NODES).reshape(-1, *[1] * jnp.ndim(y))
        log_weight = a * jnp.log(a) - gammaln(a) + a * log_w - a * jnp.exp(log_w)
        sd = jnp.sqrt(self.var + self.scale**2 * jnp.exp(-log_w))
        terms = log_weight + norm.logpdf(y, self.mean, sd)
        return jax.nn.logsumexp(terms, axis=0) + jnp.log(step)


@dataclass(frozen=True, repr=False)
class RobustGP(Config):
    """y ~ Student-t_ν(f, ε_y), f ~ N(0, K), K = σ_f² Matérn-5/2 + (ε_f² + 10⁻⁶) I, ARD.

    z = [log ε_y, log ε_f, log σ_f, log ν, log ℓ₁ … log ℓ_D, f₁ … f_n]. With `whitened` the last n
    are u instead, f = L u with LLᵀ = K, which takes the prior's correlations out of the posterior.
    Use float64; a K whose factorisation fails has log density −∞.

    >>> RobustGP(inputs=6, rows=277).dim
    287
    """

    inputs: int
    rows: int
    whitened: bool = False

    def __post_init__(self) -> None:
        check_count("inputs", self.inputs, 1)
        check_count("rows", self.rows, 1)

    @property
    def dim(self) -> int:
        """The number of unknowns."""
        return 4 + self.inputs + self.rows

    def target(self, x: Any, y: Any) -> Target:
        """The posterior given whitened rows x (rows, inputs) and responses y (rows,)."""
        x, y = check_rows(x, y, self.inputs)
        if len(x) != self.rows:
            raise ValueError(f"x must have {self.rows} rows, got {len(x)}")
        return Target(self, dim=self.dim, data=(x, y))

    def unpack(self, z: Float[Array, " d"]) -> tuple[Hyper, Float[Array, " rows"]]:
        """The hyperparameters and the latent values (u if whitened, else f) in z."""
        return Hyper(z[0], z[1], z[2], z[3], z[4 : 4 + self.inputs]), z[4 + self.inputs :]

    def __call__(self, z: Float[Array, " d"], data: Any) -> Float[Array, ""]:
        """Return the log joint density of z and the data, normalised."""
        x, y = data
        hyper, latent = self.unpack(z)
        k = covariance(hyper, x)
        if self.whitened:
            f = cholesky(k) @ latent
            log_prior = jnp.sum(norm.logpdf(latent))
        else:
            f, log_prior = latent, log_gaussian(k, latent)
        scales = jnp.stack(hyper[:3])
        log_hyper = (
            jnp.sum(norm.logpdf(scales, 0, SCALE_SD))
            + jnp.sum(norm.logpdf(hyper.log_length, 0, LENGTH_SD))
            + gamma.logpdf(jnp.exp(hyper.log_nu), NU_SHAPE, scale=NU_SCALE)
            + hyper.log_nu
        )
        log_lik = jnp.sum(t.logpdf(y, jnp.exp(hyper.log_nu), f, jnp.exp(hyper.log_noise)))
        total = log_prior + log_hyper + log_lik
        return jnp.where(jnp.isnan(total) & jnp.all(jnp.isfinite(z)), -jnp.inf, total)

    def predict(
        self, q: Family, data: Any, x: Float[Array, "m inputs"], formula: Formula = "correct"
    ) -> Predictive:
        """The distribution of y at new rows, hyperparameters at q's mode, f averaged over q.

        `published` is the formula behind the paper's table: it takes q's variances for precisions
        of Gaussian sites, and a Student-t of that spread. It is there to reproduce the table.
        """
        if formula not in get_args(Formula):
            raise ValueError(f"formula must be one of {get_args(Formula)}, got {formula!r}")
        if formula == "published" and self.whitened:
            raise ValueError("formula 'published' is stated for f: use whitened=False")
        hyper, mean = self.unpack(q.mean)
        var = self.unpack(q.sd**2)[1]
        noise, nu = jnp.exp(hyper.log_noise), jnp.exp(hyper.log_nu)
        amplitude, nugget = jnp.exp(2 * hyper.log_amplitude), jnp.exp(2 * hyper.log_nugget)
        k, cross = covariance(hyper, data[0]), _matern(hyper, data[0], x)  # (rows, rows), (rows, m)
        # One batch for K and for the published formula's K + diag(1/var). As two chains of calls
        # that know nothing of each other they can hang: where cores are few, jaxlib's batched
        # LAPACK calls wait for each other's threads when two run at once.
        roots = cholesky(jnp.stack([k, k + jnp.diag(1 / var)]))
        half, half_sites = solve_triangular(roots, jnp.stack([cross, cross]), lower=True)
        gain = solve_triangular(roots[0].T, half, lower=False)  # K⁻¹kᵀ
        if self.whitened:
            centre, spread = half.T @ mean, jnp.sum(var[:, None] * half**2, 0)
        else:
            centre, spread = gain.T @ mean, jnp.sum(var[:, None] * gain**2, 0)
        if formula == "published":
            scale2 = amplitude + noise**2 - jnp.sum(half_sites**2, 0)
            return Predictive(centre, jnp.zeros_like(centre), nu, jnp.sqrt(scale2))
        v = amplitude + nugget - jnp.sum(half**2, 0) + spread
        return Predictive(centre, jnp.maximum(v, 0), nu, noise)


def covariance(hyper: Hyper, x: Float[Array, "n inputs"]) -> Float[Array, "n n"]:
    """K of the training rows, nugget included."""
    nugget = jnp.exp(2 * hyper.log_nugget) + JITTER
    return _matern(hyper, x, x) + nugget * jnp.eye(len(x), dtype=x.dtype)


def _matern(hyper: Hyper, a: Any, b: Any) -> Any:
    """σ_f² (1 + √5 r + 5r²/3) exp(−√5 r), r² = Σ (Δ_i/ℓ_i)²."""
    length = jnp.exp(hyper.log_length)
    a, b = a / length, b / length
    # one matrix product instead of n² D differences; rounding may leave it a little below zero
    r2 = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1) - 2 * (a @ b.T)
    root = math.sqrt(5) * jnp.sqrt(jnp.maximum(r2, 1e-30))
    return jnp.exp(2 * hyper.log_amplitude - root) * (1 + root + root**2 / 3)
