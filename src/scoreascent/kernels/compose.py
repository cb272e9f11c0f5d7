"""Kernels made of kernels: one after the other, or guided by a proposal richer than q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from scoreascent._arrays import all_finite, select
from scoreascent._structs import Config, check_count
from scoreascent.families import Family, FullRank, LowRank
from scoreascent.kernels.base import Adaptive, Count, Info, Kernel, Point
from scoreascent.kernels.moves import check_kernel
from scoreascent.schedules import DECAY, Decay
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray


@dataclass(frozen=True, init=False, repr=False)
class Cycle(Config, Adaptive):
    """One transition of each kernel in turn. Each leaves π invariant, so all of them do.

    `Cycle(IMH(), HMC())` jumps as far as q reaches and then walks along the posterior, whichever
    of the two works better where the chain is.

    >>> from scoreascent.kernels import HMC, IMH
    >>> Cycle(IMH(), HMC())
    Cycle(IMH(), HMC())
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, *kernels: Kernel) -> None:
        if not kernels:
            raise ValueError("Cycle needs at least one kernel, such as Cycle(IMH(), HMC())")
        for kernel in kernels:
            check_kernel(kernel)
        object.__setattr__(self, "kernels", kernels)

    def __repr__(self) -> str:
        return f"Cycle({', '.join(map(repr, self.kernels))})"

    def first_tuning(self, q: Family) -> tuple[Any, ...]:
        """Return what every kernel knows."""
        return tuple(kernel.first_tuning(q) for kernel in self.kernels)

    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Make a transition of each; the chain is said to move if any of them moves it."""
        all_seen, stays, invalid = [], jnp.ones((), point.log_p.dtype), jnp.int32(0)
        keys = jax.random.split(key, len(self.kernels))
        for kernel, own, k in zip(self.kernels, tuning, keys):
            point, info, seen = kernel.tuned_step(k, target, q, point, own)
            stays = stays * (1 - info.acceptance.astype(stays.dtype))
            invalid = invalid + info.invalid
            all_seen.append(seen)
        return point, Info(1 - stays, invalid), tuple(all_seen)

    def retune(self, tuning: Any, seen: Any, points: Point) -> tuple[Any, ...]:
        """Retune each kernel by what it saw."""
        return tuple(k.retune(t, s, points) for k, t, s in zip(self.kernels, tuning, seen))

    def afresh(self, tuning: Any, taken: int, stretch: float = 1.0) -> tuple[Any, ...]:
        """Return tunings that learn as if after so many steps, of moves that much longer."""
        return tuple(k.afresh(t, taken, stretch) for k, t in self._with(tuning))

    @property
    def is_independent(self) -> bool:
        """Whether all moves of all kernels are independent draws of q."""
        return all(kernel.is_independent for kernel in self.kernels)

    def reach(self, tuning: Any) -> float:
        """Return the share of the kernel whose moves fall shortest."""
        return min(k.reach(t) for k, t in self._with(tuning))

    def evaluations(self, tuning: Any, steps: int) -> Count:
        """Return the sum over the kernels."""
        total = Count(0, 0)
        for kernel, own in self._with(tuning):
            total = total.plus(kernel.evaluations(own, steps))
        return total

    def _with(self, tuning: Any) -> list[tuple[Kernel, Any]]:
        """Return every kernel with its own tuning."""
        own = (None,) * len(self.kernels) if tuning is None else tuning
        return list(zip(self.kernels, own))


class Learnt(NamedTuple):
    """A learnt proposal, how many steps taught it, and the tuning of the kernel that uses it."""

    proposal: Family
    taken: Int[Array, ""]
    tuning: Any


@dataclass(frozen=True, repr=False)
class Adapted(Config, Adaptive):
    """`kernel` with a Gaussian learnt from the chains in the place of q.

    So a mean-field q can be fitted by proposals that know the correlations: IMH with a mean-field
    proposal hardly accepts anything on a correlated posterior, and q then does not reach its
    optimum, the posterior's own marginals.

    The Gaussian is full-rank, or of rank `rank` plus a diagonal; it starts at q's moments and
    follows the chains by moment matching with rates `rate`, which must go to zero.

    >>> from scoreascent.kernels import IMH
    >>> Adapted(IMH())
    Adapted(IMH())
    """

    kernel: Kernel
    rank: int | None = None
    rate: Decay = DECAY

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        if self.rank is not None:
            object.__setattr__(self, "rank", check_count("rank", self.rank, 1))
        if not callable(self.rate):
            raise ValueError(
                f"rate must be a function of the step count such as Decay(), got {self.rate!r}"
            )

    def first_tuning(self, q: Family) -> Learnt:
        """Return the Gaussian with q's means and standard deviations."""
        proposal: Family
        if self.rank is None:
            proposal = FullRank.from_moments(q.mean, jnp.diag(q.sd**2))
        else:
            proposal = LowRank.from_moments(q.mean, q.sd, min(self.rank, q.dim))
        return Learnt(proposal, jnp.int32(0), self.kernel.first_tuning(proposal))

    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Learnt
    ) -> tuple[Point, Info, Any]:
        """Make one transition of the kernel at the learnt proposal."""
        return self.kernel.tuned_step(key, target, tuning.proposal, point, tuning.tuning)

    def retune(self, tuning: Learnt, seen: Any, points: Point) -> Learnt:
        """Move the proposal towards where the chains are."""
        n = points.z.shape[0]
        weight = jnp.full(n, 1 / n, points.z.dtype)
        match = tuning.proposal.match  # type: ignore[attr-defined]
        proposal = match(points.z, weight, self.rate(tuning.taken))
        proposal = select(all_finite(proposal), proposal, tuning.proposal)
        inner = self.kernel.retune(tuning.tuning, seen, points)
        return Learnt(proposal, tuning.taken + 1, inner)

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of the learnt proposal."""
        return self.kernel.is_independent

    def reach(self, tuning: Learnt | None) -> float:
        """Return how long the kernel's moves are, as a share of the length asked for."""
        return self.kernel.reach(None if tuning is None else tuning.tuning)

    def evaluations(self, tuning: Learnt | None, steps: int) -> Count:
        """Return what the kernel's transitions cost."""
        return self.kernel.evaluations(None if tuning is None else tuning.tuning, steps)
