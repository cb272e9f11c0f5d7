"""Many fits of one shape as a few compiled programs: searches, a Gaussian, chains, a verdict each.

1. Start: eight searches of every fit from where `laplace` begins them. Those of one fit must end in
   one place, or in others that do not matter beside it; there is the Gaussian with the curvature of
   log p.
2. q: the Student-t with the moments of its draws by importance weights, twice over. It stands
   still.
3. Chains: 64 of independent proposals from q, that begin at draws by weights; 128 steps, of
   which the first quarter is left out. Then twice as many, up to sixteen times, for those fits
   alone whose means and sds are not known well enough.
4. Verdict: what `diagnose` measures and the rules that judge it, and the challenge before *good*.

A fit that this does not bring to *good* is left to `fit(target)`, which has gradient moves,
mixtures and flows. Fits of a batch are judged one by one, but they are many, so an error must be
within the tolerance by five standard errors where one fit is content with three and a half.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, stdtrit

from scoreascent._arrays import default_dtype, impossible
from scoreascent._batches import densities, over_fits
from scoreascent.climbs import Home, climb_many
from scoreascent.diagnostics.afar import challenge_many
from scoreascent.diagnostics.draws import careful_errors
from scoreascent.diagnostics.many import Ended, draws_of, measure_many
from scoreascent.diagnostics.numbers import STANDARD_ERRORS_ALONE
from scoreascent.diagnostics.rules import GOOD, LONGER, judge
from scoreascent.diagnostics.verdict import Diagnosis, concluded
from scoreascent.families import FullRankStudentT
from scoreascent.families.fullrank import raw_of
from scoreascent.fitting.starts import matters
from scoreascent.kernels import IMH
from scoreascent.kernels.base import metropolis_probability
from scoreascent.methods import pmcsa
from scoreascent.run import Convergence
from scoreascent.searches import (
    BOX_SIZES,
    FAR_OUT,
    MIN_FALL,
    MODEL_EVERY,
    Cost,
    blank_home,
    gaussians,
    root_of_inverse,
)
from scoreascent.target import Target
from scoreascent.update import Still

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

METHOD, UPDATE = pmcsa(64, IMH()), Still()
SEARCHES, TRIES = 8, 16  # of every fit, and places that are tried for each
SAME_PLACE = 0.3  # sds between the ends of searches that found one place
ROUNDS, DRAWN = 2, 1024  # of weighing, by so many draws each time, or more in many dimensions
DRAWS_A_NUMBER = 16  # of q
MIN_WORTH = 0.5  # of a draw of q: below it, proposals alone will not do
FREEDOMS = ((5, 10.0), (20, 20.0), (np.inf, 30.0))  # of q, up to so many dimensions
STEPS, RUNGS = 128, 5  # 128, 256, … 2048
MAX_RHAT = 1.04
MIN_BUCKET = 8  # fits in a program, for the compiler sees few sizes
ARRAYS = (
    "loc", "tril", "mean", "final", "start", "start_tril", "heights", "steps", "cost",
)  # fmt: skip
NOWHERE, SEVERAL, FLAT, FAR_OFF, UNKNOWN = (
    "searches found no place where log_density is finite",
    "searches ended in several places",
    "log_density hardly falls far out",
    "draws of q are worth too little for proposals alone",
    "means and sds were not known well enough in time",
)


@dataclass(eq=False)
class Batch:
    """What came of the fits of one batch: arrays with the fits in front, NaN of those left over."""

    diagnosis: list[Diagnosis | None]  # of those that are good
    left: dict[int, str]  # why the others are not
    loc: Any  # of the q that proposes,
    tril: Any
    mean: Any  # and of the one with the moments of the states
    final: Any
    start: Any  # the place where searches ended, and the triangle there
    start_tril: Any
    heights: Any  # log p where each search ended, best first
    steps: Any
    cost: Any  # (fits, 2): densities and gradients
    points: dict[int, Any] = field(default_factory=dict)  # late states (times, chains, d)
    rows: dict[int, Any] = field(default_factory=dict)  # acceptance and invalid of every step
    eta: dict[int, Any] = field(default_factory=dict)  # z, log p of the chains at the end
    seen: dict[int, Convergence] = field(default_factory=dict)
    judged: dict[int, Diagnosis] = field(default_factory=dict)  # of those left over


class Chains(NamedTuple):
    """Chains of some fits on their way; late states are kept in pieces."""

    at: Any  # which fits
    q: FullRankStudentT
    key: Any
    z: Any  # (fits, chains, d)
    log_p: Any
    points: list[Any]
    rows: list[Any]


def limit(tolerance: float) -> float:
    """Return the largest standard error, over the chains, that lets a fit of a batch end."""
    return tolerance / float(stdtrit(METHOD.chains - 1, ndtr(STANDARD_ERRORS_ALONE)))


def run_batch(
    target: Target,
    keys: PRNGKeyArray,
    tolerance: float,
    one: Callable[[Batch, int], Any],
    count: int,
    look: Callable[[], None] = lambda: None,
) -> Batch:
    """Fit all targets, stacked in one with their keys; `one(batch, i)` makes a run of one of them.

    Those beyond the first `count` make up a number that the compiler knows already. `look` is
    called between programs, and may raise.
    """
    fits, dim = keys.shape[0], target.dim
    some = at_a_time(target, fits)
    key = jax.vmap(lambda k: jax.random.split(k, 4))(keys)
    nothing: Any = lambda *shape: np.full((fits, *shape), np.nan)  # noqa: E731
    batch = Batch(
        [None] * fits, {}, nothing(dim), nothing(dim, dim), nothing(dim), nothing(dim, dim),
        nothing(dim), nothing(dim, dim), nothing(SEARCHES), np.zeros(fits, int),
        np.zeros((fits, 2), int),
    )  # fmt: skip
    batch.left = dict.fromkeys(range(count, fits), "")
    _search(target, key[:, 0], batch, look)
    places = _weigh(target, key[:, 1], batch, some, look)
    chains = _begin(target, key[:, 2], batch, places)
    for rung in range(RUNGS):
        if not len(chains.at):
            break
        chains = _move(target, chains, 1 if rung == 0 else 2 ** (rung - 1), some, look)
        chains = _judge(target, key[:, 3], batch, chains, tolerance, one, some, look)
    batch.left |= dict.fromkeys((int(i) for i in chains.at), UNKNOWN)
    return _first_of(batch, count)


def _first_of(batch: Batch, count: int) -> Batch:
    """Return the first fits of a batch alone."""
    left = {i: why for i, why in batch.left.items() if i < count}
    arrays = {name: getattr(batch, name)[:count] for name in ARRAYS}
    return replace(batch, diagnosis=batch.diagnosis[:count], left=left, **arrays)


def at_a_time(target: Target, fits: int) -> int:
    """Return at how many points of each fit log densities are computed at a time."""
    rows = max((x.shape[1] for x in jax.tree.leaves(target.data) if np.ndim(x) > 1), default=1)
    is_cpu = jax.default_backend() == "cpu"
    room = 2**20 if is_cpu else 2**28 // fits
    return int(np.clip(room // max(rows, target.dim), 8, 8192))


def bucket(at: Any, most: int) -> Any:
    """Return the fits `at`, the first repeated so that there is one of few numbers of them.

    >>> len(bucket(np.arange(5), 256)), len(bucket(np.arange(33), 256))
    (8, 128)
    """
    size = MIN_BUCKET
    while size < len(at):
        size *= 4
    size = max(min(size, most), len(at))
    return np.concatenate([at, np.repeat(at[:1], size - len(at))])


def freedom(dim: int) -> float:
    """Return the degrees of freedom of q: tails that are heavier than a Gaussian's, if not by much.

    Where π's are a little heavier too, a Gaussian's weights have no variance, and k̂ tells. In many
    dimensions a t is further from a Gaussian.
    """
    return next(df for most, df in FREEDOMS if dim <= most)


def taken(tree: Any, at: Any) -> Any:
    """Return some of the fits of a tree."""
    return jax.tree.map(lambda x: x[at], tree)


def student(loc: Any, tril: Any) -> FullRankStudentT:
    """Return Student-t distributions of these covariances as one, with the fits in front."""
    dim = loc.shape[-1]
    df = freedom(dim)
    raw = np.asarray(raw_of(tril * np.sqrt((df - 2) / df)))
    leaves = [np.asarray(x, default_dtype()) for x in (loc, raw)]
    structure = jax.tree.structure(FullRankStudentT.standard(dim, df=df))
    return jax.tree.unflatten(structure, leaves)  # type: ignore[no-any-return]


# -- searches --------------------------------------------------------------------------------------


def _search(target: Target, keys: Any, batch: Batch, look: Callable[[], None]) -> None:
    """Find the place of every fit and the Gaussian there, and leave out those with several."""
    fits, dim = len(batch.loc), target.dim
    first = jax.tree.map(lambda x: x[0], target)
    own = _own_places(target, keys) if first.model is not None else None
    z, active = _first_places(target, keys, own)
    blank = blank_home(first)
    q = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], fits, 0), blank.q)
    ones = np.ones(fits, default_dtype())
    unit = np.repeat(np.eye(dim, dtype=default_dtype())[None], fits, 0)
    look()
    paths, gradients = climb_many(target, z, active, Home(q, np.inf * ones, 0 * ones), unit)
    batch.cost[:, 1] += gradients + 2 * dim
    ends = np.full((fits, SEARCHES, dim), np.nan)
    heights = np.full((fits, SEARCHES), -np.inf)
    for i, found in enumerate(paths):
        for j, path in enumerate(found):
            if np.isfinite(path.log_p[-1]):
                ends[i, j], heights[i, j] = path.z[-1], path.log_p[-1]
    best = ends[np.arange(fits), np.argmax(heights, 1)]
    batch.heights = -np.sort(-heights, 1)
    look()
    curvature = np.asarray(_hessians(target, np.nan_to_num(best).astype(default_dtype())))
    for i in range(fits):
        if not np.any(np.isfinite(heights[i])):
            batch.left.setdefault(i, NOWHERE)
            best[i] = 0.0
            batch.start_tril[i] = np.eye(dim)
            continue
        root = root_of_inverse(-curvature[i].astype(np.float64))
        root = batch.start_tril[i] = root * np.sign(np.diagonal(root))
        if i not in batch.left and _several(target, i, ends[i], best[i], root, keys[i], batch):
            batch.left[i] = SEVERAL
    batch.start = best
    sd = np.sqrt(np.sum(batch.start_tril**2, 2))
    falls = np.asarray(_falls(target, *(np.asarray(x, default_dtype()) for x in (best, sd))))
    for at in np.flatnonzero(falls < MIN_FALL):
        batch.left.setdefault(int(at), FLAT)


def _several(
    target: Target, i: int, ends: Any, best: Any, root: Any, key: Any, batch: Batch
) -> bool:
    """Tell whether searches of a fit ended in places apart, of which another one matters."""
    apart = lambda z, w: np.sum(np.linalg.solve(root, z - w) ** 2) > SAME_PLACE**2  # noqa: E731
    places = [best]
    for z in ends[np.all(np.isfinite(ends), 1)]:
        if all(apart(z, w) for w in places):
            places.append(z)
    if len(places) == 1:
        return False
    cost, rng = Cost(), np.random.default_rng(np.asarray(jax.random.key_data(key)))
    found = gaussians(jax.tree.map(lambda x: x[i], target), places, rng, cost)
    batch.cost[i] += (cost.densities, cost.gradients)
    return any(matters(g, found[0]) for g in found[1:])


@jax.jit
def _own_draws(target: Target, keys: Any) -> Any:
    def one(target: Target, key: Any) -> Any:
        return jnp.stack([jnp.asarray(target.initial(k)) for k in _own_keys(key)])

    return over_fits(one, target, keys)


def _own_keys(key: Any) -> list[Any]:
    numbers = range(MODEL_EVERY - 1, SEARCHES, MODEL_EVERY)
    return [jax.random.fold_in(key, i) for i in numbers]


def _own_places(target: Target, keys: Any) -> Any:
    """Return where models would begin themselves (fits, n, d)."""
    try:
        return _own_draws(target, keys)
    except Exception:  # a model that draws on the host, as PyMC's do
        fits = range(keys.shape[0])
        each = [jax.tree.map(lambda x, i=i: x[i], target) for i in fits]
        return np.stack([[t.initial(k) for k in _own_keys(keys[i])] for i, t in enumerate(each)])


@jax.jit
def _first_places(target: Target, keys: Any, own: Any) -> tuple[Any, Any]:
    """Return where searches begin (fits, n, d), and which of them can."""

    def one(target: Target, key: Any, own: Any = None) -> tuple[Any, Any]:
        def is_possible(z: Any) -> Any:
            log_p, slope = jax.value_and_grad(target.log_prob)(z)
            return jnp.isfinite(log_p) & jnp.all(jnp.isfinite(slope))

        boxes = jnp.resize(jnp.asarray(BOX_SIZES, default_dtype()), (SEARCHES,))
        nearer = 0.5 ** jnp.arange(TRIES, dtype=boxes.dtype)
        shape = (SEARCHES, TRIES, target.dim)
        z = jax.random.uniform(key, shape, boxes.dtype, -1.0, 1.0)
        z = z * boxes[:, None, None] * nearer[:, None]
        if own is not None:
            z = z.at[MODEL_EVERY - 1 :: MODEL_EVERY, 0].set(own.astype(z.dtype))
        possible = jax.vmap(jax.vmap(is_possible))(z)
        at = jnp.argmax(possible, 1)
        return z[jnp.arange(SEARCHES), at], jnp.any(possible, 1)

    return over_fits(one, target, keys) if own is None else over_fits(one, target, keys, own)


@jax.jit
def _falls(target: Target, mean: Any, sd: Any) -> Any:
    """Return by how much log p falls far out, along the axis where it falls least."""

    def one(target: Target, mean: Any, sd: Any) -> Any:
        steps = FAR_OUT * jnp.concatenate([jnp.diag(sd), -jnp.diag(sd)])
        return jnp.min(target.log_prob(mean) - jax.vmap(target.log_prob)(mean + steps))

    return over_fits(one, target, mean, sd)


@jax.jit
def _hessians(target: Target, z: Any) -> Any:
    return over_fits(lambda t, z: jax.hessian(t.log_prob)(z), target, z)


# -- weights ---------------------------------------------------------------------------------------


def _weigh(
    target: Target, keys: Any, batch: Batch, some: int, look: Callable[[], None]
) -> tuple[Any, Any]:
    """Give every fit the q that its draws by weights ask for; return places for its chains."""
    fits, dim = batch.loc.shape
    n = DRAWN * -(-DRAWS_A_NUMBER * dim * (dim + 3) // (2 * DRAWN))
    loc, tril = batch.start.copy(), batch.start_tril.copy()
    for number in range(ROUNDS):
        look()
        q = student(loc, tril)
        z, log_p, log_q = map(np.asarray, _draws(target, q, keys, np.int32(number), n, some))
        log_p = np.where(impossible(log_p), -np.inf, log_p)
        batch.cost[:, 0] += n
        for i in range(fits):
            found = None if i in batch.left else _moments(z[i], log_p[i], log_q[i])
            if found is None:
                batch.left.setdefault(i, FAR_OFF)
                continue
            loc[i], tril[i] = found
    batch.loc, batch.tril = loc, tril
    chosen = _chosen(log_p.astype(np.float64) - log_q)
    row = np.arange(fits)[:, None]
    return z[row, chosen], log_p[row, chosen]


@functools.partial(jax.jit, static_argnames=("n", "some"))
def _draws(target: Target, q: FullRankStudentT, keys: Any, number: Any, n: int, some: int) -> Any:
    def one(target: Target, q: FullRankStudentT, key: Any) -> Any:
        z = draws_of(q, jax.random.fold_in(key, number), n)
        return z, densities(target, z, some), jax.vmap(q.log_prob)(z)

    return over_fits(one, target, q, keys)


def _moments(z: Any, log_p: Any, log_q: Any) -> tuple[Any, Any] | None:
    """Return mean and triangle of the covariance by weights, none of them large; None if none."""
    with np.errstate(all="ignore"):
        log_w = log_p.astype(np.float64) - log_q
        w = np.exp(log_w - np.max(log_w))
        w = np.minimum(w, np.sqrt(len(w)) * np.mean(w))
        w /= np.sum(w)
    if not np.all(np.isfinite(w)) or 1 / np.sum(w**2) < 0.1 * len(w):
        return None
    mean = w @ z
    away = z - mean
    try:
        return mean, np.linalg.cholesky((w[:, None] * away).T @ away)
    except np.linalg.LinAlgError:
        return None


def _chosen(log_w: Any) -> Any:
    """Return as many draws of every fit as there are chains, by their weights."""
    n = METHOD.chains
    with np.errstate(all="ignore"):
        w = np.nan_to_num(np.exp(log_w - np.max(log_w, 1, keepdims=True)))
    total = np.cumsum(w, 1)
    at = (np.arange(n) + 0.5) / n * total[:, -1:]
    found = [np.searchsorted(t, x) for t, x in zip(total, at)]
    return np.minimum(np.stack(found), log_w.shape[1] - 1)


# -- chains ----------------------------------------------------------------------------------------


def _begin(target: Target, keys: Any, batch: Batch, places: tuple[Any, Any]) -> Chains:
    """Return the chains of all fits that are not left over, before their first step."""
    at = np.array([i for i in range(len(batch.loc)) if i not in batch.left], int)
    some = bucket(at, len(batch.loc))
    q = student(batch.loc[some], batch.tril[some])
    z, log_p = (np.asarray(x[some], q.loc.dtype) for x in places)
    return Chains(at, q, keys[some], z, log_p, [], [])


def _move(
    target: Target, chains: Chains, times: int, some: int, look: Callable[[], None]
) -> Chains:
    """Move chains by so many times `STEPS`."""
    here = taken(target, bucket(chains.at, len(chains.z)))
    z, log_p, points, rows = chains.z, chains.log_p, list(chains.points), list(chains.rows)
    for _ in range(times):
        look()
        number = np.int32(len(points))
        z, log_p, states, row = map(
            np.asarray, _steps(here, chains.q, chains.key, number, z, log_p, some)
        )
        points.append(states[: len(chains.at)])
        rows.append(row[: len(chains.at)])
    return chains._replace(z=z, log_p=log_p, points=points, rows=rows)


@functools.partial(jax.jit, static_argnames="some")
def _steps(
    target: Target, q: FullRankStudentT, keys: Any, number: Any, z: Any, log_p: Any, some: int
) -> Any:
    """Return where chains of IMH are after `STEPS` steps, all states, and what each step told.

    No proposal depends on the chains, so all of them are made, and their densities computed, first.
    """

    def one(target: Target, q: FullRankStudentT, key: Any, z: Any, log_p: Any) -> Any:
        key_draw, key_accept = jax.random.split(jax.random.fold_in(key, number))
        shape = (STEPS, METHOD.chains)
        proposed = draws_of(q, key_draw, *shape)
        found = densities(target, proposed.reshape(-1, q.dim), some).reshape(shape)
        invalid = impossible(found)
        found = jnp.where(invalid, -jnp.inf, found)
        log_q = jax.vmap(jax.vmap(q.log_prob))
        u = jax.random.uniform(key_accept, shape, z.dtype)

        def step(chains: Any, new: Any) -> Any:
            probability = metropolis_probability(new[2] - chains[2])
            yes = new[3] < probability
            z = jnp.where(yes[:, None], new[0], chains[0])
            log_p, log_w = (jnp.where(yes, n, o) for n, o in zip(new[1:3], chains[1:]))
            return (z, log_p, log_w), (z, jnp.stack([jnp.mean(log_w - log_p), probability.mean()]))

        begin = (z, log_p, log_p - log_q(z[None])[0])
        new = (proposed, found, found - log_q(proposed), u)
        (z, log_p, _), (states, told) = jax.lax.scan(step, begin, new)
        count = jnp.sum(invalid, 1).astype(told.dtype)
        return z, log_p, states, jnp.concatenate([told, count[:, None]], 1)

    return over_fits(one, target, q, keys, z, log_p)


# -- verdicts --------------------------------------------------------------------------------------


def _judge(
    target: Target,
    keys: Any,
    batch: Batch,
    chains: Chains,
    tolerance: float,
    one: Callable[[Batch, int], Any],
    some: int,
    look: Callable[[], None],
) -> Chains:
    """Judge the fits whose numbers are known well enough; return the chains of those to go on."""
    points, rows = (np.concatenate(x, axis=1) for x in (chains.points, chains.rows))
    late = points[:, points.shape[1] // 4 :]
    fits, times, n, dim = late.shape
    columns = np.moveaxis(late.astype(np.float64), 0, 2).reshape(times, n, -1)
    error = np.asarray(careful_errors(columns)).reshape(fits, dim).max(1)
    ready = np.flatnonzero(error <= limit(tolerance))
    for j in ready:  # nothing of it is lost if the verdict is to go on
        i = int(chains.at[j])
        # copies: a part of an array keeps all of it
        batch.points[i], batch.rows[i] = late[j].copy(), rows[j].copy()
        batch.eta[i] = (chains.z[j].copy(), chains.log_p[j].copy())
        batch.steps[i] = points.shape[1]
        batch.mean[i] = late[j].mean((0, 1), dtype=np.float64)
        batch.final[i] = _with_moments(late[j], batch.tril[i])
    go_on = np.setdiff1d(np.arange(fits), ready)
    if len(ready):
        look()
        verdicts = _verdicts(target, keys, batch, chains, ready, error, tolerance, one, some, look)
        again = []
        for j, diagnosis in zip(ready, verdicts, strict=True):
            i = int(chains.at[j])
            worth = diagnosis.ess / diagnosis.draws
            batch.cost[i] += (points.shape[1] * n, 0) if diagnosis.verdict != LONGER else (0, 0)
            slow = diagnosis.verdict == LONGER or diagnosis.rhat > MAX_RHAT
            if diagnosis.verdict == GOOD and not slow and worth >= MIN_WORTH:
                batch.diagnosis[i] = diagnosis
                batch.cost[i] += (diagnosis.draws + diagnosis.challenge_count[0],
                                  diagnosis.challenge_count[1])  # fmt: skip
            elif slow and worth >= MIN_WORTH:
                again.append(j)
            else:
                batch.left[i] = diagnosis.reason if diagnosis.verdict != GOOD else FAR_OFF
            if batch.diagnosis[i] is None:
                batch.judged[i] = diagnosis
        go_on = np.sort(np.concatenate([go_on, np.array(again, int)]))
    return _compacted(chains, go_on)


def _with_moments(states: Any, tril: Any) -> Any:
    """Return the triangle of q's correlations with the sds of the states."""
    sd = states.reshape(-1, states.shape[-1]).std(0, dtype=np.float64)
    return (sd / np.sqrt(np.sum(tril**2, 1)))[:, None] * tril


def _compacted(chains: Chains, go_on: Any) -> Chains:
    """Return the chains of some fits alone."""
    kept = bucket(go_on, len(chains.z))
    points, rows = ([x[go_on] for x in parts] for parts in (chains.points, chains.rows))
    q, key, z, log_p = taken((chains.q, chains.key, chains.z, chains.log_p), kept)
    return Chains(chains.at[go_on], q, key, z, log_p, points, rows)


def _verdicts(
    target: Target,
    keys: Any,
    batch: Batch,
    chains: Chains,
    ready: Any,
    error: Any,
    tolerance: float,
    one: Callable[[Batch, int], Any],
    some: int,
    look: Callable[[], None],
) -> list[Diagnosis]:
    """Return the diagnoses of fits whose chains have ended."""
    padded = bucket(ready, len(batch.loc))
    at, count = chains.at[padded], len(ready)
    q = student(batch.mean[at], batch.final[at])
    rows = np.stack([batch.rows[int(i)] for i in at])
    ended = Ended(
        target=taken(target, at),
        q=q,
        states=np.stack([batch.points[int(i)] for i in at]),
        acceptance=rows[:, rows.shape[1] // 2 :, 1],
        log_p=chains.log_p[padded],
        first_sd=np.sqrt(np.sum(batch.start_tril[at] ** 2, 2)),
        error=error[padded],
        tolerance=tolerance,
    )
    make = lambda j: one(batch, int(at[j]))  # noqa: E731
    measured = measure_many(ended, keys[at], make, some, count)
    for i, m in zip(at, measured):
        batch.seen[int(i)] = Convergence(m.looked, m.error, m.rhat, moves=m.looked, looks=1)
    findings = [judge(m) for m in measured]
    good = np.array([j for j, f in enumerate(findings) if f.verdict == GOOD], int)
    if len(good):
        look()
        inner = bucket(good, len(padded))
        these = taken(q, inner)
        unit = np.asarray(batch.final[at[inner]], default_dtype())
        told = challenge_many(
            taken(ended.target, inner), these, unit, np.asarray(_centres(these)),
            [measured[j] for j in inner], keys[at[inner]], lambda k: make(inner[k]), some,
            len(good),
        )  # fmt: skip
        for j, values in zip(good, told):
            measured[j] = replace(measured[j], **values)
            findings[j] = judge(measured[j])
    return [concluded(m, f) for m, f in zip(measured, findings)]


@jax.jit
def _centres(q: FullRankStudentT) -> Any:
    return jax.vmap(lambda q: q.log_prob(q.loc))(q)
