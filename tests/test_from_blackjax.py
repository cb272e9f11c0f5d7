"""BlackJAX's algorithms as kernels: invariance, composition, bad input."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.adapters.blackjax import from_blackjax
from tests.stats import Z_MAX, Z_MUTANT, check_invariance

blackjax = pytest.importorskip("blackjax")


def rmh(log_p: Any, q: Any) -> Any:
    return blackjax.additive_step_random_walk(log_p, blackjax.mcmc.random_walk.normal(0.7 * q.sd))


def elliptical(log_p: Any, q: Any) -> Any:
    def likelihood(z: Any) -> Any:
        return log_p(z) - q.log_prob(z)

    return blackjax.elliptical_slice(likelihood, mean=q.mean, cov=jnp.diag(q.sd**2))


ALGORITHMS = {
    "hmc": lambda log_p, q: blackjax.hmc(log_p, 0.3, q.sd**2, 4),
    "nuts": lambda log_p, q: blackjax.nuts(log_p, 0.5, q.sd**2, max_num_doublings=3),
    "mala": lambda log_p, q: blackjax.mala(log_p, 0.15),
    "rmh": rmh,
    "elliptical": elliptical,
}
QUICK = ("mala", "rmh")  # the others compile for long


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALGORITHMS]
)
def test_invariance(name):
    verdict = check_invariance(sa.Parallel(from_blackjax(ALGORITHMS[name]), 1), "skewed-1d")
    assert verdict.z < Z_MAX
    assert verdict.moved > 0.1


def test_a_broken_algorithm_is_found_out():
    """A random walk towards zero, which calls itself a sampler."""

    def broken(log_p, q):
        inner = rmh(log_p, q)

        def step(key, state):
            state, info = inner.step(key, state)
            return state._replace(position=0.8 * state.position), info

        return inner._replace(step=step)

    assert check_invariance(sa.Parallel(from_blackjax(broken), 1), "skewed-1d").z > Z_MUTANT


TARGET = sa.Target(lambda z: -0.5 * jnp.sum((z - 1) ** 2), dim=2)


@pytest.mark.parametrize("method", [sa.pmcsa, sa.jsa])
def test_a_fit(method):
    kernel = from_blackjax(ALGORITHMS["mala"])
    result = sa.fit(TARGET, method(4, kernel=kernel), steps=300, progress=False)
    assert result.status == "max_steps"
    assert np.all(np.isfinite(result.q.mean))
    assert 0.2 < float(np.mean(result.trace.acceptance)) <= 1
    assert "from_blackjax" in repr(result.method)


def test_hmc_scaled_by_q_reaches_the_target():
    kernel = from_blackjax(ALGORITHMS["hmc"])
    result = sa.fit(TARGET, sa.pmcsa(16, kernel=kernel), steps=1500, average=True, progress=False)
    np.testing.assert_allclose(result.q.mean, 1, atol=0.1)
    np.testing.assert_allclose(result.q.sd, 1, atol=0.1)


def test_nan_regions_are_not_entered():
    target = sa.Target(lambda z: jnp.where(z[0] > 0.5, jnp.nan, -0.5 * jnp.sum(z**2)), dim=1)
    kernel = from_blackjax(ALGORITHMS["rmh"])
    result = sa.fit(target, sa.pmcsa(8, kernel=kernel), steps=200, progress=False)
    assert np.all(np.asarray(result.state.eta.z) <= 0.5)
    assert np.all(np.isfinite(result.state.eta.log_p))


@pytest.mark.parametrize("factory", [None, 3, blackjax.hmc, blackjax.nuts])
def test_bad_factory(factory):
    with pytest.raises(ValueError, match="factory must be a function of"):
        from_blackjax(factory)


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ModuleNotFoundError, match=r"scoreascent\[blackjax\]"):
        from_blackjax(lambda log_p, q: None)


def test_the_cached_density_is_that_of_the_point():
    kernel = from_blackjax(ALGORITHMS["elliptical"])
    q = sa.MeanField.standard(2)
    point = sa.Point(jnp.zeros(2), TARGET.log_prob(jnp.zeros(2)))
    moved, info = kernel.step(jax.random.key(0), TARGET, q, point)
    np.testing.assert_allclose(moved.log_p, TARGET.log_prob(moved.z), rtol=1e-6)
    assert float(info.acceptance) == 1.0
