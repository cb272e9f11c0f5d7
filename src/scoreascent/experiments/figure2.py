"""Figure 2: the final KL(π‖q) against the step size, for every method and optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
import pandas as pd

import scoreascent as sa
from scoreascent.experiments.figure1 import METHOD_NAMES, first_q
from scoreascent.experiments.methods import METHODS
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, RunFolder
from scoreascent.models.gaussian import wishart_gaussian

# Each takes one number, γ, which `inject_hyperparams` puts in the optimiser's state, so that all
# step sizes run in one compiled loop. The last three are the schedules of the convergence table.
OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "sgd": lambda gamma: optax.sgd(gamma),
    "momentum": lambda gamma: optax.sgd(gamma, momentum=0.9),
    "nesterov": lambda gamma: optax.sgd(gamma, momentum=0.9, nesterov=True),
    "adam": lambda gamma: optax.adam(gamma),
    "duchi": lambda gamma: optax.sgd(sa.schedules.duchi(gamma)),
    "doan": lambda gamma: optax.sgd(sa.schedules.doan(gamma)),
    "doan_nesterov": lambda gamma: sa.schedules.doan_nesterov(1 / (2 * gamma)),
}


@dataclass(frozen=True)
class Settings:
    """The paper's settings; `pmcsa_rb` and the schedules are what it leaves out.

    For `duchi` and `doan` the "step size" is γ; for `doan_nesterov`, whose step size is fixed, it
    is 1/(2L), the factor of the momentum.
    """

    dim: int = 100
    nu: int = 500
    n: int = 10
    methods: tuple[str, ...] = METHOD_NAMES
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    step_sizes: int = 20
    steps: int = 10_000
    replications: int = 20
    average: float = 0.5
    seed: int = 0


QUICK = Settings(
    dim=5, nu=5, methods=("msc", "pmcsa"), optimizers=("adam", "doan_nesterov"),
    step_sizes=5, steps=1000, replications=3,
)  # fmt: skip


def cells(settings: Settings) -> list[Cell]:
    """A cell for every method with every optimiser."""
    return [Cell(f"{o}-{m}", (m, o)) for o in settings.optimizers for m in settings.methods]


def compute(cell: Cell, settings: Settings, store: RunFolder, deadline: float) -> Frames:
    """Run one method with one optimiser: every step size and replication under one `vmap`."""
    method, optimizer = cell.piece
    problem = wishart_gaussian(settings.dim, settings.nu, settings.seed)
    sizes = np.repeat(np.logspace(-3, 0, settings.step_sizes), settings.replications)
    arguments: dict[str, Any] = {
        "q0": lambda key: first_q(key, settings.dim),
        "optimizer": optax.inject_hyperparams(OPTIMIZERS[optimizer])(gamma=0.1),
        "replications": len(sizes),
        "key": settings.seed,
        "average": settings.average,
        "progress": False,
    }
    target, ascent = problem.target, METHODS[method].make(settings.n)
    begun = sa.fit(target, ascent, steps=0, **arguments).state
    # a run of no steps would average from step 0 on; the run proper leaves the first part out
    begun = _with_step_sizes(begun, sizes, int(settings.average * settings.steps))
    with warnings.catch_warnings():
        # large steps do diverge here, that is what the figure shows
        warnings.simplefilter("ignore", RuntimeWarning)
        result = sa.fit(target, ascent, steps=settings.steps, state=begun, **arguments)
    kl: Any = jax.vmap(problem.kl)
    table = pd.DataFrame(
        {
            "method": method,
            "optimizer": optimizer,
            "step_size": sizes,
            "replication": np.tile(np.arange(settings.replications), settings.step_sizes),
            "kl_last": np.asarray(kl(result.state.q)),
            "kl_average": np.asarray(kl(result.q)),
            "skipped": result.trace.skipped.sum(-1),
            "kl_floor": problem.kl_floor,
        }
    )
    return {"table": table}


def _with_step_sizes(state: sa.State, sizes: np.ndarray[Any, Any], start: int) -> sa.State:
    gamma = state.memory.hyperparams["gamma"]
    memory = state.memory._replace(hyperparams={"gamma": jax.numpy.asarray(sizes, gamma.dtype)})
    assert state.average is not None
    average = state.average._replace(start=jax.numpy.full_like(state.average.start, start))
    return state._replace(memory=memory, average=average)
