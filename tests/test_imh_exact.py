"""IMH and CIS on a finite space, where their transition matrices can be written down.

A state is its index, as a vector of one float. q is a categorical distribution; the target is a
table. The states `EMPTY` have probability zero under π but not under q.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from tests.helpers import pytree, x64
from tests.registry import FAMILIES, TARGETS
from tests.stats import Z_MAX, Z_MUTANT, places, quick_jit, stationary, z_score

PI = np.array([0.3, 0.05, 0.25, 0.0, 0.4, 0.0])
PROPOSAL = np.array([0.1, 0.25, 0.2, 0.1, 0.25, 0.1])
EMPTY = PI == 0
STATES = len(PI)


@pytree
@dataclass(frozen=True)
class Categorical:
    """The family of all distributions on the states, by the Gumbel trick."""

    logits: Any

    @property
    def dim(self) -> int:
        return 1

    def noise(self, key: Any) -> Any:
        return jax.random.gumbel(key, self.logits.shape, self.logits.dtype)

    def transport(self, noise: Any) -> Any:
        return jnp.argmax(self.logits + noise)[None].astype(self.logits.dtype)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        assert sample_shape == ()
        return self.transport(self.noise(key))

    def log_prob(self, z: Any) -> Any:
        return jax.nn.log_softmax(self.logits)[z[0].astype(int)]


def table(z: Any, log_pi: Any) -> Any:
    return log_pi[z[0].astype(int)]


def make_target() -> sa.Target:
    with np.errstate(divide="ignore"):
        return sa.Target(table, dim=1, data=jnp.asarray(np.log(3 * PI)))  # unnormalised


def make_q() -> Categorical:
    return Categorical(jnp.asarray(np.log(PROPOSAL) + 1.5))


def at(state: Any, target: sa.Target) -> sa.Point:
    z = jnp.asarray(state, jnp.zeros(()).dtype)[None]
    return sa.Point(z, target.log_prob(z))


def textbook_acceptance() -> np.ndarray:
    """α(i, j) = min(1, π_j q_i / (π_i q_j)); π_i = 0: leave at once, but not for another zero."""
    alpha = np.zeros((STATES, STATES))
    for i, j in itertools.product(range(STATES), repeat=2):
        if PI[j] > 0:
            alpha[i, j] = 1 if PI[i] == 0 else min(1, PI[j] * PROPOSAL[i] / (PI[i] * PROPOSAL[j]))
    return alpha


def imh_matrix(alpha: np.ndarray) -> np.ndarray:
    """P(i, j) = q_j α(i, j), and all that is rejected stays."""
    matrix = PROPOSAL * alpha
    np.fill_diagonal(matrix, 0)
    stay = PROPOSAL + (PROPOSAL * (1 - alpha)).sum(1) - PROPOSAL * (1 - np.diag(alpha))
    return matrix + np.diag(stay)


class DropsProposalDensity(sa.IMH):
    def log_weight(self, q, point):
        return point.log_p


# -- the transition matrix ------------------------------------------------------------------------


def library_acceptance(kernel: sa.IMH) -> np.ndarray:
    """α(i, j) as `propose` reports it, for every pair of states; each pair many times over."""
    target, q = make_target(), make_q()

    def propose(state: Any, key: Any) -> Any:
        proposal = kernel.propose(key, target, q, at(state, target))
        return proposal.point.z[0].astype(int), proposal.acceptance

    keys = jax.random.split(jax.random.key(0), 300)
    run = jax.vmap(jax.vmap(propose, (None, 0)), (0, None))
    to, alpha = map(np.asarray, quick_jit(run)(jnp.arange(STATES), keys))
    matrix = np.full((STATES, STATES), np.nan)
    for i, j in itertools.product(range(STATES), repeat=2):
        found = alpha[i, to[i] == j]
        assert len(found) > 0
        assert np.ptp(found) == 0  # it depends on where from and where to, on nothing else
        matrix[i, j] = found[0]
    return matrix


def test_transition_matrix_is_the_textbook_one():
    with x64():
        matrix = imh_matrix(library_acceptance(sa.IMH()))
        mutant = imh_matrix(library_acceptance(DropsProposalDensity()))
    np.testing.assert_allclose(matrix, imh_matrix(textbook_acceptance()), atol=1e-12)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(PI @ matrix, PI, atol=1e-12)
    assert np.all(matrix >= 0)
    assert np.max(np.abs(PI @ mutant - PI)) > 0.01


# -- the law after n steps ------------------------------------------------------------------------


def cis_matrix(n: int) -> np.ndarray:
    """The law of a point drawn by weight from i and n − 1 draws of q, by enumeration."""
    weight = PI / PROPOSAL
    matrix = np.zeros((STATES, STATES))
    for i in range(STATES):
        for fresh in itertools.product(range(STATES), repeat=n - 1):
            points = np.array([i, *fresh])
            total = weight[points].sum()
            chosen = weight[points] / total if total > 0 else np.eye(n)[0]  # else it stays put
            np.add.at(matrix[i], points, np.prod(PROPOSAL[list(fresh)]) * chosen)
    return matrix


def exact_law(moves: Any, n: int) -> np.ndarray:
    """E Σ w 1(z = j) after n steps from η all in i, a matrix over i and j."""
    power = np.linalg.matrix_power
    if isinstance(moves, sa.CIS):
        return power(cis_matrix(moves.n), n)
    if isinstance(moves, sa.Select):
        return exact_law(moves.moves, n)
    matrix = imh_matrix(textbook_acceptance())
    if isinstance(moves, sa.Sequential):  # all states since the step before
        return np.mean([power(matrix, moves.n * n - k) for k in range(moves.n)], 0)
    return power(matrix, n)


@functools.partial(quick_jit, static_argnames=("moves", "steps", "replicas"))
def walk(moves: Any, steps: int, replicas: int, key: Any) -> Any:
    """Points and weights after each step of replicas from every state: (state, replica, step)."""
    target, q = make_target(), make_q()

    def replica(state: Any, key: Any) -> Any:
        z = jnp.full((places(moves), 1), state, jnp.zeros(()).dtype)

        def step(eta: Any, key: Any) -> Any:
            eta, _ = moves.step(key, target, q, eta)
            return eta, (eta.z[:, 0].astype(int), eta.weight)

        start = stationary(moves, z, jax.vmap(target.log_prob)(z))
        return jax.lax.scan(step, start, jax.random.split(key, steps))[1]

    keys = jax.random.split(key, (STATES, replicas))
    return jax.vmap(jax.vmap(replica, (None, 0)), (0, 0))(jnp.arange(STATES), keys)


@functools.cache
def walked(moves: Any) -> tuple[np.ndarray, np.ndarray]:
    plain = isinstance(moves, sa.Parallel) and not moves.rao_blackwell
    steps, replicas = (5, 50_000) if plain else (2, 20_000)
    points, weight = walk(moves, steps, replicas, jax.random.key(1))
    return np.asarray(points), np.asarray(weight, np.float64)


def mass(points: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The weight of each state."""
    return np.sum(weight[..., None] * (points[..., None] == np.arange(STATES)), -2)


def distance(moves: Any) -> dict[int, float]:
    """Max |z| of the weight of each state, from each state, after 1, 2 (and 5) steps."""
    points, weight = walked(moves)
    found = {}
    for n in [n for n in (1, 2, 5) if n <= points.shape[2]]:
        law, masses = exact_law(moves, n), mass(points[:, :, n - 1], weight[:, :, n - 1])
        found[n] = max(z_score(masses[i], law[i]) for i in range(STATES))
    return found


EXACT = [
    sa.Parallel(sa.IMH(), 1),
    sa.Parallel(sa.IMH(), 2, rao_blackwell=True),
    sa.Sequential(sa.IMH(), 2),
    sa.CIS(2),
    sa.CIS(3),
    sa.Select(sa.CIS(3)),
]


@pytest.mark.parametrize("moves", EXACT, ids=str)
def test_n_step_law_is_the_exact_one(moves):
    assert max(distance(moves).values()) < Z_MAX


@pytest.mark.parametrize("moves", EXACT, ids=str)
def test_states_of_probability_zero_are_never_entered(moves):
    """Not with any weight, not by one replica of all, though 20 % of the proposals go there."""
    points, weight = walked(moves)
    assert np.max(mass(points, weight)[~EMPTY][..., EMPTY]) == 0
    if isinstance(moves, sa.CIS) or getattr(moves, "rao_blackwell", False):
        assert np.any(EMPTY[points[~EMPTY]])  # the proposals are there, without weight


@pytest.mark.parametrize("n", [2, 3])
def test_cis_weights_are_self_normalised(n):
    points, weight = walked(sa.CIS(n))
    expected = (PI / PROPOSAL)[points]
    total = expected.sum(-1, keepdims=True)
    expected = np.where(total > 0, expected / np.where(total > 0, total, 1), np.eye(n)[0])
    np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_enumerated_law_of_cis_keeps_the_target():
    for n in (2, 3):
        np.testing.assert_allclose(cis_matrix(n).sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(PI @ cis_matrix(n), PI, atol=1e-12)


class NoRetainedPoint(sa.CIS):
    def step(self, key, target, q, eta):
        eta, info = super().step(key, target, q, eta)
        weight = eta.weight.at[0].set(0)
        total = jnp.sum(weight)
        return eta._replace(weight=jnp.where(total > 0, weight / total, eta.weight)), info


class Lazy(sa.Parallel):
    """Rao–Blackwellised chains that move with probability α/2: π is kept, the law is not."""

    def step(self, key, target, q, eta):
        half = eta.weight[: self.n] / 2
        lazy = eta._replace(weight=jnp.concatenate([half, 1 / self.n - half]))
        return super().step(key, target, q, lazy)


@pytest.mark.parametrize(
    ("mutant", "from_step"),
    [
        (sa.Parallel(DropsProposalDensity(), 1), 1),
        (NoRetainedPoint(3), 1),
        (Lazy(sa.IMH(), 2, rao_blackwell=True), 2),  # the first step has nothing to be lazy about
    ],
    ids=["proposal density dropped", "no retained point", "lazy"],
)
def test_broken_laws_are_rejected(mutant, from_step):
    found = distance(mutant)
    assert min(z for n, z in found.items() if n >= from_step) > Z_MUTANT


# -- one long chain -------------------------------------------------------------------------------


class Plain(sa.Kernel):
    """An IMH that `Sequential` does not know for one, so that it takes the ordinary way."""

    def __init__(self, kernel: sa.IMH) -> None:
        self.kernel = kernel

    def step(self, key: Any, target: Any, q: Any, point: Any) -> Any:
        return self.kernel.step(key, target, q, point)


CHAIN, KEYS = 6, jax.random.split(jax.random.key(3), 200)


def model(name: str) -> tuple[Any, Any, sa.Point]:
    if name == "discrete":
        target, q = make_target(), make_q()
    else:
        target, q = TARGETS[name].target, FAMILIES["mean-field"](TARGETS[name].dim)
    z = jnp.zeros(target.dim)
    return target, q, sa.Point(z, target.log_prob(z))


def in_one(name: str, kernel: Any) -> tuple[sa.Particles, sa.Info]:
    """A step of `Sequential`."""
    target, q, start = model(name)
    z = jnp.repeat(start.z[None], CHAIN, 0).at[:-1].add(1)  # it goes on from the last, no other
    eta = sa.Particles(z, jax.vmap(target.log_prob)(z), jnp.full(CHAIN, 1 / CHAIN))
    moves = sa.Sequential(kernel, CHAIN)
    return quick_jit(jax.vmap(lambda key: moves.step(key, target, q, eta)))(KEYS)


def one_by_one(name: str, kernel: sa.IMH) -> tuple[sa.Particles, sa.Info]:
    """As many calls of the kernel's own step, with the keys that `Sequential` would give it."""
    target, q, start = model(name)
    step = quick_jit(jax.vmap(lambda key, point: kernel.step(key, target, q, point)))
    keys = jax.vmap(lambda key: jax.random.split(key, CHAIN))(KEYS)
    point = jax.tree.map(lambda x: jnp.repeat(x[None], len(KEYS), 0), start)
    runs = []
    for n in range(CHAIN):
        point, info = step(keys[:, n], point)
        runs.append((point, info))
    points, info = jax.tree.map(lambda *x: np.stack(x, 1), *runs)
    weight = np.full(points.log_p.shape, 1 / CHAIN)
    return sa.Particles(*points, weight), sa.Info(info.acceptance.mean(1), info.invalid.sum(1))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("discrete", sa.IMH()),
        ("gaussian-5d", sa.IMH()),
        ("gaussian-5d", sa.IMH(sa.Defensive(tail="cauchy"))),
    ],
    ids=str,
)
def test_sequential_imh_is_a_run_of_imh_steps(name, kernel):
    steps = one_by_one(name, kernel)
    for sequence in (in_one(name, kernel), in_one(name, Plain(kernel))):
        np.testing.assert_array_equal(sequence[0].z, steps[0].z)
        for a, b in zip(jax.tree.leaves(sequence), jax.tree.leaves(steps)):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    stays = np.all(steps[0].z[:, 1:] == steps[0].z[:, :-1], -1)
    assert 0.05 < stays.mean() < 0.95  # both outcomes were seen
    # the mutant: the same proposals and the same draws, weighed without q, make other states
    broken = DropsProposalDensity(kernel.defensive)
    assert not np.array_equal(in_one(name, broken)[0].z, steps[0].z)
