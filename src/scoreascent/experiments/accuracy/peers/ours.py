"""The library itself: automatic, as in the paper, and mean-field with a richer proposal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

import scoreascent as sa
from scoreascent.diagnostics.draws import late_states
from scoreascent.experiments.accuracy import own
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.peers import base
from scoreascent.experiments.accuracy.peers.base import Peer, Read, Seeded


def _automatic(entry: Entry, target: sa.Target) -> Seeded:
    def fit(seed: int) -> Read:
        result = sa.fit(target, key=seed, progress=False)
        verdict = _verdict(result)
        return lambda: _fit_of(result, verdict, seed)

    return fit


# A mean-field q whose chains move by a proposal richer than q: exact marginals in 2d numbers.
MEAN_FIELD = sa.pmcsa(128, kernel=sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC())))
MEAN_FIELD_STEPS = 1000
MANY_DRAWS = 20_000  # of q, so that their own noise is small beside an error of 0.02


def _paper(entry: Entry, target: sa.Target) -> Seeded:
    return _by_hand(target, sa.pmcsa(10), base.STEPS, densities=10.0 * (base.STEPS + 1))


def _mean_field(entry: Entry, target: sa.Target) -> Seeded:
    def fit(seed: int) -> Read:
        start = sa.laplace(target, seed)
        q0 = replace(start, q=sa.MeanField.from_moments(start.q.mean, start.q.sd))
        fitted = _by_hand(
            target, MEAN_FIELD, MEAN_FIELD_STEPS, optimizer=sa.moment_matching(), q0=q0
        )
        return fitted(seed)

    return fit


def _by_hand(
    target: sa.Target, method: Any, steps: int, densities: float = np.nan, **options: Any
) -> Seeded:
    """Fit a mean-field q by a method that was chosen; its verdict is not in the time."""
    options = {"q0": sa.MeanField.standard(target.dim)} | options
    options |= {"steps": steps, "average": True, "progress": False, "throw": False}

    def fit(seed: int) -> Read:
        result = sa.fit(target, method, key=seed, **options)
        jax.block_until_ready(result.q)
        return lambda: _fit_of(result, _verdict(result), seed, densities)

    return fit


def _verdict(result: Any) -> str:
    """The verdict on a fit in words; the automatic method brings its own."""
    diagnosis = getattr(result, "diagnosis", None)
    return str((result.diagnose() if diagnosis is None else diagnosis).verdict)


def _fit_of(result: Any, verdict: str, seed: int, densities: float = np.nan) -> Fit:
    draws = result.q.sample(jax.random.key(seed), (base.DRAWS,))
    log_q = jax.vmap(result.q.log_prob)(draws)
    counts = getattr(result, "evaluations", None)
    known = (densities, 0.0 * densities)  # a NaN stays one
    densities, gradients = known if counts is None else _counts(counts)
    return Fit(
        np.asarray(result.q.mean, np.float64),
        np.asarray(result.q.sd, np.float64),
        np.asarray(draws, np.float64),
        base.weights_of(result.target, draws, log_q),
        densities,
        gradients,
        verdict,
        own.of_rows(result.summary()),
        _shown_z(result, seed),
    )


def _shown_z(result: Any, seed: int) -> Any:
    """What `result.sample` takes its draws from: all late states of the chains, or many of q."""
    if result.draws_from == "chains":
        states = late_states(result)
        assert states is not None
        return states.reshape(-1, states.shape[-1])
    return np.asarray(result.q.sample(jax.random.key(seed + 1), (MANY_DRAWS,)), np.float64)


def _counts(counts: Any) -> tuple[float, float]:
    """The numbers of densities and gradients, from a mapping or a tuple of the two."""
    values = list(counts.values()) if hasattr(counts, "values") else list(counts)
    return float(values[0]), float(values[1])


PEERS = {
    "scoreascent": Peer(_automatic, "sa.fit(target): chooses for itself", "D", "#d62728"),
    "scoreascent-paper": Peer(
        _paper, "the paper's pMCSA: mean-field, IMH, N = 10, averaged", "v", "#e377c2"
    ),
    "scoreascent-mean-field": Peer(
        _mean_field,
        f"{MEAN_FIELD!r}, mean-field, moment matching, {MEAN_FIELD_STEPS} steps",
        "^",
        "#9467bd",
    ),
}
