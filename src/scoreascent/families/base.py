"""What a variational family must be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


class Family(Protocol):
    """A distribution q(z; λ) on ℝᵈ that is a pytree, every leaf of it a piece of λ.

    So a gradient in q has the shape of q, and an optimiser of optax steps on q itself. All methods
    are written for one point; callers `vmap`.
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

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """One draw of the base distribution, which does not depend on λ."""

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """T_λ(ε): turns base noise into a draw of q, differentiably in λ."""

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Float[Array, ...]:
        """Draws of q, with `sample_shape` in front."""

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Log q(z; λ)."""


class Transported:
    """Sampling for families that transport base noise."""

    def sample(
        self: Family, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Float[Array, ...]:
        """Draws of q, with `sample_shape` in front."""
        draw = lambda k: self.transport(self.noise(k))  # noqa: E731
        keys = key if sample_shape == () else jax.random.split(key, sample_shape)
        for _ in sample_shape:
            draw = jax.vmap(draw)
        return draw(keys)
