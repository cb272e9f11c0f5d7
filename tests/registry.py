"""Every target, family, kernel and method, once. A new one is a row here; all tests run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

import scoreascent as sa


def quick_rows(names: Iterable[Any], *quick: Any) -> list[Any]:
    """Names to run a test on: the quick ones always, the others with `make test-all`.

    For tests whose code is the same for all of them, and whose time is jax's compiler's.
    """
    names = list(names)
    assert set(quick) <= set(names), f"{set(quick) - set(names)} are not in the registry"
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@dataclass(frozen=True)
class KnownTarget:
    """A normalised target with exact draws, so that tests can start in stationarity."""

    log_density: Callable[[Any], Any]
    dim: int
    sample: Callable[[Any], Any]  # key -> z, exactly from π

    @property
    def target(self) -> sa.Target:
        return sa.Target(self.log_density, dim=self.dim)


def _gaussian(dim: int) -> KnownTarget:
    """Correlated: unit-variance factor plus independent noise."""
    mean = jnp.linspace(-0.5, 0.5, dim) if dim > 1 else jnp.array([0.5])
    cov = 0.5 * jnp.eye(dim) + 0.3
    chol, precision = jnp.linalg.cholesky(cov), jnp.linalg.inv(cov)
    log_norm = -0.5 * jnp.linalg.slogdet(2 * jnp.pi * cov)[1]

    def log_density(z: Any) -> Any:
        return log_norm - 0.5 * (z - mean) @ precision @ (z - mean)

    return KnownTarget(log_density, dim, lambda k: mean + chol @ jax.random.normal(k, (dim,)))


def _skewed(dim: int) -> KnownTarget:
    """Independent logarithms of Gamma(2) variables: a long left tail."""

    def log_density(z: Any) -> Any:
        return jnp.sum(2 * z - jnp.exp(z))  # Γ(2) = 1

    return KnownTarget(log_density, dim, lambda k: jnp.log(jax.random.gamma(k, 2.0, (dim,))))


def _bimodal(dim: int) -> KnownTarget:
    """Two Gaussians of unequal weight, far enough apart for a valley in between."""
    shift, weights = 1.2 * jnp.ones(dim) / jnp.sqrt(dim), jnp.array([0.3, 0.7])
    centres = jnp.stack([-1.5 * shift, shift])
    scale = 0.6

    def log_density(z: Any) -> Any:
        parts = jnp.sum(norm.logpdf(z, centres, scale), -1)
        return logsumexp(parts, b=weights)

    def sample(key: Any) -> Any:
        which, noise = jax.random.split(key)
        centre = centres[jax.random.bernoulli(which, weights[1]).astype(int)]
        return centre + scale * jax.random.normal(noise, (dim,))

    return KnownTarget(log_density, dim, sample)


TARGETS = {
    f"{name}-{dim}d": make(dim)
    for name, make in {"gaussian": _gaussian, "skewed": _skewed, "bimodal": _bimodal}.items()
    for dim in (1, 5)
}


def _columns(dim: int) -> Any:
    return jnp.cos(jnp.arange(dim)[:, None] * jnp.array([0.7, 1.9]) + 0.5)


def _cov(dim: int) -> Any:
    return _columns(dim) @ _columns(dim).T + jnp.diag(jnp.linspace(0.8, 0.4, dim))


# families: a member that is not the standard one, for a given dimension


def _flow(dim: int) -> Any:
    """A flow that bends: all of its weights are away from where it is the identity."""
    q = sa.Flow.from_gaussian(
        sa.FullRank.from_moments(jnp.zeros(dim), _cov(dim)), layers=2, width=4
    )
    return replace(q, theta=q.theta + 0.3 * jnp.cos(jnp.arange(q.theta.shape[0])))


FAMILIES: dict[str, Callable[[int], Any]] = {
    "mean-field": lambda dim: sa.MeanField.from_moments(
        jnp.linspace(-0.2, 0.3, dim), jnp.linspace(1.3, 0.9, dim)
    ),
    "full-rank": lambda dim: sa.FullRank.from_moments(jnp.linspace(-0.2, 0.3, dim), _cov(dim)),
    "low-rank": lambda dim: sa.LowRank(
        jnp.linspace(-0.2, 0.3, dim),
        _columns(dim)[:, : min(2, dim)],
        jnp.linspace(0.8, 0.3, dim),
    ),
    "student-t": lambda dim: sa.StudentT.from_moments(
        jnp.linspace(-0.2, 0.3, dim), jnp.linspace(1.3, 0.9, dim), df=8
    ),
    "full-rank-student-t": lambda dim: sa.FullRankStudentT.from_moments(
        jnp.linspace(-0.2, 0.3, dim), _cov(dim), df=8
    ),
    "mixture": lambda dim: sa.Mixture.from_moments(
        jnp.stack([jnp.linspace(-1.2, 0.3, dim), jnp.linspace(0.9, 0.2, dim)]),
        jnp.stack([_cov(dim), 0.5 * jnp.eye(dim)]),
        weights=jnp.array([0.4, 0.6]),
    ),
    "flow": _flow,
}
AFFINE = [f for f in FAMILIES if f not in ("mixture", "flow")]  # whose transport is an affine map
MATCHED = [f for f in FAMILIES if f != "flow"]  # those with `match`

# Their own step sizes, and a proposal that hardly learns: what a kernel learns from its chains
# makes later steps depend on earlier ones, and is exact in the limit only (tests/test_hmc.py).
_HMC = sa.HMC(step_size=0.4, length=1.0)
_SLOW = sa.schedules.Decay(first=1e-3)

# what moves the particles; a kernel stands here inside each combinator it can be used in
MOVES: dict[str, Any] = {
    "imh": sa.Parallel(sa.IMH(), 1),
    "imh-defensive-student": sa.Parallel(sa.IMH(sa.Defensive(alpha=0.7)), 1),
    "imh-defensive-cauchy": sa.Parallel(sa.IMH(sa.Defensive(alpha=0.7, tail="cauchy")), 1),
    "parallel-imh": sa.Parallel(sa.IMH(), 4),
    "parallel-imh-rb": sa.Parallel(sa.IMH(), 4, rao_blackwell=True),
    "sequential-imh": sa.Sequential(sa.IMH(), 4),
    "cis": sa.CIS(4),
    "cis-defensive": sa.CIS(4, sa.Defensive(alpha=0.7)),
    "select-cis": sa.Select(sa.CIS(4)),
    "hmc": sa.Parallel(_HMC, 1),
    "hmc-of-two-lengths": sa.Parallel(sa.HMC(length=(0.6, 3.0), hurry=True, caution=20.0), 1),
    "walk": sa.Parallel(sa.Walk(), 1),
    "mala": sa.Parallel(sa.MALA(step_size=0.6), 1),
    "cycle": sa.Parallel(sa.Cycle(sa.IMH(), _HMC), 4),
    "sequential-cycle": sa.Sequential(sa.Cycle(sa.IMH(), _HMC), 4),
    "in-base": sa.Parallel(sa.InBase(sa.Cycle(sa.IMH(), _HMC)), 4),
    "adapted": sa.Parallel(sa.Adapted(sa.IMH(), rate=_SLOW), 4),
    "adapted-cycle": sa.Parallel(sa.Adapted(sa.Cycle(sa.IMH(), _HMC), rank=2, rate=_SLOW), 4),
}

METHODS: dict[str, Any] = {
    "pmcsa": sa.pmcsa(4),
    "pmcsa-rb": sa.pmcsa(4, rao_blackwell=True),
    "jsa": sa.jsa(4),
    "msc": sa.msc(4),
    "msc-rb": sa.msc_rb(4),
    "elbo": sa.elbo(4),
    "pmcsa-adapted": sa.pmcsa(4, kernel=sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC()))),
}
