"""Gradient moves, preconditioned by q: Hamiltonian Monte Carlo and its one-step form, MALA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import impossible
from scoreascent._random import materialise
from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.kernels.base import (
    Adaptive,
    Count,
    Info,
    Point,
    Slope,
    accept,
    metropolis_probability,
)
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

# A step is between 1 − JITTER and 1 times the step size; orbits could close if it were always one.
JITTER = 0.4
# One trajectory in ten has steps that are shorter still, by a factor of up to 32: where the density
# is narrower than elsewhere, a chain could otherwise not move at all.
SHORT_STEPS_SHARE, SHORTEST_STEP = 0.1, 1 / 32
# A trajectory that ends where it is accepted less often than this is lost. Where q has the
# posterior's scales nearly none is, whatever the dimension: with steps of which 80 % are accepted
# one in 10^14 of a Gaussian's, and 2 to 8 % where parts of the posterior are much narrower.
LOST = 0.02

# Where trajectories have several lengths, these follow each other by turns of the golden section,
# which are spread evenly whichever the number of steps.
TURN = 0.6180339887498949


WHICH_PART = 3  # folded into the key of a step


class StepSize(NamedTuple):
    """A learnt step size, how many steps taught it, and the gradients of a chain meanwhile.

    Of the transitions of one step, such as those of `Sequential`, one is counted. `age` counts all
    steps; `taken` may begin anew where q was changed. Lengths are multiplied by `stretch`.
    """

    log: Float[Array, ""]
    taken: Int[Array, ""]
    gradients: Int[Array, ""]
    age: Int[Array, ""]
    stretch: Float[Array, ""]


class Flight(NamedTuple):
    """The end of a trajectory, and how many densities on the way there were NaN or +∞."""

    z: Float[Array, " d"]
    momentum: Float[Array, " k"]
    log_p: Float[Array, ""]
    gradient: Float[Array, " d"]
    invalid: Int[Array, ""]


@dataclass(frozen=True, repr=False)
class HMC(Config, Adaptive):
    """Hamiltonian Monte Carlo in coordinates in which q is standard.

    With q's affine map z = μ + L x, momentum is a standard normal vector in the space of x, so q's
    covariance L Lᵀ is the inverse mass matrix. `length` is that of a trajectory in units of q's
    standard deviations (π/2 forgets a Gaussian that q matches), cut to `max_steps` leapfrog steps,
    or two lengths between which trajectories vary from step to step. With `hurry` the first ones
    are shorter: 8 leapfrog steps, then 0.8 times the number of steps taken, up to `max_steps`.

    Without `step_size`, one is learnt for all chains: log ε moves by t^−0.6 (a − `acceptance`), a
    the chains' mean acceptance probability, so what is learnt vanishes and the limit is right.
    With `caution` a trajectory that is lost, for it ends where hardly any is accepted, counts as so
    much less than none: steps are short where some are lost, and only there.

    Where q has several parts, μ and L are those of the part that owns z, drawn by its share of q
    there; the trajectory's end is then weighed by that part's share of q at both of its ends.

    One gradient of p for each leapfrog step; chains of `Parallel` keep that of their state, others
    take one more at the start.

    >>> HMC()
    HMC()
    """

    length: float | tuple[float, float] = 1.5
    step_size: float | None = None
    acceptance: float = 0.9
    max_steps: int = 24
    hurry: bool = False
    caution: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", check_count("max_steps", self.max_steps, 1))
        lengths = self._lengths
        if len(lengths) != 2 or not 0 < (lengths[0] or 0) <= (lengths[1] or 0) < float("inf"):
            raise ValueError(
                f"length must be positive and finite, or two such numbers, got {self.length!r}"
            )
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise ValueError(
                f"step_size must be positive and finite, or None to learn it, got "
                f"{self.step_size!r}"
            )
        if self.step_size is not None and isinstance(self.length, tuple):
            raise ValueError(
                f"length: two of them, {self.length!r}, need a step size that is learnt, but "
                f"step_size is {self.step_size!r}"
            )
        if not 0 < self.acceptance < 1:
            raise ValueError(
                f"acceptance must lie strictly between 0 and 1, got {self.acceptance!r}"
            )

        if not 0 <= self.caution < float("inf"):
            raise ValueError(f"caution must be finite and at least 0, got {self.caution!r}")

    def first_tuning(self, q: Family) -> StepSize | None:
        """Return a step of d^(−1/4), the rate at which it must shrink with dimension."""
        if self.step_size is not None:
            return None
        log = jnp.log(jnp.asarray(q.dim, q.mean.dtype)) / -4
        return StepSize(log, jnp.int32(0), jnp.int32(0), jnp.int32(0), jnp.ones_like(log))

    def prepare(self, target: Target, point: Point) -> Slope:
        """Return a first state with the gradient there."""
        return Slope(*point, jax.grad(target.log_prob)(point.z).astype(point.z.dtype))

    def retune(self, tuning: StepSize | None, seen: Any, points: Point) -> StepSize | None:
        """Return a longer step if more was accepted than asked for, a shorter one if less."""
        if tuning is None:
            return None
        rate = (tuning.taken + 1).astype(tuning.log.dtype) ** -0.6
        seen = jnp.maximum(seen.astype(tuning.log.dtype), 0.0)
        log = tuning.log + rate * (seen - self.acceptance)
        at_start = 0 if isinstance(points, Slope) else 1
        gradients = tuning.gradients + self._leaps(jnp.exp(tuning.log), tuning) + at_start
        return StepSize(log, tuning.taken + 1, gradients, tuning.age + 1, tuning.stretch)

    def afresh(self, tuning: StepSize | None, taken: int, stretch: float = 1.0) -> StepSize | None:
        """Return a tuning that learns as if after so many steps, of moves that much longer."""
        if tuning is None:
            return None
        longer = jnp.asarray(stretch, tuning.stretch.dtype)
        return tuning._replace(taken=jnp.int32(taken), stretch=longer)

    def reach(self, tuning: StepSize | None) -> float:
        """Return the length of a trajectory of `max_steps` steps, as a share of `length`."""
        if tuning is None:
            return 1.0
        mean = sum(self._lengths) / 2
        return min(1.0, float(np.exp(np.asarray(tuning.log))) * self.max_steps / mean)

    def evaluations(self, tuning: StepSize | None, steps: int) -> Count:
        """Return the gradients that were counted; with a step size of its own, those it implies."""
        if tuning is None:
            return Count(0, steps * (int(self._leaps(jnp.asarray(self.step_size), None)) + 1))
        return Count(0, int(tuning.gradients))

    @property
    def _lengths(self) -> tuple[Any, ...]:
        return self.length if isinstance(self.length, tuple) else (self.length, self.length)

    def _leaps(self, size: Float[Array, ""], tuning: StepSize | None) -> Int[Array, ""]:
        """Return the leapfrog steps of a trajectory, the same for all chains."""
        shortest, longest = self._lengths
        length, most = longest, self.max_steps
        if tuning is not None:
            turn = jnp.mod(tuning.age.astype(size.dtype) * TURN, 1.0)
            length = tuning.stretch * (shortest + (longest - shortest) * turn)
            if self.hurry:
                most = jnp.clip(0.8 * tuning.age, min(8, most), most)  # type: ignore[assignment]
        return jnp.clip(jnp.ceil(length / size), 1, most).astype(jnp.int32)

    def tuned_step(
        self,
        key: PRNGKeyArray,
        target: Target,
        q: Family,
        point: Any,
        tuning: StepSize | None,
    ) -> tuple[Any, Info, Any]:
        """Follow one trajectory, and accept its end or not."""
        dtype = point.z.dtype
        size = self._size(q, tuning).astype(dtype)
        count = self._leaps(size, tuning)
        key_noise, key_jitter, key_accept = jax.random.split(key, 3)
        size = size * _jitter(key_jitter, dtype)
        part, log_share = q.piece(jax.random.fold_in(key, WHICH_PART), point.z)
        momentum = materialise(base_normal(key_noise, part))
        end = self._fly(target, part, point, momentum, size, count)
        log_p = end.log_p.astype(point.log_p.dtype)
        energy = (self._kinetic(momentum) - self._kinetic(end.momentum)).astype(log_p.dtype)
        energy = energy + (log_share(end.z) - log_share(point.z))
        probability = metropolis_probability(log_p - point.log_p + energy)
        probability = jnp.where(jnp.all(jnp.isfinite(end.z)), probability, 0.0)
        proposed: Any = Point(end.z, log_p)
        if isinstance(point, Slope):
            # without its gradient no trajectory could begin there
            probability = jnp.where(jnp.all(jnp.isfinite(end.gradient)), probability, 0.0)
            proposed = Slope(end.z, log_p, end.gradient)
        moved = accept(key_accept, probability, proposed, point)
        seen = probability - self.caution * (probability < LOST)
        return moved, Info(probability, end.invalid), seen

    def _size(self, q: Family, tuning: StepSize | None) -> Float[Array, ""]:
        """Return the step size of today, before jitter."""
        if self.step_size is not None:
            return jnp.asarray(self.step_size, q.mean.dtype)
        learnt = self.first_tuning(q) if tuning is None else tuning
        assert learnt is not None
        return jnp.exp(learnt.log)

    def _maps(self, q: Family) -> tuple[Any, Any]:
        """Return L and Lᵀ of q's affine map, as functions."""
        base = jax.eval_shape(q.noise, jax.random.key(0))
        origin = jnp.zeros(base.shape, base.dtype)
        centre, forwards = jax.linearize(jax.lax.stop_gradient(q).transport, origin)
        backwards = jax.linear_transpose(forwards, origin)
        return forwards, lambda gradient: backwards(gradient.astype(centre.dtype))[0]

    def _fly(
        self,
        target: Target,
        q: Family,
        point: Point | Slope,
        momentum: Float[Array, " k"],
        size: Float[Array, ""],
        count: Int[Array, ""],
    ) -> Flight:
        """Make leapfrog steps: half a kick, then drift and whole kicks, the last one halved.

        The gradient stands once in the program, for the compiler's sake: turn 0 does not drift, and
        is left out where the gradient is known.
        """
        forwards, backwards = self._maps(q)

        def leap(i: Any, carry: Any) -> Any:
            z, p, _, _, invalid = carry
            z = jnp.where(i == 0, z, z + size * forwards(p))
            log_p, gradient = jax.value_and_grad(target.log_prob)(z)
            bad = impossible(log_p) & (i > 0)
            # where the trajectory itself ran away, the density was not asked at a point of ℝᵈ
            invalid = invalid + (bad & jnp.all(jnp.isfinite(z)))
            kick = jnp.where((i == 0) | (i == count), 0.5 * size, size)
            return z, p + kick * backwards(gradient), log_p, gradient.astype(z.dtype), invalid

        log_p = jnp.zeros((), jax.eval_shape(target.log_prob, point.z).dtype)
        first = 0
        gradient = jnp.zeros_like(point.z)
        if isinstance(point, Slope):
            first, gradient = 1, point.gradient
            momentum = momentum + 0.5 * size * backwards(gradient)
        start = (point.z, momentum, log_p, gradient, jnp.int32(0))
        z, p, log_p, gradient, invalid = jax.lax.fori_loop(first, count + 1, leap, start)
        log_p = jnp.where(impossible(log_p), -jnp.inf, log_p)
        return Flight(z, p, log_p, gradient, invalid)

    def _kinetic(self, p: Float[Array, " k"]) -> Float[Array, ""]:
        return 0.5 * jnp.sum(p**2)


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

    def reach(self, tuning: StepSize | None) -> float:
        """Return 1: one step has no length that was asked for."""
        return 1.0


def _jitter(key: PRNGKeyArray, dtype: Any) -> Float[Array, ""]:
    """Draw what a step is multiplied with, by a law that does not look at the chain."""
    u, v = jax.random.uniform(key, (2,), dtype)
    return jnp.where(u < SHORT_STEPS_SHARE, SHORTEST_STEP**v, 1 - JITTER * v)


def base_normal(key: PRNGKeyArray, q: Family) -> Float[Array, " k"]:
    """Draw a standard normal vector in the space of q's base noise."""
    base = jax.eval_shape(q.noise, key)
    return jax.random.normal(key, base.shape, base.dtype)
