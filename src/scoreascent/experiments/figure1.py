"""Figure 1: variance of the gradient along a run, for every method and budget N."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import scoreascent as sa
from scoreascent.diagnostics import gradient_variance
from scoreascent.experiments.methods import METHODS
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, RunFolder
from scoreascent.models.gaussian import wishart_gaussian

# `pmcsa_rb` is ours
METHOD_NAMES = ("msc", "msc_rb", "jsa", "pmcsa", "pmcsa_rb")


@dataclass(frozen=True)
class Settings:
    """The paper's settings; `pmcsa_rb` is ours."""

    dim: int = 50
    nu: int = 500
    budgets: tuple[int, ...] = (8, 16, 32, 64, 128)
    methods: tuple[str, ...] = METHOD_NAMES
    steps: int = 10_000
    every: int = 100
    copies: int = 512
    replications: int = 8
    seed: int = 0


QUICK = Settings(
    dim=5, nu=5, budgets=(4, 16), methods=("msc", "pmcsa"), steps=2000, copies=128, replications=4,
)  # fmt: skip


def first_q(key: Any, dim: int) -> sa.MeanField:
    """λ₀ of the paper's simulations: m ~ N(0, I), σ = softplus(1) = 1.313."""
    return sa.MeanField(jax.random.normal(key, (dim,)), jnp.ones(dim))


def cells(settings: Settings) -> list[Cell]:
    """A cell for every method with every budget."""
    return [Cell(f"{m}-{n}", (m, n), n) for m in settings.methods for n in settings.budgets]


def compute(cell: Cell, settings: Settings, store: RunFolder, deadline: float) -> Frames:
    """Run one method with one budget: a row for every replication and measurement."""
    method, n = cell.piece
    problem = wishart_gaussian(settings.dim, settings.nu, settings.seed)
    seen = gradient_variance(
        problem.target,
        METHODS[method].make(n),
        q0=lambda key: first_q(key, settings.dim),
        steps=settings.steps,
        every=settings.every,
        copies=settings.copies,
        replications=settings.replications,
        key=settings.seed,
        progress=False,
    )
    over_run = lambda f: np.asarray(jax.vmap(jax.vmap(f))(seen.q))  # noqa: E731
    replication, step = np.meshgrid(np.arange(settings.replications), seen.step, indexing="ij")
    table = pd.DataFrame(
        {
            "method": method,
            "n": n,
            "replication": replication.ravel(),
            "step": step.ravel(),
            "variance": seen.variance.ravel(),
            "closed_form": over_run(problem.score_variance).ravel() / n,
            "kl": over_run(problem.kl).ravel(),
            "kl_floor": problem.kl_floor,
        }
    )
    return {"table": table}
