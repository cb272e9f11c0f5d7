"""What a variational family must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


class Family(Protocol):
    """A distribution q(z; λ) on ℝᵈ that is a pytree, every leaf of it a piece of λ.

    So a gradient in q has the shape of q, and an optimiser of optax steps on q itself. All methods
    but `match` are written for one point; callers `vmap`. Base noise may be longer than z.

    A family may also have `match(z, weight, rate)`, for points z of shape (n, d) whose weights sum
    to one and a rate 0 < γ ≤ 1 that jax may trace: the member of the family to which a
    natural-gradient step of length γ on −Σ w log q(z) leads. Where q is an exponential family, that
    is moment matching, θ ← (1 − γ)θ + γ Σ w T(z) for its expectation parameters θ. It must let
    points of weight zero lie anywhere. Updates by moments need it; nothing else does.
    """

    @property
    def dim(self) -> int:
        """The number of coordinates d."""

    @property
    def mean(self) -> Float[Array, " d"]:
        """E_q z."""

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate."""

    def noise(self, key: PRNGKeyArray) -> Float[Array, " m"]:
        """One draw of the base distribution, which does not depend on λ."""

    def transport(self, noise: Float[Array, " m"]) -> Float[Array, " d"]:
        """T_λ(ε): turns base noise into a draw of q, differentiably in λ."""

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Float[Array, ...]:
        """Draws of q, with `sample_shape` in front."""

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Log q(z; λ)."""


class Located:
    """What families with a mean `loc` share; their base noise is normal unless they say else."""

    loc: Float[Array, " d"]

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return int(self.loc.shape[-1])

    @property
    def mean(self) -> Float[Array, " d"]:
        """E_q z."""
        return self.loc

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """A standard normal vector."""
        return jax.random.normal(key, self.loc.shape, self.loc.dtype)

    def sample(
        self: Family, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Float[Array, ...]:
        """Draws of q, with `sample_shape` in front."""
        draw = lambda k: self.transport(self.noise(k))  # noqa: E731
        keys = key if sample_shape == () else jax.random.split(key, sample_shape)
        for _ in sample_shape:
            draw = jax.vmap(draw)
        return draw(keys)
