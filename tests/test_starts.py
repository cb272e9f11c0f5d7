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
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.fitting import starts
from scoreascent.fitting.starts import climbed
from tests.helpers import searches, x64
from tests.registry import quick_rows

pytest.importorskip("blackjax")

SEARCHES: dict[str, Callable[..., sa.Start]] = {
    "laplace": functools.partial(sa.laplace, searches=4),
    "pathfinder": sa.pathfinder,
}
each = pytest.mark.parametrize("name", quick_rows(SEARCHES, "laplace"))

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


# -- where searches begin ------------------------------------------------------------------------


def two_pits(z: Any) -> Any:
    """Narrow modes at 30 and −30: from near the origin a search finds either."""
    return jnp.logaddexp(-0.5 * jnp.sum((z - 30) ** 2), -0.5 * jnp.sum((z + 30) ** 2) - 3)


@each
def test_places_that_are_given_come_first(name: str) -> None:
    target = sa.Target(two_pits, dim=2)
    there = SEARCHES[name](target, searches=1, initial=np.array([-25.0, -25.0]))
    assert len(there.elbo) == 1
    np.testing.assert_allclose(there.q.mean, -30, atol=0.5)
    both = SEARCHES[name](target, searches=1, initial=[np.full(2, -25.0), np.full(2, 25.0)])
    assert len(both.elbo) == 2
    assert not both.agree


def test_given_places_are_parameters_in_their_supports() -> None:
    target = sa.Target(
        lambda p: -0.5 * jnp.sum((jnp.log(p["scale"]) - 20) ** 2),
        params={"scale": constraints.positive},
    )
    np.testing.assert_allclose(
        searches._given_points(target, {"scale": np.exp(3.0)}), [[3.0]], rtol=1e-6
    )


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2)), "here", [1.0, 2.0]])
def test_places_that_are_none(bad: Any) -> None:
    with pytest.raises(ValueError, match="initial must be parameters by name, a vector of 2"):
        sa.laplace(sa.Target(two_pits, dim=2), initial=bad)


def test_a_place_outside_the_support_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite at the place 1 of 2"):
        sa.laplace(
            sa.Target(lambda z: jnp.sum(jnp.log(z)), dim=1), initial=[np.ones(1), -np.ones(1)]
        )


class Far(sa.Model):
    """A density of which the model alone knows where it is: it is flat elsewhere."""

    dim = 1
    site_names = ("x",)
    constrain = unconstrain = log_likelihood = predict = observed = None

    def __init__(self, place: float) -> None:
        self.place = place

    def __call__(self, z: Any, data: Any) -> Any:
        return -0.5 * jnp.minimum(jnp.sum((z - 1000) ** 2), 100.0)

    def initial(self, key: Any, data: Any) -> Any:
        return jnp.full(1, self.place)


def test_every_third_search_begins_where_the_model_says() -> None:
    start = sa.laplace(sa.Target(Far(997.0), dim=1), searches=3)
    np.testing.assert_allclose(start.q.mean, 1000, atol=0.1)
    # a place that is no good is not used
    lost = sa.laplace(sa.Target(Far(np.nan), dim=1), searches=3)
    assert np.all(np.abs(lost.q.mean) < 20)


# -- short searches, one for each chain ----------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 5, 16, 20])
def test_a_place_for_each_chain(chains: int) -> None:
    target = gaussian_target()
    start = climbed(target, 1, chains)
    assert start.z.shape == (chains, 3)
    assert len(start.elbo) == start.kept == chains
    assert isinstance(start.q, sa.FullRank)
    assert start.z.dtype == start.q.mean.dtype
    np.testing.assert_allclose(start.q.mean, np.median(start.z, 0), rtol=1e-5)
    np.testing.assert_allclose(start.q.cov, 0.01 * np.eye(3), rtol=1e-4, atol=1e-8)
    heights = np.asarray(jax.vmap(target.log_prob)(start.z))
    np.testing.assert_allclose(heights, start.elbo, rtol=1e-3, atol=1e-2)
    assert list(start.elbo) == sorted(start.elbo, reverse=True)
    assert heights.min() > -3 * 10  # 40 sds away they began
    assert start.evaluations[1] >= chains


def test_short_searches_cost_less_than_whole_ones() -> None:
    """And are the same for the same key."""
    dim = 60
    scale = np.geomspace(0.03, 3, dim).astype(np.float32)
    target = sa.Target(lambda z, s: -0.5 * jnp.sum(((z - 5) / s) ** 2), dim, data=scale)
    start = climbed(target, 3, 8)
    np.testing.assert_array_equal(start.z, climbed(target, 3, 8).z)
    assert not np.array_equal(start.z, climbed(target, 4, 8).z)
    assert start.evaluations[1] < 0.5 * sa.laplace(target, 3, 8).evaluations[1]
    assert len(np.unique(np.asarray(start.z), axis=0)) == 8  # each has its own
    # on their way, not at the top, but where the density falls off by no more than a chain can do
    assert -starts.MAX_BELOW * dim < min(start.elbo) <= max(start.elbo) < -1


def test_ends_far_below_the_best_are_replaced() -> None:
    """A pit of its own, a thousand nats below: no chain could leave it."""

    def density(z: Any) -> Any:
        low = -1000 - 0.5 * jnp.sum((z + 1) ** 2)
        return jnp.where(z[0] > 0, -0.5 * jnp.sum((z - 1) ** 2), low)

    start = climbed(sa.Target(density, dim=2), 0, 16)
    assert start.z.shape == (16, 2)
    assert 0 < start.kept < len(start.elbo) == 16
    assert start.elbo[start.kept - 1] > -20 > -900 > start.elbo[start.kept]
    assert np.all(np.asarray(start.z)[:, 0] > 0)
    np.testing.assert_array_equal(start.z[start.kept :], start.z[: 16 - start.kept])  # of the best


@pytest.mark.parametrize("outside", [-np.inf, np.nan])
def test_short_searches_stay_where_the_density_is(outside: float) -> None:
    def density(z: Any) -> Any:
        return jnp.where(z[0] > 0.5, -0.5 * jnp.sum(z**2), outside)

    target = sa.Target(density, dim=2)
    start = climbed(target, 0, 16)
    assert np.all(np.asarray(start.z)[:, 0] > 0.5)
    assert np.all(np.isfinite(jax.vmap(target.log_prob)(start.z)))


def test_short_searches_that_find_nothing() -> None:
    with pytest.raises(ValueError, match=r"no search found a place .* is finite; give q0"):
        climbed(sa.Target(lambda z: jnp.sum(z) * jnp.nan, dim=2))
    data = np.float32([np.nan, 1])
    with pytest.raises(ValueError, match="data holds NaN"):
        climbed(sa.Target(lambda z, y: -jnp.sum((z - y) ** 2), 2, data=data))


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
