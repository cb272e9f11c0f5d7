"""The host's part of a run: chunks of the compiled loop, and what happens between them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scoreascent._layout import Layout, local, to_host
from scoreascent._progress import Bar, catch_interrupt
from scoreascent.fitting import checkpoint as files
from scoreascent.fitting.ladder import Climb
from scoreascent.fitting.processes import agreed, is_first
from scoreascent.fitting.stopping import Watch
from scoreascent.loop import CHUNK_ROWS, Replicate, State, Trace, placed, run_chunk
from scoreascent.methods import Method
from scoreascent.run import Status
from scoreascent.target import Target
from scoreascent.update import Update

CHUNK_SECONDS = 0.5  # about how long the host leaves the loop alone
FIRST_CHUNK = 16  # iterations; later chunks follow the clock
MAX_SKIPS = 100  # so many skipped updates in a row end a run


class Setup(NamedTuple):
    """What the compiled loop is called with, beside the state."""

    target: Target
    method: Method
    update: Update
    replicate: Replicate


def run(
    setup: Setup,
    state: State,
    trace: Trace,
    steps: int,
    progress: bool,
    saver: Saver,
    hook: Hook,
    watch: Watch | Climb,
    label: str = "fit",
    layout: Layout | None = None,
) -> tuple[State, Trace, Status | tuple[Status, ...]]:
    """Run chunks until `steps`, with the host's work between them.

    With a `layout` over several processes all of them do so, and cut the run alike.
    """
    keeps = watch.keep, watch.slopes, layout
    done, parts = int(np.max(np.asarray(state.step))), [trace]
    skips = _trailing(trace.skipped, np.zeros(state.step.shape, int))
    limit = max(1, min(MAX_SKIPS, steps))
    ended: Status = "diverged" if np.all(skips >= limit) else "max_steps"
    if watch.met and ended == "max_steps":
        ended = "converged"
    size = FIRST_CHUNK
    with catch_interrupt() as interrupt, Bar(progress, steps, done, label) as bar:
        if done < steps:
            # compiles, so that the clock times iterations
            run_chunk(*setup, state, np.int32(0), *keeps)
        (called,) = agreed(layout, (), (hook.asks_to_stop(state, parts),))
        if called and done < steps and ended == "max_steps":
            ended = "stopped"
        while done < steps and ended == "max_steps" and not watch.hopeless:
            n = min(size, steps - done, hook.room(done), watch.room(done))
            clock = time.perf_counter()
            state, rows, points = run_chunk(*setup, state, np.int32(n), *keeps)
            parts.append(Trace(*(np.asarray(x)[:n].copy() for x in rows)))
            pace = CHUNK_SECONDS / max(time.perf_counter() - clock, 1e-6)
            size = int(np.clip(n * pace, 1, min(4 * size, CHUNK_ROWS)))
            done += n
            skips = _trailing(parts[-1].skipped, skips)
            if np.all(skips >= limit):
                ended = "diverged"
            state = watch.after_chunk(state, parts, done, to_host(points))
            state = placed(layout, setup.method, state)
            if watch.met and ended == "max_steps":
                ended = "converged"
            called = hook.is_due(done, steps) and hook.asks_to_stop(state, parts)
            size, is_due, asked, called = agreed(
                layout, (size, saver.is_due()), (interrupt.asked, called)
            )
            if asked and ended == "max_steps":
                ended = "interrupted"
            elif called and done < steps and ended == "max_steps":
                ended = "stopped"
            loss, acceptance = (float(np.mean(x)) for x in (parts[-1].loss, parts[-1].acceptance))
            bar.update(done, loss, acceptance, watch.aim())
            is_last = done >= steps or ended != "max_steps" or watch.hopeless
            if is_last or is_due:
                saver.save(state, parts, watch.windows)
    trace = join(parts)
    if skips.shape == ():
        return state, trace, ended
    return state, trace, tuple("diverged" if s >= limit else ended for s in skips)


def _trailing(skipped: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> Any:
    """Return how many of the last updates in a row were skipped, `before` this chunk included."""
    if not len(skipped):
        return before
    unbroken = np.cumprod(skipped[::-1], axis=0)
    return np.where(unbroken[-1] == 1, before + len(skipped), np.sum(unbroken, axis=0))


def join(parts: list[Trace]) -> Trace:
    """Return the traces of several chunks as one."""
    return Trace(*(np.concatenate(xs) for xs in zip(*parts)))


def replications_first(trace: Trace) -> Trace:
    """Return a trace whose last axis is the iteration."""
    return Trace(*(np.moveaxis(x, 0, -1) for x in trace))


class Hook:
    """The user's callback, and when it is due."""

    def __init__(self, callback: Callable[[State, Trace], object] | None, every: int) -> None:
        self._callback, self._every, self._seen = callback, every, 0

    def room(self, done: int) -> int:
        """Return the iterations that may run before the next call."""
        return self._every - done % self._every if self._callback else CHUNK_ROWS

    def is_due(self, done: int, steps: int) -> bool:
        """Tell whether the callback is to be called now."""
        return done % self._every == 0 or done >= steps

    def asks_to_stop(self, state: State, parts: list[Trace]) -> bool:
        """Call it with what has happened since the last call, and tell whether it says stop."""
        if self._callback is None:
            return False
        since = join(parts[self._seen :] or [Trace(*(x[:0] for x in parts[-1]))])
        self._seen = len(parts)
        answer = self._callback(state, replications_first(since))
        # only a truth value is an answer: a callback may give back what it computed
        is_truth = isinstance(answer, bool) or str(getattr(answer, "dtype", "")) == "bool"
        return is_truth and bool(answer)


class Saver:
    """Writes the checkpoint now and then; a disk that is full costs the file, not the run."""

    def __init__(
        self,
        path: Path | None,
        every: float,
        identity: dict[str, Any],
        layout: Layout | None = None,
    ) -> None:
        self._path, self._every, self._identity, self._layout = path, every, identity, layout
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Tell whether it is time to write the file."""
        return self._path is not None and time.monotonic() - self._last >= self._every

    def save(self, state: State, parts: list[Trace], windows: Any) -> None:
        """Write the file; of several processes the first one does, with what all of them have."""
        if self._path is None:
            return
        self._last = time.monotonic()
        state = local(self._layout, state)
        if not is_first(self._layout):
            return
        try:
            files.save(self._path, (state, join(parts), windows), self._identity)
        except OSError as error:
            warnings.warn(
                f"checkpoint {str(self._path)!r} could not be written ({error}); the fit goes on, "
                "and the last checkpoint that was written is intact",
                RuntimeWarning,
                stacklevel=5,
            )
