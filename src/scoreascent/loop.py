"""The compiled part of a run: its first state, one iteration, and a chunk of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import all_finite, select
from scoreascent._layout import CHAINS, Layout, in_force
from scoreascent.families import Family, MeanField
from scoreascent.kernels import Particles, Places
from scoreascent.methods import Method
from scoreascent.target import Target
from scoreascent.update import Update

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

CHUNK_ROWS = 4096  # the most iterations between two looks of the host
MAX_COORDINATES = 200  # the most coordinates that diagnostics look at
MAX_KEPT = 5000  # the most coordinates of which points are kept whole
Q0_STREAM = 0x5EED  # folded into a run's key for a q0 that is a function of a key

# What is replicated: nothing, the seeds alone, or seeds and data.
Replicate = Literal["nothing", "seeds", "data"]


class Average(NamedTuple):
    """The running mean of the iterates λ_t, t > start."""

    start: Int[Array, ""]
    q: Family


class State(NamedTuple):
    """Everything that iteration t + 1 depends on.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> short = sa.fit(target, sa.pmcsa(4), steps=3, progress=False)
    >>> longer = sa.fit(target, sa.pmcsa(4), steps=6, state=short.state, progress=False)
    >>> int(short.state.step), int(longer.state.step)
    (3, 6)
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    q: Family
    eta: Any
    memory: Any
    average: Average | None


class Trace(NamedTuple):
    """One number an iteration, of each kind; with replications, one row a replication.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> trace = sa.fit(target, sa.pmcsa(4), steps=3, progress=False).trace
    >>> trace.loss.shape, bool(trace.skipped.any())
    ((3,), False)
    """

    loss: Any
    acceptance: Any
    grad_norm: Any
    invalid: Any  # log densities that were NaN or +∞
    skipped: Any  # 1 where the step would have made q non-finite


def advance(target: Target, method: Method, update: Update, state: State) -> tuple[State, Trace]:
    """One iteration: η ~ P_λ(η, ·), then q by the update, both with the λ of before.

    A step that would make q or the loss non-finite is not taken, but counted.
    """
    key = jax.random.fold_in(state.key, state.step)
    eta, info = method.step(key, target, state.q, state.eta)
    eta = jax.lax.stop_gradient(eta)
    q, memory, loss, grad_norm = update.step(method, target, state.q, eta, state.memory)
    finite = all_finite((loss, q))
    q, memory = select(finite, (q, memory), (state.q, state.memory))
    step = state.step + 1
    skipped = 1 - finite.astype(jnp.int32)
    dtype = _float_dtype(q)
    loss, acceptance, grad_norm = (x.astype(dtype) for x in (loss, info.acceptance, grad_norm))
    row = Trace(loss, acceptance, grad_norm, info.invalid, skipped)
    average = state.average
    if average is not None:
        mean = update.average(average.q, q, eta, step - average.start)
        average = Average(average.start, mean)
    return State(step, state.key, q, eta, memory, average), row


def blank_trace(state: State, rows: int) -> Trace:
    """Return rows of zeros for the trace of a run in this state."""
    numbers = jnp.zeros((rows, *state.step.shape), _float_dtype(state.q))
    counts = jnp.zeros((rows, *state.step.shape), jnp.int32)
    return Trace(numbers, numbers, numbers, counts, counts)


def _float_dtype(q: Family) -> Any:
    return jnp.result_type(*jax.tree.leaves(q))


@functools.partial(
    jax.jit, static_argnames=("method", "update", "replicate", "keep", "slopes", "layout")
)
def run_chunk(
    target: Target,
    method: Method,
    update: Update,
    replicate: Replicate,
    state: State,
    n: Int[Array, ""],
    keep: int = 0,
    slopes: bool = False,
    layout: Layout | None = None,
) -> tuple[State, Trace, Any]:
    """Do n iterations; their trace is in the first n of `CHUNK_ROWS` rows.

    With `keep`, which n must not exceed then, the points of each are in the first n of so many
    rows, with `slopes` followed by the gradients there. n is a traced number: one program serves
    every length, so where a run is cut, by the progress bar, a checkpoint or Ctrl-C, cannot change
    its bits. With a `layout` the chains stay where it has them.
    """

    def once(state: State, target: Target) -> tuple[State, Trace]:
        with in_force(layout):
            return advance(target, method, update, state)

    step = _replicated(once, replicate, 1)
    points = kept_points(method, state, slopes) if keep else jnp.zeros(0)
    blank = blank_trace(state, CHUNK_ROWS), jnp.zeros((keep, *points.shape), points.dtype)

    def body(i: Int[Array, ""], carry: Any) -> Any:
        state, rows = carry[0], carry[1:]
        state, row = step(state, target)
        state = laid_out(layout, method, state)
        kept = rows[1].at[i].set(kept_points(method, state, slopes)) if keep else rows[1]
        if keep and layout is not None and layout.divides(kept.shape[1]):
            kept = jax.lax.with_sharding_constraint(kept, layout.sharding(None, CHAINS))
        return state, jax.tree.map(lambda rows, r: rows.at[i].set(r), rows[0], row), kept

    return jax.lax.fori_loop(0, n, body, (state, *blank))  # type: ignore[no-any-return]


def laid_out(layout: Layout | None, method: Method, state: State) -> State:
    """Return the state with its arrays where a layout has them, as compiled code is told."""
    if layout is None:
        return state
    return jax.lax.with_sharding_constraint(state, _places_of(layout, method, state))


def placed(layout: Layout | None, method: Method, state: State) -> State:
    """Return the state with its arrays where a layout has them; those that are there stay."""
    return state if layout is None else layout.place(state, _places_of(layout, method, state))


def _places_of(layout: Layout, method: Method, state: State) -> State:
    """Return where the arrays of a state lie: the chains' points over devices, the rest whole."""
    places: Any = jax.tree.map(lambda x: layout.sharding(), state)
    if not isinstance(state.eta, Particles):
        return places
    points = state.eta._replace(tuning=None)
    apart = jax.tree.map(lambda x: layout.of_points(x, method.chains), points)
    return places._replace(eta=apart._replace(tuning=places.eta.tuning))


def kept_points(method: Method, state: State, slopes: bool = False) -> Float[Array, "n k"]:
    """Return where the points are, in only some coordinates of very many; none of the ELBO's.

    With `slopes` the gradients that the kernel keeps follow in each row.
    """
    points = method.particles(state.eta)
    if points is None:
        return jnp.zeros((0, 0))
    at = kept_coordinates(points.z.shape[-1])
    if not slopes:
        return points.z[:, at]
    assert points.gradient is not None
    return jnp.concatenate([points.z[:, at], points.gradient[:, at]], axis=1)


def coordinates(dim: int) -> np.ndarray[Any, Any]:
    """Return the coordinates of z that are looked at: all, or `MAX_COORDINATES` of them."""
    return np.unique(np.linspace(0, dim - 1, min(dim, MAX_COORDINATES)).astype(int))


def kept_coordinates(dim: int) -> np.ndarray[Any, Any]:
    """Return the coordinates of points that are kept: all, or of very many those looked at."""
    return np.arange(dim) if dim <= MAX_KEPT else coordinates(dim)


@functools.partial(jax.jit, static_argnames=("method", "update", "replicate", "average", "layout"))
def first_state(
    target: Target,
    method: Method,
    update: Update,
    replicate: Replicate,
    average: bool,
    q: Family,
    key: PRNGKeyArray,
    start: Int[Array, ""],
    places: Places | None = None,
    layout: Layout | None = None,
) -> State:
    """Return the state before iteration 1; averaging begins after iteration `start`.

    The first points are draws of q, or of `places` if there are any.
    """

    def one(q: Family, places: Places | None, key: PRNGKeyArray, target: Target) -> State:
        key_init, key_run = jax.random.split(key)
        begin = (key_init, target, q) if places is None else (key_init, target, q, places)
        with in_force(layout):
            eta = method.init(*begin)
        mean = Average(start, q) if average else None
        return State(jnp.int32(0), key_run, q, eta, update.init(q), mean)

    return laid_out(layout, method, _replicated(one, replicate, 3)(q, places, key, target))


def _replicated(function: Any, replicate: Replicate, n_args: int) -> Any:
    """Map `function(*args, target)` over replications: of the arguments always, of data maybe."""
    if replicate == "nothing":
        return function
    return jax.vmap(function, (0,) * n_args + ((0,) if replicate == "data" else (None,)))


def first_q(q0: Any, target: Target, key: PRNGKeyArray, count: int | None) -> Family:
    """Return the family that `q0` stands for, or one for each of `count` replications.

    `q0` is a family, a function of a key that gives one, or None for N(0, I).
    """
    if q0 is None:
        q0 = MeanField.standard(target.dim)
    if isinstance(q0, Family):
        q: Any = q0 if count is None else jax.tree.map(lambda x: jnp.stack([x] * count), q0)
    elif isinstance(q0, type) and issubclass(q0, Family):
        name = q0.__name__
        raise ValueError(f"q0 must be a member of a family, such as {name}.standard(3), got {name}")
    elif callable(q0):
        key = jax.random.fold_in(key, Q0_STREAM)
        q = q0(key) if count is None else jax.vmap(q0)(jax.random.split(key, count))
    else:
        raise ValueError(f"q0 must be a family such as MeanField.standard(3), got {q0!r}")
    if not isinstance(q, Family):
        raise ValueError(f"q0 must give a family such as MeanField.standard(3), but gave {q!r}")
    if q.dim != target.dim:
        raise ValueError(f"q0 has dim {q.dim} but the target has dim {target.dim}")
    return q


def check_start(state: State, target: Target, replicate: Replicate) -> None:
    """Refuse to run from points where the density is zero or undefined."""
    if all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(state.eta)):
        return
    seen = ""
    if replicate == "nothing":
        log_p = np.asarray(jax.vmap(target.log_prob)(state.q.sample(state.key, (1000,))))
        seen = (f": of 1000 more, {np.mean(np.isnan(log_p)):.0%} are NaN and "
                f"{np.mean(log_p == -np.inf):.0%} are −∞")  # fmt: skip
    raise ValueError(
        f"the target's log density is not finite at any draw of q0{seen}. Start q0 where the "
        "posterior has mass, or check log_density for NaN."
    )
