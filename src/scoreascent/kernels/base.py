"""What moves: points, weighted particles, and the protocol of a Markov kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from scoreascent._arrays import impossible, select
from scoreascent._random import materialise
from scoreascent.families import Defensive, Family
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

T = TypeVar("T")


class Point(NamedTuple):
    """One state of a chain. `log_p` is the target's log density at `z`, evaluated once.

    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> point, _ = evaluate(target, jnp.array([3.0, 4.0]))
    >>> float(point.log_p)
    -12.5
    """

    z: Float[Array, "*batch d"]
    log_p: Float[Array, "*batch"]


class Slope(NamedTuple):
    """One state of a chain whose kernel keeps the gradient of the log density there too."""

    z: Float[Array, "*batch d"]
    log_p: Float[Array, "*batch"]
    gradient: Float[Array, "*batch d"]


class Particles(NamedTuple):
    """The η of Proposition 1: n points with weights that sum to one.

    `tuning` is what an adaptive kernel has learnt so far: a step size, a proposal. It travels with
    the points, so that a resumed run goes on as it would have; most kernels have none. `gradient`
    is that of the log density at each point, for a kernel that keeps it.

    >>> eta = Particles(jnp.zeros((4, 2)), jnp.zeros(4), jnp.full(4, 0.25))
    >>> eta.z.shape, float(eta.weight.sum())
    ((4, 2), 1.0)
    """

    z: Float[Array, "n d"]
    log_p: Float[Array, " n"]
    weight: Float[Array, " n"]
    tuning: Any = None
    gradient: Float[Array, "n d"] | None = None


class Info(NamedTuple):
    """What a step tells about itself; nothing in the run depends on it.

    >>> float(Info(acceptance=jnp.float32(0.25), invalid=jnp.int32(0)).acceptance)
    0.25
    """

    acceptance: Float[Array, "*batch"]  # the probability with which the chain moves
    invalid: Int[Array, "*batch"]  # evaluations of log p that gave NaN or +∞


class Count(NamedTuple):
    """How often the target was evaluated: its density alone, and with its gradient.

    >>> Count(2, 1).plus((0, 4)), Count(2, 1).times(3)
    (Count(densities=2, gradients=5), Count(densities=6, gradients=3))
    """

    densities: int
    gradients: int

    def times(self, n: int) -> Count:
        """Return the count of n such runs."""
        return Count(n * self.densities, n * self.gradients)

    def plus(self, other: tuple[int, int]) -> Count:
        """Return the sum of two counts."""
        return Count(self.densities + other[0], self.gradients + other[1])


class Kernel(ABC):
    """A Markov kernel that leaves π invariant, and may use q to do so.

    A kernel must have `step`. The other methods have defaults that suit a kernel which learns
    nothing and evaluates one density a step; the loop, the automatic fit and the verdict ask them
    instead of asking what kind of kernel it is.

    >>> class Reflect(Kernel):  # leaves every density that is even invariant, and goes nowhere else
    ...     def step(self, key, target, q, point):
    ...         moved, invalid = evaluate(target, -point.z)
    ...         return moved, Info(jnp.float32(1), invalid)
    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=1)
    >>> point, _ = evaluate(target, jnp.ones(1))
    >>> Reflect().step(jax.random.key(0), target, None, point)[0].z
    Array([-1.], dtype=float32)
    """

    @abstractmethod
    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point
    ) -> tuple[Point, Info]:
        """Move one chain by one transition."""

    def chain(
        self, keys: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Move one chain by a transition for each key, and return all its states in order.

        A kernel whose proposals do not depend on the chain may evaluate them all in one batch.
        """

        def transition(point: Point, key: Array) -> tuple[Point, tuple[Point, Info, Any]]:
            point, info, seen = self.tuned_step(key, target, q, point, tuning)
            return point, (point, info, seen)

        return jax.lax.scan(transition, point, keys)[1]  # type: ignore[no-any-return]

    def prepare(self, target: Target, point: Point) -> Point | Slope:
        """Return a first state with all that the kernel keeps of one; most keep no more."""
        return point

    # -- kernels that learn --------------------------------------------------------------------

    def first_tuning(self, q: Family) -> Any:
        """Return what the kernel knows before the first step; most know nothing."""
        return None

    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Move one chain; the last value is what `retune` wants to know of the step."""
        return (*self.step(key, target, q, point), None)

    def retune(self, tuning: Any, seen: Any, points: Point) -> Any:
        """Return the next tuning, from the chains' average of what was seen and where they are."""
        return tuning

    def afresh(self, tuning: Any, taken: int, stretch: float = 1.0) -> Any:
        """Return a tuning that learns as if after so many steps, of moves that much longer."""
        return tuning

    # -- what the automatic fit and the verdict ask --------------------------------------------

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of q: then chains reach no further than q."""
        return False

    def reach(self, tuning: Any) -> float:
        """Return how long moves are, as a share of the length that was asked for."""
        return 1.0

    def evaluations(self, tuning: Any, steps: int) -> Count:
        """Return what `steps` transitions of one chain cost, given the tuning at their end."""
        return Count(steps, 0)


class Adaptive(Kernel):
    """The base of kernels that learn while they run. What they learn is `Particles.tuning`.

    A step uses the tuning of before; afterwards `retune` looks at where all chains went. What it
    changes must vanish as the run goes on, or the limit is not π.

    >>> class Learns(Adaptive):  # how far to go, from how often proposals are accepted
    ...     def first_tuning(self, q):
    ...         return jnp.float32(0.0)  # of the log of the step
    ...     def tuned_step(self, key, target, q, point, tuning):
    ...         noise = jax.random.normal(key, point.z.shape)
    ...         proposed, invalid = evaluate(target, point.z + jnp.exp(tuning) * noise)
    ...         yes = metropolis_probability(proposed.log_p - point.log_p)
    ...         moved = accept(jax.random.fold_in(key, 1), yes, proposed, point)
    ...         return moved, Info(yes, invalid), yes
    ...     def retune(self, tuning, seen, points):
    ...         return tuning + 0.1 * (seen - 0.3)  # a real one divides by the steps taken
    >>> kernel = Learns()
    >>> float(kernel.retune(kernel.first_tuning(None), 0.8, None)) > 0  # accepted often: go further
    True
    """

    @abstractmethod
    def first_tuning(self, q: Family) -> Any:
        """Return what the kernel knows before the first step."""

    @abstractmethod
    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Move one chain; the last value is what `retune` wants to know of the step."""

    @abstractmethod
    def retune(self, tuning: Any, seen: Any, points: Point) -> Any:
        """Return the next tuning, from the chains' average of what was seen and where they are."""

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point
    ) -> tuple[Point, Info]:
        """Move one chain by one transition, with nothing learnt."""
        return self.tuned_step(key, target, q, point, self.first_tuning(q))[:2]


class Proposal(NamedTuple):
    """A proposed state and the probability with which it is to be accepted.

    >>> Proposal(Point(jnp.zeros(2), jnp.float32(0)), jnp.float32(0.5), jnp.int32(0)).acceptance
    Array(0.5, dtype=float32)
    """

    point: Point
    acceptance: Float[Array, ""]
    invalid: Int[Array, ""]


class Metropolis(Kernel):
    """The base of kernels that propose, then accept or reject.

    Only these can be Rao–Blackwellised (`Parallel(kernel, n, rao_blackwell=True)`), since that
    needs the proposal and its acceptance probability, not just the outcome.

    >>> class Walk(Metropolis):
    ...     def propose(self, key, target, q, point):
    ...         step = 0.5 * jax.random.normal(key, point.z.shape)
    ...         proposed, invalid = evaluate(target, point.z + step)
    ...         yes = metropolis_probability(proposed.log_p - point.log_p)
    ...         return Proposal(proposed, yes, invalid)
    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=1)
    >>> point, _ = evaluate(target, jnp.ones(1))
    >>> moved, info = Walk().step(jax.random.key(0), target, None, point)
    >>> 0 <= float(info.acceptance) <= 1
    True
    """

    @abstractmethod
    def propose(self, key: PRNGKeyArray, target: Target, q: Family, point: Point) -> Proposal:
        """The proposed state and its acceptance probability."""

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point
    ) -> tuple[Point, Info]:
        """Move one chain by one transition."""
        key_propose, key_accept = jax.random.split(key)
        proposal = self.propose(key_propose, target, q, point)
        moved = accept(key_accept, proposal.acceptance, proposal.point, point)
        return moved, Info(proposal.acceptance, proposal.invalid)


def accept(key: PRNGKeyArray, probability: Float[Array, ""], proposed: T, current: T) -> T:
    """Return `proposed` with the given probability, else `current`."""
    yes = jax.random.uniform(key, dtype=probability.dtype) < probability
    return select(yes, proposed, current)


def metropolis_probability(log_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Return min(1, e^log_ratio), and 0 where the ratio is undefined (both densities are zero).

    >>> float(metropolis_probability(jnp.float32(1.0))), float(metropolis_probability(jnp.nan))
    (1.0, 0.0)
    """
    return jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))


def evaluate(target: Target, z: Float[Array, " d"]) -> tuple[Point, Int[Array, ""]]:
    """Return the point at `z`, and 1 if its log density was NaN or +∞.

    Such a value becomes −∞: no kernel then accepts it, and no chain is stuck on it.

    >>> target = Target(lambda z: jnp.log(z[0]), dim=1)  # NaN below 0
    >>> point, invalid = evaluate(target, jnp.array([-1.0]))
    >>> float(point.log_p), int(invalid)
    (-inf, 1)
    """
    log_p = target.log_prob(z)
    invalid = impossible(log_p)
    return Point(z, jnp.where(invalid, -jnp.inf, log_p)), invalid.astype(jnp.int32)


def draw(key: PRNGKeyArray, q: Family, defensive: Defensive | None) -> Float[Array, " d"]:
    """Draw from the proposal distribution, q or its defensive mixture."""
    return materialise(q.sample(key) if defensive is None else defensive.sample(key, q))


def log_weight(q: Family, point: Point, defensive: Defensive | None) -> Float[Array, ""]:
    """Return log w = log p(z, x) − log q_def(z; λ), at today's λ."""
    log_q = q.log_prob(point.z) if defensive is None else defensive.log_prob(q, point.z)
    return point.log_p - log_q


MAX_REDRAWS = 100


class Places(NamedTuple):
    """Points that chains may begin at, and their log densities if those are known and finite.

    >>> Places(jnp.zeros((5, 2))).log_p is None  # so they will be evaluated
    True
    """

    z: Float[Array, "m d"]
    log_p: Float[Array, " m"] | None = None


def initial_points(
    key: PRNGKeyArray, target: Target, q: Family, n: int, places: Places | None = None
) -> Point:
    """Return n draws of q, or of `places` if there are any, where the target's density is positive.

    Draws where log p is −∞ or NaN are replaced by fresh ones, up to `MAX_REDRAWS` times; chains
    that found none by then start at those that did. If no draw at all was finite, the points keep
    log p = −∞, which `fit` reports as an error. Places whose log densities are known are not
    evaluated again.
    """
    if places is not None and places.log_p is not None:
        at = jax.random.randint(key, (n,), 0, places.log_p.shape[0])
        return Point(places.z[at], places.log_p[at])

    def draw_one(k: PRNGKeyArray) -> Float[Array, " d"]:
        if places is None:
            return q.sample(k)
        return places.z[jax.random.randint(k, (), 0, places.z.shape[0])]

    def redraw(carry: tuple[Array, Point]) -> tuple[Array, Point]:
        tries, points = carry
        keys = jax.random.split(jax.random.fold_in(key, tries), n)
        fresh, _ = jax.vmap(lambda k: evaluate(target, draw_one(k)))(keys)
        good = jnp.isfinite(points.log_p)
        z = jnp.where(good[:, None], points.z, fresh.z)
        return tries + 1, Point(z, jnp.where(good, points.log_p, fresh.log_p))

    def unfinished(carry: tuple[Array, Point]) -> Array:
        tries, points = carry
        return (tries < MAX_REDRAWS) & ~jnp.all(jnp.isfinite(points.log_p))

    shape = jax.eval_shape(jax.vmap(lambda k: evaluate(target, draw_one(k))[0]),
                           jax.random.split(key, n))  # fmt: skip
    nowhere = Point(jnp.zeros(shape.z.shape, shape.z.dtype),
                    jnp.full(shape.log_p.shape, -jnp.inf, shape.log_p.dtype))  # fmt: skip
    _, points = jax.lax.while_loop(unfinished, redraw, (jnp.int32(0), nowhere))
    good = jnp.isfinite(points.log_p)
    donor = jax.random.categorical(
        jax.random.fold_in(key, MAX_REDRAWS), jnp.where(good, 0.0, -jnp.inf), shape=(n,)
    )
    source = jnp.where(good | ~jnp.any(good), jnp.arange(n), donor)
    return Point(points.z[source], points.log_p[source])
