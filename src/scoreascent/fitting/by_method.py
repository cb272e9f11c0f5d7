"""A fit with a method: nothing is chosen, one run of the loop, and what it left behind."""

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._batches import log_probs
from scoreascent._layout import local
from scoreascent.fitting import checkpoint as files
from scoreascent.fitting.ahead import Ahead
from scoreascent.fitting.arguments import Arguments
from scoreascent.fitting.devices import put
from scoreascent.fitting.host import Hook, Saver, Setup, replications_first
from scoreascent.fitting.host import run as run_on_host
from scoreascent.fitting.provenance import density_at_fixed_points, describe, versions
from scoreascent.fitting.result import DivergenceError, Result
from scoreascent.fitting.stopping import Watch
from scoreascent.kernels import Places
from scoreascent.loop import (
    Average,
    State,
    blank_trace,
    check_start,
    first_state,
    placed,
    run_chunk,
)
from scoreascent.run import Start
from scoreascent.target import Target
from scoreascent.update import DEFAULT

DEFAULT_STEPS = 10_000


def fit(given: Arguments) -> Result:
    """Run the given method from where it begins to its end."""
    method, q, stop = given.method, given.q, given.stop
    assert method is not None
    assert q is not None
    update = DEFAULT if given.update is None else given.update
    steps = DEFAULT_STEPS if given.steps is None else given.steps
    average_from = _average_start(given.average, steps) if stop is None else 0
    layout = given.layout
    setup = Setup(put(given.target, layout), method, update, given.replicate)
    keys = given.key if given.count is None else jax.random.split(given.key, given.count)
    places = None if given.start is None else _places(given.start, given.target, given.count)
    begin = functools.partial(
        first_state, *setup, average_from is not None, q, keys, np.int32(average_from or 0), places,
        layout=layout,
    )  # fmt: skip
    # a state that is given needs no first one, only its shapes
    first = begin() if given.state is None else jax.eval_shape(begin)
    identity = describe(given.target, method, update, q, average_from, given.count, given.key)
    state, windows = given.state, None  # type: tuple[Any, Any]
    if stop is not None:
        identity["average"] = stop.averages
        windows = stop.blank(method, first, given.count is not None)
        if state is not None:
            state = state._replace(average=Average(state.step, state.q))
            windows = windows._replace(origin=np.asarray(np.max(state.step), np.int64))
    if given.checkpoint is not None:
        identity["update"] += f", first steps {update.fingerprint(q)}"
        identity["log_density"] = density_at_fixed_points(given.target, q, given.replicate)
    rows = jax.eval_shape(functools.partial(blank_trace, rows=0), first)
    trace = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rows)
    if given.checkpoint is not None and given.checkpoint.exists():
        state, trace, windows = files.load(given.checkpoint, (first, trace, windows), identity)
    elif state is None:
        state = first
        check_start(local(layout, state), given.target, given.replicate)
    assert state is not None
    _check_state(state, first, steps)
    state = placed(layout, method, state)

    saver = Saver(given.checkpoint, given.checkpoint_every, identity, layout)
    hook = Hook(given.callback, given.callback_every)
    watch = Watch(None, method, None) if stop is None else stop.watch(method, windows, given.target)
    began = time.perf_counter()
    state, trace, status = run_on_host(
        setup, state, trace, steps, given.progress, saver, hook, watch, given.label, layout
    )
    state = local(layout, state)
    provenance = {"steps": steps, "seconds": time.perf_counter() - began, **identity, **versions()}
    if layout is not None:
        provenance["mesh"] = layout.words()
    if stop is not None:
        done = int(np.max(np.asarray(state.step)))
        provenance |= {"stop": watch.words(done), "stop_rule": repr(stop)}
    states, controls = watch.late_states(state)
    result = Result(
        q=state.q if state.average is None else watch.average(state),
        state=state,
        trace=replications_first(trace),
        status=status,
        target=given.target,
        method=method,
        update=update,
        replications=given.count,
        data_replicated=given.replicate == "data",
        provenance=provenance,
        start=given.start,
        convergence=watch.seen if stop is not None else None,
        states=states,
        states_every=watch.states_every(),
        controls=controls,
        tolerance=given.tolerance,
    )
    return _delivered(result, given.throw)


def compile_ahead(given: Arguments, places: int | None, ahead: Ahead) -> None:
    """Compile the programs of a fit in the background: `given` says all but where it begins.

    That will be so many places, if it is known; of q the shapes are enough.
    """
    method, q = given.method, given.q
    stop: Any = given.stop
    if stop is None or given.layout is not None:
        return
    assert method is not None
    assert q is not None
    assert given.update is not None
    setup = Setup(given.target, method, given.update, given.replicate)
    shape: Any = lambda *s: jax.ShapeDtypeStruct(s, q.mean.dtype)  # noqa: E731
    blank = Places(shape(places or 1, q.dim), shape(places or 1))
    begin = (*setup, True, q, given.key, np.int32(0), blank)
    if places is not None:
        ahead.compile(first_state, *begin)
    state = first_state.eval_shape(*begin)
    watch = stop.watch(method, stop.blank(method, state, False), given.target)
    ahead.compile(run_chunk, *setup, state, np.int32(0), watch.keep, watch.slopes)


def _delivered(result: Result, throw: bool) -> Result:
    """Raise or warn where a user who never prints the result would miss that it is bad."""
    says = result.warnings()
    if result.status == "diverged" and throw:
        raise DivergenceError("; ".join(says), result)
    if np.any(result.trace.skipped) or result.invalid:
        warnings.warn("; ".join(says), RuntimeWarning, stacklevel=4)
    return result


def _average_start(average: bool | float, steps: int) -> int | None:
    """Return after how many iterations averaging begins; None if there is none."""
    if average is False:
        return None
    return int((0.5 if average is True else average) * steps)


def _places(start: Start, target: Target, count: int | None) -> Places:
    """Return the points of a start, with their densities if there is one target."""
    if count is not None:
        return Places(jnp.stack([start.z] * count))
    log_p = log_probs(target, start.z)
    finite = np.isfinite(log_p)
    if not finite.any():
        return Places(start.z)
    z = np.asarray(start.z)[finite]
    return Places(jnp.asarray(z), jnp.asarray(log_p[finite].astype(z.dtype)))


def _check_state(state: State, first: Any, steps: int) -> None:
    """Refuse a state of another run, or one that is already past the end."""
    shapes = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]  # noqa: E731
    structures: list[Any] = [jax.tree.structure(state), jax.tree.structure(first)]
    if structures[0] != structures[1] or shapes(state) != shapes(first):
        raise ValueError(
            "state does not fit this run: it must come from a fit with the same target, method, "
            "family, optimizer, average or stop, and replications"
        )
    done = int(np.max(np.asarray(state.step)))
    if done > steps:
        raise ValueError(f"steps is {steps}, but this run has already done {done}; give more")
