"""Searches side by side: tops in closed form, edges, homes, and what each of them cost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent import climbs
from scoreascent.climbs import Home, climb
from tests.helpers import x64

NOWHERE = Home(sa.FullRank.standard(3), np.inf, 0.0)
SCALES = np.array([1e-3, 1.0, 1e3])
TOP = np.array([1.0, -2.0, 3.0])


def quadratic(z: Any) -> Any:
    top, scales = (jnp.asarray(x, z.dtype) for x in (TOP, SCALES))
    return -0.5 * jnp.sum(((z - top) / scales) ** 2)


def rosenbrock(z: Any) -> Any:
    return -jnp.sum(100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2)


def places(n: int, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed).uniform(-2, 2, (n, 3)))


def gone(density: Any, n: int = 3, unit: Any = None, **options: Any) -> Any:
    unit = np.eye(3) if unit is None else unit
    return climb(sa.Target(density, dim=3), places(n), NOWHERE, unit, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_top_of_a_badly_scaled_parabola(dtype: str) -> None:
    def check() -> None:
        home = NOWHERE._replace(q=sa.FullRank.standard(3))
        paths, _ = climb(sa.Target(quadratic, dim=3), places(3), home, np.eye(3))
        for path in paths:
            assert path.log_p[-1] > -0.01
            np.testing.assert_allclose(path.z[-1] / SCALES, TOP / SCALES, rtol=1e-5, atol=0.2)

    if dtype == "float32":
        check()
    else:
        with x64():
            check()


@pytest.mark.parametrize("unit", [np.diag(SCALES), SCALES])
def test_in_units_of_its_own_it_takes_a_few_gradients(unit: Any) -> None:
    paths, gradients = gone(quadratic, unit=unit)
    assert gradients < 3 * 40
    for path in paths:
        np.testing.assert_allclose((path.z[-1] - TOP) / SCALES, 0, atol=1e-2)


def test_a_bent_valley() -> None:
    for path in gone(rosenbrock)[0]:
        np.testing.assert_allclose(path.z[-1], 1, atol=0.02)


def test_log_p_rises_along_a_path_and_is_that_of_its_places() -> None:
    paths, gradients = gone(rosenbrock, n=11)  # more than one batch
    assert len(paths) == 11
    for path, first in zip(paths, places(11)):
        np.testing.assert_allclose(path.z[0], first, rtol=1e-6)
        assert np.all(np.diff(path.log_p) >= -1e-3)
        at = jax.vmap(rosenbrock)(jnp.asarray(path.z, jnp.float32))
        np.testing.assert_allclose(path.log_p, at, rtol=1e-3, atol=1e-3)
    assert gradients >= sum(len(np.unique(p.z, axis=0)) for p in paths)


def test_a_search_does_not_depend_on_its_neighbours() -> None:
    target, unit = sa.Target(rosenbrock, dim=3), np.eye(3)
    together, _ = climb(target, places(5), NOWHERE, unit)
    for i in (0, 4):
        alone, _ = climb(target, places(5)[i : i + 1], NOWHERE, unit)
        np.testing.assert_allclose(alone[0].z[-1], together[i].z[-1], atol=1e-4)


@pytest.mark.parametrize("outside", [-np.inf, np.nan])
def test_an_edge_turns_searches_back(outside: float) -> None:
    def density(z: Any) -> Any:
        return jnp.where(z[0] > -2.5, -jnp.sum((z - 1) ** 2), outside)

    for path in gone(density)[0]:
        np.testing.assert_allclose(path.z[-1], 1, atol=1e-2)
    paths, gradients = climb(
        sa.Target(density, dim=3), [np.full(3, -3.0), np.zeros(3)], NOWHERE, np.eye(3), 0
    )
    assert [p.is_possible for p in paths] == [False, True]
    assert gradients == 2


def test_with_no_turns_a_path_is_its_first_place() -> None:
    paths, gradients = gone(quadratic, most=0)
    assert gradients == 3
    for path, first in zip(paths, places(3)):
        np.testing.assert_allclose(path.z, [first] * len(path.z), rtol=1e-6)


def test_those_that_come_home_stop_there() -> None:
    def two(z: Any) -> Any:
        return jnp.logaddexp(-0.5 * jnp.sum(z**2), -0.5 * jnp.sum((z - 20) ** 2))

    q = sa.FullRank.standard(3)
    edge = float(q.log_prob(jnp.array([3.0, 0.0, 0.0])))
    home = Home(q, edge, 3.0)
    first = [np.full(3, -8.0), np.full(3, 26.0)]
    (near, far), _ = climb(sa.Target(two, dim=3), first, home, np.eye(3))
    assert near.is_home
    assert 0 < np.linalg.norm(near.z[-1]) < 3.01
    assert not far.is_home
    np.testing.assert_allclose(far.z[-1], 20, atol=1e-2)
    # a place that q reaches is no home if the posterior is far above q there
    (above, _), _ = climb(sa.Target(two, dim=3), first, home._replace(above=-9.0), np.eye(3))
    assert not above.is_home


@pytest.mark.slow
def test_mutant_without_memory_is_still_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steepest ascent, with the same number of gradients."""
    _, gradients = gone(rosenbrock, n=1)
    monkeypatch.setattr(climbs, "_direction", lambda slope, *_: climbs._plain(slope))
    jax.clear_caches()
    (path,), _ = gone(lambda z: rosenbrock(z), n=1, most=gradients)
    assert path.log_p[-1] < -0.01
    jax.clear_caches()


def test_a_flat_density_ends_at_once() -> None:
    assert gone(lambda z: 0.0 * jnp.sum(z))[1] == 3


# -- searches that end early ---------------------------------------------------------------------

EVERY_PLACE = climbs.MAX_ROWS - 2  # turns of which a path keeps every place


def test_without_a_rise_that_is_asked_for_searches_go_to_the_top() -> None:
    (usual, _), (asked, _) = gone(rosenbrock), gone(rosenbrock, rise=0.0)
    for one, two in zip(usual, asked):
        np.testing.assert_array_equal(one.z, two.z)


def test_a_search_ends_when_a_few_steps_in_a_row_bring_too_little() -> None:
    """Where every step brings too little, after `MAX_CALM` of them."""
    for path in gone(rosenbrock, rise=np.inf, most=EVERY_PLACE)[0]:
        assert len(np.unique(path.z, axis=0)) == 1 + climbs.MAX_CALM
        assert path.log_p[-1] > path.log_p[0]


def test_the_more_is_asked_for_the_sooner_it_ends() -> None:
    told = [gone(rosenbrock, rise=rise, most=EVERY_PLACE) for rise in (0.0, 1e-3, 1.0, np.inf)]
    gradients = [count for _, count in told]
    assert gradients == sorted(gradients, reverse=True)
    assert gradients[0] > 1.5 * gradients[2]
    for i in range(3):
        ends = [paths[i].log_p[-1] for paths, _ in told]
        assert ends == sorted(ends, reverse=True)
        assert ends[2] > told[0][0][i].log_p[0]
    # the last steps brought less than was asked for, the one before them more
    for path in told[2][0]:
        places = path.log_p[np.r_[True, np.any(np.diff(path.z, axis=0) != 0, axis=1)]]
        rises = np.diff(places)
        assert np.all(rises[-climbs.MAX_CALM :] <= 1.0 + 1e-3)
        assert len(rises) == climbs.MAX_CALM or rises[-climbs.MAX_CALM - 1] > 1.0 - 1e-3
