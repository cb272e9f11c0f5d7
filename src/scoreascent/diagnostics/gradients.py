"""Variance and bias of a method's gradient along a run, as in the paper's Figure 1."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scoreascent._progress import Bar
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.families import Family, MeanField
from scoreascent.loop import (
    CHUNK_ROWS,
    Replicate,
    State,
    check_start,
    first_q,
    first_state,
    run_chunk,
)
from scoreascent.methods import Method
from scoreascent.target import Target
from scoreascent.update import Update, as_update, norm

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


class GradientTrace(NamedTuple):
    """What was measured; with replications, they stand in front of every array but `step`.

    >>> from scoreascent import pmcsa
    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> seen = gradient_variance(target, pmcsa(4), steps=20, every=10, progress=False)
    >>> seen.step.tolist(), bool((seen.variance > 0).all())
    ([10, 20], True)
    """

    step: Any  # iterations done before each measurement
    variance: Any  # trace of the covariance of g over the copies
    bias: Any  # ‖mean of g over the copies − exact gradient‖; NaN if no exact one was given
    q: Family  # the run's q at each measurement
    final: State  # the run's state at the end


def gradient_variance(
    target: Target,
    method: Method,
    *,
    q0: Family | Callable[[PRNGKeyArray], Family] | None = None,
    optimizer: optax.GradientTransformation | Update | None = None,
    steps: int = 10_000,
    every: int = 100,
    copies: int = 512,
    start: Family | None = None,
    exact: Callable[[Family], Any] | None = None,
    key: PRNGKeyArray | int = 0,
    replications: int | None = None,
    progress: bool = True,
) -> GradientTrace:
    """Run a fit, and every `every` iterations measure its gradient estimator.

    Auxiliary copies of the chain state start at draws of `start` (N(0, I) by default), take one
    transition of the method's kernel at each measurement with the run's q of that moment, and
    persist; the gradient is evaluated on each. They have random numbers of their own: the run is,
    bit for bit, the one that `fit` would do with the same key.

    Args:
        target: the posterior.
        method: any method, such as `pmcsa(10)`.
        q0: as in `fit`.
        optimizer: as in `fit`.
        steps: iterations of the run.
        every: iterations between two measurements; it must divide `steps`.
        copies: how many auxiliary copies.
        start: the distribution that the copies start from.
        exact: the exact gradient of the method's objective as a function of q, with the shape of
            q; `jax.grad` of a closed-form divergence. It makes `bias` known.
        key: an integer seed or a `jax.random.key`.
        replications: so many runs under one `vmap`.
        progress: show a progress bar.

    >>> from scoreascent import pmcsa
    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> seen = gradient_variance(target, pmcsa(4), steps=20, every=10, progress=False)
    >>> seen.step.tolist(), seen.variance.shape
    ([10, 20], (2,))
    """
    update = as_update(optimizer)
    steps, every = check_count("steps", steps, 1), check_count("every", every, 1)
    copies = check_count("copies", copies, 2)
    if steps % every:
        raise ValueError(f"every must divide steps, got {every} and {steps}")
    if replications is not None:
        check_count("replications", replications, 1)
    run_key = as_key(key)
    q = first_q(q0, target, run_key, replications)
    start = MeanField.standard(target.dim) if start is None else start
    keys = run_key if replications is None else jax.random.split(run_key, replications)
    replicate: Replicate = "nothing" if replications is None else "seeds"
    state = first_state(target, method, update, replicate, False, q, keys, jnp.int32(0))
    check_start(state, target, replicate)
    probe_keys = _fold(keys, 0xA0C)
    eta = _begin(target, method, copies, replications is not None, start, probe_keys)

    measured = []
    with Bar(progress, steps, 0) as bar:
        for done in range(every, steps + 1, every):
            for at in range(done - every, done, CHUNK_ROWS):
                n = min(CHUNK_ROWS, done - at)
                state, rows, _ = run_chunk(target, method, update, replicate, state, jnp.int32(n))
            probe = _fold(probe_keys, done)
            eta, row = _measure(target, method, exact, replicate, state.q, eta, probe)
            measured.append(jax.device_get((row, state.q)))
            loss, acceptance = (float(np.mean(x[n - 1])) for x in (rows.loss, rows.acceptance))
            bar.update(done, loss, acceptance)
    axis = 0 if replications is None else 1
    (variance, bias), qs = jax.tree.map(lambda *xs: np.stack(xs, axis), *measured)
    return GradientTrace(np.arange(every, steps + 1, every), variance, bias, qs, state)


def _fold(keys: PRNGKeyArray, number: int) -> PRNGKeyArray:
    fold = functools.partial(jax.random.fold_in, data=number)
    return fold(keys) if keys.shape == () else jax.vmap(fold)(keys)


@functools.partial(jax.jit, static_argnames=("method", "copies", "replicated"))
def _begin(
    target: Target, method: Method, copies: int, replicated: bool, start: Family, keys: Any
) -> Any:
    """Return the copies' first states."""

    def one(key: PRNGKeyArray) -> Any:
        return jax.vmap(lambda k: method.init(k, target, start))(jax.random.split(key, copies))

    return jax.vmap(one)(keys) if replicated else one(keys)


@functools.partial(jax.jit, static_argnames=("method", "exact", "replicate"))
def _measure(
    target: Target, method: Method, exact: Any, replicate: Replicate, q: Family, eta: Any, keys: Any
) -> tuple[Any, tuple[Any, Any]]:
    """Move every copy once with today's q; return the spread of the gradient over them."""

    def one(q: Family, eta: Any, key: PRNGKeyArray) -> tuple[Any, tuple[Any, Any]]:
        copies = jax.tree.leaves(eta)[0].shape[0]
        keys = jax.random.split(key, copies)
        eta, _ = jax.vmap(lambda k, e: method.step(k, target, q, e))(keys, eta)
        g = jax.vmap(lambda e: jax.grad(lambda q: method.objective(target, q, e))(q))(eta)
        variance = sum(jnp.sum(jnp.var(x, axis=0, ddof=1)) for x in jax.tree.leaves(g))
        if exact is None:
            return eta, (variance, jnp.nan)
        off = jax.tree.map(lambda x, y: jnp.mean(x, 0) - y, g, exact(q))
        return eta, (variance, norm(off))

    return one(q, eta, keys) if replicate == "nothing" else jax.vmap(one)(q, eta, keys)
