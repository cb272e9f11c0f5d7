"""Posteriors of other shapes than a Gaussian's, with exact moments: many modes, bends, a ring."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import t as student

from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.exact import FUNNEL_SD, funnel_moments, log_funnel
from scoreascent.experiments.accuracy.moments import LEVELS, Moments
from scoreascent.experiments.accuracy.regressions import diabetes_raw, standardised
from scoreascent.target import Target

Numbers = NDArray[np.float64]


# -- mixtures --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mixed:
    """A mixture of spherical Gaussians, or of multivariate t's with `df` degrees of freedom."""

    weights: Numbers
    centres: Numbers  # (parts, d)
    scales: Numbers  # (parts,)
    df: float = np.inf

    @property
    def target(self) -> Target:
        """The mixture's density, normalised but for a constant that all parts have."""
        dim = self.centres.shape[1]
        log_w = np.log(self.weights / self.weights.sum()) - dim * np.log(self.scales)
        dtype = jnp.zeros(()).dtype
        data = tuple(np.asarray(x, dtype) for x in (log_w, self.centres, self.scales[:, None]))
        density = _log_gaussians if np.isinf(self.df) else _LogStudents(self.df)
        return Target(density, dim=dim, data=data)

    @property
    def moments(self) -> Moments:
        """The moments within and between the parts; the quantiles are roots."""
        w = self.weights / self.weights.sum()
        wider = 1.0 if np.isinf(self.df) else self.df / (self.df - 2)
        cdf: Callable[[Any], Any] = ndtr if np.isinf(self.df) else student(self.df).cdf
        mean = w @ self.centres
        variance = w @ (self.centres**2 + wider * self.scales[:, None] ** 2) - mean**2
        rows = []
        for c in self.centres.T:
            away = 40 * self.scales.max()
            below = lambda x, c=c: float(w @ cdf((x - c) / self.scales))  # noqa: E731
            rows.append(_roots(below, c.min() - away, c.max() + away))
        return Moments(mean, np.sqrt(variance), np.array(rows))

    @property
    def masses(self) -> tuple[Numbers, Numbers]:
        """The centres and the mass of each."""
        return self.centres, self.weights / self.weights.sum()


def _log_gaussians(z: Any, data: tuple[Any, Any, Any]) -> Any:
    log_w, centres, scales = data
    return jax.nn.logsumexp(log_w - 0.5 * jnp.sum(((z - centres) / scales) ** 2, -1))


@dataclass(frozen=True)
class _LogStudents:
    df: float

    def __call__(self, z: Any, data: tuple[Any, Any, Any]) -> Any:
        log_w, centres, scales = data
        square = jnp.sum(((z - centres) / scales) ** 2, -1)
        return jax.nn.logsumexp(log_w - 0.5 * (self.df + len(z)) * jnp.log1p(square / self.df))


def _roots(cdf: Callable[[float], float], low: float, high: float) -> Numbers:
    return np.array([brentq(lambda x, p=p: cdf(x) - p, low, high, xtol=1e-9) for p in LEVELS])


def _apart(rng: np.random.Generator, count: int, dim: int, width: float, gap: float) -> Numbers:
    """Points of a box, one after the other, none nearer to another than the gap."""
    points: list[Numbers] = []
    while len(points) < count:
        new = rng.uniform(-width, width, dim)
        if all(np.linalg.norm(new - x) > gap for x in points):
            points.append(new)
    return np.array(points)


def forty_modes() -> Mixed:
    """Forty modes of sds between 0.5 and 1.2 in a square of side forty, of unequal weights."""
    rng = np.random.default_rng(11)
    centres = _apart(rng, 40, 2, 20.0, 5.0)
    return Mixed(rng.uniform(1, 4, 40), centres, np.exp(rng.uniform(np.log(0.5), np.log(1.2), 40)))


def five_modes() -> Mixed:
    """Five modes in ℝ¹⁰, the widest three times as wide as the narrowest."""
    rng = np.random.default_rng(12)
    centres = _apart(rng, 5, 10, 6.0, 12.0)
    weights = np.array([0.35, 0.25, 0.2, 0.12, 0.08])
    return Mixed(weights, centres, np.array([1.0, 0.6, 1.5, 0.8, 0.5]))


def students() -> Mixed:
    """Three multivariate t's in ℝ¹⁰."""
    rng = np.random.default_rng(13)
    return Mixed(np.array([0.5, 0.3, 0.2]), _apart(rng, 3, 10, 6.0, 14.0), np.ones(3), df=10.0)


# -- bends -----------------------------------------------------------------------------------------

BEND = 4.0


def log_banana(z: Any) -> Any:
    """x ~ N(0, 1) and y ~ N(4 (x² − 1), 1): a parabola of which a Gaussian covers little."""
    return -0.5 * z[0] ** 2 - 0.5 * (z[1] - BEND * (z[0] ** 2 - 1)) ** 2


def banana_moments() -> Moments:
    """Exact but for quadrature of y's law over x."""
    x = np.linspace(-9, 9, 20_001)
    mass = np.exp(-0.5 * x**2)
    mass /= mass.sum()
    y = _roots(lambda at: mass @ ndtr(at - BEND * (x**2 - 1)), -20.0, 300.0)
    return Moments(
        np.zeros(2), np.array([1.0, np.sqrt(2 * BEND**2 + 1)]), np.array([ndtri(LEVELS), y])
    )


RADIUS, RIM = 5.0, 0.3


def log_ring(z: Any) -> Any:
    """A circle of radius 5 whose rim has an sd of 0.3."""
    return -0.5 * ((jnp.sqrt(jnp.sum(z**2) + 1e-12) - RADIUS) / RIM) ** 2


def ring_moments() -> Moments:
    """By quadrature over the radius; at each, a coordinate is the cosine of a uniform angle."""
    r = np.linspace(1e-6, RADIUS + 10 * RIM, 4001)
    mass = r * np.exp(-0.5 * ((r - RADIUS) / RIM) ** 2)
    mass /= mass.sum()
    below = lambda x: mass @ (1 - np.arccos(np.clip(x / r, -1, 1)) / np.pi)  # noqa: E731
    quantiles = _roots(below, -9.0, 9.0)
    return Moments(np.zeros(2), np.full(2, np.sqrt(mass @ r**2 / 2)), np.array([quantiles] * 2))


AROUND, PULL = 20, 0.5


def log_funnel_inside(z: Any) -> Any:
    """Neal's funnel in ten dimensions, and twenty more that depend on its v."""
    return log_funnel(z[:10]) - 0.5 * jnp.sum((z[10:] - PULL * z[0]) ** 2)


def funnel_inside_moments() -> Moments:
    """The funnel's, and N(0, 1 + ¼ 3²) for the others."""
    inner, sd = funnel_moments(), np.sqrt(1 + (PULL * FUNNEL_SD) ** 2)
    outer = np.tile(sd * ndtri(LEVELS), (AROUND, 1))
    return Moments(
        np.append(inner.mean, np.zeros(AROUND)),
        np.append(inner.sd, np.full(AROUND, sd)),
        np.concatenate([inner.quantiles, outer]),
    )


# -- models with labels, and with switches ---------------------------------------------------------

LABELS, WIDTH = 3, 6.0


def labelled_data() -> Numbers:
    """Sixty values around −3, 0 and 3."""
    rng = np.random.default_rng(14)
    return (rng.choice([-3.0, 0.0, 3.0], 60) + rng.normal(size=60)).astype(np.float32)


def log_labels(z: Any, y: Any) -> Any:
    """The means of three groups that nothing tells apart; who belongs to which is summed out."""
    each = -0.5 * (y[:, None] - z) ** 2
    return jnp.sum(jax.nn.logsumexp(each, -1)) - 0.5 * jnp.sum((z / WIDTH) ** 2)


def label_moments() -> Moments:
    """By a sum over a grid; the three coordinates have one law."""
    y = labelled_data().astype(np.float64)
    at = np.linspace(-8, 8, 161)
    each = np.exp(-0.5 * (y[:, None] - at) ** 2)
    log_p = np.zeros((len(at),) * LABELS)
    for row in each:
        log_p += np.log(row[:, None, None] + row[None, :, None] + row[None, None, :])
    prior = -0.5 * (at / WIDTH) ** 2
    log_p += prior[:, None, None] + prior[None, :, None] + prior[None, None, :]
    mass = np.exp(log_p - log_p.max())
    one = mass.sum((1, 2)) / mass.sum()
    mean = one @ at
    quantiles = np.interp(LEVELS, np.cumsum(one) - 0.5 * one, at)
    sd = np.sqrt(one @ (at - mean) ** 2)
    return Moments(np.full(LABELS, mean), np.full(LABELS, sd), np.array([quantiles] * LABELS))


def label_masses() -> tuple[Numbers, Numbers]:
    """Every order of the three labels is as likely, whatever the means are."""
    orders = np.array(list(itertools.permutations([-3.0, 0.0, 3.0])))
    return orders, np.full(len(orders), 1 / len(orders))


SPIKE, SLAB, INCLUDED, NOISE = 0.02, 0.5, 0.3, 0.75


def log_spikes(z: Any, data: Any) -> Any:
    """Coefficients that are nearly zero or not; which of them are is summed out."""
    X, y = data
    spike = -0.5 * (z / SPIKE) ** 2 - np.log(SPIKE) + np.log(1 - INCLUDED)
    slab = -0.5 * (z / SLAB) ** 2 - np.log(SLAB) + np.log(INCLUDED)
    return jnp.sum(jnp.logaddexp(spike, slab)) - 0.5 * jnp.sum(((y - X @ z) / NOISE) ** 2)


def patients() -> tuple[Numbers, Numbers]:
    """The first hundred rows of the diabetes data, standardised."""
    X, y = diabetes_raw()
    return tuple(standardised(x[:100]).astype(np.float32) for x in (X, y))  # type: ignore[return-value]


def spike_moments() -> Moments:
    """Every choice of spikes and slabs leaves a Gaussian: 1024 of them."""
    X, y = (x.astype(np.float64) for x in patients())
    gram, pull = X.T @ X / NOISE**2, X.T @ y / NOISE**2
    log_w, means, sds = [], [], []
    for chosen in itertools.product([False, True], repeat=X.shape[1]):
        prior = np.where(chosen, SLAB, SPIKE)
        cov = np.linalg.inv(gram + np.diag(prior**-2.0))
        mean = cov @ pull
        log_prior = np.sum(np.where(chosen, np.log(INCLUDED), np.log(1 - INCLUDED)) - np.log(prior))
        log_w.append(log_prior + 0.5 * np.linalg.slogdet(cov)[1] + 0.5 * mean @ pull)
        means.append(mean)
        sds.append(np.sqrt(np.diag(cov)))
    w = np.exp(np.array(log_w) - max(log_w))
    w /= w.sum()
    kept = w > 1e-9
    w, m, s = w[kept] / w[kept].sum(), np.array(means)[kept], np.array(sds)[kept]
    mean = w @ m

    def quantiles(i: int) -> Numbers:
        return _roots(lambda x: float(w @ ndtr((x - m[:, i]) / s[:, i])), -5.0, 5.0)

    rows = [quantiles(i) for i in range(len(mean))]
    return Moments(mean, np.sqrt(w @ (m**2 + s**2) - mean**2), np.array(rows))


# -- entries of the suite --------------------------------------------------------------------------


def _of(make: Callable[[], Mixed]) -> dict[str, Any]:
    return {
        "density": lambda: make().target,
        "exact": lambda: make().moments,
        "masses": lambda: make().masses,
        "regular": False,
    }


def _own(
    density: Any, dim: int, exact: Callable[[], Moments], data: Any = None, masses: Any = None
) -> dict[str, Any]:
    def target() -> Target:
        if data is None:
            return Target(density, dim=dim)
        arrays = jax.tree.map(lambda x: np.asarray(x, jnp.zeros(()).dtype), data())
        return Target(density, dim=dim, data=arrays)

    return {"density": target, "exact": exact, "masses": masses, "regular": False}


SHAPES: dict[str, Entry] = {
    "forty-modes": Entry(2, "forty modes of several widths and weights", **_of(forty_modes)),
    "five-modes": Entry(10, "five modes, one three times as wide as another", **_of(five_modes)),
    "students": Entry(
        10, "three modes with the tails of ten degrees of freedom", held_out=True, **_of(students)
    ),
    "ring": Entry(2, "a thin ring", **_own(log_ring, 2, ring_moments)),
    "banana": Entry(2, "a parabola, bent by four", **_own(log_banana, 2, banana_moments)),
    "funnel-inside": Entry(
        30,
        "Neal's funnel, and twenty coordinates that depend on its scale",
        held_out=True,
        **_own(log_funnel_inside, 30, funnel_inside_moments),
    ),
    "labels": Entry(
        3,
        "three means of groups that nothing tells apart",
        **_own(log_labels, 3, label_moments, labelled_data, label_masses),
    ),
    "spikes": Entry(
        10,
        "coefficients that are nearly zero or not, with predictors that correlate",
        held_out=True,
        **_own(log_spikes, 10, spike_moments, patients),
    ),
}
