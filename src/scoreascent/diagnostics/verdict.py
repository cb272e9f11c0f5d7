"""Whether to believe a fit: what the measurements mean, as a verdict in words."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.diagnostics.measure import (
    ROWS,
    chains,
    check_single,
    iterates,
    moves_by_itself,
    reach,
    sd_growth,
    weights,
)

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from scoreascent.result import Result

Verdict = Literal[
    "good",
    "use with importance weights",
    "not converged: run longer",
    "chains did not mix: q is not the inclusive optimum",
]
GOOD, WEIGH, LONGER, STUCK = Verdict.__args__  # type: ignore[attr-defined]

# What is asked of a fit. k̂: Vehtari et al. (2024). The others say how much of a posterior sd, or of
# a ratio of sds, one is ready to be wrong by without being told.
K_GOOD, K_USABLE = 0.5, 0.7
RHAT_MAX = 1.1
ACCEPTANCE_MIN, STUCK_MAX = 0.01, 0.1
SHIFT_MAX, RATIO_MAX = 0.2, 0.2
FOLLOWS = 2.0  # acceptance while q moves over that while it stands
TREND_MAX = 0.95  # correlation with time: with this much, λ is on its way, not wandering
INVALID_MAX = 0.01
TAIL_MAX = 0.7  # a tail of shape ½ has no variance; estimates are off by about 0.1
GROWTH_MAX = 300.0  # of a standard deviation, over that of the start
# Effective draws over draws: least, and where k̂ lies between the two limits. There one weight in
# thousands may be large, but most of q's draws are as good as the posterior's.
ESS_MIN, ESS_CLOSE = 0.1, 0.5

REACH_MIN = 0.3  # of the length that trajectories should have
STAY_MAX = 0.02  # of the chains' time may be long stays
# What chains with moves of their own must show to be believed where weights cannot be
RHAT_LOCAL, ESS_LOCAL = 1.04, 1500


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was seen of a fit, and what it means. `print` shows it.

    `k_hat` is the shape of the tail of the weights π/q, `ess` how many independent draws of π as
    many weighted draws of q are worth. `rhat` and `chain_ess` are the worst of all coordinates over
    the chains at the fitted q; `stuck` is the share of chains that never moved, `stay` the share
    of their time that they spend in one place for 20 steps or more. `rhat_lambda` is
    the worst of q's means and log sds over two halves of the iterations that would follow,
    `drift` how far these halves are apart, in posterior sds, and `trend` how steadily they move
    (the median correlation with time). `shift` and `ratio` say how far q's
    means and log sds are from those of the chains, and `tail` is the shape of the heaviest tail of
    their states: from ½ on it has no variance. `chi2`, `log_w_star` and `log_evidence` are
    estimates from q's draws, and worthless where `k_hat` exceeds 0.7.
    """

    verdict: Verdict
    reason: str
    advice: str
    k_hat: float
    draws: int
    ess: float
    acceptance: float
    stuck: float
    stay: float
    rhat: float
    chain_ess: float
    rhat_lambda: float
    drift: float
    trend: float
    shift: float
    ratio: float
    tail: float
    invalid: float
    chi2: float
    log_w_star: float
    log_evidence: float

    @property
    def final(self) -> bool:
        """Whether more iterations of the same kind cannot change the verdict."""
        return self.verdict == WEIGH or self.tail > TAIL_MAX

    @property
    def reliable(self) -> bool:
        """Whether the estimates from importance weights can be trusted."""
        return self.k_hat <= K_USABLE

    def __str__(self) -> str:
        return _render(self)


def diagnose(
    result: Result, key: PRNGKeyArray | int = 0, draws: int = 4000, steps: int | None = None
) -> Diagnosis:
    """Look at a fit from all sides; see `Result.diagnose`."""
    check_single(result)
    draws = check_count("draws", draws, 100)
    done = int(result.state.step)
    if steps is None:  # a rule that was met has looked at late iterates already
        steps = 0 if result.status == "converged" else max(ROWS, done // 5)
    else:
        steps = check_count("steps", steps, 20)
    key_draw, key_chain = jax.random.split(as_key(key))
    numbers = {
        **weights(result, key_draw, draws),
        **chains(result, key_chain),
        **iterates(result, steps),
    }
    verdict, reason, advice = _judge(result, numbers)
    return Diagnosis(verdict, reason, advice, draws=draws, **numbers)


def _judge(result: Result, n: dict[str, float]) -> tuple[Verdict, str, str]:
    """The first rule that applies."""
    has_chains = not np.isnan(n["acceptance"])
    if result.status == "diverged" or not np.isfinite(n["drift"]):
        return LONGER, "the fit diverged", "smaller steps, another start, or look at log_density"
    if (growth := sd_growth(result)) > GROWTH_MAX:
        return (
            STUCK,
            f"a standard deviation of q has grown by a factor of {growth:.0e}: the posterior seems "
            "improper",
            "proper priors",
        )
    moving = (
        LONGER,
        f"q is still moving: by {n['drift']:.2f} posterior sds over the next iterations",
        "more steps, or average=True",
    )
    if n["trend"] > TREND_MAX and n["drift"] > SHIFT_MAX:
        return moving
    # While it is fitted to a few chains, q can follow them wherever they go: most proposals then
    # are accepted because q is where the chains are, not where the posterior is.
    before = float(np.mean(result.trace.acceptance[-max(1, result.trace.loss.size // 10) :]))
    if has_chains and n["drift"] > 1 and before > FOLLOWS * n["acceptance"]:
        return (
            STUCK,
            f"q follows its chains: {before:.1%} of the proposals were accepted while it did, "
            f"{n['acceptance']:.1%} now that it stands still, and it would move by "
            f"{n['drift']:.1f} sds if it went on. It has contracted onto a part of the posterior",
            "more chains, and a richer family or kernel",
        )
    if has_chains and (n["acceptance"] < ACCEPTANCE_MIN or n["stuck"] > STUCK_MAX):
        return (
            STUCK,
            f"acceptance is {n['acceptance']:.2%} and {n['stuck']:.0%} of the chains never moved "
            f"in {ROWS} steps",
            "a richer family or kernel: proposals of this q hardly ever land in the posterior",
        )
    if has_chains and not n["rhat"] <= RHAT_MAX:
        return (
            STUCK,
            f"R̂ over the chains is {n['rhat']:.2f}: they are in different places",
            "more iterations if it falls; if not, the posterior has parts between which this "
            "kernel does not move",
        )
    if n["rhat_lambda"] > RHAT_MAX and n["drift"] > SHIFT_MAX:
        return moving
    if has_chains and (n["shift"] > SHIFT_MAX or n["ratio"] > RATIO_MAX):
        return (
            LONGER,
            f"the chains at this q have means {n['shift']:.2f} sds away and sds off by a factor "
            f"of {np.exp(n['ratio']):.2f}",
            "more steps, or average=True",
        )
    if has_chains and n["tail"] > TAIL_MAX:
        return (
            STUCK,
            f"a coordinate's tails are so heavy (Pareto shape {n['tail']:.2f}) that its variance "
            "does not exist or cannot be known, so no q has it",
            "lighter-tailed priors, or another parametrisation",
        )
    if result.look is not None and result.status == "max_steps":
        return LONGER, result.made["stop"], "more steps"
    if n["invalid"] > INVALID_MAX:
        return (
            WEIGH,
            f"the density is NaN at {n['invalid']:.0%} of q's draws",
            "a transform that keeps parameters where the model is defined",
        )
    if result.start is not None and not result.start.agree:
        return (
            WEIGH,
            "searches found several modes: q spreads over them, and over the gaps between",
            "result.resample(), or the chains' own states",
        )
    reached = reach(result)
    share = f"k̂ = {n['k_hat']:.2f} and a draw of q is worth {1 / (1 + n['chi2']):.2f} of π's"
    worth = 1 / (1 + n["chi2"])
    is_close = (n["k_hat"] <= K_GOOD and worth >= ESS_MIN) or (
        n["k_hat"] <= K_USABLE and worth >= ESS_CLOSE
    )
    if reached < REACH_MIN and (n["k_hat"] > K_USABLE or worth < ESS_CLOSE):
        return (
            STUCK,
            f"gradient moves reach only {reached:.0%} as far as they should, because longer steps "
            "are rejected: the density has an edge, or regions of a much smaller scale",
            "a transform that has no edge, or another parametrisation",
        )
    if not is_close and has_chains and moves_by_itself(result.method):
        return _judge_by_chains(n, share)
    if not n["k_hat"] <= K_USABLE:
        return (
            WEIGH,
            f"k̂ = {n['k_hat']:.2f}: draws of q do not cover the posterior, and weights alone "
            "cannot mend that",
            "a richer family; or the chains' own states, if they mix. With few chains q may sit on "
            "one part of the posterior: compare a fit with more of them",
        )
    if not is_close:
        return WEIGH, share, "result.resample()"
    return GOOD, share, ""


def _judge_by_chains(n: dict[str, float], share: str) -> tuple[Verdict, str, str]:
    """Where π is not of q's shape, chains that find their own way tell whether its moments are q's.

    Independent proposals cannot tell that: what q does not reach, they do not either.
    """
    if n["stay"] > STAY_MAX:
        return (
            STUCK,
            f"for {n['stay']:.0%} of their time chains cannot move, though others do: there are "
            "regions whose scale is much smaller than elsewhere",
            "another parametrisation, such as a non-centred one",
        )
    if n["rhat"] > RHAT_LOCAL or n["chain_ess"] < ESS_LOCAL:
        return (
            STUCK,
            f"the chains mix slowly (R̂ {n['rhat']:.2f}, {n['chain_ess']:.0f} effective draws), "
            f"and q is too far from the posterior to check them: {share}",
            "more steps, or another parametrisation",
        )
    return (
        GOOD,
        f"the chains mix (R̂ {n['rhat']:.3f}, {n['chain_ess']:.0f} effective draws) and q has their "
        f"means and standard deviations; but the posterior is not of q's shape ({share}): take "
        "quantiles from the chains' states, as to_arviz() has them",
        "",
    )


def _render(d: Diagnosis) -> str:
    table = Table(title=f"verdict: {d.verdict}", title_justify="left", show_header=False)
    unsure = "" if d.reliable else "  (not reliable: k̂ > 0.7)"
    for name, value in (
        ("k̂ of π/q", f"{d.k_hat:.2f}"),
        ("effective draws", f"{d.ess:.0f} of {d.draws}{unsure}"),
        (
            "acceptance",
            f"{d.acceptance:.1%}, {d.stuck:.0%} of the chains never moved, "
            f"{d.stay:.1%} of their time in long stays",
        ),
        ("R̂ over the chains", f"{d.rhat:.3f}, {d.chain_ess:.0f} effective draws"),
        ("chains against q", f"means {d.shift:.2f} sds, sds a factor {np.exp(d.ratio):.2f} apart"),
        ("R̂ of late iterates", f"{d.rhat_lambda:.2f}, drift {d.drift:.2f} sds"),
        ("density NaN or +∞", f"{d.invalid:.1%} of q's draws"),
        ("χ²(π‖q)", f"{d.chi2:.3g}{unsure}"),
        ("log w*, at least", f"{d.log_w_star:.3g}"),
        ("log evidence", f"{d.log_evidence:.5g}{unsure}"),
    ):
        if not (np.isnan(d.acceptance) and name in ("acceptance", "R̂ over the chains",
                                                    "chains against q")):  # fmt: skip
            table.add_row(name, value)
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    console.print(f"because {d.reason}" + (f"; try {d.advice}" if d.advice else ""))
    return out.getvalue().rstrip()
