"""What can be seen of a fit: importance weights, chains at the fitted q, the iterates to come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import last_tenth
from scoreascent._batches import log_probs
from scoreascent._random import fold_in
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.diagnostics.draws import MAX_KNOWN_TAIL
from scoreascent.diagnostics.modes import indicators, look_at_modes
from scoreascent.diagnostics.numbers import look_at_numbers
from scoreascent.diagnostics.psis import tail_shape
from scoreascent.diagnostics.rays import inverted, look_along_rays, look_wider
from scoreascent.diagnostics.weights import sample, weigh
from scoreascent.families import Family
from scoreascent.loop import advance, coordinates
from scoreascent.methods import Method
from scoreascent.run import Run, rests_on_chains
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

MIN_LATE_CHAINS = 50  # so many chains that move by themselves are judged by their late states
MIN_CHAINS_TO_COMPARE = 10  # for a typical spread
LONG_STAY = 20  # steps in one place that count as long
MAX_Z = 4.0  # differences between q and its chains of so many standard errors are noise
MAX_ROWS = 400  # the most steps of the chains, or looks at λ
MAX_SOLVED = 2**30  # numbers of triangles, over all states at which log q is looked at
ENOUGH_STATES = 40_000  # many chains take fewer steps, so that about so many states are looked at


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that is measured of a fit before it is judged. Rules see this, and nothing else.

    Attributes:
        draws: how many draws of q were weighed.
        k_hat: the shape of the tail of the weights π/q.
        ess: how many independent draws of π as many weighted draws of q are worth.
        invalid: the share of q's draws at which log p is NaN or +∞.
        chi2: an estimate of χ²(π‖q), worthless where `k_hat` exceeds 0.7.
        log_w_star: the largest log π/q that was seen, an estimate from below of log w*.
        log_evidence: an estimate of the log evidence, worthless where `k_hat` exceeds 0.7.
        looked: at how many steps of every chain was looked; 0 if there are no chains.
        acceptance: the mean acceptance of the chains at the fitted q; NaN without chains, as are
            the following nine.
        stuck: the share of chains that never moved.
        stay: the share of their time that chains spend in one place for 20 steps or more.
        rhat: the worst R̂ of all coordinates over the chains.
        chain_ess: the fewest effective draws of all coordinates.
        efficiency: those, as a share of all late states; NaN unless the fit rests on its chains.
        shift: how far q's means are from the chains', in posterior sds, beyond noise.
        ratio: how far q's log sds are from the chains', beyond noise.
        narrowest: how much less than the others the chain spreads that spreads least, as a log
            ratio, on average over coordinates; 0 with fewer than ten chains.
        tail: the shape of the heaviest tail of their states: from ½ on it has no variance.
        unseen: the share of the posterior's second moment, along rays, that lies further out than
            any state of the chains; 0 without chains.
        lacking: the share of a variance that q lacks by draws that are wider than it, beyond noise;
            0 where chains have moves of their own, unless q is bent.
        tail_lacking: the share of a variance that the chains' states lack for an end of a
            coordinate, by chains that move there alone, beyond noise; 0 before a challenge, and
            unless q is bent.
        far_mass: the share of its mass, along rays, at ten to a hundred times the size of q.
        least_log_q: log q at the state of the chains that is furthest out; without chains, at the
            furthest draw of q.
        spacing: the distance, in nats, between neighbouring numbers at the log densities of states.
        rhat_lambda: the worst R̂ of q's means and log sds over two halves of late iterates.
        drift: how far the halves of the iterates that would follow are apart, in posterior sds;
            NaN if a stopping rule has looked at late iterates instead.
        error: the Monte Carlo error of averaged iterates that a stopping rule saw, in posterior
            sds; NaN if none did.
        trend: how steadily iterates move, as the median correlation with time.
        status: how the run ended.
        complaint: why a stopping rule was not met within the steps, in words; empty if none is.
        late_acceptance: the acceptance over the last tenth of the run, while q moved.
        growth: by how much the widest of q's sds has grown since the start; 1 if not known.
        reach: how long gradient moves are, as a share of the length that was asked for.
        places_agree: whether the searches that were kept found one place.
        parts: how many components q has, one for each place, if it is a mixture; else one.
        mass_unsure: several Monte Carlo errors of the mass of the part known worst; 0 of one part,
            ∞ without chains.
        mass_gap: how wrong a mean or sd of q is, in sds, for a part of it has another mass than as
            many draws of every part say, beyond noise.
        changes: how often a chain went from one part to another while it was looked at, on average.
        tolerance: how far means may be off, in posterior sds, and sds, as a share, in a good fit.
        gap: how far a mean or sd that draws of q show is from what better draws say, beyond noise,
            in the worst number; 0 if the result shows states of the chains.
        unsure: several Monte Carlo errors of the worst number that states of the chains show, in
            its sds (five, or three and a half if q is near); 0 if the result shows draws of q.
        worst: the name of that number.
        numbers: the rows of the result's summary, with the errors of every mean and sd.
        q_gap: how far a mean or sd of draws of q is from the chains' in the worst number, beyond
            noise, if q is a mixture or a flow and the result shows states of the chains; else NaN.
        stray: what the mass that fresh searches found elsewhere adds to a variance; 0 before a
            challenge.
        stray_mass: that mass, as a share.
        stray_at: the mean and the covariance of a Gaussian there; None if there is none.
        challenge_count: how many densities and gradients it took to look for them.
        moves_alone: whether chains have moves other than independent draws of q.
        bent: whether q has learnt the posterior's shape, so that its tails are those of its map.
    """

    draws: int
    k_hat: float
    ess: float
    invalid: float
    chi2: float
    log_w_star: float
    log_evidence: float
    looked: int
    acceptance: float
    stuck: float
    stay: float
    rhat: float
    chain_ess: float
    efficiency: float
    shift: float
    ratio: float
    narrowest: float
    tail: float
    unseen: float
    lacking: float
    far_mass: float
    least_log_q: float
    spacing: float
    rhat_lambda: float
    drift: float
    error: float
    trend: float
    status: str
    complaint: str
    late_acceptance: float
    growth: float
    reach: float
    places_agree: bool
    parts: int
    mass_unsure: float
    mass_gap: float
    changes: float
    moves_alone: bool
    bent: bool
    tolerance: float
    gap: float
    unsure: float
    worst: str
    numbers: tuple[dict[str, Any], ...]
    q_gap: float = np.nan
    tail_lacking: float = 0.0
    stray: float = 0.0
    stray_mass: float = 0.0
    stray_at: Any = None
    challenge_count: tuple[int, int] = (0, 0)

    @property
    def has_chains(self) -> bool:
        """Whether there are chains to look at."""
        return not np.isnan(self.acceptance)

    @property
    def motion(self) -> float:
        """How far q may be from where it settles, in posterior sds: its drift, or its error."""
        return self.error if np.isnan(self.drift) else self.drift

    @property
    def worth(self) -> float:
        """What a draw of q is worth in draws of π."""
        return 1 / (1 + self.chi2)


def measure(
    run: Run, keys: tuple[PRNGKeyArray, PRNGKeyArray], draws: int | None, steps: int
) -> Measured:
    """Look at a fit from all sides, by `draws` draws of q and `steps` more iterations.

    With no more iterations the stopping rule's own look at the late ones is taken.
    """
    seen = watch_chains(run, keys[1])
    weights, weighed = weigh(run, keys[0], draws)
    return Measured(
        **weights,
        **look_at_chains(run, seen),
        **look_at_modes(
            run.q, None if seen is None else seen.states, run.target, fold_in(keys[0], 2)
        ),
        **look_beyond(run, fold_in(keys[0], 1), seen),
        **look_at_iterates(run, steps),
        status=str(run.status),
        complaint=_complaint(run),
        late_acceptance=float(np.mean(last_tenth(run.trace.acceptance))),
        growth=sd_growth(run),
        reach=run.method.reach(run.state.eta),
        places_agree=run.start is None or run.start.agree,
        moves_alone=not run.method.is_independent,
        bent=run.q.is_bent,
        tolerance=run.tolerance,
        **look_at_numbers(run, weighed, None if seen is None else seen.states),
    )


def _complaint(run: Run) -> str:
    unmet = run.convergence is not None and run.status == "max_steps"
    return str(run.provenance["stop"]) if unmet else ""


# -- chains ----------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What chains were seen to do: states (chains, rows, coordinates), and more of each row."""

    states: np.ndarray[Any, Any]
    acceptance: np.ndarray[Any, Any]
    least_log_q: float  # of any state: how far out the chains were, in terms of q
    is_late: bool  # whether it was in the late steps of the run, while q still moved


@functools.partial(jax.jit, static_argnames=("method", "rows"))
def _move(
    key: PRNGKeyArray, target: Target, method: Method, q: Family, eta: Any, at: Any, rows: int
) -> tuple[Array, Array, Array]:
    """Move the chains, q standing still; return states, acceptance, least log q of every step."""

    def step(eta: Any, key: PRNGKeyArray) -> Any:
        key_step, key_pick = jax.random.split(key)
        eta, info = method.step(key_step, target, q, eta)
        z = method.states(key_pick, eta)
        return eta, (z[:, at], info.acceptance, jnp.min(jax.vmap(q.log_prob)(z)))

    return jax.lax.scan(step, eta, jax.random.split(key, rows))[1]  # type: ignore[no-any-return]


def chain_states(
    run: Run, key: PRNGKeyArray, at: np.ndarray[Any, Any] | None = None, rows: int = MAX_ROWS
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return states (chains, rows, coordinates) of chains at the fitted q, and their acceptance.

    None for the ELBO, which has no chains.
    """
    if not run.method.chains:
        return None
    at = np.arange(run.target.dim) if at is None else at
    seen = _seen_now(run, key, at, rows)
    return seen.states, seen.acceptance


def watch_chains(run: Run, key: PRNGKeyArray) -> Seen | None:
    """Return what chains did in the late steps of the run, or would do now; None without any."""
    if not run.method.chains:
        return None
    at = coordinates(run.target.dim)
    late = _seen_late(run, at)
    if late is not None:
        return late
    rows = int(np.clip(ENOUGH_STATES // run.method.chains, MAX_ROWS // 4, MAX_ROWS))
    return _seen_now(run, key, at, rows)


def _seen_now(run: Run, key: PRNGKeyArray, at: np.ndarray[Any, Any], rows: int) -> Seen:
    """Return what the chains do at the fitted q."""
    states, acceptance, log_q = _move(key, run.target, run.method, run.q, run.state.eta, at, rows)
    states = np.swapaxes(np.asarray(states), 0, 1)
    return Seen(states, np.asarray(acceptance), float(np.min(log_q)), is_late=False)


def _seen_late(run: Run, at: np.ndarray[Any, Any]) -> Seen | None:
    """Return the same of a fit that a rule ended, from its late windows, if q cannot follow them.

    It cannot if there are many chains for its degrees of freedom, or if many of them move by
    themselves, wherever q is; then nothing needs to run again.
    """
    n = run.method.chains
    enough = 2 * run.target.dim if run.method.is_independent else MIN_LATE_CHAINS
    ended = run.status == "converged" and n >= enough
    if run.states is None or not (ended or rests_on_chains(run)):
        return None
    states = np.asarray(run.states)[:, -n:]
    whole = states.shape[-1] == run.target.dim
    points = states.reshape(-1, run.target.dim) if whole else np.asarray(run.state.eta.z)
    states = states[..., at] if whole else states
    late = run.trace.acceptance[run.trace.loss.size // 2 :]
    some = -(-len(points) * run.target.dim**2 // MAX_SOLVED)
    least = float(np.min(log_probs(run.q, points[:: max(1, some)])))
    return Seen(np.swapaxes(states, 0, 1), np.asarray(late), least, is_late=True)


def look_at_chains(run: Run, seen: Seen | None) -> dict[str, Any]:
    """Measure what the chains do at the fitted q, and whether they have its moments."""
    names = (
        "acceptance", "stuck", "stay", "rhat", "chain_ess", "efficiency", "shift", "ratio",
        "narrowest", "tail",
    )  # fmt: skip
    if seen is None:
        return {"looked": 0, **dict.fromkeys(names, np.nan)}
    at, is_late = coordinates(run.target.dim), seen.is_late
    z, acceptance = seen.states.astype(np.float64), seen.acceptance
    rows = z.shape[1]
    moves = np.any(z[:, 1:] != z[:, :-1], axis=2)
    moved = np.any(moves, axis=1)
    if not is_late:
        z = z[:, rows // 4 :]  # the chains come from other q's than this one
    if len(z) == 1:  # one long chain is compared with itself
        z = _cut(z[0], 4)
    with np.errstate(all="ignore"):
        worst, ess = rhat(np.concatenate([z, indicators(run.q, z)], -1)), ess_bulk(z)
    mean, sd = np.asarray(run.q.mean)[at], np.asarray(run.q.sd)[at]
    total = z.shape[0] * z.shape[1]
    independent = np.clip(np.nan_to_num(ess, nan=1.0), 1.0, total)
    shift, ratio, noise = differences(z.mean((0, 1)), z.std((0, 1)), mean, sd, independent)
    long_stay = max(1, LONG_STAY // run.states_every) if is_late else LONG_STAY
    tails = np.array([tail_shape(x) for x in z.reshape(total, -1).T])
    if run.q.is_bent:  # its moments are averages over draws, as bad as those of the chains
        ratio = np.where(tails > MAX_KNOWN_TAIL, 0.0, ratio)
    return {
        "looked": rows,
        "acceptance": float(np.mean(np.asarray(acceptance, np.float64))),
        "stuck": float(np.mean(~moved)),
        "stay": stays(~moves, long_stay),
        "rhat": largest(worst),
        "chain_ess": float(np.min(independent)),
        "efficiency": _efficiency(run, float(np.min(independent)), total),
        "shift": largest(np.maximum(shift - noise, 0)),
        "ratio": largest(np.maximum(ratio - noise, 0)),
        "narrowest": narrowest(inverted(run.q, z) if run.q.is_bent else z),
        "tail": float(np.max(tails)),
    }


def differences(
    mean: Any, sd: Any, q_mean: Any, q_sd: Any, independent: Any
) -> tuple[Any, Any, Any]:
    """Return how far means and log sds of chains are from q's, and what of that may be noise."""
    shift = np.abs(mean - q_mean) / q_sd
    ratio = np.abs(np.log(np.maximum(sd, 1e-300) / q_sd))
    return shift, ratio, MAX_Z / np.sqrt(independent)  # of a mean of so many draws, in sds


def _efficiency(run: Run, ess: float, states: int) -> float:
    """Return the effective draws of the chains as a share of all of their late states."""
    return ess / (states * run.states_every) if rests_on_chains(run) else np.nan


def narrowest(z: Any) -> float:
    """Return the log ratio of the spread of the chain that spreads least to a typical one.

    A chain that is trapped in a narrow part spreads little in every coordinate, while chains that
    mix differ by chance. States are (chains, times, coordinates).

    >>> z = np.random.default_rng(0).normal(size=(20, 50, 3))
    >>> trapped = z * np.where(np.arange(20) == 7, 0.1, 1)[:, None, None]
    >>> round(narrowest(z), 1), round(narrowest(trapped), 1)
    (-0.2, -2.3)
    """
    if len(z) < MIN_CHAINS_TO_COMPARE:
        return 0.0
    spread = np.log(np.maximum(z.std(1), 1e-300))
    return float(np.min(np.mean(spread - np.median(spread, 0), 1)))


def stays(flags: np.ndarray[Any, Any], length: int) -> float:
    """Return the share of the places, in all rows, in runs of True of at least this length.

    >>> stays(np.array([[True, False, True, True], [False, True, True, True]]), 3)
    0.375
    """
    none = np.zeros((len(flags), 1), bool)  # runs end with their row
    ends = np.flatnonzero(np.diff(np.concatenate([none, flags, none], axis=1).astype(np.int8)))
    runs = ends[1::2] - ends[::2]
    return float(np.sum(runs[runs >= length]) / flags.size)


def look_beyond(run: Run, key: PRNGKeyArray, seen: Seen | None) -> dict[str, Any]:
    """Measure what chains cannot know: mass beyond them, and the precision of the density."""
    particles = run.method.particles(run.state.eta)
    if particles is None or seen is None:
        least = float(np.min(log_probs(run.q, sample(key, run.q, MAX_ROWS))))
        nothing = dict.fromkeys(("unseen", "lacking", "far_mass", "spacing"), 0.0)
        return {**nothing, "least_log_q": least}
    log_p = np.asarray(particles.log_p)
    log_p = log_p[np.isfinite(log_p)]
    spacing = float(np.median(np.spacing(np.abs(log_p)))) if log_p.size else 0.0
    least = seen.least_log_q
    lacking = 0.0
    if run.method.is_independent or run.q.is_bent:
        lacking = look_wider(run, fold_in(key, 1), seen.states)
    rays = look_along_rays(run, key, least, seen.states)
    return {**rays, "lacking": lacking, "spacing": spacing, "least_log_q": least}


# -- iterates --------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("method", "update", "rows"))
def _go_on(
    target: Target, method: Any, update: Any, state: Any, at: Any, rows: int, every: Any
) -> tuple[Array, Array]:
    """Return means and log sds of q at the iterations that would follow."""

    def row(state: Any, _: None) -> Any:
        step = lambda _, s: advance(target, method, update, s)[0]  # noqa: E731
        state = jax.lax.fori_loop(0, every, step, state)
        return state, (state.q.mean[at], jnp.log(state.q.sd[at]))

    return jax.lax.scan(row, state, None, rows)[1]  # type: ignore[no-any-return]


def look_at_iterates(run: Run, steps: int) -> dict[str, Any]:
    """Measure whether λ would still move somewhere, if the run went on."""
    if steps == 0 and run.convergence is not None:
        seen = run.convergence
        return {"rhat_lambda": seen.rhat, "drift": np.nan, "error": seen.error, "trend": 0.0}
    at = coordinates(run.target.dim)
    rows = min(MAX_ROWS, steps)
    mean, log_sd = (
        np.asarray(x, np.float64)
        for x in _go_on(run.target, run.method, run.update, run.state, at, rows, steps // rows)
    )
    mean = mean / np.exp(log_sd.mean(0))  # in posterior sds
    both = np.concatenate([mean, log_sd], 1)
    with np.errstate(all="ignore"):
        worst = rhat(_cut(both, 2))
    halves = both[: rows // 2].mean(0), both[rows - rows // 2 :].mean(0)
    with np.errstate(all="ignore"):
        steady = np.abs(np.corrcoef(both.T, np.arange(rows))[-1, :-1])
    return {
        "rhat_lambda": largest(worst),
        "drift": largest(np.abs(halves[1] - halves[0])),
        "error": np.nan,
        "trend": float(np.nanmedian(steady)) if np.any(steady >= 0) else 0.0,
    }


def sd_growth(run: Run) -> float:
    """Return by how much the widest of q's sds has grown since the start; 1 if not known."""
    if run.start is None:
        return 1.0
    with np.errstate(all="ignore"):
        ratio = np.asarray(run.q.sd, np.float64) / np.asarray(run.start.first_q.sd, np.float64)
    return largest(ratio)


def _cut(x: np.ndarray[Any, Any], parts: int) -> np.ndarray[Any, Any]:
    """Cut one series into `parts` chains."""
    length = len(x) // parts
    return x[: parts * length].reshape(parts, length, *x.shape[1:])


def largest(x: Any) -> float:
    """Return the largest of those that are numbers; ∞ if none is."""
    x = np.asarray(x)[~np.isnan(x)]
    return float(np.max(x)) if x.size else np.inf
