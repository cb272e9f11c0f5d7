"""PyMC's variables between centred and not: the same posterior, names and draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import scoreascent as sa
from scoreascent.adapters.pymc import from_pymc
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.centring import centred, is_open, stated
from scoreascent.kernels import Count
from tests.helpers import x64

pm = pytest.importorskip("pymc")
pytensor = pytest.importorskip("pytensor")

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@pytest.fixture(autouse=True, scope="module")
def _no_c_compiler() -> Any:
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield


def build(function: Callable[[], None], **coords: Any) -> Any:
    with pm.Model(coords=coords) as model:
        function()
    return model


def schools() -> None:
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfNormal("tau", 10)
    theta = pm.Normal("theta", mu, tau, dims="school")
    pm.Deterministic("best", theta.max())
    pm.Normal("y", theta, S, observed=pm.Data("effects", Y), dims="school")


SCHOOLS = {"school": list("ABCDEFGH")}


def every_family() -> None:
    """Each of them, in shapes of several kinds, below a location and a scale."""
    a = pm.Normal("a", 0, 1)
    s = pm.HalfNormal("s", 1)
    pm.Normal("normal", a, s, shape=2)
    pm.Normal("precise", [1.0, a], tau=4.0)
    pm.StudentT("student", 5.0, a, sigma=s, shape=(2, 3))
    pm.Cauchy("cauchy", a, s)
    pm.Laplace("laplace", 2 * a, s, shape=(1,))
    pm.Logistic("logistic", a, 2.0, shape=2)
    pm.Gumbel("gumbel", 1.0, s, shape=2)
    pm.LogNormal("lognormal", a, sigma=s, shape=2)


# by name: the density of one variable given a and s, and how many elements there are, with which
# power of s and of what constant their scale is
FAMILIES: dict[str, tuple[Callable[..., Any], int, float, float]] = {
    "normal": (lambda x, a, s: scipy.stats.norm.logpdf(x, a, s), 2, 1, 1.0),
    "precise": (lambda x, a, s: scipy.stats.norm.logpdf(x, [1, a], 0.5), 2, 0, 0.5),
    "student": (lambda x, a, s: scipy.stats.t.logpdf(x, 5, a, s), 6, 1, 1.0),
    "cauchy": (lambda x, a, s: scipy.stats.cauchy.logpdf(x, a, s), 1, 1, 1.0),
    "laplace": (lambda x, a, s: scipy.stats.laplace.logpdf(x, 2 * a, s), 1, 1, 1.0),
    "logistic": (lambda x, a, s: scipy.stats.logistic.logpdf(x, a, 2), 2, 0, 2.0),
    "gumbel": (lambda x, a, s: scipy.stats.gumbel_r.logpdf(x, 1, s), 2, 1, 1.0),
    "lognormal": (lambda x, a, s: scipy.stats.norm.logpdf(np.log(x), a, s), 2, 1, 1.0),
}


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0])
def test_any_centredness_is_the_same_posterior(c: float) -> None:
    """log p(u) = log p(x) + log |dx/du|, of densities that are scipy's."""
    model = build(every_family)
    with x64():
        written = from_pymc(model, centring="as written")
        target = from_pymc(model, centring=dict.fromkeys(FAMILIES, c))
        assert written.data is None
        assert target.model.centrable == tuple(FAMILIES)
        for seed in range(2):
            z = jax.random.normal(jax.random.key(seed), (written.dim,))
            values = written.constrain(z)
            a, s = float(values["a"]), float(values["s"])
            expected = scipy.stats.norm.logpdf(a) + scipy.stats.halfnorm.logpdf(s) + np.log(s)
            for name, (logpdf, n, power, constant) in FAMILIES.items():
                expected += np.sum(logpdf(np.asarray(values[name]), a, s))
                expected += (1 - c) * n * np.log(constant * s**power)
            u = target.unconstrain(values)
            np.testing.assert_allclose(target.log_prob(u), expected, atol=1e-7)
            again = target.constrain(u)
            assert list(again) == list(values)
            for name in values:
                np.testing.assert_allclose(again[name], values[name], rtol=1e-9)
        if c == 1:
            np.testing.assert_allclose(u, z, rtol=1e-9)


def chain() -> None:
    """Levels below one another, the scale of the last the exponential of the one above."""
    top = pm.Normal("top", 0, 1)
    middle = pm.Normal("middle", top, 0.5, shape=2)
    low = pm.LogNormal("low", middle, pm.math.exp(top), shape=2)
    pm.Normal("last", middle.sum(), low[::-1], shape=2)
    pm.Potential("pull", -(low.sum() ** 2))


def density(target: sa.Target, written: sa.Target, z: Any) -> Any:
    """What the change of variables makes of the density as written: its Jacobian is jax's own."""
    to_z = lambda u: written.unconstrain(target.constrain(u))  # noqa: E731
    u = target.unconstrain(written.constrain(z))
    _, log_det = jnp.linalg.slogdet(jax.jacfwd(to_z)(u))
    return u, written.log_prob(to_z(u)) + log_det


def test_levels_below_one_another() -> None:
    model = build(chain)
    with x64():
        written = from_pymc(model, centring="as written")
        target = from_pymc(model, centring={"middle": [0, 0.7], "low": 0.2, "last": 0.0})
        z = jax.random.normal(jax.random.key(0), (7,)) / 2
        u, expected = density(target, written, z)
        np.testing.assert_allclose(target.log_prob(u), expected, atol=1e-7)
        named = target.constrain(u)
        np.testing.assert_allclose(named["middle"][0], named["top"] + 0.5 * u[1])
        np.testing.assert_allclose(
            named["last"], jnp.sum(named["middle"]) + named["low"][::-1] * u[5:], rtol=1e-9
        )
        np.testing.assert_allclose(written.unconstrain(named), z, rtol=1e-9)


def test_a_dropped_jacobian_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that weighs x instead of u does not pass the test above."""
    from scoreascent.adapters import pymc_centring

    def forgetful(self: Any, model: Any) -> Any:
        return self.by_u([model.logp()])[0]

    monkeypatch.setattr(pymc_centring.Statement, "log_density", forgetful)
    model = build(chain)
    with x64():
        written = from_pymc(model, centring="as written")
        target = from_pymc(model, centring={"middle": 0.3})
        u, expected = density(target, written, jnp.linspace(-0.5, 0.5, 7))
        assert abs(target.log_prob(u) - expected) > 0.1


def test_another_centredness_needs_no_other_graph() -> None:
    target = from_pymc(build(schools, **SCHOOLS))
    assert is_open(target)
    assert jax.tree.structure(target) == jax.tree.structure(stated(target, np.zeros(8)))
    assert target.model.centred_at()[0].tolist() == list(range(2, 10))
    z = jnp.linspace(-0.5, 1.0, 10)
    for c in (0.0, 0.4, 1.0):
        fresh = from_pymc(target.model.model, centring={"theta": c})
        np.testing.assert_allclose(stated(target, np.full(8, c)).log_prob(z), fresh.log_prob(z))
        if c == 1:
            np.testing.assert_allclose(target.log_prob(z), fresh.log_prob(z))


def test_nothing_is_precise_only_far_from_zero() -> None:
    """u is weighed as it is: (x − loc)/scale would be noise in 32 bits at so small a scale."""
    target = from_pymc(build(schools, **SCHOOLS), centring={"theta": 0.0})
    z = jnp.concatenate([jnp.array([5.0, -14.0]), jnp.linspace(-1, 1, 8)])
    slope = jax.grad(target.log_prob)(z)
    np.testing.assert_allclose(slope[2:], -z[2:], atol=1e-5)


def test_all_that_is_named_is_that_of_the_model() -> None:
    model = build(schools, **SCHOOLS)
    written = from_pymc(model, centring="as written")
    target = from_pymc(model, centring={"theta": np.linspace(0, 1, 8)})
    z = jnp.linspace(-0.5, 1.0, 10)
    u = target.unconstrain(written.constrain(z))
    key = jax.random.key(0)
    asks: list[Callable[..., Any]] = [
        lambda t, x: t.model.constrain(x, t.data),
        lambda t, x: t.model.log_likelihood(x, t.data),
        lambda t, x: t.model.predict(key, x, t.data),
        lambda t, x: t.model.observed(t.data),
    ]
    for ask in asks:
        ours, theirs = ask(target, u), ask(written, z)
        assert list(ours) == list(theirs)
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
    assert target.site_names == written.site_names
    assert target.model.dims == written.model.dims
    assert list(target.model.coords["school"]) == SCHOOLS["school"]
    at = np.array([target.initial(jax.random.key(i)) for i in range(20)])
    assert np.all(np.abs(at - [0, np.log(10), *np.zeros(8)]) <= 1)
    with pytest.raises(ValueError, match="values must be a dictionary"):
        target.unconstrain({"mu": 1.0})


def test_draws_and_containers_have_the_names_of_the_model() -> None:
    model = build(schools, **SCHOOLS)
    target = from_pymc(model, centring={"theta": 0.0})
    result = sa.fit(target, sa.pmcsa(4), steps=2, key=0, progress=False)
    draws = result.sample(0, 10)
    assert list(draws) == ["mu", "tau", "theta", "best"]
    np.testing.assert_allclose(draws["best"], draws["theta"].max(1), rtol=1e-5)
    pytest.importorskip("arviz")
    found = result.to_arviz(n=40)
    assert found["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert "theta_u" not in found["posterior"]
    assert found["posterior_predictive"]["y"].shape == (4, 10, 8)


def motley() -> None:
    mu = pm.Normal("mu", 0, 1)
    s = pm.HalfNormal("s", 1)
    pm.Gamma("gamma", 2, s)
    pm.Normal("free", [0.0, 1.0], 1)
    pm.Normal("sorted", mu, s, shape=2, transform=pm.distributions.transforms.ordered)
    pm.LogNormal("bare", mu, s, default_transform=None)
    pm.Normal("theta", mu, s, shape=3)
    pm.Normal("y", mu, s, observed=[1.0, 2.0])


def test_what_cannot_be_stated_otherwise_is_left_alone() -> None:
    model = build(motley)
    target = from_pymc(model)
    assert target.model.centrable == ("theta",)
    assert target.data[0].shape == (3,)
    rows = {
        "gamma": "its distribution is of no location–scale family",
        "free": "its location and scale depend on no free variable",
        "sorted": "its transform is not the usual one",
        "bare": "its transform is not the usual one of its distribution, but None",
        "y": "the model has no such latent site",
    }
    for name, why in rows.items():
        with pytest.raises(ValueError, match=f"'{name}' cannot be stated otherwise, for {why}"):
            from_pymc(model, centring={name: 0.5})


@pytest.mark.parametrize(
    ("centring", "message"),
    [
        ("always", "centring must be 'auto', 'as written', or a dictionary"),
        ({"nobody": 0.5}, "'nobody' cannot be stated otherwise, for the model has no such"),
        ({"tau": 0.5}, "'tau' cannot be stated otherwise, for its distribution is of no location"),
        ({"theta": 1.5}, r"centring\['theta'\] must lie between 0 and 1"),
        ({"theta": np.nan}, r"centring\['theta'\] must lie between 0 and 1"),
        ({"theta": np.zeros(3)}, r"centring\['theta'\] must have a shape that fits \(8,\)"),
    ],
)
def test_bad_centrings_are_named(centring: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_pymc(build(schools, **SCHOOLS), centring=centring)


def test_models_with_nothing_to_centre_are_as_they_were() -> None:
    target = from_pymc(build(lambda: pm.Normal("y", pm.Normal("mu"), 1, observed=Y)))
    assert target.model.centrable == ()
    assert target.data is None
    assert not is_open(target)


def test_missing_data_and_models_made_of_others() -> None:
    """Values that PyMC fills in are variables like others; an observed or fixed one is none."""
    with pytest.warns(pm.exceptions.ImputationWarning):
        model = build(lambda: pm.Normal("y", pm.Normal("mu"), 1, observed=[1.0, np.nan, 3.0]))
    assert from_pymc(model).model.centrable == ("y_unobserved",)
    model = pm.observe(build(chain), {"low": [1.0, 2.0]})
    with x64():
        written, target = from_pymc(model, centring="as written"), from_pymc(model)
        assert target.model.centrable == ("middle", "last")
        target = stated(target, [0.0, 0.2, 0.4, 0.6])
        u, expected = density(target, written, jnp.linspace(-0.5, 0.5, 5))
        np.testing.assert_allclose(target.log_prob(u), expected, atol=1e-7)
    assert from_pymc(pm.do(model, {"middle": [0.0, 0.0]})).model.centrable == ("last",)


def groups(n: Any, sd: float) -> sa.Target:
    """One effect for each group, of which so many observations of unit noise are the data."""
    n = np.asarray(n, float)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", 0, tau, shape=len(n))
        y = sd * np.random.default_rng(0).normal(size=len(n))
        pm.Normal("y", theta, 1 / np.sqrt(n), observed=y)
    return from_pymc(model)


def test_the_rule_is_the_share_of_precision_that_the_data_have() -> None:
    """With n observations and a scale of one, that is n/(n + 1)."""
    target = groups([0.5, 1.0, 2.0, 1000.0], 1.0)
    z = np.zeros((5, 5), np.float32)  # tau = 1, and no element away from zero
    found, cost = centred(target, jax.random.key(0), lambda *_: (z, Count(3, 4)), print)
    np.testing.assert_allclose(found.data[-1], [1 / 3, 1 / 2, 2 / 3, 1.0], rtol=1e-5)
    assert cost == Count(3, 4 + 2 * 5 * 4)
    assert not is_open(found)


@pytest.mark.slow
def test_the_fit_leaves_what_is_well_known() -> None:
    result = sa.fit(groups(16 * [400.0], 0.7), progress=False)
    assert np.all(np.asarray(result.target.data[-1]) > 0.9)
    assert result.diagnosis.verdict == GOOD
    assert set(result.sample(0, 10)) == {"tau", "theta"}


@pytest.mark.slow
@pytest.mark.parametrize("key", range(2))
def test_centred_eight_schools_are_right_and_good(key: int) -> None:
    """Against the same density integrated over theta and on a grid of mu and tau."""
    result = sa.fit(from_pymc(build(schools, **SCHOOLS)), key=key, progress=False)
    assert result.diagnosis.verdict == GOOD
    assert any("centring: 'theta'" in line for line in result.decisions)
    mu, log_tau = np.meshgrid(np.linspace(-25, 30, 400), np.linspace(-7, 4.5, 600), indexing="ij")
    tau = np.exp(log_tau)
    var = tau[..., None] ** 2 + S**2
    log_p = -0.5 * np.sum((Y - mu[..., None]) ** 2 / var + np.log(var), -1)
    log_p += -0.5 * (mu / 5) ** 2 - 0.5 * (tau / 10) ** 2 + log_tau
    w = np.exp(log_p - log_p.max())
    w /= w.sum()
    precision = 1 / S[0] ** 2 + 1 / tau**2
    shrunk = (Y[0] / S[0] ** 2 + mu / tau**2) / precision
    draws = result.sample(0, 4000)
    ours = {"mu": draws["mu"], "tau": draws["tau"], "theta": draws["theta"][:, 0]}
    exact = {"mu": (mu, 0), "tau": (tau, 0), "theta": (shrunk, 1 / precision)}
    for name, (x, var) in exact.items():
        mean = np.sum(w * x)
        sd = np.sqrt(np.sum(w * (var + (x - mean) ** 2)))
        assert abs(np.mean(ours[name]) - mean) < 0.1 * sd
        assert abs(np.log(np.std(ours[name]) / sd)) < 0.1
