"""A fit in ArviZ, of either major version: its groups, its summaries, its plots."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro import distributions as dist
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.adapters import from_numpyro

az = pytest.importorskip("arviz")
pytestmark = pytest.mark.filterwarnings("ignore")

X = np.linspace(0, 1, 30).astype(np.float32)
Y = (1 + 2 * X + 0.3 * np.sin(40 * X)).astype(np.float32)


def line(x: Any, y: Any = None) -> None:
    a = numpyro.sample("a", dist.Normal(0, 5))
    b = numpyro.sample("b", dist.Normal(0, 5).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("end", a + b[0])
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(a + b[0] * x, scale), obs=y)


@pytest.fixture(scope="module")
def result():
    target = from_numpyro(line, X, y=Y)
    return sa.fit(target, sa.pmcsa(32), steps=2000, average=True, progress=False)


@pytest.fixture(scope="module")
def data(result):
    return result.to_arviz(key=1, n=1000)


def test_groups_and_shapes(data, result):
    posterior = data["posterior"]
    assert set(posterior.data_vars) == {"a", "b", "scale", "end"}
    assert posterior["b"].shape == (4, 250, 2)
    assert data["chains"]["b"].shape == (32, 400, 2)
    for group in ("log_likelihood", "posterior_predictive"):
        assert data[group]["y"].shape == (4, 250, 30)
        assert "row" in data[group]["y"].dims
    np.testing.assert_array_equal(data["observed_data"]["y"], Y)
    stats = data["sample_stats"]
    assert {"lp", "log_q", "log_weight", "k_hat", "acceptance_rate"} <= set(stats.data_vars)
    assert data.attrs["method"] == "ScoreAscent(Parallel(IMH(), n=32))"
    assert data.attrs["inference_library"] == "scoreascent"
    assert data.attrs["steps"] == 2000


def test_the_draws_are_those_of_q_and_of_the_model(data, result):
    draws = result.sample(0, 4000)
    assert list(draws) == ["a", "b", "scale", "end"]  # free parameters first, as in the model
    for name in ("a", "end", "scale"):
        ours = np.asarray(data["posterior"][name])
        assert ours.mean() == pytest.approx(float(draws[name].mean()), abs=0.2 * float(ours.std()))
    end = data["posterior"]["a"] + data["posterior"]["b"][..., 0]
    np.testing.assert_allclose(end, data["posterior"]["end"], rtol=1e-5)
    a, b, scale = (np.asarray(data["posterior"][n])[..., None] for n in ("a", "b", "scale"))
    likelihood = dist.Normal(a + b[..., 0, :] * X, scale).log_prob(Y)
    np.testing.assert_allclose(data["log_likelihood"]["y"], likelihood, rtol=1e-3, atol=1e-3)
    predicted = np.asarray(data["posterior_predictive"]["y"])
    expected = (a + b[..., 0, :] * X).mean((0, 1))
    np.testing.assert_allclose(predicted.mean((0, 1)), expected, atol=0.1)
    assert predicted.std() > np.asarray(data["posterior"]["scale"]).mean()


def test_summary_loo_and_plots_work(data):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    summary = az.summary(data)
    assert set(summary.index) >= {"a", "b[0]", "b[1]", "scale", "end"}
    loo = az.loo(data)
    assert np.isfinite(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)
    trace = az.plot_trace if hasattr(az, "plot_trace") else az.plot_trace_dist
    trace(data, var_names=["a"])
    pyplot.close("all")


def test_a_plain_target():
    target = sa.Target(
        lambda p: -0.5 * jnp.sum(p["m"] ** 2) - p["s"],
        params={"m": sa.Param(shape=(3,)), "s": constraints.positive},
    )
    data = sa.fit(target, sa.elbo(4), steps=50, progress=False).to_arviz(n=8)
    assert data["posterior"]["m"].shape == (4, 2, 3)
    groups = set(data.children) if hasattr(data, "children") else set(data.groups())
    assert groups == {"posterior", "sample_stats"}
    assert float(data["posterior"]["s"].min()) > 0


def test_draws_of_the_posterior_itself():
    """Of an exponential variable, E s = 1. This q, wide enough to be weighed, has E s = 2.1."""
    target = sa.Target(lambda p: -p["s"], params={"s": constraints.positive})
    q = sa.MeanField.from_moments(np.array([-0.9]), np.array([1.8]))
    fit = sa.fit(target, sa.pmcsa(32), q0=q, optimizer=optax.sgd(1e-6), steps=200,
                 progress=False)  # fmt: skip
    mean = {}
    for draws in ("q", "resampled", "chains"):
        data = fit.to_arviz(key=2, n=4000, draws=draws)
        assert data["posterior"]["s"].shape == (4, 1000)
        assert ("log_weight" in data["sample_stats"]) == (draws == "q")
        mean[draws] = float(data["posterior"]["s"].mean())
    assert mean["q"] == pytest.approx(np.exp(-0.9 + 1.8**2 / 2), rel=0.3)
    assert mean["resampled"] == pytest.approx(1.0, abs=0.08)
    assert mean["chains"] == pytest.approx(1.0, abs=0.08)


def test_bad_input(result, monkeypatch):
    with pytest.raises(ValueError, match="n must be an integer ≥ 4"):
        result.to_arviz(n=1)
    with pytest.raises(ValueError, match="draws must be 'q', 'resampled' or 'chains', got 'z'"):
        result.to_arviz(draws="z")
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=1)
    with pytest.raises(ValueError, match="has no chains; take 'resampled'"):
        sa.fit(target, sa.elbo(4), steps=5, progress=False).to_arviz(draws="chains")
    many = sa.fit(target, sa.pmcsa(), steps=5, replications=2, progress=False)
    with pytest.raises(ValueError, match=r"result\[0\]"):
        many.to_arviz()
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ModuleNotFoundError, match=r"scoreascent\[arviz\]"):
        result.to_arviz()
