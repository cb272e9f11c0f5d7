"""A tempered start: particles from a wide reference to the posterior, and a mixture of them.

Searches go uphill from where they begin, so a mode that none of them climbs is not found. Particles
of a reference that is wide enough to hold all of them feel every mode by the mass it holds, if the
reference gives way to π by degrees: π^β is wide and shallow while β is small. This is sequential
Monte Carlo: at each level the particles are drawn again by their weights and moved by HMC. A
mixture of Gaussians is fitted to them by EM, anew at each level, for components that have come
together would never part; so moves fit the mode that a particle is in. The last one is q.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from scipy.linalg import solve_triangular

from scoreascent._arrays import as_default, impossible
from scoreascent._random import as_key
from scoreascent._structs import check_count, pytree
from scoreascent.families import Family, FullRank, Mixture
from scoreascent.families.fullrank import whiten
from scoreascent.kernels import HMC, Adaptive, Point
from scoreascent.run import Start
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

MOVE = HMC(length=1.2, acceptance=0.7, max_steps=6)
MOVES = 3  # at every level
KEPT = 0.7  # of the particles, effectively, from one level to the next
MAX_LEVELS, BISECTIONS = 60, 24
AS_IF_AFTER = 5  # steps, that a step size is learnt at each level
WIDE = 10.0  # sds of the reference, if none is given
EM_STEPS, EM_RATE = 5, 0.8  # at every level
FEW_STEPS, MANY_STEPS = 10, 40  # at the end, whenever two components were merged
MAX_PARTS, POINTS_A_NUMBER = 16, 3  # components, and particles for each dimension of each
FLOOR, RIDGE = 1e-6, 1e-3  # of variances, of all particles and of a component's
LIGHT = 2e-3  # the weight of a component that is left out


@pytree
@dataclass(frozen=True)
class Tempered:
    """The density r^(1 − β) π^β between a reference r and a target π."""

    target: Target
    reference: Family
    beta: Float[Array, ""]

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return its log."""
        log_r = self.reference.log_prob(z)
        return log_r + self.beta * (self.target.log_prob(z) - log_r)


class Swarm(NamedTuple):
    """Particles on their way, with what was learnt."""

    z: Float[Array, "n d"]
    log_p: Float[Array, " n"]
    log_r: Float[Array, " n"]
    beta: Float[Array, ""]
    log_z: Float[Array, ""]
    tuning: Any
    level: Int[Array, ""]


def tempered(
    target: Target,
    key: PRNGKeyArray | int = 0,
    reference: Family | None = None,
    particles: int = 2048,
    components: int | None = None,
    move: Adaptive = MOVE,
) -> Start:
    """Particles that come from a wide reference to the posterior, for `fit(start=…)`.

    Give a `reference` that is wider than the posterior in every direction, and holds all of its
    modes; N(0, 10² I), if none is given. q is a mixture of at most so many components as were
    asked for, fewer where fewer do; the `log_evidence` of the start is what the particles say.
    They move by short trajectories unless `move` is another kernel that learns, such as `Walk()`
    for a density that has no gradient.

    >>> import jax.numpy as jnp
    >>> modes = jnp.array([-4.0, 0.0, 4.0])
    >>> target = Target(lambda z: jax.nn.logsumexp(-2 * (z[0] - modes) ** 2), dim=1)
    >>> start = tempered(target)
    >>> start.q.components, [round(float(x)) for x in sorted(start.q.loc[:, 0])]
    (3, [-4, 0, 4])
    """
    key, n, dim = as_key(key), check_count("particles", particles, 64), target.dim
    reference = FullRank.standard(dim, WIDE) if reference is None else reference
    if reference.dim != dim:
        raise ValueError(
            f"reference must have {dim} dimensions, as the target, got {reference.dim}"
        )
    most = n // (POINTS_A_NUMBER * (dim + 1))
    if components is not None and check_count("components", components, 1) > max(most, 1):
        raise ValueError(
            f"components: {components} of {dim} dimensions are more than {n} particles can tell; "
            f"give at least {POINTS_A_NUMBER * (dim + 1) * components} particles"
        )
    count = int(np.clip(most, 1, MAX_PARTS)) if components is None else components
    swarm = _run(target, reference, key, n, count, move)
    z, log_p = (np.asarray(x, np.float64) for x in (swarm.z, swarm.log_p))
    fair = np.isfinite(log_p)
    if not fair.any() or not float(swarm.beta) == 1:
        raise ValueError(
            "tempered: the particles did not reach the posterior; give a reference whose draws "
            "have a finite log density, and that is nearer to it"
        )
    parts = _mixture(jax.random.fold_in(key, 1), swarm.z, count, EM_STEPS)
    q = _reduced(parts, z)
    leaps = 1 + move.max_steps if isinstance(move, HMC) else 0
    moves = n * MOVES * int(swarm.level)
    evaluations = (n * (1 + int(swarm.level)) + (0 if leaps else moves), moves * leaps)
    value = float(swarm.log_z)
    count = q.components if isinstance(q, Mixture) else 1
    return Start(
        q, jnp.asarray(as_default(z[fair])), (value,), count, count == 1, evaluations,
        log_evidence=value,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("n", "count", "move"))
def _run(
    target: Target, reference: Family, key: PRNGKeyArray, n: int, count: int, move: Adaptive
) -> Swarm:
    """Take n particles from the reference to the target."""
    key_first, key_rest = jax.random.split(key)
    z = reference.sample(key_first, (n,))
    dtype = z.dtype
    zero = jnp.zeros((), dtype)
    tuning = move.first_tuning(reference)
    first = Swarm(z, *_heights(target, reference, z), zero, zero, tuning, jnp.int32(0))

    def goes_on(s: Swarm) -> Array:
        return (s.beta < 1) & (s.level < MAX_LEVELS) & jnp.any(jnp.isfinite(s.log_p))

    def level(s: Swarm) -> Swarm:
        key_draw, key_part, key_move = jax.random.split(jax.random.fold_in(key_rest, s.level), 3)
        ratio = jnp.where(jnp.isfinite(s.log_p), s.log_p - s.log_r, -jnp.inf)
        beta = _next(s.beta, ratio)
        log_w = jnp.where(jnp.isfinite(ratio), (beta - s.beta) * ratio, -jnp.inf)
        gain = logsumexp(log_w) - jnp.log(n).astype(dtype)
        chosen = _systematic(key_draw, log_w)
        z, log_r = s.z[chosen], s.log_r[chosen]
        q = _mixture(key_part, z, count, EM_STEPS)
        between: Any = Tempered(target, reference, beta)

        def turn(i: Any, carry: Any) -> Any:
            points, tuning = carry
            keys = jax.random.split(jax.random.fold_in(key_move, i), n)
            step = lambda k, p: move.tuned_step(k, between, q, p, tuning)  # noqa: E731
            points, _, seen = jax.vmap(step)(keys, points)
            return points, move.retune(tuning, jnp.mean(seen), points)

        points = Point(z, log_r + beta * (s.log_p[chosen] - log_r))
        carry = (points, move.afresh(s.tuning, AS_IF_AFTER))
        points, tuning = jax.lax.fori_loop(0, MOVES, turn, carry)
        heights = _heights(target, reference, points.z)
        return Swarm(points.z, *heights, beta, s.log_z + gain, tuning, s.level + 1)

    return jax.lax.while_loop(goes_on, level, first)  # type: ignore[no-any-return]


def _heights(target: Target, reference: Family, z: Any) -> tuple[Any, Any]:
    """Return log π and log r at the particles; −∞ where π is NaN or +∞."""
    log_p = jax.vmap(target.log_prob)(z)
    log_p = jnp.where(impossible(log_p), -jnp.inf, log_p).astype(z.dtype)
    return log_p, jax.vmap(reference.log_prob)(z).astype(z.dtype)


@functools.partial(jax.jit, static_argnames=("count", "steps"))
def _mixture(key: PRNGKeyArray, z: Float[Array, "n d"], count: int, steps: int) -> Mixture:
    """Return a mixture for the particles z: centres far apart, and so many steps of EM from there.

    Each centre is a particle, drawn by its squared distance from those that there are already.
    """
    n, dim = z.shape
    away = z - jnp.mean(z, 0)
    variance = jnp.mean(away**2, 0)
    floor = jnp.diag(1e-6 * variance + jnp.finfo(z.dtype).tiny)
    tril = jnp.linalg.cholesky(away.T @ away / n + floor)
    x = whiten(jnp.mean(z, 0), tril, z)

    def choose(carry: Any, key: Any) -> Any:
        nearest, at = carry
        nearest = jnp.minimum(nearest, jnp.sum((x - x[at]) ** 2, -1))
        return (nearest, jax.random.categorical(key, jnp.log(nearest))), at

    first = jnp.full(n, jnp.inf, z.dtype), jax.random.randint(key, (), 0, n)
    _, chosen = jax.lax.scan(choose, first, jax.random.split(key, count))
    one = FullRank.from_factor(jnp.zeros(dim, z.dtype), tril * count ** (-1 / dim))
    raw = jnp.broadcast_to(one.raw, (count, dim, dim))
    q = Mixture(jnp.zeros(count, z.dtype), z[chosen], raw)
    weight = jnp.full(n, 1 / n, z.dtype)
    return jax.lax.fori_loop(0, steps, lambda _, q: q.match(z, weight, EM_RATE), q)


def _next(beta: Any, ratio: Float[Array, " n"]) -> Any:
    """Return the largest next β whose weights leave enough effective particles."""
    alive = jnp.sum(jnp.isfinite(ratio))

    def effective(b: Any) -> Any:
        log_w = jnp.where(jnp.isfinite(ratio), (b - beta) * ratio, -jnp.inf)
        return jnp.exp(2 * logsumexp(log_w) - logsumexp(2 * log_w))

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = 0.5 * (low + high)
        enough = effective(middle) >= KEPT * alive
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    one = jnp.ones_like(beta)
    _, high = jax.lax.fori_loop(0, BISECTIONS, halve, (beta, one))
    return jnp.where(effective(one) >= KEPT * alive, one, high)


def _systematic(key: PRNGKeyArray, log_w: Float[Array, " n"]) -> Int[Array, " n"]:
    """Draw as many particles as there are, by their weights, evenly."""
    n = log_w.shape[0]
    total = jnp.cumsum(jax.nn.softmax(log_w))
    at = (jnp.arange(n) + jax.random.uniform(key)) / n
    return jnp.clip(jnp.searchsorted(total / total[-1], at), 0, n - 1)


# -- fewer components ------------------------------------------------------------------------------


def _reduced(q: Mixture, z: Numbers) -> Family:
    """Return a mixture of as few components as tell the particles z about as well as q does.

    The two that are most alike are merged, by Runnalls' (2007) bound of what that loses, and EM
    goes on; as long as the particles are less likely by no more than a component's numbers are
    worth, ½ log n / n each (Schwarz, 1978).
    """
    weights, loc, tril = (np.asarray(x, np.float64) for x in (q.weights, q.loc, q.tril))
    parts = [weights, loc, tril @ np.swapaxes(tril, 1, 2)]
    fair = (weights > LIGHT) & np.all(np.isfinite(tril), (1, 2))
    parts, height = _em([x[fair] for x in parts], z, MANY_STEPS)
    n, dim = z.shape
    worth = 0.25 * (dim + 1) * (dim + 2) * np.log(n) / n
    while len(parts[0]) > 1:
        fewer, lower = _em(_merged(parts), z, FEW_STEPS)
        if lower < height - worth:
            fewer, lower = _em(fewer, z, MANY_STEPS)
        if lower < height - worth:
            break
        parts, height = fewer, lower
    order = np.argsort(-parts[0])
    weights, mean, cov = (as_default(x[order]) for x in parts)
    if len(mean) == 1:
        return FullRank.from_moments(mean[0], cov[0])
    return Mixture.from_moments(mean, cov, weights)


def _em(parts: list[Numbers], z: Numbers, steps: int) -> tuple[list[Numbers], float]:
    """Return components after steps of EM, and the mean log density of z before the last."""
    height = -np.inf
    n, dim = z.shape
    floor = FLOOR * np.diag(z.var(0))
    for _ in range(steps):
        log_parts = np.stack([_log_part(w, m, c, z) for w, m, c in zip(*parts)], -1)
        log_q = np.logaddexp.reduce(log_parts, -1)
        height = float(np.mean(log_q))
        share = np.exp(log_parts - log_q[:, None])
        total = share.sum(0) + 1e-300
        mean = share.T @ z / total[:, None]
        away = z[:, None] - mean
        cov = np.einsum("nk,nki,nkj->kij", share, away, away, optimize=True) / total[:, None, None]
        kept = total > 2 * (dim + 1)
        ridge = RIDGE * np.einsum("kii->ki", cov)[:, :, None] * np.eye(dim)
        parts = [(total / n)[kept], mean[kept], (cov + ridge)[kept] + floor]
        parts[0] = parts[0] / parts[0].sum()
    return parts, height


def _log_part(weight: Any, mean: Numbers, cov: Numbers, z: Numbers) -> Numbers:
    """Return log w N(z; mean, cov)."""
    tril = np.linalg.cholesky(cov)
    x = solve_triangular(tril, (z - mean).T, lower=True)
    log_scale = np.sum(np.log(np.diagonal(tril))) + 0.5 * len(mean) * np.log(2 * np.pi)
    found: Numbers = np.log(weight) - 0.5 * np.sum(x**2, 0) - log_scale
    return found


def _merged(parts: list[Numbers]) -> list[Numbers]:
    """Return the components with the two that are most alike as one."""
    weights, mean, cov = parts
    i, j = np.triu_indices(len(weights), 1)
    w = weights[i] + weights[j]
    share = (weights[i] / w)[:, None]
    away = mean[i] - mean[j]
    outer = away[:, :, None] * away[:, None]
    both = share[..., None] * cov[i] + (1 - share)[..., None] * cov[j]
    both = both + (share * (1 - share))[..., None] * outer
    log_det = lambda c: np.linalg.slogdet(c)[1]  # noqa: E731
    each = weights * log_det(cov)
    best = int(np.argmin(w * log_det(both) - each[i] - each[j]))
    a, b = i[best], j[best]
    middle = share[best] * mean[a] + (1 - share[best]) * mean[b]
    rest = np.delete(np.arange(len(weights)), [a, b])
    new = (w[best], middle, both[best])
    return [np.concatenate([x[rest], np.asarray(y)[None]]) for x, y in zip(parts, new)]
