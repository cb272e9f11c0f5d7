"""Starts: closed forms on Gaussians, modes far away, several modes, densities without a top.

`laplace` and `pathfinder` owe the same things, so most tests run on both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent._structs import x64

pytest.importorskip("blackjax")

SEARCHES: dict[str, Callable[..., sa.Start]] = {
    "laplace": functools.partial(sa.laplace, searches=4),
    "pathfinder": sa.pathfinder,
}
each = pytest.mark.parametrize("name", SEARCHES)

MEAN = np.array([40.0, -1.0, 0.2])  # far outside the boxes in which searches begin
COV = np.array([[1.0, 0.5, -0.3], [0.5, 0.8, 0.1], [-0.3, 0.1, 1.5]])


def gaussian(z: Any, data: Any) -> Any:
    return -0.5 * (z - data["mean"]) @ data["precision"] @ (z - data["mean"])


def gaussian_target() -> sa.Target:
    dtype = jnp.zeros(()).dtype
    precision = jnp.asarray(np.linalg.inv(COV), dtype)
    return sa.Target(gaussian, 3, data={"mean": jnp.asarray(MEAN, dtype), "precision": precision})


def check_points(start: sa.Start, target: sa.Target) -> None:
    """What every start owes: points of finite density, and a q that is a distribution."""
    assert start.z.shape[1] == target.dim
    assert start.z.dtype == start.q.mean.dtype == jnp.zeros(()).dtype
    assert np.all(np.isfinite(jax.vmap(target.log_prob)(start.z)))
    assert np.all(np.isfinite(start.q.mean))
    assert np.all(start.q.sd > 0)
    assert start.kept <= len(start.elbo)
    assert list(start.elbo) == sorted(start.elbo, reverse=True)
    assert min(start.evaluations) > 0


# -- one mode ------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gaussian_is_found_where_it_is(name: str, dtype: str) -> None:
    tolerance = 0.01 if name == "laplace" else 0.1  # a path ends before its mode

    def check() -> None:
        target = gaussian_target()
        start = SEARCHES[name](target, key=1)
        check_points(start, target)
        assert start.agree
        assert isinstance(start.q, sa.FullRank)
        np.testing.assert_allclose(start.q.mean, MEAN, atol=tolerance)
        np.testing.assert_allclose(start.q.cov, COV, atol=tolerance)
        # the ELBO of the right Gaussian is the log of the normalising constant
        np.testing.assert_allclose(
            start.elbo[0], 0.5 * np.linalg.slogdet(2 * np.pi * COV)[1], atol=1.0
        )

    if dtype == "float32":
        check()
    else:
        with x64():
            check()


def test_chains_begin_at_its_points() -> None:
    """Whatever search they come from."""
    target = gaussian_target()
    start = SEARCHES["laplace"](target)
    for method in (sa.pmcsa(5), sa.jsa(3), sa.msc(4), sa.pmcsa(5, sa.Cycle(sa.IMH(), sa.HMC()))):
        result = sa.fit(target, method, q0=start, steps=0, progress=False)
        z = np.asarray(result.state.eta.z)
        near = np.abs(z[:, None] - np.asarray(start.z)[None]).max(-1).min(1)
        assert np.all(near == 0)
        assert np.all(np.isfinite(result.state.eta.log_p))
    many = sa.fit(target, sa.pmcsa(5), q0=start, steps=2, replications=3, progress=False)
    assert many.q.mean.shape == (3, 3)
    assert np.all(np.isfinite(many.state.eta.log_p))
    assert np.ptp(np.asarray(many.state.eta.z), 0).max() > 0  # each with its own


def test_laplace_and_pathfinder_are_the_same_for_the_same_key() -> None:
    target = gaussian_target()
    for search in SEARCHES.values():
        one, two, other = search(target, key=3), search(target, key=3), search(target, key=4)
        np.testing.assert_array_equal(one.z, two.z)
        assert not np.array_equal(one.z, other.z)


# -- several modes, and none ---------------------------------------------------------------------


def bimodal(z: Any) -> Any:
    return jnp.logaddexp(-2 * jnp.sum((z - 4) ** 2), -2 * jnp.sum((z + 4) ** 2))


@each
def test_two_modes_do_not_agree(name: str) -> None:
    target = sa.Target(bimodal, dim=2)
    start = SEARCHES[name](target, key=1, searches=6)
    check_points(start, target)
    assert not start.agree
    assert "DIFFERENT places" in str(start)
    sides = np.asarray(start.z)[:, 0] > 0
    assert 0 < np.mean(sides) < 1
    np.testing.assert_allclose(np.abs(start.z), 4, atol=3)


def funnel(z: Any) -> Any:
    """Ten centred effects and their log scale: unbounded as the scale goes to zero."""
    log_tau, effects = z[0], z[1:]
    prior = -0.5 * (log_tau / 1.5) ** 2 - 0.5 * jnp.sum(effects**2) * jnp.exp(-2 * log_tau)
    return prior - 10 * log_tau - 0.5 * jnp.sum((effects - jnp.linspace(-2, 2, 10)) ** 2)


@each
def test_a_density_without_a_top_is_met_on_the_way(name: str) -> None:
    target = sa.Target(funnel, dim=11)
    start = SEARCHES[name](target)
    check_points(start, target)
    assert -4 < float(start.q.mean[0]) < 2


@pytest.mark.parametrize("outside", [-np.inf, np.nan])
@each
def test_a_density_that_ends(name: str, outside: float) -> None:
    def log_density(z: Any) -> Any:
        return jnp.where(z[0] > -1, -0.5 * jnp.sum(z**2), outside)

    target = sa.Target(log_density, dim=2)
    start = SEARCHES[name](target)
    check_points(start, target)
    assert np.all(np.asarray(start.z)[:, 0] > -1)
    # Pathfinder takes no Gaussian of which a draw is outside, so it stays further in
    np.testing.assert_allclose(start.q.mean, 0, atol=0.5 if name == "laplace" else 1.5)


@each
def test_nothing_that_is_finite(name: str) -> None:
    target = sa.Target(lambda z: jnp.sum(z) * jnp.nan, dim=2)
    with pytest.raises(ValueError, match=r"no search found a place .* is finite; give q0"):
        SEARCHES[name](target)


@each
def test_a_constant_density(name: str) -> None:
    target = sa.Target(lambda z: 0.0 * jnp.sum(z), dim=2)
    check_points(SEARCHES[name](target), target)


# -- many dimensions -----------------------------------------------------------------------------


@each
def test_many_dimensions_are_low_rank(name: str) -> None:
    sd = np.geomspace(0.3, 3, 300).astype(np.float32)
    target = sa.Target(lambda z, sd: -0.5 * jnp.sum((z / sd) ** 2), dim=300, data=sd)
    start = SEARCHES[name](target, searches=2)
    check_points(start, target)
    assert isinstance(start.q, sa.LowRank)
    assert all(x.size <= 300 * 20 for x in jax.tree.leaves(start.q))
    if name == "laplace":
        np.testing.assert_allclose(start.q.sd, sd, rtol=0.05)
    assert np.median(np.abs(np.log(start.q.sd / sd))) < 0.7


# -- bad input -----------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("searches", [0, 1.5, True])
def test_bad_counts(name: str, searches: Any) -> None:
    with pytest.raises(ValueError, match="searches must be an integer ≥ 1"):
        SEARCHES[name](gaussian_target(), searches=searches)


def test_pathfinder_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "blackjax", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'scoreascent\[blackjax\]'"):
        sa.pathfinder(gaussian_target())
