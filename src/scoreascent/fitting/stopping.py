"""When to stop: a rule on averaged iterates, never on the loss.

While a rule is set the compiled loop averages the iterates window by window, and the host looks at
the end of each. The first half of all windows is left out as transient; of the late ones,

- the Monte Carlo error of their average is its standard error, windows that correlate counted for
  fewer. A lag-one autocorrelation ρ makes n windows worth n (1 − ρ)/(1 + ρ). From eight values ρ
  is known badly and looks are many, so a coordinate gets the larger of two upper bounds: ρ pooled
  over the k coordinates plus 3/√(nk), and its own plus 1/√n, both freed of their bias of
  −(1 + 3ρ)/n. Simulated AR(1) windows give errors that are honest for ρ up to 0.6, and too
  small by up to a factor of 1.6 at ρ = 0.9: `every` should exceed the memory of λ. The worst
  coordinate counts;
- R̂ compares the first half of them with the second. Of one coordinate and eight windows it exceeds
  1.1 by chance one time in five, so the worst of many coordinates nearly always does: the variances
  between and within halves are therefore summed over coordinates first;
- a coordinate that goes steadily one way is found by its slope, at a level that allows for the
  number of coordinates. This is what a slow drift cannot hide from: its steps, and with them the
  Monte Carlo error, can be as small as one likes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy.special import stdtrit

from scoreascent._progress import Aim
from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.loop import CHUNK_ROWS, Average, State, Trace, kept_points
from scoreascent.methods import Method
from scoreascent.run import Convergence
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Float

    Floats = np.ndarray[Any, np.dtype[np.float64]]

MAX_WINDOWS = 64  # at so many, neighbours are merged and windows become twice as wide
MIN_KEPT, MAX_KEPT = 4, 20  # how often in each window the points are kept
KEPT_POINTS = 2560  # in a window, unless that is too often or too seldom
CHUNK_NUMBERS = 2**22  # that the compiled loop keeps before the host takes them
MIN_MOVES = 10  # moves of a chain in the late windows below which they say nothing
MAX_SKIPPED = 0.1  # the share of late updates that may have been skipped
MAX_RHO = 0.95  # the largest autocorrelation that is believed
TREND_LEVEL = 0.01  # how often windows without a trend are taken for ones with it


@dataclass(frozen=True, repr=False)
class Converged(Config):
    """Stop when the averaged λ is known well enough and no longer moves.

    Every `every` iterations the host looks at the means of the iterates over windows of that
    length (longer ones in a long run, so that no more than 64 are kept). The second half of them
    is averaged, and the run ends when there are at least `windows` of these, the Monte Carlo error
    of their average is at most `tolerance` posterior standard deviations for every mean, and the
    same number for the logarithm of every standard deviation, R̂ between their halves is at
    most `rhat`, and nothing drifts. Chains that do not move and a q that stands still never count
    as converged.

    >>> Converged(tolerance=0.05)
    Converged(tolerance=0.05)
    """

    tolerance: float = 0.02
    rhat: float = 1.1
    every: int = 250
    windows: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise ValueError(f"tolerance must be positive and finite, got {self.tolerance!r}")
        if not 1 < self.rhat < math.inf:
            raise ValueError(f"rhat must be above 1 and finite, got {self.rhat!r}")
        object.__setattr__(self, "every", check_count("every", self.every, 1))
        windows = check_count("windows", self.windows, 4, " and ≤ 16")
        if windows > MAX_WINDOWS // 4:  # as many late ones are left after a merger
            raise ValueError(
                f"windows must be an integer ≥ 4 and ≤ {MAX_WINDOWS // 4}, got {windows}"
            )
        object.__setattr__(self, "windows", windows)

    @property
    def averages(self) -> str:
        """What is averaged, in words."""
        return f"windows of {self.every} steps"

    def blank(self, method: Method, state: State, many: bool) -> Windows:
        """Return no windows yet, of a run that is or begins in this state."""
        return blank_windows(self, method, state, many)

    def watch(self, method: Method, windows: Windows, target: Target) -> Watch:
        """Return the rule at work."""
        return Watch(self, method, windows)

    def complaints(self, seen: Convergence) -> list[str]:
        """Say why the rule is not met, in words; nothing if it is."""
        if seen.windows < self.windows:
            return [f"{seen.windows} late windows where {self.windows} are needed"]
        if seen.moves < MIN_MOVES:
            return [f"the chains moved only {seen.moves:.2g} times each in the late windows"]
        if seen.stands_still:
            return ["q did not move at all in the late windows"]
        says = []
        if not seen.error <= self.tolerance:
            says.append(
                f"averaged λ known to {seen.error:.2g} sds where {self.tolerance:.2g} is asked"
            )
        if not seen.rhat <= self.rhat:
            says.append(f"R̂ {seen.rhat:.3g} where {self.rhat:.3g} is asked")
        if seen.drifts:
            says.append("q still drifts")
        if seen.skipped > MAX_SKIPPED:
            says.append(f"{seen.skipped:.0%} of the late updates were skipped")
        return says

    def words(self, seen: Convergence, steps: int) -> str:
        """Say in one line whether the rule is met."""
        if says := self.complaints(seen):
            return f"not converged after {steps} steps: {'; '.join(says)}"
        return (
            f"converged after {steps} steps: averaged λ known to {seen.error:.2g} sds, "
            f"R̂ {seen.rhat:.3g} over {seen.windows} late windows"
        )


class Windows(NamedTuple):
    """Means over windows of iterates, with the windows in front; replications come next."""

    origin: Any  # the iteration before the first window
    width: Any  # iterations in each
    q: Any
    mean: Any  # of that q
    sd: Any
    acceptance: Any
    skipped: Any
    states: Any  # where the points were, a few times in each of the late ones


def blank_windows(rule: Converged, method: Method, state: State, many: bool) -> Windows:
    """Return no windows yet, of a run that is or begins in this state (its shapes are enough)."""
    none = lambda x: np.zeros((0, *x.shape), x.dtype)  # noqa: E731
    mean, sd = jax.eval_shape(functools.partial(_moments, many=many), state.q)
    share = np.zeros((0, *state.step.shape))
    q = jax.tree.map(none, state.q)
    count = lambda n: np.asarray(n, np.int64)  # noqa: E731
    points = (
        np.zeros((0, 0)) if many else jax.eval_shape(functools.partial(kept_points, method), state)
    )
    states = none(points)
    return Windows(count(0), count(rule.every), q, none(mean), none(sd), share, share, states)


class Watch:
    """The rule at work: gathers windows, and says when it is met. Without a rule it does nothing.

    What it does depends on the iteration number and the iterates alone, so that progress bars,
    callbacks and checkpoints, which cut the run elsewhere, change nothing.
    """

    slopes = False  # whether gradients are kept beside the points
    hopeless = False  # whether the rule will not be met in time

    def __init__(self, rule: Converged | None, method: Method, windows: Windows | None) -> None:
        self.rule, self.windows = rule, windows
        self.seen = Convergence(0)
        self.met = False
        self._method = method
        self.keep = 0  # rows of points that the compiled loop keeps
        if windows is not None and windows.states[:1].shape[1:] != (0, 0):
            size = max(1, math.prod(windows.states.shape[1:]))
            self.keep = int(np.clip(CHUNK_NUMBERS // size, 1, max(MAX_KEPT, windows.width)))
        self._judge()

    def _judge(self) -> None:
        if self.rule is not None and self.windows is not None:
            self.seen = assess(self.windows)
            self.met = not self.rule.complaints(self.seen)

    def room(self, done: int) -> int:
        """Return the iterations that may run before the host must look."""
        if self.windows is None:
            return CHUNK_ROWS
        width = int(self.windows.width)
        room = width - (done - int(self.windows.origin)) % width
        return min(room, self.keep) if self.keep else room

    def after_chunk(self, state: State, parts: list[Trace], done: int, points: Any) -> State:
        """Keep the points now and then; at the end of a window keep it, judge, begin the next.

        `points` has those of each iteration of the chunk.
        """
        windows = self.windows
        if windows is None:
            return state
        n, width = len(parts[-1].loss), int(windows.width)
        last = (done - int(windows.origin) - 1) % width + 1
        if self.keep:
            marks = [m - 1 - (last - n) for m in _marks(windows) if last - n < m <= last]
            states = np.concatenate([windows.states, np.asarray(points)[marks]])
            windows = windows._replace(states=states)
        if last < width:
            self.windows = windows
            return state
        many = state.step.shape != ()
        assert state.average is not None
        rows = _last_rows(parts, int(windows.width))
        q = jax.tree.map(np.asarray, state.average.q)
        mean, sd = (np.asarray(x) for x in _moments(state.average.q, many))
        acceptance, skipped = (np.mean(x, 0, np.float64) for x in (rows[0], rows[1]))
        new = (q, mean, sd, acceptance, skipped)
        grown = jax.tree.map(lambda old, x: np.concatenate([old, x[None]]), windows[2:-1], new)
        windows = windows._replace(**dict(zip(Windows._fields[2:-1], grown)))
        windows = windows if len(windows.skipped) < MAX_WINDOWS else _merged(windows, many)
        late = len(_marks(windows)) * len(_late(windows.skipped))
        self.windows = windows._replace(states=windows.states[-late:])
        self._judge()
        return state._replace(average=Average(state.step, state.q))

    def average(self, state: State) -> Family:
        """Return the average of the late windows; before the first one ends, of all iterates."""
        assert state.average is not None
        if self.windows is None or not len(self.windows.skipped):
            return state.average.q
        late: Family = jax.tree.map(_late, self.windows.q)
        return late.pooled() if state.step.shape == () else Family.pooled(late)

    def late_states(self, state: State) -> tuple[Any, Any]:
        """Return the points a few times in each late window: (times, points, coordinates).

        They are as they were: no control variates balance them.
        """
        if self.windows is None or not self.windows.states.size:
            return None, None
        return self.windows.states, None

    def states_every(self) -> int:
        """Return the iterations between two of those times."""
        return 0 if self.windows is None else int(self.windows.width) // len(_marks(self.windows))

    def aim(self) -> Aim:
        """Say where the rule will likely be met, for errors fall as one over the root of steps."""
        if self.rule is None or self.windows is None:
            return Aim()
        seen, asked = self.seen, self.rule.tolerance
        if not math.isfinite(seen.error):
            return Aim(None, f"to be known to {asked:.2g} sds")
        steps = len(self.windows.skipped) * int(self.windows.width)
        steps = int(steps * max(1.0, seen.error / asked) ** 2)
        says = f"known to {seen.error:.2g} of {asked:.2g} sds"
        return Aim(int(self.windows.origin) + steps, says)

    def words(self, done: int) -> str:
        """Say what was seen last."""
        assert self.rule is not None
        return self.rule.words(self.seen, done)


def _marks(windows: Windows) -> list[int]:
    """Return after how many iterations of a window its points are kept; the last is its end."""
    width, n = int(windows.width), max(1, windows.states.shape[1])
    often = int(np.clip(KEPT_POINTS // n, MIN_KEPT, MAX_KEPT))
    marks = {width * i // often for i in range(1, often + 1)}
    return sorted(marks - {0})


@functools.partial(jax.jit, static_argnames="many")
def _moments(q: Family, many: bool) -> Any:
    one = lambda q: (q.mean, q.sd)  # noqa: E731
    return jax.vmap(one)(q) if many else one(q)


def _last_rows(parts: list[Trace], n: int) -> tuple[Any, Any]:
    """Return acceptance and skips of the last n iterations."""
    taken: list[Trace] = []
    missing = n
    for part in reversed(parts):
        if missing <= 0:
            break
        taken.append(part)
        missing -= len(part.loss)
    taken.reverse()
    return (
        np.concatenate([part.acceptance for part in taken])[-n:],
        np.concatenate([part.skipped for part in taken])[-n:],
    )


def _merged(windows: Windows, many: bool) -> Windows:
    """Return each two neighbours as one window of twice the width."""
    pairs = lambda x: x.reshape(-1, 2, *x.shape[1:]).mean(1, np.float64).astype(x.dtype)  # noqa: E731
    q = jax.tree.map(pairs, windows.q)
    moments = [
        _moments(jax.tree.map(lambda x, i=i: x[i], q), many) for i in range(MAX_WINDOWS // 2)
    ]
    mean, sd = (np.stack([np.asarray(x) for x in xs]) for xs in zip(*moments))
    shares = pairs(windows.acceptance), pairs(windows.skipped)
    return Windows(windows.origin, 2 * windows.width, q, mean, sd, *shares, windows.states[1::2])


def _late(x: Any) -> Any:
    """Return the second half of the windows, the middle one included."""
    return x[len(x) // 2 :]


def assess(windows: Windows) -> Convergence:
    """Return what the late windows say."""
    n = len(_late(windows.acceptance))
    if n < 4:
        return Convergence(n)
    mean, sd = (
        _late(x).astype(np.float64).reshape(n, -1, x.shape[-1]) for x in (windows.mean, windows.sd)
    )
    with np.errstate(all="ignore"):
        x = np.concatenate([mean / sd.mean(0), np.log(sd)], -1)
    acceptance, skipped = (
        _late(x).reshape(n, -1).mean(0) for x in (windows.acceptance, windows.skipped)
    )
    # a replication that has diverged keeps no other waiting
    runs = skipped < 1 if np.any(skipped < 1) else np.full(len(skipped), True)
    x, acceptance, skipped = x[:, runs], acceptance[runs], skipped[runs]
    finite = bool(np.all(np.isfinite(x)))
    return Convergence(
        n,
        float(np.max(monte_carlo_error(x))) if finite else math.inf,
        float(np.max(split_rhat(x))) if finite else math.inf,
        bool(np.any(drifts(x))) if finite else False,
        float(np.min(acceptance)) * n * int(windows.width),
        float(np.max(skipped)),
        bool(np.any(np.all(x == x[:1], (0, 2)))),
    )


def monte_carlo_error(x: Float[np.ndarray, "n r k"]) -> Float[np.ndarray, " r"]:
    """Return the standard error of the mean of n correlated values, in the worst of k coordinates.

    >>> x = np.random.default_rng(0).normal(size=(32, 1, 2))
    >>> bool(0.18 < monte_carlo_error(x)[0] < 0.36)  # 1/√32 is 0.18
    True
    """
    n = len(x)
    centred = x - x.mean(0)
    lagged, square = (centred[1:] * centred[:-1]).sum(0), (centred**2).sum(0)
    with np.errstate(all="ignore"):
        pooled = _unbiased(lagged.sum(-1) / square.sum(-1), n) + 3 / math.sqrt(n * x.shape[-1])
        own = _unbiased(lagged / square, n) + 1 / math.sqrt(n)
    rho = np.clip(np.nan_to_num(np.fmax(own, pooled[..., None])), 0, MAX_RHO)
    effective = n * (1 - rho) / (1 + rho)
    # the mean of n values over its estimated error is Student's t, of this variance
    student = (n - 1) / (n - 3)
    worst: Floats = np.sqrt(np.max(square / (n - 1) / effective, -1) * student)
    return worst


def _unbiased(rho: Floats, n: int) -> Floats:
    return rho + (1 + 3 * rho) / n


def split_rhat(x: Float[np.ndarray, "n r k"]) -> Float[np.ndarray, " r"]:
    """Return R̂ of the first and the second half of n values, variances summed over coordinates.

    >>> x = np.random.default_rng(0).normal(size=(32, 1, 100))
    >>> trend = 0.2 * np.arange(32)[:, None, None]
    >>> [round(float(split_rhat(y)[0]), 2) for y in (x, x + trend)]
    [1.0, 1.87]
    """
    half = len(x) // 2
    halves = np.stack([x[:half], x[-half:]])
    within = halves.var(1, ddof=1).mean(0).sum(-1)
    between = half * halves.mean(1).var(0, ddof=1).sum(-1)
    with np.errstate(all="ignore"):
        ratio: Floats = np.sqrt((between / within + half - 1) / half)
    return np.where(np.isnan(ratio), math.inf, ratio)


def drifts(x: Float[np.ndarray, "n r k"]) -> np.ndarray[Any, Any]:
    """Tell whether any coordinate goes one way: by Student's t of its slope, at one level for all.

    >>> x = np.random.default_rng(0).normal(size=(32, 1, 100))
    >>> steady = np.where(np.arange(100) == 7, np.arange(32)[:, None, None], 0)
    >>> drifts(x).tolist(), drifts(x + steady).tolist()
    ([False], [True])
    """
    n, _, k = x.shape
    time = np.arange(n) - (n - 1) / 2
    centred = x - x.mean(0)
    slope = np.tensordot(time, centred, 1) / np.sum(time**2)
    left = ((centred - time[:, None, None] * slope) ** 2).sum(0) / (n - 2)
    limit = stdtrit(n - 2, TREND_LEVEL / (2 * k)) ** 2
    return np.any(slope**2 * np.sum(time**2) > limit * left, -1)
