"""How kernels make weighted particles: many chains, one long chain, or one draw of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.kernels.base import (
    Adaptive,
    Info,
    Kernel,
    Metropolis,
    Particles,
    Point,
    initial_points,
)
from scoreascent.kernels.cis import pick
from scoreascent.kernels.imh import IMH, imh_chain
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


class Moves(Protocol):
    """P_λ of Proposition 1: how the weighted particles η move."""

    def init(self, key: PRNGKeyArray, target: Target, q: Family) -> Particles:
        """The first η, drawn from q."""

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move η by one transition of P_λ."""


@dataclass(frozen=True, repr=False)
class Parallel(Config):
    """N chains, one transition of `kernel` each, weights 1/N (pMCSA, Algorithm 1).

    With `rao_blackwell`, a chain at z that proposes z* with acceptance probability α contributes
    both points, weighted α/N and (1 − α)/N: the expectation of what it would contribute over the
    accept/reject draw. The draw itself is made when the next step begins, so chains move as
    before, no density of the target is evaluated more, and the score is taken at 2N points.

    >>> Parallel(IMH(), n=10)
    Parallel(IMH(), n=10)
    """

    kernel: Kernel
    n: int
    rao_blackwell: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, 1))
        check_kernel(self.kernel)
        if self.rao_blackwell and not isinstance(self.kernel, Metropolis):
            raise ValueError(
                f"rao_blackwell needs a kernel that proposes and accepts, got {self.kernel!r}"
            )

    def init(self, key: PRNGKeyArray, target: Target, q: Family) -> Particles:
        """N independent draws of q."""
        points = initial_points(key, target, q, self.n)
        if not self.rao_blackwell:
            return _equal(points, first_tuning(self.kernel, q))
        return self._pairs(points, points, jnp.zeros_like(points.log_p))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """One transition of every chain."""
        if self.rao_blackwell:
            return self._step_rao_blackwell(key, target, q, eta)
        keys = jax.random.split(key, self.n)
        points, info, seen = jax.vmap(lambda k, p: step(self.kernel, k, target, q, p, eta.tuning))(
            keys, Point(eta.z, eta.log_p)
        )
        tuning = retune(self.kernel, eta.tuning, _over_chains(seen), points)
        return _equal(points, tuning), _summarise(info)

    def _step_rao_blackwell(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        assert isinstance(self.kernel, Metropolis)
        kernel, n = self.kernel, self.n
        key_accept, key_propose = jax.random.split(key)
        moved = jax.random.uniform(key_accept, (n,), eta.weight.dtype) < n * eta.weight[:n]
        current = Point(
            jnp.where(moved[:, None], eta.z[:n], eta.z[n:]),
            jnp.where(moved, eta.log_p[:n], eta.log_p[n:]),
        )
        keys = jax.random.split(key_propose, n)
        proposal = jax.vmap(lambda k, p: kernel.propose(k, target, q, p))(keys, current)
        eta = self._pairs(proposal.point, current, proposal.acceptance)
        return eta, _summarise(Info(proposal.acceptance, proposal.invalid))

    def _pairs(self, proposed: Point, current: Point, alpha: Float[Array, " n"]) -> Particles:
        z, log_p = (jnp.concatenate(pair) for pair in zip(proposed, current))
        weight = jnp.concatenate([alpha, 1 - alpha]) / self.n
        return Particles(z, log_p, weight.astype(z.dtype))


@dataclass(frozen=True, repr=False)
class Sequential(Config):
    """N successive transitions of one chain, weights 1/N; the starting point is left out (JSA).

    For `IMH` the proposals do not depend on the chain, so their N target evaluations are one
    batch and only the accept/reject recursion is sequential.

    >>> Sequential(IMH(), n=10)
    Sequential(IMH(), n=10)
    """

    kernel: Kernel
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, 1))
        check_kernel(self.kernel)

    def init(self, key: PRNGKeyArray, target: Target, q: Family) -> Particles:
        """One draw of q, in all N places; the chain goes on from the last of them."""
        point = initial_points(key, target, q, 1)
        points = Point(*(jnp.repeat(x, self.n, axis=0) for x in point))
        return _equal(points, first_tuning(self.kernel, q))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """N transitions from the last state of the previous step."""
        keys = jax.random.split(key, self.n)
        last = Point(eta.z[-1], eta.log_p[-1])
        if isinstance(self.kernel, IMH):
            states, acceptance, invalid = imh_chain(self.kernel, keys, target, q, last)
            return _equal(states), _summarise(Info(acceptance, invalid))

        def transition(point: Point, k: Array) -> tuple[Point, tuple[Point, Info, Any]]:
            point, info, seen = step(self.kernel, k, target, q, point, eta.tuning)
            return point, (point, info, seen)

        _, (states, info, seen) = jax.lax.scan(transition, last, keys)
        tuning = retune(self.kernel, eta.tuning, _over_chains(seen), states)
        return _equal(states, tuning), _summarise(info)


@dataclass(frozen=True, repr=False)
class Select(Config):
    """One of the particles of `moves`, drawn by weight, with weight one.

    >>> from scoreascent.kernels import CIS
    >>> Select(CIS(10))
    Select(CIS(n=10))
    """

    moves: Moves

    def __post_init__(self) -> None:
        check_moves(self.moves)

    def init(self, key: PRNGKeyArray, target: Target, q: Family) -> Particles:
        """One of the first particles of `moves`."""
        key_init, key_pick = jax.random.split(key)
        return self._one(key_pick, self.moves.init(key_init, target, q))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move the particle, then draw one of the weighted ones."""
        key_step, key_pick = jax.random.split(key)
        particles, info = self.moves.step(key_step, target, q, eta)
        return self._one(key_pick, particles), info

    def _one(self, key: PRNGKeyArray, particles: Particles) -> Particles:
        point = pick(key, particles)
        return _equal(Point(point.z[None], point.log_p[None]), particles.tuning)


def _equal(points: Point, tuning: Any = None) -> Particles:
    n = points.z.shape[0]
    return Particles(*points, jnp.full(n, 1 / n, points.z.dtype), tuning)


def first_tuning(kernel: Kernel, q: Family) -> Any:
    """What a kernel knows before the first step; most know nothing."""
    return kernel.first_tuning(q) if isinstance(kernel, Adaptive) else None


def step(
    kernel: Kernel, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
) -> tuple[Point, Info, Any]:
    """One transition of any kernel, and what `retune` wants to know of it."""
    if isinstance(kernel, Adaptive):
        return kernel.tuned_step(key, target, q, point, tuning)
    return (*kernel.step(key, target, q, point), None)


def retune(kernel: Kernel, tuning: Any, seen: Any, points: Point) -> Any:
    """What a kernel knows after a step in which the chains on average saw `seen`."""
    return kernel.retune(tuning, seen, points) if isinstance(kernel, Adaptive) else None


def _over_chains(seen: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), seen)


def _summarise(info: Info) -> Info:
    return Info(jnp.mean(info.acceptance), jnp.sum(info.invalid, dtype=jnp.int32))


def check_moves(moves: Moves) -> None:
    """Raise unless `moves` can move particles."""
    if isinstance(moves, type) or not (hasattr(moves, "init") and hasattr(moves, "step")):
        raise ValueError(f"moves must have init and step, such as CIS(10), got {moves!r}")


def check_kernel(kernel: Kernel) -> None:
    """Raise unless `kernel` can move a point."""
    if not hasattr(kernel, "step") or isinstance(kernel, type):
        raise ValueError(f"kernel must be a kernel such as IMH(), got {kernel!r}")
