"""Particles from a wide reference: the modes they find, the evidence they tell, bad input."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import scoreascent as sa
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.tempered import _em, _merged, _reduced


def nine(z: Any) -> Any:
    """Nine normalised Gaussians of equal mass on a grid."""
    at = jnp.array([[4.0 * i, 4.0 * j] for i in (-1, 0, 1) for j in (-1, 0, 1)])
    square = jnp.sum((z - at) ** 2, -1)
    return logsumexp(-2 * square + jnp.log(2 / jnp.pi) - jnp.log(9.0))


def test_all_modes_are_found_with_their_masses() -> None:
    start = sa.tempered(sa.Target(nine, dim=2))
    assert start.q.components == 9
    assert not start.agree
    np.testing.assert_allclose(start.q.weights, 1 / 9, atol=0.04)
    grid = sorted(tuple(round(float(x) / 4) for x in loc) for loc in start.q.loc)
    assert grid == [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert start.evaluations[1] > 10_000


@pytest.mark.slow
def test_the_evidence_of_particles() -> None:
    """Twenty keys, about the exact value: no bias beyond its noise, which is a tenth of a nat."""
    found = [sa.tempered(sa.Target(nine, dim=2), key).log_evidence for key in range(20)]
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(20)
    assert np.std(found) < 0.2


@pytest.mark.slow
def test_a_fit_that_begins_there_is_good() -> None:
    target = sa.Target(nine, dim=2)
    start = sa.tempered(target)
    result = sa.fit(target, start=start, progress=False)
    assert result.decisions == sa.fit(target, q0=start, progress=False).decisions
    assert result.diagnosis.verdict == GOOD
    np.testing.assert_allclose(result.q.sd, np.sqrt(0.25 + 32 / 3), rtol=0.03)


@pytest.mark.slow
def test_one_mode_is_one_gaussian() -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum((z - 3) ** 2 / jnp.arange(1, 6)), dim=5)
    start = sa.tempered(target)
    assert isinstance(start.q, sa.FullRank)
    assert start.agree
    np.testing.assert_allclose(start.q.mean, 3, atol=0.4)
    np.testing.assert_allclose(start.q.sd**2, np.arange(1, 6), rtol=0.2)


def test_components_that_tell_nothing_are_merged_and_no_others() -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(-4, 1, (700, 2)), rng.normal(4, 1, (300, 2))])
    centres = z[rng.choice(1000, 8)]
    eye = np.stack([np.eye(2)] * 8)
    q = sa.Mixture.from_moments(*(np.asarray(x, np.float32) for x in (centres, eye)))
    found = _reduced(q, z)
    assert found.components == 2
    np.testing.assert_allclose(found.weights, [0.7, 0.3], atol=0.01)


def test_merging_keeps_moments_and_em_never_falls() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.dirichlet(np.ones(4)), rng.normal(size=(4, 3)), np.stack([np.eye(3)] * 4)]
    total = lambda p: p[0] @ p[1]  # noqa: E731
    fewer = _merged(parts)
    assert len(fewer[0]) == 3
    np.testing.assert_allclose(total(fewer), total(parts))
    second = lambda p: np.einsum("k,kij->ij", p[0], p[2] + p[1][:, :, None] * p[1][:, None])  # noqa: E731
    np.testing.assert_allclose(second(fewer), second(parts))
    z = rng.normal(size=(500, 3))
    heights = [_em(parts, z, n)[1] for n in range(1, 8)]
    assert np.all(np.diff(heights) > -1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 50}, r"components: 50 of 2 dimensions are more than 64 particles can tell"),
        ({"particles": 10}, "particles must be an integer ≥ 64"),
        ({"reference": sa.FullRank.standard(3)}, "reference must have 2 dimensions, as"),
    ],
)
def test_bad_input_is_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sa.tempered(sa.Target(nine, dim=2), **{"particles": 64, **options})


def test_a_target_without_mass_there_is_an_error() -> None:
    target = sa.Target(lambda z: jnp.where(z[0] > 1e6, 0.0, -jnp.inf) - z[0], dim=1)
    with pytest.raises(ValueError, match="did not reach the posterior"):
        sa.tempered(target, particles=64)


def test_the_same_key_gives_the_same_particles() -> None:
    target = sa.Target(nine, dim=2)
    a, b, c = (sa.tempered(target, key, particles=256) for key in (0, 0, 1))
    np.testing.assert_array_equal(a.z, b.z)
    assert not np.array_equal(a.z, c.z)
    assert jax.tree.structure(a.q) == jax.tree.structure(b.q)
