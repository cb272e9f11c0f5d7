"""Conditional importance sampling, also known as iterated sampling importance resampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._layout import by_chain, together
from scoreascent._structs import Config, check_count
from scoreascent.families import Defensive, Family
from scoreascent.kernels.base import (
    Count,
    Info,
    Particles,
    Places,
    Point,
    draw,
    evaluate,
    initial_points,
    log_weight,
)
from scoreascent.kernels.moves import Moves, pick
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


@dataclass(frozen=True, repr=False)
class CIS(Config, Moves):
    """N weighted points: the retained one and N − 1 fresh draws of q_def.

    N counts the retained point, as in the paper's cost table and theorems; its pseudocode draws N
    fresh points instead. A step first draws the point to retain by the weights of the last step.
    N − 1 evaluations of p, N of q and N − 1 draws of q a step.

    Used as it is, all N points enter the score with their weights (MSC-RB); `Select(CIS(n))` draws
    one of them (MSC).

    >>> CIS(10)
    CIS(n=10)
    """

    n: int
    defensive: Defensive | None = None

    def __post_init__(self) -> None:
        n = check_count("n", self.n, 2, " for CIS, which counts the retained point")
        object.__setattr__(self, "n", n)
        if not isinstance(self.defensive, Defensive | None):
            raise ValueError(f"defensive must be a Defensive or None, got {self.defensive!r}")

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return one draw with weight one, and copies of weight zero in the other places."""
        point = initial_points(key, target, q, 1, places)
        z, log_p = (jnp.repeat(x, self.n, axis=0) for x in point)
        return Particles(z, log_p, jnp.zeros(self.n, z.dtype).at[0].set(1))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Retain one point, draw N − 1 more, weigh them all."""
        key_retain, key_draw = jax.random.split(key)
        retained = pick(key_retain, eta)
        keys = jax.random.split(key_draw, self.n - 1)
        fresh, invalid = together(by_chain(self._drawn, (target, q))(keys))
        points: Point = jax.tree.map(
            lambda old, new: jnp.concatenate([old[None], new]), retained, fresh
        )
        log_w = by_chain(self._log_weights, q)(points)
        weight = normalise(log_w).astype(eta.weight.dtype)
        return Particles(*points, weight), Info(1 - weight[0], jnp.sum(invalid, dtype=jnp.int32))

    def _drawn(self, whole: Any, keys: PRNGKeyArray) -> Any:
        target, q = whole
        return jax.vmap(lambda k: evaluate(target, draw(k, q, self.defensive)))(keys)

    def _log_weights(self, q: Family, points: Point) -> Float[Array, " n"]:
        return jax.vmap(lambda p: log_weight(q, p, self.defensive))(points)

    def evaluations(self, eta: Particles, steps: int) -> Count:
        """Return what `steps` steps cost: the retained point is not evaluated again."""
        return Count(steps * (self.n - 1), 0)


def normalise(log_w: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return self-normalised weights; where every weight is zero, the first point has it all.

    The first point is the retained one, so a step in which every density is zero stays put. A
    weight of +∞ (q has no mass at a point where p has some) takes all of the weight.
    """
    log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)
    top = jnp.max(log_w)
    w = jnp.where(jnp.isinf(top), (log_w == top).astype(log_w.dtype), jnp.exp(log_w - top))
    stay = jnp.zeros_like(w).at[0].set(1)
    return jnp.where(top == -jnp.inf, stay, w / jnp.sum(w))
