"""The log evidence, with a standard error: by draws of q, or by a bridge from q to the chains.

Where weights π/q surely have a variance, their average over fresh draws of q is the evidence. Where
they may have none, but chains move by themselves, the bridge of Meng and Wong (1996) averages
functions over both sides that neither's tails can spoil: π/(s π + s′ q) over draws of q, and
q/(s π + s′ q) over states of the chains. These are fresh too, of a q that stands still: to states
that it was fitted to q is nearer than to the posterior, which would show as evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logsumexp, ndtri

from scoreascent._batches import log_probs
from scoreascent._random import as_key, split
from scoreascent._structs import check_count
from scoreascent.diagnostics import weights
from scoreascent.diagnostics.measure import chain_states
from scoreascent.diagnostics.psis import effective_sample_size, psis
from scoreascent.diagnostics.rules import GOOD, MAX_GOOD_K, WEIGH
from scoreascent.run import Run, check_single

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

SAFE_K = 0.3  # of weights, beyond which a bridge is taken if there can be one
MIN_WORTH = 0.01  # of a draw of q, below which no k̂ is believed
MIN_OVERLAP = 0.02  # of q and π, as the bridge sees it
STATES = 20_000  # of the chains, about, on the bridge's other side
WARM_UP = 10  # their first steps, from where the fit left them
TURNS, ENOUGH = 200, 1e-10  # of the bridge's own equation
MAX_ERROR = 1.0  # nats


@dataclass(frozen=True)
class Evidence:
    """The log of the evidence, and how well it is known.

    Attributes:
        value: log ∫ π, with every constant that the log density leaves out left out.
        error: its standard error.
        how: "importance weights", or "bridge" between draws of q and states of the chains.
        k_hat: the shape of the tail of the weights π/q.
        overlap: of q and π, from 0 to 1: what a draw of q is worth, or the bridge's harmonic mean.
    """

    value: float
    error: float
    how: str
    k_hat: float
    overlap: float

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the interval that holds the truth in so many cases, by a normal distribution.

        >>> low, high = Evidence(-1.0, 0.1, "bridge", 0.6, 0.5).interval()
        >>> round(low, 3), round(high, 3)
        (-1.164, -0.836)
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}")
        wide = float(ndtri(0.5 + 0.5 * level)) * self.error
        return self.value - wide, self.value + wide

    def __str__(self) -> str:
        seen = f"k̂ = {self.k_hat:.2f}, overlap {self.overlap:.2f}"
        return f"log evidence {self.value:.4f} ± {self.error:.2g} by {self.how} ({seen})"


def evidence(run: Run, key: PRNGKeyArray | int, draws: int, verdict: str | None) -> Evidence:
    """Return the log evidence of a fit; see `Result.log_evidence`."""
    check_single(run)
    draws = check_count("draws", draws, 100)
    if verdict not in (None, GOOD, WEIGH):
        raise ValueError(
            f"log_evidence: the fit's own verdict is {verdict!r}; what it has not seen has "
            "evidence too, so mend the fit first: its diagnosis says how"
        )
    key_draw, key_chain = split(as_key(key))
    _, log_p, log_q = weights.draw(key_draw, run.target, run.q, draws)
    log_w, _ = weights.log_weights(log_p, log_q)
    if not np.any(log_w > -np.inf):
        raise ValueError("log_evidence: no draw of q lies where the posterior has mass")
    smooth = psis(log_w)
    worth = effective_sample_size(smooth.log_weights) / draws
    independent = not run.method.chains or run.method.is_independent
    # weights without a variance seem to have one just where their largest did not come, and then
    # their average is too low: so k̂ is believed nearly up to what it may be only for want of better
    if smooth.k_hat <= (MAX_GOOD_K if independent else SAFE_K) and worth >= MIN_WORTH:
        return Evidence(*_by_weights(log_w), "importance weights", smooth.k_hat, worth)
    if independent:
        raise ValueError(
            f"log_evidence: k̂ of the weights is {smooth.k_hat:.2f}, so their average is not known, "
            "and there are no chains that move by themselves to build a bridge to; fit with "
            "gradient moves such as Cycle(IMH(), HMC()), or with a richer family"
        )
    rows = int(np.clip(STATES // run.method.chains, 4, 400))
    moved = chain_states(run, key_chain, rows=WARM_UP + rows)
    assert moved is not None
    states = moved[0][:, WARM_UP:]
    flat = np.ascontiguousarray(states.reshape(-1, states.shape[-1]), run.q.mean.dtype)
    there, _ = weights.log_weights(log_probs(run.target, flat), log_probs(run.q, flat))
    return _by_bridge(log_w, there.reshape(states.shape[:2]), smooth.k_hat)


def _by_weights(log_w: Numbers) -> tuple[float, float]:
    """Return the log of the weights' mean, and its standard error."""
    n = len(log_w)
    value = float(logsumexp(log_w) - np.log(n))
    return value, float(np.std(np.exp(log_w - value), ddof=1) / np.sqrt(n))


def _by_bridge(here: Numbers, there: Numbers, k_hat: float) -> Evidence:
    """Return the bridge's estimate: log π/q at draws of q, and at states (chains, times).

    >>> rng = np.random.default_rng(0)  # q is N(0, 1), π is N(1, 1) times e²
    >>> log_ratio = lambda z: z - 0.5 + 2
    >>> there = log_ratio(rng.normal(1, 1, (40, 100)))
    >>> found = _by_bridge(log_ratio(rng.normal(size=4000)), there, 0)
    >>> bool(abs(found.value - 2) < 3 * found.error < 0.1)
    True
    """
    flat = there.ravel()
    effective = _effective(np.tanh(0.5 * (there - np.median(flat))))
    share = np.log(effective / len(here))
    value = float(np.median(flat) + np.median(here)) / 2
    for _ in range(TURNS):
        # of both sides together, a point is π's with the probability expit(log w − value + share)
        above = logsumexp(_log_expit(here - value + share)) - np.log(len(here))
        below = logsumexp(_log_expit(value - share - flat)) - np.log(len(flat))
        new = value - share + above - below
        if abs(new - value) < ENOUGH:
            break
        value = float(new)
    ours, theirs = expit(here - value + share), expit(value - share - there)
    square = np.var(ours) / (np.mean(ours) ** 2 * len(here))
    by_chain = theirs.mean(1)
    square += np.var(by_chain, ddof=1) / (np.mean(by_chain) ** 2 * len(by_chain))
    # both functions average to the same integral ∫ π q/(s π + s′ q): one where π is q
    fraction = effective / (effective + len(here))
    overlap = float(np.mean(theirs) / (1 - fraction))
    error = float(np.sqrt(square))
    if not (overlap >= MIN_OVERLAP and error <= MAX_ERROR):
        raise ValueError(
            f"log_evidence: q and the posterior hardly overlap ({overlap:.1%}, k̂ = {k_hat:.2f}), "
            "so the evidence would be a guess; fit a richer family, or another parametrisation"
        )
    return Evidence(value, error, "bridge", k_hat, overlap)


def _effective(x: Numbers) -> float:
    """Return what states (chains, times) are worth, by the spread of the chains' averages."""
    total, between = np.var(x), np.var(x.mean(1), ddof=1) / len(x)
    return float(np.clip(total / between, 1.0, x.size)) if between > 0 else float(x.size)


def _log_expit(x: Numbers) -> Numbers:
    found: Numbers = -np.logaddexp(0.0, -x)
    return found
