"""More of PyMC's models as targets: missing observations, mixtures, walks, cut distributions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import scoreascent as sa
from scoreascent.adapters.pymc_ops import erfcx
from tests.helpers import x64

pm = pytest.importorskip("pymc")
pytensor = pytest.importorskip("pytensor")

Y = np.random.default_rng(2).normal(size=8)
SEEN = Y > -0.3


@pytest.fixture(autouse=True, scope="module")
def _no_c_compiler() -> Any:
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield


def missing() -> None:
    mean = pm.Normal("mean", 0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC tells that it imputes
        pm.Normal("y", mean, 1.0, observed=np.where(SEEN, Y, np.nan))


def missing_and_positive() -> None:
    scale = pm.HalfNormal("scale", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = pm.LogNormal("x", 0.3, scale, observed=np.ma.masked_array(np.exp(Y), ~SEEN))
    pm.Normal("y", x, 1.0, observed=Y)


def mixture() -> None:
    share = pm.Dirichlet("share", np.ones(2))
    centre = pm.Normal("centre", 0, 3, shape=2)
    pm.Mixture("y", w=share, comp_dists=pm.Normal.dist(centre, 1.0), observed=Y)


def walk() -> None:
    drift = pm.HalfNormal("drift", 1.0)
    level = pm.GaussianRandomWalk("level", 0.0, drift, init_dist=pm.Normal.dist(), steps=7)
    rho = pm.Normal("rho", 0.0, 0.3, shape=1)
    echo = pm.AR("echo", rho, sigma=1.0, init_dist=pm.Normal.dist(), steps=7)
    pm.Normal("y", level + echo, 1.0, observed=Y)


def cut() -> None:
    mean = pm.Normal("mean", 0, 3)
    inside = Y.clip(-0.5, 0.5)
    pm.Censored("short", pm.Normal.dist(mean, 1.0), lower=-0.5, upper=0.5, observed=inside)
    pm.Truncated("half", pm.Normal.dist(mean, 1.0), lower=0, observed=abs(Y))
    pm.Potential("pull", -(mean**4))


MODELS: dict[str, Callable[[], None]] = {
    "missing": missing,
    "missing and positive": missing_and_positive,
    "mixture": mixture,
    "walk": walk,
    "cut": cut,
}


@pytest.mark.parametrize("name", MODELS)
def test_density_is_pymcs(name: str) -> None:
    with x64(), pm.Model() as model:
        MODELS[name]()
        target = sa.from_pymc(model, centring="as written")
        theirs = model.compile_logp()
        names = [v.name for v in model.value_vars]
        split = target.log_density._split  # type: ignore[attr-defined]
        for scale in (0.5, 1.0, 4.0):
            z = jnp.asarray(scale * np.random.default_rng(1).normal(size=target.dim))
            point = dict(zip(names, map(np.asarray, split(z))))
            ours, slope = jax.value_and_grad(target.log_prob)(z)
            np.testing.assert_allclose(ours, theirs(point), rtol=1e-8)
            assert np.all(np.isfinite(slope))


@pytest.mark.slow
def test_a_fit_imputes_what_is_missing() -> None:
    with pm.Model() as model:
        missing()
    result = sa.fit(sa.from_pymc(model), progress=False)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == "good"
    variance = 1 / (1 / 4 + SEEN.sum())
    mean = variance * Y[SEEN].sum()
    rows = {row["name"]: row for row in result.summary()}
    for name, sd in (("mean", variance**0.5), ("y_unobserved[0]", (1 + variance) ** 0.5)):
        assert abs(rows[name]["mean"] - mean) < 0.1 * sd
        assert abs(rows[name]["sd"] / sd - 1) < 0.1
    shown = result.sample(0, 3)["y"][:, SEEN]
    np.testing.assert_allclose(shown, np.tile(Y[SEEN], (3, 1)), rtol=1e-5)
    drawn = result.predict(0, n=20)
    assert drawn["y_observed"].shape == (20, SEEN.sum())
    np.testing.assert_allclose(drawn["y"][:, SEEN], drawn["y_observed"], rtol=1e-5)
    np.testing.assert_allclose(drawn["y"][:, ~SEEN], drawn.parameters["y_unobserved"], rtol=1e-5)


def test_erfcx_is_scipys() -> None:
    x = np.linspace(-5, 30, 200)
    with x64():
        np.testing.assert_allclose(erfcx(x), scipy.special.erfcx(x), rtol=1e-14)
        slope = jax.vmap(jax.grad(erfcx))(x)
    np.testing.assert_allclose(
        slope, 2 * x * scipy.special.erfcx(x) - 2 / np.sqrt(np.pi), rtol=1e-9, atol=1e-12
    )
