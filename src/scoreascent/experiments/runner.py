"""A grid of cells, computed into a run folder: in this process, in several, or on a cluster."""

from __future__ import annotations

import importlib
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

from scoreascent._structs import check_count
from scoreascent.experiments.store import Frames, RunFolder

Backend = Literal["local", "dask", "ray"]
NEEDED = {"local": (), "dask": ("joblib", "distributed"), "ray": ("joblib", "ray.util.joblib")}
BROKEN = 3  # so often in a row a pool of processes may break before a cell is done


@dataclass(frozen=True)
class Cell:
    """A piece of an experiment that is computed and written as a whole.

    `what` says which piece to the experiment's own function; `cost` is its share of the work.
    """

    name: str
    what: tuple[Any, ...]
    cost: float = 1.0


# Computes a cell; gives None when the deadline (of `time.time`) came first. It may keep what it has
# in the folder, and go on from there when it is called again.
Compute = Callable[[Cell, Any, RunFolder, float], Frames | None]


@dataclass(frozen=True)
class How:
    """How a grid is run; nothing here changes its numbers."""

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
        for module in NEEDED[self.backend]:
            _needed(module, "experiments" if module == "joblib" else self.backend)


def run(
    compute: Compute, store: RunFolder, cells: list[Cell], settings: Any, how: How
) -> Counter[str]:
    """Compute the cells that are not there yet; how many ended "done", "failed", "unfinished".

    A cell that fails is recorded with its error, and the rest goes on. Whatever happens to this
    process or to a worker, finished cells stay, and the same command does the rest.
    """
    for module in ("pyarrow", "joblib")[: 1 + (how.jobs > 1)]:  # before the work, not after it
        _needed(module, "experiments")
    deadline = math.inf if how.minutes is None else time.time() + 60 * how.minutes
    jobs = [
        (compute, store, cell, settings, deadline)
        for cell in sorted(cells, key=lambda c: -c.cost)
        if not store.has(cell.name)
    ]
    with _shown(store, [job[2] for job in jobs], how.progress):
        if how.backend == "local" and how.jobs == 1:
            return Counter(attempt(*job) for job in jobs)
        return _in_parallel(jobs, how)


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


def _in_parallel(jobs: list[Any], how: How) -> Counter[str]:
    joblib = _needed("joblib", "experiments")
    from joblib.externals.loky.process_executor import BrokenProcessPool

    # several processes share a GPU only if none takes all of its memory at the start
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    broken, left = 0, jobs
    with _backend(how) as options:
        while True:
            try:
                parallel = joblib.Parallel(batch_size=1, pre_dispatch="all", **options)
                return Counter(parallel(joblib.delayed(attempt)(*job) for job in jobs))
            except BrokenProcessPool:  # a worker was killed; the cells it had are tried again
                still = [job for job in jobs if not job[1].has(job[2].name)]
                broken = broken + 1 if len(still) == len(left) else 1
                left = still
                if broken == BROKEN:
                    raise RuntimeError(
                        f"worker processes were killed {BROKEN} times before any cell was done "
                        f"({len(left)} are left): is there enough memory for {how.jobs} of them? "
                        "The same command with fewer --jobs goes on from here"
                    ) from None


@contextmanager
def _backend(how: How) -> Iterator[dict[str, Any]]:
    """What joblib needs to know; on a cluster the run folder must be seen by every worker."""
    if how.backend == "local":
        yield {"n_jobs": how.jobs, "backend": "loky"}
        return
    import joblib

    if how.backend == "dask":
        import distributed

        with distributed.Client(how.address), joblib.parallel_config(backend="dask"):
            yield {"n_jobs": -1}
    else:
        import ray
        from ray.util.joblib import register_ray

        register_ray()
        ray.init(address=how.address, ignore_reinit_error=True)
        with joblib.parallel_config(backend="ray"):
            yield {"n_jobs": -1}


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this needs {error.name}: pip install 'scoreascent[{extra}]'", name=error.name
        ) from None


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def _shown(store: RunFolder, cells: list[Cell], show: bool) -> Iterator[None]:
    """A bar that looks into the folder once a second, whoever fills it."""
    total, begun = sum(c.cost for c in cells), None
    if not show or not cells:
        yield
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[cells]} cells"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
    )
    task = bar.add_task(store.manifest["experiment"], total=total, cells="")
    over = threading.Event()

    def look() -> None:
        nonlocal begun
        shares = [store.share(c.name) for c in cells]
        done = sum(share * c.cost for share, c in zip(shares, cells))
        begun = done if begun is None else begun  # what an earlier command did takes no time
        says = f"{sum(s == 1.0 for s in shares)}/{len(cells)}"
        bar.update(task, completed=done - begun, total=max(total - begun, 1e-9), cells=says)

    def watch() -> None:
        while not over.wait(1.0):
            look()

    with bar:
        look()
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            look()
