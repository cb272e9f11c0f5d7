"""From a fit to NUTS of three libraries, and from another sampler's draws to a fit."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS

import scoreascent as sa

ERRORS = np.linspace(5, 15, 4).astype("f4")
EFFECTS = np.array([8.0, -3.0, 2.0, 5.0], np.float32)
LOOSE = 0.15  # of a covariance from 4000 draws


def schools(errors: Any, y: Any = None) -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


def uneven() -> None:
    """Names out of order, of three scales; one is positive."""
    numpyro.sample("z", dist.Normal(jnp.zeros(2), jnp.array([1e-2, 1.0])).to_event(1))
    numpyro.sample("b", dist.LogNormal(0.0, 0.1))
    numpyro.sample("a", dist.Normal(0.0, 100.0))


SD = np.array([1e-2, 1.0, 0.1, 100.0])


def exact(target: sa.Target, sd: Any = SD) -> sa.Result:
    """A fit whose q is the posterior."""
    q = sa.MeanField.from_moments(np.zeros(len(sd), np.float32), np.asarray(sd, np.float32))
    return sa.fit(target, sa.pmcsa(4), q0=q, steps=0, progress=False)


@functools.cache
def non_centred() -> sa.Result:
    target = sa.from_numpyro(schools, ERRORS, y=EFFECTS, centring={"theta": 0.0})
    return sa.fit(target, sa.pmcsa(8), steps=20, progress=False)


# -- what is handed over ---------------------------------------------------------------------------


def test_places_and_metric_are_of_the_model_as_written() -> None:
    result = non_centred()
    found = result.to_nuts(3, chains=5)
    written = sa.from_numpyro(schools, ERRORS, y=EFFECTS, centring="as written")
    assert found.z.shape == (5, 6)
    assert found.metric.shape == (6, 6)
    for z in found.z:
        np.testing.assert_allclose(
            found.target.log_prob(z), written.log_prob(z), rtol=1e-5, atol=1e-4
        )
        np.testing.assert_allclose(z[2:], written.constrain(z)["theta"], rtol=1e-5)
    # the fit's own coordinates are others: its theta has a scale of one
    u = np.asarray(result.q.sample(jax.random.key(0), (4000,)))
    theta = u[:, 1:2] + np.exp(u[:, :1]) * u[:, 2:]
    own = np.sqrt(np.diag(found.metric))
    np.testing.assert_allclose(own[:2], u[:, :2].std(0), rtol=LOOSE)
    np.testing.assert_allclose(own[2:], theta.std(0), rtol=2 * LOOSE)
    assert np.all(np.abs(np.log(own[2:] / u[:, 2:].std(0))) > 0.3)


def test_metric_is_the_covariance() -> None:
    cov = np.array([[1.0, 0.9], [0.9, 1.0]], np.float32)
    precision = jnp.linalg.inv(cov)
    target = sa.Target(lambda z: -0.5 * z @ precision @ z, dim=2)
    q = sa.FullRank.from_moments(np.zeros(2, np.float32), cov)
    result = sa.fit(target, sa.pmcsa(4), q0=q, steps=0, progress=False)
    np.testing.assert_allclose(result.to_nuts().metric, cov, atol=LOOSE)
    np.testing.assert_allclose(result.to_nuts(dense=False).metric, [1, 1], atol=LOOSE)
    assert "dense metric" in repr(result.to_nuts())
    assert result.to_nuts(chains=1).z.shape == (1, 2)


def test_late_states_of_chains_are_taken_where_there_are_any() -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    result = sa.fit(target, sa.pmcsa(32), steps=400, stop=sa.Converged(every=20), progress=False)
    found = result.to_nuts(1, chains=4)
    last = np.asarray(result.states)[-1]
    assert all(np.any(np.all(last == np.asarray(z), axis=1)) for z in found.z)
    assert len(np.unique(found.z, axis=0)) == 4
    np.testing.assert_allclose(found.metric, np.eye(2), atol=2 * LOOSE)


def leapfrogs(kernel: dict[str, Any], run: dict[str, Any], warmup: int = 50) -> Any:
    """NUTS's draws, and how many steps its trajectories have on average."""
    sampler = MCMC(
        NUTS(**kernel), num_warmup=warmup, num_samples=100, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.key(0), **run, extra_fields=("num_steps", "diverging"))
    extra = sampler.get_extra_fields()
    assert not np.any(extra["diverging"])
    return sampler.get_samples(), float(np.mean(extra["num_steps"]))


@pytest.mark.slow
def test_numpyro_goes_on_with_the_model_itself() -> None:
    found = exact(sa.from_numpyro(uneven)).to_nuts(chains=2)
    kernel, run = found.numpyro()
    assert kernel["model"].func is uneven
    draws, steps = leapfrogs(kernel, run)
    assert set(draws) == {"z", "b", "a"}
    assert np.all(draws["b"] > 0)
    assert steps < 10
    # names are sorted in NumPyro's own flat order: the same matrix in ours would be another's
    wrong = {tuple(sorted(names)): m for names, m in kernel["inverse_mass_matrix"].items()}
    wrong_kernel = kernel | {"inverse_mass_matrix": wrong, "dense_mass": [*wrong]}
    assert leapfrogs(wrong_kernel, run)[1] > 3 * steps


@pytest.mark.slow
def test_numpyro_with_a_diagonal_or_with_the_density_alone() -> None:
    found = exact(sa.from_numpyro(uneven)).to_nuts(chains=2, dense=False)
    kernel, run = found.numpyro()
    assert leapfrogs(kernel, run)[1] < 10
    kernel, run = found.numpyro(model=False)
    draws, steps = leapfrogs(kernel, run)
    assert steps < 10
    named = jax.vmap(found.target.named)(draws)
    assert set(named) == {"z", "b", "a"}


def test_blackjax_goes_on() -> None:
    blackjax = pytest.importorskip("blackjax")
    found = exact(sa.Target(lambda z: -0.5 * jnp.sum((z / SD.astype("f4")) ** 2), dim=4)).to_nuts()
    arguments, positions = found.blackjax()
    sampler = blackjax.nuts(**arguments)

    @jax.jit
    @jax.vmap
    def step(key: Any, z: Any) -> Any:
        state, info = sampler.step(key, sampler.init(z))
        return state.position, info.acceptance_rate

    keys = jax.random.split(jax.random.key(0), len(positions))
    moved, rate = step(keys, positions)
    assert moved.shape == (4, 4)
    assert np.all(rate > 0.5)
    assert np.all(np.abs(moved - positions).max(0) > 0.05 * SD)


# -- PyMC ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_pymc() -> Any:
    pm = pytest.importorskip("pymc")
    import pytensor

    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        with pm.Model() as model:
            tau = pm.HalfNormal("tau", 5.0)
            mu = pm.Normal("mu", 0.0, 5.0)
            theta = pm.Normal("theta", mu, tau, shape=4)
            pm.Normal("y", theta, ERRORS, observed=EFFECTS)
        target = sa.from_pymc(model, centring={"theta": 0.0})
        yield pm, model, sa.fit(target, sa.pmcsa(8), steps=20, progress=False)


def test_pymc_is_given_values_inside_supports_and_a_step(of_pymc: Any) -> None:
    _, model, result = of_pymc
    found = result.to_nuts(chains=2)
    arguments = found.pymc()
    assert arguments["chains"] == len(arguments["initvals"]) == 2
    assert arguments["tune"] == 100
    for values, z in zip(arguments["initvals"], found.z):
        assert set(values) == {"tau", "mu", "theta"}
        assert values["tau"] > 0
        point = {"tau_log__": np.log(values["tau"]), "mu": values["mu"], "theta": values["theta"]}
        theirs = model.compile_logp()({k: np.asarray(v, np.float64) for k, v in point.items()})
        np.testing.assert_allclose(found.target.log_prob(z), theirs, rtol=1e-4, atol=1e-3)
    along = np.arange(6.0)
    velocity = arguments["step"].potential.velocity(along)
    np.testing.assert_allclose(velocity, np.asarray(found.metric, np.float64) @ along, rtol=1e-4)


def test_pymc_samples_on(of_pymc: Any) -> None:
    pm, model, result = of_pymc
    arguments = result.to_nuts(chains=1).pymc(tune=5)
    with model:
        trace = pm.sample(
            draws=5, cores=1, progressbar=False, compute_convergence_checks=False, random_seed=1,
            **arguments,
        )  # fmt: skip
    assert trace.posterior["theta"].shape == (1, 5, 4)


@pytest.mark.slow
def test_pymc_samples_on_by_numpyro(of_pymc: Any) -> None:
    pm, model, result = of_pymc
    arguments = result.to_nuts(chains=2).pymc("numpyro", tune=50)
    with model:
        trace = pm.sample(draws=50, progressbar=False, random_seed=1, **arguments)
    assert trace.posterior["theta"].shape == (2, 50, 4)
    assert set(result.to_nuts(chains=2).pymc("nutpie")) == {
        "initvals", "chains", "nuts_sampler", "tune",
    }  # fmt: skip


# -- from draws ------------------------------------------------------------------------------------

SCALED = sa.Target(
    lambda p: -0.5 * jnp.sum(((p["b"]["x"] - 3) / jnp.array([0.1, 10.0])) ** 2) - p["s"],
    params={"b": {"x": sa.Param(shape=(2,))}, "s": constraints.positive},
)


def draws_of_scaled(n: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    x = 3 + rng.normal(size=(n, 2)) * [0.1, 10.0]
    return {"b.x": x, "s": rng.exponential(size=n), "other": np.zeros(3)}


def test_draws_in_every_form_are_the_same_start() -> None:
    draws = draws_of_scaled()
    z = np.concatenate([draws["b.x"], np.log(draws["s"])[:, None]], -1)
    by_name = sa.from_draws(SCALED, draws)
    in_chains = {k: v.reshape(4, 100, *v.shape[1:]) for k, v in draws.items() if k != "other"}
    for start in (sa.from_draws(SCALED, z), sa.from_draws(SCALED, in_chains), by_name):
        np.testing.assert_allclose(start.q.mean, z.mean(0), rtol=1e-4)
        np.testing.assert_allclose(start.q.cov, np.cov(z.T), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(start.z, z, rtol=1e-4, atol=1e-4)
    assert str(by_name) == "400 points"
    assert sa.from_draws(SCALED, draws_of_scaled(2000)).z.shape == (512, 3)


def test_a_fit_begins_at_draws() -> None:
    result = sa.fit(SCALED, start=sa.from_draws(SCALED, draws_of_scaled()), progress=False)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == "good"
    assert "start: as given; 400 points" in result.decisions
    np.testing.assert_allclose(result.q.mean[:2], [3, 3], atol=1.5)


def test_arvizs_container() -> None:
    pytest.importorskip("arviz")
    target = sa.from_numpyro(schools, ERRORS, y=EFFECTS, centring="as written")
    result = sa.fit(target, sa.pmcsa(8), steps=20, progress=False)
    container = result.to_arviz(n=100)
    start = sa.from_draws(target, container)
    theta = np.asarray(container["posterior"]["theta"]).reshape(100, 4)
    np.testing.assert_allclose(start.z[:, 2:], theta, rtol=1e-4, atol=1e-4)
    again = sa.from_draws(target, container["posterior"])
    np.testing.assert_array_equal(again.z, start.z)


# -- what is refused -------------------------------------------------------------------------------


def with_draws(**changes: Any) -> Any:
    return lambda: sa.from_draws(SCALED, draws_of_scaled() | changes)


def one_outside() -> Any:
    s = draws_of_scaled()["s"]
    s[17] = -1.0
    return s


BAD: dict[str, tuple[Any, str]] = {
    "target": (lambda: sa.from_draws(3, np.zeros((50, 2))), "target must be a Target, got 3"),
    "text": (lambda: sa.from_draws(SCALED, "draws"), "draws must .*"),
    "object": (lambda: sa.from_draws(SCALED, object()), "draws must be an array .* got object"),
    "shape": (lambda: sa.from_draws(SCALED, np.zeros((50, 2))), r"shape \(n, 3\).*got \(50, 2\)"),
    "NaN": (lambda: sa.from_draws(SCALED, np.full((50, 3), np.nan)), "draws must be finite"),
    "few": (
        lambda: sa.from_draws(SCALED, np.random.default_rng(0).normal(size=(5, 3))),
        "draws: 5 are too few for 3 dimensions; give at least 16",
    ),
    "names": (
        lambda: sa.from_draws(SCALED, {"s": np.ones(50)}),
        r"draws have no \['b.x'\]; they must name all of \('b.x', 's'\)",
    ),
    "shape of a name": (
        with_draws(**{"b.x": np.zeros((400, 5))}),
        r"draws\['b.x'\] must have shape \(n, 2\)",
    ),
    "counts": (with_draws(s=np.ones(7)), r"as many for every name, got \[7, 400\]"),
    "outside": (with_draws(s=one_outside()), r"draws\['s'\]: draw 17 is outside the support"),
    "constant": (with_draws(s=np.ones(400)), r"do not vary in coordinates \[2\]"),
    "another target's": (
        lambda: sa.from_draws(
            sa.Target(lambda z: jnp.where(z[0] > 0, -jnp.inf, 0.0), dim=1),
            np.random.default_rng(0).uniform(1, 2, size=(50, 1)),
        ),
        "the log density is not finite at any",
    ),
    "chains": (lambda: non_centred().to_nuts(chains=0), "chains must be an integer ≥ 1, got 0"),
    "pymc of numpyro": (lambda: non_centred().to_nuts().pymc(), "needs a fit of a PyMC model"),
    "sampler": (lambda: non_centred().to_nuts().pymc("stan"), "sampler must be .* got 'stan'"),
    "replications": (
        lambda: sa.fit(
            SCALED, sa.pmcsa(2), steps=1, replications=2, progress=False
        ).to_nuts(),
        "this result holds replications",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_refused_with_what_to_do(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
