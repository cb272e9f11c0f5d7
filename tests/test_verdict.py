"""`diagnose` on fits that are known to be good or bad, and `resample`."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics.psis import psis
from scoreascent.diagnostics.rules import GOOD, LONGER, NO_MOMENTS, STUCK, UNSEEN, WEIGH
from scoreascent.diagnostics.weights import sample
from scoreascent.models.bnn import BNN
from tests.registry import quick_rows
from tests.stats import Z_MAX, z_score

PRECISION = jnp.asarray(np.linalg.inv([[1.0, 0.95], [0.95, 1.0]]), jnp.float32)
AR = jnp.asarray(np.linalg.inv(0.9 ** np.abs(np.subtract.outer(range(20), range(20)))), jnp.float32)


def gaussian(z: Any) -> Any:
    return -0.5 * jnp.sum((z - 1) ** 2)


def correlated(z: Any) -> Any:
    return -0.5 * z @ PRECISION @ z


def chain_of_twenty(z: Any) -> Any:
    return -0.5 * z @ AR @ z


def two_modes(z: Any) -> Any:
    return jnp.logaddexp(-0.5 * jnp.sum((z - 6) ** 2), -0.5 * jnp.sum((z + 6) ** 2))


def far_away(z: Any) -> Any:
    return -0.5 * jnp.sum(((z - 100) / 10) ** 2)


def cauchy(z: Any) -> Any:
    return -jnp.sum(jnp.log1p(z**2))


def student(z: Any) -> Any:
    return -2 * jnp.sum(jnp.log1p(z**2 / 3))


def half_nan(z: Any) -> Any:
    return jnp.where(z[0] > 0, jnp.nan, -0.5 * jnp.sum(z**2))


def funnel(z: Any) -> Any:
    return -(z[0] ** 2) / 18 - 0.5 * jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) - 2 * z[0]


@functools.cache
def fit(
    density: Any,
    dim: int,
    method: Any = None,
    steps: int = 4000,
    wide: bool = False,
    family: Any = sa.MeanField,
) -> Any:
    q0 = family.standard(dim)
    if wide:
        q0 = sa.MeanField.from_moments(jnp.zeros(dim), jnp.full(dim, 8.0))
    method = sa.pmcsa(64) if method is None else method
    target = sa.Target(density, dim=dim)
    return sa.fit(target, method, q0=q0, steps=steps, average=True, progress=False)


def changed(shift: float = 0.0, scale: float = 1.0) -> Any:
    """The good fit with another q put in its place."""
    result = fit(gaussian, 3)
    q = result.q
    return replace(result, q=sa.MeanField.from_moments(q.mean + shift * q.sd, scale * q.sd))


CASES: dict[str, tuple[Any, set[str]]] = {
    "good": (lambda: fit(gaussian, 3), {GOOD}),
    "good, correlated": (lambda: fit(correlated, 2, family=sa.FullRank), {GOOD}),
    "good, jsa": (lambda: fit(gaussian, 3, sa.jsa(10)), {GOOD}),
    "good, msc-rb": (lambda: fit(gaussian, 3, sa.msc_rb(10)), {GOOD}),
    "good, rao-blackwellised": (lambda: fit(gaussian, 3, sa.pmcsa(10, rao_blackwell=True)), {GOOD}),
    "good, elbo": (lambda: fit(gaussian, 3, sa.elbo(10)), {GOOD}),
    "too narrow": (lambda: changed(scale=0.5), {STUCK, LONGER, WEIGH}),
    "too wide": (lambda: changed(scale=2.0), {LONGER}),
    "shifted": (lambda: changed(shift=2.0), {STUCK, LONGER}),
    "a little shifted": (lambda: changed(shift=0.6), {LONGER}),
    "elbo, correlated": (lambda: fit(correlated, 2, sa.elbo(10)), {WEIGH, LONGER}),
    "mean-field on twenty": (lambda: fit(chain_of_twenty, 20, sa.pmcsa(10)), {STUCK, LONGER}),
    "two modes": (lambda: fit(two_modes, 2, wide=True), {STUCK, WEIGH}),
    "cauchy": (lambda: fit(cauchy, 1), {UNSEEN, NO_MOMENTS}),
    "student": (lambda: fit(student, 1), {WEIGH, UNSEEN}),
    "NaN on half": (lambda: fit(half_nan, 2), {WEIGH}),
    "unconverged": (lambda: fit(far_away, 2, steps=500), {LONGER}),
    "funnel": (lambda: fit(funnel, 5), {STUCK, WEIGH}),
}


LONG = {"good, rao-blackwellised", "student", "mean-field on twenty"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", quick_rows(CASES, *(CASES.keys() - LONG)))
def test_verdicts(case):
    make, verdicts = CASES[case]
    diagnosis = make().diagnose()
    assert diagnosis.verdict in verdicts, str(diagnosis)
    assert diagnosis.verdict in str(diagnosis)
    assert diagnosis.reason
    assert (diagnosis.advice == "") == (diagnosis.verdict == GOOD)


def test_chains_that_never_move():
    """A kernel that rejects everything."""

    class Stays(sa.IMH):
        def step(self, key, target, q, point):
            return point, sa.Info(jnp.zeros(()), jnp.int32(0))

    stuck = fit(gaussian, 3, sa.pmcsa(8, kernel=Stays()), steps=200)
    diagnosis = stuck.diagnose()
    assert diagnosis.verdict == STUCK
    assert diagnosis.stuck == 1.0
    assert diagnosis.acceptance == 0.0


@pytest.mark.slow
def test_few_chains_and_many_on_a_network():
    """Ten chains that q follows, and a hundred that do not move, are told apart."""
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    net = BNN(inputs=4, hidden=(20,))
    target = net.target(x, np.sin(2 * x[:, 0]) + 0.1 * x[:, 1])
    q0 = sa.MeanField.from_moments(jnp.zeros(net.dim), jnp.full(net.dim, 1.1))
    few, many = (
        sa.fit(target, sa.pmcsa(n), q0=q0, steps=8000, progress=False).diagnose() for n in (10, 200)
    )
    assert few.verdict == many.verdict == STUCK
    assert "follows its chains" in few.reason
    assert "never moved" in many.reason


def test_the_numbers_are_those_of_the_weights():
    result = fit(correlated, 2)
    diagnosis = result.diagnose(key=3, draws=2000)
    z = sample(jax.random.split(sa._random.as_key(3))[0], result.q, 2000)
    log_w = np.asarray(jax.vmap(result.target.log_prob)(z) - jax.vmap(result.q.log_prob)(z), float)
    assert diagnosis.k_hat == pytest.approx(psis(log_w).k_hat, rel=1e-3, abs=1e-3)
    true_evidence = np.log(2 * np.pi * np.sqrt(1 - 0.95**2))
    assert diagnosis.log_evidence == pytest.approx(true_evidence, abs=0.15)


@pytest.mark.slow
def test_it_leaves_the_result_alone_and_repeats_itself():
    result = fit(gaussian, 3)
    before = jax.tree.map(np.array, (result.q, result.state.eta))
    first, second = result.diagnose(key=5), result.diagnose(key=5)
    assert first.k_hat == second.k_hat
    assert first.rhat == second.rhat
    after = jax.tree.map(np.array, (result.q, result.state.eta))
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_resampled_draws_are_of_the_posterior():
    """A q that is wide enough and otherwise wrong, in spreads and in correlation."""
    result = fit(correlated, 2, sa.elbo(10))
    wide = replace(result, q=sa.MeanField.from_moments(result.q.mean, 4.0 * result.q.sd))
    z = np.asarray(wide.resample(0, 4000, draws=400_000)["z"], float)
    moments = np.column_stack([z, z**2, z[:, :1] * z[:, 1:]])
    assert z_score(moments, np.array([0, 0, 1, 1, 0.95])) < Z_MAX
    plain = np.asarray(wide.sample(0, 4000)["z"], float)
    assert z_score(plain**2, np.array([1.0, 1.0])) > Z_MAX


def test_bad_input():
    many = sa.fit(sa.Target(gaussian, dim=2), sa.pmcsa(), steps=5, replications=2, progress=False)
    for call in (many.diagnose, lambda: many.resample(0)):
        with pytest.raises(ValueError, match=r"result\[0\]"):
            call()
    assert many[0].diagnose(draws=200, steps=40).verdict
    with pytest.raises(ValueError, match="draws must be an integer ≥ 100"):
        many[0].diagnose(draws=3)
    with pytest.raises(ValueError, match="steps must be an integer ≥ 20"):
        many[0].diagnose(steps=3)
    with pytest.raises(ValueError, match="draws must be an integer ≥ 10"):
        many[0].resample(0, 10, draws=3)
    nowhere = replace(many[0], q=sa.MeanField.from_moments(jnp.full(2, 1e30), jnp.ones(2)))
    with pytest.raises(ValueError, match="no draw of q"):
        nowhere.resample(0, 10)
