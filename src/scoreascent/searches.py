"""Where searches for modes begin, and the Gaussians with the curvature at the places they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scoreascent._arrays import as_default, default_dtype, impossible
from scoreascent._batches import log_probs
from scoreascent._random import fold_in
from scoreascent._structs import check_count
from scoreascent.climbs import Home, climb
from scoreascent.families import Family, FullRank, LowRank
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Vector = np.ndarray[Any, np.dtype[np.float64]]

MAX_FULL_RANK = 200  # the most coordinates for which a d × d matrix is kept
BOX_SIZES = (2.0, 10.0)  # searches begin uniformly in [−2, 2]ᵈ, as Stan's chains do, or further out
MODEL_EVERY = 3  # every third search begins where the model itself would, if it knows
MAX_ROUNDS, SHRINK = 40, 0.8  # of looking for a place in a box, which shrinks each time
SAME_PLACE = 0.05  # sds between places that have one curvature
START_RANK = 20  # of the low-rank family beyond `MAX_FULL_RANK` coordinates
DRAWS = 32  # draws of each Gaussian, which weigh it and start chains
MAX_AXES = 64  # along which one looks whether log p falls
FAR_OUT = 1e6  # standard deviations
MIN_FALL = 1.1 * float(np.log(FAR_OUT))  # of log p, so far out
MAX_SHRINKS = 6  # how often a Gaussian which leaves the support is made narrower


@dataclass
class Cost:
    """How often the target was evaluated so far, by all searches together."""

    densities: int = 0
    gradients: int = 0


@dataclass(frozen=True, eq=False)
class Found:
    """A Gaussian N(mean, scale scaleᵀ), scale a matrix or a diagonal; its draws and their log p."""

    mean: Vector
    scale: Vector
    z: Vector
    log_p: Vector
    elbo: float
    end: Vector  # where the search ended; the mean may be a place on the way

    @property
    def cov(self) -> Vector:
        """The covariance matrix."""
        return np.diag(self.scale**2) if self.scale.ndim == 1 else self.scale @ self.scale.T

    @property
    def sd(self) -> Vector:
        """The standard deviations."""
        return self.scale if self.scale.ndim == 1 else np.sqrt(np.sum(self.scale**2, 1))


def has_gradient(target: Target) -> bool:
    """Tell whether jax can differentiate the log density; callbacks and `while` loops it cannot."""
    try:
        jax.eval_shape(
            jax.grad(target.log_prob), jax.ShapeDtypeStruct((target.dim,), default_dtype())
        )
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def flat_direction(target: Target, mean: Any, sd: Any) -> str:
    """Return where log p hardly falls far out, in words; an empty string if it falls everywhere.

    A million sds out, a density that has a mass must have fallen by more than the log of that, or
    its integral along this axis grows with the distance. Cauchy's falls by twice as much.
    """
    mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
    at = np.unique(np.linspace(0, target.dim - 1, min(target.dim, MAX_AXES)).astype(int))
    steps = np.zeros((2 * len(at), target.dim))
    steps[np.arange(2 * len(at)), np.repeat(at, 2)] = np.tile([1.0, -1.0], len(at))
    places = np.concatenate([mean[None], mean + FAR_OUT * sd * steps])
    with np.errstate(over="ignore", invalid="ignore"):
        log_p = log_probs(target, as_default(places))
        falls = log_p[0] - log_p[1:]
    low = np.flatnonzero(falls < MIN_FALL)
    if not low.size:
        return ""
    axis = int(np.repeat(at, 2)[low[0]])
    return (
        f"log_density falls by only {falls[low[0]]:.3g} over a million standard deviations along "
        f"coordinate {axis} of {target.dim} of the unconstrained space"
    )


def is_fair(g: Found) -> bool:
    """Tell whether log p around the mean falls about as a Gaussian's would: by χ²/2."""
    spread = np.std(g.log_p - g.log_p.mean()) if np.all(np.isfinite(g.log_p)) else np.inf
    return bool(spread < 3 * np.sqrt(len(g.mean) / 2) + 1)


@jax.jit
def _hessian(target: Target, z: Any) -> Any:
    return jax.hessian(target.log_prob)(z)


@jax.jit
def _hessian_times(target: Target, z: Any, v: Any) -> Any:
    """Return H v for each row of v, a few at a time."""
    times = lambda v: jax.jvp(jax.grad(target.log_prob), (z,), (v,))[1]  # noqa: E731
    return jax.lax.map(times, v, batch_size=8)


def blank_home(target: Target) -> Home:
    """Return a home that no search comes to, with a q of the family that a fit will have."""
    ones = np.ones(target.dim)
    if target.dim > MAX_FULL_RANK:
        q: Family = LowRank.from_moments(as_default(0 * ones), as_default(ones), START_RANK)
    else:
        q = FullRank(as_default(0 * ones), as_default(np.diag(ones)))
    return Home(q, np.inf, 0.0)


def plain_unit(dim: int) -> Vector:
    """Return the identity as a matrix, or in many dimensions as a diagonal."""
    return np.ones(dim) if dim > MAX_FULL_RANK else np.eye(dim)


def first_points(
    target: Target,
    key: PRNGKeyArray,
    rng: np.random.Generator,
    searches: int,
    initial: Any,
    cost: Cost,
    boxes: tuple[float, ...] = BOX_SIZES,
    home: Home | None = None,
) -> list[Vector]:
    """Return where the searches begin: places that were given, then boxes and the model's own."""
    given = _given_points(target, initial)
    points, shrinks = list(given), [False] * len(given)
    for i in range(len(given), check_count("searches", searches, 1)):
        own: Any = None
        if i % MODEL_EVERY == MODEL_EVERY - 1:
            own = target.initial(fold_in(key, i))
        box = boxes[i % len(boxes)]
        points.append(rng.uniform(-box, box, target.dim) if own is None else np.asarray(own))
        shrinks.append(True)
    for round_ in range(MAX_ROUNDS):
        lost = [i for i, ok in enumerate(_are_finite(target, points, cost, home)) if not ok]
        for i in lost:
            if not shrinks[i]:
                raise ValueError(
                    f"initial: the log density or its gradient is not finite at the place {i} of "
                    f"{len(given)}; give places inside the support"
                )
            box = boxes[i % len(boxes)] * SHRINK**round_  # nearer and nearer to the origin
            points[i] = rng.uniform(-box, box, target.dim)
        if not lost:
            break
    return [np.asarray(z, np.float64) for z in points]


def _are_finite(target: Target, points: list[Vector], cost: Cost, home: Home | None) -> list[bool]:
    """Tell at which places a search can begin."""
    home = blank_home(target) if home is None else home
    paths, gradients = climb(target, points, home, plain_unit(target.dim), 0)
    cost.gradients += gradients
    return [path.is_possible for path in paths]


def _given_points(target: Target, initial: Any) -> list[Vector]:
    """Return `initial` as a list of vectors."""
    if initial is None:
        return []
    places = initial if isinstance(initial, list | tuple) else [initial]
    points = []
    for place in places:
        z = np.asarray(target.unconstrain(place) if isinstance(place, Mapping) else place)
        if z.shape != (target.dim,) or z.dtype.kind not in "fiu":
            raise ValueError(
                f"initial must be parameters by name, a vector of {target.dim} numbers, or a list "
                f"of such, got {place!r}"
            )
        points.append(z.astype(np.float64))
    return points


def gaussians(
    target: Target,
    places: list[Vector],
    rng: np.random.Generator,
    cost: Cost,
    known: list[Found] | None = None,
) -> list[Found]:
    """Return the Gaussian with the curvature at each place, drawn from and weighed.

    A place that is one of those `known` has its curvature.
    """
    out = []
    for z in places:
        mean = np.asarray(z, np.float64)
        same = [g for g in known or [] if np.max(np.abs(mean - g.mean) / g.sd) < SAME_PLACE]
        scale = same[0].scale if same else _scale(target, as_default(z), rng, cost)
        for _ in range(MAX_SHRINKS):
            noise = rng.standard_normal((DRAWS, target.dim))
            draws = mean + (noise * scale if scale.ndim == 1 else noise @ scale.T)
            log_p = log_probs(target, as_default(draws))
            cost.densities += DRAWS
            log_p = np.where(impossible(log_p), -np.inf, log_p)
            finite = np.isfinite(log_p)
            if np.mean(finite) > 0.2:
                break
            scale = scale / 4  # the support ends before the curvature says so
        diagonal = scale if scale.ndim == 1 else np.abs(np.diagonal(scale))
        entropy = np.sum(np.log(diagonal)) + 0.5 * target.dim * (1 + np.log(2 * np.pi))
        elbo = float(np.mean(floored(log_p, target.dim)) + entropy)
        out.append(Found(mean, scale, draws, log_p, elbo, mean))
    return out


def _scale(target: Target, z: Any, rng: np.random.Generator, cost: Cost) -> Vector:
    """Return a factor of the inverse of −H at z: a triangle, or in many dimensions a diagonal.

    Negative curvature cost by its size; where there is none, the scale is about one.
    """
    dim = target.dim
    if dim > MAX_FULL_RANK:
        signs = rng.choice([-1.0, 1.0], (2 * DRAWS, dim))
        cost.gradients += 2 * len(signs)
        products = np.asarray(_hessian_times(target, z, signs.astype(z.dtype)), np.float64)
        curvature = np.abs(np.mean(signs * products, 0))
        return 1 / np.sqrt(positive(curvature))
    cost.gradients += 2 * dim
    precision = -np.asarray(_hessian(target, z), np.float64)
    return root_of_inverse(precision)


def root_of_inverse(precision: Vector) -> Vector:
    """Return the triangle L with L Lᵀ the inverse of a precision, negative curvature by size."""
    if not np.all(np.isfinite(precision)):
        return np.eye(len(precision))
    unit = 1 / np.sqrt(positive(np.abs(np.diagonal(precision))))
    values, vectors = np.linalg.eigh(unit[:, None] * precision * unit)
    values = np.where(np.abs(values) < 1e-7, 1.0, np.maximum(np.abs(values), 1e-6))
    half = (unit[:, None] * vectors) / np.sqrt(values)
    root: Vector = np.linalg.qr(half.T)[1].T
    return root


def positive(curvature: Vector) -> Vector:
    """Replace by one the curvatures that are zero, or nearly so beside the others."""
    floor = 1e-12 * np.max(curvature, initial=0.0)
    return np.where(np.isfinite(curvature) & (curvature > floor), curvature, 1.0)


def floored(log_p: Vector, dim: int) -> Vector:
    """Return log densities in which draws outside the support are bad ones, not infinitely bad."""
    finite = np.isfinite(log_p)
    low = log_p[finite].min() - dim if finite.any() else -np.inf
    return np.where(finite, log_p, low)
