"""Flows: what they learn from states, moves in their base space, and fits that need one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting import automatic
from scoreascent.fitting.flows import MIN_STATES, standard, trained
from tests.helpers import pytree, x64
from tests.registry import FAMILIES, MOVES, TARGETS
from tests.stats import Z_MUTANT, check_invariance

BEND = 2.0


def banana(z: Any) -> Any:
    return -0.5 * z[0] ** 2 - 0.5 * (z[1] - BEND * (z[0] ** 2 - 1)) ** 2


def banana_states(times: int, chains: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(times, chains))
    y = BEND * (x**2 - 1) + rng.normal(size=(times, chains))
    return np.stack([x, y], -1).astype(np.float32)


def height(q: Any, states: np.ndarray) -> float:
    return float(jnp.mean(jax.vmap(q.log_prob)(states.reshape(-1, states.shape[-1]))))


def with_moments(states: np.ndarray) -> sa.FullRank:
    flat = states.reshape(-1, states.shape[-1])
    return sa.FullRank.from_moments(flat.mean(0), np.cov(flat.T).astype(np.float32))


# -- what a flow learns ----------------------------------------------------------------------------


def test_it_learns_a_bend_that_no_gaussian_has() -> None:
    states, fresh = banana_states(100), banana_states(100, seed=1)
    q0 = sa.Flow.from_gaussian(standard(states.reshape(-1, 2).astype(float)), layers=4)
    q = trained(q0, states, jax.random.key(0), 400)
    entropy = -1 - np.log(2 * np.pi)  # the mean log density of π itself at its own draws
    assert height(with_moments(fresh), fresh) < entropy - 0.8
    assert entropy - 0.1 < height(q, fresh) < entropy + 0.05


def test_it_is_never_worse_than_the_gaussian_it_came_from() -> None:
    """Of states that are Gaussian nothing is to be learnt; neither is noise."""
    rng = np.random.default_rng(0)
    turn = np.array([[2.0, 0, 0], [1, 1, 0], [0, 0, 3]])
    states, fresh = (
        (rng.normal(size=(*shape, 3)) @ turn).astype(np.float32) for shape in ((12, 40), (4000,))
    )
    gaussian = with_moments(states)
    q = trained(sa.Flow.from_gaussian(gaussian, layers=2), states, jax.random.key(0), 200)
    assert height(q, fresh) > height(gaussian, fresh) - 0.03


def test_few_states_teach_nothing() -> None:
    q = sa.Flow.standard(2, layers=2)
    states = banana_states(1, chains=MIN_STATES)
    assert trained(q, states, jax.random.key(0), 10) is q


def test_its_moments_are_those_of_draws_and_change_with_what_it_learnt() -> None:
    q = FAMILIES["flow"](2)
    straight = replace(q, theta=0 * q.theta)
    np.testing.assert_allclose(straight.cov, FAMILIES["full-rank"](2).cov, rtol=1e-3)
    assert np.abs(np.asarray(q.sd - straight.sd)).max() > 0.02


# -- moves in its base space -----------------------------------------------------------------------


def test_in_the_base_of_a_gaussian_moves_are_preconditioned_ones() -> None:
    with x64():
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES["full-rank"](5))
        known, kernel = TARGETS["skewed-5d"], sa.HMC(step_size=0.5, length=1.2)
        z = jnp.linspace(-0.3, 0.4, 5)
        point = sa.Point(z, known.log_density(z))
        for key in jax.random.split(jax.random.key(0), 5):
            plain, info = kernel.step(key, known.target, q, point)
            inside, info_inside = sa.InBase(kernel).step(key, known.target, q, point)
            np.testing.assert_allclose(inside.z, plain.z, rtol=1e-9)
            np.testing.assert_allclose(info_inside.acceptance, info.acceptance, rtol=1e-9)


class ForgetsTheVolume(sa.Flow):
    """Says that T changes no volumes, to moves in its base space."""

    def forward(self, noise: Any) -> Any:
        return super().forward(noise)[0], jnp.zeros(())

    def inverse(self, z: Any) -> Any:
        return super().inverse(z)[0], jnp.zeros(())


def test_a_volume_that_is_forgotten_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    family = pytree(static=("net",))(ForgetsTheVolume)

    def broken(dim: int) -> Any:
        q = FAMILIES["flow"](dim)
        return family(q.loc, q.raw, q.theta, q.net)

    monkeypatch.setitem(FAMILIES, "broken", broken)
    assert check_invariance(MOVES["in-base"], "gaussian-5d", "broken").z > Z_MUTANT


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", ["auto", "flow"])
def test_a_fit_of_a_bent_posterior_is_good(family: str) -> None:
    target = sa.Target(banana, dim=2)
    result = sa.fit(target, family=family, key=1, progress=False)
    assert result.diagnosis.verdict == GOOD
    assert isinstance(result.q, sa.Flow)
    row = {r["name"]: r for r in result.summary()}
    sd = np.sqrt(2 * BEND**2 + 1)
    assert abs(row["z[1]"]["mean"]) < 0.1 * sd
    assert abs(row["z[1]"]["sd"] / sd - 1) < 0.1
    said = any("turns to a flow" in line for line in result.decisions)
    assert said == (family == "auto")
    z = np.asarray(result.sample(0, 4000, "q")["z"])
    assert np.std(z[:, 1] - BEND * (z[:, 0] ** 2 - 1)) < 1.5  # they lie on the parabola


@pytest.mark.slow
def test_without_the_extra_a_fit_says_what_would_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(dim: int) -> None:
        raise ModuleNotFoundError("Flow needs flowjax; pip install 'scoreascent[flows]'")

    monkeypatch.setattr(automatic, "require_flows", missing)
    result = sa.fit(sa.Target(banana, dim=2), key=1, progress=False)
    assert any("a flow may serve here, but Flow needs" in d for d in result.decisions)
    assert not isinstance(result.q, sa.Flow)
