"""A grid of cells, computed into a run folder: in this process, in several, or on a cluster."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scoreascent._extras import require
from scoreascent._progress import Lines
from scoreascent._structs import check_count
from scoreascent.experiments.store import Frames, RunFolder

Backend = Literal["local", "dask", "ray"]
CLUSTER_MODULES = {"dask": "distributed", "ray": "ray.util.joblib"}
# how often in a row a pool of processes may break before a cell is done
MOST_BROKEN_POOLS = 3
SECONDS_BETWEEN_UPDATES = 1.0  # of the progress bar


@dataclass(frozen=True)
class Cell:
    """A piece of an experiment that is computed and written as a whole.

    `piece` says which one to the experiment's own function; `cost` is its share of the work.
    """

    name: str
    piece: tuple[Any, ...]
    cost: float = 1.0


# Computes a cell; gives None when the deadline (of `time.time`) came first. It may keep what it has
# in the folder, and go on from there when it is called again.
Compute = Callable[[Cell, Any, RunFolder, float], Frames | None]


@dataclass(frozen=True)
class Execution:
    """Where a grid is run, in how many processes and for how long; its numbers do not change."""

    jobs: int = 1
    backend: Backend = "local"
    address: str | None = None
    minutes: float | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs, 1)
        if self.backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, got {self.backend!r}")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes must be positive, got {self.minutes!r}")
        if self.backend == "local" and self.address is not None:
            raise ValueError(f"address {self.address!r} needs backend 'dask' or 'ray'")
        if self.jobs > 1 or self.backend != "local":
            require("joblib", "experiments", "this")
        if self.backend != "local":
            require(CLUSTER_MODULES[self.backend], self.backend, "this")

    def leave_room_on_the_device(self) -> None:
        """Keep jax from taking all of a GPU's memory where several processes share it."""
        if self.jobs > 1 or self.backend != "local":
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def run(
    compute: Compute, store: RunFolder, cells: list[Cell], settings: Any, execution: Execution
) -> Counter[str]:
    """Compute the cells that are not there yet; count which ended done, failed or unfinished.

    A cell that fails is recorded with its error, and the rest goes on. Whatever happens to this
    process or to a worker, finished cells stay, and the same command does the rest.
    """
    require("pyarrow", "experiments", "this")  # before the work, not after it
    minutes = execution.minutes
    deadline = math.inf if minutes is None else time.time() + 60 * minutes
    jobs = [
        (compute, store, cell, settings, deadline)
        for cell in sorted(cells, key=lambda c: -c.cost)
        if not store.has(cell.name)
    ]
    with _progress_bar(store, [job[2] for job in jobs], execution.progress):
        if execution.backend == "local" and execution.jobs == 1:
            return Counter(attempt(*job) for job in jobs)
        return _in_parallel(jobs, execution)


def attempt(compute: Compute, store: RunFolder, cell: Cell, settings: Any, deadline: float) -> str:
    """Compute and write one cell, and say how it ended."""
    if store.has(cell.name):  # another worker, or an earlier round, has done it
        return "done"
    if time.time() >= deadline:
        return "unfinished"
    try:
        frames = compute(cell, settings, store, deadline)
        if frames is None:
            return "unfinished"
        store.write(cell.name, frames)
    except Exception as error:
        store.fail(cell.name, error)
        return "failed"
    return "done"


# -- processes and clusters ------------------------------------------------------------------------


def _in_parallel(jobs: list[Any], execution: Execution) -> Counter[str]:
    joblib: Any = require("joblib", "experiments", "this")
    from joblib.externals.loky.process_executor import BrokenProcessPool

    execution.leave_room_on_the_device()
    broken, left = 0, jobs
    with _joblib_options(execution) as options:
        while True:
            try:
                parallel = joblib.Parallel(batch_size=1, pre_dispatch="all", **options)
                return Counter(parallel(joblib.delayed(attempt)(*job) for job in jobs))
            except BrokenProcessPool:  # a worker was killed; the cells it had are tried again
                still = [job for job in jobs if not job[1].has(job[2].name)]
                broken = broken + 1 if len(still) == len(left) else 1
                left = still
                if broken == MOST_BROKEN_POOLS:
                    raise RuntimeError(
                        f"worker processes were killed {broken} times before any cell was done "
                        f"({len(left)} are left): is there enough memory for {execution.jobs} of "
                        "them? The same command with fewer --jobs goes on from here"
                    ) from None


@contextmanager
def _joblib_options(execution: Execution) -> Iterator[dict[str, Any]]:
    """What joblib needs to know; on a cluster the run folder must be seen by every worker."""
    if execution.backend == "local":
        yield {"n_jobs": execution.jobs, "backend": "loky"}
        return
    import joblib

    if execution.backend == "dask":
        import distributed

        with distributed.Client(execution.address), joblib.parallel_config(backend="dask"):
            yield {"n_jobs": -1}
    else:
        import ray
        from ray.util.joblib import register_ray

        register_ray()
        ray.init(address=execution.address, ignore_reinit_error=True)
        with joblib.parallel_config(backend="ray"):
            yield {"n_jobs": -1}


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def _progress_bar(store: RunFolder, cells: list[Cell], visible: bool) -> Iterator[None]:
    """Show a bar that looks into the folder once a second, whoever fills it."""
    if not visible or not cells:
        yield
        return
    bar = _Bar(store, cells)
    over = threading.Event()

    def follow() -> None:
        while not over.wait(SECONDS_BETWEEN_UPDATES):
            bar.update()

    with bar.shown:
        bar.update()
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            over.set()
            follower.join()
            bar.update(last=True)


class _Bar:
    """How much of the cells' work is done, by what the folder holds of them."""

    def __init__(self, store: RunFolder, cells: list[Cell]) -> None:
        self._lines = Lines(show=True)
        self.shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[cells]} cells"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            disable=self._lines.wanted,
        )
        self._store, self._cells = store, cells
        self._total = sum(cell.cost for cell in cells)
        self._before: float | None = None  # what an earlier command did takes no time
        self._task = self.shown.add_task(store.manifest["experiment"], total=self._total, cells="")

    def update(self, last: bool = False) -> None:
        """Look into the folder once."""
        shares = [self._store.share(cell.name) for cell in self._cells]
        done = sum(share * cell.cost for share, cell in zip(shares, self._cells))
        self._before = done if self._before is None else self._before
        finished = f"{sum(share == 1.0 for share in shares)}/{len(shares)}"
        self.shown.update(
            self._task,
            completed=done - self._before,
            total=max(self._total - self._before, 1e-9),
            cells=finished,
        )
        self._lines.say(f"{self._store.manifest['experiment']}: {finished} cells", force=last)
