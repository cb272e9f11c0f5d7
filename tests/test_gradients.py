"""In stationarity E[g] is the gradient of the divergence that a method says it descends.

Gaussian target, mean-field q: both KL divergences have closed forms, and `jax.grad` of those is the
oracle. Replicas start in exact stationarity, move once, and differentiate the objective.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from tests.registry import METHODS
from tests.stats import Z_MAX, Z_MUTANT, places, quick_jit, stationary, z_score

REPLICAS = 30_000

MEAN = jnp.array([0.3, -0.6, 0.1])
COV = jnp.array([[1.0, 0.4, -0.2], [0.4, 0.8, 0.3], [-0.2, 0.3, 1.2]])
PRECISION, CHOL = jnp.linalg.inv(COV), jnp.linalg.cholesky(COV)


def log_density(z: Any) -> Any:
    return -0.5 * (z - MEAN) @ PRECISION @ (z - MEAN)


TARGET = sa.Target(log_density, dim=3)
Q = sa.MeanField.from_moments([0.7, -0.4, -0.3], [1.4, 0.8, 1.3])  # off optimum


def inclusive_kl(q: Any) -> Any:
    """KL(π‖q) up to a constant."""
    return jnp.sum(jnp.log(q.sd) + (jnp.diag(COV) + (MEAN - q.mean) ** 2) / (2 * q.sd**2))


def exclusive_kl(q: Any) -> Any:
    """KL(q‖π) up to a constant."""
    quadratic = jnp.trace(PRECISION @ q.cov) + (q.mean - MEAN) @ PRECISION @ (q.mean - MEAN)
    return -jnp.sum(jnp.log(q.sd)) + 0.5 * quadratic


def flat(q: Any) -> Any:
    return jnp.concatenate(jax.tree.leaves(q))


def closed_form(method: Any, q: Any) -> np.ndarray:
    kl = exclusive_kl if isinstance(method, sa.PathElbo) else inclusive_kl
    return np.asarray(flat(jax.grad(kl)(q)))


@functools.partial(quick_jit, static_argnames="method")
def moved(method: Any, q: Any, keys: Any) -> Any:
    """The η of every replica, one step after exact stationarity, and its acceptance rate."""

    def replica(key: Any) -> Any:
        key_start, key_step = jax.random.split(key)
        if isinstance(method, sa.PathElbo):
            eta = jnp.zeros((method.n, 3))  # what it forgets
        else:
            noise = jax.random.normal(key_start, (places(method.moves), 3))
            z = MEAN + noise @ CHOL.T
            eta = stationary(method.moves, z, jax.vmap(TARGET.log_prob)(z))
        eta, info = method.step(key_step, TARGET, q, eta)
        return eta, info.acceptance

    return jax.vmap(replica)(keys)


@functools.partial(quick_jit, static_argnames="method")
def gradients(method: Any, q: Any, etas: Any) -> Any:
    """The g of every replica."""
    return jax.vmap(lambda eta: flat(jax.grad(lambda q: method.objective(TARGET, q, eta))(q)))(etas)


KEYS = jax.random.split(jax.random.key(0), REPLICAS)


@pytest.mark.parametrize("method", METHODS)
def test_expected_gradient_is_that_of_the_divergence(method):
    method = METHODS[method]
    etas, _ = moved(method, Q, KEYS)
    assert z_score(gradients(method, Q, etas), closed_form(method, Q)) < Z_MAX


# -- mutants ------------------------------------------------------------------------------------


class Reweighted(sa.ScoreAscent):
    """Score ascent with weights that went wrong."""

    def objective(self, target, q, eta):
        return -jnp.sum(self.spoil(eta.weight) * jax.vmap(q.log_prob)(eta.z))


class RetainedSign(Reweighted):
    """The sign error of the paper's MSC-RB gradient (erratum 5)."""

    def spoil(self, weight):
        return weight.at[0].multiply(-1)


class NotNormalised(Reweighted):
    def spoil(self, weight):
        return weight / jnp.max(weight)


class Unweighted(Reweighted):
    def spoil(self, weight):
        return jnp.full_like(weight, 1 / len(weight))


class RetainedDropped(Reweighted):
    def spoil(self, weight):
        return weight.at[0].set(0)


class WrongSign(sa.ScoreAscent):
    def objective(self, target, q, eta):
        return -super().objective(target, q, eta)


class ElboSign(sa.PathElbo):
    def objective(self, target, q, eta):
        z = jax.vmap(q.transport)(eta)
        fixed = jax.lax.stop_gradient(q)
        return jnp.mean(jax.vmap(fixed.log_prob)(z) + jax.vmap(target.log_prob)(z))


class ElboWithoutEntropy(sa.PathElbo):
    def objective(self, target, q, eta):
        return -jnp.mean(jax.vmap(target.log_prob)(jax.vmap(q.transport)(eta)))


class ElboLeaky(sa.PathElbo):
    """Without stop(λ): unbiased as well, but it does not stick the landing."""

    def objective(self, target, q, eta):
        z = jax.vmap(q.transport)(eta)
        return jnp.mean(jax.vmap(q.log_prob)(z) - jax.vmap(target.log_prob)(z))


# whose moves, and the objective in place of its own
MUTANTS = {
    "sign of the retained term": ("msc-rb", RetainedSign),
    "weights not normalised": ("msc-rb", NotNormalised),
    "weights dropped": ("msc-rb", Unweighted),
    "retained term dropped": ("msc-rb", RetainedDropped),
    "Rao–Blackwell weights dropped": ("pmcsa-rb", Unweighted),
    "sum in place of mean": ("pmcsa", NotNormalised),
    "ascent": ("pmcsa", WrongSign),
    "sign of log p": ("elbo", ElboSign),
    "entropy dropped": ("elbo", ElboWithoutEntropy),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_gradients_are_rejected(mutant):
    name, broken = MUTANTS[mutant]
    method = METHODS[name]
    etas, _ = moved(method, Q, KEYS)
    g = gradients(broken(getattr(method, "moves", None) or method.n), Q, etas)
    assert z_score(g, closed_form(method, Q)) > Z_MUTANT


def test_elbo_gradient_vanishes_draw_by_draw_where_q_is_the_target():
    """What "sticking the landing" buys: no variance at the optimum."""
    sd = jnp.array([0.5, 2.0])
    q = sa.MeanField.from_moments(jnp.array([1.0, -1.0]), sd)
    target = sa.Target(lambda z: -0.5 * jnp.sum(((z - jnp.array([1.0, -1.0])) / sd) ** 2), dim=2)

    @functools.partial(quick_jit, static_argnames="method")
    def gradient(method: Any) -> Any:
        eta, _ = method.step(jax.random.key(0), target, q, jnp.zeros((4, 2)))
        return flat(jax.grad(lambda q: method.objective(target, q, eta))(q))

    np.testing.assert_allclose(gradient(sa.elbo(4)), 0, atol=1e-5)
    assert np.max(np.abs(gradient(ElboLeaky(4)))) > 0.05


# -- Rao–Blackwellisation of pMCSA ----------------------------------------------------------------


class Variance(NamedTuple):
    """The trace of Cov g with its standard error, and what g averages to."""

    trace: float
    error: float
    acceptance: float
    mean: np.ndarray
    mean_error: np.ndarray


def gradient_variance(method: Any, q: Any) -> Variance:
    etas, acceptance = moved(method, q, KEYS)
    g = np.asarray(gradients(method, q, etas), np.float64)
    square = np.sum((g - g.mean(0)) ** 2, -1)
    root = np.sqrt(len(g))
    return Variance(
        square.mean(), square.std() / root, float(acceptance.mean()), g.mean(0), g.std(0) / root
    )


# q from so near that nearly all proposals are accepted to so far that nearly none is
LEVELS = {
    "near": (0.0, 1.0),
    "moderate": (0.5, 1.3),
    "far": (1.0, 1.8),
    "very far": (2.0, 2.5),
}


def q_at(level: str) -> Any:
    shift, stretch = LEVELS[level]
    return sa.MeanField.from_moments(MEAN + shift, stretch * jnp.sqrt(jnp.diag(COV)))


def gain(plain: Variance, other: Variance) -> tuple[float, float]:
    """By how many standard errors `other` has less variance, and by how many its mean is off."""
    less = (plain.trace - other.trace) / np.hypot(plain.error, other.error)
    off = np.abs(other.mean - plain.mean) / np.hypot(other.mean_error, plain.mean_error)
    return float(less), float(np.max(off))


@pytest.mark.parametrize("level", LEVELS)
def test_rao_blackwellisation_never_raises_the_variance(level, record_property):
    plain = gradient_variance(sa.pmcsa(4), q_at(level))
    smooth = gradient_variance(sa.pmcsa(4, rao_blackwell=True), q_at(level))
    record_property("acceptance", float(plain.acceptance))
    record_property("variance ratio", float(smooth.trace / plain.trace))
    less, off = gain(plain, smooth)
    assert less > -Z_MAX
    assert off < Z_MAX
    if level != "very far":  # where next to nothing is accepted there is little to gain
        assert less > Z_MUTANT


def test_a_rise_of_the_variance_would_be_seen():
    """The mutant: one chain in place of many has the same mean gradient and more variance."""
    q = q_at("moderate")
    less, off = gain(gradient_variance(sa.pmcsa(4), q), gradient_variance(sa.jsa(4), q))
    assert off < Z_MAX
    assert less < -Z_MUTANT


def test_variance_of_pmcsa_is_that_of_independent_draws():
    """tr Cov_π(s)/N in closed form: the chains are independent, and in stationarity."""
    # s_m = (z − m)/σ², s_ω = ((z − m)²/σ³ − 1/σ)·σ′(ω) for each coordinate, z ~ N(μ, Σ_ii)
    v, d, s = np.diag(COV), np.asarray(MEAN - Q.mean), np.asarray(Q.sd)
    slope = np.asarray(jax.nn.sigmoid(Q.omega))
    trace = np.sum(v / s**4 + (2 * v**2 + 4 * v * d**2) / s**6 * slope**2)
    measured = gradient_variance(sa.pmcsa(4), Q)
    assert abs(measured.trace - trace / 4) < Z_MAX * measured.error
    dependent = gradient_variance(sa.jsa(4), Q)  # the same mean from states that are not
    assert abs(dependent.trace - trace / 4) > Z_MUTANT * dependent.error


# -- points of weight zero ------------------------------------------------------------------------


class Unguarded(Reweighted):
    def spoil(self, weight):
        return weight


def test_a_point_of_weight_zero_may_lie_where_log_q_overflows():
    q = sa.MeanField.standard(2)
    eta = sa.Particles(
        jnp.array([[0.5, -0.5], [1e30, 1e30], [1.0, 1.0]], jnp.float32),
        jnp.zeros(3, jnp.float32),
        jnp.array([0.25, 0.0, 0.75], jnp.float32),
    )
    without = sa.Particles(*(x[jnp.array([0, 2])] for x in eta[:3]))

    @functools.partial(quick_jit, static_argnames="method")
    def loss(method: Any, eta: Any) -> Any:
        target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
        value, g = jax.value_and_grad(lambda q: method.objective(target, q, eta))(q)
        return jnp.append(flat(g), value)

    method = sa.ScoreAscent(sa.CIS(3))
    np.testing.assert_allclose(loss(method, eta), loss(method, without), rtol=1e-6)
    assert not np.all(np.isfinite(loss(Unguarded(sa.CIS(3)), eta)))
