"""`fit_many`: more fits than memory holds, block by block into a folder, here or on a cluster."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import numpy as np

from scoreascent._arrays import default_dtype
from scoreascent._cache import use_cache_if_asked
from scoreascent._extras import require
from scoreascent._progress import Aim, Bar, catch_interrupt
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.families import FullRank
from scoreascent.fitting.blocks import Folder, Stored
from scoreascent.fitting.checkpoint import CheckpointError
from scoreascent.fitting.many import (
    INTERRUPTED,
    Fits,
    Part,
    Shown,
    block_size,
    check_one,
    fit_part,
    unlike,
)
from scoreascent.fitting.provenance import digest, posterior
from scoreascent.run import TOLERANCE
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

Backend = Literal["local", "dask", "ray"]
MODULES = {"dask": "distributed", "ray": "ray"}
LOOKED = 16  # targets, the first that can be made says what the others must be like


def fit_many(
    targets: Sequence[Target] | Iterable[Target] | Callable[[int], Target],
    out: str | PathLike[str],
    *,
    count: int | None = None,
    backend: Backend = "local",
    address: str | None = None,
    jobs: int | None = None,
    key: PRNGKeyArray | int = 0,
    tolerance: float = TOLERANCE,
    finish: bool = True,
    block: int | None = None,
    progress: bool = True,
) -> Fits:
    """Fit many posteriors that differ only in their data, into a folder.

    It works in blocks, each of which is written once and whole. Called again with the same
    arguments, after Ctrl-C or a crash, it computes what is missing. What comes back is the table of
    `fit([…])`, read from the folder as it is asked for; fits that failed are in it with the reason.
    Fit i is the same, with the same key, as in a list of all.

    Args:
        targets: a sequence of targets, or a function of a number that makes one, with `count`; or
            any iterable, which then runs anew through those that are done already.
        out: the folder. All workers of a cluster must see it under this name.
        count: how many there are, if `targets` is a function.
        backend: "local", this process; or workers of "dask" or "ray" (extras of these names), to
            whom targets travel by pickle.
        address: of a scheduler of Dask, or a cluster of Ray. Without one, the client or cluster
            that this process is connected to, else one that is started here for as long as it
            takes.
        jobs: how many workers are started here; the number of processors if not said.
        key: an integer seed or a `jax.random.key`.
        tolerance: what the verdict *good* promises, as in `fit`.
        finish: give what a batch does not bring to *good* to `fit(target)`, one by one. If not, it
            stays as it is, with a verdict that is not *good*, or without a result.
        block: how many fits are in one file; as many as run as one program if not said.
        progress: show a progress bar on stderr.

    >>> import tempfile, numpy as np, jax.numpy as jnp, scoreascent as sa
    >>> density = lambda z, mean: -0.5 * jnp.sum((z - mean) ** 2)
    >>> make = lambda i: sa.Target(density, dim=2, data=np.float32(i))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fits = sa.fit_many(make, f"{folder}/fits", count=3, progress=False)
    ...     fits.verdicts, round(float(fits[2].q.mean[0]))
    (('good', 'good', 'good'), 2)
    """
    use_cache_if_asked()
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {get_args(Backend)}, got {backend!r}")
    if backend == "local" and (address is not None or jobs is not None):
        name, value = ("address", address) if address is not None else ("jobs", jobs)
        raise ValueError(f"{name} is for backend 'dask' or 'ray', got {name}={value!r}")
    if backend != "local":
        require(MODULES[backend], backend, f"backend {backend!r}")
    jobs = None if jobs is None else check_count("jobs", jobs, 1)
    source = source_of(targets, count)
    if backend != "local" and isinstance(source, Stream):
        raise ValueError(
            f"backend {backend!r} needs a sequence of targets, or a function and count"
        )
    reference = source.reference()
    seeds = as_key(key)
    tolerance = check_one(reference, seeds, tolerance)
    size = block_size(reference) if block is None else check_count("block", block, 1)
    folder = Folder(Path(out).absolute())
    folder.claim(_problem(reference, seeds, tolerance, finish, size))
    job = Job(folder, source, size, seeds, tolerance, finish, reference)
    if backend == "local":
        ranges = _here(job, progress)
    else:
        assert isinstance(source, Indexed)
        ranges = source.ranges(size)
        _on_cluster(
            job, [r for r in ranges if not job.is_done(r)], backend, address, jobs, progress
        )
    parts = [Stored(folder, numbers, source.target, job.made) for numbers in ranges]
    return Fits(parts, tolerance)


def _problem(
    target: Target, key: PRNGKeyArray, tolerance: float, finish: bool, size: int
) -> dict[str, Any]:
    """Return what tells these fits from others, as JSON."""
    q = FullRank.standard(target.dim)
    settings = {"tolerance": tolerance, "finish": bool(finish), "block": size}
    seeds = np.asarray(jax.random.key_data(key)).tolist()
    return {**posterior(target, q, "nothing"), "key": seeds, **settings}


# -- where targets come from -----------------------------------------------------------------------


@dataclass(frozen=True)
class Indexed:
    """Targets that can be asked for by number."""

    get: Callable[[int], Target]
    count: int

    def target(self, i: int) -> Target:
        """Return target i."""
        return self.get(i)

    def reference(self) -> Target:
        """Return one of the first that can be made."""
        error: Exception | None = None
        for i in range(min(self.count, LOOKED)):
            try:
                found = self.get(i)
            except Exception as raised:  # it fails alone
                error = error or raised
                continue
            if isinstance(found, Target):
                return found
            raise ValueError(f"targets must give Target objects, but number {i} is {found!r}")
        raise ValueError(f"targets: none of the first {LOOKED} can be made: {error!r}") from error

    def ranges(self, size: int) -> list[range]:
        """Return the numbers of every block."""
        return [range(i, min(i + size, self.count)) for i in range(0, self.count, size)]

    def blocks(self, size: int) -> Iterator[tuple[range, list[Any]]]:
        """Give numbers of every block; targets are made when they are needed."""
        for numbers in self.ranges(size):
            yield numbers, []

    def made(self, numbers: range) -> list[Any]:
        """Return the targets of a block; an exception in the place of one that cannot be made."""
        found: list[Any] = []
        for i in numbers:
            try:
                found.append(self.get(i))
            except Exception as error:
                found.append(error)
        return found


class Stream:
    """Targets that come one after the other."""

    count: int | None = None

    def __init__(self, targets: Iterable[Any]) -> None:
        self._rest = iter(targets)
        self._ahead: list[Any] = []

    def target(self, i: int) -> Target:
        """Refuse: they are gone."""
        raise ValueError(
            f"fit {i} needs its target: give fit_many a sequence of them, or a function and count"
        )

    def reference(self) -> Target:
        """Return the first."""
        self._ahead = [x for _, x in zip(range(1), self._rest)]
        if not self._ahead:
            raise ValueError("targets is empty: give one Target or more")
        if not isinstance(self._ahead[0], Target):
            raise ValueError(f"targets must give Target objects, got {self._ahead[0]!r}")
        return self._ahead[0]

    def blocks(self, size: int) -> Iterator[tuple[range, list[Any]]]:
        """Give numbers and targets of every block."""
        begin = 0
        while True:
            some = self._ahead + [x for _, x in zip(range(size - len(self._ahead)), self._rest)]
            self._ahead = []
            if not some:
                return
            yield range(begin, begin + len(some)), some
            begin += len(some)


def source_of(targets: Any, count: int | None) -> Indexed | Stream:
    """Return where targets come from, or raise a ValueError that says what is missing."""
    if isinstance(targets, Target):
        raise ValueError("targets is one Target: give a list of them, or use fit(target)")
    if isinstance(targets, Sequence):
        if count not in (None, len(targets)):
            raise ValueError(f"count is {count} but {len(targets)} targets were given")
        if not targets:
            raise ValueError("targets is empty: give one Target or more")
        return Indexed(targets.__getitem__, len(targets))
    if callable(targets):
        if count is None:
            raise ValueError("count: say how many targets the function makes")
        return Indexed(targets, check_count("count", count, 1))
    if not isinstance(targets, Iterable):
        raise ValueError(f"targets must be targets or a function that makes them, got {targets!r}")
    if count is not None:
        raise ValueError(f"count is for a function of a number, got count={count} and an iterable")
    return Stream(targets)


# -- blocks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What every block is computed with; it travels to workers by pickle."""

    folder: Folder
    source: Any
    size: int
    key: Any
    tolerance: float
    finish: bool
    reference: Target

    def made(self, numbers: range, targets: Any, batch: Any) -> Part:
        """Return a part that holds some of the targets of a block, and what its batch left."""
        return Part(numbers, targets, self.key, self.tolerance, batch)

    def is_done(self, numbers: range) -> bool:
        """Tell whether a block is there and whole, and of these data."""
        told = self.folder.read(numbers)
        if told is None:
            return False
        if isinstance(self.source, Indexed) and told["first"]:
            now = _first(self.source.made(numbers[:1]))
            if now != told["first"]:
                raise CheckpointError(
                    f"out: the folder {str(self.folder.path)!r} holds fit {numbers.start} of other "
                    "data; name another folder"
                )
        return True

    def compute(self, numbers: range, targets: list[Any], shown: Shown) -> Part:
        """Fit a block and write it, unless Ctrl-C came first."""
        given = targets or self.source.made(numbers)
        failures = {i: why for i, x in enumerate(given) if (why := unlike(x, self.reference))}
        whole = [self.reference if i in failures else x for i, x in enumerate(given)]
        part = fit_part(whole, numbers, self.key, self.tolerance, self.finish, shown, failures)
        if INTERRUPTED not in part.failures.values():
            self.folder.write(part, _first(given[:1]))
        return part


def _first(targets: list[Any]) -> str:
    """Return a checksum of the data of the first target; empty if there is none."""
    return digest(targets[0]) if isinstance(targets[0], Target) else ""


def _here(job: Job, progress: bool) -> list[range]:
    """Compute what is missing in this process; return the numbers of every block."""
    ranges = []
    count = job.source.count
    with catch_interrupt() as interrupt, Bar(progress, count or 1, 0, "fits") as bar:
        shown = Shown(bar, count, lambda: interrupt.asked)
        for numbers, targets in job.source.blocks(job.size):
            ranges.append(numbers)
            if not shown.stopped and not job.is_done(numbers):
                job.compute(numbers, targets, shown)
            if not shown.stopped:
                shown.say(numbers.stop, numbers.stop)
    return ranges


def compute_alone(job: Job, numbers: range, dtype: str) -> int:
    """Compute a block in a worker."""
    if str(default_dtype()) != dtype:
        jax.config.update("jax_enable_x64", dtype == "float64")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share a GPU
    job.compute(numbers, [], Shown(None, None, lambda: False))
    return len(numbers)


def _on_cluster(
    job: Job,
    todo: list[range],
    backend: Backend,
    address: str | None,
    jobs: int | None,
    progress: bool,
) -> None:
    """Compute blocks by workers, which write them; Ctrl-C ends it with what is there."""
    run = functools.partial(compute_alone, dtype=str(default_dtype()))
    # a list travels to each worker block by block; a function as it is
    work = [(_shipped(job, numbers), numbers) for numbers in todo]
    total = sum(len(numbers) for numbers in todo)
    mapped = _by_dask if backend == "dask" else _by_ray
    done, wrong = 0, []
    with Bar(progress, max(total, 1), 0, "fits") as bar:
        try:
            for found in mapped(run, work, address, jobs):
                if isinstance(found, BaseException):
                    wrong.append(found)
                else:
                    done += found
                bar.update(done, np.nan, np.nan, Aim(total, f"{len(wrong)} blocks failed"))
        except KeyboardInterrupt:
            return
    if wrong:
        raise RuntimeError(
            f"{len(wrong)} of {len(todo)} blocks could not be computed; the same call tries them "
            f"again. The first says: {wrong[0]!r}"
        ) from wrong[0]


def _shipped(job: Job, numbers: range) -> Job:
    """Return the job of one block, with no other targets of a list."""
    get = job.source.get
    if getattr(get, "__name__", "") != "__getitem__":
        return job
    chosen = dict(zip(numbers, job.source.made(numbers)))
    source = Indexed(chosen.__getitem__, job.source.count)
    return Job(job.folder, source, *(getattr(job, n) for n in list(job.__dict__)[2:]))


def _by_dask(run: Any, work: list[Any], address: str | None, jobs: int | None) -> Iterator[Any]:
    """Give what each block comes to, as it is done by a worker of Dask."""
    distributed: Any = require("distributed", "dask", "backend 'dask'")
    own = None
    try:
        client = distributed.Client(address) if address else distributed.get_client()
    except ValueError:  # there is none yet
        n = jobs or os.cpu_count()
        own = distributed.LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None)
        client = distributed.Client(own)
    try:
        futures = [client.submit(run, *args, pure=False) for args in work]
        for future in distributed.as_completed(futures):
            error = future.exception()
            yield future.result() if error is None else error
    finally:
        client.cancel(futures)
        if own is not None or address:
            client.close()
        if own is not None:
            own.close()


def _by_ray(run: Any, work: list[Any], address: str | None, jobs: int | None) -> Iterator[Any]:
    """Give what each block comes to, as it is done by a worker of Ray."""
    ray: Any = require("ray", "ray", "backend 'ray'")
    own = not ray.is_initialized()
    if own:
        ray.init(address=address, num_cpus=None if address else jobs, log_to_driver=False)
    remote = ray.remote(run.func)
    try:
        left = [remote.remote(*args, **run.keywords) for args in work]
        while left:
            ready, left = ray.wait(left)
            try:
                yield ray.get(ready[0])
            except Exception as error:
                yield error
    finally:
        if own:
            ray.shutdown()
