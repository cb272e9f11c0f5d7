"""Arguments in, float64 arrays out; what is wrong is named with its value and what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
"""Float64 results; a result without axes is a numpy scalar."""

_NOT_NUMBERS = "cOSUMm"  # numpy would turn None into NaN, "3" into 3 and 1j into 0
_SUM_TOLERANCE = 1e-8
_SYMMETRY_TOLERANCE = 1e-6  # covariances that passed through float32 are this asymmetric


def unwrap(x: Any) -> Floats:
    """Turn an array without axes into a numpy scalar, which is what ufuncs give for scalars."""
    result: Floats = np.asarray(x, dtype=np.float64)[()]
    return result


def real(name: str, value: ArrayLike) -> Floats:
    """Convert to float64, or say which argument is not made of real numbers."""
    try:
        x = np.asarray(value)
        if x.dtype.kind in _NOT_NUMBERS:
            raise TypeError
        return x.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be real numbers in a rectangular array, got {value!r}"
        ) from None


def _require(name: str, x: Floats, ok: NDArray[np.bool_], expected: str) -> None:
    if not np.all(ok):
        where = np.argwhere(~np.asarray(ok))[0]
        place = f" at index {tuple(where.tolist())}" if where.size else ""
        raise ValueError(f"{name} must be {expected}, got {x[tuple(where)]}{place}")


def at_least(name: str, value: ArrayLike, low: float, *, infinite: bool = False) -> Floats:
    """Numbers ≥ low: never NaN, and never +∞ unless the quantity may be infinite."""
    x = real(name, value)
    kind = "a number or +inf" if infinite else "finite"
    _require(name, x, (x >= low) & (infinite | np.isfinite(x)), f"{kind} and at least {low:g}")
    return x


def at_most_zero(name: str, value: ArrayLike) -> Floats:
    """Logs of numbers in [0, 1]."""
    x = real(name, value)
    _require(name, x, x <= 0, "the log of a number in [0, 1], so at most 0")
    return x


def positive(name: str, value: ArrayLike, *, infinite: bool = False) -> Floats:
    """Numbers > 0."""
    x = real(name, value)
    kind = "positive" if infinite else "positive and finite"
    _require(name, x, (x > 0) & (infinite | np.isfinite(x)), kind)
    return x


def log_weight_bound(value: ArrayLike) -> Floats:
    """Check log w*; w* = sup π/q ≥ 1 because both integrate to one."""
    x = real("log_wstar", value)
    _require("log_wstar", x, x >= 0, "at least 0 (w* = sup π/q is at least 1; inf is allowed)")
    return x


def counts(name: str, value: ArrayLike, low: int) -> Floats:
    """Whole numbers ≥ low, as floats so that large powers do not wrap around."""
    x = real(name, value)
    whole = np.isfinite(x) & (np.floor(x) == x)
    _require(name, x, whole & (x >= low), f"a whole number and at least {low}")
    return x


def one_count(name: str, value: int, low: int) -> int:
    """Check a single whole number ≥ low."""
    x = counts(name, value, low)
    if x.ndim:
        raise ValueError(f"{name} must be one whole number, got an array of shape {x.shape}")
    return int(x)


def same_shape(**named: Floats) -> None:
    """Raise unless the named arrays broadcast against each other."""
    try:
        np.broadcast_shapes(*(x.shape for x in named.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in named.items())
        raise ValueError(f"shapes must broadcast against each other, got {shapes}") from None


def probabilities(name: str, value: ArrayLike, *, positive: bool = False) -> Floats:
    """Probability vectors along the last axis, renormalised to sum to one to rounding."""
    x = real(name, value)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} must be a vector of probabilities, got shape {x.shape}")
    ok = (x > 0 if positive else x >= 0) & np.isfinite(x)
    _require(name, x, ok, f"made of finite probabilities {'> 0' if positive else '≥ 0'}")
    total = x.sum(axis=-1)
    _require(f"the sum of {name}", total, np.abs(total - 1) <= _SUM_TOLERANCE, "1")
    normalised: Floats = x / total[..., None]
    return normalised


def weights(pi: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Check a target and a proposal on one discrete space; return π, q and w = π/q.

    Both must be positive: where q = 0 < π the chain never leaves, and a state with π = 0 is never
    entered, so it is no part of the space.
    """
    pi, q = probabilities("pi", pi, positive=True), probabilities("q", q, positive=True)
    if pi.ndim != 1 or pi.shape != q.shape:
        raise ValueError(
            f"pi and q must be vectors of the same length, got {pi.shape} and {q.shape}"
        )
    return pi, q, pi / q


def mean_vector(name: str, value: ArrayLike) -> Floats:
    """Check finite vectors along the last axis."""
    x = real(name, value)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., d) with d ≥ 1, got {x.shape}")
    _require(name, x, np.isfinite(x), "finite")
    return x


def covariance(name: str, value: ArrayLike) -> Floats:
    """Check symmetric positive definite matrices along the last two axes."""
    x = real(name, value)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., d, d) with d ≥ 1, got {x.shape}")
    _require(name, x, np.isfinite(x), "finite")
    swapped = np.swapaxes(x, -1, -2)
    scale = np.abs(x).max(axis=(-1, -2), initial=0.0)[..., None, None]
    _require(name, x, np.abs(x - swapped) <= _SYMMETRY_TOLERANCE * scale, "symmetric")
    symmetric: Floats = (x + swapped) / 2
    try:
        np.linalg.cholesky(symmetric)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(symmetric)[..., 0].min()
        raise ValueError(
            f"{name} must be positive definite, got a smallest eigenvalue of {least:.6g}"
        ) from None
    return symmetric
