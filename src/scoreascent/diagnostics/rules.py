"""What measurements mean: rules from what was measured to a finding, of which the first hit wins.

A rule is a function of `Measured` that gives a `Finding` or None. `RULES` is their order; the last
one always applies. To add a rule, write a function and put it into the tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from scoreascent.diagnostics.measure import Measured

Verdict = Literal[
    "good",
    "use with importance weights",
    "not converged: run longer",
    "chains did not mix: q is not the inclusive optimum",
    "not covered: there is mass that the fit has not seen",
    "no moments: the posterior has no variance, or none that can be known",
    "not smooth: the density has an edge, or is too coarse a number",
]
GOOD, WEIGH, LONGER, STUCK, UNSEEN, NO_MOMENTS, ROUGH = Verdict.__args__  # type: ignore[attr-defined]

MAX_GOOD_K, MAX_USABLE_K = 0.5, 0.7  # k̂ (Vehtari et al., 2024)
MAX_RHAT = 1.1
MIN_ACCEPTANCE, MAX_STUCK = 0.01, 0.1
# q follows its chains if so many times more proposals were accepted while it moved
MAX_ACCEPTANCE_RATIO = 2.0
MAX_TREND = 0.95  # with this much correlation with time, λ is on its way, not wandering
MAX_INVALID = 0.01
MAX_TAIL = 0.5  # a tail of shape ½ has no variance; estimates are off by about 0.1
MAX_UNSEEN = 0.04  # of the second moment: a standard deviation is then off by 2 %
MAX_UNSEEN_BY_PROPOSALS = 0.03
MAX_LACKING = 0.08  # of a variance: a standard deviation is then off by 4 %
MAX_TAIL_LACKING = 0.03  # the same of one end of a coordinate, of which only a part is looked at
MAX_FAR_MASS = 0.1  # further out than ten times the size of q; a proper posterior has none there
MAX_SPACING = 0.05  # nats; acceptance is then off by a few per cent
MAX_GROWTH = 300.0  # of a standard deviation, over that of the start
# What a draw of q must be worth; where k̂ lies between its two limits one weight in thousands may
# be large, but most of q's draws must be as good as the posterior's.
MIN_WORTH, MIN_WORTH_IF_K_IS_HIGH = 0.1, 0.5
MAX_MASS_UNSURE = 0.2  # of the tolerance: the mass of a mode must be known to 0.02
MIN_REACH = 0.3  # of the length that trajectories should have
MAX_STAY = 0.02  # of the chains' time
MIN_NARROWEST = -0.7  # chains that mix differ by up to 0.45 in spread, trapped ones by 0.9 and more
MIN_USUAL_ACCEPTANCE = 0.5  # of proposals; a stay of 20 steps is then no chance
# What chains with moves of their own must show to be believed where weights cannot be
MAX_RHAT_ALONE, MIN_ESS_ALONE = 1.04, 400
MIN_EFFICIENCY = 0.02  # where chains are slower, their own averages do not tell how slow they are


class Finding(NamedTuple):
    """A verdict, the reason for it, and what to try."""

    verdict: Verdict
    reason: str
    advice: str = ""


Rule = Callable[[Measured], Finding | None]


def promise(tolerance: float) -> str:
    """Say what *good* promises.

    >>> promise(0.1)
    'good promises that every mean shown is within 0.1 posterior sds, and every sd within 10 %'
    """
    means = f"every mean shown is within {tolerance:g} posterior sds"
    return f"good promises that {means}, and every sd within {100 * tolerance:g} %"


def judge(measured: Measured) -> Finding:
    """Return the finding of the first rule that applies."""
    for rule in RULES:
        finding = rule(measured)
        if finding is not None:
            return finding
    raise AssertionError("the last rule applies always")


def diverged(m: Measured) -> Finding | None:
    """The run diverged, or its iterates are not finite."""
    if m.status == "diverged" or not np.isfinite(m.motion):
        advice = "smaller steps, another start, or look at log_density"
        return Finding(LONGER, "the fit diverged", advice)
    return None


def improper(m: Measured) -> Finding | None:
    """The posterior has no finite mass, for q grows without bound."""
    if m.growth > MAX_GROWTH and m.far_mass > MAX_FAR_MASS:
        reason = f"a standard deviation of q has grown by a factor of {m.growth:.0e}"
        return Finding(NO_MOMENTS, f"{reason}: the posterior seems improper", "proper priors")
    return None


def imprecise(m: Measured) -> Finding | None:
    """The density is stated too coarsely to tell which of two points is likelier."""
    if m.spacing > MAX_SPACING:
        return Finding(
            ROUGH,
            f"log_density is so large that neighbouring numbers are {m.spacing:.2g} nats apart, "
            "which is as coarse as what decides between two points",
            '64 bits, jax.config.update("jax_enable_x64", True), or a log_density stated relative '
            "to a constant",
        )
    return None


def on_its_way(m: Measured) -> Finding | None:
    """The iterates go steadily one way."""
    return _moving(m) if m.trend > MAX_TREND and m.motion > m.tolerance else None


def follows_chains(m: Measured) -> Finding | None:
    """A q that is fitted to a few chains can follow them wherever they go.

    Most proposals then are accepted because q is where the chains are, not where the posterior is.
    """
    if m.has_chains and m.motion > 1 and m.late_acceptance > MAX_ACCEPTANCE_RATIO * m.acceptance:
        return Finding(
            STUCK,
            f"q follows its chains: {m.late_acceptance:.1%} of the proposals were accepted while "
            f"it did, {m.acceptance:.1%} now that it stands still, and it would move by "
            f"{m.motion:.1f} sds if it went on. It has contracted onto a part of the posterior",
            "more chains, and a richer family or kernel",
        )
    return None


def hardly_accepts(m: Measured) -> Finding | None:
    """Chains are where they began."""
    if m.has_chains and (m.acceptance < MIN_ACCEPTANCE or m.stuck > MAX_STUCK):
        return Finding(
            STUCK,
            f"acceptance is {m.acceptance:.2%} and {m.stuck:.0%} of the chains never moved "
            f"in {m.looked} steps",
            "a richer family or kernel: proposals of this q hardly ever land in the posterior",
        )
    return None


def chains_disagree(m: Measured) -> Finding | None:
    """Chains are in different places."""
    if m.has_chains and not m.rhat <= MAX_RHAT:
        return Finding(
            STUCK,
            f"R̂ over the chains is {m.rhat:.2f}: they are in different places",
            "more iterations if it falls; if not, the posterior has parts between which this "
            "kernel does not move",
        )
    return None


def still_moving(m: Measured) -> Finding | None:
    """Two halves of late iterates differ."""
    return _moving(m) if m.rhat_lambda > MAX_RHAT and m.motion > m.tolerance else None


def differs_from_chains(m: Measured) -> Finding | None:
    """The moments of q are not those of the chains that it proposes to."""
    if m.has_chains and (m.shift > m.tolerance or m.ratio > m.tolerance):
        return Finding(
            LONGER,
            f"the chains at this q have means {m.shift:.2f} sds away and sds off by a factor "
            f"of {np.exp(m.ratio):.2f}",
            "more steps, or average=True",
        )
    return None


def heavy_tails(m: Measured) -> Finding | None:
    """A coordinate has no variance that could be known."""
    # a light mode that is far looks like a tail; and where q knows a tail's shape its numbers are
    # either known or not shown
    known = (m.parts > 1 and _is_near(m)) or (m.bent and _covers(m))
    if m.has_chains and m.tail > MAX_TAIL and not known:
        return Finding(
            NO_MOMENTS,
            f"a coordinate's tails are so heavy (Pareto shape {m.tail:.2f}) that its variance "
            "does not exist or cannot be known, so no q has it",
            "lighter-tailed priors, or another parametrisation",
        )
    return None


def unseen_mass(m: Measured) -> Finding | None:
    """There is mass further out than any chain has been.

    Independent proposals go no further than q, so they also see too little of what is nearer.
    """
    if m.unseen > (MAX_UNSEEN if m.moves_alone else MAX_UNSEEN_BY_PROPOSALS):
        return Finding(
            UNSEEN,
            f"{m.unseen:.0%} of the posterior's second moment lies further from the centre of q "
            "than any chain has been: heavy tails, or a wide part around a narrow one",
            "gradient moves such as Cycle(IMH(), HMC()), more steps, or a Student-t family",
        )
    return None


def too_narrow(m: Measured) -> Finding | None:
    """Wider draws than q's see a variance that q does not have, and its chains could not see."""
    if m.lacking > MAX_LACKING:
        return Finding(
            UNSEEN,
            f"by draws that are wider than q, it lacks {m.lacking:.0%} of a variance, which chains "
            "have not seen",
            "gradient moves such as Cycle(IMH(), HMC()), or a Student-t family",
        )
    return None


def tail_too_short(m: Measured) -> Finding | None:
    """Chains that move in one end of a coordinate alone go further out than the fit's own."""
    if m.tail_lacking > MAX_TAIL_LACKING:
        return Finding(
            UNSEEN,
            "chains that were begun where states are furthest out go further: one tail lacks "
            f"{m.tail_lacking:.0%} of a variance at least",
            "another parametrisation, such as a non-centred one",
        )
    return None


def strayed(m: Measured) -> Finding | None:
    """A fresh search found mass elsewhere."""
    if m.stray > MAX_UNSEEN:
        return Finding(
            UNSEEN,
            "a search that began far outside q ended where no chain has been, in a place with "
            f"about {m.stray_mass:.1%} of the posterior's mass",
            "q0=laplace(target, initial=…) with places in all of its parts",
        )
    return None


def rule_not_met(m: Measured) -> Finding | None:
    """A stopping rule was set and not met."""
    return Finding(LONGER, m.complaint, "more steps") if m.complaint else None


def undefined(m: Measured) -> Finding | None:
    """The density is undefined where q has mass."""
    if m.invalid > MAX_INVALID:
        return Finding(
            WEIGH,
            f"the density is NaN at {m.invalid:.0%} of q's draws",
            "a transform that keeps parameters where the model is defined",
        )
    return None


def numbers_differ(m: Measured) -> Finding | None:
    """What draws of q show is not what better draws of the posterior say."""
    if m.gap <= m.tolerance:
        return None
    reason = (
        f"draws of q show the mean or sd of {m.worst} wrong by {m.gap:.2f} sds: q has not the "
        "posterior's shape, or is not its optimum"
    )
    advice = "stop=Converged(), which keeps states of the chains to show"
    if m.k_hat <= MAX_USABLE_K:
        advice = f"result.sample(key, n, draws='resampled'), or {advice}"
    return Finding(WEIGH, reason, advice)


def numbers_unsure(m: Measured) -> Finding | None:
    """A number that the chains' states show is not known well enough."""
    if m.unsure > m.tolerance:
        reason = f"the mean or sd of {m.worst} is known to {m.unsure:.2f} of its sds only"
        return Finding(LONGER, reason, "more steps")
    return None


def several_modes(m: Measured) -> Finding | None:
    """Searches ended in different places, and q is not so near that it covers them all."""
    if not m.places_agree and m.parts == 1 and not _is_near(m):
        return Finding(
            WEIGH,
            "searches found several modes: q spreads over them, and over the gaps between",
            "result.resample(), or the chains' own states",
        )
    return None


def masses_unsure(m: Measured) -> Finding | None:
    """Chains that change modes seldom do not tell how much mass each has."""
    if m.parts > 1 and not _is_near(m) and not m.mass_unsure <= MAX_MASS_UNSURE * m.tolerance:
        return Finding(
            LONGER,
            f"the mass of one of {m.parts} modes is known to {m.mass_unsure:.2f} only: a chain "
            f"goes from one to another {m.changes:.2g} times",
            "more steps",
        )
    return None


def masses_wrong(m: Measured) -> Finding | None:
    """A mode has another mass than its component."""
    if m.mass_gap > m.tolerance:
        return Finding(
            LONGER,
            f"by as many draws of each of the {m.parts} modes, one has another mass than in q: a "
            f"mean or sd is wrong by {m.mass_gap:.2f} sds for it",
            "more steps",
        )
    return None


def short_reach(m: Measured) -> Finding | None:
    """Gradient moves are much shorter than they should be, and weights do not vouch for q."""
    if m.reach < MIN_REACH and (m.k_hat > MAX_USABLE_K or m.worth < MIN_WORTH_IF_K_IS_HIGH):
        return Finding(
            ROUGH,
            f"gradient moves reach only {m.reach:.0%} as far as they should, because longer steps "
            "are rejected: the density has an edge, or regions of a much smaller scale",
            "a transform that has no edge, or another parametrisation",
        )
    return None


def trapped(m: Measured) -> Finding | None:
    """A chain has spent all of its time in a part that is much narrower than where others are."""
    if m.has_chains and m.narrowest < MIN_NARROWEST:
        return Finding(
            STUCK,
            f"a chain spreads only {np.exp(m.narrowest):.0%} as far as the others: it is in a "
            "narrow part of the posterior, which chains seldom find and do not leave",
            "more steps, a richer family, or q0=laplace(target, initial=…) with a place there",
        )
    return None


def sticks(m: Measured) -> Finding | None:
    """Most proposals are accepted, and yet some chains stay where they are.

    Where q gives a place far less than the posterior does, chains that come there do not leave.
    """
    often = m.acceptance > MIN_USUAL_ACCEPTANCE
    if m.has_chains and not m.moves_alone and often and m.stay > MAX_STAY:
        return Finding(
            STUCK,
            f"{m.acceptance:.0%} of the proposals are accepted, but for {m.stay:.0%} of their time "
            "chains stay in one place: there are narrow parts that q does not see",
            "gradient moves such as Cycle(IMH(), HMC()), or a richer family",
        )
    return None


def close(m: Measured) -> Finding | None:
    """The draws of q are nearly draws of π."""
    near = m.k_hat <= MAX_GOOD_K and m.worth >= MIN_WORTH
    return Finding(GOOD, _share(m)) if near or _covers(m) else None


# Where π is not of q's shape, chains that find their own way tell whether its moments are q's.
# Independent proposals cannot tell that: what q does not reach, they do not either.


def stays_long(m: Measured) -> Finding | None:
    """Chains that move by themselves stay long in some places."""
    if m.has_chains and m.moves_alone and m.stay > MAX_STAY:
        return Finding(
            STUCK,
            f"for {m.stay:.0%} of their time chains cannot move, though others do: there are "
            "regions whose scale is much smaller than elsewhere",
            "another parametrisation, such as a non-centred one",
        )
    return None


def mixes_slowly(m: Measured) -> Finding | None:
    """Chains that move by themselves have not earned enough draws."""
    slow = m.rhat > MAX_RHAT_ALONE or m.chain_ess < MIN_ESS_ALONE
    slow = slow or m.efficiency < MIN_EFFICIENCY
    share = "" if np.isnan(m.efficiency) else f", {m.efficiency:.1%} of their states"
    if m.has_chains and m.moves_alone and slow:
        return Finding(
            STUCK,
            f"the chains mix slowly (R̂ {m.rhat:.2f}, {m.chain_ess:.0f} effective draws{share}), "
            f"and q is too far from the posterior to check them: {_share(m)}",
            "more steps, or another parametrisation",
        )
    return None


def chains_vouch(m: Measured) -> Finding | None:
    """Chains that move by themselves mix, and have the moments of q."""
    if m.has_chains and m.moves_alone:
        return Finding(
            GOOD,
            f"the chains mix (R̂ {m.rhat:.3f}, {m.chain_ess:.0f} effective draws) and q has their "
            f"means and standard deviations; but the posterior is not of q's shape ({_share(m)}): "
            "take quantiles from the chains' states, as to_arviz() has them",
        )
    return None


def not_covered(m: Measured) -> Finding | None:
    """The draws of q miss a part of the posterior."""
    if not m.k_hat <= MAX_USABLE_K:
        return Finding(
            WEIGH,
            f"k̂ = {m.k_hat:.2f}: draws of q do not cover the posterior, and weights alone "
            "cannot mend that",
            "a richer family; or the chains' own states, if they mix. With few chains q may sit on "
            "one part of the posterior: compare a fit with more of them",
        )
    return None


def needs_weights(m: Measured) -> Finding | None:
    """The draws of q cover the posterior and are not as good as its own."""
    return Finding(WEIGH, _share(m), "result.resample()")


RULES: tuple[Rule, ...] = (
    diverged,
    improper,
    imprecise,
    on_its_way,
    follows_chains,
    hardly_accepts,
    chains_disagree,
    still_moving,
    differs_from_chains,
    several_modes,
    masses_unsure,
    masses_wrong,
    heavy_tails,
    unseen_mass,
    too_narrow,
    tail_too_short,
    strayed,
    rule_not_met,
    undefined,
    numbers_differ,
    numbers_unsure,
    trapped,
    sticks,
    close,
    short_reach,
    stays_long,
    mixes_slowly,
    chains_vouch,
    not_covered,
    needs_weights,
)


def _moving(m: Measured) -> Finding:
    reason = f"q is still moving: by {m.motion:.2f} posterior sds over the next iterations"
    return Finding(LONGER, reason, "more steps, or average=True")


def _is_near(m: Measured) -> bool:
    """Tell whether draws of q are nearly as good as the posterior's."""
    return m.k_hat <= MAX_GOOD_K and m.worth >= MIN_WORTH_IF_K_IS_HIGH


def _covers(m: Measured) -> bool:
    """Tell whether most draws of q are as good as the posterior's, though a few may weigh much."""
    return m.k_hat <= MAX_USABLE_K and m.worth >= MIN_WORTH_IF_K_IS_HIGH


def _share(m: Measured) -> str:
    return f"k̂ = {m.k_hat:.2f} and a draw of q is worth {m.worth:.2f} of π's"
