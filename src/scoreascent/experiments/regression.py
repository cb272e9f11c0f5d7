"""What the two tables share: a fit on all splits of a data set at once, scored along the way."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pandas as pd

import scoreascent as sa
from scoreascent import datasets
from scoreascent._structs import x64
from scoreascent.experiments.methods import METHODS
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, Layout, RunFolder

LAYOUT = Layout(
    clock=("dataset", "method", "n", "first_split", "splits", "step", "seconds"),
    only_clock=("first_split", "splits", "seconds"),
    extra_frames=("weights",),
)
PARTS = ("only_datasets", "only_methods", "splits")
GRADIENT_COST = 3  # in densities, roughly
SECONDS_BETWEEN_SAVES = 30.0  # of an unfinished cell


@dataclass(frozen=True)
class Settings:
    """A table: data sets × methods (with their N) × splits, and how each run is done.

    `blocks` says how many splits of a data set run under one `vmap`, where it is not all of them.
    """

    datasets: tuple[str, ...]
    methods: tuple[tuple[str, int], ...]
    steps: int
    every: int
    splits: int = 20
    blocks: tuple[tuple[str, int], ...] = ()
    step_size: float = 0.01
    seed: int = 0


class Problem(NamedTuple):
    """A data set's splits as posteriors, where q starts, and how a fitted q is scored."""

    targets: list[sa.Target]
    q0: Callable[[Any], sa.MeanField]
    score: Callable[[sa.MeanField, datasets.Split], dict[str, Any]]  # of one split


@dataclass(frozen=True)
class Table:
    """An experiment of this kind: how a data set becomes a problem, and in which precision."""

    name: str
    settings: Settings
    quick: Settings
    problem: Callable[[list[datasets.Split], str], Problem]
    dtype: type[np.floating[Any]]
    cost: Callable[[int, int], float]  # what an iteration takes, from rows and features
    weights: slice | None  # which of the first split's posterior means are kept

    def cells(
        self,
        settings: Settings,
        only_datasets: tuple[str, ...] = (),
        only_methods: tuple[str, ...] = (),
        splits: int | None = None,
    ) -> list[Cell]:
        """The grid, or the part of it that is asked for: of the splits, whole blocks.

        Data sets that are not there, or not what they should be, are told at once.
        """
        _check_known("data set", only_datasets, settings.datasets)
        _check_known("method", only_methods, tuple(dict(settings.methods)))
        if splits is not None and not 1 <= splits <= settings.splits:
            raise ValueError(f"splits must be between 1 and {settings.splits}, got {splits}")
        found = []
        for dataset in only_datasets or settings.datasets:
            size = dict(settings.blocks).get(dataset, settings.splits)
            rows, features = datasets.check(dataset)
            for method, n in settings.methods:
                if only_methods and method not in only_methods:
                    continue
                work = settings.steps * n * self.cost(rows, features)
                work *= GRADIENT_COST if method == "elbo" else 1
                for first in range(0, splits or settings.splits, size):
                    last = min(first + size, settings.splits)
                    name = f"{dataset}-{method}{n}-{first:02d}-{last - 1:02d}"
                    piece = (dataset, method, n, first, last)
                    found.append(Cell(name, piece, work * (last - first)))
        return found

    def compute(
        self, cell: Cell, settings: Settings, store: RunFolder, deadline: float
    ) -> Frames | None:
        """Compute one cell, from where an earlier command left it."""
        precision = x64() if self.dtype is np.float64 else nullcontext()
        with precision, warnings.catch_warnings():
            # a step that had to be skipped is in the table; it need not be said for every cell
            warnings.simplefilter("ignore", RuntimeWarning)
            frames = _compute(self, cell, settings, store, deadline)
        jax.clear_caches()  # the next cell has other shapes
        return frames


def _compute(
    table: Table, cell: Cell, settings: Settings, store: RunFolder, deadline: float
) -> Frames | None:
    dataset, method, n, first, last = cell.piece
    data = datasets.load(dataset)
    splits = [jax.tree.map(table.dtype, data.split(seed)) for seed in range(first, last)]
    problem = table.problem(splits, method)
    fit = functools.partial(
        sa.fit,
        problem.targets,
        METHODS[method].make(n),
        q0=problem.q0,
        optimizer=optax.adam(settings.step_size),
        key=jax.random.fold_in(jax.random.key(settings.seed), first),
        progress=False,
    )
    begun = fit(steps=0)
    log = _Log(problem.score, splits, begun, cell, settings, store, deadline)
    result = fit(
        steps=settings.steps, state=log.state, callback=log.record, callback_every=settings.every
    )
    if "interrupted" in result.status:
        log.save()
        raise KeyboardInterrupt
    if "stopped" in result.status:
        return None
    if (done := int(result.state.step[0])) < settings.steps:
        raise RuntimeError(f"all {len(result)} runs diverged, the last one by step {done}")
    frames = {"table": log.frame(dataset, method, n, first)}
    if table.weights and first == 0:
        q = result[0].q
        mean, sd = np.asarray(q.mean)[table.weights], np.asarray(q.sd)[table.weights]
        frames["weights"] = pd.DataFrame(
            {"dataset": dataset, "method": method, "n": n, "index": np.arange(len(mean)),
             "mean": mean, "sd": sd}
        )  # fmt: skip
    return frames


class _Log:
    """The scores along a run; they and the run's state are kept in the folder now and then."""

    def __init__(
        self,
        score: Callable[[sa.MeanField, datasets.Split], dict[str, Any]],
        splits: list[datasets.Split],
        begun: sa.Result,
        cell: Cell,
        settings: Settings,
        store: RunFolder,
        deadline: float,
    ) -> None:
        self._cell, self._store, self._deadline = cell.name, store, deadline
        self._steps = settings.steps
        origin = {k: begun.provenance[k] for k in ("data", "q0", "float", "method")}
        self._run = {"cell": cell.name, **asdict(settings), **origin}
        self._splits: Any = jax.tree.map(lambda *xs: jax.device_put(np.stack(xs)), *splits)
        self._score = jax.jit(jax.vmap(score))
        # compiles, so that the clock times the run alone
        first = self._score(begun.q, self._splits)
        self._names = [*sorted(first), "acceptance", "skipped"]
        empty = np.zeros((0, 2 + len(self._names) * len(begun)))  # step, seconds, all scores
        self.state, self._rows = store.load_part(cell.name, (begun.state, empty), self._run)
        self._clock = self._saved = time.perf_counter()

    def record(self, state: sa.State, trace: sa.Trace) -> bool:
        """Score q, now and then save, and say whether time is up."""
        jax.block_until_ready(state.q)
        step, seconds = int(state.step[0]), time.perf_counter() - self._clock
        if trace.loss.shape[-1]:
            scores = self._score(state.q, self._splits)
            scores |= {"acceptance": trace.acceptance.mean(-1), "skipped": trace.skipped.sum(-1)}
            values = np.concatenate([np.asarray(scores[name], float) for name in self._names])
            before = self._rows[-1, 1] if len(self._rows) else 0.0
            self._rows = np.vstack([self._rows, [step, before + seconds, *values]])
        late = time.time() >= self._deadline
        self.state = state
        if late or time.perf_counter() - self._saved >= SECONDS_BETWEEN_SAVES:
            self.save()
        self._clock = time.perf_counter()
        return late

    def save(self) -> None:
        """Keep the rows, and the state at the last of them, so that the next row is a whole one."""
        share = int(self.state.step[0]) / self._steps
        self._store.save_part(self._cell, (self.state, self._rows), share, self._run)
        self._saved = time.perf_counter()

    def frame(self, dataset: str, method: str, n: int, first: int) -> pd.DataFrame:
        """A row for every split and every time at which q was scored."""
        times = len(self._rows)
        scores = self._rows[:, 2:].reshape(times, len(self._names), -1)
        splits = scores.shape[-1]
        columns: dict[str, Any] = {
            "dataset": dataset,
            "method": method,
            "n": n,
            "split": np.repeat(first + np.arange(splits), times),
            "step": np.tile(self._rows[:, 0].astype(int), splits),
        }
        for i, name in enumerate(self._names):
            columns[name] = scores[:, i].T.ravel()
        columns |= {"first_split": first, "splits": splits}
        return pd.DataFrame({**columns, "seconds": np.tile(self._rows[:, 1], splits)})


def _check_known(kind: str, asked: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in asked:
        if name not in known:
            raise ValueError(f"there is no {kind} {name!r} in this table; choose from {known}")
