"""Mass that chains have not seen: rays from the centre of q out to a hundred times its size.

Chains whose moves are draws of q go no further than q does, and a q that was fitted to them knows
no more than they do: both can sit in the narrow part of a wide posterior, or in the middle of heavy
tails, and agree. A ray does not care. Along z = m + t δ, where the direction δ has length one in
units of q, the mass and the second moment of π between two distances are integrals of π(z) t^(d−1)
and π(z) t^(d+1), up to one constant for all rays. Their shares beyond the furthest state that any
chain has been at say what was missed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.special import logsumexp

from scoreascent._arrays import impossible
from scoreascent._batches import log_probs
from scoreascent._random import fold_in
from scoreascent.diagnostics.weights import sample
from scoreascent.families import MeanField
from scoreascent.kernels.straight import Straightened
from scoreascent.run import Run

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

RAYS = 64
NEAR_POINTS, FAR_POINTS = 24, 24  # of each ray: within the size of q, and further out
WIDE_DRAWS, MORE_WIDE_DRAWS, FREEDOM = 4096, 16_384, 3.0  # of a Student-t about q
MIN_EFFECTIVE = 400  # of them, by their weights
SUSPICIOUS = 0.05  # of a variance
NOISES = 2.0  # standard errors of a variance that are taken for noise
FURTHEST = 100.0  # times the size of q
BLOCK = 4096  # points at a time


def look_along_rays(
    run: Run, key: PRNGKeyArray, least_log_q: float, states: Any = None
) -> dict[str, float]:
    """Measure which shares lie beyond the furthest state of the chains, where log q is least.

    Of a q of several parts, rays leave the centre of its envelope, and `states` (chains, rows, d)
    tell how far the chains have been.

    `unseen` is the share of the second moment, which is what standard deviations are made of;
    `far_mass` the share of the mass in the outer half, on a log scale, of what lies beyond q.
    """
    if run.q.is_bent and states is not None:
        run, states, _ = _straightened(run, states)
        least_log_q = float(np.min(log_probs(run.q, states.reshape(-1, run.q.dim))))
    dim = run.q.dim
    q = run.q.envelope()
    mean = np.asarray(q.mean, np.float64)
    draws = np.asarray(sample(key, q, RAYS), np.float64)
    centre = float(log_probs(q, np.asarray(q.mean)[None])[0])
    log_q = log_probs(q, draws.astype(q.mean.dtype))
    if q is not run.q:
        least_log_q = float(np.min(log_probs(q, states.reshape(-1, dim))))
    direction = (draws - mean) / q.radius(centre - log_q)[:, None]
    t = lengths(dim)
    z = mean + t[:, None] * direction[:, None]
    log_p = log_probs(run.target, z.reshape(-1, dim).astype(q.mean.dtype))
    seen = float(q.radius(centre - least_log_q))
    return shares(log_p.reshape(RAYS, len(t)), dim, seen)


def lengths(dim: int) -> Numbers:
    """Return at which distances a ray is looked at, in units of q."""
    size = np.sqrt(dim) + 5.0
    near = np.linspace(0, size, NEAR_POINTS + 1)[1:]
    far = np.geomspace(size, FURTHEST * size, FAR_POINTS + 1)[1:]
    return np.concatenate([near, far])


def shares(log_p: Numbers, dim: int, seen: float) -> dict[str, float]:
    """Return what `look_along_rays` does, by log densities (rays, lengths)."""
    log_p = np.where(impossible(log_p), -np.inf, log_p)
    if not np.any(np.isfinite(log_p)):
        return {"unseen": 0.0, "far_mass": 0.0}
    t = lengths(dim)
    shell = log_p + (dim - 1) * np.log(t) + np.log(np.gradient(t))
    return {
        "unseen": _share(shell + 2 * np.log(t), t > max(seen, t[0])),
        "far_mass": _share(shell, t > np.sqrt(FURTHEST) * (np.sqrt(dim) + 5.0)),
    }


def look_wider(run: Run, key: PRNGKeyArray, states: Any = None) -> float:
    """Return the share of a coordinate's variance that q lacks, beyond noise, in the worst one.

    Rays see what is far in most directions. Draws of a Student-t with the means and the spread of q
    go far in all of them, and by their weights say what the variances are, if not in too many
    dimensions: where few of them count, nothing is said. If the first of them raise a suspicion,
    more are drawn. Of a bent q that is done in its base space, and it is `states` (chains, rows, d)
    of the chains that may lack a variance there.
    """
    sd = None
    if run.q.is_bent:
        if states is None:
            return 0.0
        run, _, sd = _straightened(run, states)
    lacks, noise = _lacking(run, key, WIDE_DRAWS, sd)
    if np.max(lacks - noise, initial=0.0) < SUSPICIOUS:
        return 0.0
    lacks, noise = _lacking(run, fold_in(key, 1), MORE_WIDE_DRAWS, sd)
    return float(np.max(lacks - NOISES * noise, initial=0.0))


def _straightened(run: Run, states: Any) -> tuple[Run, Any, Numbers]:
    """Return the run, states and their sds in the base space of a bent q."""
    q: Any = run.q
    noise = inverted(q, states).reshape(1, -1, q.dim)
    noise = noise[:, np.all(np.isfinite(noise[0]), 1)]
    base = MeanField.standard(q.dim, dtype=q.loc.dtype)
    inside: Any = Straightened(run.target, q)
    return replace(run, q=base, target=inside), noise, noise[0].std(0)


def inverted(q: Any, z: Any) -> Any:
    """Return the base noise ε = T⁻¹(z) of a bent q at points of any shape (…, d)."""
    flat = np.asarray(z, q.loc.dtype).reshape(-1, q.dim)
    return np.asarray(_inverse(q, flat), np.float64).reshape(np.shape(z))


@jax.jit
def _inverse(q: Any, z: Any) -> Any:
    return jax.lax.map(lambda z: q.inverse(z)[0], z, batch_size=BLOCK)


def _lacking(
    run: Run, key: PRNGKeyArray, n: int, sd: Numbers | None = None
) -> tuple[Numbers, Numbers]:
    """Return which shares of the variances q lacks, by n wide draws, and how well they know it."""
    q, dim, dtype = run.q.envelope(), run.q.dim, run.q.mean.dtype
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    mean = np.asarray(q.mean, np.float64)
    sd = np.asarray(q.sd, np.float64) if sd is None else sd
    draws = np.asarray(sample(key, q, n))
    centre = float(log_probs(q, np.asarray(q.mean)[None])[0])
    radius = q.radius(centre - log_probs(q, draws))
    square = FREEDOM * rng.chisquare(dim, n) / rng.chisquare(FREEDOM, n)
    z = (mean + (np.sqrt(square) / radius)[:, None] * (draws - mean)).astype(dtype)
    return lacks(log_probs(run.target, z), z, square, sd)


def lacks(log_p: Numbers, z: Any, square: Numbers, sd: Numbers) -> tuple[Numbers, Numbers]:
    """Return the same by draws z of the Student-t, at so many squared units from its centre."""
    dim = len(sd)
    log_w = np.where(impossible(log_p), -np.inf, log_p)
    log_w = log_w + 0.5 * (FREEDOM + dim) * np.log1p(square / FREEDOM)
    nothing = np.zeros(dim), np.zeros(dim)
    if not np.any(np.isfinite(log_w)):
        return nothing
    w = np.exp(log_w - logsumexp(log_w))
    if 1 / np.sum(w**2) < MIN_EFFECTIVE:
        return nothing
    z = z.astype(np.float64)
    away = (z - w @ z) ** 2
    variance = w @ away
    with np.errstate(all="ignore"):
        ratio = sd**2 / variance
        noise = ratio * np.sqrt(w**2 @ (away / variance - 1) ** 2)
    return np.nan_to_num(1 - ratio), np.nan_to_num(noise)


def _share(log_mass: Numbers, where: Any) -> float:
    """Return the share of all mass that lies where `where` is true along a ray."""
    if not np.any(where):
        return 0.0
    return float(np.exp(logsumexp(log_mass[:, where]) - logsumexp(log_mass)))
