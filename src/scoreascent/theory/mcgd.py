"""Convergence rates of Markov chain gradient descent (table:convergence), up to constants.

Each is the rate at which the objective of its reference falls after T iterations, without the
constant that depends on the problem: use them to compare, not as numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scoreascent.theory._checks import (
    Floats,
    at_least,
    at_most_zero,
    counts,
    same_shape,
    unwrap,
)


def duchi_rate(t: ArrayLike, g2: ArrayLike, log_rho: ArrayLike) -> Floats:
    """Mirror descent with steps γ/√t: ``G² log T / (log ρ⁻¹ √T)`` (Duchi et al., Cor. 3.5).

    Args:
        t: iterations T ≥ 1.
        g2: G² ≥ 0, a bound on E‖g‖².
        log_rho: log of the mixing rate, in [−inf, 0], e.g. ``imh_rate(log_wstar, log=True)``. At
            0 the chain never mixes and the rate is ``inf``; at −inf the samples are independent,
            the term vanishes and the rate is 0.

    >>> round(float(duchi_rate(100, 2.0, np.log(0.5))), 6)
    1.328771
    """
    t, g2, log_rho = counts("t", t, 1), at_least("g2", g2, 0.0), at_most_zero("log_rho", log_rho)
    same_shape(t=t, g2=g2, log_rho=log_rho)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rate = g2 * np.log(t) / np.sqrt(t) / -log_rho
    return unwrap(np.where(log_rho == 0, np.inf, rate))


def doan_nesterov_rate(t: ArrayLike, g2: ArrayLike) -> Floats:
    """Accelerated SGD: ``G² log T / √T`` whatever the mixing rate (Doan et al. 2020, Thm. 2).

    Steps 2/(t+1), momentum 1/(2L√(t+1)).

    Args:
        t: iterations T ≥ 1.
        g2: G² ≥ 0, a bound on ‖g‖².

    >>> round(float(doan_nesterov_rate(100, 2.0)), 6)
    0.921034
    """
    t, g2 = counts("t", t, 1), at_least("g2", g2, 0.0)
    same_shape(t=t, g2=g2)
    return unwrap(g2 * np.log(t) / np.sqrt(t))


def doan_sgd_rate(t: ArrayLike, g2: ArrayLike) -> Floats:
    """SGD with steps γ/t: ``G² log T / T``, strongly convex (Doan et al. 2020, Thms. 1 and 2).

    Args:
        t: iterations T ≥ 1.
        g2: G² ≥ 0; here G bounds ‖g‖/(‖λ‖ + 1).

    >>> round(float(doan_sgd_rate(100, 2.0)), 6)
    0.092103
    """
    t, g2 = counts("t", t, 1), at_least("g2", g2, 0.0)
    same_shape(t=t, g2=g2)
    return unwrap(g2 * np.log(t) / t)
