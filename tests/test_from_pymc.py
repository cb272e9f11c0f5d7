"""PyMC models as targets: against PyMC's own log density and densities written by hand."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.scipy import stats
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.adapters.pymc import PyMCModel, from_pymc
from tests.helpers import x64

pm = pytest.importorskip("pymc")
pytensor = pytest.importorskip("pytensor")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 2))
Y = RNG.normal(size=12)
COUNTS = RNG.poisson(2.0, size=12)
TRIALS = np.array([5, 8, 10])
HEADS = np.array([1, 6, 9])
ROWS = RNG.normal(size=(7, 3))
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
COV = np.array([[1.0, 0.5], [0.5, 2.0]])
SCHOOLS = list("ABCDEFGH")


@pytest.fixture(autouse=True, scope="module")
def _no_c_compiler() -> Any:
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield


def gaussian() -> None:
    mu = pm.Normal("mu", [1.0, -1.0], 2.0, shape=2)
    pm.MvNormal("y", mu, cov=COV, observed=ROWS[:, :2])


def gaussian_by_hand(p: Any) -> Any:
    prior = jnp.sum(stats.norm.logpdf(p["mu"], jnp.array([1.0, -1.0]), 2.0))
    return prior + jnp.sum(stats.multivariate_normal.logpdf(ROWS[:, :2], p["mu"], COV))


def schools() -> None:
    tau = pm.HalfCauchy("tau", 5.0)
    mu = pm.Normal("mu", 0.0, 5.0)
    raw = pm.Normal("raw", dims="school")
    theta = pm.Deterministic("theta", mu + tau * raw, dims="school")
    effects = pm.Data("effects", EFFECTS, dims="school")
    pm.Normal("y", theta, ERRORS, observed=effects, dims="school")


def schools_by_hand(p: Any) -> Any:
    prior = stats.norm.logpdf(p["mu"], 0, 5) + jnp.sum(stats.norm.logpdf(p["raw"]))
    prior += jnp.log(2.0) + stats.cauchy.logpdf(p["tau"], 0, 5)
    return prior + jnp.sum(stats.norm.logpdf(EFFECTS, p["mu"] + p["tau"] * p["raw"], ERRORS))


def line() -> None:
    sigma = pm.HalfNormal("sigma", 2.0)
    beta = pm.Normal("beta", 0.0, 1.0, shape=2)
    pm.Potential("pull", -0.5 * (beta**2).sum())
    pm.Normal("y", X @ beta, sigma, observed=Y)


def line_by_hand(p: Any) -> Any:
    prior = jnp.sum(stats.norm.logpdf(p["beta"]) - 0.5 * p["beta"] ** 2)  # with the potential
    prior += jnp.log(2.0) + stats.norm.logpdf(p["sigma"], 0, 2)
    return prior + jnp.sum(stats.norm.logpdf(Y, X @ p["beta"], p["sigma"]))


def poisson() -> None:
    b = pm.Normal("b", 0.0, 1.0, shape=2)
    a = pm.StudentT("a", 4.0)
    pm.Poisson("counts", pm.math.exp(a + X @ b), observed=COUNTS)


def poisson_by_hand(p: Any) -> Any:
    prior = jnp.sum(stats.norm.logpdf(p["b"])) + stats.t.logpdf(p["a"], 4.0)
    return prior + jnp.sum(stats.poisson.logpmf(COUNTS, jnp.exp(p["a"] + X @ p["b"])))


def coins() -> None:
    p = pm.Beta("p", 2.0, 3.0, shape=3)
    pm.Binomial("heads", TRIALS, p, observed=HEADS)


def coins_by_hand(p: Any) -> Any:
    prior = jnp.sum(stats.beta.logpdf(p["p"], 2.0, 3.0))
    return prior + jnp.sum(stats.binom.logpmf(HEADS, TRIALS, p["p"]))


def covariance() -> None:
    chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.5, shape=3))
    pm.MvNormal("rows", np.zeros(3), chol=chol, observed=ROWS)


class Case(NamedTuple):
    build: Callable[[], None]
    by_hand: Callable[..., Any] | None = None
    params: dict[str, Any] | None = None


real, positive, P = constraints.real, constraints.positive, sa.Param
CASES = {
    "gaussian": Case(gaussian, gaussian_by_hand, {"mu": P(real, (2,))}),
    "schools": Case(schools, schools_by_hand, {"tau": positive, "mu": real, "raw": P(real, (8,))}),
    "line": Case(line, line_by_hand, {"sigma": positive, "beta": P(real, (2,))}),
    "poisson": Case(poisson, poisson_by_hand, {"b": P(real, (2,)), "a": real}),
    "coins": Case(coins, coins_by_hand, {"p": P(constraints.unit_interval, (3,))}),
    "covariance": Case(covariance),
}


@pytest.fixture(scope="module")
def targets() -> dict[str, sa.Target]:
    """Every model, made into a target once."""
    found = {}
    before = os.environ.get("XLA_FLAGS"), jax.config.jax_enable_x64
    for name, case in CASES.items():
        with pm.Model(coords={"school": SCHOOLS, "other": [1, 2]}):
            case.build()
            found[name] = from_pymc()
    # the import of PyMC's JAX part would change both
    assert (os.environ.get("XLA_FLAGS"), jax.config.jax_enable_x64) == before
    return found


each_case = pytest.mark.parametrize("name", CASES)


def some_z(target: sa.Target, seed: int = 1) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=target.dim) / 2)


def point(model: PyMCModel, z: Any) -> dict[str, Any]:
    values = [v.name for v in model.model.value_vars]
    return dict(zip(values, map(np.asarray, model._split(z))))


class Evaluated(NamedTuple):
    """What a target says at three points, in float64."""

    z: Any
    log_p: Any
    gradient: Any
    values: dict[str, Any]
    back: Any  # the points again, from the values


@pytest.fixture(scope="module")
def evaluated(targets: dict[str, sa.Target]) -> Callable[[str], Evaluated]:
    """One program for each model, for all the tests that look at it."""

    @functools.cache
    def get(name: str) -> Evaluated:
        target = targets[name]

        @jax.jit
        @jax.vmap
        def everything(z: Any) -> Any:
            values = target.constrain(z)
            return *jax.value_and_grad(target.log_prob)(z), values, target.unconstrain(values)

        with x64():
            z = jnp.stack([some_z(target, seed) for seed in (1, 2, 3)])
            return Evaluated(z, *everything(z))

    return get


@each_case
def test_log_density_is_pymcs(name: str, targets: Any, evaluated: Any) -> None:
    model, ours = targets[name].log_density, evaluated(name)
    pymcs = model.model.compile_logp(mode="FAST_COMPILE")
    with x64():
        expected = [pymcs(point(model, z)) for z in ours.z]
    assert ours.log_p.dtype == jnp.float64
    np.testing.assert_allclose(ours.log_p, expected, atol=1e-8, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_hand])
def test_log_density_is_that_written_by_hand(name: str, evaluated: Any) -> None:
    """But for the covariance, for which PyMC and NumPyro have other coordinates."""
    case, ours = CASES[name], evaluated(name)
    with x64():
        hand = sa.Target(case.by_hand, params=case.params)

        @jax.jit
        @jax.vmap
        def by_hand(values: Any) -> Any:
            z = hand.unconstrain(values)
            return z, hand.log_prob(z)

        z, log_p = by_hand({k: ours.values[k] for k in case.params})
        np.testing.assert_allclose(np.sort(z), np.sort(ours.z), atol=1e-9)
        np.testing.assert_allclose(ours.log_p, log_p, atol=1e-8)


@each_case
def test_runs_in_float32_without_x64(name: str, targets: Any, evaluated: Any) -> None:
    target, wide = targets[name], evaluated(name)
    z = np.asarray(wide.z[0], np.float32)

    def both(z: Any) -> Any:
        return jax.value_and_grad(target.log_prob)(z), target.constrain(z)

    (log_p, gradient), values = jax.jit(both)(z)
    assert {x.dtype for x in (log_p, gradient, *values.values())} == {jnp.dtype("float32")}
    with x64():
        assert jax.eval_shape(target.log_prob, z).dtype == jnp.float32
    np.testing.assert_allclose(log_p, wide.log_p[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, wide.gradient[0], rtol=1e-3, atol=1e-3)


@each_case
def test_constrain_and_unconstrain_are_inverse(name: str, targets: Any, evaluated: Any) -> None:
    target, found = targets[name], evaluated(name)
    assert target.site_names == tuple(rv.name for rv in target.log_density.model.free_RVs)
    assert set(target.site_names) <= set(found.values)
    assert not any(value.endswith("__") for value in found.values)
    np.testing.assert_allclose(found.back, found.z, atol=1e-9)


def test_constrained_values_of_a_covariance(evaluated: Any) -> None:
    values = {k: np.asarray(v[0]) for k, v in evaluated("covariance").values.items()}
    chol = np.zeros((3, 3))
    chol[np.tril_indices(3)] = values["chol"]
    assert np.all(np.diag(chol) > 0)
    sds = np.sqrt(np.diag(chol @ chol.T))
    np.testing.assert_allclose(values["chol_stds"], sds)
    np.testing.assert_allclose(values["chol_corr"], chol @ chol.T / np.outer(sds, sds))


def test_observations_likelihoods_and_labels(targets: Any, evaluated: Any) -> None:
    target = targets["schools"]
    model = target.log_density
    found = evaluated("schools")
    with x64():
        np.testing.assert_array_equal(model.observed(None)["y"], EFFECTS)
        log_likelihood = jax.jit(model.log_likelihood)(found.z[0], None)
        expected = scipy.stats.norm.logpdf(EFFECTS, found.values["theta"][0], ERRORS)
        np.testing.assert_allclose(log_likelihood["y"], expected, atol=1e-10)
        rows = jax.eval_shape(
            targets["covariance"].log_density.log_likelihood, found.z[0, :6], None
        )
        assert rows["rows"].shape == (7,)
    assert model.dims == {"raw": ("school",), "theta": ("school",), "y": ("school",)}
    assert list(model.coords) == ["school"]
    assert list(model.coords["school"]) == SCHOOLS
    assert targets["line"].log_density.dims == targets["line"].log_density.coords == {}


def test_sum_of_likelihood_and_prior_is_the_density(targets: Any, evaluated: Any) -> None:
    found = evaluated("coins")
    p = np.asarray(found.values["p"][0])
    rest = np.sum(scipy.stats.beta.logpdf(p, 2, 3) + np.log(p * (1 - p)))
    with x64():
        terms = jax.jit(targets["coins"].log_density.log_likelihood)(found.z[0], None)["heads"]
    np.testing.assert_allclose(found.log_p[0], rest + np.sum(np.asarray(terms)), atol=1e-8)


@pytest.mark.parametrize("name", ["schools", "poisson", "coins", "covariance"])
def test_predictions_have_the_moments_of_the_likelihood(
    name: str, targets: dict[str, sa.Target]
) -> None:
    target, n = targets[name], 4000
    model = target.log_density
    z = some_z(target).astype(jnp.float32)
    draws = jax.jit(jax.vmap(lambda key: model.predict(key, z, None)))(
        jax.random.split(jax.random.key(1), n)
    )
    (site, new), *_ = draws.items()
    assert new.shape == (n, *model.observed(None)[site].shape)
    values = {k: np.asarray(v, float) for k, v in target.constrain(z).items()}
    if name == "schools":
        mean, sd = values["theta"], ERRORS
    elif name == "poisson":
        mean = np.exp(values["a"] + X @ values["b"])
        sd = np.sqrt(mean)
    elif name == "coins":
        mean, sd = TRIALS * values["p"], np.sqrt(TRIALS * values["p"] * (1 - values["p"]))
    else:
        mean, sd = 0.0, np.broadcast_to(values["chol_stds"], (7, 3))
    new = np.asarray(new, float)
    assert np.all(np.abs(np.mean(new, 0) - mean) < 5 * sd / np.sqrt(n))
    np.testing.assert_allclose(np.std(new, 0), sd, rtol=0.12)


def test_an_observation_of_another_sees_the_new_one() -> None:
    with pm.Model():
        mu = pm.Normal("mu")
        a = pm.Normal("a", mu, 1.0, observed=100.0)
        pm.Normal("b", a, 0.01, observed=100.0)
        model = from_pymc().log_density
    z = jnp.zeros(1)
    one, two = (model.predict(jax.random.key(i), z, None) for i in (0, 1))
    assert abs(one["a"]) < 10
    assert abs(one["a"] - one["b"]) < 0.1
    assert one["a"] != two["a"]
    np.testing.assert_allclose(
        model.log_likelihood(z, None)["b"], scipy.stats.norm.logpdf(0, 0, 0.01), rtol=1e-5
    )


def test_a_transform_that_depends_on_another_variable() -> None:
    with pm.Model() as model:
        top = pm.HalfNormal("top")
        pm.Uniform("x", 0, top)
        target = from_pymc()
    with x64():
        z = jnp.array([0.3, -0.8])
        np.testing.assert_allclose(target.unconstrain(target.constrain(z)), z, atol=1e-9)
        expected = model.compile_logp(mode="FAST_COMPILE")(point(target.log_density, z))
        np.testing.assert_allclose(target.log_prob(z), expected, atol=1e-8)


def test_a_fit_has_the_right_means_and_named_draws(targets: dict[str, sa.Target]) -> None:
    target = targets["gaussian"]
    result = sa.fit(target, sa.pmcsa(32), steps=500, key=0, progress=False)
    precision = np.eye(2) / 4 + 7 * np.linalg.inv(COV)
    pull = np.array([1.0, -1.0]) / 4 + np.linalg.inv(COV) @ ROWS[:, :2].sum(0)
    mean, sd = np.linalg.solve(precision, pull), np.sqrt(np.diag(np.linalg.inv(precision)))
    draws = result.sample(1, 4000)
    assert np.all(np.abs(np.mean(draws["mu"], 0) - mean) < 0.5 * sd)


def test_deterministics_are_among_the_draws(targets: dict[str, sa.Target]) -> None:
    result = sa.fit(targets["schools"], sa.pmcsa(4), steps=2, key=0, progress=False)
    draws = result.sample(0, 10)
    assert list(draws) == ["tau", "mu", "raw", "theta"]
    np.testing.assert_allclose(
        draws["theta"], draws["mu"][:, None] + draws["tau"][:, None] * draws["raw"], rtol=1e-4
    )
    pytest.importorskip("arviz")
    found = result.to_arviz(n=40)
    assert found["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert found["posterior_predictive"]["y"].shape == (4, 10, 8)
    np.testing.assert_allclose(found["observed_data"]["y"], EFFECTS)


def test_data_are_those_of_the_moment() -> None:
    with pm.Model() as model:
        x = pm.Data("x", [0.0, 1.0])
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=x)
        before = from_pymc()
        with x64():
            first = before.log_prob(jnp.zeros(1))
        pm.set_data({"x": [5.0, 5.0, 5.0]})
        after = from_pymc(model)
    assert before.log_density != after.log_density
    assert len({before.log_density, after.log_density}) == 2
    np.testing.assert_allclose(before.log_prob(jnp.zeros(1)), first, rtol=1e-6)
    np.testing.assert_array_equal(before.log_density.observed(None)["y"], [0, 1])
    np.testing.assert_array_equal(after.log_density.observed(None)["y"], [5, 5, 5])


def test_initial_values_are_pymcs_with_its_jitter() -> None:
    with pm.Model() as model:
        pm.Normal("x", 40.0, 1.0, shape=2)
        pm.HalfNormal("s", 1.0, initval=np.exp(5.0))
    target = from_pymc(model)
    z = np.stack([target.log_density.initial(jax.random.key(i), None) for i in range(20)])
    assert np.all(np.abs(z - [40, 40, 5]) <= 1)
    assert np.all(np.ptp(z, axis=0) > 0.5)


# -- what is refused -------------------------------------------------------------------------------


def test_needs_pymc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'scoreascent\[pymc\]'"):
        from_pymc()


def test_needs_a_model() -> None:
    with pytest.raises(ValueError, match="no model around"):
        from_pymc()
    with pytest.raises(ValueError, match=r"model must be a pymc\.Model, got 3"):
        from_pymc(3)
    with pm.Model() as empty:
        pm.Normal("y", 0, 1, observed=1.0)
    with pytest.raises(ValueError, match="no free variables"):
        from_pymc(empty)


def test_refuses_discrete_variables() -> None:
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        pm.Normal("x", k, 1.0)
        pm.Bernoulli("flag", 0.3)
    with pytest.raises(ValueError, match=r"\['k', 'flag'\]; marginalise"):
        from_pymc(model)


def test_refuses_minibatches() -> None:
    with pm.Model() as model:
        batch = pm.Minibatch(Y, batch_size=4)
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=batch, total_size=12)
    with pytest.raises(ValueError, match=r"pymc\.Minibatch"):
        from_pymc(model)


def test_names_the_op_that_has_no_jax() -> None:
    class Odd(pytensor.graph.op.Op):
        itypes = (pytensor.tensor.dscalar,)
        otypes = (pytensor.tensor.dscalar,)

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            outputs[0][0] = inputs[0]

    with pm.Model() as model:
        pm.Potential("odd", Odd()(pm.Normal("x")))
    with pytest.raises(ValueError, match=r"cannot turn its log density into JAX: .*Odd"):
        from_pymc(model)


@pytest.mark.parametrize("name", ["Categorical", "Multinomial", "Weibull"])
def test_says_how_to_predict_what_jax_cannot_draw(name: str) -> None:
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        if name == "Categorical":
            pm.Categorical("y", p, observed=[0, 1, 2, 2])
        elif name == "Multinomial":
            pm.Multinomial("y", 5, p, observed=[1, 2, 2])
        else:
            pm.Weibull("y", 1.0 + p, 1.0, observed=[1.0, 2.0, 3.0])
    target = from_pymc(model)
    assert target.dim == 2
    with pytest.raises(NotImplementedError, match=r"pymc\.sample_posterior_predictive"):
        target.log_density.predict(jax.random.key(0), jnp.zeros(2), None)


def test_unconstrain_checks_names_and_shapes(targets: dict[str, sa.Target]) -> None:
    with pytest.raises(ValueError, match=r"dictionary of \('sigma', 'beta'\), got \['beta'\]"):
        targets["line"].unconstrain({"beta": jnp.zeros(2)})
    with pytest.raises(ValueError, match=r"values\['beta'\] must have shape \(2,\), got \(3,\)"):
        targets["line"].unconstrain({"beta": jnp.zeros(3), "sigma": 1.0})
