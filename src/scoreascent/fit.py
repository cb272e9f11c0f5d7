"""`fit`: checks what it is given, runs the compiled loop in chunks, and gives back a `Result`."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scoreascent import checkpoint as files
from scoreascent import update as updates
from scoreascent._batches import log_probs
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.families import Family, MeanField
from scoreascent.loop import (
    CHUNK_ROWS,
    Average,
    Replicate,
    State,
    Trace,
    blank_trace,
    first_state,
    run_chunk,
)
from scoreascent.methods import Method
from scoreascent.progress import Bar, catch_interrupt
from scoreascent.provenance import describe, first_steps, versions
from scoreascent.result import DivergenceError, Result, Status
from scoreascent.starts import Scattered, Start
from scoreascent.stopping import Converged, Watch, Windows, blank_windows
from scoreascent.target import Target, stack
from scoreascent.update import Update

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

CHUNK_SECONDS = 0.5  # about how long the host leaves the loop alone
STUCK = 100  # so many skipped updates in a row end a run


def fit(
    target: Target | Sequence[Target],
    method: Method | Literal["auto"] = "auto",
    *,
    q0: Family | Start | Callable[[PRNGKeyArray], Family] | None = None,
    optimizer: optax.GradientTransformation | Update | None = None,
    steps: int | None = None,
    key: PRNGKeyArray | int = 0,
    average: bool | float = False,
    stop: Converged | None = None,
    replications: int | None = None,
    progress: bool = True,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    state: State | None = None,
    callback: Callable[[State, Trace], object] | None = None,
    callback_every: int = 1000,
    throw: bool = True,
) -> Result:
    """Fit q to a posterior.

    `fit(target)` chooses start, family, kernel and the rest for itself, stops when it has
    converged, and ends with a verdict; `result.decisions` says what it chose, and any argument
    overrules it. With a method, nothing is chosen: the other defaults are those below.

    Args:
        target: the posterior, or a list of posteriors that differ only in their data, which are
            then fitted side by side as replications.
        method: such as `pmcsa(10)`, `jsa`, `msc`, `msc_rb` or `elbo`; or "auto".
        q0: the family and where it starts, or a function of a key that gives it (each replication
            then gets its own), or a `Start` such as `laplace(target)` gives, from whose points the
            chains begin. The default is a mean-field Gaussian N(0, I).
        optimizer: any optax optimiser, or another `Update`. The default is ADAM with step 0.01.
        steps: the iteration to reach, counted from the beginning of the run, so a run resumed from
            `state` or `checkpoint` goes on to the same end. The default is 10 000.
        key: an integer seed or a `jax.random.key`.
        average: give back the average of the iterates instead of the last one. `True` averages the
            second half of the run; a number in [0, 1) is the fraction that is left out before.
        stop: end the run when this rule is met, with the status "converged"; `steps` is then the
            most it may take. The average of the late windows is given back, whether the rule was
            met or not. A run resumed from `checkpoint` keeps its windows; from `state`, they begin
            anew.
        replications: run so many fits with different keys at once, under one `vmap`.
        progress: show a progress bar on stderr.
        checkpoint: a file that the run is saved to, and resumed from if it is there. A resumed run
            gives the same bits as one that was never stopped.
        checkpoint_every: seconds between two saves.
        state: resume from the `state` of an earlier result instead.
        callback: called with the state and the trace since the last call: before the first
            iteration of this run, whenever the iteration number is a multiple of `callback_every`,
            and after the last. If it returns True the run ends there, with the status "stopped".
            It does not change the run's bits.
        callback_every: iterations between two calls.
        throw: raise `DivergenceError` if the fit diverges, rather than give it back with the
            status "diverged". Replications never raise; their statuses tell.

    Ctrl-C ends the run after the current chunk and gives back what is there, with the status
    "interrupted"; pressed twice it raises as usual.

    >>> from scoreascent import pmcsa
    >>> target = Target(lambda z: -0.5 * jnp.sum((z - 1) ** 2), dim=2)
    >>> result = fit(target, pmcsa(10), steps=2000, average=True, progress=False)
    >>> bool(jnp.all(jnp.abs(result.q.mean - 1) < 0.2))
    True
    """
    if isinstance(method, str) or method is None:
        return _automatic(
            target, method, replications, state, q0=q0, optimizer=optimizer, steps=steps, key=key,
            average=average, stop=stop, progress=progress, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, callback=callback, callback_every=callback_every,
            throw=throw,
        )  # fmt: skip
    method = _check_method(method)
    update = resolve_update(optimizer)
    steps = check_count("steps", 10_000 if steps is None else steps, 0)
    target, replicate, count = _as_replicated(target, replications)
    run_key = as_key(key)
    q = first_q(q0, target, run_key, count)
    source = None
    if isinstance(q0, Start):
        source = _scattered(q0, q, target, count)
    stop = _check_stop(stop, average)
    start = _average_start(average, steps) if stop is None else 0
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every must be ≥ 0 seconds, got {checkpoint_every!r}")
    if state is not None and checkpoint is not None:
        raise ValueError("give state or checkpoint, not both")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of state and trace, got {callback!r}")
    hook = _Hook(callback, check_count("callback_every", callback_every, 1))

    setup = (target, method, update, replicate)
    keys = run_key if count is None else jax.random.split(run_key, count)
    begin = functools.partial(
        first_state, *setup, start is not None, q, keys, jnp.int32(start or 0), source
    )
    first = begin() if state is None else jax.eval_shape(begin)  # a given state costs nothing
    run = describe(target, method, update, q, start, count, run_key)
    windows = None
    if stop is not None:
        run["average"] = f"windows of {stop.every} steps"
        windows = blank_windows(stop, first, count is not None)
        if state is not None:
            state = state._replace(average=Average(state.step, state.q))
            windows = windows._replace(origin=np.asarray(np.max(state.step), np.int64))
    path = None if checkpoint is None else _check_path(checkpoint)
    if path is not None:
        run["update"] += f", first steps {first_steps(update, q)}"
    rows = jax.eval_shape(functools.partial(blank_trace, rows=0), first)
    trace = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rows)
    if path is not None and path.exists():
        state, trace, windows = files.load(path, (first, trace, windows), run)
    elif state is None:
        state = first
        check_start(state, target, replicate)
    _check_state(state, first, steps)

    saver, watch = _Saver(path, checkpoint_every, run), Watch(stop, windows)
    began = time.perf_counter()
    state, trace, status = _loop(setup, state, trace, steps, progress, saver, hook, watch)
    made = {"steps": steps, "seconds": time.perf_counter() - began, **run, **versions()}
    if stop is not None:
        made |= {"stop": watch.words(int(np.max(np.asarray(state.step)))), "stop_rule": repr(stop)}
    result = Result(
        q=state.q if state.average is None else watch.average(state),
        state=state,
        trace=_replications_first(trace),
        status=status,
        target=target,
        method=method,
        update=update,
        replications=count,
        data_replicated=replicate == "data",
        made=made,
        start=q0 if isinstance(q0, Start) else None,
        look=watch.seen if stop is not None else None,
        states=watch.late_states(),
    )
    return _deliver(result, throw)


# -- the host's part of the loop -------------------------------------------------------------------


def _loop(
    setup: tuple[Any, ...],
    state: State,
    trace: Trace,
    steps: int,
    progress: bool,
    saver: _Saver,
    hook: _Hook,
    watch: Watch,
) -> tuple[State, Trace, Status | tuple[Status, ...]]:
    """Chunks until `steps`, with the host's work between them."""
    done, parts = int(np.max(np.asarray(state.step))), [trace]
    skips = _trailing(trace.skipped, np.zeros(state.step.shape, int))
    limit = max(1, min(STUCK, steps))
    ended: Status = "diverged" if np.all(skips >= limit) else "max_steps"
    if watch.met and ended == "max_steps":
        ended = "converged"
    size = 16
    with catch_interrupt() as interrupt, Bar(progress, steps, done) as bar:
        if done < steps:
            run_chunk(*setup, state, jnp.int32(0))  # compiles, so that the clock times iterations
        if hook.asks_to_stop(state, parts) and done < steps and ended == "max_steps":
            ended = "stopped"
        while done < steps and ended == "max_steps":
            n = min(size, steps - done, hook.room(done), watch.room(done))
            clock = time.perf_counter()
            state, rows = run_chunk(*setup, state, jnp.int32(n))
            parts.append(Trace(*(np.asarray(x)[:n].copy() for x in rows)))
            pace = CHUNK_SECONDS / max(time.perf_counter() - clock, 1e-6)
            size = int(np.clip(n * pace, 1, min(4 * size, CHUNK_ROWS)))
            done += n
            skips = _trailing(parts[-1].skipped, skips)
            if np.all(skips >= limit):
                ended = "diverged"
            state = watch.look(state, parts, done)
            if watch.met and ended == "max_steps":
                ended = "converged"
            called = hook.is_due(done, steps) and hook.asks_to_stop(state, parts)
            if interrupt.asked and ended == "max_steps":
                ended = "interrupted"
            elif called and done < steps and ended == "max_steps":
                ended = "stopped"
            bar.update(done, float(np.mean(parts[-1].loss)), float(np.mean(parts[-1].acceptance)))
            saver.save(state, parts, watch.windows, force=done >= steps or ended != "max_steps")
    trace = _join(parts)
    if skips.shape == ():
        return state, trace, ended
    return state, trace, tuple("diverged" if s >= limit else ended for s in skips)


def _trailing(skipped: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> Any:
    """How many of the last updates in a row were skipped, `before` this chunk included."""
    if not len(skipped):
        return before
    unbroken = np.cumprod(skipped[::-1], axis=0)
    return np.where(unbroken[-1] == 1, before + len(skipped), np.sum(unbroken, axis=0))


def _join(parts: list[Trace]) -> Trace:
    return Trace(*(np.concatenate(xs) for xs in zip(*parts)))


def _replications_first(trace: Trace) -> Trace:
    return Trace(*(np.moveaxis(x, 0, -1) for x in trace))


class _Hook:
    """The user's callback, and when it is due."""

    def __init__(self, callback: Callable[[State, Trace], object] | None, every: int) -> None:
        self._callback, self._every, self._seen = callback, every, 0

    def room(self, done: int) -> int:
        """Iterations that may run before the next call."""
        return self._every - done % self._every if self._callback else CHUNK_ROWS

    def is_due(self, done: int, steps: int) -> bool:
        return done % self._every == 0 or done >= steps

    def asks_to_stop(self, state: State, parts: list[Trace]) -> bool:
        if self._callback is None:
            return False
        since = _join(parts[self._seen :] or [Trace(*(x[:0] for x in parts[-1]))])
        self._seen = len(parts)
        answer = self._callback(state, _replications_first(since))
        # only a truth value is an answer: a callback may give back what it computed
        is_truth = isinstance(answer, bool) or str(getattr(answer, "dtype", "")) == "bool"
        return is_truth and bool(answer)


class _Saver:
    """Writes the checkpoint now and then; a disk that is full costs the file, not the run."""

    def __init__(self, path: Path | None, every: float, run: dict[str, Any]) -> None:
        self._path, self._every, self._run = path, every, run
        self._last = time.monotonic()

    def save(self, state: State, parts: list[Trace], windows: Windows | None, force: bool) -> None:
        if self._path is None or not (force or time.monotonic() - self._last >= self._every):
            return
        self._last = time.monotonic()
        try:
            files.save(self._path, (state, _join(parts), windows), self._run)
        except OSError as error:
            warnings.warn(
                f"checkpoint {str(self._path)!r} could not be written ({error}); the fit goes on, "
                "and the last checkpoint that was written is intact",
                RuntimeWarning,
                stacklevel=4,
            )


def _deliver(result: Result, throw: bool) -> Result:
    """Raise or warn where a user who never prints the result would miss that it is bad."""
    says = result.warnings()
    if result.status == "diverged" and throw:
        raise DivergenceError("; ".join(says), result)
    if np.any(result.trace.skipped) or np.any(result.trace.invalid):
        warnings.warn("; ".join(says), RuntimeWarning, stacklevel=3)
    return result


# -- arguments -------------------------------------------------------------------------------------


def _automatic(target: Any, method: Any, replications: Any, state: Any, **given: Any) -> Result:
    """What `method="auto"` does; it is of one target, from the beginning."""
    if method not in ("auto", None):
        raise ValueError(f"method must be one such as pmcsa(10), or 'auto', got {method!r}")
    one, _, count = _as_replicated(target, replications)
    if count is not None or state is not None:
        what = "state" if count is None else "several targets or replications"
        raise ValueError(f"with {what} give a method too, such as pmcsa(10)")
    if given["q0"] is not None:
        first_q(given["q0"], one, as_key(given["key"]), None)
    if given["steps"] is not None:
        check_count("steps", given["steps"], 0)
    from scoreascent.auto import fit_automatically

    return fit_automatically(fit, one, **given)


def _check_method(method: Any) -> Method:
    if isinstance(method, type) or not all(
        hasattr(method, name) for name in ("init", "step", "objective")
    ):
        raise ValueError(f"method must be one such as pmcsa(10) or elbo(10), got {method!r}")
    return method  # type: ignore[no-any-return]


def resolve_update(optimizer: Any) -> Update:
    """The update that `optimizer` stands for: an optax optimiser, an update, or the default."""
    if optimizer is None:
        return updates.DEFAULT
    if hasattr(optimizer, "step") and hasattr(optimizer, "init"):
        return optimizer  # type: ignore[no-any-return]
    return updates.gradient(optimizer)


def _as_replicated(target: Any, replications: Any) -> tuple[Target, Replicate, int | None]:
    if replications is not None:
        check_count("replications", replications, 1)
    if isinstance(target, Target):
        return target, "nothing" if replications is None else "seeds", replications
    if not isinstance(target, list | tuple):
        raise ValueError(f"target must be a Target or a list of them, got {target!r}")
    if replications not in (None, len(target)):
        raise ValueError(f"replications is {replications} but {len(target)} targets were given")
    return stack(target), "data", len(target)


def first_q(q0: Any, target: Target, key: PRNGKeyArray, count: int | None) -> Family:
    """q0, one for each replication if there are any."""
    if q0 is None:
        q0 = MeanField.standard(target.dim)
    if isinstance(q0, Start):
        q0 = q0.q
    if hasattr(q0, "log_prob"):
        q = q0 if count is None else jax.tree.map(lambda x: jnp.stack([x] * count), q0)
    elif callable(q0):
        key = jax.random.fold_in(key, 0x5EED)
        q = q0(key) if count is None else jax.vmap(q0)(jax.random.split(key, count))
    else:
        raise ValueError(f"q0 must be a family such as MeanField.standard(3), got {q0!r}")
    if not hasattr(q, "log_prob"):
        raise ValueError(f"q0 must give a family such as MeanField.standard(3), but gave {q!r}")
    if q.dim != target.dim:
        raise ValueError(f"q0 has dim {q.dim} but the target has dim {target.dim}")
    return q  # type: ignore[no-any-return]


def _scattered(start: Start, q: Family, target: Target, count: int | None) -> Scattered:
    """The points of a start, with their densities if there is one target and they are finite."""
    if count is not None:
        return Scattered(q, jnp.stack([start.z] * count))
    log_p = log_probs(target, start.z)
    finite = np.isfinite(log_p)
    if not finite.any():
        return Scattered(q, start.z)
    z = np.asarray(start.z)[finite]
    return Scattered(q, jnp.asarray(z), jnp.asarray(log_p[finite].astype(z.dtype)))


def _average_start(average: bool | float, steps: int) -> int | None:
    """After how many iterations averaging begins; None if there is none."""
    if average is False:
        return None
    fraction = 0.5 if average is True else average
    if not (isinstance(fraction, int | float) and 0 <= fraction < 1):
        raise ValueError(f"average must be a bool or a fraction in [0, 1), got {average!r}")
    return int(fraction * steps)


def _check_stop(stop: Any, average: bool | float) -> Converged | None:
    if stop is not None and not isinstance(stop, Converged):
        raise ValueError(f"stop must be a rule such as Converged(), got {stop!r}")
    if stop is not None and average is not False:
        raise ValueError(
            f"give stop or average, not both: stop={stop!r} averages the late windows, and average "
            f"is {average!r}"
        )
    return stop


def _check_path(checkpoint: Any) -> Path:
    path = Path(checkpoint)
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint: the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"checkpoint: {str(path)!r} is a folder; name a file")
    return path


def check_start(state: State, target: Target, replicate: Replicate) -> None:
    """Refuse to run from points where the density is zero or undefined."""
    if all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(state.eta)):
        return
    seen = ""
    if replicate == "nothing":
        z = state.q.sample(state.key, (1000,))
        log_p = np.asarray(jax.vmap(target.log_prob)(z))
        seen = (f": of 1000 more, {np.mean(np.isnan(log_p)):.0%} are NaN and "
                f"{np.mean(log_p == -np.inf):.0%} are −∞")  # fmt: skip
    raise ValueError(
        f"the target's log density is not finite at any draw of q0{seen}. Start q0 where the "
        "posterior has mass, or check log_density for NaN."
    )


def _check_state(state: Any, first: Any, steps: int) -> None:
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
        raise ValueError(f"steps is {steps}, but this run has already done {done}")
