"""Moves without a gradient: a random walk in coordinates in which q is standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._random import materialise
from scoreascent._structs import Config
from scoreascent.families import Family
from scoreascent.kernels.base import (
    Adaptive,
    Info,
    Point,
    accept,
    evaluate,
    metropolis_probability,
)
from scoreascent.kernels.hmc import WHICH_PART, StepSize, base_normal
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


@dataclass(frozen=True, repr=False)
class Walk(Config, Adaptive):
    """Random-walk Metropolis: a normal step with q's covariance, times the square of a step size.

    For densities that have no gradient. Where q has several parts, the step is that of the part
    that owns z, as for `HMC`. The step size is learnt for all chains: log ε moves by
    t^−0.6 (a − `acceptance`), a the chains' mean acceptance probability, from 2.4/√d, which is best
    for a Gaussian that q matches.

    >>> Walk(acceptance=0.3)
    Walk(acceptance=0.3)
    """

    acceptance: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.acceptance < 1:
            raise ValueError(
                f"acceptance must lie strictly between 0 and 1, got {self.acceptance!r}"
            )

    def first_tuning(self, q: Family) -> StepSize:
        """Return a step of 2.4/√d."""
        log = (
            jnp.log(jnp.asarray(2.4, q.mean.dtype)) - jnp.log(jnp.asarray(q.dim, q.mean.dtype)) / 2
        )
        return StepSize(log, jnp.int32(0), jnp.int32(0), jnp.int32(0), jnp.ones_like(log))

    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Move one chain by one step, or not."""
        key_step, key_accept = jax.random.split(key)
        part, log_share = q.piece(jax.random.fold_in(key, WHICH_PART), point.z)
        noise = materialise(base_normal(key_step, part))
        origin = jnp.zeros_like(noise)
        _, step = jax.jvp(jax.lax.stop_gradient(part).transport, (origin,), (noise,))
        size = jnp.exp(tuning.log).astype(point.z.dtype)
        proposed, invalid = evaluate(target, point.z + size * step.astype(point.z.dtype))
        proposed = Point(proposed.z, proposed.log_p.astype(point.log_p.dtype))
        shares = log_share(proposed.z) - log_share(point.z)
        probability = metropolis_probability(
            proposed.log_p - point.log_p + jnp.asarray(shares, point.log_p.dtype)
        )
        moved = accept(key_accept, probability, proposed, Point(point.z, point.log_p))
        return moved, Info(probability, invalid), probability

    def retune(self, tuning: Any, seen: Any, points: Point) -> StepSize:
        """Return a longer step if more was accepted than asked for, a shorter one if less."""
        rate = (tuning.taken + 1).astype(tuning.log.dtype) ** -0.6
        log = tuning.log + rate * (seen.astype(tuning.log.dtype) - self.acceptance)
        return tuning._replace(log=log, taken=tuning.taken + 1, age=tuning.age + 1)

    def afresh(self, tuning: Any, taken: int, stretch: float = 1.0) -> StepSize:
        """Return a tuning that learns as if after so many steps."""
        return tuning._replace(taken=jnp.int32(taken))
