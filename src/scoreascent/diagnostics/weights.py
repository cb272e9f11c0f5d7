"""Importance weights π/q of draws of q: what they say of a fit, and draws of π by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from scoreascent._arrays import impossible
from scoreascent._batches import log_probs
from scoreascent._random import as_key
from scoreascent.diagnostics.psis import effective_sample_size, psis
from scoreascent.families import Family
from scoreascent.run import Run, check_single
from scoreascent.target import MANY_DATA, Target

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

DRAWN = 1024  # draws at a time
DRAWS = 4000  # that are weighed,
FEW_DRAWS = 1024  # but first so few where data are many, and no more of them
CLOSE_K, CLOSE_WORTH = 0.5, 0.9  # if k̂ is at most this, and a draw of q worth so many of π's


def draw(key: PRNGKeyArray, target: Target, q: Family, n: int) -> tuple[Any, Any, Any]:
    """Return n draws of q, and their log densities under π and under q."""
    z = sample(key, q, n)
    return z, log_probs(target, z), log_probs(q, z)


@jax.jit
def _sample(key: PRNGKeyArray, q: Family, part: Any) -> Array:
    return q.sample(jax.random.fold_in(key, part), (DRAWN,))


def sample(key: PRNGKeyArray, q: Family, n: int) -> np.ndarray[Any, Any]:
    """Return n draws of q, by one compiled program whatever their number."""
    parts = [np.asarray(_sample(key, q, i)) for i in range(-(-n // DRAWN))]
    return np.concatenate(parts)[:n]


def log_weights(log_p: Any, log_q: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return log π/q in float64, and where π was NaN or +∞, which counts as no mass."""
    log_p, log_q = np.asarray(log_p, np.float64), np.asarray(log_q, np.float64)
    invalid = impossible(log_p)
    return np.where(invalid, -np.inf, log_p) - log_q, invalid


class Weighed(NamedTuple):
    """Draws of q, their smoothed weights, the shape of these' tail, what a draw is worth of π's."""

    z: Any
    weights: Any
    k_hat: float
    worth: float


def weigh(run: Run, key: PRNGKeyArray, n: int | None) -> tuple[dict[str, Any], Weighed]:
    """Measure what n draws of q say about π/q; the names are those of `Measured`.

    Unless their number is given, fewer do where densities take long and draws are as good as π's.
    """
    if n is None and run.target.data_size >= MANY_DATA:
        few = _weigh(run, key, FEW_DRAWS)
        if few[1].k_hat <= CLOSE_K and few[1].worth >= CLOSE_WORTH:
            return few
    return _weigh(run, key, DRAWS if n is None else n)


def _weigh(run: Run, key: PRNGKeyArray, n: int) -> tuple[dict[str, Any], Weighed]:
    z, log_p, log_q = draw(key, run.target, run.q, n)
    return weights_of(z, log_p, log_q)


def weights_of(z: Any, log_p: Any, log_q: Any) -> tuple[dict[str, Any], Weighed]:
    """Measure the same by draws z of q whose log densities are known."""
    n = len(log_q)
    log_w, invalid = log_weights(log_p, log_q)
    numbers: dict[str, Any] = {"draws": n, "invalid": float(np.mean(invalid))}
    if not np.any(log_w > -np.inf):
        nothing = dict.fromkeys(("chi2", "log_w_star"), np.inf)
        found = {**numbers, "k_hat": np.inf, "ess": 0.0, "log_evidence": -np.inf, **nothing}
        return found, Weighed(z, np.zeros(n), np.inf, 0.0)
    log_z = float(logsumexp(log_w) - np.log(n))
    smooth = psis(log_w)
    ess = effective_sample_size(smooth.log_weights)
    found = {
        **numbers,
        "k_hat": smooth.k_hat,
        "ess": ess,
        "chi2": n / ess - 1,
        "log_w_star": float(np.max(log_w)) - log_z,
        "log_evidence": log_z,
    }
    return found, Weighed(z, np.exp(smooth.log_weights), smooth.k_hat, ess / n)


def resample(run: Run, key: PRNGKeyArray | int, n: int, draws: int) -> Array:
    """Return n of `draws` draws of q, drawn by their smoothed weights; see `Result.resample`."""
    check_single(run)
    key_draw, key_pick = jax.random.split(as_key(key))
    z, log_p, log_q = draw(key_draw, run.target, run.q, draws)
    log_w, _ = log_weights(log_p, log_q)
    if not np.any(log_w > -np.inf):
        raise ValueError("no draw of q lies where the posterior has mass: there is nothing to draw")
    total = np.cumsum(np.exp(psis(log_w).log_weights))
    u = np.asarray(jax.random.uniform(key_pick, (n,)), np.float64)
    chosen = np.searchsorted(total, u * total[-1], side="right")
    return z[np.minimum(chosen, draws - 1)]
