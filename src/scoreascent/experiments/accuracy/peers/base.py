"""What a peer is, the settings that all of them share, and how a Gaussian q becomes a `Fit`.

A peer's `begin` makes what one can keep between two fits of the same posterior (a sampler, compiled
code) and gives a function that fits; that gives one that reads the result. The first fit's clock
starts before `begin`, and no clock sees the reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import scoreascent as sa
from scoreascent._batches import log_probs
from scoreascent._extras import install_hint
from scoreascent.diagnostics.weights import log_weights
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit

STEPS = 10_000
RATE = 0.01  # the step size of every optimiser
DRAWS = 4000  # from every fitted q
START_RADIUS = 2.0  # starts are uniform in (−2, 2)ᵈ, as NumPyro's

Read = Callable[[], Fit]
Seeded = Callable[[int], Read]
Begin = Callable[[Entry, sa.Target], Seeded]


@dataclass(frozen=True)
class Peer:
    """A way to fit: `begin(entry, target)(seed)()`, what it is in words, how figures show it.

    `needs` is the module, and the extra, that it cannot do without.
    """

    begin: Begin
    description: str
    marker: str
    colour: str
    needs: str | None = None

    def missing(self) -> str:
        """The extra that is not installed, in words; empty if all is there."""
        if self.needs is None:
            return ""
        try:
            importlib.import_module(self.needs)
        except ModuleNotFoundError as error:
            return install_hint(error.name or self.needs, self.needs)
        return ""


def uniform_start(key: Any, shape: tuple[int, ...]) -> Any:
    """Draw where chains and paths begin."""
    return jax.random.uniform(key, shape, minval=-START_RADIUS, maxval=START_RADIUS)


def weights_of(target: sa.Target, draws: Any, log_q: Any) -> NDArray[Any]:
    """The logarithms of π/q at draws of q."""
    return log_weights(log_probs(target, draws), log_q)[0]


def gaussian_fit(mean: Any, cov: Any, target: sa.Target, seed: int, gradients: float) -> Fit:
    """The fit of a Gaussian q; its draws and density are computed in 64 bits."""
    mean, cov = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
    sd = np.sqrt(np.diag(cov))
    noise = np.random.default_rng(seed).normal(size=(DRAWS, len(mean)))
    try:
        root = np.linalg.cholesky(cov / np.outer(sd, sd)) * sd[:, None]
    except np.linalg.LinAlgError:  # singular, or not finite
        return Fit(mean, sd, mean + noise * sd, None, 0.0, gradients)
    draws = mean + noise @ root.T
    log_q = -0.5 * np.sum(noise**2, 1) - np.sum(np.log(np.diag(root)))
    weights = weights_of(target, jnp.asarray(draws, jnp.zeros(()).dtype), log_q)
    return Fit(mean, sd, draws, weights, 0.0, gradients)
