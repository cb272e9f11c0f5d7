"""Where a run begins and what it leaves behind: plain data that every instrument can look at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from scoreascent.families import Family
from scoreascent.loop import State, Trace
from scoreascent.methods import Method
from scoreascent.target import Target
from scoreascent.update import Update

Status = Literal["max_steps", "converged", "interrupted", "stopped", "diverged"]
TOLERANCE = 0.1  # how far a mean may be off, in posterior sds, and a standard deviation, as a share


@dataclass(frozen=True, eq=False)
class Start:
    """A first q and points for chains to begin at, as `fit(q0=…)` takes them.

    `elbo` says how good each of the searches' Gaussians is, best first; `agree` whether those that
    are kept are one place or several. `evaluations` counts densities and gradients. `before` is
    the q at which the first of several stages began. `log_evidence` is what particles say of it.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> q = sa.MeanField.standard(2)
    >>> print(Start(q, jnp.zeros((4, 2)), elbo=(), kept=0, agree=True, evaluations=(0, 0)))
    4 points
    """

    q: Family
    z: Any
    elbo: tuple[float, ...]
    kept: int
    agree: bool
    evaluations: tuple[int, int]
    before: Family | None = None
    log_evidence: float = math.nan

    def __str__(self) -> str:
        if not self.elbo:
            return f"{len(self.z)} points"
        places = "one place" if self.agree else "DIFFERENT places"
        return f"{self.kept} of {len(self.elbo)} searches kept; they found {places}"

    @property
    def first_q(self) -> Family:
        """The q at which the first stage began."""
        return self.q if self.before is None else self.before


class Convergence(NamedTuple):
    """What the late windows of a run say of its averaged λ: of replications, the worst."""

    windows: int  # how many late ones there are
    error: float = math.inf  # Monte Carlo error of the averaged means and log sds, in posterior sds
    rhat: float = math.inf  # R̂ between the two halves of the late windows
    drifts: bool = False  # whether a coordinate goes steadily one way
    moves: float = math.inf  # how often each chain moved in the late windows
    skipped: float = 0.0  # the share of late updates that were skipped
    stands_still: bool = False  # whether q did not move at all
    looks: int | None = None  # how often the rule was asked, if seldom


class Kept(NamedTuple):
    """What a fit that was read without its target has in the model's own space.

    `draws` are named ones of that source, with replications in front; `rows` are those of the
    summary, if draws do not tell them.
    """

    source: str
    draws: dict[str, Any]
    rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted q and how it came about, as the instruments of `diagnostics` see it.

    With `replications`, every array has them in front, and `status` is one word for each. `states`
    has shape (times, points, coordinates): where the points were in the late windows of a stopping
    rule, every `states_every` iterations. If they were balanced by control variates, `controls`
    (times, points, number of them) are these at the states. `tolerance` is what the verdict *good*
    promises. `kept` is of a fit that was read from a file without its target.
    """

    q: Family
    state: State
    trace: Trace
    status: Status | tuple[Status, ...]
    target: Target
    method: Method
    update: Update
    replications: int | None = None
    data_replicated: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)
    start: Start | None = None
    convergence: Convergence | None = None
    states: Any = None
    states_every: int = 0
    controls: Any = None
    tolerance: float = TOLERANCE
    kept: Kept | None = None

    @property
    def has_density(self) -> bool:
        """Whether the target is here: a fit may be read from a file without it."""
        return not hasattr(self.target.log_density, "identity")

    @property
    def steps(self) -> int:
        """The iterations that were done."""
        return int(np.max(np.asarray(self.state.step)))


def rests_on_chains(run: Run) -> bool:
    """Tell whether the fit was ended by a rule that asks the chains' own states, and seldom."""
    return run.convergence is not None and run.convergence.looks is not None


def check_single(run: Run) -> None:
    """Raise for a result that is many."""
    if run.replications is not None:
        raise ValueError("this result holds replications; take one of them, such as result[0]")
