"""The tails of a bent q: what chains see that move in one end of a coordinate alone.

A flow that was trained on the states of chains that move in its base space can agree with them on a
tail that neither has: where the map ends, the chains turn back, and the flow learns that there is
little behind. So other chains begin at the states that are furthest out, and move in the
coordinates of a Gaussian at these, which knows nothing of the map. A mirror, beyond which the
density is its own image, keeps them in that end: then they are draws of π there, and must spread as
the states do. If they go further, what the states lack of the variance is known.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import as_default
from scoreascent._random import fold_in
from scoreascent._structs import pytree
from scoreascent.families import FullRank
from scoreascent.kernels import HMC, Count
from scoreascent.kernels.base import Places
from scoreascent.methods import Method, pmcsa
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

EDGES, ABRUPT = 4, 1.2  # ends that are looked at, and how abrupt these are at least
FURTHEST, OUTERMOST, FEWEST = 0.005, 0.02, 256  # shares of the states, and how many at least
CHAINS, STEPS = 128, 600
HERE = pmcsa(CHAINS, HMC(length=1.5, acceptance=0.8, max_steps=16))
NOISES = 2.0  # standard errors that are taken for noise


@pytree
@dataclass(frozen=True)
class Mirrored:
    """The density that has its own image on the inner side of a mirror."""

    target: Target
    axis: Float[Array, " d"]  # ±1 in one coordinate, out is positive; else 0
    at: Float[Array, ""]  # along the axis

    def outside(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the point, or its image if that is the one outside."""
        inside = jnp.maximum(self.at - self.axis @ z, 0.0)
        return z + 2 * inside * self.axis

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return the log density at the point or its image."""
        return self.target.log_prob(self.outside(z))


class Edge(NamedTuple):
    """An end of a coordinate, and how abruptly states stop there."""

    coordinate: int
    sign: float  # of the direction that goes out
    abrupt: float  # from the last 0.5 % of the states to the last of all, in steps from 5 to 0.5 %


def edges(z: Numbers) -> list[Edge]:
    """Return the ends of coordinates at which states (n, d) stop most abruptly; none if none does.

    In 10 000 states a Gaussian's ends are about 1.3 such steps long, those of an exponential two.

    >>> z = np.random.default_rng(0).normal(size=(10_000, 2))
    >>> z[:, 1] = np.maximum(z[:, 1], -2.0)  # a wall
    >>> edges(z)[0]
    Edge(coordinate=1, sign=-1.0, abrupt=0.0)
    """
    found = []
    for sign in (-1.0, 1.0):
        near, far, last = np.quantile(sign * z, [0.95, 1 - FURTHEST, 1.0], axis=0)
        with np.errstate(all="ignore"):
            abrupt = (last - far) / (far - near)
        found += [Edge(i, sign, float(x)) for i, x in enumerate(abrupt) if x < ABRUPT]
    return sorted(found, key=lambda edge: edge.abrupt)[:EDGES]


def look_at_edges(target: Target, states: Any, key: PRNGKeyArray) -> tuple[float, Count]:
    """Return the share of a variance that states lack for an end of a coordinate, beyond noise.

    `states` are (chains, rows, d). The second is how often the density was evaluated.
    """
    z = np.asarray(states, np.float64)
    worst, count = 0.0, Count(0, 0)
    for i, edge in enumerate(edges(z.reshape(-1, target.dim))):
        lacking, more = _lacking(target, z, edge, fold_in(key, i))
        worst, count = max(worst, lacking), count.plus(more)
    return worst, count


def _lacking(target: Target, z: Numbers, edge: Edge, key: PRNGKeyArray) -> tuple[float, Count]:
    """Return the same for one end."""
    axis = edge.sign * np.eye(target.dim)[edge.coordinate]
    x = z @ axis
    n = min(x.size // 8, max(FEWEST, int(OUTERMOST * x.size)))
    at = np.partition(x, x.size - n, axis=None)[x.size - n]
    outer = x >= at
    q = _local(z[outer], axis, at)
    if q is None:
        return 0.0, Count(0, 0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    begin = rng.choice(z[outer], CHAINS, replace=np.sum(outer) < CHAINS)
    there: Any = Mirrored(target, as_default(axis), as_default(at))
    eta, out = _walk(key, there, HERE, q, Places(as_default(begin)))
    # second moments about the mean of all, of the states and of the chains that were begun
    square = (x - x.mean()) ** 2
    others = (np.asarray(out, np.float64)[STEPS // 4 :] - x.mean()) ** 2
    own, theirs = square[outer].mean(), others.mean()
    # chains are independent, and a mean over all of theirs is a ratio of two sums
    noise = np.sqrt(np.sum(np.sum(np.where(outer, square - own, 0.0), 1) ** 2)) / np.sum(outer)
    noise = np.hypot(noise, others.mean(0).std(ddof=1) / np.sqrt(CHAINS))
    more = np.mean(outer) * (theirs - own - NOISES * noise) / x.var()
    return max(0.0, float(np.nan_to_num(more / (1 + more)))), HERE.evaluations(eta, STEPS)


def _local(z: Numbers, axis: Numbers, at: float) -> FullRank | None:
    """Return the Gaussian with the moments of states and of their images; None if in a plane."""
    out = np.outer(z @ axis - at, axis)  # from the mirror
    foot = z - out
    both = np.concatenate([foot + out, foot - out])
    away = both - both.mean(0)
    try:
        tril = np.linalg.cholesky(away.T @ away / len(away))
    except np.linalg.LinAlgError:
        return None
    return FullRank.from_factor(as_default(both.mean(0)), as_default(tril))


@functools.partial(jax.jit, static_argnames="method")
def _walk(
    key: PRNGKeyArray, there: Any, method: Method, q: Any, begin: Places
) -> tuple[Any, Array]:
    """Move chains from where they begin, q standing still; return η and how far out they were."""

    def step(eta: Any, key: PRNGKeyArray) -> Any:
        eta, _ = method.step(key, there, q, eta)
        return eta, jax.vmap(lambda z: there.axis @ there.outside(z))(eta.z)

    key_first, key_rest = jax.random.split(key)
    first = method.init(key_first, there, q, begin)
    return jax.lax.scan(step, first, jax.random.split(key_rest, STEPS))  # type: ignore[no-any-return]
