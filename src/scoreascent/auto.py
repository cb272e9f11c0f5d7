"""`fit(target)`: a few rules that choose everything, say what they chose, and judge the outcome.

1. Start: Gaussians at what eight searches find (`laplace`), unless `q0` is given.
2. Family: full-rank up to 200 dimensions, rank 20 plus a diagonal beyond.
3. Chains: 128, or 2d if that is more, up to 512; 64 for a low-rank family.
4. Kernel: `IMH()` if q is full-rank and independent proposals of the start would be accepted often
   enough, otherwise `Cycle(IMH(), HMC())`.
5. Update: moment matching, γ_t = min(γ, t^−0.8), γ ≤ ¼ and less in many dimensions.
6. Stop: when averaged means and log sds are known to 0.03 posterior sds.
7. Verdict: `diagnose()`. If it is not good, or draws of q are worth less than half of the
   posterior's, and the kernel was `IMH()`, the fit goes on from there with `Cycle(IMH(), HMC())`.
   If it is not good and more steps may help, it goes on: three stages at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console

from scoreascent._batches import log_probs
from scoreascent._random import as_key
from scoreascent.diagnostics.measure import sd_growth
from scoreascent.diagnostics.verdict import GOOD, GROWTH_MAX
from scoreascent.families import Family, LowRank
from scoreascent.kernels import HMC, IMH, Cycle, Kernel
from scoreascent.methods import pmcsa
from scoreascent.result import DivergenceError, Result
from scoreascent.schedules import Decay
from scoreascent.starts import Start, laplace
from scoreascent.stopping import Converged
from scoreascent.target import Target
from scoreascent.update import moment_matching

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

CHAINS_MIN, CHAINS_MAX, CHAINS_LOW = 128, 512, 64
ACCEPTED_MIN = 0.3  # acceptance of proposals from the start that lets IMH do alone
WORTH_MIN = 0.5  # of a draw of q: below it, chains of independent proposals stay long in tails
STEPS, STAGES = 3000, 3  # most iterations of a stage, and stages
BOTH = Cycle(IMH(), HMC())
RULE = Converged(tolerance=0.03, every=20)
LONGER_RULE = Converged(tolerance=0.03, every=20, windows=16)  # where a first look did not do


def fit_automatically(
    fit: Callable[..., Result],
    target: Target,
    *,
    key: PRNGKeyArray | int,
    q0: Any,
    optimizer: Any,
    steps: int | None,
    average: bool | float,
    stop: Converged | None,
    progress: bool,
    checkpoint: Any,
    **others: Any,
) -> Result:
    """Choose what was not given, fit, and judge. `fit` is `scoreascent.fit` with a method."""
    decisions: list[str] = []
    console = Console(stderr=True, quiet=not progress, highlight=False)

    def decide(text: str) -> None:
        decisions.append(text)
        console.print(f"auto: {text}")

    key_start, key_fit, key_judge = jax.random.split(as_key(key), 3)
    start = _start(target, q0, key_start, decide)
    q = start.q if isinstance(start, Start) else start
    n = _chains(q)
    kernel: Kernel = IMH()
    if isinstance(start, Start):
        rate = _acceptance(target, start)
        kernel = BOTH if rate < ACCEPTED_MIN or isinstance(q, LowRank) else kernel
        decide(f"kernel: {kernel!r}, for {rate:.0%} of the start's own proposals are accepted")
    decide(f"chains: {n}")
    if optimizer is None:
        optimizer = _update(q, n) if hasattr(q, "match") else None
        decide(f"update: {optimizer!r}")
    if stop is None and average is False:
        stop = RULE
    settings = {
        "optimizer": optimizer,
        "steps": STEPS if steps is None else steps,
        "average": average,
        "stop": stop,
        "progress": progress,
        **others,
    }
    stage = 0
    spent = start.evaluations if isinstance(start, Start) else (0, 0)
    while True:
        stage += 1
        result = _fit(
            fit, target, pmcsa(n, kernel), q0=start, key=jax.random.fold_in(key_fit, stage),
            checkpoint=_stage_path(checkpoint, stage), **settings,
        )  # fmt: skip
        spent = _add(spent, _evaluations(result))
        diagnosis = result.diagnose(jax.random.fold_in(key_judge, stage))
        decide(f"{result.made.get('stop', result.status)}; verdict: {diagnosis.verdict}")
        if result.status in ("interrupted", "stopped") or stage == STAGES:
            break
        if kernel != BOTH and (
            diagnosis.verdict != GOOD or diagnosis.ess < WORTH_MIN * diagnosis.draws
        ):
            kernel = BOTH
        elif diagnosis.verdict == GOOD or diagnosis.final:
            break
        decide(f"goes on with kernel {kernel!r}, because {diagnosis.reason}")
        start = _from_here(result, start)
        if settings["stop"] is RULE:
            settings["stop"] = LONGER_RULE
    return replace(result, decisions=tuple(decisions), diagnosis=diagnosis, evaluations=spent)


def _fit(fit: Callable[..., Result], target: Target, method: Any, **settings: Any) -> Result:
    """`fit`, with a divergence named by its most likely cause."""
    try:
        return fit(target, method, **settings)
    except DivergenceError as error:
        growth = sd_growth(error.result)
        if not growth > GROWTH_MAX:
            raise
        raise DivergenceError(
            f"q has grown by a factor of {growth:.0e}: log_density is constant, or the posterior "
            "improper; give it proper priors",
            error.result,
        ) from None


def _from_here(result: Result, start: Any) -> Any:
    """Where the next stage begins: at the fitted q, with the chains where they are."""
    if not isinstance(start, Start):
        start = Start(result.q, (), (0.0,), 1, True, (0, 0))
    before = start.q if start.before is None else start.before
    return replace(start, q=result.q, z=result.state.eta.z, before=before)


def _start(
    target: Target, q0: Any, key: PRNGKeyArray, decide: Callable[[str], None]
) -> Start | Family:
    if isinstance(q0, Start):
        decide(f"start: as given; {q0}")
        return q0
    if q0 is not None:
        q: Family = q0(key) if callable(q0) and not hasattr(q0, "log_prob") else q0
        decide(f"start: the {type(q).__name__} that was given")
        return q
    start = laplace(target, key)
    rank = f" of rank {start.q.rank}" if isinstance(start.q, LowRank) else ""
    decide(f"start: {start}")
    decide(f"family: {type(start.q).__name__}{rank}, for {target.dim} dimensions")
    return start


def _chains(q: Family) -> int:
    if isinstance(q, LowRank):
        return CHAINS_LOW
    return int(np.clip(32 * -(-2 * q.dim // 32), CHAINS_MIN, CHAINS_MAX))


def _update(q: Family, n: int) -> Any:
    """Moment matching so slow that the noise in q hardly costs acceptance.

    A covariance that remembers 2n/γ points is off by d²γ/8n nats on average.
    """
    free = 1 if isinstance(q, LowRank) else q.dim
    first = float(np.clip(round(0.8 * n / free**2, 2), 0.01, 0.25))
    return moment_matching(Decay(first=first, power=0.8))


def _acceptance(target: Target, start: Start) -> float:
    """How often IMH would accept, in stationarity as the start's own points see it."""
    log_w = log_probs(target, start.z) - log_probs(start.q, start.z)
    log_w = log_w[np.isfinite(log_w)]
    if not len(log_w):
        return 0.0
    # the chain is at a point with probability ∝ its weight, the proposal is any of them
    here = np.exp(log_w - log_w.max())
    accept = np.exp(np.minimum(log_w[None] - log_w[:, None], 0))
    return float(np.sum(here[:, None] * accept) / (here.sum() * len(log_w)))


def _evaluations(result: Result) -> tuple[int, int]:
    """Densities and gradients of the target that the chains took."""
    moves: Any = result.method.moves  # type: ignore[attr-defined]
    densities, gradients = moves.n * int(result.state.step), 0
    if moves.kernel == BOTH:
        gradients = moves.n * int(result.state.eta.tuning[1].gradients)
    return densities, gradients


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def _stage_path(checkpoint: Any, stage: int) -> Path | None:
    """The file of a stage: the later ones lie beside the first."""
    if checkpoint is None or stage == 1:
        return None if checkpoint is None else Path(checkpoint)
    path = Path(checkpoint)
    return path.with_name(f"{path.name}.{stage}")
