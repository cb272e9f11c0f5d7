"""Fits by a flow: chains that move in its base space, and a flow that learns from where they are.

q stands still while chains move, by independent proposals of it and by HMC in the space of its base
noise. Each time the number of steps has doubled, the flow is trained anew on the states of the
second half: maximum likelihood at the chains' states, which is gradient descent on the inclusive KL
with all of the states at once. A fifth of the chains is held out of it, and tells which of all
iterates is kept; the Gaussian of the same states, and the flow of before, are among these. The run
ends as that of a `Ladder` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import ndtri

from scoreascent._arrays import as_default
from scoreascent._extras import later
from scoreascent._random import fold_in
from scoreascent._structs import unchecked
from scoreascent.diagnostics.draws import own_errors, some_states
from scoreascent.families import Family, FullRank
from scoreascent.fitting.ladder import Balanced, Climb, Ladder, Rungs
from scoreascent.loop import State
from scoreascent.methods import Method
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

BATCH, TRAIN, HELD = 256, 16_384, 2048  # states in a step, in all, and of chains that are held out
STEPS, FEW_STEPS = 1000, 300  # of training, and while the chains find their way
FEW_UNTIL = 40  # steps of the chains
RATE, DECAY, CLIP = 1e-2, 1e-3, 5.0
STRAIGHT_FIRST = 0.3  # of the steps, in which straight lines alone are learnt
LOOK_EVERY = 25  # steps of training
HELD_EVERY = 5  # chains
MIN_CORRELATION = 0.1  # a smaller one of ranks is taken for noise
MIN_STATES = 64  # different ones, that a flow is trained on


@dataclass(frozen=True, repr=False)
class Rounds(Ladder):
    """Stop as a `Ladder` does; q is a flow that is trained on late states at each rung.

    >>> Rounds(tolerance=0.05)
    Rounds(tolerance=0.05)
    """

    first: int = 10
    most: int = 2560

    def keeps_slopes(self, method: Method) -> bool:
        """Tell whether gradients are kept beside the states: a flow learns from these alone."""
        return False

    def watch(self, method: Method, rungs: Rungs, target: Target) -> Climb:
        """Return the rule at work."""
        return Training(self, method, rungs, target)


class Training(Climb):
    """The rule at work: keeps late states, trains q on them, and says when they suffice."""

    def average(self, state: State) -> Family:
        """Return the flow that the late states ask for."""
        if not len(self.windows.points):
            return state.q
        return trained(state.q, self.windows.points, fold_in(state.key, 0))  # type: ignore[no-any-return]

    def _balanced(self, q: Family) -> Balanced:
        """Return the states as they are; scalars whose tails are too heavy do not count."""
        points = self.windows.points
        if self._last is None or self._last[0] is not points:
            some, _ = some_states(self._target, points)
            plain = Target(_nothing, dim=points.shape[-1])
            error = np.concatenate(
                [own_errors(t, some, self.rule.tolerance)[1] for t in (plain, self._target)]
            )
            self._last = (points, q, Balanced(points, None, float(np.max(error))))
        return self._last[2]

    def _on_rung(self, state: State, steps: int) -> State:
        """Return the state with the flow trained anew, and a step size that learns it."""
        key = fold_in(state.key, steps)
        few = FEW_STEPS if steps <= FEW_UNTIL else STEPS
        q = trained(state.q, self.windows.points, key, few)
        taken = 0 if steps <= FEW_UNTIL else 5
        return state._replace(q=q, eta=self._method.afresh(state.eta, taken))


def _nothing(z: Any) -> Any:
    return jnp.zeros((), z.dtype)


def trained(
    q: Any, states: Float[np.ndarray, "times chains d"], key: PRNGKeyArray, steps: int = STEPS
) -> Any:
    """Return the flow, of q's net, that is likeliest at states of chains that were held out.

    Those are every fifth chain's. The candidates are the iterates of a training from where the
    flow is a Gaussian, that Gaussian, the one with the states' moments, and q as it is.
    """
    states = np.asarray(states, np.float64)
    held = np.arange(states.shape[1]) % HELD_EVERY == 0
    parts = [states[:, where].reshape(-1, states.shape[-1]) for where in (~held, held)]
    if min(len(np.unique(z[:, 0])) for z in parts) < MIN_STATES:
        return q
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    train, test = (
        as_default(z[rng.choice(len(z), n, replace=len(z) < n)])
        for z, n in zip(parts, (TRAIN, HELD))
    )
    begin = q.begun_at(standard(parts[0]))
    found, height = _train(begin, train, test, key, np.int32(steps))
    others = [q, q.begun_at(_moments(parts[0]))]
    heights = [float(_height(x, x.theta, test)) for x in others] + [float(height)]
    best = int(np.nanargmax(np.where(np.isfinite(heights), heights, -np.inf)))
    return [*others, found][best]


@jax.jit
def _height(q: Any, theta: Any, z: Any) -> Float[Array, ""]:
    """Return the mean log density of points."""
    return jnp.mean(jax.vmap(unchecked(q, theta=theta).log_prob)(z))


@jax.jit
def _train(q: Any, z: Any, held: Any, key: PRNGKeyArray, steps: Any) -> tuple[Any, Any]:
    """Return q after so many steps of ADAM, at the iterate that is likeliest at what was held out.

    At first only the straight lines are learnt, on which scales go on beyond what points show, and
    what bends them is drawn towards nothing later: what both can say, the straight lines should.
    """
    straight = jnp.asarray(q.straight, q.theta.dtype)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam())
    loss = lambda theta, z: -_height(q, theta, z)  # noqa: E731

    def step(i: Any, carry: Any) -> Any:
        theta, memory, best, least = carry
        part = i / steps
        moves = jnp.where(part < STRAIGHT_FIRST, straight, 1.0)
        at = jax.random.randint(jax.random.fold_in(key, i), (BATCH,), 0, len(z))
        g = jax.grad(loss)(theta, z[at])
        g = jnp.where(jnp.all(jnp.isfinite(g)), g, 0.0)
        change, memory = optimizer.update(moves * g, memory)
        rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * part)).astype(theta.dtype)
        bends = jnp.where(part < STRAIGHT_FIRST, 0.0, 1 - straight)
        theta = theta - rate * moves * change - DECAY * bends * theta

        def look(_: Any) -> Any:
            new = loss(theta, held)
            better = new < least
            return jnp.where(better, theta, best), jnp.where(better, new, least)

        last = i % LOOK_EVERY == LOOK_EVERY - 1
        best, least = jax.lax.cond(last, look, lambda _: (best, least), None)
        return theta, memory, best, least

    first = (q.theta, optimizer.init(q.theta), q.theta, loss(q.theta, held))
    _, _, best, least = jax.lax.fori_loop(0, steps, step, first)
    return unchecked(q, theta=best), -least


def standard(z: Float[np.ndarray, "n d"]) -> FullRank:
    """Return the Gaussian in whose coordinates points are learnt best: by quantiles and ranks.

    A few points that are far out would make a covariance what it is; and a correlation that is
    noise, small as it is, is large where a coordinate is narrow.
    """
    low, middle, high = np.quantile(z, [0.1587, 0.5, 0.8413], axis=0)
    unit = 0.5 * (high - low)
    sd = z.std(0)
    unit = np.where(unit > 1e-6 * sd, unit, np.where(sd > 0, sd, 1.0))
    ranks = np.apply_along_axis(later("scipy.stats").rankdata, 0, z)
    scores = ndtri((ranks - 0.5) / len(z))
    with np.errstate(all="ignore"):
        r = np.nan_to_num(np.corrcoef(scores.T)).reshape(z.shape[1], -1)
    r = np.where(np.abs(r) < MIN_CORRELATION, 0.0, r)
    np.fill_diagonal(r, 1.0)
    values, vectors = np.linalg.eigh(r)
    r = (vectors * np.maximum(values, 1e-8)) @ vectors.T
    return FullRank.from_factor(
        as_default(middle), as_default(unit[:, None] * np.linalg.cholesky(r))
    )


def _moments(z: Numbers) -> FullRank:
    """Return the Gaussian with the moments of points."""
    away = z - z.mean(0)
    cov = away.T @ away / len(z) + np.diag(1e-12 * z.var(0) + 1e-300)
    try:
        return FullRank.from_factor(as_default(z.mean(0)), as_default(np.linalg.cholesky(cov)))
    except np.linalg.LinAlgError:
        return FullRank.from_factor(as_default(z.mean(0)), as_default(np.diag(z.std(0) + 1e-30)))
