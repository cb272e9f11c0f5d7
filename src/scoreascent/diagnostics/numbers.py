"""How well the numbers that a result shows are known, in the model's own space as in ℝᵈ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from scoreascent.diagnostics.draws import (
    MAX_NUMBERS,
    MAX_SHOWN_TAIL,
    MIN_SUMMARISED,
    STANDARD_ERRORS,
    best_source,
    count_scalars,
    late_states,
    moment_errors,
    named,
    scalar_names,
    summarise,
    tail_shapes,
)
from scoreascent.diagnostics.weights import Weighed
from scoreascent.run import Run, rests_on_chains

MAX_K = 0.7  # k̂ up to which weighted draws of q tell what the posterior's moments are
# A rule that ends a run when errors are small ends it when the chains have just not been far out,
# by chance, so more than `STANDARD_ERRORS` are needed where q is not near enough to vouch for the
# chains, unless that rule asks only a few times.
STANDARD_ERRORS_ALONE = 5.0
MIN_WORTH = 0.5  # of a draw of q in draws of π, if q is to vouch
NOISES = 2.0  # standard errors of a difference that are taken for noise


class Gaps(NamedTuple):
    """How far draws of q are from better ones in each scalar, and how well that is known.

    Means are in posterior sds, and sds are logarithms.
    """

    mean: Any
    sd: Any
    mean_noise: Any
    sd_noise: Any


def look_at_numbers(run: Run, weighed: Weighed, states: Any) -> dict[str, Any]:
    """Measure how far the means and sds that the result shows may be off.

    States of the chains in late steps have Monte Carlo errors: `unsure`, of the worst number. What
    draws of q show is held against the same draws by their weights, or if these are of no use
    against `states` (chains, times, d) of the chains: `gap`, of the worst number.
    """
    source = best_source(run)
    rows = summarise(run, source)
    if source == "chains":
        near = weighed.k_hat <= MAX_K and weighed.worth >= MIN_WORTH
        times = STANDARD_ERRORS if near or rests_on_chains(run) else STANDARD_ERRORS_ALONE
        told = {"gap": 0.0, **worst_error(rows, times), "numbers": tuple(rows)}
        return told | {"q_gap": _gap_of_q(run, weighed) if near else np.nan}
    most = _most(run)
    names, x = _columns(run, weighed.z[:most])
    if weighed.k_hat <= MAX_K:
        gaps = gaps_by_weights(x, weighed.weights[:most])
    elif states is not None and states.shape[-1] == run.target.dim and len(states) > 1:
        thin = -(-states.shape[0] * states.shape[1] // most)
        gaps = gaps_by_chains(x, _columns_of_chains(run, states[:, ::thin]))
    else:
        return {"gap": 0.0, "unsure": 0.0, "worst": "", "numbers": tuple(rows)}
    off = _beyond_noise(gaps, x)
    worst = int(np.argmax(off))
    for row, mean, sd, *noise in zip(rows, *gaps):
        with np.errstate(invalid="ignore"):  # of a scalar that is a constant
            row["mean_error"] = float(np.hypot(mean, noise[0]) * row["sd"])
            row["sd_error"] = float(np.hypot(sd, noise[1]) * row["sd"])
    return {
        "gap": max(0.0, float(off[worst])),
        "unsure": 0.0,
        "worst": names[worst],
        "numbers": tuple(rows),
    }


def _most(run: Run) -> int:
    """Return at how many points all scalars may be computed."""
    return max(MIN_SUMMARISED, MAX_NUMBERS // max(1, count_scalars(run.target)))


def _beyond_noise(gaps: Gaps, x: Any) -> Any:
    """Return how far each of the columns x is off, 0 where a tail is too heavy to tell."""
    with np.errstate(all="ignore"):
        off = np.fmax(gaps.mean - NOISES * gaps.mean_noise, gaps.sd - NOISES * gaps.sd_noise)
    return np.nan_to_num(np.where(tail_shapes(x) > MAX_SHOWN_TAIL, 0.0, off), posinf=0.0)


def _gap_of_q(run: Run, weighed: Weighed) -> float:
    """Return how far draws of a q of many shapes are from the chains' states, beyond noise.

    NaN of a Gaussian or a Student-t, whose draws nobody takes where there are states.
    """
    if run.q.is_elliptical:
        return np.nan
    most, states = _most(run), late_states(run)
    assert states is not None
    _, x = _columns(run, weighed.z[:most])
    thin = -(-states.shape[0] * states.shape[1] // most)
    chains = _columns_of_chains(run, np.swapaxes(states, 0, 1)[:, ::thin])
    return max(0.0, float(np.max(_beyond_noise(gaps_by_chains(x, chains), x))))


def worst_error(rows: list[dict[str, Any]], times: float) -> dict[str, Any]:
    """Return so many standard errors of the number known worst, in its sds, and its name."""
    found = {"unsure": 0.0, "worst": ""}
    for row in rows:
        with np.errstate(all="ignore"):
            error = times * np.fmax(row["mean_error"], row["sd_error"]) / row["sd"]
        if np.isfinite(error) and error > found["unsure"]:
            found = {"unsure": float(error), "worst": row["name"]}
    return found


def _columns(run: Run, z: Any) -> tuple[list[str], Any]:
    """Return all scalars at the points z (n, d) as columns: the model's own, then z itself."""
    sites = {name: np.asarray(x, np.float64) for name, x in named(run, z).items()}
    if list(sites) != ["z"]:
        sites["unconstrained"] = np.asarray(z, np.float64)
    names = [name for site, x in sites.items() for name in scalar_names(site, x.shape[1:])]
    return names, np.concatenate([x.reshape(len(z), -1) for x in sites.values()], axis=1)


def _columns_of_chains(run: Run, states: Any) -> Any:
    """Return the same of states (chains, times, d), as an array (times, chains, scalars)."""
    chains, times, dim = states.shape
    x = _columns(run, states.reshape(-1, dim))[1].reshape(chains, times, -1)
    return np.swapaxes(x, 0, 1)


def gaps_by_weights(x: Any, weights: Any) -> Gaps:
    """Hold columns x of draws of q against the same draws by weights.

    >>> x = np.random.default_rng(0).normal(size=(4000, 1))  # of N(0, 1), and π is N(0.5, 1)
    >>> gaps = gaps_by_weights(x, np.exp(0.5 * x[:, 0]))
    >>> bool(abs(gaps.mean[0] - 0.5) < 4 * gaps.mean_noise[0] < 0.1)
    True
    """
    n = len(x)
    w = np.asarray(weights, np.float64)
    w = n * w / np.sum(w)
    with np.errstate(all="ignore"):
        mean, own_mean = np.mean(w[:, None] * x, 0), np.mean(x, 0)
        square, own_square = (x - mean) ** 2, (x - own_mean) ** 2
        sd, own_sd = np.sqrt(np.mean(w[:, None] * square, 0)), np.sqrt(np.mean(own_square, 0))
        gaps = np.abs(mean - own_mean) / sd, np.abs(np.log(sd / own_sd))
        # both moments are of the same draws, so most of their noise cancels
        shift = (w[:, None] * (x - mean) - (x - own_mean)) / sd
        ratio = (w[:, None] * (square / sd**2 - 1) - (own_square / own_sd**2 - 1)) / 2
        return Gaps(*gaps, np.std(shift, 0) / np.sqrt(n), np.std(ratio, 0) / np.sqrt(n))


def gaps_by_chains(x: Any, chains: Any) -> Gaps:
    """Hold columns x of draws of q against states of chains, (times, chains, columns)."""
    with np.errstate(all="ignore"):
        mean, sd = chains.mean((0, 1)), chains.std((0, 1))
        mean_error, sd_error = moment_errors(chains)
        gaps = np.abs(np.mean(x, 0) - mean) / sd, np.abs(np.log(np.std(x, 0) / sd))
        own = 1 / np.sqrt(len(x))
        return Gaps(*gaps, np.hypot(mean_error / sd, own), np.hypot(sd_error / sd, own))
