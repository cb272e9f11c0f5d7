"""Rays see mass that chains have not: shares against closed forms, and what the verdict says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import scoreascent as sa
from scoreascent.diagnostics.rays import look_along_rays, look_wider
from scoreascent.diagnostics.rules import GOOD


def look(density: Any, q: Any, furthest: Any) -> dict[str, float]:
    """What rays from q see beyond this point."""
    target = sa.Target(density, dim=q.dim)
    run = replace(sa.fit(target, sa.pmcsa(4), steps=1, progress=False), q=q)
    return look_along_rays(run, jax.random.key(0), float(q.log_prob(jnp.asarray(furthest))))


def wide(z: Any) -> Any:
    return -0.5 * jnp.sum((z / 2) ** 2)


@pytest.mark.parametrize("dim", [1, 3, 20])
@pytest.mark.parametrize("seen", [2.0, 5.0])
def test_the_share_beyond_is_that_of_a_gaussian(dim: int, seen: float) -> None:
    """Of N(0, 4 I) seen from N(0, I): E‖z‖² beyond a distance is a tail of χ² with d + 2."""
    q = sa.MeanField.standard(dim)
    found = look(wide, q, jnp.zeros(dim).at[0].set(seen))
    assert found["unseen"] == pytest.approx(stats.chi2.sf((seen / 2) ** 2, dim + 2), abs=0.03)
    assert found["far_mass"] == pytest.approx(0, abs=1e-6)


def test_directions_have_the_length_of_q() -> None:
    """A q that is scaled, shifted and correlated sees the same of a posterior that is too."""
    cov = np.array([[1.0, 0.8], [0.8, 1.0]], np.float32) * 1e4
    inverse = np.linalg.inv(cov)
    mean = np.array([3.0, -50.0], np.float32)

    def density(z: Any) -> Any:
        return -0.5 * (z - mean) @ inverse @ (z - mean) / 4

    q = sa.FullRank.from_moments(mean, cov)
    edge = mean + 3 * np.linalg.cholesky(cov)[:, 0]  # three of q's sds away
    found = look(density, q, edge)
    assert found["unseen"] == pytest.approx(stats.chi2.sf(1.5**2, 4), abs=0.03)


def test_tails_without_a_variance_and_without_an_end() -> None:
    q = sa.MeanField.standard(2)
    edge = jnp.array([20.0, 0.0])
    assert look(lambda z: -2.0 * jnp.log1p(jnp.sum(z**2) / 2), q, edge)["unseen"] > 0.3
    assert look(lambda z: 0.0 * z[0], q, edge)["far_mass"] > 0.9
    assert look(wide, q, jnp.array([1e9, 0.0]))["unseen"] == 0


def narrow_in_wide(z: Any) -> Any:
    """Nine tenths of the mass in N(0, I), one in N(0, 0.1² I), at whose top searches end."""
    d = z.shape[0]
    inner = np.log(0.1) + d * np.log(10.0) - 50 * jnp.sum(z**2)
    return jnp.logaddexp(inner, np.log(0.9) - 0.5 * jnp.sum(z**2))


@pytest.mark.slow
def test_the_narrow_part_alone_is_not_good() -> None:
    result = sa.fit(sa.Target(narrow_in_wide, dim=10), key=0, steps=400, progress=False)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict != GOOD


# -- draws that go further than q --------------------------------------------------------------


def lacks(density: Any, q: Any) -> float:
    target = sa.Target(density, dim=q.dim)
    run = replace(sa.fit(target, sa.pmcsa(4), steps=1, progress=False), q=q)
    return look_wider(run, jax.random.key(0))


def one_heavy(z: Any) -> Any:
    """A Student-t of four degrees along one diagonal of four dimensions, normal across it."""
    along = jnp.sum(z) / 2
    return -2.5 * jnp.log1p(along**2 / 4) - 0.5 * (jnp.sum(z**2) - along**2)


def test_a_tail_that_few_rays_meet_is_seen_by_wide_draws() -> None:
    """The variance of a coordinate is 1.25, where the first q has 1.05."""
    ones, mean = np.full((4, 4), 0.25, np.float32), np.zeros(4, np.float32)
    unit = np.eye(4, dtype=np.float32)
    seen = lacks(one_heavy, sa.FullRank.from_moments(mean, unit + 0.2 * ones))
    assert 0.03 < seen < 0.2  # it lacks 0.16 of it, of which noise is taken off
    assert lacks(one_heavy, sa.FullRank.from_moments(mean, unit + ones)) < 0.02


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_a_gaussian_lacks_nothing(dim: int) -> None:
    assert lacks(lambda z: -0.5 * jnp.sum(z**2), sa.FullRank.standard(dim)) < 0.02


def test_where_few_wide_draws_count_nothing_is_said() -> None:
    assert lacks(lambda z: -50.0 * jnp.sum(z**2), sa.FullRank.standard(30)) == 0
