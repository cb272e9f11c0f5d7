"""A challenge before *good*: fresh searches, begun far outside q, must come home.

All that a fit has seen began where its first searches ended. Others begin here at several
distances from q, along its axes and across them, and go uphill until they are as near as the chains
have been. One that ends elsewhere has found a place that may hold mass; the Gaussian there tells
how much. In few dimensions searches begin also at particles that were annealed outside q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from scoreascent._arrays import as_default
from scoreascent._batches import log_probs
from scoreascent.climbs import Home, Path, climb
from scoreascent.diagnostics.tempered import anneal
from scoreascent.diagnostics.weights import sample
from scoreascent.run import Run
from scoreascent.searches import (
    MAX_FULL_RANK,
    Cost,
    Found,
    gaussians,
    has_gradient,
)
from scoreascent.target import MANY_DATA

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from scoreascent.searches import Vector

DISTANCES = (2.0, 2.0, 6.0, 6.0, 20.0, 20.0)  # of where searches begin, in sizes of q
MANY_DIRECTIONS = 4  # times as many searches, where no particles are annealed
MAX_HALVINGS = 20  # of a distance at which the density is not finite
MAX_ITERATIONS = 120  # gradients of a search
MAX_ABOVE = 2.0  # nats, of a weight π/q over the largest that was seen
MAX_ANNEALED = 50  # dimensions, up to which particles that walk at random find anything
ANNEALINGS = 2  # by themselves: each misses a narrow place now and then
PARTICLES_TRIED = 4  # of them, from which searches begin
SCREENED, CLIMBED = 4096, 8  # places around q at which log p is looked at, and searches from them
AROUND = (0.5, 2.0)  # sizes of q, between which they are
FEWER = 4  # times as few, and one annealing, where data are many: these were most of such a fit
PATH_PLACES = 3  # of a search that did not come home, beside its end


class Known(NamedTuple):
    """Where the fit has been, in terms of q and of the weights π/q."""

    centre: float  # log q where it is likeliest
    least: float  # log q at the state of the chains that is furthest out
    log_evidence: float
    log_w_star: float  # the largest log π/q that was seen

    def is_new(self, log_p: Any, log_q: Any, margin: float = 0.0) -> Any:
        """Tell where the fit has not been: further out, by a margin in sds, or far above q."""
        return is_beyond(log_p, log_q, self.centre, self.reach + margin, self.above)

    @property
    def reach(self) -> float:
        """How far out the chains have been, in sds."""
        return float(np.sqrt(2 * max(0.0, self.centre - self.least)))

    @property
    def above(self) -> float:
        """The log of an unnormalised weight π/q that is far larger than any that was seen."""
        return self.log_evidence + self.log_w_star + MAX_ABOVE


def is_beyond(log_p: Any, log_q: Any, centre: Any, reach: Any, above: Any) -> Any:
    """Tell which places lie further out in q than `reach` sds, or have weights beyond `above`."""
    return (log_q < centre - 0.5 * reach**2) | (log_p - log_q > above)


def challenge(
    run: Run, key: PRNGKeyArray, least_log_q: float, log_evidence: float, log_w_star: float
) -> dict[str, Any]:
    """Measure what searches find where the fit has not been, and `Known` says where that is.

    `stray` is the largest share of the posterior's mass that one of them found, times its squared
    distance from q's mean in posterior sds (at least one): what it adds to a variance.
    """
    cost = Cost()
    blind = run.start is None or not run.start.evaluations[1]
    if blind and not has_gradient(run.target):
        return {"stray": 0.0, "stray_mass": 0.0}
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    mean, unit = np.asarray(run.q.mean, np.float64), _unit(run, key)
    centre = float(log_probs(run.q, np.asarray(run.q.top())[None])[0])
    known = Known(centre, least_log_q, log_evidence, log_w_star)
    home = Home(run.q, min(least_log_q, centre), known.above)
    far = _first_points(run, rng, mean, unit, home, cost)
    annealings = 1 if _is_long(run) else ANNEALINGS
    for _ in range(annealings if run.q.dim <= MAX_ANNEALED else 0):
        z, log_p, densities = anneal(run.target, run.q, known.is_new, unit, rng)
        cost.densities += densities
        far += _some(z, log_p, mean, unit)
    far += _screened(run, rng, mean, unit, known, cost)
    paths, gradients = climb(run.target, far, home, unit, MAX_ITERATIONS)
    cost.gradients += gradients
    return strays(run, paths, known, rng, cost)


def _is_long(run: Run) -> bool:
    """Tell whether a density takes long."""
    return run.target.data_size >= MANY_DATA


def strays(
    run: Run, paths: list[Path], known: Known, rng: np.random.Generator, cost: Cost
) -> dict[str, Any]:
    """Measure what mass there is where searches ended that did not come home."""
    worst: tuple[float, float] = (0.0, 0.0)
    where: tuple[Vector, Vector] | None = None
    for path in paths:
        if path.is_home:
            continue
        at = np.unique(np.linspace(0, len(path.z) - 1, PATH_PLACES + 1).astype(int))[1:]
        for place in gaussians(run.target, [path.z[i] for i in at], rng, cost):
            found = _adds(run, place, known)
            if found > worst:
                worst, where = found, (place.mean, place.cov)
    count = (cost.densities, cost.gradients)
    told = {"stray": worst[0], "stray_mass": worst[1], "stray_at": where}
    return {**told, "challenge_count": count}


def _screened(
    run: Run, rng: np.random.Generator, mean: Vector, unit: Vector, known: Known, cost: Cost
) -> list[Vector]:
    """Return a few of many places around q, of those where log p is far above what q says.

    A mode that is narrow beside q is climbed from near it alone, but there log p tells.
    """
    if run.q.dim > MAX_ANNEALED:
        return []
    count = SCREENED // FEWER if _is_long(run) else SCREENED
    direction = rng.standard_normal((count, len(mean)))
    direction /= np.linalg.norm(direction, axis=1)[:, None]
    size = np.sqrt(len(mean)) + 5.0
    steps = size * rng.uniform(*AROUND, (count, 1)) * direction
    z = as_default(mean + steps @ unit.T)
    log_p = log_probs(run.target, z)
    cost.densities += count
    above = log_p - log_probs(run.q, z) > known.above
    return list(rng.permutation(z[above & np.isfinite(log_p)])[:CLIMBED].astype(np.float64))


def _some(z: Vector, log_p: Vector, mean: Vector, unit: Vector) -> list[Vector]:
    """Return a few of the particles: the likeliest, the furthest out, and what is far from both."""
    z = z[np.isfinite(log_p)]
    if not len(z):
        return []
    x = (z - mean) / unit if unit.ndim == 1 else np.linalg.solve(unit, (z - mean).T).T
    chosen = [int(np.argmax(log_p[np.isfinite(log_p)])), int(np.argmax(np.sum(x**2, 1)))]
    while len(chosen) < PARTICLES_TRIED:
        nearest = np.min([np.sum((x - x[i]) ** 2, 1) for i in chosen], 0)
        chosen.append(int(np.argmax(nearest)))
    return [z[i] for i in dict.fromkeys(chosen)]


def _unit(run: Run, key: PRNGKeyArray) -> Vector:
    """Return a factor of q's covariance, about; in many dimensions of its diagonal alone."""
    dim = run.q.dim
    if dim > MAX_FULL_RANK:
        return np.asarray(run.q.sd, np.float64)
    draws = np.asarray(sample(key, run.q, 4 * dim + 20), np.float64)
    factor: Vector = np.linalg.qr((draws - draws.mean(0)) / np.sqrt(len(draws)))[1].T
    return factor


def _first_points(
    run: Run, rng: np.random.Generator, mean: Vector, unit: Vector, home: Home, cost: Cost
) -> list[Vector]:
    """Return places at the distances, every second one straight across from the one before."""
    dim = len(mean)
    steps, direction = [], np.zeros(dim)
    again = 1 if dim <= MAX_ANNEALED else MANY_DIRECTIONS
    for i, distance in enumerate(again * DISTANCES):
        if i % 2:
            direction = -direction
        else:
            noise = rng.standard_normal(dim)
            direction = noise / np.linalg.norm(noise)
        step = unit @ direction if unit.ndim == 2 else unit * direction
        steps.append(distance * (np.sqrt(dim) + 5) * step)
    points: list[Vector] = []
    for _ in range(MAX_HALVINGS):
        paths, gradients = climb(run.target, [mean + step for step in steps], home, unit, 0)
        cost.gradients += gradients
        points += [path.z[0] for path in paths if path.is_possible]
        steps = [step / 2 for step, path in zip(steps, paths) if not path.is_possible]
        if not steps:
            break
    return points


def _adds(run: Run, place: Found, known: Known) -> tuple[float, float]:
    """Return what the mass of a Gaussian where the fit has not been adds to a variance; that mass.

    Where q has some of the mass already, only what it lacks counts.
    """
    log_q = log_probs(run.q, as_default(place.z))
    new = known.is_new(place.log_p, log_q) & np.isfinite(place.log_p)
    share = float(np.exp(min(place.elbo - known.log_evidence, 0.0)) * np.mean(new))
    away = (place.mean - np.asarray(run.q.mean, np.float64)) / np.asarray(run.q.sd, np.float64)
    return share * max(1.0, float(np.max(away**2))), share
