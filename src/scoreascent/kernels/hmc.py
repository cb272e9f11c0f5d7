"""Gradient moves, preconditioned by q: Hamiltonian Monte Carlo and its one-step form, MALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from scoreascent._random import materialise
from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.kernels.base import (
    Adaptive,
    Info,
    Point,
    accept,
    metropolis_probability,
)
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

JITTER = 0.4  # a step is between 1 − JITTER and 1 times the step size, else orbits may close


class StepSize(NamedTuple):
    """A learnt step size, how many steps taught it, and the gradients a chain took meanwhile."""

    log: Float[Array, ""]
    taken: Int[Array, ""]
    gradients: Int[Array, ""]


@dataclass(frozen=True, repr=False)
class HMC(Config, Adaptive):
    """Hamiltonian Monte Carlo in coordinates in which q is standard.

    With q's affine map z = μ + L x, momentum is a standard normal vector in the space of x, so q's
    covariance L Lᵀ is the inverse mass matrix. `length` is that of a trajectory in units of q's
    standard deviations (π/2 forgets a Gaussian that q matches), cut to `max_steps` leapfrog steps.

    Without `step_size`, one is learnt for all chains: log ε moves by t^−0.6 (a − `acceptance`), a
    the chains' mean acceptance probability, so what is learnt vanishes and the limit is right.

    One gradient of p at the start and one for each leapfrog step.

    >>> HMC()
    HMC()
    """

    length: float = 1.5
    step_size: float | None = None
    acceptance: float = 0.9
    max_steps: int = 24

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", check_count("max_steps", self.max_steps, 1))
        for name in ("length", "step_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if not 0 < self.acceptance < 1:
            raise ValueError(
                f"acceptance must lie strictly between 0 and 1, got {self.acceptance!r}"
            )

    def first_tuning(self, q: Family) -> StepSize | None:
        """A step of d^(−1/4), the rate at which it must shrink with dimension."""
        if self.step_size is not None:
            return None
        return StepSize(jnp.log(jnp.asarray(q.dim, q.mean.dtype)) / -4, jnp.int32(0), jnp.int32(0))

    def retune(self, tuning: StepSize | None, seen: Any, points: Point) -> StepSize | None:
        """A longer step if more was accepted than asked for, a shorter one if less."""
        if tuning is None:
            return None
        rate = (tuning.taken + 1).astype(tuning.log.dtype) ** -0.6
        log = tuning.log + rate * (seen.astype(tuning.log.dtype) - self.acceptance)
        gradients = tuning.gradients + self._leaps(jnp.exp(tuning.log)) + 1
        return StepSize(log, tuning.taken + 1, gradients)

    def _leaps(self, size: Float[Array, ""]) -> Int[Array, ""]:
        """Leapfrog steps of a trajectory, the same for all chains."""
        return jnp.clip(jnp.ceil(self.length / size), 1, self.max_steps).astype(jnp.int32)

    def tuned_step(
        self,
        key: PRNGKeyArray,
        target: Target,
        q: Family,
        point: Point,
        tuning: StepSize | None,
    ) -> tuple[Point, Info, Any]:
        """One trajectory, accepted or not."""
        dtype = point.z.dtype
        fixed = jnp.asarray(0.0 if self.step_size is None else self.step_size, dtype)
        size = fixed if tuning is None else jnp.exp(tuning.log).astype(dtype)
        count = self._leaps(size)
        key_noise, key_jitter, key_accept = jax.random.split(key, 3)
        size = size * (1 - JITTER * jax.random.uniform(key_jitter, dtype=dtype))
        momentum = materialise(_base_normal(key_noise, q))

        origin = jnp.zeros_like(momentum)
        centre, forwards = jax.linearize(jax.lax.stop_gradient(q).transport, origin)
        backwards = jax.linear_transpose(forwards, origin)
        value_and_grad = jax.value_and_grad(target.log_prob)

        def kick(p: Array, gradient: Array, by: Any) -> Array:
            return p + by * size * backwards(gradient.astype(centre.dtype))[0]

        def leap(_: Any, carry: Any) -> Any:
            z, p, _, _ = carry
            z = z + size * forwards(p)
            log_p, gradient = value_and_grad(z)
            return z, kick(p, gradient, 1.0), log_p, gradient

        log_p, gradient = value_and_grad(point.z)
        start = (point.z, kick(momentum, gradient, 0.5), log_p, gradient)
        z, p, log_p, gradient = jax.lax.fori_loop(0, count, leap, start)
        p = kick(p, gradient, -0.5)  # the last kick was a whole one

        bad = jnp.isnan(log_p) | (log_p == jnp.inf)
        log_p = jnp.where(bad, -jnp.inf, log_p).astype(point.log_p.dtype)
        energy = 0.5 * (jnp.sum(momentum**2) - jnp.sum(p**2))
        probability = metropolis_probability(log_p - point.log_p + energy.astype(log_p.dtype))
        probability = jnp.where(jnp.all(jnp.isfinite(z)), probability, 0.0)
        moved = accept(key_accept, probability, Point(z, log_p), point)
        # where the trajectory itself ran away, the density was not asked at a point of ℝᵈ
        invalid = (bad & jnp.all(jnp.isfinite(z))).astype(jnp.int32)
        return moved, Info(probability, invalid), probability


@dataclass(frozen=True, repr=False)
class MALA(HMC):
    """The Metropolis-adjusted Langevin algorithm, preconditioned by q: `HMC` of one step.

    >>> MALA(step_size=0.5)
    MALA(step_size=0.5)
    """

    acceptance: float = 0.6
    max_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps != 1:
            raise ValueError(f"MALA takes one step, got max_steps={self.max_steps}; use HMC")


def _base_normal(key: PRNGKeyArray, q: Family) -> Float[Array, " k"]:
    """A standard normal vector in the space of q's base noise."""
    base = jax.eval_shape(q.noise, key)
    return jax.random.normal(key, base.shape, base.dtype)
