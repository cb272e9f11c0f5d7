"""Where to begin: Gaussians at the modes that several searches find, and whether they agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import as_default
from scoreascent._extras import require
from scoreascent._random import as_key
from scoreascent._structs import unchecked
from scoreascent.climbs import MAX_ITERATIONS, Home, climb
from scoreascent.diagnostics.modes import MIN_WORTH, weigh_parts
from scoreascent.diagnostics.weights import sample
from scoreascent.families import Family, FullRank, LowRank, Mixture
from scoreascent.fitting.places import MIN_WEIGHT, distinct, mixture, more
from scoreascent.kernels import evaluate
from scoreascent.run import Start
from scoreascent.searches import (
    DRAWS,
    MAX_FULL_RANK,
    START_RANK,
    Cost,
    Found,
    blank_home,
    first_points,
    floored,
    gaussians,
    is_fair,
    plain_unit,
    positive,
)
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from scoreascent.searches import Vector

PATHFINDER_ITERATIONS = 60  # of a search by Pathfinder, which draws at each of them
PATH_PLACES = 8  # places of a path that are looked at if its end is no good
MIN_MASS = np.exp(-5.0)  # a place with a smaller share of the best one's mass may be dropped
MIN_VARIANCE = 0.02  # unless, times its squared distance in sds, it is at least this
NEAR_BOX = (2.0,)  # where short searches begin, in every coordinate
RISE = 1.0  # nats a dimension and step, that a short search must bring
MAX_BELOW = 10.0  # nats a dimension, of where one ends below the best
FIRST_SCALE = 0.1  # of q, before the chains have told it anything
MAX_MIXTURE = 50  # dimensions in which places that differ get a component each,
MIN_MASS_OF_PART = 1e-3  # that it is given
POINTS = 512  # where chains begin, if one place was found later than the others
MAX_SHARE = 0.9  # of the points there, however much mass it holds
MIN_SHARE = 1 / 8  # the others give at least this share of as many points as the best place gives


def laplace(
    target: Target, key: PRNGKeyArray | int = 0, searches: int = 8, initial: Any = None
) -> Start:
    """Gaussians with the curvature of log p at its modes, found by L-BFGS from several places.

    Searches begin in boxes around the origin, and every third one, if the model is NumPyro's or
    PyMC's, at a draw of its prior or at its initial values. `initial` names places of your own,
    which come first: parameters as `target.constrain` gives them, a vector z, or a list of such.

    Where a mode says little of the mass around it (a hierarchical model whose density grows
    without bound as a scale goes to zero), the best place on the way there is taken instead: the
    one whose Gaussian has the highest ELBO. q is full-rank up to 200 dimensions, low-rank beyond.

    >>> import jax.numpy as jnp
    >>> target = Target(lambda z: -50 * jnp.sum((z - 3) ** 2), dim=2)
    >>> start = laplace(target)
    >>> [round(float(x), 2) for x in (*start.q.mean, *start.q.sd)]
    [3.0, 3.0, 0.1, 0.1]
    """
    key, cost, found = as_key(key), Cost(), []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    first = first_points(target, key, rng, searches, initial, cost)
    paths, gradients = climb(target, first, blank_home(target), plain_unit(target.dim))
    cost.gradients += gradients
    ends: list[Found] = []
    for path in paths:
        ends += gaussians(target, [path.z[-1]], rng, cost, ends)
        best, before = ends[-1], path.z[:-1]
        if not is_fair(best) and len(before) > 1:
            at = np.unique(np.linspace(0, len(before) - 1, PATH_PLACES).astype(int))
            others = gaussians(target, [before[i] for i in at], rng, cost)
            best = max([best, *others], key=lambda g: g.elbo)
        found.append(replace(best, end=path.z[-1]))
    return _chosen(target, found, rng, cost)


def climbed(target: Target, key: PRNGKeyArray | int = 0, searches: int = 16) -> Start:
    """Where short searches end, for chains to begin at: on their way up, not at the top.

    In many dimensions a mode is far from where the mass is, and its curvature costs more than it
    tells. So a search ends when its steps bring less than a nat a dimension, where a chain can find
    its own way; chains that came from different places and still agree have forgotten where they
    began.

    >>> import jax.numpy as jnp
    >>> target = Target(lambda z: -50 * jnp.sum((z - 3) ** 2), dim=2)
    >>> start = climbed(target)
    >>> start.z.shape, bool(jnp.all(jnp.abs(start.z - 3) < 1))
    ((16, 2), True)
    """
    key, cost = as_key(key), Cost()
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    q = FullRank.standard(target.dim)
    home = Home(q, np.inf, 0.0)  # that no search comes to, of the family that the fit will have
    first = first_points(target, key, rng, searches, None, cost, NEAR_BOX, home)
    unit, rise = plain_unit(target.dim), RISE * target.dim
    paths, gradients = climb(target, first, home, unit, MAX_ITERATIONS, rise)
    ends = [(path.log_p[-1], path.z[-1]) for path in paths if np.isfinite(path.log_p[-1])]
    if not ends:
        raise ValueError(_nowhere(target))
    ends.sort(key=lambda end: -end[0])
    fair = [z for log_p, z in ends if log_p >= ends[0][0] - MAX_BELOW * target.dim]
    z = np.stack([fair[i % len(fair)] for i in range(searches)])
    tril = as_default(FIRST_SCALE * np.eye(target.dim))
    q = FullRank.from_factor(as_default(np.median(z, 0)), tril)
    count = (cost.densities, cost.gradients + gradients)
    heights = tuple(float(log_p) for log_p, _ in ends)
    return Start(q, jnp.asarray(as_default(z)), heights, len(fair), True, count)


def with_place(
    target: Target, q: Family, place: tuple[Vector, Vector], mass: float, key: PRNGKeyArray
) -> Start:
    """A start at q and one more place: the mean and covariance of a Gaussian, and its mass.

    Where there are two there may be more. If many searches find others, it is at all of them.
    """
    parts: Any = q if isinstance(q, Mixture) else q.envelope()
    rng, cost = np.random.default_rng(np.asarray(jax.random.key_data(key))), Cost()
    known = [*np.asarray(parts.loc, np.float64).reshape(-1, q.dim), place[0]]
    found = more(target, gaussians(target, known, rng, cost), rng, cost)
    count = (cost.densities, cost.gradients)
    if len(found) > len(known):
        z = np.concatenate([g.z[np.isfinite(g.log_p)] for g in found])
        heights = tuple(g.elbo for g in found)
        return Start(mixture(found), jnp.asarray(as_default(z)), heights, len(found), False, count)
    old = np.asarray(q.weights) if isinstance(q, Mixture) else np.ones(1)
    shape = (len(old), q.dim)
    tril = np.asarray(parts.tril, np.float64).reshape(*shape, q.dim)
    means = np.concatenate([np.asarray(parts.loc, np.float64).reshape(shape), place[0][None]])
    covs = np.concatenate([tril @ np.swapaxes(tril, 1, 2), place[1][None]])
    begun, fitted = (
        Mixture.from_moments(as_default(means), as_default(covs), as_default(weights))
        for weights in (
            np.append((1 - share) * old / old.sum(), share)
            for share in np.clip(mass, (MIN_SHARE, MIN_WEIGHT), MAX_SHARE)
        )
    )
    z = sample(key, begun, POINTS)
    return Start(fitted, jnp.asarray(z), (), len(means), False, count)


def weighed(target: Target, start: Start, key: PRNGKeyArray) -> Start:
    """Return a start whose q is a mixture with the masses that draws of its components say.

    The chains begin at these draws by their weights; any other start is returned as it is.
    """
    if not isinstance(start.q, Mixture):
        return start
    found = weigh_parts(target, start.q, key)
    densities, gradients = start.evaluations
    cost = (densities + len(found.z), gradients)
    if found.worth < MIN_WORTH:
        return replace(start, evaluations=cost)
    weights = np.maximum(found.mass, MIN_MASS_OF_PART)
    q = unchecked(start.q, logits=jnp.asarray(as_default(np.log(weights / weights.sum()))))
    at = (np.arange(POINTS) + np.random.default_rng(0).uniform()) / POINTS
    chosen = np.searchsorted(np.cumsum(found.weights), at * found.weights.sum())
    z = jnp.asarray(as_default(found.z[np.minimum(chosen, len(found.z) - 1)]))
    return replace(start, q=q, z=z, evaluations=cost)


def pathfinder(
    target: Target, key: PRNGKeyArray | int = 0, searches: int = 4, initial: Any = None
) -> Start:
    """Gaussians on the way to the modes, by BlackJAX's Pathfinder from several places.

    Each search keeps the Gaussian with the highest ELBO on its path, with the inverse Hessian that
    L-BFGS has learnt by then: gradients alone, where `laplace` differentiates twice. Searches begin
    as there, and the best are kept and held against each other as there. BlackJAX does not tell how
    often its line searches look, so `evaluations` counts one gradient for each iteration.

    >>> import jax.numpy as jnp
    >>> target = Target(lambda z: -50 * jnp.sum((z - 3) ** 2), dim=2)
    >>> start = pathfinder(target)
    >>> [round(float(x), 1) for x in (*start.q.mean, *start.q.sd)]
    [3.0, 3.0, 0.1, 0.1]
    """
    require("blackjax", "blackjax", "pathfinder")
    key, cost, found = as_key(key), Cost(), []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for i, first in enumerate(first_points(target, key, rng, searches, initial, cost)):
        path = _path(target, jax.random.fold_in(key, i), as_default(first))
        found.append(_best_of_path(target, *(np.asarray(x, np.float64) for x in path)))
        cost.densities += (PATHFINDER_ITERATIONS + 2) * DRAWS
        cost.gradients += PATHFINDER_ITERATIONS
    return _chosen(target, found, rng, cost)


def _chosen(target: Target, found: list[Found], rng: np.random.Generator, cost: Cost) -> Start:
    """Return the best of what the searches found, and whether it is one place."""
    found.sort(key=lambda g: -g.elbo)
    if not np.isfinite(found[0].elbo):
        raise ValueError(_nowhere(target))
    kept = [g for g in found if matters(g, found[0])]
    elbos = tuple(g.elbo for g in found)
    weights = np.maximum(np.exp([g.elbo - kept[0].elbo for g in kept]), MIN_SHARE)
    parts = [g.z[np.isfinite(g.log_p)] for g in kept]
    z = np.concatenate([x[: max(1, round(w * len(x)))] for x, w in zip(parts, weights)])
    places = distinct(target, kept, cost)
    agree = len(places) == 1
    q: Family = _family(kept, weights / weights.sum(), target.dim)
    if not agree and target.dim <= MAX_MIXTURE:
        places = more(target, places, rng, cost)
        q = mixture(places)
    evaluations = (cost.densities, cost.gradients)
    return Start(q, jnp.asarray(as_default(z)), elbos, len(kept), agree, evaluations)


def _nowhere(target: Target) -> str:
    """Say that no search found anything."""
    leaves = map(np.asarray, jax.tree.leaves(target.data))
    holes = [np.isnan(x).any() for x in leaves if x.dtype.kind == "f"]
    why = "data holds NaN, so look there first" if any(holes) else "check log_density for NaN"
    return (
        "no search found a place around which the target's log density is finite; give q0 "
        f"where the posterior has mass, or {why}"
    )


def matters(g: Found, best: Found) -> bool:
    """Tell whether the mass around a place can change a mean or a standard deviation.

    The ELBO of its Gaussian is the log of the mass it holds, from below. A share of the mass that
    is many standard deviations away counts with the square of that distance.
    """
    share = np.exp(g.elbo - best.elbo)
    with np.errstate(all="ignore"):
        far = np.nanmax(((g.mean - best.mean) / best.sd) ** 2)
    return bool(share > MIN_MASS or share * far > MIN_VARIANCE)


def _family(kept: list[Found], weights: Vector, dim: int) -> Family:
    """Return the Gaussian with the moments of the mixture of those that are kept."""
    mean = np.tensordot(weights, [g.mean for g in kept], 1)
    away = [g.mean - mean for g in kept]
    if dim > MAX_FULL_RANK:
        var = np.tensordot(weights, [g.sd**2 + a**2 for g, a in zip(kept, away)], 1)
        return LowRank.from_moments(as_default(mean), as_default(np.sqrt(var)), START_RANK)
    covs = [g.scale @ g.scale.T + np.outer(a, a) for g, a in zip(kept, away)]
    return FullRank.from_moments(as_default(mean), as_default(np.tensordot(weights, covs, 1)))


# -- BlackJAX's Pathfinder -------------------------------------------------------------------------


@jax.jit
def _path(target: Target, key: PRNGKeyArray, z: Any) -> Any:
    """Return the best Gaussian of a path: mean, factors of its covariance, draws, densities.

    The covariance is diag(alpha) + beta gamma betaᵀ.
    """
    finder = require("blackjax.vi.pathfinder", "blackjax", "pathfinder")

    def log_density(z: Any) -> Any:
        return evaluate(target, z)[0].log_p  # NaN and +∞ are −∞: nothing goes there

    key_path, key_draw = jax.random.split(key)
    best, _ = finder.approximate(key_path, log_density, z, DRAWS, maxiter=PATHFINDER_ITERATIONS)
    draws, log_q = finder.sample(key_draw, best, DRAWS)
    slope = best.alpha * best.grad_position
    slope = slope + best.beta @ (best.gamma @ (best.beta.T @ best.grad_position))
    log_p = jax.lax.map(log_density, draws, batch_size=DRAWS)
    return best.position + slope, best.alpha, best.beta, best.gamma, draws, log_p, log_q


def _best_of_path(
    target: Target,
    mean: Vector,
    alpha: Vector,
    beta: Vector,
    gamma: Vector,
    z: Vector,
    log_p: Vector,
    log_q: Vector,
) -> Found:
    """Return what `_path` found, its covariance made positive definite beyond doubt."""
    variance = alpha + np.sum((beta @ gamma) * beta, 1)
    if not all(np.all(np.isfinite(x)) for x in (mean, variance, z, log_q)):
        return Found(mean, np.ones(target.dim), z, np.full(DRAWS, -np.inf), -np.inf, mean)
    sd = np.sqrt(positive(np.abs(variance)))
    if target.dim > MAX_FULL_RANK:
        scale = sd
    else:
        cov = (np.diag(alpha) + beta @ gamma @ beta.T) / np.outer(sd, sd)
        values, vectors = np.linalg.eigh((cov + cov.T) / 2)
        half = sd[:, None] * vectors * np.sqrt(np.maximum(values, 1e-6))
        scale = np.linalg.qr(half.T)[1].T
    elbo = float(np.mean(floored(log_p, target.dim) - log_q))
    return Found(mean, scale, z, log_p, elbo, mean)
