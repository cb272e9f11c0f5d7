"""The cost table, counted: what one iteration of each method evaluates, draws and differentiates.

Counters sit in the target and in the family and are hit when compiled code runs, once for every
element of a batch. A function that is differentiated counts as one gradient, not as an evaluation:
its value comes with the backward pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import scoreascent as sa
from tests.helpers import State, advance, pytree
from tests.stats import quick_jit

N = 6
DIM = 2

HITS: Counter[str] = Counter()


def hit(name: str, *batched: Any) -> None:
    """Count one, for every element of the batch that `batched` will be part of."""
    jax.debug.callback(lambda *_: HITS.update([name]), *batched)


def counted(function: Callable[..., Any], evaluation: str, gradient: str) -> Callable[..., Any]:
    """`function` of two arguments that counts what it is used for; z is the second of them."""

    @jax.custom_vjp
    def call(x: Any, z: Any) -> Any:
        hit(evaluation, z)
        return function(x, z)

    def forward(x: Any, z: Any) -> Any:
        hit(f"{gradient}, forward", z)
        value, pullback = jax.vjp(function, x, z)
        return value, (pullback, z)

    def backward(residuals: Any, cotangent: Any) -> Any:
        pullback, z = residuals
        hit(gradient, z, cotangent)
        return pullback(cotangent)

    call.defvjp(forward, backward)
    return call


log_p = counted(lambda data, z: -0.5 * jnp.sum((z - data) ** 2), "p", "gradient of p")
log_q = counted(lambda q, z: q.log_prob(z), "q", "score")


@pytree
@dataclass(frozen=True)
class Counting:
    """A mean-field Gaussian that counts."""

    q: sa.MeanField

    @property
    def dim(self) -> int:
        return self.q.dim

    @property
    def mean(self) -> Any:
        return self.q.mean

    @property
    def sd(self) -> Any:
        return self.q.sd

    def noise(self, key: Any) -> Any:
        noise = self.q.noise(key)
        hit("draw", noise)
        return noise

    def transport(self, noise: Any) -> Any:
        return self.q.transport(noise)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        assert sample_shape == ()
        return self.transport(self.noise(key))

    def log_prob(self, z: Any) -> Any:
        return log_q(self.q, z)


TARGET = sa.Target(lambda z, data: log_p(data, z), dim=DIM, data=jnp.ones(DIM))
Q = Counting(sa.MeanField.standard(DIM))


def count(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """What one run of the compiled function hits."""
    compiled = quick_jit(function).lower(*args).compile()
    HITS.clear()
    jax.block_until_ready(compiled(*args))
    jax.effects_barrier()
    for name in ("score", "gradient of p"):  # no forward pass without its backward pass
        assert HITS.pop(f"{name}, forward", 0) == HITS[name]
    return {name: n for name, n in HITS.items() if n}


def start(method: Any) -> Any:
    """Some η. What is counted does not depend on its values, so any will do."""
    shape = jax.eval_shape(method.init, jax.random.key(0), TARGET, Q)
    return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shape)


def cost_of_step(method: Any) -> dict[str, int]:
    return count(lambda q, eta: method.step(jax.random.key(1), TARGET, q, eta), Q, start(method))


def cost_of_objective(method: Any) -> dict[str, int]:
    """Of its value and gradient together."""

    def differentiate(q: Any, eta: Any) -> Any:
        return jax.value_and_grad(lambda q: method.objective(TARGET, q, eta))(q)

    return count(differentiate, Q, start(method))


# The cost table of the paper: the step, then the objective. N is the budget; for CIS it counts the
# retained point.
TABLE = {
    "pmcsa": (sa.pmcsa(N), {"p": N, "q": 2 * N, "draw": N}, {"score": N}),
    "pmcsa-rb": (
        sa.pmcsa(N, rao_blackwell=True),
        {"p": N, "q": 2 * N, "draw": N},
        {"score": 2 * N},
    ),
    "jsa": (sa.jsa(N), {"p": N, "q": N + 1, "draw": N}, {"score": N}),
    "msc": (sa.msc(N), {"p": N - 1, "q": N, "draw": N - 1}, {"score": 1}),
    "msc-rb": (sa.msc_rb(N), {"p": N - 1, "q": N, "draw": N - 1}, {"score": N}),
    "elbo": (sa.elbo(N), {"draw": N}, {"score": N, "gradient of p": N}),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_step_costs_what_the_table_says(name):
    method, step, _ = TABLE[name]
    assert cost_of_step(method) == step


@pytest.mark.parametrize("name", TABLE)
def test_the_objective_costs_what_the_table_says(name):
    method, _, objective = TABLE[name]
    assert cost_of_objective(method) == objective


def cost_of_iteration(method: Any, update: Any) -> dict[str, int]:
    state = State(jnp.int32(0), jax.random.key(2), Q, start(method), update.init(Q), None)
    return count(lambda state: advance(TARGET, method, update, state), state)


@pytest.mark.parametrize("name", TABLE)
def test_an_iteration_costs_its_step_and_its_objective(name):
    method, step, objective = TABLE[name]
    assert cost_of_iteration(method, sa.gradient(optax.adam(1e-2))) == step | objective


# -- mutants, which the counters must tell from the real thing ------------------------------------


class ForgetsLogP(sa.IMH):
    """Evaluates p at the retained point again, though it is cached."""

    def propose(self, key, target, q, point):
        return super().propose(key, target, q, sa.Point(point.z, target.log_prob(point.z)))


class Plain(sa.Kernel):
    """An IMH that `Sequential` does not know for one: log q of the current state each time."""

    def step(self, key, target, q, point):
        return sa.IMH().step(key, target, q, point)


class LogsTheLoss(sa.Update):
    """An update that evaluates the objective once more, to report it."""

    def __init__(self, update):
        self.update = update

    def init(self, q):
        return self.update.init(q)

    def step(self, method, target, q, eta, memory):
        q, memory, _, norm = self.update.step(method, target, q, eta, memory)
        return q, memory, method.objective(target, q, eta), norm


def test_an_evaluation_too_many_is_counted():
    assert cost_of_step(sa.pmcsa(N, ForgetsLogP())) == {"p": 2 * N, "q": 2 * N, "draw": N}
    assert cost_of_step(sa.jsa(N, Plain())) == {"p": N, "q": 2 * N, "draw": N}
    twice = cost_of_iteration(sa.pmcsa(N), LogsTheLoss(sa.gradient(optax.sgd(1e-2))))
    assert twice == {"p": N, "q": 3 * N, "draw": N, "score": N}


# -- how often a plain fit compiles ----------------------------------------------------------------

COUNTS = """
import jax, jax.numpy as jnp
import scoreascent as sa
from jax import monitoring

names = []

def listen(event, seconds, fun_name=None, **more):
    if event.endswith("backend_compile_duration"):
        names.append(str(fun_name))

monitoring.register_event_duration_secs_listener(listen)
sa.fit(sa.Target(lambda z: -0.5 * jnp.sum(z**2) - 0.1 * jnp.sum(z**4), dim={dim}), progress=False)
# what only takes a number to the device is no program of ours
print(sum(not any(x in name for x in ("stage", "convert_element_type")) for name in names))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dim", [60])
def test_a_plain_fit_compiles_at_most_ten_programs(dim: int) -> None:
    """In a process of its own, where nothing was compiled before."""
    call = [sys.executable, "-c", COUNTS.replace("{dim}", str(dim))]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert 4 < int(done.stdout) <= 10
