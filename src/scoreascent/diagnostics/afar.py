"""The challenge before *good*, of many fits of one shape at once; see `challenge`.

Searches begin where they begin for one fit: at several distances from q, at particles that were
annealed outside it, and at places around it where log p is far above what q says. All of them are
in one compiled program for all fits. Where one does not come home, `challenge.strays` looks at that
fit alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from scoreascent._arrays import default_dtype, impossible
from scoreascent._batches import densities, over_fits
from scoreascent.climbs import Home, climb_many
from scoreascent.diagnostics.challenge import (
    ANNEALINGS,
    AROUND,
    CLIMBED,
    DISTANCES,
    MAX_HALVINGS,
    MAX_ITERATIONS,
    PARTICLES_TRIED,
    SCREENED,
    Known,
    is_beyond,
    strays,
)
from scoreascent.diagnostics.measure import Measured
from scoreascent.diagnostics.tempered import (
    BISECTIONS,
    KEPT,
    MARGIN,
    MAX_LEVELS,
    MOVES,
    PARTICLES,
    SMALLEST,
    WIDTHS,
)
from scoreascent.families import FullRankStudentT
from scoreascent.run import Run
from scoreascent.searches import Cost
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, PRNGKeyArray

PATH_ROWS = 8  # places of a search that are kept


def challenge_many(
    target: Target,
    q: FullRankStudentT,
    unit: Any,
    centre: Any,
    measured: list[Measured],
    keys: PRNGKeyArray,
    one: Callable[[int], Run],
    some: int,
    count: int,
) -> list[dict[str, Any]]:
    """Measure what searches find where each of the first `count` fits has not been.

    `unit` are factors of the covariances of the qs, `centre` their log densities at their means.
    `one(i)` gives one of them as a run of its own.
    """
    known = [
        Known(float(c), m.least_log_q, m.log_evidence, m.log_w_star)
        for c, m in zip(centre, measured, strict=True)
    ]
    number: Any = lambda x: np.array(x, default_dtype())  # noqa: E731
    reach, above = number([k.reach for k in known]), number([k.above for k in known])
    where = (q, unit, number(centre), reach, above)
    first, active, densities_taken = _begin(target, where, keys, some)
    level = number([min(k.least, k.centre) for k in known])
    homes = Home(q, level, above)
    paths, gradients = climb_many(target, first, active, homes, unit, MAX_ITERATIONS, PATH_ROWS)
    taken = np.asarray(densities_taken)
    found = []
    for i, (ends, slopes) in enumerate(zip(paths[:count], gradients)):
        told: dict[str, Any] = {"stray": 0.0, "stray_mass": 0.0, "stray_at": None}
        cost = Cost(int(taken[i]), int(slopes))
        if not all(path.is_home for path in ends):
            rng = np.random.default_rng(np.asarray(jax.random.key_data(keys[i])))
            told = strays(one(i), ends, known[i], rng, cost)
        found.append(told | {"challenge_count": (cost.densities, cost.gradients)})
    return found


@functools.partial(jax.jit, static_argnames="some")
def _begin(target: Target, where: Any, keys: Any, some: int) -> tuple[Any, Any, Any]:
    """Return where searches begin (fits, n, d), which of them do, and densities taken so far."""

    def one(target: Target, where: Any, key: PRNGKeyArray) -> tuple[Any, Any, Any]:
        q, unit, centre, reach, above = where
        keys = jax.random.split(key, 2 + ANNEALINGS)

        def to_z(x: Any) -> Any:
            return q.loc + x @ unit.T

        def is_new(log_p: Any, log_q: Any, margin: float = 0.0) -> Any:
            return is_beyond(log_p, log_q, centre, reach + margin, above)

        parts = [_far_away(target, q, to_z, keys[0])]
        taken = jnp.int32(SCREENED)
        for k in keys[2:]:
            x, log_p, levels = _anneal(target, q, to_z, is_new, k, some)
            parts.append(_some(x, to_z, log_p))
            taken += PARTICLES * (1 + MOVES * levels)
        parts.append(_screened(target, q, to_z, above, keys[1], some))
        z, active = (jnp.concatenate(x) for x in zip(*parts))
        return jnp.where(active[:, None], z, q.loc), active, taken

    return over_fits(one, target, where, keys)


def _far_away(
    target: Target, q: FullRankStudentT, to_z: Any, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], Bool[Array, " n"]]:
    """Return places at the distances, every second one straight across from the one before."""
    dim = q.dim
    noise = jax.random.normal(key, (len(DISTANCES) // 2, dim), q.loc.dtype)
    noise /= jnp.linalg.norm(noise, axis=1)[:, None]
    direction = jnp.stack([noise, -noise], 1).reshape(-1, dim)
    far = jnp.asarray(DISTANCES, q.loc.dtype)[:, None] * (dim**0.5 + 5) * direction
    nearer = 0.5 ** jnp.arange(MAX_HALVINGS, dtype=q.loc.dtype)
    z = to_z((far[:, None] * nearer[:, None]).reshape(-1, dim))

    def is_possible(z: Any) -> Any:
        log_p, slope = jax.value_and_grad(target.log_prob)(z)
        return jnp.isfinite(log_p) & jnp.all(jnp.isfinite(slope))

    possible = jax.vmap(is_possible)(z).reshape(len(DISTANCES), -1)
    at = jnp.argmax(possible, 1)
    z = z.reshape(*possible.shape, dim)
    return z[jnp.arange(len(at)), at], jnp.any(possible, 1)


def _screened(
    target: Target, q: FullRankStudentT, to_z: Any, above: Any, key: PRNGKeyArray, some: int
) -> tuple[Any, Any]:
    """Return a few of many places around q, of those where log p is far above what q says."""
    key_way, key_size, key_pick = jax.random.split(key, 3)
    direction = jax.random.normal(key_way, (SCREENED, q.dim), q.loc.dtype)
    direction /= jnp.linalg.norm(direction, axis=1)[:, None]
    low, high = AROUND
    size = jax.random.uniform(key_size, (SCREENED, 1), q.loc.dtype, low, high) * (q.dim**0.5 + 5)
    z = to_z(size * direction)
    log_p = densities(target, z, some)
    high_up = jnp.isfinite(log_p) & (log_p - jax.vmap(q.log_prob)(z) > above)
    order = jnp.where(high_up, jax.random.uniform(key_pick, (SCREENED,)), 2.0)
    chosen = jax.lax.top_k(-order, CLIMBED)[1]
    return z[chosen], high_up[chosen]


# -- annealed particles; see `tempered` ------------------------------------------------------------


def _anneal(
    target: Target, q: FullRankStudentT, to_z: Any, is_new: Any, key: PRNGKeyArray, some: int
) -> tuple[Any, Any, Any]:
    """Return particles (n, d) where the fit has not been, log p, and how many levels it took.

    They are in units of q's sds, and `to_z` says where that is.
    """
    dim, dtype = q.dim, q.loc.dtype

    def log_p(x: Any) -> Any:
        z = to_z(x)
        found = densities(target, z, some)
        new = is_new(found, jax.vmap(q.log_prob)(z), MARGIN)
        return jnp.where(impossible(found) | ~new, -jnp.inf, found).astype(dtype)

    def better(best: Any, x: Any, p: Any) -> Any:
        i = jnp.argmax(p)
        return jax.tree.map(lambda a, b: jnp.where(p[i] > best[0], a, b), (p[i], x[i]), best)

    def move(carry: Any, key: Any) -> Any:
        x, p, r, best, beta, root = carry
        keys = jax.random.split(key, 3)
        short = SMALLEST ** jax.random.uniform(keys[0], (PARTICLES, 1), dtype)
        step = jax.random.normal(keys[1], x.shape, dtype) @ root.T
        new = x + 2.4 / dim**0.5 * short * step
        new_p, new_r = log_p(new), _log_reference(new)
        gain = beta * (new_p - p) + (1 - beta) * (new_r - r)
        moved = jnp.log(jax.random.uniform(keys[2], (PARTICLES,), dtype)) < gain
        best = better(best, new, new_p)
        x = jnp.where(moved[:, None], new, x)
        p, r = jnp.where(moved, new_p, p), jnp.where(moved, new_r, r)
        return (x, p, r, best, beta, root), None

    def level(carry: Any) -> Any:
        number, beta, x, p, r, best = carry
        keys = jax.random.split(jax.random.fold_in(key, number + 1), MOVES + 1)
        beta, log_w = _next(beta, p - r)
        chosen = _systematic(log_w, jax.random.uniform(keys[0], (), dtype))
        x, p, r = x[chosen], p[chosen], r[chosen]
        away = x - x.mean(0)
        spread = away.T @ away / (PARTICLES - 1)
        jitter = (1e-6 * jnp.trace(spread) / dim + jnp.finfo(dtype).tiny) * jnp.eye(dim)
        root = jnp.linalg.cholesky(spread + jitter.astype(dtype))
        root = jnp.where(jnp.all(jnp.isfinite(root)), root, jnp.diag(jnp.sqrt(jnp.diag(spread))))
        (x, p, r, best, _, _), _ = jax.lax.scan(move, (x, p, r, best, beta, root), keys[1:])
        return number + 1, beta, x, p, r, best

    def goes_on(carry: Any) -> Any:
        return (carry[0] < MAX_LEVELS) & (carry[1] < 1)

    widths = jnp.repeat(jnp.asarray(WIDTHS, dtype), PARTICLES // len(WIDTHS))
    first = jax.random.fold_in(key, 0)
    x = widths[:, None] * jax.random.normal(first, (PARTICLES, dim), dtype)
    p = log_p(x)
    best = better((jnp.asarray(-jnp.inf, dtype), jnp.zeros(dim, dtype)), x, p)
    begin = (jnp.int32(0), jnp.zeros((), dtype), x, p, _log_reference(x), best)
    levels, _, x, p, _, best = jax.lax.while_loop(goes_on, level, begin)
    return jnp.vstack([x, best[1]]), jnp.append(p, best[0]), levels


def _log_reference(x: Any) -> Any:
    """Return the log density of the reference, up to a constant."""
    square, dim = jnp.sum(x**2, 1), x.shape[1]
    parts = [-0.5 * square / w**2 - dim * float(np.log(w)) for w in WIDTHS]
    return functools.reduce(jnp.logaddexp, parts)


def _next(beta: Any, log_ratio: Any) -> tuple[Any, Any]:
    """Return the largest next β at which weights leave enough effective particles, and these."""
    finite = jnp.isfinite(log_ratio)
    none = ~jnp.any(finite)
    ratio = jnp.where(finite, log_ratio, 0.0)

    def weights(b: Any) -> Any:
        log_w = jnp.where(finite, (b - beta) * ratio, -jnp.inf)
        return log_w - logsumexp(log_w)

    wanted = jnp.log(KEPT * jnp.sum(finite))
    enough = lambda b: -logsumexp(2 * weights(b)) >= wanted  # noqa: E731
    one = jnp.ones_like(beta)

    def bisect(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        yes = enough(middle)
        return jnp.where(yes, middle, low), jnp.where(yes, high, middle)

    _, high = jax.lax.fori_loop(0, BISECTIONS, bisect, (beta, one))
    beta = jnp.where(none | enough(one), one, high)
    return beta, jnp.where(none, jnp.zeros_like(ratio), weights(beta))


def _systematic(log_w: Any, u: Any) -> Any:
    """Draw as many particles as there are, by their weights."""
    n = len(log_w)
    total = jnp.cumsum(jnp.exp(log_w - jnp.max(log_w)))
    at = (jnp.arange(n) + u) / n * total[-1]
    return jnp.clip(jnp.searchsorted(total, at), 0, n - 1)


def _some(x: Any, to_z: Any, log_p: Any) -> tuple[Any, Any]:
    """Return a few of the particles: the likeliest, the furthest out, and what is far from both."""
    finite = jnp.isfinite(log_p)
    x = jnp.where(finite[:, None], x, 0.0)
    furthest = jnp.argmax(jnp.where(finite, jnp.sum(x**2, 1), -1.0))
    chosen = [jnp.argmax(jnp.where(finite, log_p, -jnp.inf)), furthest]
    while len(chosen) < PARTICLES_TRIED:
        away = jnp.stack([jnp.sum((x - x[i]) ** 2, 1) for i in chosen])
        chosen.append(jnp.argmax(jnp.where(finite, jnp.min(away, 0), -1.0)))
    at = jnp.stack(chosen)
    return to_z(x[at]), jnp.repeat(jnp.any(finite), len(chosen))
