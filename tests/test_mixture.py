"""Mixtures: online EM, masses by even draws, and what the automatic fit makes of several modes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import scoreascent as sa
from scoreascent.diagnostics.modes import look_at_modes, weigh_parts
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.starts import weighed, with_place
from tests.helpers import x64


def two(weights: Any = (0.3, 0.7), apart: float = 3.0) -> sa.Mixture:
    loc = np.array([[-apart, 0.0], [apart, 1.0]], np.float32)
    cov = np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.5, -0.2], [-0.2, 0.3]]], np.float32)
    return sa.Mixture.from_moments(loc, cov, np.array(weights, np.float32))


def modes(places: Any, sds: Any, weights: Any) -> sa.Target:
    places, sds, weights = (jnp.asarray(x, jnp.float32) for x in (places, sds, weights))

    def log_density(z: Any) -> Any:
        square = jnp.sum((z - places) ** 2, -1) / sds**2
        return logsumexp(-0.5 * square - z.shape[0] * jnp.log(sds), b=weights)

    return sa.Target(log_density, dim=places.shape[-1])


# -- the family ----------------------------------------------------------------------------------


def flat(q: Any) -> Any:
    return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(q)])


def test_a_step_is_the_natural_gradient_of_point_and_component_together() -> None:
    """F Δλ = γ ∇ Σ w log q(z), F the Fisher information of z and of who made it."""
    with x64():
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), two())
        rng = np.random.default_rng(0)
        z, weight = jnp.asarray(rng.normal(size=(9, 2)) * 3), jnp.asarray(rng.dirichlet(np.ones(9)))
        leaves, tree = jax.tree.flatten(q)
        sizes = np.cumsum([x.size for x in leaves])[:-1]

        def build(vector: Any) -> sa.Mixture:
            parts = jnp.split(vector, sizes)
            return tree.unflatten([p.reshape(x.shape) for p, x in zip(parts, leaves)])

        def surprise(vector: Any) -> Any:
            """E −log q(z, k), of which the Hessian at q is F."""
            other = build(vector)
            total = -q.weights @ jax.nn.log_softmax(other.logits)
            for k in range(2):
                cov = other.tril[k] @ other.tril[k].T
                away = q.loc[k] - other.loc[k]
                second = q.tril[k] @ q.tril[k].T + jnp.outer(away, away)
                twice = jnp.trace(jnp.linalg.solve(cov, second)) + jnp.linalg.slogdet(cov)[1]
                total += q.weights[k] * twice / 2
            return total

        fisher = np.asarray(jax.hessian(surprise)(flat(q)))
        gradient = flat(jax.grad(lambda q: weight @ jax.vmap(q.log_prob)(z))(q))
        step = (flat(q.match(z, weight, 1e-7)) - flat(q)) / 1e-7
        np.testing.assert_allclose(fisher @ step, gradient, rtol=1e-4, atol=1e-5)
        wrong = (flat(q.match(z, weight[::-1], 1e-7)) - flat(q)) / 1e-7
        assert not np.allclose(fisher @ wrong, gradient, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_em_finds_the_mixture_that_made_the_points() -> None:
    q, truth = sa.Mixture.standard(2, 4.0, components=2), two()
    z = truth.sample(jax.random.key(0), (20_000,))
    step = jax.jit(lambda q: q.match(z, jnp.full(len(z), 1 / len(z)), 1.0))
    heights = []
    for _ in range(60):
        q = step(q)
        heights.append(float(jnp.mean(jax.vmap(q.log_prob)(z))))
    assert np.all(np.diff(heights) > -1e-4)  # EM never falls
    np.testing.assert_allclose(q.weights, truth.weights, atol=0.02)
    np.testing.assert_allclose(q.loc, truth.loc, atol=0.06)
    np.testing.assert_allclose(q.cov, truth.cov, atol=0.3)


def test_a_weight_does_not_die_and_comes_back() -> None:
    q, far = two(), jnp.full((50, 2), jnp.array([3.0, 1.0]))
    noise = 0.5 * jax.random.normal(jax.random.key(0), far.shape)
    step = jax.jit(lambda q, z: q.match(z, jnp.full(50, 0.02), 0.2))
    for _ in range(200):
        q = step(q, far + noise)
    assert 5e-4 < q.weights[0] < 2e-3
    np.testing.assert_allclose(q.loc[0], [-3, 0], atol=1e-3)  # it has stayed where it was
    for _ in range(60):
        q = step(q, jnp.array([-3.0, 0.0]) + noise)
    assert q.weights[0] > 0.9


def test_no_component_shrinks_onto_the_first_points_that_come() -> None:
    q = two(weights=(0.001, 0.999))
    z = jnp.concatenate([jnp.full((2, 2), -3.0), jnp.full((98, 2), 3.0)])
    moved = q.match(z, jnp.full(100, 0.01), 0.2)
    before, after = (np.linalg.eigvalsh(x.tril[0] @ x.tril[0].T) for x in (q, moved))
    assert after.min() > 0.49 * before.min()


def test_members_are_pooled_part_by_part() -> None:
    a, b = two(), two(weights=(0.5, 0.5), apart=2.0)
    both = jax.tree.map(lambda *x: jnp.stack(x), a, b).pooled()
    np.testing.assert_allclose(both.weights, [0.4, 0.6], rtol=1e-5)
    np.testing.assert_allclose(both.mean, (a.mean + b.mean) / 2, rtol=1e-5)
    second = lambda q: q.cov + jnp.outer(q.mean, q.mean)  # noqa: E731
    np.testing.assert_allclose(second(both), (second(a) + second(b)) / 2, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0], [0.0]], [[[1.0]], [[1.0]]]), "components 0 and 1 coincide"),
        (([[0.0], [1.0]], [[[1.0]]]), "cov must be 2 matrices"),
        (([[0.0], [1.0]], [[[1.0]], [[-1.0]]]), "positive definite"),
        (([[0.0], [1.0]], [[[1.0]], [[1.0]]], [1.0, 0.0]), "weights must be 2 positive"),
        (([[0.0], [1.0]], [[[1.0]], [[1.0]]], [1.0]), "weights must be 2 positive"),
        (([0.0, 1.0], [[[1.0]], [[1.0]]]), "mean must be a matrix"),
    ],
)
def test_bad_components_are_named(arguments: Any, message: str) -> None:
    arguments = [np.asarray(x, np.float32) for x in arguments]
    with pytest.raises(ValueError, match=message):
        sa.Mixture.from_moments(*arguments)


# -- masses --------------------------------------------------------------------------------------


def test_even_draws_tell_the_mass_of_a_light_mode() -> None:
    """4000 draws of q would see twenty of it; and a q with the wrong masses is told so."""
    exact = two(weights=(0.005, 0.995))
    target = sa.Target(exact.log_prob, dim=2)
    found = weigh_parts(target, two(weights=(0.02, 0.98)), jax.random.key(0))
    assert abs(found.mass[0] - 0.005) < 4 * found.error[0] < 0.002
    gaps = [
        look_at_modes(two(weights=w), None, target, jax.random.key(1))["mass_gap"]
        for w in ((0.005, 0.995), (0.05, 0.95))
    ]
    assert gaps[0] < 0.02 < 0.1 < gaps[1]


def test_chains_that_never_change_do_not_tell_masses() -> None:
    q, rng = two(), np.random.default_rng(0)
    side = rng.random((64, 1)) < 0.3
    where = lambda left: np.where(left[..., None], [-3.0, 0.0], [3.0, 1.0])  # noqa: E731
    stuck = look_at_modes(q, where(np.repeat(side, 200, 1)))
    mixed = look_at_modes(q, where(rng.random((64, 200)) < 0.3))
    assert stuck["mass_unsure"] > 0.15
    assert stuck["changes"] == 0
    assert mixed["mass_unsure"] < 0.03
    assert 70 < mixed["changes"] < 100


def test_a_start_is_weighed_before_chains_begin_there() -> None:
    target = sa.Target(two(weights=(0.1, 0.9)).log_prob, dim=2)
    q = two(weights=(0.6, 0.4))
    start = weighed(target, sa.Start(q, q.loc, (), 2, False, (0, 0)), jax.random.key(0))
    np.testing.assert_allclose(start.q.weights, [0.1, 0.9], atol=0.01)
    assert abs(np.mean(np.asarray(start.z)[:, 0] < 0) - 0.1) < 0.02
    assert start.evaluations[0] == 2 * 512


def test_a_place_that_was_found_later_becomes_a_component() -> None:
    place = (np.array([9.0, 9.0]), 0.25 * np.eye(2))
    target = sa.Target(two().log_prob, dim=2)  # which has nothing there
    start = with_place(target, two(), place, 0.01, jax.random.key(0))
    assert start.q.components == 3
    np.testing.assert_allclose(start.q.loc[-1], place[0])
    np.testing.assert_allclose(start.q.weights[:2] / two().weights, 0.98, atol=0.002)
    assert np.mean(np.asarray(start.z)[:, 1] > 6) > 0.08  # chains begin there more often
    all_of_it = with_place(target, two(), place, 1.0, jax.random.key(0))
    np.testing.assert_allclose(all_of_it.q.weights[-1], 0.9, rtol=1e-5)


# -- the automatic fit ---------------------------------------------------------------------------

SEVERAL = {
    "two, unequal": ([[-4.0, 0.0], [4.0, 0.0]], [0.5, 1.0], [0.2, 0.8]),
    "three": ([[-6.0], [0.0], [6.0]], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_several_modes_are_right_and_good_and_their_masses_known(name: str) -> None:
    places, sds, weights = (np.array(x) for x in SEVERAL[name])
    result = sa.fit(modes(*SEVERAL[name]), progress=False)
    assert result.diagnosis.verdict == GOOD
    weights = weights / weights.sum()
    q = result.q
    order = [int(np.argmin(np.sum((np.asarray(q.loc) - p) ** 2, -1))) for p in places]
    np.testing.assert_allclose(np.asarray(q.weights)[order], weights, atol=0.02)
    mean = weights @ places
    sd = np.sqrt(weights @ (sds[:, None] ** 2 + (places - mean) ** 2))
    np.testing.assert_allclose(q.mean, mean, atol=0.1 * sd.max())
    np.testing.assert_allclose(q.sd, sd, rtol=0.1)
    assert result.diagnosis.changes > 10


def test_far_modes_of_equal_width_are_good() -> None:
    target = modes([[-5.0] * 3, [5.0] * 3], [1.0, 1.0], [0.6, 0.4])
    result = sa.fit(target, progress=False)
    assert result.diagnosis.verdict == GOOD
    assert isinstance(result.q, sa.Mixture)
    assert abs(float(result.q.mean[0]) + 1.0) < 0.1 * np.sqrt(25)
    np.testing.assert_allclose(result.q.sd, np.sqrt(25), rtol=0.05)
