"""What can be seen of many fits of one shape at once: the same measures, in a few programs for all.

Each is a fit by chains of independent proposals from a Student-t q that stands still, which has
ended. What is measured, and the numbers that rules see, are those of `measure`; only the densities
are computed for all fits together, and what is rare (a suspicion that more draws must settle) is
left to the instruments for one fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._batches import densities, over_fits
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.diagnostics.draws import (
    STANDARD_ERRORS,
    numbers_of,
    scalar_names,
    some_states,
)
from scoreascent.diagnostics.measure import (
    LONG_STAY,
    Measured,
    differences,
    largest,
    narrowest,
    stays,
)
from scoreascent.diagnostics.numbers import STANDARD_ERRORS_ALONE, worst_error
from scoreascent.diagnostics.psis import tail_shape
from scoreascent.diagnostics.rays import (
    FREEDOM,
    RAYS,
    SUSPICIOUS,
    WIDE_DRAWS,
    lacks,
    lengths,
    look_wider,
    shares,
)
from scoreascent.diagnostics.weights import DRAWS, weights_of
from scoreascent.families import FullRankStudentT
from scoreascent.run import Run
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]


class Ended(NamedTuple):
    """Fits that have ended, in front of every array of them, all after as many steps."""

    target: Target
    q: FullRankStudentT
    states: Any  # (fits, times, chains, d), in the late steps
    acceptance: Any  # (fits, times), in the late steps
    log_p: Any  # (fits, chains), where the chains are
    first_sd: Any  # (fits, d), of q at the start
    error: Any  # (fits,), of the number known worst, in posterior sds
    tolerance: float


class Looks(NamedTuple):
    """Log densities that tell what the chains cannot, of all fits."""

    log_p: Any  # (fits, draws), at draws of q
    log_q: Any
    rays: Any  # (fits, rays, lengths)
    wide: Any  # (fits, draws), at draws of a Student-t about q,
    wide_z: Any
    wide_square: Any
    centre: Any  # (fits,), log q at its mean
    least: Any  # at the state of the chains that is furthest out


def measure_many(
    ended: Ended, keys: PRNGKeyArray, one: Callable[[int], Run], some: int, count: int
) -> list[Measured]:
    """Look at the first `count` fits from all sides; `one(i)` gives one as a run of its own.

    So `some` points of each fit are looked at at a time.
    """
    flat = ended.states.reshape(len(ended.states), -1, ended.states.shape[-1])
    looks = Looks(*map(np.asarray, _look(ended.target, ended.q, keys, flat, some)))
    numbers = rows_of(ended.target, ended.states, ended.tolerance, count)
    chains = _look_at_chains(ended, count)
    sd = np.asarray(ended.q.sd, np.float64)
    found = []
    for i in range(count):
        weights, _ = weights_of(None, looks.log_p[i], looks.log_q[i])
        told = worst_error(numbers[i], STANDARD_ERRORS_ALONE)
        with np.errstate(all="ignore"):
            growth = largest(sd[i] / ended.first_sd[i])
        found.append(
            Measured(
                **weights,
                **chains[i],
                **_look_beyond(ended, looks, i, sd[i], one, keys),
                parts=1,
                mass_unsure=0.0,
                mass_gap=0.0,
                changes=np.nan,
                rhat_lambda=chains[i]["rhat"],
                drift=np.nan,
                error=float(ended.error[i]),
                trend=0.0,
                status="converged",
                complaint="",
                growth=growth,
                reach=1.0,
                places_agree=True,
                moves_alone=False,
                bent=False,
                tolerance=ended.tolerance,
                gap=0.0,
                **told,
                numbers=tuple(numbers[i]),
            )
        )
    return found


def draws_of(q: FullRankStudentT, key: PRNGKeyArray, *n: int) -> Any:
    """Return draws of a Student-t with an even number of degrees of freedom, made all at once."""
    key_normal, key_scale = jax.random.split(key)
    dtype = q.loc.dtype
    normal = jax.random.normal(key_normal, (*n, q.dim), dtype)
    u = jax.random.uniform(key_scale, (*n, int(q.df) // 2), dtype, jnp.finfo(dtype).tiny)
    square = -2 * jnp.sum(jnp.log(u), -1, keepdims=True)  # of so many normal numbers
    noise = normal * jnp.sqrt(q.df / square)
    return q.loc + noise @ q.tril.T


@functools.partial(jax.jit, static_argnames="some")
def _look(target: Target, q: FullRankStudentT, keys: PRNGKeyArray, states: Any, some: int) -> Looks:
    """Return what log densities tell, of all fits at once."""
    t = lengths(q.dim)

    def one(target: Target, q: FullRankStudentT, key: PRNGKeyArray, states: Any) -> Looks:
        keys = jax.random.split(key, 4)
        shape, dtype = (q.dim,), q.loc.dtype
        z = draws_of(q, keys[0], DRAWS)
        direction = jax.random.normal(keys[1], (RAYS, *shape), dtype)
        direction /= jnp.linalg.norm(direction, axis=1)[:, None]
        along = direction[:, None] * jnp.asarray(t, dtype)[:, None]
        rays = jax.vmap(q.transport)(along.reshape(-1, *shape))
        normal = jax.random.normal(keys[2], (WIDE_DRAWS, *shape), dtype)
        mixing = jax.random.normal(keys[3], (WIDE_DRAWS, int(FREEDOM)), dtype)
        mixing = FREEDOM / jnp.sum(mixing**2, 1)
        wide = jax.vmap(q.transport)(normal * jnp.sqrt(mixing)[:, None])
        everywhere = densities(target, jnp.concatenate([z, rays, wide]), some)
        log_p, ray_p, wide_p = jnp.split(everywhere, [len(z), len(z) + len(rays)])
        return Looks(
            log_p=log_p,
            log_q=jax.vmap(q.log_prob)(z),
            rays=ray_p.reshape(RAYS, len(t)),
            wide=wide_p,
            wide_z=wide,
            wide_square=mixing * jnp.sum(normal**2, 1),
            centre=q.log_prob(q.loc),
            least=jnp.min(jax.vmap(q.log_prob)(states)),
        )

    return over_fits(one, target, q, keys, states)


def _look_beyond(
    ended: Ended, looks: Looks, i: int, sd: Any, one: Callable[[int], Run], keys: PRNGKeyArray
) -> dict[str, Any]:
    """Measure of one fit what its chains cannot know; see `measure.look_beyond`."""
    centre, least = float(looks.centre[i]), float(looks.least[i])
    seen = float(ended.q.radius(centre - least))
    square = looks.wide_square[i].astype(np.float64)
    share, noise = lacks(looks.wide[i].astype(np.float64), looks.wide_z[i], square, sd)
    lacking = 0.0
    if np.max(share - noise, initial=0.0) >= SUSPICIOUS:
        lacking = look_wider(one(i), keys[i])
    log_p = ended.log_p[i][np.isfinite(ended.log_p[i])]
    return {
        **shares(looks.rays[i].astype(np.float64), sd.size, seen),
        "lacking": lacking,
        "spacing": float(np.median(np.spacing(np.abs(log_p)))) if log_p.size else 0.0,
        "least_log_q": least,
    }


def _look_at_chains(ended: Ended, count: int) -> list[dict[str, Any]]:
    """Measure of every fit what its chains do; see `measure.look_at_chains`."""
    z = ended.states[:count].astype(np.float64)
    fits, times, chains, dim = z.shape
    total = times * chains
    moves = np.any(z[:, 1:] != z[:, :-1], axis=3)
    with np.errstate(all="ignore"):
        by_chain = np.moveaxis(z, 2, 0)  # (chains, fits, times, d)
        by_chain = np.moveaxis(by_chain, 2, 1)
        worst, ess = rhat(by_chain), ess_bulk(by_chain)
    independent = np.clip(np.nan_to_num(ess, nan=1.0), 1.0, total)
    q_mean, q_sd = (np.asarray(x, np.float64)[:count] for x in (ended.q.loc, ended.q.sd))
    flat = z.reshape(fits, total, dim)
    shift, ratio, noise = differences(flat.mean(1), flat.std(1), q_mean, q_sd, independent)
    found = []
    for i in range(fits):
        still = ~np.swapaxes(moves[i], 0, 1)
        least = float(np.min(independent[i]))
        found.append(
            {
                "looked": times,
                "acceptance": float(np.mean(ended.acceptance[i], dtype=np.float64)),
                "late_acceptance": float(np.mean(ended.acceptance[i], dtype=np.float64)),
                "stuck": float(np.mean(np.all(still, axis=1))),
                "stay": stays(still, LONG_STAY),
                "rhat": largest(worst[i]),
                "chain_ess": least,
                "efficiency": least / total,
                "shift": largest(np.maximum(shift[i] - noise[i], 0)),
                "ratio": largest(np.maximum(ratio[i] - noise[i], 0)),
                "narrowest": narrowest(np.swapaxes(z[i], 0, 1)),
                "tail": max(tail_shape(x) for x in flat[i].T),
            }
        )
    return found


def rows_of(
    target: Target, states: Any, tolerance: float, count: int
) -> list[list[dict[str, Any]]]:
    """Return the rows of the summaries of the first `count` fits; see `draws.summarise`."""
    fits, times, chains, dim = states.shape
    first = jax.tree.map(lambda x: x[0], target)
    by_time = np.moveaxis(states, 0, 2).reshape(times, chains, fits * dim)
    some, _ = some_states(first, by_time)
    times = len(some)
    some = some.reshape(times, chains, fits, dim)
    draws: dict[str, Any] = {"z": some}
    if first.is_named:
        z = np.moveaxis(some, 2, 0).reshape(fits, -1, dim)
        named = {name: np.asarray(x) for name, x in _named(target, z).items()}
        draws = {
            name: np.moveaxis(x, 0, 1).reshape(times, chains, fits, *x.shape[2:])
            for name, x in ((k, named[k]) for k in dict.fromkeys((*target.site_names, *named)))
        }
    found: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    limit = tolerance / STANDARD_ERRORS
    for site, values in draws.items():
        inner = values.shape[3:]
        wide = values[:, :, :count].astype(np.float64)
        rows = iter(numbers_of(wide, (times, chains), "chains", None, limit))
        for i in range(count):
            found[i] += [{"name": name, **next(rows)} for name in scalar_names(site, inner)]
    return found


@jax.jit
def _named(target: Target, z: Any) -> dict[str, Any]:
    return over_fits(lambda t, z: jax.vmap(t.named)(z), target, z)
