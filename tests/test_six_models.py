"""Six models stated three times, for this library, NumPyro and PyMC: their fits agree.

That their densities are equal is shown in `test_from_numpyro` and `test_from_pymc`. Here each is
fitted with one key and one set of settings, in eight replications, and means and log sds of q are
compared by the parameters' names: with each other, and with exact values where there are some. The
order of coordinates differs, so the draws do: the fits agree within Monte Carlo error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import digamma, polygamma

import scoreascent as sa
from tests.models import CASES, EFFECTS, ERRORS, HEADS, TRIALS, X, Y, narrow
from tests.stats import Z_MAX, Z_MUTANT

REPLICATIONS = 8
BIAS = 0.02  # of the averaged iterates of a constant step size, in posterior sds
COUNTS, ROWS = CASES["poisson"].args[1], CASES["covariance"].args[0]
COV = np.array([[1.0, 0.5], [0.5, 2.0]])


def pymc_model(name: str) -> sa.Target:
    """The same posterior by PyMC, with the same data."""
    pm = pytest.importorskip("pymc")
    pytensor = pytest.importorskip("pytensor")

    def gaussian() -> None:
        pm.MvNormal("y", pm.Normal("mu", [1.0, -1.0], 2.0, shape=2), cov=COV, observed=X)

    def schools() -> None:
        raw, tau = pm.Normal("raw", shape=8), pm.HalfCauchy("tau", 5.0)
        pm.Normal("y", pm.Normal("mu", 0.0, 5.0) + tau * raw, ERRORS, observed=EFFECTS)

    def line() -> None:
        beta = pm.Normal("beta", shape=2)
        pm.Normal("y", X @ beta, pm.Exponential("sigma", 2.0), observed=Y)

    def poisson() -> None:
        a, b = pm.StudentT("a", 4.0), pm.Normal("b", shape=2)
        pm.Poisson("counts", pm.math.exp(a + X @ b), observed=COUNTS)

    def coins() -> None:
        pm.Binomial("heads", TRIALS, pm.Beta("p", 2.0, 3.0, shape=3), observed=HEADS)

    def covariance() -> None:
        sds = pm.HalfNormal.dist(1.5, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=sds)
        pm.MvNormal("rows", np.zeros(3), chol=chol, observed=ROWS)

    build: Callable[[], None] = locals()[name]
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"), pm.Model():
        build()
        return sa.from_pymc()


def target_of(name: str, library: str) -> sa.Target:
    case = CASES[name]
    if library == "pymc":
        return pymc_model(name)
    if library == "numpyro":
        return sa.from_numpyro(case.model, *narrow(case.args), **narrow(case.kwargs))
    return sa.Target(case.by_hand, params=case.params, data=narrow(case.data))


LIBRARIES = ("by hand", "numpyro", "pymc")
OPTIMIZER = optax.adam(0.02)


def places(target: sa.Target) -> dict[str, Any]:
    """Which coordinates of z belong to a name: those that move when its value does."""
    named = jax.jacobian(target.constrain)(jnp.full(target.dim, 0.1))
    found = {}
    for name in target.site_names:
        slopes = np.asarray(named[name]).reshape(-1, target.dim)
        found[name] = np.flatnonzero(np.any(slopes != 0, 0))
    return found


Moments = dict[str, np.ndarray]  # (replications, 2, coordinates): means and log sds


def fit(target: sa.Target) -> sa.Result:
    return sa.fit(
        target, sa.pmcsa(16), optimizer=OPTIMIZER, steps=1500, average=True, key=4,
        replications=REPLICATIONS, progress=False,
    )  # fmt: skip


@functools.cache
def fitted(name: str, library: str) -> Moments:
    target = target_of(name, library)
    return moments(target, fit(target))


def moments(target: sa.Target, result: sa.Result) -> Moments:
    both = np.stack([result.q.mean, np.log(jax.vmap(lambda q: q.sd)(result.q))], 1)
    return {name: both[..., at] for name, at in places(target).items()}


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """The largest |z| of the differences in the means over replications."""
    error = np.sqrt((a.var(0, ddof=1) + b.var(0, ddof=1)) / len(a))
    return float(np.max(np.abs(a.mean(0) - b.mean(0)) / error))


# hundreds of fits of six models by three libraries: only with `make test-all`
pytestmark = pytest.mark.slow
FIVE = ["gaussian", "coins", "schools", "line", "poisson"]


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_fits_agree(name: str, library: str) -> None:
    ours, theirs = fitted(name, "by hand"), fitted(name, library)
    assert set(ours) == set(theirs)
    for site in ours:
        assert gap(ours[site], theirs[site]) < Z_MAX, site


def test_fits_of_other_data_do_not() -> None:
    """The mutant: one coin with one head more."""
    case = CASES["coins"]
    target = sa.from_numpyro(case.model, *narrow((TRIALS, HEADS + np.array([1, 0, 0]))))
    assert gap(fitted("coins", "by hand")["p"], moments(target, fit(target))["p"]) > Z_MUTANT


def exact(name: str) -> np.ndarray:
    """Means and log sds of the posterior in the unconstrained space."""
    if name == "gaussian":
        precision = np.eye(2) / 4 + len(X) * np.linalg.inv(COV)
        pull = np.array([1.0, -1.0]) / 4 + np.linalg.inv(COV) @ X.sum(0)
        cov = np.linalg.inv(precision)
        return np.stack([cov @ pull, 0.5 * np.log(np.diag(cov))])
    a, b = 2 + HEADS, 3 + TRIALS - HEADS  # a Beta posterior; of its logit
    var = polygamma(1, a) + polygamma(1, b)
    return np.stack([digamma(a) - digamma(b), 0.5 * np.log(var)])


@pytest.mark.parametrize("name", ["gaussian", "coins"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_fits_have_the_exact_moments(name: str, library: str) -> None:
    (found,) = fitted(name, library).values()
    wanted = exact(name)
    unit = np.stack([np.exp(wanted[1]), np.ones_like(wanted[1])])
    error = found.std(0, ddof=1) / np.sqrt(REPLICATIONS)
    assert np.all(np.abs(found.mean(0) - wanted) < Z_MAX * error + BIAS * unit)
    assert np.all(Z_MAX * error < 0.1 * unit)  # or it would not say much


def scales_and_correlations(draws: dict[str, Any]) -> np.ndarray:
    """(draws, 6), from the coordinates of either library."""
    if "scale" in draws:
        chol = np.asarray(draws["chol"], np.float64)
        sds, corr = np.asarray(draws["scale"]), chol @ np.swapaxes(chol, -1, -2)
    else:
        sds, corr = np.asarray(draws["chol_stds"]), np.asarray(draws["chol_corr"])
    return np.concatenate([np.log(sds), corr[:, [1, 2, 2], [0, 0, 1]]], 1)


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_covariances_agree(library: str) -> None:
    """PyMC has other coordinates for a covariance: the posteriors agree once q is weighed."""
    found = []
    for name in ("by hand", library):
        target = target_of("covariance", name)
        # a Gaussian q has too light tails for seven rows: its k̂ is 0.70
        q0 = sa.FullRankStudentT.from_moments(jnp.zeros(target.dim), jnp.eye(target.dim), df=6)
        result = sa.fit(
            target, sa.pmcsa(64), q0=q0, optimizer=OPTIMIZER,
            steps=4000, average=True, key=4, progress=False,
        )  # fmt: skip
        assert result.diagnose().k_hat < 0.7
        draws = result.resample(1, n=4000, draws=100_000)
        found.append(scales_and_correlations(draws))
    one, two = found
    error = np.sqrt((one.var(0) + two.var(0)) / 4000)
    assert np.all(np.abs(one.mean(0) - two.mean(0)) < Z_MAX * error)
    np.testing.assert_allclose(one.std(0), two.std(0), rtol=0.1)
