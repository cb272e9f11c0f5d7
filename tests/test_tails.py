"""Student-t or Gaussian: the choice at states whose law is known, and in an automatic fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics.rays import look_along_rays, look_wider
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting import automatic, tails
from scoreascent.fitting.tails import heavier
from tests.registry import quick_rows


def student(df: float, n: int, dim: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) / np.sqrt(rng.chisquare(df, (n, 1)) / df)


@pytest.mark.parametrize("dim", quick_rows([1, 4, 20], 1, 4))
def test_states_of_a_student_are_told_from_a_gaussian(dim: int) -> None:
    mix = np.random.default_rng(1).normal(size=(dim, dim)) + 3 * np.eye(dim)
    z = 1e3 + 50 * student(4.0, 20_000, dim) @ mix.T
    q = heavier(z.astype(np.float32))
    assert q is not None
    assert q.df in (3.5, 4.0, 5.0)
    exact = 50 * np.sqrt(2 * np.sum(mix**2, 1))
    np.testing.assert_allclose(q.sd, exact, rtol=0.12)
    np.testing.assert_allclose((q.mean - 1e3) / exact, 0, atol=0.04)


@pytest.mark.parametrize("dim", quick_rows([1, 4, 20], 1, 4))
def test_states_of_a_gaussian_and_lighter_ones_stay_gaussian(dim: int) -> None:
    rng = np.random.default_rng(2)
    assert heavier(rng.normal(size=(20_000, dim))) is None
    assert heavier(rng.uniform(size=(20_000, dim))) is None


def test_mutant_that_asks_for_no_gain_takes_a_student_for_a_gaussian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "MIN_GAIN", -1.0)
    z = np.random.default_rng(2).normal(size=(20_000, 4)).astype(np.float32)
    assert heavier(z) is not None


def test_what_cannot_tell_says_nothing() -> None:
    assert heavier(student(3.0, 50, 4)) is None  # too few
    assert heavier(student(3.0, 5000, 60)) is None  # too many dimensions
    z = student(3.0, 5000, 2)
    z[:, 1] = 7.0  # stands still
    assert heavier(z) is None
    z[:, 1] = np.nan
    assert heavier(z) is None


@pytest.mark.parametrize("family", [sa.FullRankStudentT, sa.FullRank, sa.MeanField])
def test_the_radius_is_the_distance_in_units_of_q(family: Any) -> None:
    q = family.standard(3)
    along = jnp.array([0.6, 0.0, 0.8])
    scale = jnp.linalg.norm(q.transport(along) - q.mean)
    for r in (0.1, 1.0, 30.0):
        fall = q.log_prob(q.mean) - q.log_prob(q.mean + r * scale * along)
        assert float(q.radius(np.asarray(fall, np.float64))) == pytest.approx(r, rel=2e-3)


def test_independent_students_have_their_radius_along_a_diagonal() -> None:
    q = sa.StudentT.standard(4)
    away = 2.5 * q.scale
    fall = float(q.log_prob(q.mean) - q.log_prob(q.mean + away))
    assert float(q.radius(fall)) == pytest.approx(5.0, rel=1e-3)


def test_rays_of_a_student_see_nothing_beyond_its_own_draws() -> None:
    """π = q = t₆: what lies beyond a distance is a share in closed form, and q lacks nothing."""
    q = sa.FullRankStudentT.standard(2, df=6.0)
    target = sa.Target(q.log_prob, dim=2)
    run = sa.fit(target, sa.pmcsa(4), q0=q, steps=1, progress=False)
    edge = q.mean + 6.0 * q.tril[:, 0]
    found = look_along_rays(run, jax.random.key(0), float(q.log_prob(edge)))
    # E‖x‖² beyond r, of t₆ in two dimensions: (1 + r²/6)^-3 (1 + r²/2), r = 6
    exact = (1 + 36 / 6) ** -3 * (1 + 36 / 2)
    assert found["unseen"] == pytest.approx(exact, abs=0.02)
    assert look_wider(run, jax.random.key(1)) < 0.05


@pytest.mark.slow
def test_an_automatic_fit_turns_to_a_student_where_it_fits() -> None:
    def density(z: Any) -> Any:
        return -0.5 * (4.0 + 5) * jnp.log1p(jnp.sum(z**2) / 4.0)

    result = sa.fit(sa.Target(density, dim=5), key=0, progress=False)
    assert isinstance(result.q, sa.FullRankStudentT)
    assert result.q.df in (3.5, 4.0, 5.0)
    assert any("FullRankStudentT" in line for line in result.decisions)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == GOOD
    np.testing.assert_allclose(result.q.sd, np.sqrt(2.0), rtol=0.1)


def _seen(z: Any, density: Any) -> Any:
    """Return the run of a short fit of a density whose chains' late states were z."""
    target = sa.Target(density, dim=z.shape[-1])
    q = sa.FullRank.standard(z.shape[-1])
    run = sa.fit(target, sa.pmcsa(4), q0=q, steps=1, progress=False)
    return replace(run, states=jnp.asarray(z[None]))


def test_a_student_must_fit_where_it_is_likelier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow part in a wide one has heavy tails for a Gaussian, and is no Student-t."""
    rng = np.random.default_rng(3)
    width = np.where(rng.uniform(size=(8000, 1)) < 0.5, 0.1, 1.0)
    z = (width * rng.normal(size=(8000, 2))).astype(np.float32)

    def parts(z: Any) -> Any:
        r2 = jnp.sum(z**2)
        return jnp.logaddexp(-50.0 * r2 - 2 * jnp.log(0.1), -0.5 * r2)

    run = _seen(z, parts)
    assert heavier(z) is not None
    assert automatic._student(run) is None
    monkeypatch.setattr(automatic, "MAX_MISFIT", np.inf)  # the mutant that does not ask
    assert automatic._student(run) is not None


def test_a_student_that_fits_is_taken() -> None:
    z = student(4.0, 8000, 3).astype(np.float32)
    run = _seen(z, lambda z: -0.5 * (4.0 + 3) * jnp.log1p(jnp.sum(z**2) / 4.0))
    found = automatic._student(run)
    assert found is not None
    assert found.df in (3.5, 4.0, 5.0)
