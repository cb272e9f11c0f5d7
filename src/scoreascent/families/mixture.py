"""Mixtures of Gaussians with full covariance matrices, for posteriors of several modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from scoreascent._arrays import default_dtype
from scoreascent._structs import check_count, pytree, unchecked
from scoreascent._triangles import inverse
from scoreascent.families._numbers import (
    check_fit,
    check_scale,
    dot,
    known,
    masked,
    matrix,
    vector,
)
from scoreascent.families.base import Family
from scoreascent.families.fullrank import (
    FullRank,
    cholesky,
    lower,
    matched,
    raw_of,
    row_norms,
    tril_of,
    whiten,
)

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

MIN_WEIGHT = 1e-3  # of a component, so that it is still proposed where points may come back to it
MAX_RATE = 0.5  # of a component's step where its weight is small, unless more is asked for
SAME = 1e-6  # sds between components that are one, and the relative difference of their spreads


@pytree
@dataclass(frozen=True)
class Mixture(Family):
    """Σ w_k N(loc_k, L_k L_kᵀ); w is softmax of logits, L_k made of raw_k as in `FullRank`.

    The inclusive-KL optimum covers every mode with the mass it has, and has the posterior's mean
    and covariance. `piece` gives kernels the component that owns a point.

    >>> q = Mixture.from_moments([[-2.0], [2.0]], [[[1.0]], [[1.0]]], weights=[0.25, 0.75])
    >>> [round(float(x), 5) for x in (q.mean[0], q.sd[0])]
    [1.0, 2.0]
    >>> q.sample(jax.random.key(0), (5,)).shape
    (5, 1)
    """

    is_elliptical: ClassVar[bool] = False

    logits: Float[Array, " K"]
    loc: Float[Array, "K d"]
    raw: Float[Array, "K d d"]

    def __post_init__(self) -> None:
        logits, loc = vector("logits", self.logits), matrix("loc", self.loc)
        count, dim = loc.shape
        parts = [matrix("raw", x) for x in self.raw]
        if not parts:
            raise ValueError("raw must have a matrix for every component, got none")
        raw = np.stack([np.asarray(x) for x in parts]) if known(*parts) else jnp.stack(parts)
        check_fit({"logits": (count,), "raw": (count, dim, dim)}, logits=logits, loc=loc, raw=raw)
        for name, value in {"logits": logits, "loc": loc, "raw": lower(raw)}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def standard(
        cls, dim: int, scale: float = 1.0, dtype: Any = None, components: int = 2
    ) -> Mixture:
        """Mean 0 and covariance scale² I on ℝᵈ, of components side by side along the diagonal.

        >>> [round(float(s), 5) for s in Mixture.standard(2).sd]
        [1.0, 1.0]
        """
        dim, count = check_count("dim", dim, 1), check_count("components", components, 1)
        check_scale(scale)
        dtype = default_dtype() if dtype is None else dtype
        at = np.linspace(-0.5, 0.5, count) if count > 1 else np.zeros(1)
        along = np.ones(dim) / math.sqrt(dim)
        inner = np.eye(dim) - np.mean(at**2) * np.outer(along, along)
        tril = scale * np.linalg.cholesky(inner)
        raw = np.stack([np.asarray(raw_of(tril))] * count)  # type: ignore[arg-type]
        parts = (np.zeros(count), scale * at[:, None] * along, raw)
        return cls(*(jnp.asarray(np.asarray(x, dtype)) for x in parts))

    @classmethod
    def from_moments(cls, mean: Any, cov: Any, weights: Any = None) -> Mixture:
        """The mixture of components with these means, covariance matrices and weights.

        Equal weights, if none are given; they need not sum to one.
        """
        mean = matrix("mean", mean)
        count = mean.shape[0]
        if np.ndim(cov) != 3 or len(cov) != count:
            raise ValueError(
                f"cov must be {count} matrices, one for each mean, got shape {np.shape(cov)}"
            )
        weights = vector("weights", np.ones(count, mean.dtype) if weights is None else weights)
        if weights.shape != (count,) or not np.all(np.asarray(weights) > 0):
            raise ValueError(f"weights must be {count} positive numbers, got {weights}")
        tril = np.stack([np.asarray(cholesky(c)) for c in cov])
        check_fit({"cov": (*mean.shape, mean.shape[1])}, mean=mean, cov=jnp.asarray(tril))
        _check_apart(np.asarray(mean), tril)
        weights = np.asarray(weights, mean.dtype)
        raw: Any = np.stack([np.asarray(raw_of(x)) for x in tril])  # type: ignore[arg-type]
        return cls(np.log(weights / weights.sum()), mean, raw)

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return int(self.loc.shape[-1])

    @property
    def components(self) -> int:
        """The number of components K."""
        return int(self.loc.shape[-2])

    @property
    def weights(self) -> Float[Array, " K"]:
        """The weights of the components; they sum to one."""
        return jax.nn.softmax(self.logits)

    @property
    def tril(self) -> Float[Array, "K d d"]:
        """The Cholesky factors L_k of the components' covariance matrices."""
        return tril_of(self.raw)

    @property
    def mean(self) -> Float[Array, " d"]:
        """The mean Σ w_k loc_k."""
        return dot(self.weights, self.loc)

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate, within components and between them."""
        square = row_norms(self.tril) ** 2 + (self.loc - self.mean) ** 2
        return jnp.sqrt(dot(self.weights, square))

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix, within components and between them."""
        tril, away = self.tril, self.loc - self.mean
        within = dot(tril, jnp.swapaxes(tril, -1, -2))
        each = within + away[:, :, None] * away[:, None, :]
        return jnp.tensordot(self.weights, each, 1, precision=jax.lax.Precision.HIGHEST)

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d+1"]:
        """Draw a standard normal vector, and a uniform number that chooses the component."""
        key_normal, key_which = jax.random.split(key)
        dtype = self.loc.dtype
        normal = jax.random.normal(key_normal, (self.dim,), dtype)
        return jnp.concatenate([normal, jax.random.uniform(key_which, (1,), dtype)])

    def transport(self, noise: Float[Array, " d+1"]) -> Float[Array, " d"]:
        """Return loc_k + L_k ε, k chosen by the last number; it is differentiable but in w."""
        below = jnp.cumsum(self.weights)[:-1]
        k = jnp.sum(noise[-1] >= below)
        return self.loc[k] + dot(self.tril[k], noise[:-1])

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        return logsumexp(self._log_parts(z))

    def share(self, z: Float[Array, " d"]) -> Float[Array, " K"]:
        """Return the logs of the probabilities with which each component made z."""
        return jax.nn.log_softmax(self._log_parts(z))

    def piece(
        self, key: PRNGKeyArray, z: Float[Array, " d"]
    ) -> tuple[Family, Callable[[Float[Array, " d"]], Float[Array, ""]]]:
        """Return a component, drawn by its share at z, and the log of its share anywhere."""
        k = jax.random.categorical(key, self.share(z))
        return FullRank(self.loc[k], self.raw[k]), lambda z: self.share(z)[k]

    def envelope(self) -> FullRank:
        """Return the Gaussian with the mean and the covariance of q."""
        return FullRank.from_moments(self.mean, self.cov)

    def top(self) -> Float[Array, " d"]:
        """Return the mean of the component at which q is likeliest."""
        return self.loc[jnp.argmax(jax.vmap(self.log_prob)(self.loc))]

    def _log_parts(self, z: Float[Array, " d"]) -> Float[Array, " K"]:
        """Return log w_k + log N_k(z)."""
        # what depends on λ alone stays apart from z, so that a batch of points shares it
        tril = self.tril
        diagonals = jnp.diagonal(tril, axis1=-2, axis2=-1)
        log_scale = jnp.sum(jnp.log(diagonals), -1) + 0.5 * self.dim * math.log(2 * math.pi)
        highest = jax.lax.Precision.HIGHEST
        noise = jnp.einsum("kij,kj->ki", jax.vmap(inverse)(tril), z - self.loc, precision=highest)
        return jax.nn.log_softmax(self.logits) - 0.5 * jnp.sum(noise**2, -1) - log_scale

    def match(
        self, z: Float[Array, "n d"], weight: Float[Array, " n"], rate: Float[Array, ""] | float
    ) -> Mixture:
        """A step of length γ, 0 < γ ≤ 1, on the inclusive KL: online EM.

        Each point belongs to every component by its share there, and the expectation parameters of
        point and component together, weights, means and second moments, follow the points: a
        natural-gradient step for the two of them, which rests where the gradient of the mixture
        vanishes. γ = 1 is a step of EM. No component's weight falls below a thousandth, and one of
        little weight moves by half at most unless γ is more, so that a few points that come first
        do not shrink it to themselves. Points of weight zero do not count.

        >>> q = Mixture.from_moments([[-1.0], [1.0]], [[[1.0]], [[1.0]]])
        >>> z = jnp.array([[-3.0], [-1.0], [4.0], [6.0]])
        >>> for _ in range(30):
        ...     q = q.match(z, jnp.array([0.1, 0.1, 0.4, 0.4]), 1.0)
        >>> [round(float(x), 3) for x in (*q.weights, *q.loc[:, 0])]
        [0.2, 0.8, -2.0, 5.0]
        """
        dtype = self.loc.dtype
        weight, rate = weight.astype(dtype), jnp.asarray(rate, dtype)
        z = masked(z, weight, self.mean)
        each = weight[:, None] * jnp.exp(jax.vmap(self.share)(z))
        total = jnp.sum(each, 0)
        weights = (1 - rate) * self.weights + rate * total
        owns = total > 0
        some = jnp.where(owns, total, 1)
        rates = jnp.where(owns, rate * total / jnp.where(owns, weights, 1), 0)
        rates = jnp.minimum(rates, jnp.maximum(rate, MAX_RATE))

        def step(part: Any) -> Any:
            loc, tril, weight, rate = part
            return matched(loc, tril, whiten(loc, tril, z), weight, rate)

        loc, raw = jax.lax.map(step, (self.loc, self.tril, (each / some).T, rates))
        return unchecked(self, logits=jnp.log(_floored(weights)), loc=loc, raw=raw)

    def pooled(self) -> Mixture:
        """Return the mixture whose components have the moments of those stacked along a first axis.

        The k-th component of each belongs to the k-th of the others, by its weight there.
        """
        logits, loc, tril = (
            np.asarray(x, np.float64) for x in (self.logits, self.loc, tril_of(self.raw))
        )
        w = np.exp(logits - logits.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
        share = w / w.sum(0)
        mean = np.einsum("tk,tkd->kd", share, loc)
        away = loc - mean
        cov = np.einsum("tk,tkij,tklj->kil", share, tril, tril, optimize=True)
        cov += np.einsum("tk,tki,tkj->kij", share, away, away, optimize=True)
        raw = np.stack([np.asarray(raw_of(x)) for x in np.linalg.cholesky(cov)])
        new = (np.log(w.mean(0)), mean, raw)
        dtype = self.loc.dtype
        whole = [jnp.asarray(np.asarray(x, dtype)) for x in new]
        return unchecked(self, **dict(zip(("logits", "loc", "raw"), whole)))

    def describe(self) -> str:
        """Name the family, for a person."""
        return f"{type(self).__name__} of {self.components} Gaussians"


def owners(q: Mixture, z: Float[Array, "n d"]) -> Int[Array, " n"]:
    """Return the component with the largest share at every point."""
    return jnp.argmax(jax.vmap(q.share)(z), -1)


def _floored(weights: Float[Array, " K"]) -> Float[Array, " K"]:
    """Return weights that sum to one, none below the floor (or much below it, of many)."""
    weights = jnp.maximum(weights, MIN_WEIGHT)
    return weights / jnp.sum(weights)


def _check_apart(mean: Any, tril: Any) -> None:
    """Refuse components that coincide: nothing could ever tell them apart."""
    sd = np.sqrt(np.sum(tril.astype(np.float64) ** 2, -1))
    for j in range(1, len(mean)):
        for i in range(j):
            near = np.all(np.abs(mean[i] - mean[j]) <= SAME * sd[i])
            unit = sd[i][:, None]
            alike = np.all(np.abs(tril[i] - tril[j]) <= SAME * unit)
            if near and alike:
                raise ValueError(
                    f"mean and cov: components {i} and {j} coincide, so that they would stay one; "
                    "give one of them, with the sum of their weights"
                )
