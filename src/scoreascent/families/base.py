"""What a variational family must be able to do, and what it gets for free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

Q = TypeVar("Q", bound="Family")


class Family(ABC):
    """A distribution q(z; λ) on ℝᵈ that is a pytree, every leaf of it a piece of λ.

    So a gradient in q has the shape of q, and an optimiser of optax steps on q itself. All methods
    but `match` and `pooled` are written for one point; callers `vmap`. Base noise may be longer
    than z.

    A family may also have `match(z, weight, rate)`, for points z of shape (n, d) whose weights sum
    to one and a rate 0 < γ ≤ 1 that jax may trace: the member of the family to which a
    natural-gradient step of length γ on −Σ w log q(z) leads. Where q is an exponential family, that
    is moment matching, θ ← (1 − γ)θ + γ Σ w T(z) for its expectation parameters θ. It must let
    points of weight zero lie anywhere. Updates by moments need it; nothing else does.

    `is_sparse` says that time and memory are linear in d because the covariance has few free
    directions; the automatic fit then takes fewer chains and always adds gradient moves. `is_bent`
    says that q is the image T(ε) of normal noise under a map that is not affine, with
    `forward(noise)` and `inverse(z)`, each of which also gives log |det T'(ε)|; instruments then
    look at the posterior in the space of ε. `is_elliptical` says that q has one mode and level sets
    that are ellipsoids; draws of a q that is not are of the posterior's shape where q is near
    it.

    >>> import scoreascent as sa
    >>> q = sa.MeanField.from_moments([0.0, 1.0], [1.0, 2.0])
    >>> isinstance(q, Family), q.dim, q.sample(jax.random.key(0), (5,)).shape
    (True, 2, (5, 2))
    >>> jax.tree.leaves(jax.grad(lambda q: q.log_prob(jnp.zeros(2)))(q))[0].shape
    (2,)
    """

    is_sparse: ClassVar[bool] = False
    is_bent: ClassVar[bool] = False
    is_elliptical: ClassVar[bool] = True

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of coordinates d."""

    @property
    @abstractmethod
    def mean(self) -> Float[Array, " d"]:
        """The mean E_q z."""

    @property
    @abstractmethod
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""

    @abstractmethod
    def noise(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        """Draw from the base distribution, which does not depend on λ."""

    @abstractmethod
    def transport(self, noise: Float[Array, " m"]) -> Float[Array, " d"]:
        """Turn base noise ε into the draw T_λ(ε) of q, differentiably in λ."""

    @abstractmethod
    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Float[Array, ...]:
        """Draw from q, with `sample_shape` in front."""
        draw = lambda k: self.transport(self.noise(k))  # noqa: E731
        keys = key if sample_shape == () else jax.random.split(key, sample_shape)
        for _ in sample_shape:
            draw = jax.vmap(draw)
        return draw(keys)

    def piece(
        self, key: PRNGKeyArray, z: Float[Array, " d"]
    ) -> tuple[Family, Callable[[Float[Array, " d"]], Any]]:
        """Return the part of q that owns z, and the log of its share of q there or elsewhere.

        Of several parts one is drawn by its share. A kernel that moves z in coordinates of that
        part keeps detailed balance if it weighs π by the part's share. The default has one part.
        """
        return self, lambda z: 0.0

    def envelope(self) -> Family:
        """Return a family of one part with the moments of q; q itself if it has no more."""
        return self

    def top(self) -> Float[Array, " d"]:
        """Return a place where q is about as likely as anywhere; the default is its mean."""
        return self.mean

    def pooled(self: Q) -> Q:
        """Return one member for several that are stacked along a first axis of every leaf.

        It stands for the average of a run's late windows. The default averages λ itself; a family
        that can should give the moments of the equal mixture of its members.
        """
        average = lambda x: jnp.asarray(x.mean(0, np.float64).astype(x.dtype))  # noqa: E731
        return jax.tree.map(lambda x: average(np.asarray(x)), self)

    def radius(self, fall: Any) -> Any:
        """Return how far from the mean, in units of q, log q has fallen by so many nats.

        For a Gaussian that is Mahalanobis' distance, and the default takes q for one.
        """
        return np.sqrt(np.maximum(2 * fall, 1e-12))

    def describe(self) -> str:
        """Name the family, for a person."""
        return type(self).__name__


def can_match(q: Family) -> bool:
    """Tell whether a family has the optional method `match`."""
    return callable(getattr(q, "match", None))


class Located(Family):
    """The base of families with a mean `loc`; their base noise is normal unless they say else."""

    loc: Float[Array, " d"]

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return int(self.loc.shape[-1])

    @property
    def mean(self) -> Float[Array, " d"]:
        """The mean E_q z."""
        return self.loc

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw a standard normal vector."""
        return jax.random.normal(key, self.loc.shape, self.loc.dtype)


class Gaussian(Located):
    """The base of Gaussian families N(loc, Σ): what `kl` needs to know of Σ = B Bᵀ + diag(v).

    >>> import scoreascent as sa
    >>> isinstance(sa.FullRank.standard(2), Gaussian), isinstance(sa.StudentT.standard(2), Gaussian)
    (True, False)
    """

    @abstractmethod
    def covariance_parts(self) -> tuple[Float[Array, "d k"] | None, Float[Array, " d"] | None]:
        """Return B and v, either of which may be missing."""

    @abstractmethod
    def half_log_det(self) -> Float[Array, ""]:
        """Return ½ log |Σ|."""

    @abstractmethod
    def precision_form(self, x: Float[Array, "d k"]) -> Float[Array, ""]:
        """Return tr xᵀ Σ⁻¹ x."""

    def precision_trace(self, variance: Float[Array, " d"]) -> Float[Array, ""]:
        """Return tr Σ⁻¹ diag(v)."""
        return self.precision_form(jnp.diag(jnp.sqrt(variance)))


def kl(p: Any, q: Any) -> Float[Array, ""]:
    """Return KL(p‖q) = E_p log p/q of two Gaussians: `MeanField`, `FullRank` or `LowRank`.

    It is differentiable in both. Without a `FullRank`, nothing of shape (d, d) is made.

    >>> from scoreascent import FullRank, MeanField
    >>> p = MeanField.from_moments([1.0], [1.0])
    >>> round(float(kl(p, FullRank.standard(1))), 5)
    0.5
    """
    for name, family in {"p": p, "q": q}.items():
        if not isinstance(family, Gaussian):
            raise ValueError(
                f"{name} must be a MeanField, a FullRank or a LowRank, got {family!r}: its KL has "
                "no closed form; average p.log_prob(z) − q.log_prob(z) over draws z of p"
            )
    if p.dim != q.dim:
        raise ValueError(f"p and q must have the same dimension, got {p.dim} and {q.dim}")
    columns, variance = p.covariance_parts()
    trace = q.precision_form((p.mean - q.mean)[:, None])
    if columns is not None:
        trace += q.precision_form(columns)
    if variance is not None:
        trace += q.precision_trace(variance)
    twice = trace - q.dim + 2 * (q.half_log_det() - p.half_log_det())
    return jnp.maximum(0.5 * twice, 0)  # rounding must not make it negative at p = q
