"""The compiled part: one iteration, and a chunk of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from scoreascent.families import Family
from scoreascent.methods import Method
from scoreascent.target import Target
from scoreascent.update import MomentMatching, Update

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PRNGKeyArray

CHUNK_ROWS = 4096  # most iterations between two looks of the host

# What is replicated: nothing, the seeds alone, or seeds and data.
Replicate = Literal["nothing", "seeds", "data"]


class Average(NamedTuple):
    """The running mean of the iterates λ_t, t > start."""

    start: Int[Array, ""]
    q: Family


class State(NamedTuple):
    """Everything that iteration t + 1 depends on."""

    step: Int[Array, ""]
    key: PRNGKeyArray
    q: Family
    eta: Any
    memory: Any
    average: Average | None


class Trace(NamedTuple):
    """One number an iteration, of each kind; with replications, one row a replication."""

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
    # 0 · x is 0 if x is finite and NaN if not, so one sum tells about all numbers at once
    finite = 0 * loss + sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves(q)) == 0
    q, memory = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (q, memory), (state.q, state.memory)
    )
    step = state.step + 1
    skipped = 1 - finite.astype(jnp.int32)
    dtype = _float_dtype(q)
    loss, acceptance, grad_norm = (x.astype(dtype) for x in (loss, info.acceptance, grad_norm))
    row = Trace(loss, acceptance, grad_norm, info.invalid, skipped)
    average = _averaged(state.average, update, q, eta, step)
    return State(step, state.key, q, eta, memory, average), row


def blank_trace(state: State, rows: int) -> Trace:
    """Rows of zeros for the trace of a run in this state."""
    numbers = jnp.zeros((rows, *state.step.shape), _float_dtype(state.q))
    counts = jnp.zeros((rows, *state.step.shape), jnp.int32)
    return Trace(numbers, numbers, numbers, counts, counts)


def _float_dtype(q: Family) -> Any:
    return jnp.result_type(*jax.tree.leaves(q))


def _averaged(
    average: Average | None, update: Update, q: Family, eta: Any, step: Int[Array, ""]
) -> Average | None:
    """The running mean; up to and including the first averaged step it is the iterate itself."""
    if average is None:
        return None
    count = jnp.maximum(step - average.start, 1)
    if isinstance(update, MomentMatching):
        mean = update.average(average.q, q, eta, step - average.start)
    else:
        mean = jax.tree.map(lambda m, x: m + (x - m) / count.astype(x.dtype), average.q, q)
    return Average(average.start, mean)


@functools.partial(jax.jit, static_argnames=("method", "update", "replicate"))
def run_chunk(
    target: Target,
    method: Method,
    update: Update,
    replicate: Replicate,
    state: State,
    n: Int[Array, ""],
) -> tuple[State, Trace]:
    """N iterations and their trace, in the first n of `CHUNK_ROWS` rows.

    n is a traced number: one program serves every length, so where a run is cut, by the progress
    bar, a checkpoint or Ctrl-C, cannot change its bits.
    """

    def once(state: State, target: Target) -> tuple[State, Trace]:
        return advance(target, method, update, state)

    step = _replicated(once, replicate, 1)
    blank = blank_trace(state, CHUNK_ROWS)

    def body(i: Int[Array, ""], carry: tuple[State, Trace]) -> tuple[State, Trace]:
        state, trace = carry
        state, row = step(state, target)
        return state, jax.tree.map(lambda rows, r: rows.at[i].set(r), trace, row)

    return jax.lax.fori_loop(0, n, body, (state, blank))


@functools.partial(jax.jit, static_argnames=("method", "update", "replicate", "average"))
def first_state(
    target: Target,
    method: Method,
    update: Update,
    replicate: Replicate,
    average: bool,
    q: Family,
    key: PRNGKeyArray,
    start: Int[Array, ""],
    source: Family | None = None,
) -> State:
    """The state before iteration 1; `start` is the iteration after which averaging begins.

    The first points are draws of q, or of `source` if there is one.
    """

    def one(q: Family, source: Family, key: PRNGKeyArray, target: Target) -> State:
        key_init, key_run = jax.random.split(key)
        eta = method.init(key_init, target, source)
        mean = Average(start, q) if average else None
        return State(jnp.int32(0), key_run, q, eta, update.init(q), mean)

    return _replicated(one, replicate, 3)(q, q if source is None else source, key, target)


def _replicated(function: Any, replicate: Replicate, n_args: int) -> Any:
    """`function(*args, target)` over replications: of the first arguments always, of data maybe."""
    if replicate == "nothing":
        return function
    return jax.vmap(function, (0,) * n_args + ((0,) if replicate == "data" else (None,)))
