"""What can be seen of a fit: importance weights, chains at the fitted q, the iterates to come."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from scoreascent._batches import log_probs
from scoreascent._random import as_key
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.diagnostics.psis import effective_sample_size, psis, tail_shape
from scoreascent.families import Family
from scoreascent.kernels.cis import pick
from scoreascent.kernels.combinators import Parallel, Sequential
from scoreascent.kernels.compose import Adapted, Cycle
from scoreascent.kernels.hmc import HMC, MALA
from scoreascent.kernels.imh import IMH
from scoreascent.loop import advance
from scoreascent.methods import ScoreAscent
from scoreascent.stopping import coordinates
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

    from scoreascent.result import Result

CHAINS_MIN = 50  # of chains that move by themselves
STAY = 20  # steps in one place that are long
Z_MAX = 4.0
ROWS = 400  # looks at the chains and at λ
STATES = 40_000  # about as many states of the chains are enough, so many chains take fewer steps


def draw(key: PRNGKeyArray, target: Target, q: Family, n: int) -> tuple[Array, Any, Any]:
    """N draws of q, and their log densities under π and under q."""
    z = _sample(key, q, n)
    return z, log_probs(target, z), log_probs(q, z)


@functools.partial(jax.jit, static_argnames="n")
def _sample(key: PRNGKeyArray, q: Family, n: int) -> Array:
    return q.sample(key, (n,))


def log_weights(log_p: Any, log_q: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Log π/q in float64, and where π was NaN or +∞, which counts as no mass."""
    log_p, log_q = np.asarray(log_p, np.float64), np.asarray(log_q, np.float64)
    invalid = np.isnan(log_p) | (log_p == np.inf)
    return np.where(invalid, -np.inf, log_p) - log_q, invalid


def weights(result: Result, key: PRNGKeyArray, n: int) -> dict[str, float]:
    """What draws of q say about π/q."""
    _, log_p, log_q = draw(key, result.target, result.q, n)
    log_w, invalid = log_weights(log_p, log_q)
    numbers = {"invalid": float(np.mean(invalid))}
    if not np.any(log_w > -np.inf):
        nothing = dict.fromkeys(("chi2", "log_w_star"), np.inf)
        return {**numbers, "k_hat": np.inf, "ess": 0.0, "log_evidence": -np.inf, **nothing}
    log_z = float(logsumexp(log_w) - np.log(n))
    smooth = psis(log_w)
    ess = effective_sample_size(smooth.log_weights)
    return {
        **numbers,
        "k_hat": smooth.k_hat,
        "ess": ess,
        "chi2": n / ess - 1,
        "log_w_star": float(np.max(log_w)) - log_z,
        "log_evidence": log_z,
    }


@functools.partial(jax.jit, static_argnames=("method", "rows"))
def _move(
    key: PRNGKeyArray, target: Target, method: ScoreAscent, q: Family, eta: Any, at: Any, rows: int
) -> tuple[Array, Array]:
    """States of the chains, q standing still, and the acceptance of every step."""
    moves = method.moves

    def step(eta: Any, key: PRNGKeyArray) -> Any:
        key_step, key_pick = jax.random.split(key)
        eta, info = method.step(key_step, target, q, eta)
        if isinstance(moves, Parallel):
            z = eta.z[-moves.n :]  # with `rao_blackwell` the proposals stand before the states
        elif isinstance(moves, Sequential):
            z = eta.z[-1:]
        else:
            z = pick(key_pick, eta).z[None]
        return eta, (z[:, at], info.acceptance)

    return jax.lax.scan(step, eta, jax.random.split(key, rows))[1]  # type: ignore[no-any-return]


def chain_states(
    result: Result, key: PRNGKeyArray, at: np.ndarray[Any, Any] | None = None, rows: int = ROWS
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """States (chains, rows, coordinates) of the chains at the fitted q, and their acceptance.

    None for the ELBO, which has no chains.
    """
    if not isinstance(result.method, ScoreAscent):
        return None
    at = np.arange(result.target.dim) if at is None else at
    states, acceptance = _move(
        key, result.target, result.method, result.q, result.state.eta, at, rows
    )
    return np.swapaxes(np.asarray(states), 0, 1), np.asarray(acceptance)


def _late_states(
    result: Result, at: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """The same of a fit that a rule ended, from its late windows, if q cannot follow its chains.

    It cannot if there are many chains for its degrees of freedom, or if many of them move by
    themselves, wherever q is; then nothing needs to run again.
    """
    moves = getattr(result.method, "moves", None)
    n = moves.n if isinstance(moves, Parallel) else 0
    enough = CHAINS_MIN if moves_by_itself(result.method) else 2 * result.target.dim
    if result.status != "converged" or result.states is None or n < enough:
        return None
    assert result.states.shape[-1] == len(at)
    late = result.trace.acceptance[result.trace.loss.size // 2 :]
    return np.swapaxes(result.states[:, -n:], 0, 1), np.asarray(late)


def chains(result: Result, key: PRNGKeyArray) -> dict[str, float]:
    """What the chains do at the fitted q, and whether they have its moments."""
    names = ("acceptance", "stuck", "stay", "rhat", "chain_ess", "shift", "ratio", "tail")
    at = coordinates(result.target.dim)
    chains = getattr(getattr(result.method, "moves", None), "n", 1)
    seen = _late_states(result, at)
    is_late = seen is not None
    if seen is None:
        rows = int(np.clip(STATES // chains, ROWS // 4, ROWS))
        seen = chain_states(result, key, at, rows)
    if seen is None:
        return dict.fromkeys(names, np.nan)
    z, acceptance = seen[0].astype(np.float64), seen[1]
    rows = z.shape[1]
    moves = np.any(z[:, 1:] != z[:, :-1], axis=2)
    moved = np.any(moves, axis=1)
    if not is_late:
        z = z[:, rows // 4 :]  # the chains come from other q's than this one
    if len(z) == 1:  # one long chain is compared with itself
        z = _cut(z[0], 4)
    with np.errstate(all="ignore"):
        worst, ess = rhat(z), ess_bulk(z)
    mean, sd = np.asarray(result.q.mean)[at], np.asarray(result.q.sd)[at]
    total = z.shape[0] * z.shape[1]
    independent = np.clip(np.nan_to_num(ess, nan=1.0), 1.0, total)
    shift = np.abs(z.mean((0, 1)) - mean) / sd
    ratio = np.abs(np.log(np.maximum(z.std((0, 1)), 1e-300) / sd))
    noise = Z_MAX / np.sqrt(independent)  # of a mean of so many draws, in sds; for log sds, / √2
    return {
        "acceptance": float(np.mean(np.asarray(acceptance, np.float64))),
        "stuck": float(np.mean(~moved)),
        "stay": float(np.mean([_stays(~m, 1 if is_late else STAY) for m in moves])),
        "rhat": _largest(worst),
        "chain_ess": float(np.min(independent)),
        "shift": _largest(np.maximum(shift - noise, 0)),
        "ratio": _largest(np.maximum(ratio - noise, 0)),
        "tail": max(tail_shape(x) for x in z.reshape(total, -1).T),
    }


@functools.partial(jax.jit, static_argnames=("method", "update", "rows"))
def _go_on(
    target: Target, method: Any, update: Any, state: Any, at: Any, rows: int, every: Any
) -> tuple[Array, Array]:
    """Means and log sds of q at the iterations that would follow."""

    def row(state: Any, _: None) -> Any:
        step = lambda _, s: advance(target, method, update, s)[0]  # noqa: E731
        state = jax.lax.fori_loop(0, every, step, state)
        return state, (state.q.mean[at], jnp.log(state.q.sd[at]))

    return jax.lax.scan(row, state, None, rows)[1]  # type: ignore[no-any-return]


def iterates(result: Result, steps: int) -> dict[str, float]:
    """Whether λ would still move somewhere, if the run went on."""
    if steps == 0 and result.look is not None:
        return {"rhat_lambda": result.look.rhat, "drift": result.look.error, "trend": 0.0}
    at = coordinates(result.target.dim)
    rows = min(ROWS, steps)
    mean, log_sd = (
        np.asarray(x, np.float64)
        for x in _go_on(
            result.target, result.method, result.update, result.state, at, rows, steps // rows
        )
    )
    mean = mean / np.exp(log_sd.mean(0))  # in posterior sds
    both = np.concatenate([mean, log_sd], 1)
    with np.errstate(all="ignore"):
        worst = rhat(_cut(both, 2))
    halves = both[: rows // 2].mean(0), both[rows - rows // 2 :].mean(0)
    with np.errstate(all="ignore"):
        steady = np.abs(np.corrcoef(both.T, np.arange(rows))[-1, :-1])
    return {
        "rhat_lambda": _largest(worst),
        "drift": _largest(np.abs(halves[1] - halves[0])),
        "trend": float(np.nanmedian(steady)) if np.any(steady >= 0) else 0.0,
    }


def _stays(flags: np.ndarray[Any, Any], length: int) -> float:
    """The share of the places in runs of True of at least this length.

    >>> _stays(np.array([True, False, True, True]), 2)
    0.5
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    runs = ends[1::2] - ends[::2]
    return float(np.sum(runs[runs >= length]) / len(flags))


def _cut(x: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """One series as `parts` chains."""
    length = len(x) // parts
    return x[: parts * length].reshape(parts, length, *x.shape[1:])


def _largest(x: Any) -> float:
    """The largest of those that are numbers; ∞ if none is."""
    x = np.asarray(x)[~np.isnan(x)]
    return float(np.max(x)) if x.size else np.inf


def check_single(result: Result) -> None:
    """Raise for a result that is many."""
    if result.replications is not None:
        raise ValueError("this result holds replications; take one of them, such as result[0]")


def _parts(kernel: Any, tuning: Any) -> list[tuple[Any, Any]]:
    """The kernels that a kernel is made of, each with what it has learnt."""
    if isinstance(kernel, Adapted):
        return _parts(kernel.kernel, None if tuning is None else tuning.tuning)
    if isinstance(kernel, Cycle):
        own = (None,) * len(kernel.kernels) if tuning is None else tuning
        return [part for k, t in zip(kernel.kernels, own) for part in _parts(k, t)]
    return [(kernel, tuning)]


def moves_by_itself(method: Any) -> bool:
    """Whether the chains have moves other than independent draws of q."""
    kernel = getattr(getattr(method, "moves", None), "kernel", IMH())
    return any(not isinstance(part, IMH) for part, _ in _parts(kernel, None))


def reach(result: Result) -> float:
    """How long gradient moves are, as a share of the length that was asked for; 1 without any."""
    kernel = getattr(getattr(result.method, "moves", None), "kernel", None)
    shares = [1.0]
    for part, tuning in _parts(kernel, getattr(result.state.eta, "tuning", None)):
        if isinstance(part, HMC) and not isinstance(part, MALA) and tuning is not None:
            shares.append(float(np.exp(tuning.log)) * part.max_steps / part.length)
    return min(shares)


def sd_growth(result: Result) -> float:
    """By how much the widest of q's standard deviations has grown since the start, if known."""
    if result.start is None:
        return 1.0
    first = result.start.q if result.start.before is None else result.start.before
    with np.errstate(all="ignore"):
        ratio = np.asarray(result.q.sd, np.float64) / np.asarray(first.sd, np.float64)
    return _largest(ratio)


def resample(result: Result, key: PRNGKeyArray | int, n: int, draws: int) -> Array:
    """N of `draws` draws of q, drawn by their smoothed weights; see `Result.resample`."""
    check_single(result)
    key_draw, key_pick = jax.random.split(as_key(key))
    z, log_p, log_q = draw(key_draw, result.target, result.q, draws)
    log_w, _ = log_weights(log_p, log_q)
    if not np.any(log_w > -np.inf):
        raise ValueError("no draw of q lies where the posterior has mass: there is nothing to draw")
    total = np.cumsum(np.exp(psis(log_w).log_weights))
    u = np.asarray(jax.random.uniform(key_pick, (n,)), np.float64)
    chosen = np.searchsorted(total, u * total[-1], side="right")
    return z[np.minimum(chosen, draws - 1)]
