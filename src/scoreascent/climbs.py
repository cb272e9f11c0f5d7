"""Many searches uphill at once, in one compiled program: L-BFGS side by side.

A turn of the loop is one gradient for each search: a trial step along its direction, which is taken
if log p rises enough and shortened if not. A search is done when it has come home, when log p
hardly rises any more, or when no step makes it rise.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import as_default, default_dtype
from scoreascent._batches import over_fits
from scoreascent.families import Family
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    Vector = np.ndarray[Any, np.dtype[np.float64]]

WIDTH = 8  # searches in a batch; the compiler sees one shape
MEMORY = 10  # pairs of steps and changes of slope
ENOUGH = 1e-4  # of the rise that the slope promises
MAX_FAILURES = 25  # in a row, after which the memory is forgotten, or the search done
MAX_CALM = 5  # steps in a row on which log p rises by rounding errors alone
FLAT = 1e-6  # the largest slope at a top
MAX_ITERATIONS = 300  # of a search
MAX_ROWS = 256  # places of a path that are kept
MAX_PATH_NUMBERS = 2**22  # of the places of a batch's paths


FITS = 16  # of which searches climb side by side on a CPU


class Home(NamedTuple):
    """Where a search may end: q gives it at least `level`, and π/q is at most `above`, in logs."""

    q: Family
    level: Any
    above: Any


class Path(NamedTuple):
    """Places of one search on its way, the first and the last among them."""

    z: Vector
    log_p: Vector
    is_home: bool

    @property
    def is_possible(self) -> bool:
        """Whether log p and its gradient are finite where it began."""
        return bool(np.isfinite(self.log_p[0]))


class _Search(NamedTuple):
    """One search, in coordinates x of z = origin + unit x; the loss is −log p."""

    x: Float[Array, " d"]
    loss: Float[Array, ""]
    slope: Float[Array, " d"]
    direction: Float[Array, " d"]
    length: Float[Array, ""]
    steps: Float[Array, "m d"]  # the latest first
    changes: Float[Array, "m d"]
    pairs: Int[Array, ""]
    failures: Int[Array, ""]
    calm: Int[Array, ""]
    home: Bool[Array, ""]
    done: Bool[Array, ""]
    gradients: Int[Array, ""]


def climb(
    target: Target,
    first: list[Vector],
    home: Home,
    unit: Vector,
    most: int = MAX_ITERATIONS,
    rise: float = 0.0,
    width: int = WIDTH,
) -> tuple[list[Path], int]:
    """Return the path of a search from each of the places, and the gradients they took in all.

    `unit` is a factor of a covariance matrix in whose coordinates the search is, a matrix or a
    diagonal. With `most` 0 the paths are the first places. A search also ends when a few steps in a
    row have not brought more than `rise` nats each. So many at a time, `width`, are one program.
    """
    rows = int(np.clip(MAX_PATH_NUMBERS // (width * target.dim), 4, MAX_ROWS))
    paths: list[Path] = []
    gradients = 0
    for i in range(0, len(first), width):
        batch = np.stack(first[i : i + width])
        n = len(batch)
        batch = np.concatenate([batch, np.repeat(batch[:1], width - n, axis=0)])
        active = np.arange(width) < n
        level, above = (np.asarray(x, default_dtype()) for x in home[1:])
        told = _climb(
            target, Home(home.q, level, above), as_default(unit), as_default(batch), active,
            np.int32(most), np.asarray(rise, default_dtype()), rows,
        )  # fmt: skip
        z, log_p, is_home, count = (np.asarray(x) for x in told)
        gradients += int(count[:n].sum())
        for j in range(n):
            kept = ~np.isnan(log_p[:, j])
            paths.append(
                Path(z[kept, j].astype(np.float64), log_p[kept, j].astype(np.float64),
                     bool(is_home[j]))
            )  # fmt: skip
    return paths, gradients


def climb_many(
    target: Target,
    first: Any,
    active: Any,
    home: Home,
    unit: Any,
    most: int = MAX_ITERATIONS,
    rows: int = 4,
) -> tuple[list[list[Path]], Any]:
    """Return the paths of searches from places (fits, n, d), and the gradients of every fit.

    The targets differ in their data, which have the fits in front, as have the home, the unit and
    `active`, which says what searches there are. All are one program; so many rows of each path
    are kept.
    """
    zero = np.zeros((), default_dtype())
    told = _climb_many(target, home, unit, first, active, np.int32(most), zero, rows)
    z, log_p, is_home, count = (np.asarray(x) for x in told)
    active = np.asarray(active)
    paths: list[list[Path]] = []
    for i in range(len(z)):
        kept = ~np.isnan(log_p[i])
        paths.append(
            [
                Path(
                    z[i, kept[:, j], j].astype(np.float64),
                    log_p[i, kept[:, j], j].astype(np.float64),
                    bool(is_home[i, j]),
                )
                for j in np.flatnonzero(active[i])
            ]
        )
    return paths, np.sum(count * active, 1)


@functools.partial(jax.jit, static_argnames="rows")
def _climb_many(
    target: Target, home: Home, unit: Any, origin: Any, active: Any, most: Any, rise: Any, rows: int
) -> Any:
    def search(*fit: Any) -> Any:
        return _climb(*fit, most, rise, rows)

    # a turn of these loops is many small operations: of one fit alone, they are mostly overhead
    return over_fits(search, target, home, unit, origin, active, some=FITS)


@functools.partial(jax.jit, static_argnames="rows")
def _climb(
    target: Target, home: Home, unit: Any, origin: Any, active: Any, most: Any, rise: Any, rows: int
) -> Any:
    """Return places (rows, n, d) and their log p, NaN in rows not used; whether home; gradients."""

    def to_z(x: Any, origin: Any) -> Any:
        return origin + (unit @ x if unit.ndim == 2 else unit * x)

    def look(x: Any, origin: Any) -> Any:
        """Return the loss, its slope in x, and whether the place is home."""
        z = to_z(x, origin)
        log_p, slope = jax.value_and_grad(target.log_prob)(z)
        slope = unit.T @ slope if unit.ndim == 2 else unit * slope
        finite = jnp.isfinite(log_p) & jnp.all(jnp.isfinite(slope))
        log_q = home.q.log_prob(z)
        arrived = (log_q >= home.level) & (log_p - log_q <= home.above)
        loss = jnp.where(finite, -log_p, jnp.inf).astype(x.dtype)
        return loss, jnp.where(finite, -slope, 0).astype(x.dtype), finite & arrived

    def begin(origin: Any, active: Any) -> _Search:
        x = jnp.zeros_like(origin)
        none = jnp.zeros((MEMORY, x.shape[0]), x.dtype)
        zero = jnp.int32(0)
        inf = jnp.asarray(jnp.inf, x.dtype)
        no = jnp.asarray(False)
        # the first turn of the loop looks where the search begins, as a step of length 0
        return _Search(x, inf, x, x, 0 * x[0], none, none, zero, zero, zero, no,
                       ~active, zero)  # fmt: skip

    def turn(s: _Search, origin: Any, is_first: Any) -> _Search:
        x = s.x + s.length * s.direction
        loss, slope, home = look(x, origin)
        steep = s.slope @ s.direction
        noise = 2 * jnp.finfo(x.dtype).eps * jnp.abs(s.loss)
        better = loss <= s.loss + ENOUGH * s.length * steep + noise
        better = jnp.isfinite(loss) & (better | is_first)
        taken = _taken(s, x, loss, slope, is_first, rise)
        failed = _failed(s, loss, steep)
        new = jax.tree.map(lambda a, b: jnp.where(better, a, b), taken, failed)
        flat = jnp.max(jnp.abs(new.slope)) <= FLAT
        home = home & better
        done = new.done | home | flat | (new.calm >= MAX_CALM) | (is_first & ~better)
        new = new._replace(home=home, done=done, gradients=s.gradients + 1)
        return jax.tree.map(lambda a, b: jnp.where(s.done, a, b), s, new)

    def body(carry: Any) -> Any:
        i, searches, path, log_p = carry
        moved = jax.vmap(lambda s, o: turn(s, o, i == 0))(searches, origin)
        z = jax.vmap(to_z)(moved.x, origin)
        # the rows are shared out evenly, but for the last, which is for the end; first come
        row = jnp.minimum(i * (rows - 1) // jnp.maximum(most, rows - 1), rows - 2)
        fresh = ~searches.done & jnp.isfinite(moved.loss) & jnp.isnan(log_p[row])
        path = path.at[row].set(jnp.where(fresh[:, None], z, path[row]))
        log_p = log_p.at[row].set(jnp.where(fresh, -moved.loss, log_p[row]))
        return i + 1, moved, path, log_p

    def goes_on(carry: Any) -> Any:
        return (carry[0] <= most) & jnp.any(~carry[1].done)

    searches = jax.vmap(begin)(origin, active)
    path = jnp.zeros((rows, *origin.shape), origin.dtype)
    log_p = jnp.full((rows, origin.shape[0]), jnp.nan, origin.dtype)
    _, searches, path, log_p = jax.lax.while_loop(
        goes_on, body, (jnp.int32(0), searches, path, log_p)
    )
    path = path.at[-1].set(jax.vmap(to_z)(searches.x, origin))
    log_p = log_p.at[-1].set(-searches.loss)
    return path, log_p, searches.home, searches.gradients


def _taken(s: _Search, x: Any, loss: Any, slope: Any, is_first: Any, rise: Any) -> _Search:
    """Return the search after a step that is taken: what it learnt, and where it goes next."""
    step, change = x - s.x, slope - s.slope
    learns = (step @ change > 1e-10 * (change @ change)) & ~is_first
    steps, changes = (
        jnp.where(learns, jnp.concatenate([new[None], old[:-1]]), old)
        for new, old in ((step, s.steps), (change, s.changes))
    )
    pairs = jnp.minimum(s.pairs + learns, MEMORY)
    noise = 2 * jnp.finfo(x.dtype).eps * jnp.maximum(jnp.abs(loss), 1)
    calm = jnp.where((s.loss - loss <= jnp.maximum(noise, rise)) & ~is_first, s.calm + 1, 0)
    direction, length = _direction(slope, steps, changes, pairs)
    return s._replace(
        x=x, loss=loss, slope=slope, direction=direction, length=length, steps=steps,
        changes=changes, pairs=pairs, failures=jnp.int32(0), calm=calm,
    )  # fmt: skip


def _failed(s: _Search, loss: Any, rise: Any) -> _Search:
    """Return the search with a shorter step, by the parabola through what was seen."""
    length = s.length
    fall = 2 * (loss - s.loss - length * rise)
    shorter = jnp.where(jnp.isfinite(loss) & (fall > 0), -rise * length**2 / fall, 0.1 * length)
    length = jnp.clip(shorter, 0.1 * length, 0.5 * length)
    failures = s.failures + 1
    lost = failures >= MAX_FAILURES
    plain, first = _plain(s.slope)
    forgotten = s._replace(
        direction=plain, length=first, pairs=jnp.int32(0), failures=jnp.int32(0),
        done=s.done | (s.pairs == 0),
    )  # fmt: skip
    shortened = s._replace(length=length, failures=failures)
    return jax.tree.map(lambda a, b: jnp.where(lost, a, b), forgotten, shortened)


def _plain(slope: Any) -> tuple[Any, Any]:
    """Return the steepest way, and a first length of one along it."""
    size = jnp.sqrt(slope @ slope)
    return -slope, 1 / jnp.maximum(size, 1)


def _direction(slope: Any, steps: Any, changes: Any, pairs: Any) -> tuple[Any, Any]:
    """Return the direction of L-BFGS and the length of a first trial."""
    dot = jnp.sum(steps * changes, 1)
    known = jnp.arange(MEMORY) < pairs
    rate = jnp.where(known, 1 / jnp.where(known, dot, 1), 0)

    def there(v: Any, pair: Any) -> Any:
        step, change, rate = pair
        a = rate * (step @ v)
        return v - a * change, a

    def back(v: Any, pair: Any) -> Any:
        step, change, rate, a = pair
        return v + step * (a - rate * (change @ v)), None

    v, a = jax.lax.scan(there, slope, (steps, changes, rate))
    scale = dot[0] / jnp.maximum(changes[0] @ changes[0], jnp.finfo(slope.dtype).tiny)
    v, _ = jax.lax.scan(back, scale * v, (steps, changes, rate, a), reverse=True)
    plain, first = _plain(slope)
    falls = (pairs > 0) & (v @ slope > 0) & jnp.all(jnp.isfinite(v))
    return jnp.where(falls, -v, plain), jnp.where(falls, 1.0, first)
