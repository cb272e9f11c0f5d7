"""Whether to believe a fit: importance weights, chains, late iterates, and a verdict in words."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp

from scoreascent._random import as_key
from scoreascent._structs import check_count
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

Verdict = Literal[
    "good",
    "use with importance weights",
    "not converged: run longer",
    "chains did not mix: q is not the inclusive optimum",
]
GOOD, WEIGH, LONGER, STUCK = Verdict.__args__  # type: ignore[attr-defined]

# What is asked of a fit. k̂: Vehtari et al. (2024). The others say how much of a posterior sd, or of
# a ratio of sds, one is ready to be wrong by without being told.
K_GOOD, K_USABLE = 0.5, 0.7
RHAT_MAX = 1.1
ACCEPTANCE_MIN, STUCK_MAX = 0.01, 0.1
SHIFT_MAX, RATIO_MAX = 0.2, 0.2
FOLLOWS = 2.0  # acceptance while q moves over that while it stands
TREND_MAX = 0.95  # correlation with time: with this much, λ is on its way, not wandering
Z_MAX = 4.0
INVALID_MAX = 0.01
TAIL_MAX = 0.7  # a tail of shape ½ has no variance; estimates are off by about 0.1
GROWTH_MAX = 300.0  # of a standard deviation, over that of the start
# Effective draws over draws: least, and where k̂ lies between the two limits. There one weight in
# thousands may be large, but most of q's draws are as good as the posterior's.
ESS_MIN, ESS_CLOSE = 0.1, 0.5

CHAINS_MIN = 50  # of chains that move by themselves
REACH_MIN = 0.3  # of the length that trajectories should have
STAY, STAY_MAX = 20, 0.02  # stays of so many steps may take up this share of the chains' time
# What chains with moves of their own must show to be believed where weights cannot be
RHAT_LOCAL, ESS_LOCAL = 1.04, 1500

ROWS = 400  # looks at the chains and at λ
STATES = 40_000  # about as many states of the chains are enough, so many chains take fewer steps


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was seen of a fit, and what it means. `print` shows it.

    `k_hat` is the shape of the tail of the weights π/q, `ess` how many independent draws of π as
    many weighted draws of q are worth. `rhat` and `chain_ess` are the worst of all coordinates over
    the chains at the fitted q; `stuck` is the share of chains that never moved, `stay` the share
    of their time that they spend in one place for 20 steps or more. `rhat_lambda` is
    the worst of q's means and log sds over two halves of the iterations that would follow,
    `drift` how far these halves are apart, in posterior sds, and `trend` how steadily they move
    (the median correlation with time). `shift` and `ratio` say how far q's
    means and log sds are from those of the chains, and `tail` is the shape of the heaviest tail of
    their states: from ½ on it has no variance. `chi2`, `log_w_star` and `log_evidence` are
    estimates from q's draws, and worthless where `k_hat` exceeds 0.7.
    """

    verdict: Verdict
    reason: str
    advice: str
    k_hat: float
    draws: int
    ess: float
    acceptance: float
    stuck: float
    stay: float
    rhat: float
    chain_ess: float
    rhat_lambda: float
    drift: float
    trend: float
    shift: float
    ratio: float
    tail: float
    invalid: float
    chi2: float
    log_w_star: float
    log_evidence: float

    @property
    def final(self) -> bool:
        """Whether more iterations of the same kind cannot change the verdict."""
        return self.verdict == WEIGH or self.tail > TAIL_MAX

    @property
    def reliable(self) -> bool:
        """Whether the estimates from importance weights can be trusted."""
        return self.k_hat <= K_USABLE

    def __str__(self) -> str:
        return _render(self)


def diagnose(
    result: Result, key: PRNGKeyArray | int = 0, draws: int = 4000, steps: int | None = None
) -> Diagnosis:
    """Look at a fit from all sides; see `Result.diagnose`."""
    check_single(result)
    draws = check_count("draws", draws, 100)
    done = int(result.state.step)
    if steps is None:  # a rule that was met has looked at late iterates already
        steps = 0 if result.status == "converged" else max(ROWS, done // 5)
    else:
        steps = check_count("steps", steps, 20)
    key_draw, key_chain = jax.random.split(as_key(key))
    numbers = {
        **_weights(result, key_draw, draws),
        **_chains(result, key_chain),
        **_iterates(result, steps),
    }
    verdict, reason, advice = _judge(result, numbers)
    return Diagnosis(verdict, reason, advice, draws=draws, **numbers)


def resample(result: Result, key: PRNGKeyArray | int, n: int, draws: int) -> Array:
    """N of `draws` draws of q, drawn by their smoothed weights; see `Result.resample`."""
    check_single(result)
    key_draw, key_pick = jax.random.split(as_key(key))
    z, log_p, log_q = _draw(key_draw, result.target, result.q, draws)
    log_w, _ = log_weights(log_p, log_q)
    if not np.any(log_w > -np.inf):
        raise ValueError("no draw of q lies where the posterior has mass: there is nothing to draw")
    total = np.cumsum(np.exp(psis(log_w).log_weights))
    u = np.asarray(jax.random.uniform(key_pick, (n,)), np.float64)
    chosen = np.searchsorted(total, u * total[-1], side="right")
    return z[np.minimum(chosen, draws - 1)]


# -- what is measured ------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="n")
def _draw(key: PRNGKeyArray, target: Target, q: Family, n: int) -> tuple[Array, Array, Array]:
    z = q.sample(key, (n,))
    return z, jax.lax.map(target.log_prob, z, batch_size=200), jax.vmap(q.log_prob)(z)


def log_weights(log_p: Any, log_q: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Log π/q in float64, and where π was NaN or +∞, which counts as no mass."""
    log_p, log_q = np.asarray(log_p, np.float64), np.asarray(log_q, np.float64)
    invalid = np.isnan(log_p) | (log_p == np.inf)
    return np.where(invalid, -np.inf, log_p) - log_q, invalid


def _weights(result: Result, key: PRNGKeyArray, n: int) -> dict[str, float]:
    """What draws of q say about π/q."""
    _, log_p, log_q = _draw(key, result.target, result.q, n)
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
    enough = CHAINS_MIN if _moves_by_itself(result.method) else 2 * result.target.dim
    if result.status != "converged" or result.states is None or n < enough:
        return None
    assert result.states.shape[-1] == len(at)
    late = result.trace.acceptance[result.trace.loss.size // 2 :]
    return np.swapaxes(result.states[:, -n:], 0, 1), np.asarray(late)


def _chains(result: Result, key: PRNGKeyArray) -> dict[str, float]:
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


def _iterates(result: Result, steps: int) -> dict[str, float]:
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


# -- what it means ---------------------------------------------------------------------------------


def _judge(result: Result, n: dict[str, float]) -> tuple[Verdict, str, str]:
    """The first rule that applies."""
    has_chains = not np.isnan(n["acceptance"])
    if result.status == "diverged" or not np.isfinite(n["drift"]):
        return LONGER, "the fit diverged", "smaller steps, another start, or look at log_density"
    if (growth := sd_growth(result)) > GROWTH_MAX:
        return (
            STUCK,
            f"a standard deviation of q has grown by a factor of {growth:.0e}: the posterior seems "
            "improper",
            "proper priors",
        )
    moving = (
        LONGER,
        f"q is still moving: by {n['drift']:.2f} posterior sds over the next iterations",
        "more steps, or average=True",
    )
    if n["trend"] > TREND_MAX and n["drift"] > SHIFT_MAX:
        return moving
    # While it is fitted to a few chains, q can follow them wherever they go: most proposals then
    # are accepted because q is where the chains are, not where the posterior is.
    before = float(np.mean(result.trace.acceptance[-max(1, result.trace.loss.size // 10) :]))
    if has_chains and n["drift"] > 1 and before > FOLLOWS * n["acceptance"]:
        return (
            STUCK,
            f"q follows its chains: {before:.1%} of the proposals were accepted while it did, "
            f"{n['acceptance']:.1%} now that it stands still, and it would move by "
            f"{n['drift']:.1f} sds if it went on. It has contracted onto a part of the posterior",
            "more chains, and a richer family or kernel",
        )
    if has_chains and (n["acceptance"] < ACCEPTANCE_MIN or n["stuck"] > STUCK_MAX):
        return (
            STUCK,
            f"acceptance is {n['acceptance']:.2%} and {n['stuck']:.0%} of the chains never moved "
            f"in {ROWS} steps",
            "a richer family or kernel: proposals of this q hardly ever land in the posterior",
        )
    if has_chains and not n["rhat"] <= RHAT_MAX:
        return (
            STUCK,
            f"R̂ over the chains is {n['rhat']:.2f}: they are in different places",
            "more iterations if it falls; if not, the posterior has parts between which this "
            "kernel does not move",
        )
    if n["rhat_lambda"] > RHAT_MAX and n["drift"] > SHIFT_MAX:
        return moving
    if has_chains and (n["shift"] > SHIFT_MAX or n["ratio"] > RATIO_MAX):
        return (
            LONGER,
            f"the chains at this q have means {n['shift']:.2f} sds away and sds off by a factor "
            f"of {np.exp(n['ratio']):.2f}",
            "more steps, or average=True",
        )
    if has_chains and n["tail"] > TAIL_MAX:
        return (
            STUCK,
            f"a coordinate's tails are so heavy (Pareto shape {n['tail']:.2f}) that its variance "
            "does not exist or cannot be known, so no q has it",
            "lighter-tailed priors, or another parametrisation",
        )
    if result.look is not None and result.status == "max_steps":
        return LONGER, result.made["stop"], "more steps"
    if n["invalid"] > INVALID_MAX:
        return (
            WEIGH,
            f"the density is NaN at {n['invalid']:.0%} of q's draws",
            "a transform that keeps parameters where the model is defined",
        )
    if result.start is not None and not result.start.agree:
        return (
            WEIGH,
            "searches found several modes: q spreads over them, and over the gaps between",
            "result.resample(), or the chains' own states",
        )
    reach = _reach(result)
    share = f"k̂ = {n['k_hat']:.2f} and a draw of q is worth {1 / (1 + n['chi2']):.2f} of π's"
    worth = 1 / (1 + n["chi2"])
    is_close = (n["k_hat"] <= K_GOOD and worth >= ESS_MIN) or (
        n["k_hat"] <= K_USABLE and worth >= ESS_CLOSE
    )
    if reach < REACH_MIN and (n["k_hat"] > K_USABLE or worth < ESS_CLOSE):
        return (
            STUCK,
            f"gradient moves reach only {reach:.0%} as far as they should, because longer steps "
            "are rejected: the density has an edge, or regions of a much smaller scale",
            "a transform that has no edge, or another parametrisation",
        )
    if not is_close and has_chains and _moves_by_itself(result.method):
        return _judge_by_chains(n, share)
    if not n["k_hat"] <= K_USABLE:
        return (
            WEIGH,
            f"k̂ = {n['k_hat']:.2f}: draws of q do not cover the posterior, and weights alone "
            "cannot mend that",
            "a richer family; or the chains' own states, if they mix. With few chains q may sit on "
            "one part of the posterior: compare a fit with more of them",
        )
    if not is_close:
        return WEIGH, share, "result.resample()"
    return GOOD, share, ""


def sd_growth(result: Result) -> float:
    """By how much the widest of q's standard deviations has grown since the start, if known."""
    if result.start is None:
        return 1.0
    first = result.start.q if result.start.before is None else result.start.before
    with np.errstate(all="ignore"):
        ratio = np.asarray(result.q.sd, np.float64) / np.asarray(first.sd, np.float64)
    return _largest(ratio)


def _judge_by_chains(n: dict[str, float], share: str) -> tuple[Verdict, str, str]:
    """Where π is not of q's shape, chains that find their own way tell whether its moments are q's.

    Independent proposals cannot tell that: what q does not reach, they do not either.
    """
    if n["stay"] > STAY_MAX:
        return (
            STUCK,
            f"for {n['stay']:.0%} of their time chains cannot move, though others do: there are "
            "regions whose scale is much smaller than elsewhere",
            "another parametrisation, such as a non-centred one",
        )
    if n["rhat"] > RHAT_LOCAL or n["chain_ess"] < ESS_LOCAL:
        return (
            STUCK,
            f"the chains mix slowly (R̂ {n['rhat']:.2f}, {n['chain_ess']:.0f} effective draws), "
            f"and q is too far from the posterior to check them: {share}",
            "more steps, or another parametrisation",
        )
    return (
        GOOD,
        f"the chains mix (R̂ {n['rhat']:.3f}, {n['chain_ess']:.0f} effective draws) and q has their "
        f"means and standard deviations; but the posterior is not of q's shape ({share}): take "
        "quantiles from the chains' states, as to_arviz() has them",
        "",
    )


def _parts(kernel: Any, tuning: Any) -> list[tuple[Any, Any]]:
    """The kernels that a kernel is made of, each with what it has learnt."""
    if isinstance(kernel, Adapted):
        return _parts(kernel.kernel, None if tuning is None else tuning.tuning)
    if isinstance(kernel, Cycle):
        own = (None,) * len(kernel.kernels) if tuning is None else tuning
        return [part for k, t in zip(kernel.kernels, own) for part in _parts(k, t)]
    return [(kernel, tuning)]


def _moves_by_itself(method: Any) -> bool:
    """Whether the chains have moves other than independent draws of q."""
    kernel = getattr(getattr(method, "moves", None), "kernel", IMH())
    return any(not isinstance(part, IMH) for part, _ in _parts(kernel, None))


def _reach(result: Result) -> float:
    """How long gradient moves are, as a share of the length that was asked for; 1 without any."""
    kernel = getattr(getattr(result.method, "moves", None), "kernel", None)
    shares = [1.0]
    for part, tuning in _parts(kernel, getattr(result.state.eta, "tuning", None)):
        if isinstance(part, HMC) and not isinstance(part, MALA) and tuning is not None:
            shares.append(float(np.exp(tuning.log)) * part.max_steps / part.length)
    return min(shares)


def _render(d: Diagnosis) -> str:
    table = Table(title=f"verdict: {d.verdict}", title_justify="left", show_header=False)
    unsure = "" if d.reliable else "  (not reliable: k̂ > 0.7)"
    for name, value in (
        ("k̂ of π/q", f"{d.k_hat:.2f}"),
        ("effective draws", f"{d.ess:.0f} of {d.draws}{unsure}"),
        (
            "acceptance",
            f"{d.acceptance:.1%}, {d.stuck:.0%} of the chains never moved, "
            f"{d.stay:.1%} of their time in long stays",
        ),
        ("R̂ over the chains", f"{d.rhat:.3f}, {d.chain_ess:.0f} effective draws"),
        ("chains against q", f"means {d.shift:.2f} sds, sds a factor {np.exp(d.ratio):.2f} apart"),
        ("R̂ of late iterates", f"{d.rhat_lambda:.2f}, drift {d.drift:.2f} sds"),
        ("density NaN or +∞", f"{d.invalid:.1%} of q's draws"),
        ("χ²(π‖q)", f"{d.chi2:.3g}{unsure}"),
        ("log w*, at least", f"{d.log_w_star:.3g}"),
        ("log evidence", f"{d.log_evidence:.5g}{unsure}"),
    ):
        if not (np.isnan(d.acceptance) and name in ("acceptance", "R̂ over the chains",
                                                    "chains against q")):  # fmt: skip
            table.add_row(name, value)
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    console.print(f"because {d.reason}" + (f"; try {d.advice}" if d.advice else ""))
    return out.getvalue().rstrip()
