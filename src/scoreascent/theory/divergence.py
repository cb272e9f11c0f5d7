"""How far q is from π: KL, χ² and w*, in closed form for Gaussians and for probability vectors.

``V_q[w] = χ²(π‖q)`` for w = π/q (thm:iw_variance), and ``KL ≤ log(1+χ²) ≤ log w*``. Erratum 7: the
paper (thm:wstar) prints a strict ``e^KL < w*``; the two are equal at π = q.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreascent.theory._checks import (
    Floats,
    at_least,
    covariance,
    log_weight_bound,
    mean_vector,
    probabilities,
    same_shape,
    unwrap,
)


class _Whitened(NamedTuple):
    """π in the coordinates in which q is standard normal."""

    cov: Floats  # Lq⁻¹ Σp Lq⁻ᵀ
    shift: Floats  # Lq⁻¹ (μp − μq)
    log_det: Floats  # log |Σq| − log |Σp|
    rounding: Floats  # how far Lq⁻¹ Σq Lq⁻ᵀ is from the identity


def _half_log_det(cholesky: Floats) -> Floats:
    result: Floats = np.log(np.diagonal(cholesky, axis1=-2, axis2=-1)).sum(axis=-1)
    return result


def _whiten(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> _Whitened:
    mp, cp = mean_vector("mean_p", mean_p), covariance("cov_p", cov_p)
    mq, cq = mean_vector("mean_q", mean_q), covariance("cov_q", cov_q)
    sizes = {"mean_p": mp, "cov_p": cp, "mean_q": mq, "cov_q": cq}
    if len({x.shape[-1] for x in sizes.values()}) > 1:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in sizes.items())
        raise ValueError(f"means and covariances must have the same dimension d, got {shapes}")
    same_shape(mean_p=mp, mean_q=mq, cov_p=cp[..., 0], cov_q=cq[..., 0])
    # In units of q's standard deviations, variables of very different scales do no harm.
    unit = np.sqrt(np.diagonal(cq, axis1=-2, axis2=-1))
    units = unit[..., :, None] * unit[..., None, :]
    cp, cq = cp / units, cq / units
    root = np.linalg.cholesky(cq)

    def conjugate(cov: Floats) -> Floats:
        half = np.linalg.solve(root, cov)
        whole: Floats = np.linalg.solve(root, np.swapaxes(half, -1, -2))
        return whole

    shift = unwrap(np.linalg.solve(root, ((mp - mq) / unit)[..., None])[..., 0])
    log_det = 2 * (_half_log_det(root) - _half_log_det(np.linalg.cholesky(cp)))
    residual = np.abs(conjugate(cq) - np.eye(cq.shape[-1])).max(axis=(-1, -2))
    return _Whitened(conjugate(cp), shift, log_det, residual)


def _spectrum(white: _Whitened) -> tuple[Floats, Floats, Floats]:
    """Variances of π and its shift along the principal axes, and the tolerance of the variances."""
    variance, axes = np.linalg.eigh((white.cov + np.swapaxes(white.cov, -1, -2)) / 2)
    shift = np.einsum("...ji,...j->...i", axes, white.shift)
    size = variance.shape[-1]
    tolerance = 8 * size * (white.rounding + np.finfo(np.float64).eps)
    return variance, shift, tolerance[..., None]


def gaussian_kl(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> Floats:
    """``KL(p‖q) = ½[tr(Σq⁻¹Σp) − d + log(|Σq|/|Σp|) + Δᵀ Σq⁻¹ Δ]``, Δ = μp − μq.

    Args:
        mean_p: mean of p (the target), shape (..., d).
        cov_p: covariance of p, shape (..., d, d), positive definite.
        mean_q: mean of q, shape (..., d).
        cov_q: covariance of q, shape (..., d, d), positive definite.

    Returns:
        One number for each element of the broadcast leading axes.

    >>> float(gaussian_kl([1.0], [[1.0]], [0.0], [[1.0]]))
    0.5
    """
    white = _whiten(mean_p, cov_p, mean_q, cov_q)
    trace = (np.diagonal(white.cov, axis1=-2, axis2=-1) - 1).sum(axis=-1)
    kl = (trace + white.log_det + (white.shift**2).sum(axis=-1)) / 2
    return unwrap(np.maximum(kl, 0.0))  # rounding must not make it negative at p = q


def gaussian_log1p_chi2(
    mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike
) -> Floats:
    """``log(1 + χ²(p‖q)) = log E_p[p/q]``, for where χ² itself overflows; see `gaussian_chi2`.

    >>> float(gaussian_log1p_chi2([30.0], [[1.0]], [0.0], [[1.0]]))
    900.0
    """
    white = _whiten(mean_p, cov_p, mean_q, cov_q)
    variance, shift, tolerance = _spectrum(white)
    margin = 2 - variance
    finite = margin > tolerance
    safe = np.where(finite, margin, 1.0)
    log1p = white.log_det / 2 + (shift**2 / safe - np.log(safe) / 2).sum(axis=-1)
    return unwrap(np.where(finite.all(axis=-1), np.maximum(log1p, 0.0), np.inf))


def gaussian_chi2(
    mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike
) -> Floats:
    """χ²(p‖q) = V_q[p/q] of Gaussians, infinite unless 2Σq ≻ Σp (thm:iw_variance).

    ``1 + χ² = |Σq| / √(|Σp| |2Σq−Σp|) · exp(Δᵀ (2Σq−Σp)⁻¹ Δ)``.

    Args:
        mean_p: mean of p (the target), shape (..., d).
        cov_p: covariance of p, shape (..., d, d), positive definite.
        mean_q: mean of q, shape (..., d).
        cov_q: covariance of q, shape (..., d, d), positive definite.

    >>> round(float(gaussian_chi2([1.0], [[1.0]], [0.0], [[1.0]])), 6)
    1.718282
    >>> float(gaussian_chi2([0.0], [[2.0]], [0.0], [[1.0]]))
    inf
    """
    with np.errstate(over="ignore"):
        return unwrap(np.expm1(gaussian_log1p_chi2(mean_p, cov_p, mean_q, cov_q)))


def gaussian_log_wstar(
    mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike
) -> Floats:
    """``log w* = sup log(p/q) = ½ log(|Σq|/|Σp|) + ½ Δᵀ (Σq−Σp)⁻¹ Δ`` if Σq ≻ Σp, else ∞.

    On the boundary Σq ⪰ Σp the supremum is finite where Δ has no part in the null space of Σq−Σp:
    there the inverse is the pseudo-inverse, and p = q gives 0. A direction counts as null when
    rounding cannot tell its two variances apart. Erratum 7: at the mean-field optimum of a
    correlated target Σq − Σp has trace 0, so it is indefinite and w* = ∞.

    Args:
        mean_p: mean of p (the target), shape (..., d).
        cov_p: covariance of p, shape (..., d, d), positive definite.
        mean_q: mean of q, shape (..., d).
        cov_q: covariance of q, shape (..., d, d), positive definite.

    >>> round(float(gaussian_log_wstar([1.0], [[1.0]], [0.0], [[2.0]])), 6)  # (log 2 + 1) / 2
    0.846574
    >>> float(gaussian_log_wstar([0.0], [[2.0]], [0.0], [[1.0]]))
    inf
    """
    white = _whiten(mean_p, cov_p, mean_q, cov_q)
    variance, shift, tolerance = _spectrum(white)
    gap = 1 - variance
    wider = gap > tolerance
    length = np.sqrt((shift**2).sum(axis=-1, keepdims=True))
    null = (np.abs(gap) <= tolerance) & (np.abs(shift) <= tolerance * (1 + length))
    quadratic = np.where(wider, shift**2 / np.where(wider, gap, 1.0), 0.0).sum(axis=-1)
    log_wstar = np.maximum((white.log_det + quadratic) / 2, 0.0)
    return unwrap(np.where((wider | null).all(axis=-1), log_wstar, np.inf))


def kl_star(cov: ArrayLike) -> Floats:
    """Least inclusive KL of a mean-field Gaussian: ``½[Σ log Σ_ii − log |Σ|]`` (Figure 2's floor).

    It is reached at m = μ, σ² = diag Σ, and is ``−½ log |correlation matrix|``.

    Args:
        cov: covariance of the Gaussian target, shape (..., d, d), positive definite.

    >>> round(float(kl_star([[1.0, 0.6], [0.6, 1.0]])), 6)  # −½ log(1 − 0.36)
    0.223144
    """
    sigma = covariance("cov", cov)
    unit = np.sqrt(np.diagonal(sigma, axis1=-2, axis2=-1))
    correlation = sigma / (unit[..., :, None] * unit[..., None, :])
    return unwrap(np.maximum(-_half_log_det(np.linalg.cholesky(correlation)), 0.0))


def _vectors(pi: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats]:
    pi, q = probabilities("pi", pi), probabilities("q", q)
    if pi.shape[-1] != q.shape[-1]:
        raise ValueError(f"pi and q must have the same length, got {pi.shape} and {q.shape}")
    same_shape(pi=pi, q=q)
    return pi, q


def discrete_kl(pi: ArrayLike, q: ArrayLike) -> Floats:
    """KL(π‖q) of probability vectors along the last axis; ∞ where q = 0 < π.

    >>> round(float(discrete_kl([0.5, 0.5], [0.25, 0.75])), 6)
    0.143841
    """
    pi, q = _vectors(pi, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(pi > 0, pi * (np.log(pi) - np.log(q)), 0.0)
    return unwrap(np.maximum(terms.sum(axis=-1), 0.0))


def discrete_chi2(pi: ArrayLike, q: ArrayLike) -> Floats:
    """χ²(π‖q) = V_q[π/q] = Σ (π−q)²/q of probability vectors (thm:iw_variance).

    >>> round(float(discrete_chi2([0.5, 0.5], [0.25, 0.75])), 6)
    0.333333
    """
    pi, q = _vectors(pi, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(pi == q, 0.0, (pi - q) ** 2 / q)
    return unwrap(terms.sum(axis=-1))


def discrete_log_wstar(pi: ArrayLike, q: ArrayLike) -> Floats:
    """Return log w* = max log(π/q) of probability vectors; ∞ where q = 0 < π.

    >>> round(float(np.exp(discrete_log_wstar([0.5, 0.5], [0.25, 0.75]))), 12)
    2.0
    """
    pi, q = _vectors(pi, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_w = np.where(pi > 0, np.log(pi) - np.log(q), -np.inf)
    return unwrap(np.maximum(log_w.max(axis=-1), 0.0))


def divergence_chain_holds(
    kl: ArrayLike, chi2: ArrayLike, log_wstar: ArrayLike, *, tolerance: float = 1e-9
) -> NDArray[np.bool_]:
    """Tell whether ``KL ≤ log(1+χ²) ≤ log w*``, which numbers of one pair (π, q) must satisfy.

    The outer inequality is thm:wstar with erratum 7 (not strict). Estimates of the three that break
    it are wrong, most often because the sample never met the largest weights.

    Args:
        kl: KL(π‖q) ≥ 0.
        chi2: χ²(π‖q) ≥ 0.
        log_wstar: log w* ≥ 0.
        tolerance: allowance for rounding, relative above one and absolute below.

    >>> bool(divergence_chain_holds(0.1438, 1 / 3, np.log(2.0)))
    True
    >>> bool(divergence_chain_holds(3.0, 1 / 3, np.log(2.0)))
    False
    """
    k, c = at_least("kl", kl, 0.0, infinite=True), at_least("chi2", chi2, 0.0, infinite=True)
    lw, slack = log_weight_bound(log_wstar), at_least("tolerance", tolerance, 0.0)
    same_shape(kl=k, chi2=c, log_wstar=lw)
    middle = np.log1p(c)

    def below(a: Floats, b: Floats) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = a <= b + slack * np.maximum(1.0, b)
        return result

    holds: NDArray[np.bool_] = (below(k, middle) & below(middle, lw))[()]
    return holds
