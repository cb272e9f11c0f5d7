"""Densities whose means and standard deviations are known exactly, from plain to treacherous.

A shape is regular if a good fit of it can be expected: one mode, a variance, no scale that is
hidden inside another. A third of the shapes was kept aside while the verdict's rules were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from scipy.special import digamma, polygamma

Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Shape:
    """A density on ℝᵈ, its exact moments (∞ or NaN where there are none), and what to expect."""

    kind: str
    log_density: Callable[[Any], Any]
    mean: Numbers
    sd: Numbers
    regular: bool
    held_out: bool = False

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return len(self.mean)


def mixture(
    kind: str, weights: Any, centres: Any, sds: Any, regular: bool = False, held_out: bool = False
) -> Shape:
    """Spherical Gaussians with these weights, centres (k, d) and sds (k,)."""
    w, c, s = (np.asarray(x, np.float64) for x in (weights, centres, sds))
    w = w / w.sum()
    mean = w @ c
    variance = w @ (c**2 + s[:, None] ** 2) - mean**2
    log_w = np.asarray(np.log(w) - c.shape[1] * np.log(s), np.float32)
    centre, scale = np.asarray(c, np.float32), np.asarray(s[:, None], np.float32)

    def log_density(z: Any) -> Any:
        return logsumexp(log_w - 0.5 * jnp.sum(((z - centre) / scale) ** 2, -1))

    return Shape(kind, log_density, mean, np.sqrt(variance), regular, held_out)


def _student(df: float, dim: int, held_out: bool = False) -> Shape:
    """The multivariate t; it is regular if its sds can be learnt from a few thousand draws."""
    sd = math.sqrt(df / (df - 2)) if df > 2 else math.inf
    mean = 0.0 if df > 1 else math.nan

    def log_density(z: Any) -> Any:
        return -0.5 * (df + dim) * jnp.log1p(jnp.sum(z**2) / df)

    return Shape("tails", log_density, np.full(dim, mean), np.full(dim, sd), df >= 8, held_out)


def _gaussian(kind: str, mean: Any, sd: Any, offset: float = 0.0, **options: Any) -> Shape:
    """Independent Gaussians; the log density may be off by a constant."""
    m, s = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(sd, np.float64))
    centre, scale = np.asarray(m, np.float32), np.asarray(s, np.float32)

    def log_density(z: Any) -> Any:
        return offset - 0.5 * jnp.sum(((z - centre) / scale) ** 2)

    return Shape(kind, log_density, m.copy(), s.copy(), **{"regular": True, **options})


def _correlated(dim: int, rho: float, **options: Any) -> Shape:
    """All pairs of coordinates have one correlation."""
    inside = 1 / (1 - rho)
    common = rho / ((1 - rho) * (1 - rho + dim * rho))

    def log_density(z: Any) -> Any:
        return -0.5 * (inside * jnp.sum(z**2) - common * jnp.sum(z) ** 2)

    options = {"regular": True, **options}
    return Shape("gaussian", log_density, np.zeros(dim), np.ones(dim), **options)


def _banana(dim: int, bend: float, width: float, **options: Any) -> Shape:
    """x ~ N(0, 1), the others N(bend (x² − 1), width²) around its parabola."""

    def log_density(z: Any) -> Any:
        away = (z[1:] - bend * (z[0] ** 2 - 1)) / width
        return -0.5 * z[0] ** 2 - 0.5 * jnp.sum(away**2)

    sd = np.full(dim, math.sqrt(2 * bend**2 + width**2))
    sd[0] = 1.0
    return Shape("banana", log_density, np.zeros(dim), sd, **{"regular": True, **options})


def _funnel(dim: int, spread: float, **options: Any) -> Shape:
    """Neal's: v ~ N(0, spread²), the others N(0, eᵛ)."""

    def log_density(z: Any) -> Any:
        rest = jnp.sum(z[1:] ** 2) * jnp.exp(-z[0])
        return -0.5 * (z[0] / spread) ** 2 - 0.5 * rest - 0.5 * (dim - 1) * z[0]

    sd = np.full(dim, math.exp(spread**2 / 4))
    sd[0] = spread
    return Shape("funnel", log_density, np.zeros(dim), sd, **{"regular": False, **options})


def _ring(radius: float, width: float, **options: Any) -> Shape:
    """A circle of this radius in the plane, with a Gaussian rim; moments by quadrature."""
    r = np.linspace(0, radius + 12 * width, 200_001)
    mass = r * np.exp(-0.5 * ((r - radius) / width) ** 2)
    second = np.sum(mass * r**2) / np.sum(mass) / 2

    def log_density(z: Any) -> Any:
        return -0.5 * ((jnp.sqrt(jnp.sum(z**2) + 1e-12) - radius) / width) ** 2

    return Shape("ring", log_density, np.zeros(2), np.full(2, math.sqrt(second)), **options)


def _log_gamma(shape: float, dim: int, **options: Any) -> Shape:
    """Logarithms of Gamma variables: skewed to the left, the more so the smaller their shape."""
    mean, sd = float(digamma(shape)), math.sqrt(float(polygamma(1, shape)))

    def log_density(z: Any) -> Any:
        return jnp.sum(shape * z - jnp.exp(z))

    options = {"regular": True, **options}
    return Shape("skew", log_density, np.full(dim, mean), np.full(dim, sd), **options)


def _box(dim: int, **options: Any) -> Shape:
    """The uniform density of [−1, 1]ᵈ, −∞ outside."""

    def log_density(z: Any) -> Any:
        return jnp.where(jnp.all(jnp.abs(z) < 1), 0.0, -jnp.inf)

    sd = np.full(dim, 1 / math.sqrt(3))
    return Shape("edge", log_density, np.zeros(dim), sd, **{"regular": True, **options})


def _half_normal(dim: int, **options: Any) -> Shape:
    """Standard normals that are positive, −∞ elsewhere."""

    def log_density(z: Any) -> Any:
        return jnp.where(jnp.all(z > 0), -0.5 * jnp.sum(z**2), -jnp.inf)

    mean, sd = math.sqrt(2 / math.pi), math.sqrt(1 - 2 / math.pi)
    options = {"regular": True, **options}
    return Shape("edge", log_density, np.full(dim, mean), np.full(dim, sd), **options)


def _step(height: float, **options: Any) -> Shape:
    """N(0, 1) whose right half is so many nats higher than its left, by a jump at 0."""
    right = 1 / (1 + math.exp(-height))
    mean = (2 * right - 1) * math.sqrt(2 / math.pi)

    def log_density(z: Any) -> Any:
        return -0.5 * z[0] ** 2 + jnp.where(z[0] > 0, height, 0.0)

    sd = math.sqrt(1 - mean**2)
    options = {"regular": True, **options}
    return Shape("edge", log_density, np.array([mean]), np.array([sd]), **options)


def _laplace(dim: int, **options: Any) -> Shape:
    """Double exponentials, with a kink at the top."""

    def log_density(z: Any) -> Any:
        return -jnp.sum(jnp.abs(z))

    sd = np.full(dim, math.sqrt(2.0))
    return Shape("kink", log_density, np.zeros(dim), sd, **{"regular": True, **options})


def _logistic(dim: int, **options: Any) -> Shape:
    """Logistic variables."""

    def log_density(z: Any) -> Any:
        return -jnp.sum(z + 2 * jnp.logaddexp(0.0, -z))

    sd = np.full(dim, math.pi / math.sqrt(3))
    return Shape("skew", log_density, np.zeros(dim), sd, **{"regular": True, **options})


def _sinh(dim: int, tail: float, **options: Any) -> Shape:
    """z = sinh(x)·tail with x ~ N(0, 1): tails as heavy as a log-normal's."""

    def log_density(z: Any) -> Any:
        x = jnp.arcsinh(z / tail)
        return jnp.sum(-0.5 * x**2 - 0.5 * jnp.log1p((z / tail) ** 2))

    sd = np.full(dim, tail * math.sqrt((math.exp(2) - 1) / 2))
    return Shape("tails", log_density, np.zeros(dim), sd, **{"regular": False, **options})


def _at(dim: int, x: float) -> Numbers:
    """A point on the first axis."""
    return x * np.eye(dim)[0]


def _all_shapes() -> dict[str, Shape]:
    inside = "narrow in wide"
    found = {
        "normal-1": _gaussian("gaussian", np.zeros(1), 1.0),
        "normal-5": _gaussian("gaussian", np.ones(5), 2.0),
        "normal-50": _gaussian("gaussian", np.linspace(-3, 3, 50), 1.0, held_out=True),
        "normal-200": _gaussian("gaussian", np.zeros(200), np.geomspace(0.1, 10, 200)),
        "normal-500": _gaussian("gaussian", np.zeros(500), 1.0),
        "correlated-0.9-5": _correlated(5, 0.9),
        "correlated-0.99-20": _correlated(20, 0.99),
        "correlated-0.999-3": _correlated(3, 0.999, held_out=True),
        "scales-4": _gaussian("scale", np.full(3, 3.0), np.array([1e-4, 1.0, 1e4])),
        "scale-1e-8": _gaussian("scale", np.zeros(2), np.full(2, 1e-8)),
        "scale-1e8": _gaussian("scale", np.zeros(2), np.full(2, 1e8), held_out=True),
        "far-away": _gaussian("scale", np.full(3, 1000.0), np.ones(3)),
        "offset-1e4": _gaussian("offset", np.zeros(3), 1.0, offset=1e4),
        "offset-1e8": _gaussian("offset", np.zeros(3), 1.0, offset=1e8, regular=False),
        "offset-minus-1e7": _gaussian(
            "offset", np.zeros(2), 1.0, offset=-1e7, regular=False, held_out=True
        ),
        "spike-0.1-10": mixture(inside, [0.1, 0.9], np.zeros((2, 10)), [0.1, 1]),
        "spike-0.01-2": mixture(inside, [0.5, 0.5], np.zeros((2, 2)), [0.01, 1]),
        "spike-0.01-5": mixture(inside, [0.5, 0.5], np.zeros((2, 5)), [0.01, 1]),
        "spike-0.01-10": mixture(inside, [0.5, 0.5], np.zeros((2, 10)), [0.01, 1]),
        "spike-0.2-3": mixture(inside, [0.3, 0.7], np.zeros((2, 3)), [0.2, 1], held_out=True),
        "spike-beside-3": mixture(
            inside, [0.3, 0.7], [_at(3, 2.0), np.zeros(3)], [0.05, 1], held_out=True
        ),
        "two-equal-6-2": mixture("modes", [0.5, 0.5], [_at(2, -3), _at(2, 3)], [1, 1]),
        "two-equal-10-10": mixture("modes", [0.5, 0.5], [_at(10, -5), _at(10, 5)], [1, 1]),
        "two-light-16-2": mixture("modes", [0.996, 0.004], [_at(2, 0), _at(2, 16)], [1, 1]),
        "two-light-30-5": mixture(
            "modes", [0.999, 0.001], [_at(5, 0), _at(5, 30)], [1, 1], held_out=True
        ),
        "two-unequal-8-5": mixture("modes", [0.2, 0.8], [_at(5, -4), _at(5, 4)], [0.5, 1]),
        "three-1": mixture("modes", [1, 1, 1], [[-6.0], [0.0], [6.0]], [0.5, 0.5, 0.5]),
        "nine-2": mixture(
            "modes", np.ones(9), [[4 * i, 4 * j] for i in (-1, 0, 1) for j in (-1, 0, 1)],
            np.full(9, 0.5), held_out=True,
        ),
        "two-near-3-3": mixture("modes", [0.5, 0.5], [_at(3, -1.2), _at(3, 1.2)], [1, 1], True),
        "t1-2": _student(1, 2), "t2-1": _student(2, 1), "t2-5": _student(2, 5, True),
        "t3-1": _student(3, 1), "t3-2": _student(3, 2), "t3-20": _student(3, 20, True),
        "t4-5": _student(4, 5), "t5-2": _student(5, 2), "t5-20": _student(5, 20, True),
        "t8-5": _student(8, 5), "t12-10": _student(12, 10), "t12-1": _student(12, 1, True),
        "sinh-2": _sinh(2, 1.0),
        "funnel-3-10": _funnel(10, 3.0), "funnel-1-5": _funnel(5, 1.0),
        "funnel-2-3": _funnel(3, 2.0, held_out=True),
        "banana-2": _banana(2, 0.5, 0.5), "banana-5": _banana(5, 0.5, 0.5),
        "banana-bent-2": _banana(2, 1.0, 0.3, held_out=True),
        "banana-mild-20": _banana(20, 0.2, 1.0),
        "ring-thick": _ring(2.0, 0.7, regular=True),
        "ring-thin": _ring(5.0, 0.3, regular=False, held_out=True),
        "log-gamma-2-4": _log_gamma(2.0, 4), "log-gamma-1-10": _log_gamma(1.0, 10),
        "log-gamma-0.5-2": _log_gamma(0.5, 2, held_out=True), "log-gamma-5-50": _log_gamma(5.0, 50),
        "logistic-3": _logistic(3), "logistic-20": _logistic(20, held_out=True),
        "laplace-1": _laplace(1), "laplace-5": _laplace(5, held_out=True),
        "box-1": _box(1), "box-3": _box(3), "box-8": _box(8, held_out=True),
        "half-normal-2": _half_normal(2), "half-normal-6": _half_normal(6, held_out=True),
        "step-1": _step(1.0), "step-4": _step(4.0, held_out=True),
    }  # fmt: skip
    return found | _in_many_dimensions()


def _in_many_dimensions() -> dict[str, Shape]:
    """The same kinds where chains move by themselves."""
    inside = "narrow in wide"
    return {
        "scales-80": _gaussian("scale", np.full(80, 3.0), np.geomspace(1e-4, 1e4, 80)),
        "far-away-60": _gaussian("scale", np.full(60, 1000.0), np.ones(60)),
        "correlated-0.99-100": _correlated(100, 0.99),
        "correlated-0.9-200": _correlated(200, 0.9, held_out=True),
        "spike-0.1-60": mixture(inside, [0.1, 0.9], np.zeros((2, 60)), [0.1, 1]),
        "spike-0.5-60": mixture(inside, [0.5, 0.5], np.zeros((2, 60)), [0.5, 1]),
        "spike-beside-60": mixture(
            inside, [0.3, 0.7], [_at(60, 2.0), np.zeros(60)], [0.7, 1], held_out=True
        ),
        "two-equal-10-60": mixture("modes", [0.5, 0.5], [_at(60, -5), _at(60, 5)], [1, 1]),
        "two-equal-4-60": mixture("modes", [0.5, 0.5], [_at(60, -2), _at(60, 2)], [1, 1]),
        "two-light-16-60": mixture("modes", [0.996, 0.004], [_at(60, 0), _at(60, 16)], [1, 1]),
        "two-unequal-8-100": mixture(
            "modes", [0.2, 0.8], [_at(100, -4), _at(100, 4)], [0.5, 1]
        ),
        "three-70": mixture(
            "modes", [1, 1, 1], [_at(70, -7), _at(70, 0), _at(70, 7)], [1, 1, 1], held_out=True
        ),
        "t3-60": _student(3, 60), "t5-60": _student(5, 60), "t12-100": _student(12, 100),
        "t4-80": _student(4, 80, True), "t20-60": _student(20, 60, True),
        "funnel-3-60": _funnel(60, 3.0), "funnel-1-80": _funnel(80, 1.0),
        "banana-mild-60": _banana(60, 0.2, 1.0),
        "banana-100": _banana(100, 0.5, 0.5, held_out=True, regular=False),
        "log-gamma-1-100": _log_gamma(1.0, 100),
        "log-gamma-2-60": _log_gamma(2.0, 60, held_out=True),
        "logistic-80": _logistic(80), "laplace-100": _laplace(100),
    }  # fmt: skip


SHAPES = _all_shapes()
