"""How fast the chains of MSC, MSC-RB, JSA and pMCSA forget where they started.

The bounds are those of the theorems and are not clipped: a value above one says nothing about a
total-variation distance, so plot ``np.minimum(bound, 1)``. Where w* is large a rate rounds to 1,
while ``log=True`` keeps the ``−1/w*`` that is left of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scoreascent.theory._checks import (
    Floats,
    at_least,
    counts,
    log_weight_bound,
    same_shape,
    unwrap,
)
from scoreascent.theory._logs import exp_unless, log_geometric_sum, log_power, log_r


def imh_rate(log_wstar: ArrayLike, *, log: bool = False) -> Floats:
    """Mixing rate ``r = 1 − 1/w*`` of one IMH transition, and so of pMCSA.

    Assumption thm:bounded_weight and the ergodicity statement in the proof of thm:jsa:
    ``d_TV(K^k(z, ·), π) ≤ r^k``, with equality up to the factor 1 − π(z) where w(z) = w*.

    Args:
        log_wstar: log w* ≥ 0; ``inf`` gives r = 1.
        log: return log r.

    >>> round(float(imh_rate(np.log(4.0))), 12)
    0.75
    >>> float(imh_rate(700.0, log=True))  # r itself rounds to one
    -9.8596...e-305
    """
    return exp_unless(log_r(log_weight_bound(log_wstar)), log)


def jsa_rate(log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Mixing rate ``r^N`` of one JSA iteration, N IMH transitions of one chain (thm:jsa).

    >>> round(float(jsa_rate(np.log(2.0), 3)), 12)
    0.125
    """
    lw, n = log_weight_bound(log_wstar), counts("n", n, 1)
    same_shape(log_wstar=lw, n=n)
    return exp_unless(log_power(n, log_r(lw)), log)


def msc_rate(log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Mixing rate ``1 − (N−1)/(2w*+N−2)`` of the CIS kernel (thm:msc).

    It is 1/N at w* = 1, where it is sharp, and 1 at w* = ∞.

    Args:
        log_wstar: log w* ≥ 0.
        n: N ≥ 2, points of the CIS kernel with the retained one, so N − 1 fresh proposals.
        log: return the log of the rate.

    >>> round(float(msc_rate(np.log(5.0), 10)), 12)
    0.5
    >>> round(float(msc_rate(0.0, 10)), 12)
    0.1
    """
    lw, n = log_weight_bound(log_wstar), counts("n", n, 2)
    same_shape(log_wstar=lw, n=n)
    p = np.exp(-lw)
    below_one = (n - 1) * p / (2 + (n - 2) * p)
    # Near one the rate is known by what it lacks, near zero by its value.
    near_one = np.log1p(-np.minimum(below_one, 0.5)) + 0.0
    log_rate = np.where(below_one < 0.5, near_one, np.log((2 - p) / (2 + (n - 2) * p)))
    return exp_unless(log_rate, log)


def msc_rb_rate(log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Rate ``γ = 2w*/(2w*+N−2)`` at which the bias of MSC-RB decays (thm:mscrb).

    Args:
        log_wstar: log w* ≥ 0.
        n: N ≥ 2, with the retained point; γ = 1 at N = 2.
        log: return log γ.

    >>> round(float(msc_rb_rate(np.log(4.0), 10)), 12)
    0.5
    """
    lw, n = log_weight_bound(log_wstar), counts("n", n, 2)
    same_shape(log_wstar=lw, n=n)
    return exp_unless(0.0 - np.log1p((n - 2) * np.exp(-lw) / 2), log)


def msc_mixing(k: ArrayLike, log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Bound on ``d_TV(P^k, π)`` for MSC: ``(1 − (N−1)/(2w*+N−2))^k`` (thm:msc).

    Args:
        k: number of iterations ≥ 0.
        log_wstar: log w* ≥ 0.
        n: N ≥ 2, with the retained point.
        log: return the log of the bound.

    >>> round(float(msc_mixing(3, np.log(5.0), 10)), 12)
    0.125
    """
    k, log_rate = counts("k", k, 0), msc_rate(log_wstar, n, log=True)
    same_shape(k=k, log_wstar_and_n=np.asarray(log_rate))
    return exp_unless(log_power(k, log_rate), log)


def jsa_mixing(k: ArrayLike, log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Bound on the mixing of JSA: ``Σ_{n≤N} r^((k−1)N+n)`` (thm:jsa).

    The closed form is ``r(1−r^N) / (r^N(1−r)) · r^(kN)``; it is 0 at w* = 1 and N at w* = ∞.
    Erratum 4: it bounds the sum over n of the distances of the *marginals* z⁽ⁿ⁾ from π. The
    joint law of a JSA iteration is no product and does not tend to Π = π ⊗ … ⊗ π, so this is no
    bound on d_TV(P^k, Π), as the theorem has it.

    Args:
        k: number of iterations ≥ 1.
        log_wstar: log w* ≥ 0.
        n: N ≥ 1 transitions per iteration.
        log: return the log of the bound.

    >>> round(float(jsa_mixing(1, np.log(2.0), 2)), 12)  # 1/2 + 1/4
    0.75
    """
    k, lw, n = counts("k", k, 1), log_weight_bound(log_wstar), counts("n", n, 1)
    same_shape(k=k, log_wstar=lw, n=n)
    waited = log_power((k - 1) * n, log_r(lw))
    return exp_unless(waited + log_geometric_sum(n, lw), log)


def pmcsa_mixing(k: ArrayLike, log_wstar: ArrayLike, n: ArrayLike, *, log: bool = False) -> Floats:
    """Bound on ``d_TV(P^k, Π)`` for pMCSA: ``N r^k`` (thm:pmcsa).

    Args:
        k: number of iterations ≥ 0.
        log_wstar: log w* ≥ 0.
        n: N ≥ 1 parallel chains.
        log: return the log of the bound.

    >>> round(float(pmcsa_mixing(5, np.log(2.0), 8)), 12)
    0.25
    """
    k, lw, n = counts("k", k, 0), log_weight_bound(log_wstar), counts("n", n, 1)
    same_shape(k=k, log_wstar=lw, n=n)
    return exp_unless(np.log(n) + log_power(k, log_r(lw)), log)


def product_tv_bound(tv: ArrayLike, *, axis: int = -1) -> Floats:
    """Distance of products: ``d_TV(⊗p_n, ⊗q_n) ≤ Σ_n d_TV(p_n, q_n)`` (thm:product_measure_bound).

    The lemma is stated for the sets A^N; it holds for every set, which is what its use in
    thm:jsa and thm:pmcsa needs.

    Args:
        tv: distances (or bounds on them) of the factors, ≥ 0.
        axis: the axis that counts the factors.

    >>> float(product_tv_bound([0.25, 0.5]))
    0.75
    """
    distances = at_least("tv", tv, 0.0)
    if distances.ndim == 0:
        raise ValueError(f"tv must have an axis to sum over, got the number {distances}")
    if not -distances.ndim <= axis < distances.ndim:
        raise ValueError(f"axis must be an axis of tv, of shape {distances.shape}, got {axis}")
    return unwrap(distances.sum(axis=axis))
