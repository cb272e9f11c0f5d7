"""Sites between centred and not: the same posterior, names and draws; which, and why."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import scoreascent as sa
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.centring import centred, is_open, stated
from scoreascent.kernels import Count
from tests.helpers import x64

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)


def schools(y: Any, s: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(10))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(theta, s), obs=y)


def many_kinds() -> None:
    a = numpyro.sample("a", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("b", dist.StudentT(5.0, a, s).expand([2, 3]).to_event(1))
    with numpyro.plate("p", 2):
        numpyro.sample("c", dist.LogNormal(a, s))
    numpyro.sample("d", dist.Cauchy(0, 1))  # nothing to centre
    numpyro.sample("e", dist.Gamma(2, s))  # of no location–scale family


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0])
def test_any_centredness_is_the_same_posterior(c: float) -> None:
    """log p(u) = log p(x) + log |dx/du|, and all that is named is that of the model as written."""
    with x64():
        written = sa.from_numpyro(many_kinds, centring="as written")
        target = sa.from_numpyro(many_kinds, centring={"b": c, "c": c})
        assert target.model.centrable == ("b", "c")
        for seed in range(3):
            z = jax.random.normal(jax.random.key(seed), (written.dim,))
            values = written.constrain(z)
            u = target.unconstrain(values)
            log_s = jnp.log(values["s"])
            expected = written.log_prob(z) + 8 * (1 - c) * log_s
            np.testing.assert_allclose(target.log_prob(u), expected, rtol=1e-12)
            again = target.constrain(u)
            assert list(again) == list(values)
            for name in values:
                np.testing.assert_allclose(again[name], values[name], rtol=1e-10)
        if c == 1:
            np.testing.assert_allclose(u, z, rtol=1e-12)


def test_centredness_by_element() -> None:
    c = np.linspace(0, 1, 8)
    target = sa.from_numpyro(schools, Y, S, centring={"theta": c})
    z = jax.random.normal(jax.random.key(0), (10,))
    named = target.constrain(z)
    loc, scale = named["mu"], named["tau"]
    np.testing.assert_allclose(
        named["theta"], loc + scale ** (1 - c) * (z[2:] - c * loc), rtol=1e-5
    )


def test_nothing_is_precise_only_far_from_zero() -> None:
    """u is weighed as it is: (x − loc)/scale would be noise in 32 bits at so small a scale."""
    target = sa.from_numpyro(schools, Y, S, centring={"theta": 0.0})
    z = jnp.concatenate([jnp.array([5.0, -14.0]), jnp.linspace(-1, 1, 8)])
    slope = jax.grad(target.log_prob)(z)
    np.testing.assert_allclose(slope[2:], -z[2:], atol=1e-5)


def test_predictions_and_likelihoods_are_those_of_the_model() -> None:
    written = sa.from_numpyro(schools, Y, S, centring="as written")
    target = sa.from_numpyro(schools, Y, S, centring={"theta": 0.2})
    z = jnp.linspace(-0.5, 1.0, 10)
    u = target.unconstrain(written.constrain(z))
    for ask in ("log_likelihood", "constrain"):
        ours, theirs = (getattr(t.model, ask)(x, t.data) for t, x in ((target, u), (written, z)))
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4)
    np.testing.assert_array_equal(target.model.observed(target.data)["y"], Y)
    drawn = target.model.predict(jax.random.key(0), u, target.data)["y"]
    assert drawn.shape == (8,)
    assert target.initial(jax.random.key(1)).shape == (10,)
    assert target.model.dims == written.model.dims


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
        sa.from_numpyro(schools, Y, S, centring=centring)


def test_models_with_nothing_to_centre_are_as_they_were() -> None:
    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    target = sa.from_numpyro(model, Y)
    assert target.model.centrable == ()
    assert len(target.data) == 1
    assert not is_open(target)


def groups(n: Any, sd: float) -> sa.Target:
    """One effect for each group, of which so many observations of unit noise are the data."""

    def model(mean: Any, n: Any) -> None:
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("group", len(n)):
            theta = numpyro.sample("theta", dist.Normal(0, tau))
        numpyro.sample("y", dist.Normal(theta, 1 / jnp.sqrt(n)), obs=mean)

    n = np.asarray(n, np.float32)
    mean = sd * np.random.default_rng(0).normal(size=len(n)).astype(np.float32)
    return sa.from_numpyro(model, mean, n)


def test_the_rule_is_the_share_of_precision_that_the_data_have() -> None:
    """With n observations and a scale of one, that is n/(n + 1); near an end it is the end."""
    n = [0.2, 0.5, 1.0, 4.0]
    target = groups(n, 1.0)
    assert is_open(target)
    z = np.zeros((5, 5), np.float32)  # tau = 1, and no element away from zero
    found, cost = centred(target, jax.random.key(0), lambda *_: (z, Count(3, 4)), print)
    np.testing.assert_allclose(found.data[-1], [0.0, 1 / 3, 1 / 2, 1.0], rtol=1e-5)
    assert cost == Count(3, 4 + 2 * 5 * 4)
    assert not is_open(found)
    np.testing.assert_allclose(stated(found, np.ones(4)).log_prob(z[0]), target.log_prob(z[0]))


@pytest.mark.parametrize(("lowest", "expected"), [(-6.0, 0.0), (-0.1, 0.49)])
def test_a_scale_that_may_be_next_to_nothing_is_not_centred(lowest: float, expected: float) -> None:
    """One that is known is: the mean of the shares is above a half in both."""
    target = groups([1.2], 1.0)
    z = np.zeros((200, 2), np.float32)
    z[:, 0] = np.linspace(lowest, 3.0, 200)  # log tau
    share = 1 - 1 / (1 + 1.2 * np.exp(2 * z[:, 0]))
    assert np.mean(share) > 0.3
    found, _ = centred(target, jax.random.key(0), lambda *_: (z, Count(3, 4)), print)
    np.testing.assert_allclose(found.data[-1], expected, atol=0.1)


@pytest.mark.slow
def test_the_fit_leaves_what_is_well_known_and_not_what_is_not() -> None:
    result = sa.fit(groups(8 * [0.3] + 8 * [400.0], 0.7), progress=False)
    c = np.asarray(result.target.data[-1])
    assert np.all(c[:8] < 0.35)
    assert np.all(c[8:] > 0.9)
    assert result.diagnosis.verdict == GOOD
    assert any("centring: 'theta'" in line for line in result.decisions)
    assert set(result.sample(0, 10)) == {"tau", "theta"}


@pytest.mark.slow
@pytest.mark.parametrize("key", range(3))
def test_centred_eight_schools_are_right_and_good(key: int) -> None:
    """Against the same density integrated over theta and on a grid of mu and tau."""
    result = sa.fit(sa.from_numpyro(schools, Y, S), key=key, progress=False)
    assert result.diagnosis.verdict == GOOD
    mu, log_tau = np.meshgrid(np.linspace(-25, 30, 400), np.linspace(-7, 4.5, 600), indexing="ij")
    tau = np.exp(log_tau)
    var = tau[..., None] ** 2 + S**2
    log_p = -0.5 * np.sum((Y - mu[..., None]) ** 2 / var + np.log(var), -1)
    log_p += -0.5 * (mu / 5) ** 2 - 0.5 * (tau / 10) ** 2 + log_tau
    w = np.exp(log_p - log_p.max())
    w /= w.sum()
    rows = {row["name"]: row for row in result.summary()}
    for name, x in (("mu", mu), ("tau", tau)):
        mean = np.sum(w * x)
        sd = np.sqrt(np.sum(w * (x - mean) ** 2))
        assert abs(rows[name]["mean"] - mean) < 0.1 * sd
        assert abs(np.log(rows[name]["sd"] / sd)) < 0.1
    shrunk = (Y[0] / S[0] ** 2 + mu / tau**2) / (1 / S[0] ** 2 + 1 / tau**2)
    mean = np.sum(w * shrunk)
    sd = np.sqrt(np.sum(w * (1 / (1 / S[0] ** 2 + 1 / tau**2) + (shrunk - mean) ** 2)))
    assert abs(rows["theta[0]"]["mean"] - mean) < 0.1 * sd
    assert abs(np.log(rows["theta[0]"]["sd"] / sd)) < 0.1
