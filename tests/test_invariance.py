"""Every move leaves π invariant, on every target; broken moves do not, and the same check says so.

Replicas start in exact stationarity, so a functional of η has the same expectation before and after
any number of steps. The check is a z-test that the difference of the two, replica by replica, has
mean zero, while λ moves from step to step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent import pytree
from scoreascent.kernels.base import Proposal, metropolis_probability
from tests.registry import FAMILIES, MOVES, TARGETS
from tests.stats import (
    Z_MAX,
    Z_MUTANT,
    check_invariance,
    exact_draws,
    functionals,
    quick_jit,
    z_score,
)

# A family matters to a kernel by what it draws and how it weighs that, which its own tests look at
# too; so all but the first stand for one kernel and one target here. Gradient moves use q's affine
# map instead, whose shapes differ: one case of each. Kernels made of kernels take long to compile,
# and one dimension has no correlations for them to learn: they stand for five dimensions.
MADE_OF_KERNELS = {"cycle", "sequential-cycle", "in-base", "adapted", "adapted-cycle"}
CASES = [
    (moves, target, family)
    for family in FAMILIES
    for target in TARGETS
    for moves in MOVES
    if (family == "mean-field" and not (moves in MADE_OF_KERNELS and target.endswith("-1d")))
    or (moves in ("parallel-imh", "hmc") and target == "skewed-5d")
    or (moves == "in-base" and family == "flow" and target.endswith("-5d"))
]


@pytest.mark.parametrize(("moves", "target", "family"), CASES)
def test_moves_leave_the_target_invariant(moves, target, family):
    verdict = check_invariance(MOVES[moves], target, family)
    assert verdict.z < Z_MAX
    assert verdict.weights_ok
    assert verdict.moved > 0.1  # staying put for ever would be invariant too


# -- the oracle: exact draws, by Stein's identities E ∇log π = 0 and E[z ∇log π] = −1 ------------


def stein(name: str, shift: float) -> float:
    z = exact_draws(name)[:, 0] + np.float32(shift)
    score = np.asarray(quick_jit(jax.vmap(jax.grad(TARGETS[name].log_density)))(z))
    return z_score(np.concatenate([score, z * score + 1], -1), 0.0)


@pytest.mark.parametrize("target", TARGETS)
def test_the_registry_samples_its_targets_exactly(target):
    assert stein(target, 0.0) < Z_MAX
    assert stein(target, 0.2) > Z_MUTANT


# -- defensive mixtures draw what they weigh: E_def[w f] = E_π f, w = π/q_def ----------------------


def mixture_bias(mixture: sa.Defensive, name: str, family: str = "mean-field") -> float:
    known, q = TARGETS[name], FAMILIES[family](TARGETS[name].dim)

    @quick_jit
    @jax.vmap
    def draw(key: Any, exact: Any) -> Any:
        z = mixture.sample(key, q)
        w = jnp.exp(known.log_density(z) - mixture.log_prob(q, z))
        return jnp.append(w * functionals(z) - functionals(exact), w - 1)

    exact = exact_draws(name)[:, 0]
    return z_score(draw(jax.random.split(jax.random.key(2), len(exact)), exact), 0.0)


class WrongShares(sa.Defensive):
    def log_prob(self, q, z):
        return jnp.logaddexp(
            q.log_prob(z), jnp.log1p(-self.alpha) + jnp.sum(self._nu(q).log_prob(z))
        )


@pytest.mark.parametrize("family", ["mean-field", "low-rank"])  # it uses mean and sd alone
@pytest.mark.parametrize("target", ["gaussian-1d", "skewed-5d"])
@pytest.mark.parametrize("tail", ["student", "cauchy"])
def test_defensive_mixtures_draw_what_they_weigh(tail, target, family):
    assert mixture_bias(sa.Defensive(alpha=0.7, tail=tail), target, family) < Z_MAX
    if target == "gaussian-1d":
        assert mixture_bias(WrongShares(alpha=0.7, tail=tail), target, family) > Z_MUTANT


# -- mutants ------------------------------------------------------------------------------------


class DropsProposalDensity(sa.IMH):
    def log_weight(self, q, point):
        return point.log_p


class StaleDensity(sa.IMH):
    """In the second step, weighs the retained point with the λ of the first."""

    def propose(self, key, target, q, point):
        proposed, log_w, invalid = self.candidate(key, target, q)
        ratio = log_w - self.log_weight(FAMILIES["mean-field"](q.dim), point)
        return Proposal(proposed, metropolis_probability(ratio), invalid)


class AlwaysAccepts(sa.IMH):
    def propose(self, key, target, q, point):
        proposal = super().propose(key, target, q, point)
        return proposal._replace(acceptance=jnp.ones_like(proposal.acceptance))


class ForgetsTheMixture(sa.IMH):
    """Draws from q_def and weighs by q."""

    def log_weight(self, q, point):
        return point.log_p - q.log_prob(point.z)


class UniformWeights(sa.CIS):
    def step(self, key, target, q, eta):
        eta, info = super().step(key, target, q, eta)
        return eta._replace(weight=jnp.full_like(eta.weight, 1 / self.n)), info


class UnnormalisedWeights(sa.CIS):
    def step(self, key, target, q, eta):
        eta, info = super().step(key, target, q, eta)
        return eta._replace(weight=eta.weight / jnp.max(eta.weight)), info


class NoRetainedPoint(sa.CIS):
    def step(self, key, target, q, eta):
        eta, info = super().step(key, target, q, eta)
        weight = eta.weight.at[0].set(0)
        return eta._replace(weight=weight / jnp.sum(weight)), info


class SharedRandomness(sa.Parallel):
    """All chains draw the same numbers: every marginal is right, their joint law is not."""

    def step(self, key, target, q, eta):
        points, info = jax.vmap(lambda p: self.kernel.step(key, target, q, p))(
            sa.Point(eta.z, eta.log_p)
        )
        return sa.Particles(*points, eta.weight), jax.tree.map(jnp.mean, info)


class AcceptsTwice(sa.Parallel):
    """Rao–Blackwell weights that are the right ones squared: α² in place of α."""

    def step(self, key, target, q, eta):
        eta, info = super().step(key, target, q, eta)
        alpha = (self.n * eta.weight[: self.n]) ** 2
        return eta._replace(weight=jnp.concatenate([alpha, 1 - alpha]) / self.n), info


class KicksTooMuch(sa.HMC):
    """The last whole kick is left whole."""

    def _fly(self, target, q, point, momentum, size, count):
        end = super()._fly(target, q, point, momentum, size, count)
        half = 0.5 * size * self._maps(q)[1](jax.grad(target.log_prob)(end.z))
        return end._replace(momentum=end.momentum + half)


class NoKineticEnergy(sa.HMC):
    def _kinetic(self, p):
        return 0 * jnp.sum(p)


class NeverRefuses(sa.HMC):
    def tuned_step(self, key, target, q, point, tuning):
        key_noise, _, _ = jax.random.split(key, 3)
        momentum = jax.random.normal(key_noise, point.z.shape)
        size = jnp.float32(self.step_size)
        end = self._fly(target, q, point, momentum, size, self._leaps(size, None))
        one = jnp.ones(())
        moved = point._replace(z=end.z, log_p=end.log_p, gradient=end.gradient)
        return moved, sa.Info(one, end.invalid), one


class StaleCycle(sa.Cycle):
    """The second kernel is told the density of where the first began."""

    def tuned_step(self, key, target, q, point, tuning):
        first, second = self.kernels
        keys = jax.random.split(key)
        moved, *_ = first.tuned_step(keys[0], target, q, point, tuning[0])
        stale = moved._replace(log_p=point.log_p)
        point, info, _ = second.tuned_step(keys[1], target, q, stale, tuning[1])
        return point, info, (jnp.ones(()), jnp.ones(()))


class WeighsByQ(sa.Adapted):
    """Proposes from the learnt Gaussian and weighs by q."""

    def tuned_step(self, key, target, q, point, tuning):
        proposal = type("Mixed", (), {"sample": tuning.proposal.sample, "log_prob": q.log_prob})
        return self.kernel.tuned_step(key, target, proposal, point, tuning.tuning)


COARSE = {"step_size": 0.8, "length": 1.5}  # so coarse that much depends on refusing

MUTANTS = {
    "proposal density dropped": sa.Parallel(DropsProposalDensity(), 1),
    "density of the retained point is stale": sa.Parallel(StaleDensity(), 1),
    "always accepts": sa.Parallel(AlwaysAccepts(), 1),
    "mixture not in the weights": sa.Parallel(ForgetsTheMixture(sa.Defensive(alpha=0.5)), 1),
    "sequential, proposal density dropped": sa.Sequential(DropsProposalDensity(), 4),
    "uniform weights": UniformWeights(4),
    "weights not normalised": UnnormalisedWeights(4),
    "no retained point": NoRetainedPoint(4),
    "chosen among fresh points only": sa.Select(NoRetainedPoint(4)),
    "chains share their random numbers": SharedRandomness(sa.IMH(), 4),
    "wrong Rao–Blackwell weights": AcceptsTwice(sa.IMH(), 4, rao_blackwell=True),
}


@pytest.mark.parametrize("target", [name for name in TARGETS if name.endswith("-1d")])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_moves_are_rejected(mutant, target):
    assert check_invariance(MUTANTS[mutant], target).z > Z_MUTANT


# What is wrong with a gradient move shows in how far it leads astray, which in the valley between
# two modes is not far. A Lᵀ that is forgotten does not show at all: kicks by any function of z are
# undone by their opposites and keep volumes, so π stays invariant; tests/test_hmc.py has it, as
# it has a kept gradient that is another state's.
GRADIENT_MUTANTS = {
    "last kick not halved": KicksTooMuch(**COARSE),
    "no kinetic energy": NoKineticEnergy(**COARSE),
    "trajectories never refused": NeverRefuses(**COARSE),
    "cycle with a stale density": StaleCycle(sa.IMH(), sa.HMC(**COARSE)),
}


class ForgetsTheShare(sa.Mixture):
    """Moves in coordinates of the part that owns the state, as if it owned all states."""

    def piece(self, key, z):
        return super().piece(key, z)[0], lambda z: 0.0


def test_a_part_that_owns_a_state_counts_by_its_share(monkeypatch):
    """One part is wide and the other narrow, so that a step changes which of them it should be."""
    means, covs = jnp.array([[-0.5], [1.0]]), jnp.array([[[2.0]], [[0.1]]])
    for family, rejected in ((sa.Mixture, False), (pytree(ForgetsTheShare), True)):
        q = family.from_moments(means, covs)
        monkeypatch.setitem(FAMILIES, family.__name__, lambda dim, q=q: q)
        seen = check_invariance(MOVES["hmc"], "bimodal-1d", family.__name__)
        assert (seen.z > Z_MUTANT) if rejected else (seen.z < Z_MAX)


@pytest.mark.parametrize("target", ["gaussian-1d", "skewed-1d"])
@pytest.mark.parametrize("mutant", GRADIENT_MUTANTS)
def test_broken_gradient_moves_are_rejected(mutant, target):
    assert check_invariance(sa.Parallel(GRADIENT_MUTANTS[mutant], 1), target).z > Z_MUTANT


def test_a_learnt_proposal_that_is_not_weighed_is_rejected():
    broken = sa.Parallel(WeighsByQ(sa.IMH()), 4)
    assert (
        check_invariance(broken, "gaussian-5d", "full-rank").z > Z_MUTANT
    )  # the learnt one is diagonal
