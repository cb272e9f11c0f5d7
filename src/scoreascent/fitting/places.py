"""Places that searches find: which of them are one, and whether there are more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scoreascent._arrays import as_default
from scoreascent._batches import log_probs
from scoreascent.climbs import Home, climb
from scoreascent.families import Mixture
from scoreascent.searches import DRAWS, Cost, Found, gaussians, plain_unit
from scoreascent.target import Target

if TYPE_CHECKING:
    from scoreascent.searches import Vector

MAX_VALLEY = 3.0  # nats that log p may fall between two places that count as one
MIN_WEIGHT = 0.02  # of a component, as a share of the largest one, at least
MIN_SHARE = 1e-4  # of the mass of the best place, by its Gaussian: less is not a place
POINTS, MAX_POINTS = 2**15, 2**18  # at which a round looks, and at which all do together
ROUND, WIDTH = 256, 64  # searches of a round at most, and side by side
MAX_GRADIENTS, MAX_PLACES = 100_000, 64
ITERATIONS = 120  # gradients of a search
SIZES = (0.4, 0.7, 1.0, 1.4)  # of the boxes where these are, by how far places are apart
MARGIN = 2.0  # nats, of a weight π/q over the largest that was seen


def distinct(target: Target, found: list[Found], cost: Cost) -> list[Found]:
    """Return the best of each place that was found, best first."""
    places: list[Found] = []
    for g in found:
        if not any(is_one_place(target, other, g, cost) for other in places):
            places.append(g)
    return places


def more(target: Target, places: list[Found], rng: np.random.Generator, cost: Cost) -> list[Found]:
    """Return the places, best first, and others that many more searches find, if there are any.

    Where there are several there may be more, and a mode that is narrow beside the others is come
    to from near it alone. So log p is looked at in many places, in boxes around those known. Where
    it is far above the mixture of these, searches begin; those that come to a known one end there.
    It goes on until rounds of many thousand points have led to no new place.
    """
    clean = spent = 0
    unit = plain_unit(target.dim)
    while clean < MAX_POINTS and spent < MAX_GRADIENTS and len(places) < MAX_PLACES:
        home = _home(places)
        first = _first(target, places, home, rng)
        cost.densities += POINTS
        paths, gradients = climb(target, first, home, unit, ITERATIONS, width=WIDTH)
        spent, known = spent + gradients, len(places)
        for path in paths:
            if path.is_home or not np.isfinite(path.log_p[-1]):
                continue
            new = gaussians(target, [path.z[-1]], rng, cost, places)[0]
            best = max(g.elbo for g in places)
            if new.elbo < best + np.log(MIN_SHARE) or len(places) == MAX_PLACES:
                continue
            if not any(is_one_place(target, g, new, cost) for g in places):
                places = [*places, new]
        clean = clean + POINTS if len(places) == known else 0
    cost.gradients += spent
    return sorted(places, key=lambda g: -g.elbo)


def _first(
    target: Target, places: list[Found], home: Home, rng: np.random.Generator
) -> list[Vector]:
    """Return where a round of searches begins: in boxes as wide as the places are apart."""
    means = np.stack([g.mean for g in places])
    sd = np.sqrt(np.mean([g.sd**2 for g in places], 0))
    centre = 0.5 * (means.min(0) + means.max(0))
    reach = float(np.max(np.abs(means - centre) / sd)) + 3.0
    sizes = reach * np.resize(SIZES, POINTS)[:, None]
    z = as_default(centre + sizes * sd * rng.uniform(-1, 1, (POINTS, len(sd))))
    log_p = log_probs(target, z)
    above = np.isfinite(log_p) & (log_p - log_probs(home.q, z) > home.above)
    return list(rng.permutation(z[above])[:ROUND].astype(np.float64))


def _home(places: list[Found]) -> Home:
    """Return what is known: where the places' mixture is likely, and not far too low."""
    q = mixture(places)
    z = np.concatenate([g.z[np.isfinite(g.log_p)] for g in places])
    log_p = np.concatenate([g.log_p[np.isfinite(g.log_p)] for g in places])
    log_q = log_probs(q, as_default(z))
    return Home(q, float(np.min(log_q)), float(np.max(log_p - log_q)) + MARGIN)


def mixture(places: list[Found]) -> Mixture:
    """Return the mixture of the places' Gaussians, each with about the mass that it holds."""
    mass = np.exp([g.elbo - max(g.elbo for g in places) for g in places])
    weights = np.maximum(mass, MIN_WEIGHT)
    mean, cov = (
        as_default(np.stack(x)) for x in ([g.mean for g in places], [g.cov for g in places])
    )
    return Mixture.from_moments(mean, cov, as_default(weights))


def is_one_place(target: Target, a: Found, b: Found, cost: Cost) -> bool:
    """Tell whether two searches found one place: no valley between their Gaussians, or their ends.

    Along a bent ridge the straight line between two Gaussians leaves it, but searches end alike.
    """
    if _valley(target, a.mean, b.mean, cost) < MAX_VALLEY:
        return True
    return _valley(target, a.end, b.end, cost) < MAX_VALLEY


def _valley(target: Target, a: Vector, b: Vector, cost: Cost) -> float:
    """Return how far log p falls on the way from a to b, below the lower of the two."""
    along: Any = np.linspace(0, 1, DRAWS)[:, None]
    log_p = log_probs(target, as_default(a + along * (b - a)))
    cost.densities += DRAWS
    return float(min(log_p[0], log_p[-1]) - np.nanmin(log_p))
