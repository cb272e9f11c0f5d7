"""Whether to believe a fit: what was measured, and what it means, as a verdict in words."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent import _html
from scoreascent._random import as_key, fold_in, split
from scoreascent._structs import check_count
from scoreascent.diagnostics.challenge import challenge
from scoreascent.diagnostics.edges import look_at_edges
from scoreascent.diagnostics.measure import MAX_ROWS, Measured, measure, watch_chains
from scoreascent.diagnostics.rules import (
    GOOD,
    MAX_SPACING,
    MAX_USABLE_K,
    NO_MOMENTS,
    UNSEEN,
    WEIGH,
    Finding,
    Verdict,
    judge,
    promise,
)
from scoreascent.run import Run, check_single, rests_on_chains
from scoreascent.searches import has_gradient

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

MIN_WORTH_OF_SHAPE = 0.8  # of a draw of q, if it is taken before states of the chains


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis(Measured):
    """What was measured of a fit, and what it means. `print` shows it.

    `verdict` is one of seven phrases, `reason` says why and `advice` what to try. The numbers
    behind it are those of `Measured`: `k_hat`, `ess`, `rhat` and the others.
    """

    verdict: Verdict
    reason: str
    advice: str

    @property
    def final(self) -> bool:
        """Whether more iterations of the same kind cannot change the verdict."""
        elsewhere = self.verdict == UNSEEN and self.stray > 0
        return self.verdict in (WEIGH, NO_MOMENTS) or self.spacing > MAX_SPACING or elsewhere

    @property
    def q_has_shape(self) -> bool:
        """Whether draws of a mixture or a flow are as good as the chains' states."""
        near = self.k_hat <= MAX_USABLE_K and self.worth >= MIN_WORTH_OF_SHAPE
        return self.verdict == GOOD and near and self.q_gap <= self.tolerance

    @property
    def reliable(self) -> bool:
        """Whether the estimates from importance weights can be trusted."""
        return self.k_hat <= MAX_USABLE_K

    def __str__(self) -> str:
        return _render(self)

    def _repr_html_(self) -> str:
        return _html_of(self)


def diagnose(
    run: Run, key: PRNGKeyArray | int = 0, draws: int | None = None, steps: int | None = None
) -> Diagnosis:
    """Look at a fit from all sides, and judge it; see `Result.diagnose`."""
    check_single(run)
    draws = None if draws is None else check_count("draws", draws, 100)
    if steps is None:  # a rule that was met, or that asks the chains alone, has looked already
        looked = run.status == "converged" or rests_on_chains(run)
        steps = 0 if looked else max(MAX_ROWS, run.steps // 5)
    else:
        steps = check_count("steps", steps, 20)
    key_draw, key_chain = split(as_key(key))
    measured = measure(run, (key_draw, key_chain), draws, steps)
    finding = judge(measured)
    if finding.verdict == GOOD:
        key_challenge = fold_in(key_chain, 1)
        known = (measured.least_log_q, measured.log_evidence, measured.log_w_star)
        seen = challenge(run, key_challenge, *known)
        if run.q.is_bent and has_gradient(run.target):
            seen |= _tails(run, key_chain, seen["challenge_count"])
        measured = replace(measured, **seen)
        finding = judge(measured)
    return concluded(measured, finding)


def concluded(measured: Measured, finding: Finding) -> Diagnosis:
    """Return what was measured and found as one."""
    values = {f.name: getattr(measured, f.name) for f in fields(measured)}
    return Diagnosis(**values, **finding._asdict())


def _tails(run: Run, key: PRNGKeyArray, count: tuple[int, int]) -> dict[str, Any]:
    """Measure what tails lack, of a fit whose q has learnt their shape from its own chains."""
    chains = watch_chains(run, key)
    if chains is None or chains.states.shape[-1] != run.target.dim:
        return {}
    lacking, more = look_at_edges(run.target, chains.states, fold_in(key, 2))
    return {"tail_lacking": lacking, "challenge_count": tuple(more.plus(count))}


def measured_rows(d: Diagnosis) -> list[tuple[str, str]]:
    """Return what the verdict rests on, in words."""
    unsure = "" if d.reliable else "  (not reliable: k̂ > 0.7)"
    iterates = f"drift {d.drift:.2f} sds" if np.isnan(d.error) else f"known to {d.error:.2f} sds"
    rows = [
        ("k̂ of π/q", f"{d.k_hat:.2f}"),
        ("effective draws", f"{d.ess:.0f} of {d.draws}{unsure}"),
    ]
    if d.has_chains:
        moved = f"{d.stuck:.0%} of the chains never moved, {d.stay:.1%} of their time in long stays"
        apart = f"means {d.shift:.2f} sds, sds a factor {np.exp(d.ratio):.2f} apart"
        rows += [
            ("acceptance", f"{d.acceptance:.1%}, {moved}"),
            ("R̂ over the chains", f"{d.rhat:.3f}, {d.chain_ess:.0f} effective draws"),
            ("chains against q", apart),
        ]
    rows += [
        ("R̂ of late iterates", f"{d.rhat_lambda:.2f}, {iterates}"),
        ("density NaN or +∞", f"{d.invalid:.1%} of q's draws"),
        ("χ²(π‖q)", f"{d.chi2:.3g}{unsure}"),
        ("log w*, at least", f"{d.log_w_star:.3g}"),
        ("log evidence", f"{d.log_evidence:.5g}{unsure}"),
    ]
    if d.numbers:
        worst = f", worst of all of {d.worst}" if d.worst else ""
        rows.append(("numbers shown", f"known to {max(d.gap, d.unsure):.2f} sds{worst}"))
    return rows


def _advised(d: Diagnosis) -> str:
    return f"because {d.reason}" + (f"; try {d.advice}" if d.advice else "")


def _render(d: Diagnosis) -> str:
    table = Table(title=f"verdict: {d.verdict}", title_justify="left", show_header=False)
    for name, value in measured_rows(d):
        table.add_row(name, value)
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    console.print(_advised(d))
    if d.verdict == GOOD:
        console.print(promise(d.tolerance))
    return out.getvalue().rstrip()


def _html_of(d: Diagnosis) -> str:
    """Return the same for a notebook."""
    promised = f"<br/>{escape(promise(d.tolerance))}" if d.verdict == GOOD else ""
    words = _html.tag("strong", escape(f"verdict: {d.verdict}")) + f"<br/>{escape(_advised(d))}"
    table = _html.table([], measured_rows(d), words=2)
    return _html.tag("div", _html.tag("p", words + promised) + table)
