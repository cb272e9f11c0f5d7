"""The gradient's variance along a run: exact where a closed form exists, and no hand in the run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics import gradient_variance
from scoreascent.models.gaussian import Gaussian, wishart_gaussian
from tests.registry import METHODS, quick_rows

SMALL = wishart_gaussian(3, 5, seed=1)
SETTINGS = {"steps": 600, "every": 200, "copies": 256, "progress": False}


@pytest.mark.parametrize("name", quick_rows(METHODS, "pmcsa", "elbo"))
def test_the_run_is_the_one_that_fit_does(name):
    method = METHODS[name]
    seen = gradient_variance(SMALL.target, method, key=3, **SETTINGS)
    run = sa.fit(SMALL.target, method, steps=600, key=3, progress=False)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b),
        (seen.final.q, seen.final.eta, seen.final.memory),
        (run.state.q, run.state.eta, run.state.memory),
    )
    assert seen.variance.shape == seen.bias.shape == (3,)
    assert np.all(seen.variance > 0)
    assert np.all(np.isnan(seen.bias))


def test_pmcsa_variance_is_the_closed_form_in_stationarity():
    """IMH mixes at once if q is π; then tr Cov g = tr Cov_π(s)/N, whatever the method's λ."""
    problem = Gaussian(np.zeros(3), np.diag([1.0, 4.0, 0.25]))
    q = sa.MeanField.from_moments(np.zeros(3, "f"), np.array([1, 2, 0.5], "f"))
    seen = gradient_variance(
        problem.target, sa.pmcsa(4), q0=q, start=q, steps=20, every=1, copies=4000, progress=False
    )
    at = jax.vmap(problem.score_variance)(seen.q) / 4
    ratio = np.mean(seen.variance / np.asarray(at))
    assert abs(ratio - 1) < 0.03
    assert abs(ratio * 4 - 1) > 0.03  # a forgotten 1/N would be seen


def test_score_variance_and_kl_by_simulation():
    q = sa.MeanField.from_moments(np.array([0.3, -1, 0.5], "f"), np.array([2, 3, 4], "f"))
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(SMALL.mean, SMALL.cov, 200_000).astype("f")
    scores = jax.vmap(lambda z: jax.grad(lambda q: q.log_prob(z))(q))(z)
    simulated = sum(float(jnp.sum(jnp.var(x, axis=0))) for x in jax.tree.leaves(scores))
    assert simulated == pytest.approx(float(SMALL.score_variance(q)), rel=0.03)
    log_p = -0.5 * np.linalg.slogdet(2 * np.pi * SMALL.cov)[1] + jax.vmap(SMALL.target.log_prob)(z)
    estimate = float(jnp.mean(log_p - jax.vmap(q.log_prob)(z)))
    assert estimate == pytest.approx(float(SMALL.kl(q)), abs=0.05)
    best = sa.MeanField.from_moments(
        SMALL.mean.astype("f"), np.sqrt(np.diag(SMALL.cov)).astype("f")
    )
    assert float(SMALL.kl(best)) == pytest.approx(SMALL.kl_floor, abs=1e-4)


def test_bias_is_seen_where_there_is_one():
    problem = Gaussian(
        np.zeros(3), np.diag([1.0, 4.0, 0.25])
    )  # q can be π, so the copies start in π
    exact = jax.grad(problem.kl)
    q = sa.MeanField.from_moments(np.zeros(3, "f"), np.array([1, 2, 0.5], "f"))
    settings = {"q0": q, "steps": 30, "every": 10, "copies": 2000, "progress": False}
    right = gradient_variance(problem.target, sa.pmcsa(16), start=q, exact=exact, **settings)
    noise = np.sqrt(right.variance / 2000)
    assert np.all(right.bias < 5 * noise)
    wrong = gradient_variance(
        problem.target, sa.pmcsa(16), start=q, exact=lambda q: jax.tree.map(lambda x: x + 1, q),
        **settings,
    )  # fmt: skip
    assert np.all(wrong.bias > 5 * noise)


def test_replications_stand_in_front():
    seen = gradient_variance(SMALL.target, sa.pmcsa(4), replications=2, **SETTINGS)
    assert seen.variance.shape == (2, 3)
    assert seen.q.loc.shape == (2, 3, 3)
    assert not np.array_equal(seen.variance[0], seen.variance[1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 10, "every": 3}, "every"),
        ({"copies": 1}, "copies"),
        ({"replications": 0}, "replications"),
        ({"q0": sa.MeanField.standard(2)}, "q0"),
    ],
)
def test_bad_input(arguments, named):
    with pytest.raises(ValueError, match=named):
        gradient_variance(SMALL.target, sa.pmcsa(4), progress=False, **arguments)


@pytest.mark.parametrize(
    ("mean", "cov", "says"),
    [
        (np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (np.zeros(2), np.eye(3), "cov"),
    ],
)
def test_bad_gaussians(mean, cov, says):
    with pytest.raises(ValueError, match=says):
        Gaussian(mean, cov)


@pytest.mark.parametrize(("dim", "nu", "says"), [(0, 5, "dim"), (3, -2, "nu")])
def test_bad_wisharts(dim, nu, says):
    with pytest.raises(ValueError, match=says):
        wishart_gaussian(dim, nu)


def test_wishart_has_the_right_mean():
    draws = np.mean([wishart_gaussian(3, 4, seed).cov for seed in range(3000)], axis=0)
    np.testing.assert_allclose(draws, 7 * np.diag([1 / 3, 2 / 3, 1]), atol=0.35)
