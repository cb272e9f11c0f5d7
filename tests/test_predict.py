"""Predictions: the peers' own at the same posterior draws, and closed forms."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import Predictive

import scoreascent as sa
from tests.stats import Z_MAX, Z_MUTANT, z_score

RNG = np.random.default_rng(11)
X = RNG.normal(size=(12, 2)).astype("f4")
Y = RNG.normal(size=12).astype("f4")
X_NEW = RNG.normal(size=(5, 2)).astype("f4")
ERRORS = np.linspace(5, 15, 8).astype("f4")
EFFECTS = RNG.normal(size=8).astype("f4")
N = 200


def line(x: Any, y: Any = None) -> None:
    sigma = numpyro.sample("sigma", dist.Exponential(2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    mean = numpyro.deterministic("mean", x @ beta)
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def schools(n: int, errors: Any, y: Any = None) -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", n):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


def short(target: sa.Target) -> sa.Result:
    """A fit of no merit: what is under test is what is made of its draws."""
    return sa.fit(target, sa.pmcsa(4), steps=2, progress=False)


@functools.cache
def of_line() -> sa.Result:
    return short(sa.from_numpyro(line, X, y=Y))


@functools.cache
def of_schools() -> sa.Result:
    return short(sa.from_numpyro(schools, 8, ERRORS, y=EFFECTS))


def key_of_draws(seed: int) -> Any:
    """The key that predictions are drawn by; the first is that of the posterior draws."""
    return jax.random.split(jax.random.key(seed))[1]


def assert_same(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for name, x in theirs.items():
        assert ours[name].shape == x.shape
        np.testing.assert_allclose(ours[name], x, rtol=2e-5, atol=2e-5, err_msg=name)


# -- NumPyro ---------------------------------------------------------------------------------------


def test_numpyro_at_new_rows_are_the_draws_of_predictive() -> None:
    result = of_line()
    ours = result.predict(3, X_NEW, n=N)
    posterior = {k: ours.parameters[k] for k in result.target.site_names}
    theirs = Predictive(line, posterior)(key_of_draws(3), X_NEW)
    assert ours["y"].shape == (N, 5)
    assert_same(ours, theirs)
    assert ours.anew == ()
    other = Predictive(line, posterior)(key_of_draws(4), X_NEW)["y"]
    assert np.abs(ours["y"] - other).max() > 0.1  # it can fail


def test_parameters_are_the_draws_of_sample() -> None:
    result = of_line()
    ours = result.predict(3, X_NEW, n=50).parameters
    theirs = result.sample(jax.random.split(jax.random.key(3))[0], 50)
    assert_same(ours, theirs)


def test_numpyro_without_arguments_is_at_the_data_of_the_fit() -> None:
    result = of_line()
    for ours in (result.predict(3, n=N), result.predict(3, X, Y, n=N)):  # y is not given back
        posterior = {k: ours.parameters[k] for k in result.target.site_names}
        assert_same(ours, Predictive(line, posterior)(key_of_draws(3), X))


def test_numpyro_draws_new_groups_given_the_others() -> None:
    result = of_schools()
    errors = np.ones(3, np.float32)
    with pytest.warns(UserWarning, match=r"\['theta'\] have other shapes here than in the fit"):
        ours = result.predict(5, 3, errors, n=N)
    posterior = {k: ours.parameters[k] for k in ("tau", "mu")}
    assert_same(ours, Predictive(schools, posterior)(key_of_draws(5), 3, errors))
    assert ours.anew == ("theta",)
    assert "drawn anew: theta" in str(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = result.predict(5, 3, errors, n=N, anew=["theta"])
        same_size = result.predict(5, 8, ERRORS, n=N, anew=["theta"])
    assert_same(said, ours)
    assert same_size["theta"].shape == (N, 8)
    kept = result.predict(5, 8, ERRORS, n=N)
    assert "theta" not in kept
    assert kept.anew == ()


def look(x: Any, group: Any, y: Any = None) -> None:
    """It looks at its data: how many groups there are."""
    with numpyro.plate("group", int(group.max()) + 1):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(level[group] + x, 1.0), obs=y)


def test_numpyro_models_that_look_at_new_data() -> None:
    group = np.array([0, 1, 2, 1])

    def closed(x: Any, y: Any = None, group: Any = None) -> None:
        look(x, np.array([0, 1, 2, 1]) if group is None else group, y)

    result = short(sa.from_numpyro(closed, X[:4, 0], Y[:4]))
    ours = result.predict(1, X[:2, 0], group=group[:3][1:].astype("i4"), n=20)
    level = ours.parameters["level"]
    assert ours["y"].shape == (20, 2)
    posterior = {"level": level}
    theirs = Predictive(closed, posterior)(key_of_draws(1), X[:2, 0], group=group[:3][1:])
    assert_same(ours, theirs)


def conjugate(n: int, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("row", n):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def exact() -> tuple[sa.Result, float, float]:
    """A fit whose q is the posterior, its mean and its variance."""
    y = np.array([1.0, 2.0, 1.5], np.float32)
    variance = 1 / (1 / 4 + len(y))
    mean = variance * float(y.sum())
    q = sa.MeanField.from_moments([mean], [variance**0.5])
    target = sa.from_numpyro(conjugate, len(y), y)
    return sa.fit(target, sa.pmcsa(4), q0=q, steps=0, progress=False), mean, variance


def test_numpyro_has_the_posterior_predictive_distribution() -> None:
    result, mean, variance = exact()
    y = result.predict(2, 2, n=20_000)["y"]

    def z(y: Any) -> float:
        away = y - mean
        moments = np.stack([away[:, 0], away[:, 0] ** 2, away[:, 0] * away[:, 1]], -1)
        return z_score(moments, [0.0, variance + 1, variance])

    assert z(y) < Z_MAX
    rows_apart = np.stack([y[:, 0], np.roll(y[:, 1], 1)], -1)  # each row at a draw of its own
    mean_alone = result.predict(2, 2, n=20_000).parameters["mu"][:, None].repeat(2, 1)
    assert z(rows_apart) > Z_MUTANT
    assert z(mean_alone) > Z_MUTANT


def test_discrete_and_unobserved_sites_are_drawn() -> None:
    def coins(n: int, y: Any = None) -> None:
        p = numpyro.sample("p", dist.Beta(2.0, 2.0))
        numpyro.sample("y", dist.Bernoulli(p).expand([n]), obs=y)

    result = short(sa.from_numpyro(coins, 4, jnp.array([0, 1, 1, 1])))
    ours = result.predict(0, 7, n=N)
    assert_same(ours, Predictive(coins, {"p": ours.parameters["p"]})(key_of_draws(0), 7))
    assert set(np.unique(ours["y"])) == {0, 1}


# -- functions of the parameters -------------------------------------------------------------------

NAMED = sa.Target(
    lambda p: -jnp.sum(p["b"]["x"] ** 2) - p["s"],
    params={"b": {"x": sa.Param(shape=(2,))}, "s": constraints.positive},
)


def test_functions_of_parameters() -> None:
    result = short(NAMED)
    ours = result.predict(4, lambda p: X_NEW @ p["b"]["x"] + p["s"], n=N)
    b, s = ours.parameters["b.x"], ours.parameters["s"]
    np.testing.assert_allclose(ours["value"], b @ X_NEW.T + s[:, None], rtol=1e-4, atol=1e-4)
    twice = result.predict(4, lambda p: {"a": p["s"], "b": 2 * p["s"]}, n=N)
    np.testing.assert_array_equal(2 * twice["a"], twice["b"])
    np.testing.assert_array_equal(twice["a"], s)


def test_functions_of_a_key() -> None:
    result = short(NAMED)
    draw = lambda key, p: p["s"] + jax.random.normal(key, (3,))  # noqa: E731
    ours = result.predict(4, draw, n=N)
    keys = jax.random.split(key_of_draws(4), N)
    noise = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys)
    np.testing.assert_allclose(ours["value"], ours.parameters["s"][:, None] + noise, rtol=1e-5)


def test_functions_of_numpy() -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    result = short(target)
    ours = result.predict(4, lambda z: float(np.hypot(*np.asarray(z))), n=20)
    np.testing.assert_allclose(ours["value"], np.hypot(*ours.parameters["z"].T), rtol=1e-5)


# -- what is shown ---------------------------------------------------------------------------------


def test_means_intervals_and_table() -> None:
    ours = of_line().predict(3, X_NEW, n=N)
    y = ours.draws["y"]
    np.testing.assert_allclose(ours.mean["y"], y.mean(0), rtol=1e-5)
    np.testing.assert_allclose(ours.sd["y"], y.std(0, ddof=1), rtol=1e-5)
    low, high = ours.interval(0.5)["y"]
    np.testing.assert_allclose([low, high], np.quantile(y, [0.25, 0.75], axis=0), rtol=1e-5)
    assert set(ours) == {"mean", "y"}
    assert len(ours) == 2
    text = str(ours)
    assert "y[4]" in text
    assert f"{N} draws" in text
    assert f"{ours.mean['y'][4]:.4g}" in text
    many = of_line().predict(3, np.zeros((40, 2), np.float32), n=10)
    assert "… 50 more" in str(many)


# -- what is refused -------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, str]] = {
    "columns": (
        lambda: of_line().predict(0, np.zeros((4, 3), np.float32)),
        r"site 'beta' has shape \(3,\), but in the fit it had \(2,\)",
    ),
    "broadcast": (
        lambda: of_schools().predict(0, 8, np.ones(5, np.float32)),
        "predict: the model cannot be run with these arguments",
    ),
    "missing": (lambda: of_schools().predict(0, 8), "cannot be run .* missing 1 required .*errors"),
    "unknown": (lambda: of_line().predict(0, X_NEW, z=3), "cannot be run .* keyword argument 'z'"),
    "anew": (lambda: of_line().predict(0, X_NEW, anew=["b"]), r"anew must be .* got \['b'\]"),
    "anew word": (lambda: of_line().predict(0, X_NEW, anew="beta"), "anew must be .* got 'beta'"),
    "n": (lambda: of_line().predict(0, X_NEW, n=0), "n must be an integer ≥ 1, got 0"),
    "draws": (lambda: of_line().predict(0, X_NEW, draws="all"), "draws must be 'q', .* got 'all'"),
    "no chains": (lambda: of_line().predict(0, draws="chains"), "this fit kept no states"),
    "no function": (lambda: short(NAMED).predict(0), r"give predict\(key, function\)"),
    "an array": (lambda: short(NAMED).predict(0, X_NEW), r"give predict\(key, function\)"),
    "two": (lambda: short(NAMED).predict(0, jnp.sum, jnp.sum), r"give predict\(key, function\)"),
    "three arguments": (lambda: short(NAMED).predict(0, lambda a, b, c: a), "needs 3 arguments"),
    "text": (lambda: short(NAMED).predict(0, lambda p: "abc"), "an array or a dictionary of"),
    "mass": (lambda: of_line().predict(0, X_NEW, n=5).interval(90), "mass .* between 0 and 1"),
    "replications": (
        lambda: sa.fit(
            NAMED, sa.pmcsa(2), steps=1, replications=2, progress=False
        ).predict(0, lambda p: p["s"]),
        "this result holds replications",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_refused_with_what_to_do(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_models_of_ones_own_draw_their_observations() -> None:
    class Own(sa.Model):
        dim, site_names = 1, ("a",)

        def __call__(self, z: Any, data: Any) -> Any:
            return -0.5 * z[0] ** 2

        def constrain(self, z: Any, data: Any) -> Any:
            return {"a": z[0]}

        def unconstrain(self, values: Any, data: Any) -> Any:
            return jnp.ravel(values["a"])

        def predict(self, key: Any, z: Any, data: Any) -> Any:
            return {"y": z[0] + jax.random.normal(key, (2,))}

    result = short(sa.Target(Own(), dim=1))
    assert result.predict(0, n=7)["y"].shape == (7, 2)
    with pytest.raises(ValueError, match="Own knows no arguments but those of the fit"):
        result.predict(0, 3, n=7)


# -- PyMC ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pm() -> Any:
    pymc = pytest.importorskip("pymc")
    import pytensor

    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield pymc


@pytest.fixture(scope="module")
def in_pymc(pm: Any) -> sa.Result:
    with pm.Model(coords={"row": range(12), "column": ["a", "b"]}) as model:
        x = pm.Data("x", X, dims=("row", "column"))
        y = pm.Data("observed", Y, dims="row")
        sigma = pm.HalfNormal("sigma", 1.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=2)
        mean = pm.Deterministic("mean", x @ beta, dims="row")
        pm.Normal("y", mean, sigma, observed=y, dims="row")
        return short(sa.from_pymc(model))


def points(predictions: sa.Predictions, names: Any) -> list[dict[str, Any]]:
    n = len(next(iter(predictions.parameters.values())))
    return [{k: predictions.parameters[k][i] for k in names} for i in range(n)]


def test_pymc_at_new_data_is_pymcs_own(pm: Any, in_pymc: sa.Result) -> None:
    model = in_pymc.target.log_density.model  # type: ignore[union-attr]
    ours = in_pymc.predict(3, x=X_NEW, n=3 * N)
    assert ours["y"].shape == ours["mean"].shape == (3 * N, 5)
    mean = ours.parameters["beta"] @ X_NEW.T
    np.testing.assert_allclose(ours["mean"], mean, rtol=1e-4, atol=1e-5)
    noise = (ours["y"] - ours["mean"]) / ours.parameters["sigma"][:, None]
    assert z_score(np.concatenate([noise, noise**2 - 1], -1), 0.0) < Z_MAX
    assert model["x"].get_value().shape == (12, 2)  # the model is as it was
    assert model.dim_lengths["row"].eval() == 12
    with model:
        pm.set_data({"x": X_NEW, "observed": np.zeros(5)}, coords={"row": range(5)})
        theirs = pm.sample_posterior_predictive(
            points(ours, ("sigma", "beta")), var_names=["mean", "y"], random_seed=3,
            progressbar=False, return_inferencedata=False,
        )  # fmt: skip
        pm.set_data({"x": X, "observed": Y}, coords={"row": range(12)})
    np.testing.assert_allclose(ours["mean"], theirs["mean"][0], rtol=1e-5, atol=1e-6)
    differ = ours["y"] - theirs["y"][0]
    scaled = differ / ours.parameters["sigma"][:, None]
    assert z_score(np.concatenate([scaled, scaled**2 - 2], -1), 0.0) < Z_MAX
    assert z_score(scaled**2 - 1, 0.0) > Z_MUTANT


def test_pymc_without_arguments_is_at_the_data_of_the_fit(in_pymc: sa.Result) -> None:
    ours = in_pymc.predict(3, n=N)
    assert ours["y"].shape == (N, 12)
    np.testing.assert_allclose(ours["mean"], ours.parameters["mean"])
    noise = (ours["y"] - ours["mean"]) / ours.parameters["sigma"][:, None]
    assert z_score(np.concatenate([noise, noise**2 - 1], -1), 0.0) < Z_MAX


def test_pymc_draws_new_groups_given_the_others(pm: Any) -> None:
    with pm.Model(coords={"school": range(8)}) as model:
        errors = pm.Data("errors", ERRORS, dims="school")
        tau = pm.HalfNormal("tau", 5.0)
        mu = pm.Normal("mu", 0.0, 5.0)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, errors, observed=EFFECTS, dims="school")
    result = short(sa.from_pymc(model))
    with pytest.warns(UserWarning, match=r"\['theta'\] have other shapes here"):
        ours = result.predict(3, errors=np.full(3, 0.01), n=N)
    assert ours.anew == ("theta",)
    assert ours["y"].shape == (N, 3)
    noise = (ours["y"] - ours.parameters["mu"][:, None]) / np.hypot(ours.parameters["tau"], 0.01)[
        :, None
    ]
    assert z_score(np.concatenate([noise, noise**2 - 1], -1), 0.0) < Z_MAX


def test_pymc_draws_what_jax_cannot(pm: Any) -> None:
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("y", p, observed=[0, 1, 2, 2])
    result = short(sa.from_pymc(model))
    ours = result.predict(1, n=2000)
    share = np.stack([np.mean(ours["y"] == k, 1) for k in range(3)], -1)
    assert z_score(share - ours.parameters["p"], 0.0) < Z_MAX


def test_pymc_refuses(in_pymc: sa.Result) -> None:
    with pytest.raises(ValueError, match=r"data of a PyMC model are given by name"):
        in_pymc.predict(0, X_NEW)
    with pytest.raises(ValueError, match=r"'z' is not among the data of the model, \['observed'"):
        in_pymc.predict(0, z=X_NEW)
    with pytest.raises(ValueError, match=r"x must be an array of 2 axes, as in the fit, got shape"):
        in_pymc.predict(0, x=X_NEW[0])
    with pytest.raises(ValueError, match="cannot be run with these data"):
        in_pymc.predict(0, x=np.zeros((4, 3)), n=5)
    with pytest.raises(ValueError, match=r"observed has 3 entries along dim 'row', other data 5"):
        in_pymc.predict(0, x=X_NEW, observed=np.zeros(3), n=5)
