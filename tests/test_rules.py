"""Every rule of the verdict by itself: no fit, a table of what it says to what was measured."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest

from scoreascent.diagnostics import rules
from scoreascent.diagnostics.measure import Measured
from scoreascent.diagnostics.rules import (
    GOOD,
    LONGER,
    NO_MOMENTS,
    ROUGH,
    STUCK,
    UNSEEN,
    WEIGH,
    Finding,
    judge,
)

# a fit by independent proposals that no rule objects to
FINE = Measured(
    draws=4000, k_hat=0.2, ess=3800.0, invalid=0.0, chi2=0.05, log_w_star=0.5, log_evidence=-3.0,
    looked=400, acceptance=0.8, stuck=0.0, stay=0.0, rhat=1.01, chain_ess=3000.0,
    efficiency=0.2, shift=0.0, ratio=0.0, narrowest=-0.2, tail=0.1, unseen=0.0, lacking=0.0,
    far_mass=0.0, least_log_q=-9.0, spacing=1e-6,
    rhat_lambda=1.02, drift=0.05, error=np.nan, trend=0.2, status="max_steps",
    complaint="", late_acceptance=0.8, growth=1.0, reach=1.0, places_agree=True, moves_alone=False,
    bent=False,
    parts=1, mass_unsure=0.0, mass_gap=0.0, changes=np.nan,
    tolerance=0.1, gap=0.0, unsure=0.0, worst="tau", numbers=(),
)  # fmt: skip
# one that a rule ended, and whose weights are of no use
ALONE = {"k_hat": 0.9, "chi2": 5.0, "moves_alone": True}
NO_CHAINS = dict.fromkeys(
    (
        "acceptance", "stuck", "stay", "rhat", "chain_ess", "efficiency", "shift", "ratio",
        "narrowest", "tail",
    ),
    np.nan,
)  # fmt: skip

# rule, what differs from FINE, the verdict (None: the rule is silent), a part of the reason
CASES = [
    ("diverged", {"status": "diverged"}, LONGER, "diverged"),
    ("diverged", {"drift": np.inf}, LONGER, "diverged"),
    ("diverged", {"drift": np.nan, "error": np.inf}, LONGER, "diverged"),
    ("diverged", {"drift": np.nan, "error": 0.02}, None, ""),
    (
        "improper",
        {"growth": 301.0, "far_mass": 0.11},
        NO_MOMENTS,
        "factor of 3e+02: the posterior seems improper",
    ),
    ("improper", {"growth": 299.0, "far_mass": 0.9}, None, ""),
    ("improper", {"growth": 1e5, "far_mass": 0.09}, None, ""),  # the start was too narrow
    ("imprecise", {"spacing": 8.0}, ROUGH, "8 nats apart"),
    ("imprecise", {"spacing": 0.04}, None, ""),
    ("on_its_way", {"trend": 0.96, "drift": 0.11}, LONGER, "still moving: by 0.11"),
    ("on_its_way", {"trend": 0.96, "drift": 0.09}, None, ""),
    ("on_its_way", {"trend": 0.96, "drift": 0.11, "tolerance": 0.2}, None, ""),
    ("on_its_way", {"trend": 0.94, "drift": 0.21}, None, ""),
    ("follows_chains", {"drift": 1.1, "acceptance": 0.3}, STUCK, "80.0% of the proposals"),
    ("follows_chains", {"drift": 0.9, "acceptance": 0.3}, None, ""),
    ("follows_chains", {"drift": 1.1, "acceptance": 0.5}, None, ""),
    ("follows_chains", {"drift": 1.1, **NO_CHAINS}, None, ""),
    ("hardly_accepts", {"acceptance": 0.009, "looked": 100}, STUCK, "never moved in 100 steps"),
    ("hardly_accepts", {"stuck": 0.11}, STUCK, "11% of the chains never moved in 400 steps"),
    ("hardly_accepts", {"acceptance": 0.011, "stuck": 0.1}, None, ""),
    ("hardly_accepts", NO_CHAINS, None, ""),
    ("chains_disagree", {"rhat": 1.11}, STUCK, "R̂ over the chains is 1.11"),
    ("chains_disagree", {"rhat": np.nan}, STUCK, "nan"),
    ("chains_disagree", {"rhat": 1.09}, None, ""),
    ("chains_disagree", NO_CHAINS, None, ""),
    ("still_moving", {"rhat_lambda": 1.2, "drift": 0.3}, LONGER, "by 0.30 posterior sds"),
    ("still_moving", {"rhat_lambda": 1.2, "drift": 0.1}, None, ""),
    ("still_moving", {"rhat_lambda": 1.05, "drift": 0.3}, None, ""),
    ("differs_from_chains", {"shift": 0.11}, LONGER, "means 0.11 sds away"),
    ("differs_from_chains", {"ratio": 0.11}, LONGER, "a factor of 1.12"),
    ("differs_from_chains", {"shift": 0.1, "ratio": 0.1}, None, ""),
    ("heavy_tails", {"tail": 0.51}, NO_MOMENTS, "Pareto shape 0.51"),
    ("heavy_tails", {"tail": 0.49}, None, ""),
    ("unseen_mass", {"unseen": 0.05}, UNSEEN, "5% of the posterior's second moment"),
    ("heavy_tails", {"tail": 0.6, "bent": True, "k_hat": 0.6, "chi2": 0.5}, None, ""),
    ("heavy_tails", {"tail": 0.6, "bent": True, "k_hat": 0.8}, NO_MOMENTS, "Pareto shape 0.60"),
    ("unseen_mass", {"unseen": 0.035, "moves_alone": True}, None, ""),
    ("unseen_mass", {"unseen": 0.035}, UNSEEN, "% of the posterior's second moment"),
    ("unseen_mass", {"unseen": 0.025}, None, ""),
    ("heavy_tails", NO_CHAINS, None, ""),
    ("rule_not_met", {"complaint": "not converged after 10 steps"}, LONGER, "after 10 steps"),
    ("rule_not_met", {}, None, ""),
    ("undefined", {"invalid": 0.02}, WEIGH, "NaN at 2% of q's draws"),
    ("undefined", {"invalid": 0.01}, None, ""),
    ("strayed", {"stray": 0.05, "stray_mass": 0.004}, UNSEEN, "0.4% of the posterior's mass"),
    ("strayed", {"stray": 0.03, "stray_mass": 0.03}, None, ""),
    ("numbers_differ", {"gap": 0.11}, WEIGH, "the mean or sd of tau wrong by 0.11 sds"),
    ("numbers_differ", {"gap": 0.11, "k_hat": 0.8}, WEIGH, "tau"),
    ("numbers_differ", {"gap": 0.1}, None, ""),
    ("numbers_differ", {"gap": 0.11, "tolerance": 0.2}, None, ""),
    ("numbers_unsure", {"unsure": 0.11}, LONGER, "tau is known to 0.11 of its sds only"),
    ("numbers_unsure", {"unsure": 0.1}, None, ""),
    ("numbers_unsure", {"unsure": 0.1, "tolerance": 0.05}, LONGER, "tau"),
    ("too_narrow", {"lacking": 0.1}, UNSEEN, "it lacks 10% of a variance"),
    ("too_narrow", {"lacking": 0.07}, None, ""),
    ("tail_too_short", {"tail_lacking": 0.04}, UNSEEN, "one tail lacks 4% of a variance at least"),
    ("tail_too_short", {"tail_lacking": 0.03}, None, ""),
    ("several_modes", {"places_agree": False, "k_hat": 0.6}, WEIGH, "several modes"),
    ("several_modes", {"places_agree": False, "chi2": 1.1}, WEIGH, "several modes"),
    ("several_modes", {"places_agree": False}, None, ""),  # q covers them all
    ("several_modes", {}, None, ""),
    ("several_modes", {"places_agree": False, "k_hat": 0.6, "parts": 2}, None, ""),
    ("masses_unsure", {"parts": 2, "k_hat": 0.6, "mass_unsure": 0.03}, LONGER, "one of 2 modes"),
    ("masses_unsure", {"parts": 2, "k_hat": 0.6, "mass_unsure": 0.019}, None, ""),
    ("masses_unsure", {"parts": 2, "mass_unsure": 0.03}, None, ""),  # draws of q tell it
    ("masses_wrong", {"parts": 2, "mass_gap": 0.11}, LONGER, "wrong by 0.11 sds"),
    ("masses_wrong", {"parts": 2, "mass_gap": 0.1}, None, ""),
    ("heavy_tails", {"parts": 2, "tail": 1.7}, None, ""),  # a light mode far away, which q has
    ("heavy_tails", {"parts": 2, "tail": 1.7, "k_hat": 0.6}, NO_MOMENTS, "tails"),
    ("short_reach", {"reach": 0.29, "k_hat": 0.8}, ROUGH, "only 29% as far"),
    ("short_reach", {"reach": 0.29, "chi2": 1.1}, ROUGH, "only 29% as far"),
    ("short_reach", {"reach": 0.29}, None, ""),
    ("short_reach", {"reach": 0.31, "k_hat": 0.8}, None, ""),
    ("trapped", {"narrowest": -1.8}, STUCK, "a chain spreads only 17% as far as the others"),
    ("trapped", {"narrowest": -0.6}, None, ""),
    ("trapped", NO_CHAINS, None, ""),
    ("sticks", {"stay": 0.03}, STUCK, "80% of the proposals are accepted, but for 3%"),
    ("sticks", {"stay": 0.02}, None, ""),
    ("sticks", {"stay": 0.5, "acceptance": 0.5}, None, ""),
    ("sticks", {"stay": 0.5, "moves_alone": True}, None, ""),
    ("sticks", {"stay": 0.5, **NO_CHAINS}, None, ""),
    ("close", {}, GOOD, "k̂ = 0.20 and a draw of q is worth 0.95"),
    ("close", {"k_hat": 0.49, "chi2": 8.9}, GOOD, "worth 0.10"),
    ("close", {"k_hat": 0.49, "chi2": 9.1}, None, ""),
    ("close", {"k_hat": 0.69, "chi2": 0.9}, GOOD, "worth 0.53"),
    ("close", {"k_hat": 0.69, "chi2": 1.1}, None, ""),
    ("close", {"k_hat": 0.71, "chi2": 0.0}, None, ""),
    ("stays_long", {"moves_alone": True, "stay": 0.03}, STUCK, "for 3% of their time"),
    ("stays_long", {"moves_alone": True, "stay": 0.02}, None, ""),
    ("stays_long", {"moves_alone": False, "stay": 0.5}, None, ""),
    ("mixes_slowly", {"moves_alone": True, "rhat": 1.05}, STUCK, "mix slowly (R̂ 1.05"),
    ("mixes_slowly", {"moves_alone": True, "chain_ess": 399.0}, STUCK, "399 effective draws"),
    (
        "mixes_slowly",
        {"moves_alone": True, "efficiency": 0.019},
        STUCK,
        "3000 effective draws, 1.9% of their states)",
    ),
    ("mixes_slowly", {"moves_alone": True, "efficiency": 0.021}, None, ""),
    ("mixes_slowly", {"moves_alone": True, "efficiency": np.nan}, None, ""),
    ("mixes_slowly", {"moves_alone": True}, None, ""),
    ("mixes_slowly", {"moves_alone": False, "chain_ess": 10.0}, None, ""),
    ("chains_vouch", {"moves_alone": True}, GOOD, "not of q's shape"),
    ("chains_vouch", {"moves_alone": False}, None, ""),
    ("chains_vouch", {"moves_alone": True, **NO_CHAINS}, None, ""),
    ("not_covered", {"k_hat": 0.71}, WEIGH, "do not cover the posterior"),
    ("not_covered", {"k_hat": np.nan}, WEIGH, "nan"),
    ("not_covered", {"k_hat": 0.7}, None, ""),
    ("needs_weights", {}, WEIGH, "worth 0.95"),
]


@pytest.mark.parametrize(("rule", "differs", "verdict", "says"), CASES)
def test_a_rule(rule: str, differs: dict, verdict: str | None, says: str) -> None:
    finding: Finding | None = getattr(rules, rule)(replace(FINE, **differs))
    if verdict is None:
        assert finding is None
    else:
        assert finding is not None
        assert finding.verdict == verdict
        assert says in finding.reason
        assert (finding.advice == "") == (verdict == GOOD)


def test_every_rule_has_cases_of_both_kinds() -> None:
    """The last one always applies, so it has no silent case."""
    names = [rule.__name__ for rule in rules.RULES]
    assert len(set(names)) == len(names)
    speaks = {rule for rule, _, verdict, _ in CASES if verdict is not None}
    silent = {rule for rule, _, verdict, _ in CASES if verdict is None}
    assert speaks == set(names)
    assert silent == set(names) - {"needs_weights"}


# what differs from FINE, and the rule that is to win: those before it are silent, those after not
ORDER = [
    ({}, "close"),
    ({"status": "diverged", "growth": 1e4, "rhat": 2.0}, "diverged"),
    ({"growth": 1e4, "far_mass": 1.0, "spacing": 8.0}, "improper"),
    ({"spacing": 8.0, "trend": 1.0, "drift": 2.0}, "imprecise"),
    ({"trend": 1.0, "drift": 2.0, "acceptance": 0.1}, "on_its_way"),
    ({"drift": 2.0, "acceptance": 0.005, "rhat": 3.0}, "follows_chains"),
    ({"acceptance": 0.005, "rhat": 3.0, "late_acceptance": 0.005}, "hardly_accepts"),
    ({"rhat": 3.0, "rhat_lambda": 3.0, "drift": 0.5}, "chains_disagree"),
    ({"rhat_lambda": 3.0, "drift": 0.5, "shift": 1.0}, "still_moving"),
    ({"shift": 1.0, "places_agree": False}, "differs_from_chains"),
    ({"parts": 2, "k_hat": 0.6, "mass_unsure": 0.1, "mass_gap": 1.0}, "masses_unsure"),
    ({"parts": 2, "mass_unsure": 0.1, "mass_gap": 1.0, "unseen": 1.0}, "masses_wrong"),
    ({"places_agree": False, "k_hat": 0.6, "tail": 1.7}, "several_modes"),  # two places are no tail
    ({"tail": 1.0, "unseen": 0.5}, "heavy_tails"),
    ({"unseen": 0.5, "lacking": 0.5}, "unseen_mass"),
    ({"lacking": 0.5, "tail_lacking": 0.5}, "too_narrow"),
    ({"tail_lacking": 0.5, "stray": 0.5}, "tail_too_short"),
    ({"stray": 0.5, "complaint": "not converged"}, "strayed"),
    ({"complaint": "not converged", "invalid": 0.5}, "rule_not_met"),
    ({"invalid": 0.5, "k_hat": 2.0, "gap": 0.5}, "undefined"),
    ({"gap": 0.5, "unsure": 0.5}, "numbers_differ"),
    ({"unsure": 0.5, "narrowest": -2.0}, "numbers_unsure"),
    ({"narrowest": -2.0, "stay": 0.5}, "trapped"),
    ({"stay": 0.5}, "sticks"),
    ({"reach": 0.1, "chi2": 5.0, "k_hat": 0.3}, "close"),  # an edge, and weights that are bounded
    ({**ALONE, "reach": 0.1, "stay": 0.5}, "short_reach"),
    ({"moves_alone": True, "stay": 0.5, "chain_ess": 10.0}, "close"),
    ({**ALONE, "stay": 0.5, "chain_ess": 10.0}, "stays_long"),
    ({**ALONE, "chain_ess": 10.0}, "mixes_slowly"),
    (ALONE, "chains_vouch"),
    ({"k_hat": 0.9}, "not_covered"),
    ({"k_hat": 0.6, "chi2": 3.0}, "needs_weights"),
    ({**NO_CHAINS, "k_hat": 0.9}, "not_covered"),
    (NO_CHAINS, "close"),
]


@pytest.mark.parametrize(("differs", "winner"), ORDER)
def test_the_first_rule_that_applies_wins(differs: dict, winner: str) -> None:
    measured = replace(FINE, **differs)
    first = next(rule for rule in rules.RULES if rule(measured) is not None)
    assert first.__name__ == winner
    assert judge(measured) == first(measured)


def test_every_rule_wins_somewhere() -> None:
    assert {winner for _, winner in ORDER} == {rule.__name__ for rule in rules.RULES}


def test_every_measurement_is_documented() -> None:
    page = inspect.getdoc(Measured)
    assert page is not None
    for field in fields(Measured):
        assert f"\n    {field.name}: " in page
