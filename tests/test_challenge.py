"""Before *good*, searches from far outside q must come home; and what they find elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics import challenge as room
from scoreascent.diagnostics import tempered
from scoreascent.diagnostics.rules import GOOD, UNSEEN

DIM, APART = 8, 14.0


def two(weight: float, apart: float = APART) -> Any:
    """N(0, I) and, with this weight, N(apart, I) along the first axis."""
    away = jnp.zeros(DIM).at[0].set(apart)

    def density(z: Any) -> Any:
        near, far = (-0.5 * jnp.sum((z - m) ** 2) for m in (0.0, away))
        return jnp.logaddexp(jnp.log1p(-weight) + near, jnp.log(weight) + far)

    return density


def run_at(density: Any, q: Any) -> sa.Result:
    target = sa.Target(density, dim=q.dim)
    return replace(sa.fit(target, sa.pmcsa(4), steps=1, progress=False), q=q)


def found(density: Any, q: Any = None, reach: float = 4.5) -> dict[str, Any]:
    """What a challenge finds beyond so many sds of q; the density has mass (2π)^(d/2)."""
    q = sa.FullRank.standard(DIM) if q is None else q
    edge = float(q.log_prob(q.mean + reach * jnp.eye(q.dim)[0] * q.sd))
    log_evidence = 0.5 * q.dim * np.log(2 * np.pi) + float(jnp.sum(jnp.log(q.sd)))
    return room.challenge(run_at(density, q), jax.random.key(0), edge, log_evidence, 1.0)


@pytest.mark.parametrize("weight", [0.5, 0.1, 0.004])
def test_a_second_place_is_found_and_weighed(weight: float) -> None:
    seen = found(two(weight))
    assert weight / 3 < seen["stray_mass"] < 3 * weight
    assert seen["stray"] == pytest.approx(seen["stray_mass"] * APART**2, rel=0.2)


def test_mutant_of_short_distances_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DISTANCES", (0.1,) * 6)
    monkeypatch.setattr(room, "MAX_ANNEALED", 0)
    assert found(two(0.5))["stray"] == 0


def narrow(z: Any, distance: float = 8.0) -> Any:
    """A narrow place that is higher than the wide one, eight sds away: searches pass it by."""
    wide = jnp.log(0.8) - 0.5 * jnp.sum(z**2)
    away = 0.5 * jnp.sum((z + distance * jnp.eye(4)[0]) ** 2) / 0.4**2
    return jnp.logaddexp(wide, jnp.log(0.2 / 0.4**4) - away)


def test_particles_find_what_searches_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    q = sa.FullRank.standard(4)
    assert 0.05 < found(narrow, q, 5.0)["stray_mass"] < 0.6
    monkeypatch.setattr(room, "MAX_ANNEALED", 0)
    assert found(narrow, q, 5.0)["stray"] == 0


def test_a_narrow_place_within_reach_is_told_by_its_weight() -> None:
    """Chains have been five sds away, but not there."""
    q = sa.FullRank.standard(4)
    seen = found(lambda z: narrow(z, 5.0), q, 5.5)
    assert 0.05 < seen["stray_mass"] < 0.6
    assert found(normal, q, 5.5)["stray"] == 0


def test_particles_have_the_law_of_the_posterior_outside() -> None:
    """Of N(0, I) in the plane, beyond r, the squared distance is r² plus an exponential."""
    q, reach = sa.FullRank.standard(2), 3.0
    target = sa.Target(normal, dim=2)
    edge = float(q.log_prob(jnp.array([reach - tempered.MARGIN, 0.0])))
    known = room.Known(float(q.log_prob(jnp.zeros(2))), edge, float(np.log(2 * np.pi)), 0.0)
    z, log_p, cost = tempered.anneal(target, q, known.is_new, np.eye(2), np.random.default_rng(0))
    beyond = np.sum(z[:-1] ** 2, 1) - reach**2
    assert np.all(beyond > -1e-4)
    assert np.mean(beyond) == pytest.approx(2, abs=1)
    assert log_p[-1] >= np.max(log_p[:-1])
    assert cost == tempered.PARTICLES * (1 + tempered.MOVES * ((cost // 256 - 1) // 2))


SCALED = np.array([1e-4, 1.0, 1e4], np.float32)


def normal(z: Any) -> Any:
    return -0.5 * jnp.sum(z**2)


@pytest.mark.parametrize(
    ("density", "q"),
    [
        (normal, sa.FullRank.standard(5)),
        (lambda z: normal(z / SCALED), sa.MeanField.from_moments(0 * SCALED, SCALED)),
        (lambda z: jnp.where(jnp.all(z < 3), normal(z), -jnp.inf), sa.FullRank.standard(2)),
        (normal, sa.LowRank.standard(300, 2)),
    ],
    ids=["normal", "scales", "edge", "many"],
)
def test_searches_come_home_soon(density: Any, q: Any) -> None:
    seen = found(density, q, reach=np.sqrt(q.dim) + 4)
    assert seen["stray"] == 0
    assert 0 < seen["challenge_count"][1] < 220


def test_where_data_are_many_it_takes_fewer_densities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the particles and a quarter of the places, and a second mode is still found."""
    usual = found(lambda z: -0.5 * jnp.sum(z**2))["challenge_count"][0]
    monkeypatch.setattr(room, "MANY_DATA", 0)
    assert found(lambda z: -0.5 * jnp.sum(z**2))["challenge_count"][0] < 0.6 * usual
    assert found(two(0.1))["stray_mass"] > 0.03


def test_a_density_without_gradient_is_not_challenged() -> None:
    def density(z: Any) -> Any:
        return jax.lax.while_loop(lambda x: x > 1e9, lambda x: x, -0.5 * jnp.sum(z**2))

    assert "challenge_count" not in found(density)


def test_a_fit_of_one_of_two_modes_is_not_good() -> None:
    """Chains, weights and rays see one place and are content with it."""
    target = sa.Target(two(0.5), dim=DIM)
    settings: dict[str, Any] = {"q0": sa.FullRank.standard(DIM), "progress": False}
    update = sa.moment_matching()
    result = sa.fit(target, sa.pmcsa(64), optimizer=update, stop=sa.Converged(every=20), **settings)
    np.testing.assert_allclose(result.q.mean, 0, atol=0.2)
    diagnosis = result.diagnose()
    assert diagnosis.verdict == UNSEEN
    assert "a search that began far outside q" in diagnosis.reason
    assert diagnosis.final
    alone = sa.Target(two(1e-30), dim=DIM)
    right = sa.fit(alone, sa.pmcsa(64), optimizer=update, stop=sa.Converged(every=20), **settings)
    assert right.diagnose().verdict == GOOD
