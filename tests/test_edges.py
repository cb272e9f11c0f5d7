"""The tails of a bent q: chains that move in one end of a coordinate alone see what states lack."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics import edges as module
from scoreascent.diagnostics.edges import Mirrored, edges, look_at_edges
from scoreascent.diagnostics.rules import MAX_TAIL_LACKING, UNSEEN
from scoreascent.experiments.verdict.bench import ALL_SHAPES

CHAINS, ROWS = 64, 200
WIDTH = 3.0


def neck(z: Any) -> Any:
    """A skewed coordinate, exponential below, and one whose width it is."""
    return z[0] - jnp.exp(z[0]) - 0.5 * (z[1] * jnp.exp(-z[0])) ** 2 - z[0]


TARGET = sa.Target(neck, dim=2)


def draws(seed: int, floor: float = -np.inf) -> np.ndarray:
    """Return exact draws of it, of those above a floor."""
    rng = np.random.default_rng(seed)
    x = np.log(rng.exponential(size=8 * CHAINS * ROWS))
    x = x[x > floor][: CHAINS * ROWS]
    y = np.exp(x) * rng.normal(size=len(x))
    return np.stack([x, y], -1).reshape(CHAINS, ROWS, 2).astype(np.float32)


def test_a_mirror_shows_the_outer_side_on_both() -> None:
    mirrored = Mirrored(TARGET, jnp.asarray([-1.0, 0.0]), jnp.asarray(2.0))  # x ≤ −2 is outside
    out, image = jnp.asarray([-2.5, 0.3]), jnp.asarray([-1.5, 0.3])
    assert np.allclose(mirrored.outside(image), out)
    assert np.array_equal(mirrored.outside(out), out)
    assert mirrored.log_prob(image) == pytest.approx(float(neck(out)))


def test_exact_draws_lack_nothing() -> None:
    found = [look_at_edges(TARGET, draws(seed), jax.random.key(seed))[0] for seed in range(5)]
    assert max(found) < MAX_TAIL_LACKING / 2


def test_states_that_stop_early_lack_what_is_behind() -> None:
    """Below −4 is 0.018 of the mass, and 0.2 of the variance that the rest has."""
    found = [look_at_edges(TARGET, draws(s, -4.0), jax.random.key(s)) for s in range(3)]
    assert min(lacking for lacking, _ in found) > MAX_TAIL_LACKING
    assert all(count.gradients > module.STEPS * module.CHAINS for _, count in found)


def test_mutant_that_looks_without_a_metric_of_its_own_sees_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the coordinates of all states, as a flow's chains, it stays where these are."""
    wide = sa.FullRank.from_moments(jnp.zeros(2), 100.0 * jnp.eye(2))
    monkeypatch.setattr(module, "_local", lambda *args: wide)
    monkeypatch.setattr(module, "HERE", sa.pmcsa(module.CHAINS, sa.IMH()))
    lacking, _ = look_at_edges(TARGET, draws(0, -4.0), jax.random.key(0))
    assert lacking < MAX_TAIL_LACKING


def test_only_abrupt_ends_are_looked_at() -> None:
    rng = np.random.default_rng(0)
    assert edges(rng.laplace(size=(10_000, 3))) == []
    ends = edges(rng.uniform(size=(10_000, 5)))
    assert len(ends) == module.EDGES
    assert [e.abrupt for e in ends] == sorted(e.abrupt for e in ends)


def test_states_in_a_plane_or_few_of_them_say_nothing() -> None:
    z = draws(0)
    flat = np.where(np.arange(2) == 1, 0.0, z)
    assert look_at_edges(TARGET, flat, jax.random.key(0))[0] == 0.0
    assert look_at_edges(TARGET, z[:4, :2], jax.random.key(0))[0] >= 0.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_flow_whose_chains_never_saw_the_neck_is_not_good(seed: int) -> None:
    """log τ of `centred-18` had a sd that was 11 to 17 % too small under a good verdict."""
    shape = ALL_SHAPES["centred-18"]
    target = sa.Target(shape.log_density, dim=shape.dim)
    result = sa.fit(target, key=seed, progress=False)
    assert result.diagnosis is not None
    sd = np.array([row["sd"] for row in result.summary()])
    wrong = np.max(np.abs(np.log(sd / shape.sd))) > result.diagnosis.tolerance
    assert not (wrong and result.diagnosis.verdict == "good")
    if result.diagnosis.tail_lacking > MAX_TAIL_LACKING:
        assert result.diagnosis.verdict == UNSEEN
