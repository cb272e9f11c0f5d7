"""Gradient moves in closed form, kernels made of kernels, and what all of them learn as they run.

tests/test_invariance.py has the kernels with settings of their own. What is learnt makes a step
depend on earlier ones, so it is exact in the limit only: the tests here look at where the learning
goes, that it stops, and at the moments of long runs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import polygamma

import scoreascent as sa
from scoreascent.kernels import hmc
from scoreascent.kernels.base import Slope
from tests.helpers import x64
from tests.registry import AFFINE, FAMILIES, TARGETS
from tests.stats import Z_MAX, Z_MUTANT, quick_jit, z_score

# -- trajectories --------------------------------------------------------------------------------


def fly(kernel: sa.HMC, target: sa.Target, q: Any, z: Any, p: Any, size: float, count: int) -> Any:
    def go(z: Any, p: Any) -> Any:
        start = sa.Point(z, jnp.zeros(()))
        return kernel._fly(target, q, start, p, size, jnp.int32(count))

    return quick_jit(go)(z, p)


@functools.partial(quick_jit, static_argnums=0)
def moved(kernel: Any, key: Any, target: sa.Target, q: Any, point: Any) -> Any:
    return kernel.step(key, target, q, point)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_leapfrog_on_a_quadratic_is_a_matrix_power(count: int) -> None:
    """On N(0, 1/k) a leapfrog step is a linear map of (z, p), so a trajectory is its power."""
    k, size, sd = 2.5, 0.3, 1.7
    drift, kick = np.array([[1, size * sd], [0, 1]]), np.array([[1, 0], [-size * sd * k / 2, 1]])
    z, p = np.linalg.matrix_power(kick @ drift @ kick, count) @ [0.7, -1.1]
    with x64():
        target = sa.Target(lambda z: -0.5 * k * jnp.sum(z**2), dim=1)
        q = sa.MeanField.from_moments(np.array([9.0]), np.array([sd]))  # its mean is of no account
        end = fly(sa.HMC(), target, q, jnp.array([0.7]), jnp.array([-1.1]), size, count)
        np.testing.assert_allclose([end.z[0], end.momentum[0]], [z, p], rtol=1e-10)
        np.testing.assert_allclose(end.log_p, -0.5 * k * z**2, rtol=1e-10)
        back = fly(sa.HMC(), target, q, end.z, -end.momentum, size, count)
        np.testing.assert_allclose([back.z[0], -back.momentum[0]], [0.7, -1.1], rtol=1e-10)


class NotTransposed(sa.HMC):
    """Kicks by L where it should be Lᵀ."""

    def _maps(self, q: Any) -> Any:
        forwards, _ = super()._maps(q)
        return forwards, forwards


def deviation(kernel: sa.HMC, family: str) -> float:
    """How far a step in z is from one in x, z = T(x), where q is standard and noise the same."""
    with x64():
        known = TARGETS["skewed-5d"]
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES[family](5))
        noise = jax.eval_shape(q.noise, jax.random.key(0)).shape[0]  # d + r for a low-rank q
        white = sa.Target(lambda x: known.log_density(q.transport(x)), dim=noise)
        x = jnp.linspace(-0.3, 0.4, noise)
        z, standard = q.transport(x), sa.MeanField.standard(noise, dtype=jnp.float64)

        def both(key: Any) -> Any:
            one = kernel.step(key, known.target, q, sa.Point(z, known.log_density(z)))
            two = sa.HMC.step(kernel, key, white, standard, sa.Point(x, white.log_prob(x)))
            return one, two

        keys = jax.random.split(jax.random.key(3), 8)
        (here, info), (there, info_white) = quick_jit(jax.vmap(both))(keys)
        assert np.ptp(np.asarray(here.z), 0).max() > 0.1  # they moved
        return float(
            jnp.max(jnp.abs(here.z - jax.vmap(q.transport)(there.z)))
            + jnp.max(jnp.abs(info.acceptance - info_white.acceptance))
        )


@pytest.mark.parametrize("family", AFFINE)
def test_preconditioning_is_running_where_q_is_standard(family: str) -> None:
    assert deviation(sa.HMC(step_size=0.5, length=1.2), family) < 1e-9


def test_a_forgotten_transpose_is_not() -> None:
    assert deviation(sa.HMC(step_size=0.3, length=0.6), "full-rank") < 1e-9
    end = NotTransposed(step_size=0.3, length=0.6)
    with x64():
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES["full-rank"](5))
        target = TARGETS["skewed-5d"].target
        z, p = jnp.linspace(-0.3, 0.4, 5), jnp.linspace(1.0, -0.5, 5)
        right = fly(sa.HMC(), target, q, z, p, 0.3, 2)
        wrong = fly(end, target, q, z, p, 0.3, 2)
    assert np.abs(right.z - wrong.z).max() > 1e-2


@pytest.mark.parametrize("family", AFFINE)
def test_energy_is_kept_as_steps_get_small(family: str) -> None:
    """Its error is of second order: a tenth of the step, a hundredth of the error."""
    with x64():
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES[family](5))
        known, kernel = TARGETS["skewed-5d"], sa.HMC()
        p = jnp.linspace(1.0, -0.5, jax.eval_shape(q.noise, jax.random.key(0)).shape[0])
        z = jnp.linspace(-0.3, 0.4, 5)

        def error(size: float) -> float:
            end = fly(kernel, known.target, q, z, p, size, round(0.8 / size))
            before = known.log_density(z) - kernel._kinetic(p)
            return abs(float(end.log_p - kernel._kinetic(end.momentum) - before))

        assert 1e-8 < error(0.01) < 0.03 * error(0.1)


def test_mala_is_one_step_of_hmc() -> None:
    q, point = sa.MeanField.standard(2), sa.Point(jnp.ones(2), jnp.float32(-1.0))
    target, key = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2), jax.random.key(0)
    mala = moved(sa.MALA(step_size=0.6), key, target, q, point)
    one = moved(sa.HMC(step_size=0.6, length=0.6), key, target, q, point)
    for a, b in zip(jax.tree.leaves(mala), jax.tree.leaves(one)):
        np.testing.assert_array_equal(a, b)
    assert sa.HMC(length=100.0, step_size=0.1)._leaps(jnp.float32(0.1), None) == 24
    assert sa.HMC(length=1.0, step_size=0.4)._leaps(jnp.float32(0.4), None) == 3
    assert sa.MALA()._leaps(jnp.float32(1e-9), None) == 1


def with_wall(at: float, value: float) -> sa.Target:
    def log_density(z: Any) -> Any:
        return jnp.where(z[0] > at, value, -0.5 * jnp.sum(z**2))

    return sa.Target(log_density, dim=1)


@pytest.mark.parametrize(
    ("value", "counted"), [(np.nan, True), (np.inf, True), (-np.inf, False)], ids=str
)
def test_walls_are_not_entered(value: float, counted: bool) -> None:
    """Trajectories may pass through, and what they meet there is counted if it is not a number."""
    kernel, q = sa.HMC(step_size=0.3, length=1.5), sa.MeanField.standard(1)
    target, start = with_wall(0.1, value), sa.Point(jnp.zeros(1), jnp.float32(0))
    steps = quick_jit(jax.vmap(lambda key: kernel.step(key, target, q, start)))
    end, info = steps(jax.random.split(jax.random.key(0), 200))
    assert np.all(end.z <= 0.1)
    assert np.all(np.isfinite(end.log_p))
    assert np.mean(np.asarray(info.acceptance) > 0.5) > 0.2
    assert bool(np.any(info.invalid)) == counted
    assert np.max(info.invalid) > 1 or not counted  # several on one path


@pytest.mark.parametrize("share", [hmc.SHORT_STEPS_SHARE, 0.0])
def test_short_steps_free_a_chain_where_others_are_rejected(share: float, monkeypatch: Any) -> None:
    """Steps of five sds are not stable; without short ones a chain stays for ever."""
    monkeypatch.setattr(hmc, "SHORT_STEPS_SHARE", share)
    kernel, q = sa.HMC(step_size=5.0), sa.MeanField.standard(50)
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=50)
    start = sa.Point(jnp.ones(50), jnp.float32(-25))
    steps = quick_jit(jax.vmap(lambda key: kernel.step(key, target, q, start)))
    end, _ = steps(jax.random.split(jax.random.key(0), 500))
    went = np.mean(np.any(np.asarray(end.z) != 1, axis=1))
    # 5 · 32^−v is about stable from v = ½ on
    assert abs(went - share / 2) <= 0.03 if share else went == 0


def test_a_gradient_that_is_nan_keeps_the_chain_where_it_is() -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2) + 0 * jnp.sum(jnp.sqrt(z)), dim=1)
    start = sa.Point(jnp.zeros(1), jnp.float32(0))
    q = sa.MeanField.standard(1)
    end, info = moved(sa.HMC(step_size=0.3), jax.random.key(0), target, q, start)
    assert end.z[0] == 0
    assert info.acceptance == 0
    assert info.invalid == 0  # nothing was asked where it is not defined


# -- the gradient that is kept -------------------------------------------------------------------


def tuned(size: float, taken: int = 0, age: int | None = None) -> Any:
    """A step size that was learnt, in the default precision."""
    tuning = sa.HMC().first_tuning(sa.MeanField.standard(1))
    return tuning._replace(
        log=jnp.log(jnp.asarray(size, tuning.log.dtype)),
        taken=jnp.int32(taken),
        age=jnp.int32(taken if age is None else age),
    )


class KeepsTheOldOne(sa.HMC):
    """Keeps the gradient of where the trajectory began, wherever it went."""

    def tuned_step(self, key: Any, target: Any, q: Any, point: Any, tuning: Any) -> Any:
        end, *rest = super().tuned_step(key, target, q, point, tuning)
        return end._replace(gradient=point.gradient), *rest


def differs_from_chains_without(kernel: sa.HMC) -> float:
    """How far ten steps of chains that keep their gradients are from those that take them anew."""
    with x64():
        known, n = TARGETS["skewed-5d"], 6
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES["full-rank"](5))
        z = jnp.linspace(-1.0, 1.0, 5 * n).reshape(n, 5)
        points = jax.vmap(lambda z: sa.Point(z, known.log_density(z)))(z)
        slopes = jax.vmap(lambda p: kernel.prepare(known.target, p))(points)

        def run(points: Any, kernel: Any) -> Any:
            def once(carry: Any, key: Any) -> Any:
                points, tuning = carry
                step = lambda k, p: kernel.tuned_step(k, known.target, q, p, tuning)  # noqa: E731
                points, info, seen = jax.vmap(step)(jax.random.split(key, n), points)
                tuning = kernel.retune(tuning, jnp.mean(seen), points)
                return (points, tuning), (points, info.acceptance)

            keys = jax.random.split(jax.random.key(4), 10)
            (_, tuning), seen = jax.lax.scan(once, (points, kernel.first_tuning(q)), keys)
            return *seen, tuning

        without, rate, one = quick_jit(lambda p: run(p, sa.HMC(kernel.length)))(points)
        kept, rate_kept, two = quick_jit(lambda p: run(p, kernel))(slopes)
        assert np.ptp(np.asarray(kept.z), 0).max() > 0.5  # they moved
        gradient = jax.vmap(jax.vmap(jax.grad(known.log_density)))(kept.z)
        assert type(kernel) is not sa.HMC or int(one.gradients) == int(two.gradients) + 10
        return max(
            float(jnp.max(jnp.abs(a - b)))
            for a, b in [
                (without.z, kept.z),
                (without.log_p, kept.log_p),
                (rate, rate_kept),
                (gradient, kept.gradient),
            ]
        )


def test_a_kept_gradient_changes_nothing_but_the_cost() -> None:
    assert differs_from_chains_without(sa.HMC()) < 1e-9
    assert differs_from_chains_without(sa.HMC(length=(0.6, 3.0))) < 1e-9
    assert differs_from_chains_without(KeepsTheOldOne()) > 0.1


def test_parallel_chains_keep_their_gradients() -> None:
    """From the first on; a cycle, and one chain after the other, take them anew."""
    known, q, key = TARGETS["skewed-5d"], FAMILIES["mean-field"](5), jax.random.key(0)

    def moved(moves: Any) -> Any:
        eta = moves.init(key, known.target, q)
        return eta, moves.step(key, known.target, q, eta)[0]

    for eta in quick_jit(lambda: moved(sa.Parallel(sa.HMC(), 4)))():
        assert eta.gradient.shape == (4, 5)
        right = jax.vmap(jax.grad(known.log_density))(eta.z)
        np.testing.assert_allclose(eta.gradient, right, rtol=1e-4, atol=1e-4)
    for moves in (sa.Sequential(sa.HMC(), 4), sa.Parallel(sa.Cycle(sa.IMH(), sa.HMC()), 4)):
        assert all(eta.gradient is None for eta in jax.eval_shape(lambda m=moves: moved(m)))


def test_a_place_whose_gradient_is_not_finite_is_not_gone_to() -> None:
    """The density beyond is a number, its slope is not: a chain could not leave."""

    def density(z: Any) -> Any:
        return -0.5 * jnp.sum(z**2) + jnp.sqrt(jnp.where(z[0] > 0.1, 0.0 * z[0], 1.0))

    target, q, kernel = sa.Target(density, dim=1), sa.MeanField.standard(1), sa.HMC(step_size=0.5)
    start = kernel.prepare(target, sa.Point(jnp.zeros(1), jnp.float32(1)))
    assert np.all(np.isfinite(start.gradient))
    assert not np.isfinite(jax.grad(density)(jnp.ones(1)))
    steps = quick_jit(jax.vmap(lambda key: kernel.step(key, target, q, start)))
    end, info = steps(jax.random.split(jax.random.key(0), 100))
    assert np.all(end.z <= 0.1)
    assert np.all(np.isfinite(end.gradient))
    assert np.any(info.acceptance > 0.5)


# -- how long trajectories are -------------------------------------------------------------------


def test_lengths_vary_by_turns_of_the_golden_section() -> None:
    """Spread evenly between the two, whichever steps are looked at."""
    kernel, size = sa.HMC(length=(1.0, 3.0), max_steps=10_000), 1e-3
    leaps = np.array(
        [int(kernel._leaps(jnp.float32(size), tuned(size, age=t))) for t in range(100)]
    )
    assert leaps.min() >= 1000
    assert leaps.max() <= 3001
    shares = np.sort(leaps[40:]) * size
    np.testing.assert_allclose(shares, np.linspace(1, 3, 60), atol=0.1)
    assert np.abs(np.diff(leaps)).min() > 500  # neighbours are far apart
    stretched = tuned(size, age=7)._replace(stretch=jnp.float32(2.0))
    assert abs(int(kernel._leaps(jnp.float32(size), stretched)) - 2 * leaps[7]) <= 2


def test_in_a_hurry_the_first_trajectories_are_short() -> None:
    kernel = sa.HMC(length=100.0, max_steps=64, hurry=True)
    leaps = [int(kernel._leaps(jnp.float32(0.1), tuned(0.1, age=t))) for t in (0, 10, 20, 50, 500)]
    assert leaps == [8, 8, 16, 40, 64]
    short = sa.HMC(length=100.0, max_steps=4, hurry=True)
    assert int(short._leaps(jnp.float32(0.1), tuned(0.1))) == 4
    # it is the age that counts, not since when the step size is learnt
    assert int(kernel._leaps(jnp.float32(0.1), kernel.afresh(tuned(0.1, age=50), 0))) == 40


def settled(caution: float, lost: float, n: int = 400) -> float:
    """The acceptance at which the step size settles where steps are accepted or lost.

    A share `lost` ε of them is lost, the others are accepted with probability 1 − ε/2.
    """
    kernel = sa.HMC(acceptance=0.8, caution=caution)
    tuning: Any = kernel.first_tuning(sa.MeanField.standard(5))
    for _ in range(n):
        size = jnp.exp(tuning.log)
        share = jnp.minimum(lost * size, 1.0)
        mean = (1 - share) * jnp.maximum(1 - size / 2, 0) - caution * share
        tuning = kernel.retune(tuning, mean, None)
    return float((1 - share) * (1 - size / 2))


def test_steps_are_short_where_some_are_lost() -> None:
    """In balance p − caution · share is the acceptance that was asked for."""
    assert abs(settled(20.0, 0.0) - 0.8) < 0.01
    assert abs(settled(0.0, 0.03) - 0.8) < 0.01
    assert settled(20.0, 0.03) > 0.87


@pytest.mark.parametrize(("caution", "counts"), [(0.0, 0.0), (7.0, -7.0)])
def test_a_lost_trajectory_counts_less_than_none(caution: float, counts: float) -> None:
    """From the foot of a cliff: whatever step is taken ends where hardly any is accepted."""
    target = sa.Target(lambda z: -1e6 * jnp.sum(z**2), dim=2)
    kernel = sa.HMC(length=10.0, caution=caution)
    q = sa.MeanField.standard(2)
    point = sa.Point(jnp.zeros(2), jnp.zeros(()))
    _, info, seen = kernel.tuned_step(jax.random.key(0), target, q, point, kernel.first_tuning(q))
    assert float(info.acceptance) < 1e-6
    np.testing.assert_allclose(float(seen), counts, atol=1e-6)


def test_a_tuning_may_learn_afresh() -> None:
    """The step size stays, and moves by as much as after so many steps."""
    kernel, tuning = sa.HMC(), tuned(0.3, taken=1000)
    after = kernel.afresh(tuning, 5, 2.0)
    assert (int(after.taken), int(after.age), float(after.stretch)) == (5, 1000, 2.0)
    assert float(after.log) == float(tuning.log)
    then = kernel.retune(after, jnp.float32(0.4), sa.Point(jnp.ones((1, 1)), None))
    np.testing.assert_allclose(then.log - after.log, 6**-0.6 * (0.4 - 0.9), rtol=1e-4)
    assert (int(then.taken), int(then.age), float(then.stretch)) == (6, 1001, 2.0)
    fixed, eta = sa.HMC(step_size=0.1), sa.Particles(jnp.ones((1, 1)), None, None, tuning)
    assert fixed.afresh(None, 5) is None
    assert sa.IMH().afresh(None, 5) is None
    assert int(sa.Parallel(kernel, 1).afresh(eta, 5).tuning.taken) == 5
    assert sa.CIS(4).afresh(eta, 5) is eta


# -- kernels made of kernels ---------------------------------------------------------------------


def test_a_cycle_is_one_after_the_other() -> None:
    known, q, key = TARGETS["skewed-5d"], FAMILIES["full-rank"](5), jax.random.key(5)
    first, second = sa.IMH(), sa.HMC(step_size=0.4)
    point = sa.Point(jnp.zeros(5), known.log_density(jnp.zeros(5)))
    keys = jax.random.split(key)
    between, one = moved(first, keys[0], known.target, q, point)
    end, two = moved(second, keys[1], known.target, q, between)
    both, info = moved(sa.Cycle(first, second), key, known.target, q, point)
    np.testing.assert_allclose(both.z, end.z, rtol=1e-5, atol=1e-6)
    expected = 1 - (1 - one.acceptance) * (1 - two.acceptance)
    np.testing.assert_allclose(info.acceptance, expected, rtol=1e-5)


def test_adapted_uses_what_it_learnt() -> None:
    """The kernel it holds, at its own proposal; which begins at q's moments."""
    known, q, key = TARGETS["skewed-5d"], FAMILIES["full-rank"](5), jax.random.key(5)
    point = sa.Point(jnp.zeros(5), known.log_density(jnp.zeros(5)))
    for rank in (None, 2, 50):
        kernel = sa.Adapted(sa.IMH(), rank=rank)
        tuning = kernel.first_tuning(q)
        np.testing.assert_allclose(tuning.proposal.mean, q.mean, rtol=1e-5)
        np.testing.assert_allclose(tuning.proposal.sd, q.sd, rtol=1e-5)
        there = tuning._replace(proposal=FAMILIES["low-rank" if rank else "full-rank"](5))
        end, *_ = quick_jit(kernel.tuned_step)(key, known.target, q, point, there)
        same, _ = moved(sa.IMH(), key, known.target, there.proposal, point)
        np.testing.assert_array_equal(end.z, same.z)


def test_adapted_follows_the_chains() -> None:
    """By `match` with its rate; and stays where it is when that is not finite."""
    kernel = sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC()), rate=sa.schedules.Decay(first=0.5))
    tuning = kernel.first_tuning(sa.MeanField.standard(2))
    z = jnp.array([[1.0, 2.0], [-1.0, 0.5], [0.3, 0.0]])
    points, seen = sa.Point(z, jnp.zeros(3)), (None, jnp.float32(0.4))
    retune = quick_jit(kernel.retune)
    after = retune(tuning, seen, points)
    expected = quick_jit(tuning.proposal.match)(z, jnp.full(3, 1 / 3), 0.5)
    np.testing.assert_allclose(after.proposal.cov, expected.cov, rtol=1e-6)
    assert int(after.taken) == 1
    assert after.tuning[0] is None
    np.testing.assert_allclose(after.tuning[1].log - tuning.tuning[1].log, 0.4 - 0.9, rtol=1e-5)
    stuck = retune(tuning, seen, points._replace(z=z.at[0, 0].set(jnp.inf)))
    np.testing.assert_array_equal(stuck.proposal.cov, tuning.proposal.cov)


def test_select_keeps_what_the_chain_has_learnt() -> None:
    moves = sa.Select(sa.Sequential(sa.HMC(), 3))
    known, q, key = TARGETS["gaussian-5d"], sa.MeanField.standard(5), jax.random.key(0)
    eta = quick_jit(moves.init)(key, known.target, q)
    after, info = quick_jit(moves.step)(key, known.target, q, eta)
    assert int(after.tuning.taken) == 1
    assert float(info.acceptance) > 0.5
    assert np.max(np.abs(after.z - eta.z)) > 1e-3
    assert jax.tree.structure(after) == jax.tree.structure(eta)


# -- what is learnt ------------------------------------------------------------------------------


@functools.partial(quick_jit, static_argnames=("moves", "target", "steps"))
def history(moves: Any, target: sa.Target, q: Any, key: Any, steps: int) -> Any:
    """The η and the acceptance after each step, from draws of q."""

    def once(eta: Any, key: Any) -> Any:
        eta, info = moves.step(key, target, q, eta)
        return eta, (eta, info.acceptance)

    first, *keys = jax.random.split(key, steps + 1)
    return jax.lax.scan(once, moves.init(first, target, q), jnp.stack(keys))[1]


STEPS = 1500


@functools.cache
def learnt(kernel: Any, rate_of: str = "gaussian-5d") -> Any:
    etas, acceptance = history(
        sa.Parallel(kernel, 16), TARGETS[rate_of].target, FAMILIES["mean-field"](5),
        jax.random.key(2), STEPS,
    )  # fmt: skip
    return np.asarray(etas.tuning.log, np.float64), np.asarray(acceptance, np.float64)


class Constant(sa.HMC):
    """Never stops learning."""

    def retune(self, tuning: Any, seen: Any, points: Any) -> Any:
        after = super().retune(tuning, seen, points)
        return after._replace(log=tuning.log + 0.5 * (seen - self.acceptance))


def late_moves(log: np.ndarray) -> float:
    """The spread of the increments, t^0.6 times, late over early: one if they vanish as t^−0.6."""
    scaled = np.diff(log) * np.arange(2, len(log) + 1) ** 0.6
    return float(np.std(scaled[-500:]) / np.std(scaled[100:600]))


@pytest.mark.parametrize(
    "kernel",
    [
        sa.HMC(),
        *(
            pytest.param(k, marks=pytest.mark.slow)
            for k in (sa.HMC(acceptance=0.7), sa.MALA(), sa.MALA(acceptance=0.8))
        ),
    ],
    ids=repr,
)
def test_the_step_size_is_learnt_and_stops_moving(kernel: Any) -> None:
    log, acceptance = learnt(kernel)
    late = acceptance[-1000:].reshape(-1, 20).mean(1)  # batches; chains forget sooner than that
    assert z_score(late, kernel.acceptance) < Z_MAX
    assert abs(late.mean() - kernel.acceptance) < 0.02
    bound = np.arange(2, STEPS + 1) ** -0.6 * max(kernel.acceptance, 1 - kernel.acceptance)
    assert np.all(np.abs(np.diff(log)) <= bound + 1e-6)
    assert 0.7 < late_moves(log) < 1.4
    assert np.ptp(log[-500:]) < 0.1


@pytest.mark.slow
def test_a_step_size_that_never_stops_is_seen() -> None:
    log, _ = learnt(Constant())
    assert late_moves(log) > 1.8
    assert np.ptp(log[-500:]) > 0.1


@pytest.mark.slow
def test_the_step_size_learnt_from_a_wrong_rate_is_seen() -> None:
    """The z-test above tells 0.9 from what a target of 0.85 leads to."""
    _, acceptance = learnt(sa.HMC(acceptance=0.85))
    assert z_score(acceptance[-1000:].reshape(-1, 20).mean(1), 0.9) > Z_MUTANT


# -- long runs while learning --------------------------------------------------------------------


class FollowsTheChain(sa.HMC):
    """A step size that depends on where the chains are, for ever."""

    def retune(self, tuning: Any, seen: Any, points: Any) -> Any:
        low = jnp.mean(points.z[:, 0]) < 0.4
        return tuning._replace(log=jnp.where(low, jnp.log(1e-3), jnp.log(0.8)))


@dataclass(frozen=True)
class Rate:
    """A rate that does not go to zero."""

    value: float

    def __call__(self, count: Any) -> Any:
        return self.value


REPLICAS, BURN_IN, LENGTH = 200, 150, 250


@functools.partial(quick_jit, static_argnames=("moves", "target"))
def long_runs(moves: Any, target: sa.Target, q: Any, keys: Any) -> Any:
    """Averages over a long run of the first two moments of its coordinates, run by run."""

    def run(key: Any) -> Any:
        def once(carry: Any, key: Any) -> Any:
            eta, total, t = carry
            eta, _ = moves.step(key, target, q, eta)
            now = jnp.mean(jnp.concatenate([eta.z, eta.z**2], 1), 0)
            return (eta, total + jnp.where(t >= BURN_IN, now, 0.0), t + 1), None

        key_init, key_run = jax.random.split(key)
        eta = moves.init(key_init, target, q)
        carry = (eta, jnp.zeros(2 * target.dim), 0)
        keys = jax.random.split(key_run, BURN_IN + LENGTH)
        return jax.lax.scan(once, carry, keys)[0][1] / LENGTH

    return jax.vmap(run)(keys)


def long_run_bias(kernel: Any, n: int) -> float:
    """z of the long-run moments of independent log Gamma(2) variables: ψ(2) and ψ′(2)."""
    known = TARGETS["skewed-5d"]
    mean = float(polygamma(0, 2))
    expected = np.repeat([mean, float(polygamma(1, 2)) + mean**2], 5)
    keys = jax.random.split(jax.random.key(11), REPLICAS)
    q = FAMILIES["mean-field"](5)
    return z_score(long_runs(sa.Parallel(kernel, n), known.target, q, keys), expected)


# A proposal that learns from n chains leans towards where they have just been, by about γ_t/n: a
# fast rate lets a run of this length be exact to its own error.
FAST = sa.schedules.Decay(power=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        (sa.HMC(), 4),
        (sa.MALA(), 4),
        (sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC()), rate=FAST), 8),
    ],
    ids=str,
)
def test_long_runs_have_the_right_moments_while_learning(kernel: Any, n: int) -> None:
    assert long_run_bias(kernel, n) < Z_MAX


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [FollowsTheChain(), sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC()), rate=Rate(0.5))],
    ids=["step size", "proposal"],
)
def test_learning_that_does_not_vanish_is_rejected(kernel: Any) -> None:
    assert long_run_bias(kernel, 2) > Z_MUTANT


def test_gradients_are_counted() -> None:
    """One for each leap, of a transition; and one at the start, unless it was kept."""
    tuning = tuned(0.5, taken=3)._replace(gradients=jnp.int32(10))
    kernel, seen, z = sa.HMC(length=1.4), jnp.float32(0.9), jnp.ones((1, 1))
    assert int(kernel.retune(tuning, seen, sa.Point(z, None)).gradients) == 10 + 1 + 3
    after = kernel.retune(tuning, seen, Slope(z, None, z))
    assert int(after.gradients) == 10 + 3
    assert (int(after.taken), int(after.age), float(after.stretch)) == (4, 4, 1.0)
    assert kernel.evaluations(after, 4) == (0, 13)
    assert sa.HMC(step_size=0.1).retune(None, None, None) is None


# -- bad input -----------------------------------------------------------------------------------

LENGTHS = "length must be positive and finite, or two such numbers,"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sa.HMC(length=0.0), f"{LENGTHS} got 0.0"),
        (lambda: sa.HMC(caution=-1.0), "caution must be finite and at least 0, got -1.0"),
        (lambda: sa.HMC(caution=np.nan), "caution must be finite and at least 0, got nan"),
        (lambda: sa.HMC(length=None), f"{LENGTHS} got None"),
        (lambda: sa.HMC(length=np.nan), f"{LENGTHS} got nan"),
        (lambda: sa.HMC(length=(3.0, 0.6)), rf"{LENGTHS} got \(3.0, 0.6\)"),
        (lambda: sa.HMC(length=(0.0, 1.0)), rf"{LENGTHS} got \(0.0, 1.0\)"),
        (lambda: sa.HMC(length=(0.6, np.inf)), rf"{LENGTHS} got \(0.6, inf\)"),
        (lambda: sa.HMC(length=(0.6, 1.0, 3.0)), rf"{LENGTHS} got \(0.6, 1.0, 3.0\)"),
        (lambda: sa.HMC(length=(None, None)), rf"{LENGTHS} got \(None, None\)"),
        (
            lambda: sa.HMC(length=(0.6, 3.0), step_size=0.1),
            r"length: two of them, \(0.6, 3.0\), need a step size that is learnt, .* is 0.1",
        ),
        (lambda: sa.HMC(step_size=-1.0), "step_size must be positive .* got -1.0"),
        (lambda: sa.HMC(step_size=np.inf), "step_size must be positive .* got inf"),
        (lambda: sa.HMC(acceptance=1.0), "acceptance must lie strictly .* got 1.0"),
        (lambda: sa.HMC(max_steps=0), "max_steps must be an integer ≥ 1, got 0"),
        (lambda: sa.MALA(max_steps=2), "MALA takes one step, got max_steps=2; use HMC"),
        (lambda: sa.Cycle(), "Cycle needs at least one kernel"),
        (lambda: sa.Cycle(sa.IMH(), sa.HMC), "kernel must be a kernel such as IMH()"),
        (lambda: sa.Adapted(3), "kernel must be a kernel such as IMH"),
        (lambda: sa.Adapted(sa.IMH(), rank=0), "rank must be an integer ≥ 1, got 0"),
        (lambda: sa.Adapted(sa.IMH(), rate=0.1), "rate must be a function .* got 0.1"),
    ],
)
def test_bad_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    "kernel", [sa.HMC(), sa.MALA(), sa.Cycle(sa.IMH(), sa.HMC()), sa.Adapted(sa.IMH())], ids=repr
)
def test_rao_blackwell_needs_a_metropolis_kernel(kernel: Any) -> None:
    with pytest.raises(ValueError, match=r"rao_blackwell needs a kernel that proposes and accepts"):
        sa.pmcsa(4, kernel=kernel, rao_blackwell=True)


def test_kernels_that_learn_nothing_have_no_tuning() -> None:
    q = sa.MeanField.standard(2)
    assert sa.IMH().first_tuning(q) is None
    assert sa.HMC(step_size=0.1).first_tuning(q) is None
    tuning = sa.Cycle(sa.IMH(), sa.HMC()).first_tuning(q)
    np.testing.assert_allclose(np.exp(tuning[1].log), 2**-0.25, rtol=1e-6)
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    point = sa.Point(jnp.ones(2), jnp.float32(-1.0))
    assert sa.IMH().tuned_step(jax.random.key(0), target, q, point, None)[2] is None
