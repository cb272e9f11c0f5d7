"""`fit`, the one way in: it checks its arguments and hands them to one of two doors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import jax
import optax
from jax.sharding import Mesh

from scoreascent._cache import use_cache_if_asked
from scoreascent._memory import memory_kept
from scoreascent._progress import listening
from scoreascent.families import Family
from scoreascent.fitting import automatic, by_method
from scoreascent.fitting.arguments import FamilyName, check
from scoreascent.fitting.many import Fits, fit_list
from scoreascent.fitting.processes import company
from scoreascent.fitting.result import Result
from scoreascent.fitting.spreading import spread
from scoreascent.fitting.stopping import Converged
from scoreascent.loop import State, Trace
from scoreascent.methods import Method
from scoreascent.run import TOLERANCE, Start
from scoreascent.target import MANY_DATA, Target
from scoreascent.update import Update

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


class Options(TypedDict, total=False):
    """What `fit` takes beside a target and a method."""

    q0: Family | Start | Callable[[PRNGKeyArray], Family] | None
    start: Start | None
    optimizer: optax.GradientTransformation | Update | None
    steps: int | None
    key: PRNGKeyArray | int
    average: bool | float
    stop: Converged | None
    tolerance: float
    family: FamilyName
    chains: int | None
    batch: int | None
    replications: int | None
    progress: bool
    checkpoint: str | PathLike[str] | None
    checkpoint_every: float
    state: State | None
    callback: Callable[[State, Trace], object] | None
    callback_every: int
    throw: bool
    mesh: Mesh | None
    devices: Literal["all"] | None


@overload
def fit(
    target: Target, method: Method | Literal["auto"] = "auto", **options: Unpack[Options]
) -> Result: ...


@overload
def fit(target: Sequence[Target], method: Method, **options: Unpack[Options]) -> Result: ...


@overload
def fit(
    target: Sequence[Target], method: Literal["auto"] = "auto", **options: Unpack[Options]
) -> Fits: ...


def fit(
    target: Target | Sequence[Target],
    method: Method | Literal["auto"] = "auto",
    *,
    q0: Family | Start | Callable[[PRNGKeyArray], Family] | None = None,
    start: Start | None = None,
    optimizer: optax.GradientTransformation | Update | None = None,
    steps: int | None = None,
    key: PRNGKeyArray | int = 0,
    average: bool | float = False,
    stop: Converged | None = None,
    tolerance: float = TOLERANCE,
    family: FamilyName = "auto",
    chains: int | None = None,
    batch: int | None = None,
    replications: int | None = None,
    progress: bool = True,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    state: State | None = None,
    callback: Callable[[State, Trace], object] | None = None,
    callback_every: int = 1000,
    throw: bool = True,
    mesh: Mesh | None = None,
    devices: Literal["all"] | None = None,
) -> Any:
    """Fit q to a posterior.

    `fit(target)` chooses start, family, kernel and the rest for itself, stops when it has
    converged, and ends with a verdict; `result.decisions` says what it chose, and any argument
    overrules it. With a method, nothing is chosen: the other defaults are those below.

    Args:
        target: the posterior, or a list of posteriors that differ only in their data: with a
            method they are fitted side by side as replications, without one each has its own stop,
            decisions and verdict, and a table of them comes back, `Fits`. Of the other arguments
            key, tolerance and progress are then meant.
        method: such as `pmcsa(10)`, `jsa`, `msc`, `msc_rb` or `elbo`; or "auto".
        q0: the family and where it starts, or a function of a key that gives it (each replication
            then gets its own), or a `Start` such as `laplace(target)` gives, from whose points the
            chains begin. The default is a mean-field Gaussian N(0, I).
        start: where to begin, such as `laplace(target)` or `tempered(target)`; the same as q0.
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
        tolerance: how far means may be off, in posterior sds, and sds, as a share, in a fit that
            the verdict calls good; an automatic fit goes on until they are known that well.
        family: "flow" for a normalising flow from the start; "auto" turns to one where the
            posterior is not of a Gaussian's shape and chains do not tell it otherwise (extra
            `flows`).
        chains: how many chains an automatic fit runs; without it, as many as pay (see the guide).
        batch: so many of an automatic fit's chains are moved at a time, where memory is short; the
            same chains come out, but for rounding.
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
        mesh: spread the fit over devices, of one process or of several: a `jax.sharding.Mesh` with
            axes `chains`, over which chains are spread, and `rows`, over which the rows of the
            target's data are; either may be left out (see docs/scaling.md).
        devices: "all" for a mesh of all devices: of rows where data are many, else of chains.

    Ctrl-C ends the run after the current chunk and gives back what is there, with the status
    "interrupted"; pressed twice it raises as usual.

    >>> import jax.numpy as jnp
    >>> from scoreascent import Target, pmcsa
    >>> target = Target(lambda z: -0.5 * jnp.sum((z - 1) ** 2), dim=2)
    >>> result = fit(target, pmcsa(10), steps=2000, average=True, progress=False)
    >>> bool(jnp.all(jnp.abs(result.q.mean - 1) < 0.2))
    True
    """
    use_cache_if_asked()
    if isinstance(target, list | tuple) and method in (None, "auto") and replications is None:
        asked = {
            "q0": q0, "start": start, "optimizer": optimizer, "steps": steps, "stop": stop,
            "average": average or None, "family": None if family == "auto" else family,
            "chains": chains, "batch": batch, "checkpoint": checkpoint, "state": state,
            "callback": callback, "mesh": mesh, "devices": devices,
        }  # fmt: skip
        return fit_list(target, key, tolerance, progress, asked)
    given = check(
        target=target,
        method=method,
        q0=q0,
        start=start,
        optimizer=optimizer,
        steps=steps,
        key=key,
        average=average,
        stop=stop,
        tolerance=tolerance,
        family=family,
        chains=chains,
        batch=batch,
        replications=replications,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        state=state,
        callback=callback,
        callback_every=callback_every,
        throw=throw,
        mesh=mesh,
        devices=devices,
    )
    many = given.target.data_size >= MANY_DATA and jax.default_backend() == "cpu"
    given.target.take_raised()
    try:
        heard = listening() if given.target.is_foreign else contextlib.nullcontext()
        with company(given.layout), memory_kept(many), heard:
            given = spread(given)
            return automatic.fit(given) if given.method is None else by_method.fit(given)
    except Exception:  # jax's, of several kinds, if a density of the host's has raised
        raised = given.target.take_raised()
        if raised is None:
            raise
        raise raised from raised.__cause__
