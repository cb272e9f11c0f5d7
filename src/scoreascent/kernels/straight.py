"""Moves in the space of q's base noise, where whatever shape q has learnt is straight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._arrays import impossible
from scoreascent._structs import Config, pytree
from scoreascent.families import Family, MeanField
from scoreascent.kernels.base import Adaptive, Count, Info, Kernel, Point
from scoreascent.kernels.moves import check_kernel
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


@pytree
@dataclass(frozen=True)
class Straightened:
    """The density that z = T(ε) has as a density of ε: π(T(ε)) |det T'(ε)|."""

    target: Target
    q: Any

    def log_prob(self, noise: Float[Array, " d"]) -> Float[Array, ""]:
        """Return its log; −∞ where T overflows."""
        z, log_det = self.q.forward(noise)
        fair = jnp.all(jnp.isfinite(z)) & jnp.isfinite(log_det)
        log_p = self.target.log_prob(jnp.where(fair, z, 0.0))
        return jnp.where(fair, log_p + log_det.astype(log_p.dtype), -jnp.inf)


@dataclass(frozen=True, repr=False)
class InBase(Config, Adaptive):
    """`kernel` in the space of q's base noise, for a q whose map T from there can be inverted.

    With z = T(ε) a transition of `kernel` leaves π(T(ε)) |det T'(ε)| invariant, and so π. If q is a
    `Flow` near π that is nearly a standard normal density, however π bends: `InBase(HMC())` is
    Hamiltonian Monte Carlo with a metric that depends on where it is.

    >>> from scoreascent.kernels import HMC
    >>> InBase(HMC())
    InBase(HMC())
    """

    kernel: Kernel

    def __post_init__(self) -> None:
        check_kernel(self.kernel)

    def first_tuning(self, q: Family) -> Any:
        """Return what the kernel knows before the first step."""
        return self.kernel.first_tuning(_base(q))

    def tuned_step(
        self, key: PRNGKeyArray, target: Target, q: Any, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Make one transition there, and come back; a point that did not move stays as it was."""
        q = jax.lax.stop_gradient(q)
        base = _base(q)
        noise, log_det = q.inverse(point.z)
        inside: Any = Straightened(target, q)
        start = Point(noise, point.log_p + log_det.astype(point.log_p.dtype))
        moved, info, seen = self.kernel.tuned_step(key, inside, base, start, tuning)
        z, log_det = q.forward(moved.z)
        log_p = moved.log_p - log_det.astype(moved.log_p.dtype)
        # rounding on the way to the base and back may lose a point whose scale is extreme
        lost = ~jnp.all(jnp.isfinite(z)) | impossible(log_p) | ~jnp.all(jnp.isfinite(noise))
        stays = jnp.all(moved.z == noise) | lost
        new = Point(jnp.where(stays, point.z, z), jnp.where(stays, point.log_p, log_p))
        return new, info, seen

    def retune(self, tuning: Any, seen: Any, points: Point) -> Any:
        """Retune the kernel by what it saw; it does not look at where the points are."""
        return self.kernel.retune(tuning, seen, points)

    def afresh(self, tuning: Any, taken: int, stretch: float = 1.0) -> Any:
        """Return a tuning that learns as if after so many steps, of moves that much longer."""
        return self.kernel.afresh(tuning, taken, stretch)

    @property
    def is_independent(self) -> bool:
        """Whether all moves are independent draws of q."""
        return self.kernel.is_independent

    def reach(self, tuning: Any) -> float:
        """Return how long moves are, as a share of the length that was asked for."""
        return self.kernel.reach(tuning)

    def evaluations(self, tuning: Any, steps: int) -> Count:
        """Return what the kernel's transitions cost."""
        return self.kernel.evaluations(tuning, steps)


def _base(q: Any) -> MeanField:
    """Return the standard normal family of q's base noise, or raise if q has no inverse."""
    if not (callable(getattr(q, "inverse", None)) and callable(getattr(q, "forward", None))):
        raise ValueError(
            "InBase needs a family with forward and inverse, such as Flow or FullRank, got "
            f"{type(q).__name__}"
        )
    return MeanField.standard(q.dim, dtype=q.loc.dtype)
