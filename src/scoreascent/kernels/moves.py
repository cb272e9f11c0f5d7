"""How kernels make weighted particles: many chains, one long chain, or one draw of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._layout import by_chain, together
from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.kernels.base import (
    Count,
    Info,
    Kernel,
    Metropolis,
    Particles,
    Places,
    Point,
    Slope,
    initial_points,
)
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


class Moves(ABC):
    """P_λ of Proposition 1: how the weighted particles η move.

    Moves must have `init` and `step`; the rest has defaults for weighted draws of q.

    >>> import scoreascent as sa
    >>> isinstance(sa.Parallel(sa.IMH(), 10), sa.Moves), isinstance(sa.CIS(10), sa.Moves)
    (True, True)
    """

    @abstractmethod
    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return the first η: draws of q, or of `places` if there are any."""

    @abstractmethod
    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move η by one transition of P_λ."""

    # -- what the automatic fit and the verdict ask --------------------------------------------

    @property
    def chains(self) -> int:
        """The number of chains that run side by side."""
        return 1

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of q."""
        return True

    def states(self, key: PRNGKeyArray, eta: Particles) -> Float[Array, "chains d"]:
        """Return where the chains are; of weighted particles, one is drawn by weight."""
        return pick(key, eta).z[None]

    def reach(self, eta: Particles) -> float:
        """Return how long moves are, as a share of the length that was asked for."""
        return 1.0

    def evaluations(self, eta: Particles, steps: int) -> Count:
        """Return what `steps` steps cost, given the particles at their end."""
        return Count(steps * eta.z.shape[0], 0)

    def afresh(self, eta: Particles, taken: int, stretch: float = 1.0) -> Particles:
        """Return η whose kernel learns as if after so many steps, of moves that much longer."""
        return eta


class _OfKernel(Moves):
    """Moves that are n transitions of a kernel a step; what is asked of them, the kernel knows."""

    kernel: Kernel
    n: int

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of q."""
        return self.kernel.is_independent

    def reach(self, eta: Particles) -> float:
        """Return how long moves are, as a share of the length that was asked for."""
        return self.kernel.reach(eta.tuning)

    def evaluations(self, eta: Particles, steps: int) -> Count:
        """Return what `steps` steps cost, given the particles at their end."""
        return self.kernel.evaluations(eta.tuning, steps).times(self.n)

    def afresh(self, eta: Particles, taken: int, stretch: float = 1.0) -> Particles:
        """Return η whose kernel learns as if after so many steps, of moves that much longer."""
        return eta._replace(tuning=self.kernel.afresh(eta.tuning, taken, stretch))


@dataclass(frozen=True, repr=False)
class Parallel(Config, _OfKernel):
    """N chains, one transition of `kernel` each, weights 1/N (pMCSA, Algorithm 1).

    With `rao_blackwell`, a chain at z that proposes z* with acceptance probability α contributes
    both points, weighted α/N and (1 − α)/N: the expectation of what it would contribute over the
    accept/reject draw. The draw itself is made when the next step begins, so chains move as
    before, no density of the target is evaluated more, and the score is taken at 2N points.

    With `batch`, so many chains are moved at a time, which takes less memory.

    >>> from scoreascent.kernels import IMH
    >>> Parallel(IMH(), n=10)
    Parallel(IMH(), n=10)
    """

    kernel: Kernel
    n: int
    rao_blackwell: bool = False
    batch: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, 1))
        if self.batch is not None:
            object.__setattr__(self, "batch", check_count("batch", self.batch, 1))
            if self.rao_blackwell:
                raise ValueError("batch: chains with rao_blackwell move all at once")
        check_kernel(self.kernel)
        if self.rao_blackwell and not isinstance(self.kernel, Metropolis):
            raise ValueError(
                f"rao_blackwell needs a kernel that proposes and accepts, got {self.kernel!r}"
            )

    @property
    def chains(self) -> int:
        """The number of chains that run side by side."""
        return self.n

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return n independent draws."""
        points = initial_points(key, target, q, self.n, places)
        if not self.rao_blackwell:
            prepare = jax.vmap(self.kernel.prepare, (None, 0))
            first = by_chain(prepare, target)(points)
            return equal_weights(first, self.kernel.first_tuning(q))
        return self._pairs(points, points, jnp.zeros_like(points.log_p))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move every chain by one transition."""
        if self.rao_blackwell:
            return self._step_rao_blackwell(key, target, q, eta)
        keys = jax.random.split(key, self.n)

        def moved(whole: Any, keys: PRNGKeyArray, points: Any) -> Any:
            target, q, tuning = whole

            def move(k: PRNGKeyArray, point: Any) -> Any:
                return self.kernel.tuned_step(k, target, q, point, tuning)

            if self.batch is None or self.batch >= self.n:
                return jax.vmap(move)(keys, points)
            return jax.lax.map(lambda x: move(*x), (keys, points), batch_size=self.batch)

        points, info, seen = by_chain(moved, (target, q, eta.tuning))(keys, _points(eta))
        tuning = self.kernel.retune(eta.tuning, _over_chains(seen), points)
        return equal_weights(points, tuning), _summarise(info)

    def states(self, key: PRNGKeyArray, eta: Particles) -> Float[Array, "chains d"]:
        """Return where the chains are; with `rao_blackwell` proposals stand before the states."""
        return eta.z[-self.n :]

    def _step_rao_blackwell(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        assert isinstance(self.kernel, Metropolis)
        kernel, n = self.kernel, self.n
        eta = together(eta)
        key_accept, key_propose = jax.random.split(key)
        moved = jax.random.uniform(key_accept, (n,), eta.weight.dtype) < n * eta.weight[:n]
        current = Point(
            jnp.where(moved[:, None], eta.z[:n], eta.z[n:]),
            jnp.where(moved, eta.log_p[:n], eta.log_p[n:]),
        )
        current, keys = together((current, jax.random.split(key_propose, n)))

        def proposed(whole: Any, keys: PRNGKeyArray, points: Point) -> Any:
            return jax.vmap(lambda k, point: kernel.propose(k, whole[0], whole[1], point))(
                keys, points
            )

        proposal = together(by_chain(proposed, (target, q))(keys, current))
        eta = self._pairs(proposal.point, current, proposal.acceptance)
        return eta, _summarise(Info(proposal.acceptance, proposal.invalid))

    def _pairs(self, proposed: Point, current: Point, alpha: Float[Array, " n"]) -> Particles:
        z, log_p = (jnp.concatenate(pair) for pair in zip(proposed, current))
        weight = jnp.concatenate([alpha, 1 - alpha]) / self.n
        return Particles(z, log_p, weight.astype(z.dtype))


@dataclass(frozen=True, repr=False)
class Sequential(Config, _OfKernel):
    """N successive transitions of one chain, weights 1/N; the starting point is left out (JSA).

    For `IMH` the proposals do not depend on the chain, so their N target evaluations are one
    batch and only the accept/reject recursion is sequential.

    >>> from scoreascent.kernels import IMH
    >>> Sequential(IMH(), n=10)
    Sequential(IMH(), n=10)
    """

    kernel: Kernel
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, 1))
        check_kernel(self.kernel)

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return one draw, in all n places; the chain goes on from the last of them."""
        point = initial_points(key, target, q, 1, places)
        points = Point(*(jnp.repeat(x, self.n, axis=0) for x in point))
        return equal_weights(points, self.kernel.first_tuning(q))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Make n transitions from the last state of the previous step."""
        keys = jax.random.split(key, self.n)
        last = Point(eta.z[-1], eta.log_p[-1])
        states, info, seen = self.kernel.chain(keys, target, q, last, eta.tuning)
        tuning = self.kernel.retune(eta.tuning, _over_chains(seen), states)
        return equal_weights(states, tuning), _summarise(info)

    def states(self, key: PRNGKeyArray, eta: Particles) -> Float[Array, "chains d"]:
        """Return where the one chain is."""
        return eta.z[-1:]


@dataclass(frozen=True, repr=False)
class Select(Config, Moves):
    """One of the particles of `moves`, drawn by weight, with weight one.

    >>> from scoreascent.kernels import CIS
    >>> Select(CIS(10))
    Select(CIS(n=10))
    """

    moves: Moves

    def __post_init__(self) -> None:
        check_moves(self.moves)

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of q."""
        return self.moves.is_independent

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return one of the first particles of `moves`."""
        key_init, key_pick = jax.random.split(key)
        return self._one(key_pick, self.moves.init(key_init, target, q, places))

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move the particle, then draw one of the weighted ones."""
        key_step, key_pick = jax.random.split(key)
        particles, info = self.moves.step(key_step, target, q, eta)
        return self._one(key_pick, particles), info

    def reach(self, eta: Particles) -> float:
        """Return how long moves are, as a share of the length that was asked for."""
        return self.moves.reach(eta)

    def evaluations(self, eta: Particles, steps: int) -> Count:
        """Return what `steps` steps cost, given the particle at their end."""
        return self.moves.evaluations(eta, steps)

    def _one(self, key: PRNGKeyArray, particles: Particles) -> Particles:
        point = pick(key, particles)
        return equal_weights(Point(point.z[None], point.log_p[None]), particles.tuning)


def _points(eta: Particles) -> Point | Slope:
    """Return the particles' points as their kernel keeps them."""
    if eta.gradient is None:
        return Point(eta.z, eta.log_p)
    return Slope(eta.z, eta.log_p, eta.gradient)


def equal_weights(points: Point | Slope, tuning: Any = None) -> Particles:
    """Return n points as particles of weight 1/n."""
    n = points.z.shape[0]
    weight = jnp.full(n, 1 / n, points.z.dtype)
    gradient = points.gradient if isinstance(points, Slope) else None
    return Particles(points.z, points.log_p, weight, tuning, gradient)


def pick(key: PRNGKeyArray, particles: Particles) -> Point:
    """Draw one of the particles by weight; a lone particle is taken without a draw."""
    if particles.weight.shape[0] == 1:
        index: Array | int = 0
    else:
        index = jax.random.categorical(key, jnp.log(particles.weight))
    return Point(particles.z[index], particles.log_p[index])


def _over_chains(seen: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), seen)


def _summarise(info: Info) -> Info:
    return Info(jnp.mean(info.acceptance), jnp.sum(info.invalid, dtype=jnp.int32))


def check_moves(moves: Any) -> None:
    """Raise unless `moves` can move particles."""
    if not isinstance(moves, Moves):
        raise ValueError(f"moves must have init and step, such as CIS(10), got {moves!r}")


def check_kernel(kernel: Any) -> None:
    """Raise unless `kernel` can move a point."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel must be a kernel such as IMH(), that is, derive from scoreascent.Kernel, got "
            f"{kernel!r}"
        )
