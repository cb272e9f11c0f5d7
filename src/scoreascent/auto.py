"""`fit(target)`: a few rules that choose everything, say what they chose, and judge the outcome.

1. Start: Gaussians at what eight searches find (`laplace`), unless `q0` is given.
2. Family: full-rank up to 200 dimensions, rank 20 plus a diagonal beyond.
3. Chains: 128, or 2d if that is more, up to 512; 128 for a low-rank family.
4. Kernel: `IMH()` if independent proposals of the start would be accepted often enough, otherwise
   `Cycle(IMH(), HMC())`.
5. Update: moment matching, γ_t = min(γ, t^−0.8), γ ≤ ¼ and less in many dimensions.
6. Stop: when averaged means and log sds are known to 0.02 posterior sds.
7. Verdict: `diagnose()`. If it is not good and the kernel was `IMH()`, the fit goes on from there
   with `Cycle(IMH(), HMC())`, and the verdict on that is final.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console

from scoreascent._random import as_key
from scoreascent.diagnostics.verdict import GOOD
from scoreascent.families import Family, LowRank
from scoreascent.kernels import HMC, IMH, Cycle, Kernel
from scoreascent.methods import pmcsa
from scoreascent.result import Result
from scoreascent.schedules import Decay
from scoreascent.starts import Start, laplace
from scoreascent.stopping import Converged
from scoreascent.target import Target
from scoreascent.update import moment_matching

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

CHAINS_MIN, CHAINS_MAX = 128, 512
ACCEPTED_MIN = 0.3  # acceptance of proposals from the start that lets IMH do alone
STEPS = 5000  # most iterations of a stage
BOTH = Cycle(IMH(), HMC())
RULE = Converged(tolerance=0.03, every=20)


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

    key_start, key_fit, key_again, key_judge = jax.random.split(as_key(key), 4)
    start = _start(target, q0, key_start, decide)
    q = start.q if isinstance(start, Start) else start
    n = _chains(q)
    kernel: Kernel = IMH()
    if isinstance(start, Start):
        rate = _acceptance(target, start)
        kernel = kernel if rate >= ACCEPTED_MIN else BOTH
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
    result = fit(target, pmcsa(n, kernel), q0=start, key=key_fit, checkpoint=checkpoint, **settings)
    spent = _evaluations(start, result)
    diagnosis = result.diagnose(key_judge)
    decide(f"{result.made.get('stop', result.status)}; verdict: {diagnosis.verdict}")
    stopped = result.status in ("interrupted", "stopped")
    if diagnosis.verdict != GOOD and kernel != BOTH and not stopped:
        decide(f"kernel: {BOTH!r}, because {diagnosis.reason}")
        goes_on = Start(
            result.q, result.state.eta.z, start.elbo, start.kept, start.agree, (0, 0)
        ) if isinstance(start, Start) else result.q  # fmt: skip
        result = fit(
            target, pmcsa(n, BOTH), q0=goes_on, key=key_again, checkpoint=_second(checkpoint),
            **settings,
        )  # fmt: skip
        again = _evaluations(goes_on, result)
        spent = spent[0] + again[0], spent[1] + again[1]
        diagnosis = result.diagnose(key_judge)
        decide(f"{result.made.get('stop', result.status)}; verdict: {diagnosis.verdict}")
    return replace(result, decisions=tuple(decisions), diagnosis=diagnosis, evaluations=spent)


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
        return CHAINS_MIN
    return int(np.clip(32 * -(-2 * q.dim // 32), CHAINS_MIN, CHAINS_MAX))


def _update(q: Family, n: int) -> Any:
    """Moment matching so slow that the noise in q hardly costs acceptance.

    A covariance that remembers 2n/γ points is off by d²γ/8n nats on average.
    """
    free = 1 if isinstance(q, LowRank) else q.dim
    first = float(np.clip(round(0.8 * n / free**2, 2), 0.01, 0.25))
    return moment_matching(Decay(first=first, power=0.8))


@jax.jit
def _log_weights(target: Target, q: Family, z: Any) -> Any:
    return jax.lax.map(target.log_prob, z, batch_size=32) - jax.vmap(q.log_prob)(z)


def _acceptance(target: Target, start: Start) -> float:
    """How often IMH would accept, in stationarity as the start's own points see it."""
    log_w = np.asarray(_log_weights(target, start.q, start.z), np.float64)
    log_w = log_w[np.isfinite(log_w)]
    if not len(log_w):
        return 0.0
    # the chain is at a point with probability ∝ its weight, the proposal is any of them
    here = np.exp(log_w - log_w.max())
    accept = np.exp(np.minimum(log_w[None] - log_w[:, None], 0))
    return float(np.sum(here[:, None] * accept) / (here.sum() * len(log_w)))


def _evaluations(start: Any, result: Result) -> tuple[int, int]:
    """Densities and gradients of the target: the start's and the chains'."""
    densities, gradients = start.evaluations if isinstance(start, Start) else (0, 0)
    n, steps = result.method.moves.n, int(result.state.step)  # type: ignore[attr-defined]
    densities += n * steps
    if result.method.moves.kernel == BOTH:  # type: ignore[attr-defined]
        gradients += n * int(result.state.eta.tuning[1].gradients)
    return densities, gradients


def _second(checkpoint: Any) -> Path | None:
    """The file of the second stage, beside that of the first."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(path.name + ".2")
