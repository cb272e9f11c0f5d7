"""Where to begin: Gaussians at the modes that several searches find, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import fmin_l_bfgs_b

from scoreascent._batches import log_probs
from scoreascent._random import as_key
from scoreascent._structs import check_count, pytree
from scoreascent.families import Family, FullRank, LowRank
from scoreascent.kernels.base import evaluate
from scoreascent.target import Model, Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Vector = np.ndarray[Any, np.dtype[np.float64]]

FULL_MAX = 200  # most coordinates for which a d × d matrix is kept
RANK = 20  # of the low-rank family beyond that
BOXES = (2.0, 10.0)  # searches begin uniformly in [−2, 2]ᵈ, as Stan's chains do, or further out
OWN = 3  # every third search begins where the model itself would, if it knows
LONGEST = 300  # iterations of a search
PATH = 60  # iterations of a search by Pathfinder, which draws at each of them
DRAWS = 32  # draws of each Gaussian, which weigh it and start chains
SHRINKS = 6  # times that a Gaussian which leaves the support is made narrower
ON_THE_WAY = 8  # places of a path that are looked at if its end is no good
VALLEY = 3.0  # nats: how deep log p may fall between two places that count as one
NEAR = 5.0  # nats: a mode this much worse than the best is not worth a chain
LEAST = 1 / 8  # of the points of the best place are taken of the others at least


@dataclass(frozen=True, eq=False)
class Start:
    """A first q and points for chains to begin at, as `fit(q0=…)` takes them.

    `elbo` says how good each of the searches' Gaussians is, best first; `agree` whether those that
    are kept are one place or several. `evaluations` counts densities and gradients.
    """

    q: Family
    z: Any
    elbo: tuple[float, ...]
    kept: int
    agree: bool
    evaluations: tuple[int, int]
    before: Family | None = None  # where the first of several stages began

    def __str__(self) -> str:
        places = "one place" if self.agree else "DIFFERENT places"
        return f"{self.kept} of {len(self.elbo)} searches kept; they found {places}"


@pytree
@dataclass(frozen=True)
class Scattered:
    """q, but its draws are taken from a list of points: what the first states of chains are.

    If their log densities are known, `log_p`, nothing has to be evaluated to begin.
    """

    q: Family
    z: Any
    log_p: Any = None

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return self.q.dim

    @property
    def mean(self) -> Any:
        """That of q."""
        return self.q.mean

    @property
    def sd(self) -> Any:
        """That of q."""
        return self.q.sd

    def noise(self, key: PRNGKeyArray) -> Any:
        """Base noise of q."""
        return self.q.noise(key)

    def sample(self, key: PRNGKeyArray) -> Any:
        """One of the points."""
        return self.z[jax.random.randint(key, (), 0, self.z.shape[0])]


@dataclass(frozen=True, eq=False)
class _Gaussian:
    """N(mean, scale scaleᵀ), scale a matrix or the diagonal of one; its draws and their log p."""

    mean: Vector
    scale: Vector
    z: Vector
    log_p: Vector
    elbo: float

    @property
    def sd(self) -> Vector:
        return self.scale if self.scale.ndim == 1 else np.sqrt(np.sum(self.scale**2, 1))


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

    >>> target = Target(lambda z: -50 * jnp.sum((z - 3) ** 2), dim=2)
    >>> start = laplace(target)
    >>> [round(float(x), 2) for x in (*start.q.mean, *start.q.sd)]
    [3.0, 3.0, 0.1, 0.1]
    """
    key, counts, found = as_key(key), [0, 0], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for first in _first_points(target, key, rng, searches, initial, counts):
        path = _descend(target, first, counts)
        best = max(_gaussians(target, path[-1:], rng, counts), key=lambda g: g.elbo)
        if not _is_fair(best) and len(path) > 2:
            at = np.unique(np.linspace(0, len(path) - 2, ON_THE_WAY).astype(int))
            others = _gaussians(target, [path[i] for i in at], rng, counts)
            best = max([best, *others], key=lambda g: g.elbo)
        found.append(best)
    return _chosen(target, found, counts)


def pathfinder(
    target: Target, key: PRNGKeyArray | int = 0, searches: int = 4, initial: Any = None
) -> Start:
    """Gaussians on the way to the modes, by BlackJAX's Pathfinder from several places.

    Each search keeps the Gaussian with the highest ELBO on its path, with the inverse Hessian that
    L-BFGS has learnt by then: gradients alone, where `laplace` differentiates twice. Searches begin
    as there, and the best are kept and held against each other as there. BlackJAX does not tell how
    often its line searches look, so `evaluations` counts one gradient for each iteration.

    >>> target = Target(lambda z: -50 * jnp.sum((z - 3) ** 2), dim=2)
    >>> start = pathfinder(target)
    >>> [round(float(x), 1) for x in (*start.q.mean, *start.q.sd)]
    [3.0, 3.0, 0.1, 0.1]
    """
    try:
        import blackjax  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pathfinder needs blackjax: pip install 'scoreascent[blackjax]'", name="blackjax"
        ) from None
    key, counts, found = as_key(key), [0, 0], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for i, first in enumerate(_first_points(target, key, rng, searches, initial, counts)):
        path = _path(target, jax.random.fold_in(key, i), _narrow(first))
        found.append(_best_of_path(target, *(np.asarray(x, np.float64) for x in path)))
        counts[0] += (PATH + 2) * DRAWS
        counts[1] += PATH
    return _chosen(target, found, counts)


def _chosen(target: Target, found: list[_Gaussian], counts: list[int]) -> Start:
    """The best of what the searches found, and whether it is one place."""
    found.sort(key=lambda g: -g.elbo)
    if not np.isfinite(found[0].elbo):
        raise ValueError(
            "no search found a place around which the target's log density is finite; give q0 "
            "where the posterior has mass, or check log_density for NaN"
        )
    kept = [g for g in found if g.elbo >= found[0].elbo - NEAR]
    elbos = tuple(g.elbo for g in found)
    weights = np.maximum(np.exp([g.elbo - kept[0].elbo for g in kept]), LEAST)
    parts = [g.z[np.isfinite(g.log_p)] for g in kept]
    z = np.concatenate([x[: max(1, round(w * len(x)))] for x, w in zip(parts, weights)])
    agree = all(_valley(target, kept[0].mean, g.mean, counts) < VALLEY for g in kept[1:])
    q = _family(kept, weights / weights.sum(), target.dim)
    return Start(q, _narrow(z), elbos, len(kept), agree, (counts[0], counts[1]))


def _family(kept: list[_Gaussian], weights: Vector, dim: int) -> Family:
    """The Gaussian with the moments of the mixture of those that are kept."""
    mean = np.tensordot(weights, [g.mean for g in kept], 1)
    away = [g.mean - mean for g in kept]
    if dim > FULL_MAX:
        var = np.tensordot(weights, [g.sd**2 + a**2 for g, a in zip(kept, away)], 1)
        return LowRank.from_moments(_narrow(mean), _narrow(np.sqrt(var)), RANK)
    covs = [g.scale @ g.scale.T + np.outer(a, a) for g, a in zip(kept, away)]
    return FullRank.from_moments(_narrow(mean), _narrow(np.tensordot(weights, covs, 1)))


def _narrow(x: Any) -> Any:
    """An array in jax's present precision."""
    return jnp.asarray(np.asarray(x, jax.dtypes.canonicalize_dtype(np.float64)))


def _valley(target: Target, a: Vector, b: Vector, counts: list[int]) -> float:
    """How far log p falls on the way from a to b, below the lower of the two."""
    along = np.linspace(0, 1, DRAWS)[:, None]
    log_p = log_probs(target, _narrow(a + along * (b - a)))
    counts[0] += DRAWS
    return float(min(log_p[0], log_p[-1]) - np.nanmin(log_p))


def _is_fair(g: _Gaussian) -> bool:
    """Whether log p around the mean is about what a Gaussian would have: −χ²/2 below its top."""
    spread = np.std(g.log_p - g.log_p.mean()) if np.all(np.isfinite(g.log_p)) else np.inf
    return bool(spread < 3 * np.sqrt(len(g.mean) / 2) + 1)


# -- searching -------------------------------------------------------------------------------------


@jax.jit
def _value_and_grad(target: Target, z: Any) -> Any:
    return jax.value_and_grad(target.log_prob)(z)


@jax.jit
def _hessian(target: Target, z: Any) -> Any:
    return jax.hessian(target.log_prob)(z)


@jax.jit
def _hessian_times(target: Target, z: Any, v: Any) -> Any:
    """H v for each row of v, a few at a time."""
    times = lambda v: jax.jvp(jax.grad(target.log_prob), (z,), (v,))[1]  # noqa: E731
    return jax.lax.map(times, v, batch_size=8)


def _first_points(
    target: Target,
    key: PRNGKeyArray,
    rng: np.random.Generator,
    searches: int,
    initial: Any,
    counts: list[int],
) -> Iterator[Vector]:
    """Where the searches begin: places that were given, then boxes and the model's own."""
    given = _given_points(target, initial)
    for i in range(max(check_count("searches", searches, 1), len(given))):
        own: Any = None
        if i < len(given):
            own = given[i]
        elif i % OWN == OWN - 1 and isinstance(target.log_density, Model):
            own = target.log_density.initial(jax.random.fold_in(key, i), target.data)
        if own is not None and _is_finite(target, own, counts):
            yield np.asarray(own, np.float64)
        elif i < len(given):
            raise ValueError(
                f"initial: the log density or its gradient is not finite at the place {i} of "
                f"{len(given)}; give places inside the support"
            )
        else:
            yield _in_box(target, rng, BOXES[i % len(BOXES)], counts)


def _given_points(target: Target, initial: Any) -> list[Vector]:
    """`initial` as a list of vectors."""
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


def _is_finite(target: Target, z: Any, counts: list[int]) -> bool:
    """Whether a search can begin there."""
    log_p, gradient = _value_and_grad(target, _narrow(z))
    counts[1] += 1
    return bool(np.isfinite(log_p) and np.all(np.isfinite(np.asarray(gradient))))


def _in_box(target: Target, rng: np.random.Generator, box: float, counts: list[int]) -> Vector:
    """A point of the box with a finite density and gradient, nearer and nearer to the origin."""
    for shrink in 0.8 ** np.arange(40):
        z = rng.uniform(-box, box, target.dim) * shrink
        if _is_finite(target, z, counts):
            return z
    return np.zeros(target.dim)


def _descend(target: Target, z: Vector, counts: list[int]) -> list[Vector]:
    """The iterates of L-BFGS on −log p. Where log p is not finite it turns back."""
    path = [z.copy()]

    def loss(z: Vector) -> tuple[float, Vector]:
        log_p, gradient = _value_and_grad(target, _narrow(z))
        counts[1] += 1
        value, slope = float(log_p), np.asarray(gradient, np.float64)
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            return 1e30, np.zeros_like(slope)
        return -value, -slope

    fmin_l_bfgs_b(
        loss, z, m=20, maxiter=LONGEST, maxfun=2 * LONGEST, pgtol=1e-6, factr=1e2,
        callback=lambda z: path.append(z.copy()),
    )  # fmt: skip
    return path


def _gaussians(
    target: Target, places: list[Vector], rng: np.random.Generator, counts: list[int]
) -> list[_Gaussian]:
    """The Gaussian with the curvature at each place, drawn from and weighed."""
    out = []
    for z in places:
        mean = np.asarray(z, np.float64)
        scale = _scale(target, _narrow(z), rng, counts)
        for _ in range(SHRINKS):
            noise = rng.standard_normal((DRAWS, target.dim))
            draws = mean + (noise * scale if scale.ndim == 1 else noise @ scale.T)
            log_p = log_probs(target, _narrow(draws))
            counts[0] += DRAWS
            log_p = np.where(np.isnan(log_p) | (log_p == np.inf), -np.inf, log_p)
            finite = np.isfinite(log_p)
            if np.mean(finite) > 0.2:
                break
            scale = scale / 4  # the support ends before the curvature says so
        diagonal = scale if scale.ndim == 1 else np.abs(np.diagonal(scale))
        entropy = np.sum(np.log(diagonal)) + 0.5 * target.dim * (1 + np.log(2 * np.pi))
        # draws outside the support count as bad ones, not as infinitely bad ones
        low = log_p[finite].min() - target.dim if finite.any() else -np.inf
        elbo = float(np.mean(np.where(finite, log_p, low)) + entropy)
        out.append(_Gaussian(mean, scale, draws, log_p, elbo))
    return out


def _scale(target: Target, z: Any, rng: np.random.Generator, counts: list[int]) -> Vector:
    """A factor of the inverse of −H at z: lower triangular, or a diagonal in many dimensions.

    Negative curvature counts by its size; where there is none, the scale is about one.
    """
    dim = target.dim
    if dim > FULL_MAX:
        signs = rng.choice([-1.0, 1.0], (2 * DRAWS, dim))
        counts[1] += 2 * len(signs)
        products = np.asarray(_hessian_times(target, z, jnp.asarray(signs, z.dtype)), np.float64)
        curvature = np.abs(np.mean(signs * products, 0))
        return 1 / np.sqrt(_positive(curvature))
    counts[1] += 2 * dim
    precision = -np.asarray(_hessian(target, z), np.float64)
    if not np.all(np.isfinite(precision)):
        return np.eye(dim)
    unit = 1 / np.sqrt(_positive(np.abs(np.diagonal(precision))))
    values, vectors = np.linalg.eigh(unit[:, None] * precision * unit)
    values = np.where(np.abs(values) < 1e-7, 1.0, np.maximum(np.abs(values), 1e-6))
    half = (unit[:, None] * vectors) / np.sqrt(values)
    root: Vector = np.linalg.qr(half.T)[1].T
    return root


def _positive(curvature: Vector) -> Vector:
    """Curvatures with those that are zero, or nearly so beside the others, replaced by one."""
    floor = 1e-12 * np.max(curvature, initial=0.0)
    return np.where(np.isfinite(curvature) & (curvature > floor), curvature, 1.0)


# -- BlackJAX's Pathfinder -------------------------------------------------------------------------


@jax.jit
def _path(target: Target, key: PRNGKeyArray, z: Any) -> Any:
    """Of the best Gaussian on a path: mean, factors of its covariance, draws and their densities.

    The covariance is diag(alpha) + beta gamma betaᵀ.
    """
    from blackjax.vi import pathfinder as finder

    def log_density(z: Any) -> Any:
        return evaluate(target, z)[0].log_p  # NaN and +∞ are −∞: nothing goes there

    key_path, key_draw = jax.random.split(key)
    best, _ = finder.approximate(key_path, log_density, z, DRAWS, maxiter=PATH)
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
) -> _Gaussian:
    """What `_path` found, its covariance made positive definite beyond doubt."""
    variance = alpha + np.sum((beta @ gamma) * beta, 1)
    if not all(np.all(np.isfinite(x)) for x in (mean, variance, z, log_q)):
        return _Gaussian(mean, np.ones(target.dim), z, np.full(DRAWS, -np.inf), -np.inf)
    sd = np.sqrt(_positive(np.abs(variance)))
    if target.dim > FULL_MAX:
        scale = sd
    else:
        cov = (np.diag(alpha) + beta @ gamma @ beta.T) / np.outer(sd, sd)
        values, vectors = np.linalg.eigh((cov + cov.T) / 2)
        half = sd[:, None] * vectors * np.sqrt(np.maximum(values, 1e-6))
        scale = np.linalg.qr(half.T)[1].T
    finite = np.isfinite(log_p)
    low = log_p[finite].min() - target.dim if finite.any() else -np.inf
    elbo = float(np.mean(np.where(finite, log_p, low) - log_q))
    return _Gaussian(mean, scale, z, log_p, elbo)
