"""What `fit` was given, checked once, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax

from scoreascent._layout import Layout
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.families import Family
from scoreascent.families.flow import require_flows
from scoreascent.fitting.devices import as_layout
from scoreascent.fitting.ladder import Ladder
from scoreascent.fitting.stopping import Converged
from scoreascent.loop import Replicate, State, Trace, first_q
from scoreascent.methods import Method
from scoreascent.run import Start
from scoreascent.searches import has_gradient
from scoreascent.target import Target, stack
from scoreascent.update import Update, as_update

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

FamilyName = Literal["auto", "flow"]
MIN_CHAINS = 4  # whose averages are compared
MIN_TOLERANCE = 0.005  # posterior sds; a finer one would take some hundred thousand draws


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of `fit`, checked. What was not given, and is chosen later, is None.

    `q` is the first q, one for each of `count` replications if there are any; q0 is evaluated once.
    """

    target: Target
    replicate: Replicate
    count: int | None
    method: Method | None
    q: Family | None
    start: Start | None
    update: Update | None
    steps: int | None
    key: PRNGKeyArray
    average: bool | float
    stop: Converged | Ladder | None
    tolerance: float
    family: FamilyName
    chains: int | None
    batch: int | None
    progress: bool
    checkpoint: Path | None
    checkpoint_every: float
    state: State | None
    callback: Callable[[State, Trace], object] | None
    callback_every: int
    throw: bool
    layout: Layout | None = None  # of the devices that the fit is spread over
    label: str = "fit"  # what is shown of it while it runs


def check(
    *,
    target: Any,
    method: Any,
    q0: Any,
    start: Any,
    optimizer: Any,
    steps: Any,
    key: Any,
    average: Any,
    stop: Any,
    tolerance: Any,
    family: Any,
    chains: Any,
    batch: Any,
    replications: Any,
    progress: bool,
    checkpoint: Any,
    checkpoint_every: float,
    state: Any,
    callback: Any,
    callback_every: Any,
    throw: bool,
    mesh: Any = None,
    devices: Any = None,
) -> Arguments:
    """Return the arguments of `fit` as they are used, or raise a ValueError that names one."""
    method = _check_method(method)
    update = None if optimizer is None else as_update(optimizer)
    steps = None if steps is None else check_count("steps", steps, 0)
    target, replicate, count = _as_replicated(target, replications)
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((target, key, state))):
        raise ValueError(
            "fit runs on the host, so it cannot be called under jit, vmap or grad: call it "
            "outside; for many fits at once give a list of targets, or replications="
        )
    if method is None and (count is not None or state is not None):
        given = "state" if count is None else "several targets or replications"
        raise ValueError(f"with {given} give a method too, such as pmcsa(10)")
    if method is not None and not chains is batch is None:
        raise ValueError(
            "chains and batch are for an automatic fit, but a method is given, "
            f"{method!r}: make it with as many as it should have"
        )
    if method is None and steps == 0:
        raise ValueError("steps is 0, but fit(target) must run to choose and judge; give 1 or more")
    run_key = as_key(key)
    q0 = _check_start(start, q0)
    start = q0 if isinstance(q0, Start) else None
    q = None
    if method is not None or q0 is not None:
        q = first_q(q0 if start is None else start.q, target, run_key, count)
    _check_average(average)
    _check_stop(stop, average)
    if not checkpoint_every >= 0:
        raise ValueError(f"checkpoint_every must be ≥ 0 seconds, got {checkpoint_every!r}")
    if state is not None and checkpoint is not None:
        raise ValueError("give state or checkpoint, not both")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function of state and trace, got {callback!r}")
    return Arguments(
        target=target,
        replicate=replicate,
        count=count,
        method=method,
        q=q,
        start=start,
        update=update,
        steps=steps,
        key=run_key,
        average=average,
        stop=stop,
        tolerance=_check_tolerance(tolerance),
        family=_check_family(family, target, method, q0),
        chains=None if chains is None else check_count("chains", chains, MIN_CHAINS),
        batch=None if batch is None else check_count("batch", batch, 1),
        progress=progress,
        checkpoint=None if checkpoint is None else check_path(checkpoint),
        checkpoint_every=checkpoint_every,
        state=state,
        callback=callback,
        callback_every=check_count("callback_every", callback_every, 1),
        throw=throw,
        layout=as_layout(mesh, devices, target, method, chains, count),
    )


def _check_start(start: Any, q0: Any) -> Any:
    """Return q0, or the start that was given in its place."""
    if start is None:
        return q0
    if not isinstance(start, Start):
        raise ValueError(f"start must be one such as tempered(target) gives, got {start!r}")
    if q0 is not None:
        raise ValueError("give start or q0, not both: each says where q and the chains begin")
    return start


def _check_method(method: Any) -> Method | None:
    """Return the method, or None for the automatic fit."""
    if method is None or (isinstance(method, str) and method == "auto"):
        return None
    if isinstance(method, str):
        raise ValueError(f"method must be one such as pmcsa(10), or 'auto', got {method!r}")
    if not isinstance(method, Method):
        raise ValueError(f"method must be one such as pmcsa(10) or elbo(10), got {method!r}")
    return method


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


def _check_average(average: Any) -> None:
    fraction = 0.5 if isinstance(average, bool) else average
    if not (isinstance(fraction, int | float) and 0 <= fraction < 1):
        raise ValueError(f"average must be a bool or a fraction in [0, 1), got {average!r}")


def _check_stop(stop: Any, average: bool | float) -> None:
    if stop is not None and not isinstance(stop, Converged):
        raise ValueError(f"stop must be a rule such as Converged(), got {stop!r}")
    if stop is not None and average is not False:
        raise ValueError(
            f"give stop or average, not both: stop={stop!r} averages the late windows, and average "
            f"is {average!r}"
        )


def _check_tolerance(tolerance: Any) -> float:
    if not (isinstance(tolerance, int | float) and MIN_TOLERANCE <= tolerance <= 1):
        raise ValueError(
            f"tolerance must be a number from {MIN_TOLERANCE} to 1, in posterior sds, "
            f"got {tolerance!r}"
        )
    return float(tolerance)


def _check_family(family: Any, target: Target, method: Method | None, q0: Any) -> FamilyName:
    if family not in get_args(FamilyName):
        raise ValueError(f"family must be 'auto' or 'flow', got {family!r}")
    if family == "auto":
        return "auto"
    if method is not None or q0 is not None:
        raise ValueError(
            "family is for an automatic fit that chooses its own start, but "
            f"{'a method' if method is not None else 'q0'} is given; leave one of the two out"
        )
    require_flows(target.dim)
    if not has_gradient(target):
        raise ValueError("family='flow' needs a log_density that jax can differentiate")
    return "flow"


def check_path(checkpoint: Any) -> Path:
    """Return the file that a run is kept in, whose folder must be there."""
    path = Path(checkpoint)
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint: the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"checkpoint: {str(path)!r} is a folder; name a file")
    return path
