"""Many fits in one call, and the table that they make."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent._extras import require
from scoreascent._progress import Aim, Bar, catch_interrupt
from scoreascent._random import as_key, fold_in
from scoreascent.diagnostics.rules import GOOD, promise
from scoreascent.fitting import automatic
from scoreascent.fitting.arguments import check
from scoreascent.fitting.batch import (
    METHOD,
    STEPS,
    UPDATE,
    Batch,
    bucket,
    limit,
    run_batch,
    student,
    taken,
)
from scoreascent.fitting.centring import is_open
from scoreascent.fitting.provenance import describe, versions
from scoreascent.fitting.result import Result
from scoreascent.kernels import IMH, Particles
from scoreascent.loop import State, Trace
from scoreascent.run import TOLERANCE, Start
from scoreascent.searches import has_gradient
from scoreascent.target import MANY_DATA, Target, stack

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

COLUMNS = ("fit", "name", "mean", "sd", "q05", "q50", "q95", "mean_error", "sd_error", "verdict")
MAX_DIM = 50  # beyond, independent proposals would hardly be accepted
BLOCK_NUMBERS = 2**24  # that the largest arrays of a block have, about,
MIN_BLOCK, MAX_BLOCK = 8, 256  # and the fits in it
WIDER = 8  # times as much of both on an accelerator, which has the fits side by side
KERNEL = IMH()
FAILED = "failed"
MAX_SHOWN = 10  # fits that are not good, and failures, that `print` shows
INTERRUPTED = "interrupted before it was fitted"


class Stopped(Exception):
    """Ctrl-C was pressed."""


@dataclass(eq=False)
class Part:
    """Some of the fits: those of a batch, those that were fitted one by one, those that failed."""

    numbers: range
    targets: Sequence[Target]
    key: PRNGKeyArray
    tolerance: float
    batch: Batch | None = None
    others: dict[int, Result] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def diagnosis(self, i: int) -> Any:
        """Return the diagnosis of a fit, counted within the part; None if it failed."""
        if i in self.others:
            return self.others[i].diagnosis
        return None if self.batch is None or i in self.failures else self.batch.diagnosis[i]

    def result(self, i: int) -> Result:
        """Return a fit, counted within the part, as a result of its own."""
        if i in self.others:
            return self.others[i]
        assert self.batch is not None
        key, found = fold_in(self.key, self.numbers[i]), self.batch.diagnosis[i]
        assert found is not None
        made = made_of(self.batch, i, self.targets[i], key, self.tolerance)
        decisions = (*made.decisions, f"{made.provenance['stop']}; verdict: {found.verdict}")
        cost: Any = tuple(int(x) for x in self.batch.cost[i])
        return replace(made, diagnosis=found, evaluations=cost, decisions=decisions)


@dataclass(eq=False, repr=False)
class Fits(Sequence[Result]):
    """Many fits as a table: a row for every scalar of every fit, and `fits[i]`, a `Result`.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> density = lambda z, mean: -0.5 * jnp.sum((z - mean) ** 2)
    >>> targets = [sa.Target(density, dim=2, data=np.float32(i)) for i in range(3)]
    >>> fits = sa.fit(targets, progress=False)
    >>> fits.verdicts, [round(float(x)) for x in fits[2].q.mean]
    (('good', 'good', 'good'), [2, 2])
    """

    parts: Sequence[Any]
    tolerance: float = TOLERANCE

    def __len__(self) -> int:
        return sum(len(part.numbers) for part in self.parts)

    def __getitem__(self, i: Any) -> Any:
        """Return a fit as a `Result`: ArviZ's container, predictions and all else are asked of it.

        One that failed raises a ValueError with its reason.
        """
        if not isinstance(i, int | np.integer):
            raise TypeError(f"fits are taken one by one, by a number, got {i!r}")
        part, at = self._find(int(i))
        if at in part.failures:
            raise ValueError(f"fit {part.numbers[at]} failed: {part.failures[at]}")
        return part.result(at)

    def _find(self, i: int) -> tuple[Any, int]:
        """Return the part of a fit, and its place there."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"fit {i} of {n}")
        i %= n
        for part in self.parts:
            if i < len(part.numbers):
                return part, i
            i -= len(part.numbers)
        raise AssertionError

    def _diagnoses(self) -> Iterator[tuple[int, Any]]:
        """Give the number and the diagnosis of every fit, None of one that failed."""
        for part in self.parts:
            for at, i in enumerate(part.numbers):
                yield i, part.diagnosis(at)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What each fit says of itself; "failed" of those without a result."""
        return tuple(FAILED if d is None else d.verdict for _, d in self._diagnoses())

    @property
    def failures(self) -> dict[int, str]:
        """Why there is no result, of the fits that failed, by their numbers."""
        return {
            part.numbers[at]: why
            for part in self.parts
            for at, why in sorted(part.failures.items())
        }

    def summary(self) -> list[dict[str, Any]]:
        """Return a row for every scalar of every fit, as dictionaries.

        The columns are fit, name, mean, sd, the quantiles q05, q50 and q95, the standard errors
        mean_error and sd_error, and the verdict of the fit. One that failed has one row, without a
        name or numbers.
        """
        rows = []
        for i, d in self._diagnoses():
            verdict = FAILED if d is None else d.verdict
            for row in ({"name": ""},) if d is None else d.numbers:
                known = {"fit": i, **row, "verdict": verdict}
                rows.append({name: known.get(name, np.nan) for name in COLUMNS})
        return rows

    def columns(self) -> dict[str, Any]:
        """Return the same as a dictionary of arrays, one for each column."""
        rows = self.summary()
        return {name: np.array([row[name] for row in rows]) for name in COLUMNS}

    def to_pandas(self) -> Any:
        """Return the summary as a pandas DataFrame."""
        pandas = require("pandas", "experiments", "to_pandas")
        return pandas.DataFrame(self.columns(), columns=list(COLUMNS))

    def to_arrow(self) -> Any:
        """Return the summary as an Arrow table."""
        arrow = require("pyarrow", "experiments", "to_arrow")
        return arrow.table(self.columns())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{len(self)} fits>"

    def __str__(self) -> str:
        return _render(self)


def _render(fits: Fits) -> str:
    """Return what `print` shows: how many fits say what, and which are not good."""
    table = Table(title=f"{len(fits)} fits", title_justify="left")
    table.add_column("verdict")
    table.add_column("fits", justify="right")
    verdicts = fits.verdicts
    for verdict, n in Counter(verdicts).most_common():
        table.add_row(verdict, str(n))
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    failures = fits.failures
    bad = [(i, d) for i, d in fits._diagnoses() if d is None or d.verdict != GOOD]
    for i, d in bad[:MAX_SHOWN]:
        says = failures.get(i, "") if d is None else f"{d.verdict}, because {d.reason}"
        console.print(f"! fit {i}: {says}", markup=False)
    if len(bad) > MAX_SHOWN:
        console.print(f"! … and {len(bad) - MAX_SHOWN} more that are not good")
    if GOOD in verdicts:
        console.print(promise(fits.tolerance))
    return out.getvalue().rstrip()


# -- the door --------------------------------------------------------------------------------------


def fit_list(
    targets: Sequence[Target],
    key: PRNGKeyArray | int = 0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
    asked: Mapping[str, Any] | None = None,
) -> Fits:
    """Fit all targets, which differ in their data alone; see `fit`.

    `asked` is what else was given, all of it None if nothing was.
    """
    for name, value in (asked or {}).items():
        if value is not None:
            raise ValueError(
                f"several targets without a method take key, tolerance and progress, got {name}="
                f"{value!r}: give a method too, such as pmcsa(10), or fit them one by one"
            )
    targets, key = list(targets), as_key(key)
    check_alike(targets)
    tolerance = check_one(targets[0], key, tolerance)
    parts: list[Part] = []
    size = block_size(targets[0])
    with catch_interrupt() as interrupt, Bar(progress, len(targets), 0, "fits") as bar:
        shown = Shown(bar, len(targets), lambda: interrupt.asked)
        for begin in range(0, len(targets), size):
            numbers = range(begin, min(begin + size, len(targets)))
            chosen = targets[begin : numbers.stop]
            parts.append(fit_part(chosen, numbers, key, tolerance, True, shown))
    return Fits(parts, tolerance)


class Shown:
    """What a bar shows of all parts, and whether Ctrl-C was pressed."""

    def __init__(self, bar: Bar | None, total: int | None, asked: Callable[[], bool]) -> None:
        self._bar, self._total, self._asked = bar, total, asked
        self.stopped = False

    def look(self) -> None:
        """Raise `Stopped` if Ctrl-C was pressed, now or before."""
        self.stopped = self.stopped or self._asked()
        if self.stopped:
            raise Stopped

    def update(self, part: Part) -> None:
        """Show how far the part at hand is."""
        found = [part.diagnosis(i) for i in range(len(part.numbers))]
        done = sum(d is not None for d in found) + len(part.failures)
        says = f"{len(part.others)} of {len(found)} one by one" if part.others else " "
        self.say(part.numbers.start + done, part.numbers.stop, says)

    def say(self, done: int, known: int, says: str = " ") -> None:
        """Show how many fits are done, of `known` at least."""
        if self._bar is not None:
            self._bar.update(done, np.nan, np.nan, Aim(self._total or known, says))


def check_one(target: Target, key: Any, tolerance: Any) -> float:
    """Check what one fit would be given; return the tolerance."""
    return _given(target, key, tolerance).tolerance


def _given(target: Target, key: Any, tolerance: Any) -> Any:
    """Return the arguments of a fit that chooses for itself."""
    return check(
        target=target, method=None, q0=None, start=None, optimizer=None, steps=None, key=key,
        average=False, stop=None, tolerance=tolerance, family="auto", chains=None, batch=None,
        replications=None, progress=False, checkpoint=None, checkpoint_every=30.0, state=None,
        callback=None, callback_every=1000, throw=False,
    )  # fmt: skip


def check_alike(targets: Sequence[Any]) -> None:
    """Refuse targets that do not differ in their data alone."""
    if not targets:
        raise ValueError("target is an empty list: give one Target or more")
    for i, target in enumerate(targets):
        if why := unlike(target, targets[0]):
            raise ValueError(f"target[{i}] {why}")


def unlike(target: Any, first: Any) -> str:
    """Say why a target cannot be fitted beside the first one; empty if it can."""
    if isinstance(target, Exception):
        return f"could not be made: {type(target).__name__}: {target}"
    if not isinstance(target, Target):
        return f"must be a Target, got {target!r}"
    if not isinstance(first, Target):
        return ""
    structures: list[Any] = [jax.tree.structure(t) for t in (target, first)]
    if structures[0] != structures[1]:
        return (
            "differs from the first in more than the numbers in its data: all must share one "
            "log_density, one set of params and one structure of data; define the function, or the "
            "NumPyro model, once, outside of the loop that makes the targets (models of PyMC hold "
            "their data themselves: fit each by itself)"
        )
    shapes = [[np.shape(x) for x in jax.tree.leaves(t)] for t in (target, first)]
    if shapes[0] != shapes[1]:
        return (
            f"has data of shapes {shapes[0]} and the first of {shapes[1]}: all must have data of "
            "one shape; pad them, with a mask in the data, or fit those of each shape by themselves"
        )
    return ""


def block_size(target: Target) -> int:
    """Return how many fits are in one program: as many as its arrays have room for."""
    size = max(target.data_size, 2 * METHOD.chains * STEPS * (target.dim + 2))
    room = np.clip(_wider() * BLOCK_NUMBERS // size, MIN_BLOCK, _wider() * MAX_BLOCK)
    return int(2 ** np.floor(np.log2(room)))


def _wider() -> int:
    return 1 if jax.default_backend() == "cpu" else WIDER


def why_not(target: Target) -> str:
    """Say why fits of this kind are not for a batch; empty if they are."""
    if target.is_foreign:
        return "log_density is not jax's"
    if target.dim > MAX_DIM:
        return f"there are more than {MAX_DIM} dimensions"
    if target.data_size >= MANY_DATA:
        return "data are many"
    if not has_gradient(target):
        return "log_density has no gradient"
    return "how sites are stated is chosen for each" if is_open(target) else ""


def fit_part(
    targets: Sequence[Target],
    numbers: range,
    key: PRNGKeyArray,
    tolerance: float,
    finish: bool,
    shown: Shown,
    failures: Mapping[int, str] | None = None,
) -> Part:
    """Fit some of the targets: as a batch, then one by one those that it does not bring to good.

    Of those in `failures` the reason is kept, whatever stands in their place.
    """
    began = time.perf_counter()
    part = Part(numbers, targets, key, tolerance, failures=dict(failures or {}))
    reason = why_not(targets[0])
    left = dict.fromkeys(range(len(targets)), reason)
    try:
        shown.look()
        if not reason:
            part.batch = _batch(part, shown)
            left = part.batch.left
        for i, why in sorted(left.items()):
            if i in part.failures:
                continue
            shown.update(part)
            shown.look()
            if finish:
                _by_itself(part, i, why)
            elif part.batch is not None and i in part.batch.judged:
                part.batch.diagnosis[i] = part.batch.judged[i]
            else:
                part.failures[i] = f"not finished: {why}"
    except Stopped:
        shown.stopped = True
        for i in range(len(targets)):
            if part.diagnosis(i) is None:
                part.failures.setdefault(i, INTERRUPTED)
    part.seconds = time.perf_counter() - began
    shown.update(part)
    return part


def _batch(part: Part, shown: Shown) -> Batch:
    """Fit all targets of a part side by side."""
    keys = [fold_in(part.key, i) for i in part.numbers]
    at = bucket(np.arange(len(keys)), _wider() * MAX_BLOCK)
    data = np.stack([np.asarray(jax.random.key_data(k)) for k in keys])[at]
    many = jax.random.wrap_key_data(data, impl=jax.random.key_impl(keys[0]))
    count = len(keys)

    def one(batch: Batch, i: int) -> Result:
        return made_of(batch, i, part.targets[i], keys[i], part.tolerance)

    target = stack([part.targets[i] for i in at])
    return run_batch(target, many, part.tolerance, one, count, shown.look)


def _by_itself(part: Part, i: int, why: str) -> None:
    """Fit one target by itself, or say why that cannot be done."""
    given = _given(part.targets[i], fold_in(part.key, part.numbers[i]), part.tolerance)
    try:
        result = automatic.fit(given)
    except Exception as error:  # whatever one fit raises, the others stand
        part.failures[i] = f"{type(error).__name__}: {error}"
        return
    if result.status == "interrupted":
        raise Stopped
    first = f"fitted by itself, not in a batch: {why}"
    part.others[i] = replace(result, decisions=(first, *result.decisions))


def made_of(batch: Batch, i: int, target: Target, key: PRNGKeyArray, tolerance: float) -> Result:
    """Return a fit of a batch as a result of its own."""
    q0, q, begun = (
        taken(student(loc[None], tril[None]), 0)
        for loc, tril in (
            (batch.loc[i], batch.tril[i]),
            (batch.mean[i], batch.final[i]),
            (batch.start[i], batch.start_tril[i]),
        )
    )
    z, log_p = batch.eta[i]
    n, steps = len(z), int(batch.steps[i])
    done: Any = np.int32(steps)
    loss, acceptance, invalid = np.asarray(batch.rows[i]).T
    nothing = np.zeros(steps, np.int32)
    trace = Trace(loss, acceptance, np.zeros_like(loss), invalid.astype(np.int32), nothing)
    weight: Any = np.full(n, 1 / n, z.dtype)
    eta = Particles(z, log_p, weight)
    heights = tuple(float(x) for x in batch.heights[i] if np.isfinite(x))
    start = Start(q0, z, heights, len(heights), True, (0, 0), before=begun)
    seen = batch.seen.get(i)
    accepted = float(np.mean(acceptance))
    stop = f"converged after {steps} steps"
    if seen is not None:
        stop += f": means and sds known to {seen.error:.2g} sds, R̂ {seen.rhat:.3g} over the chains"
    return Result(
        q=q,
        state=State(done, key, q0, eta, (), None),
        trace=trace,
        status="converged",
        target=target,
        method=METHOD,
        update=UPDATE,
        provenance={
            "steps": steps,
            **describe(target, METHOD, UPDATE, q0, None, None, key),
            **versions(),
            "stop": stop,
            "stop_rule": f"standard errors of at most {limit(tolerance):.2g} sds",
        },
        start=start,
        convergence=seen,
        states=batch.points[i],
        states_every=1,
        tolerance=tolerance,
        decisions=(
            f"start: {len(heights)} searches, side by side with those of other fits; they found "
            "one place",
            f"family: {q.describe()}, with the moments of draws by weights",
            f"kernel: {KERNEL!r}, for {accepted:.0%} of q's own proposals are accepted",
            f"chains: {n}",
            "update: none, for q is close",
        ),
    )
