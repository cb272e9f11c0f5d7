"""Chains that move by themselves: a metric learnt rung by rung, and when their states suffice.

q stands still while chains of HMC move. Each time the number of steps has doubled q is set anew, to
the Gaussian that the states of the second half and the gradients there ask for; so what the chains
are moved by changes ever more seldom, and half of all states are always of one q. The run ends when
these states tell every mean and standard deviation well enough, by the spread of the chains' own
averages: no window and no autocorrelation is estimated, and few looks are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from scoreascent._progress import Aim
from scoreascent._structs import Config, check_count
from scoreascent.diagnostics import stein
from scoreascent.diagnostics.chains import rhat
from scoreascent.diagnostics.draws import careful_errors, own_errors, some_states
from scoreascent.families import Family, FewDirections, FullRank
from scoreascent.loop import CHUNK_ROWS, State, Trace, kept_points
from scoreascent.methods import Method
from scoreascent.run import Convergence
from scoreascent.target import Target

if TYPE_CHECKING:
    Floats = np.ndarray[Any, np.dtype[np.float64]]

QUARTERS = 4  # looks from one rung to the next
FIRST_LOOK = 80  # steps, after which looks begin
CHUNK_NUMBERS = 2**22  # that the compiled loop keeps before the host takes them
MAX_NUMBERS = 2**25  # of late states and gradients, that are kept; more are thinned
MAX_STATES = 40_000
MIN_MOVES = 10  # moves of a chain in the late steps below which they say nothing
MAX_WHOLE = 1000  # dimensions; beyond, correlations are learnt in the directions that matter most,
DIRECTIONS = 48  # so many of the states' and of the gradients',
POWERS = 3  # found by so many powers of their covariances
MAX_RATIO = 1e12  # of variances by states and by gradients
RIDGE = 0.02  # of the mean variance, times d/n: what keeps both covariances invertible
PATIENCE = 2560  # steps before a run may be given up
LEARNS_AFRESH = 40  # steps up to which a new q begins a new search for the step size
AS_IF_AFTER = 5  # steps, later
MAY_STRETCH = 320  # steps after which trajectories may be longer, so many times,
LONGER = 2.0
MAX_LAG = 3.0  # if a coordinate is known so many times worse than most
MAX_BALANCED = 10  # coordinates, those known worst, by whose control variates states are balanced
STATES_A_CONTROL = 50  # at least
MIN_GAIN = 0.8  # the worst error after it, as a share of that before


@dataclass(frozen=True, repr=False)
class Ladder(Config):
    """Stop when late states of chains that move by themselves tell all means and sds.

    The standard errors of means, in posterior sds, and of log sds must be at most `tolerance`, and
    R̂ of every coordinate over the chains at most `rhat`. q is set after `first` steps, and then
    each time their number has doubled. A run that would take twice `most` steps at the rate at
    which errors fall is given up.

    >>> Ladder(tolerance=0.05)
    Ladder(tolerance=0.05)
    """

    tolerance: float = 0.0285
    rhat: float = 1.04
    first: int = 5
    most: int = 20480

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < math.inf:
            raise ValueError(f"tolerance must be positive and finite, got {self.tolerance!r}")
        if not 1 < self.rhat < math.inf:
            raise ValueError(f"rhat must be above 1 and finite, got {self.rhat!r}")
        object.__setattr__(self, "first", check_count("first", self.first, 2))
        object.__setattr__(self, "most", check_count("most", self.most, self.first))

    @property
    def averages(self) -> str:
        """What is averaged, in words."""
        return f"states of the second half, rungs of {self.first} steps and more"

    def complaints(self, seen: Convergence) -> list[str]:
        """Say why the rule is not met, in words; nothing if it is."""
        if not seen.windows:
            return ["no look was taken yet"]
        if seen.moves < MIN_MOVES:
            return [f"the chains moved only {seen.moves:.2g} times each in the late steps"]
        says = []
        if not seen.error <= self.tolerance:
            says.append(
                f"means and sds known to {seen.error:.2g} sds where {self.tolerance:.2g} is asked"
            )
        elif not seen.rhat <= self.rhat:
            says.append(f"R̂ {seen.rhat:.3g} over the chains where {self.rhat:.3g} is asked")
        return says

    def words(self, seen: Convergence, steps: int) -> str:
        """Say in one line whether the rule is met."""
        if says := self.complaints(seen):
            return f"not converged after {steps} steps: {'; '.join(says)}"
        return (
            f"converged after {steps} steps: means and sds known to {seen.error:.2g} sds, "
            f"R̂ {seen.rhat:.3g} over the chains"
        )

    def blank(self, method: Method, state: State, many: bool) -> Rungs:
        """Return no states yet, of a run that begins in this state (its shapes are enough)."""
        if many:
            raise ValueError("a ladder is for one fit, not for replications")
        slopes = self.keeps_slopes(method)
        points = jax.eval_shape(lambda s: kept_points(method, s, slopes), state)
        count = lambda n: np.asarray(n, np.int64)  # noqa: E731
        none = np.zeros((0, *points.shape), points.dtype)
        return Rungs(count(0), count(1), count(0), np.zeros(6), np.zeros(0, np.int64), none)

    def keeps_slopes(self, method: Method) -> bool:
        """Tell whether gradients are kept beside the states."""
        return not method.is_independent

    def watch(self, method: Method, rungs: Rungs, target: Target) -> Climb:
        """Return the rule at work."""
        return Climb(self, method, rungs, target)


class Rungs(NamedTuple):
    """Late states and gradients of the chains: rows (times, chains, 2d), and their step numbers.

    Chains of independent proposals have no gradients: their rows are (times, chains, d).
    """

    origin: Any  # the iteration before the first
    thin: Any  # iterations between two rows
    looks: Any  # how often the rule was asked
    told: Any  # what the last look told: times, error, R̂, moves, steps; the error before that
    at: Any
    points: Any


class Climb:
    """The rule at work: keeps late states, sets q rung by rung, and says when it is met.

    What it does depends on the iteration number and the states alone, so that progress bars,
    callbacks and checkpoints, which cut the run elsewhere, change nothing.
    """

    def __init__(self, rule: Ladder, method: Method, rungs: Rungs, target: Target) -> None:
        self.rule, self.windows, self._method, self._target = rule, rungs, method, target
        self.slopes = rule.keeps_slopes(method)
        self.seen = Convergence(0)
        self.met = self.hopeless = False
        self._last: tuple[Any, Family, Balanced] | None = None
        size = max(1, math.prod(rungs.points.shape[1:]))
        self.keep = int(np.clip(CHUNK_NUMBERS // size, 1, CHUNK_ROWS))
        self._most = min(MAX_STATES // max(1, method.chains), MAX_NUMBERS // size)
        if int(rungs.looks):
            self._conclude()

    def room(self, done: int) -> int:
        """Return the iterations that may run before the host must look."""
        return min(self.keep, self._next_mark(done - int(self.windows.origin)))

    def after_chunk(self, state: State, parts: list[Trace], done: int, points: Any) -> State:
        """Keep the states of the chunk; at a mark look at them, at a rung set q."""
        rungs = self.windows
        n, steps = len(parts[-1].loss), done - int(rungs.origin)
        numbers = np.arange(steps - n + 1, steps + 1)
        rows = np.flatnonzero(numbers % int(rungs.thin) == 0)
        at = np.concatenate([rungs.at, numbers[rows]])
        kept = np.concatenate([rungs.points, np.asarray(points)[rows]])
        is_mark, is_rung = self._is_mark(steps)
        if is_mark:
            late = 2 * at > steps
            at, kept = at[late], kept[late]
            while len(at) > max(2, self._most):
                rungs = rungs._replace(thin=2 * rungs.thin)
                even = at % int(rungs.thin) == 0
                at, kept = at[even], kept[even]
        self.windows = rungs._replace(at=at, points=kept)
        if is_mark and steps >= FIRST_LOOK:
            self._look(state, steps)
            self._conclude()
        return self._on_rung(state, steps) if is_rung and self.slopes and not self.met else state

    def average(self, state: State) -> Family:
        """Return the Gaussian with the moments of the late states."""
        states, _ = self.late_states(state)
        if states is None or len(states) * states.shape[1] < 2:
            return state.q
        # q that stood still, and whose own proposals were accepted, knows correlations better
        share = None if self.slopes else 1.0
        return gaussian(states.reshape(-1, states.shape[-1]), state.q, share)

    def late_states(self, state: State) -> tuple[Any, Any]:
        """Return the late states (times, chains, d), and the controls that balance them, if any."""
        if not len(self.windows.points):
            return None, None
        found = self._balanced(state.q)
        return found.states, found.controls

    def states_every(self) -> int:
        """Return the iterations between two of those times."""
        return int(self.windows.thin)

    def aim(self) -> Aim:
        """Say where the rule will likely be met, for errors fall as one over the root of steps."""
        seen, asked = self.seen, self.rule.tolerance
        if not seen.windows or not math.isfinite(seen.error):
            return Aim(None, f"to be known to {asked:.2g} sds")
        steps = int(self.windows.told[4] * max(1.0, seen.error / asked) ** 2)
        says = f"known to {seen.error:.2g} of {asked:.2g} sds"
        return Aim(int(self.windows.origin) + steps, says)

    def words(self, done: int) -> str:
        """Say what was seen last."""
        return self.rule.words(self.seen, done)

    def _look(self, state: State, steps: int) -> None:
        """Ask the late states, and keep what they tell with them."""
        looks, found = self.windows.looks + 1, self._balanced(state.q)
        seen = assess(found.states, int(looks), self.rule.tolerance, found.error)
        before = self.windows.told[1]
        told = np.array([seen.windows, seen.error, seen.rhat, seen.moves, steps, before])
        self.windows = self.windows._replace(looks=looks, told=told)

    def _balanced(self, q: Family) -> Balanced:
        """Return the late states, balanced; what is asked again is not computed again."""
        points = self.windows.points
        if self._last is None or self._last[0] is not points or self._last[1] is not q:
            self._last = (points, q, balanced(self._target, points, q, self.rule.tolerance))
        return self._last[2]

    def _conclude(self) -> None:
        """Say whether the rule is met, or will not be in time."""
        times, error, between, moves, steps, before = self.windows.told.tolist()
        looks = int(self.windows.looks)
        self.seen = Convergence(int(times), error, between, moves=moves, looks=looks)
        self.met = not self.rule.complaints(self.seen)
        needed = steps * (min(error, before) / self.rule.tolerance) ** 2
        self.hopeless = steps >= PATIENCE and needed > 2 * self.rule.most

    def _next_mark(self, steps: int) -> int:
        return next(
            i for i in range(1, 2 + max(steps, self.rule.first)) if self._is_mark(steps + i)[0]
        )

    def _is_mark(self, steps: int) -> tuple[bool, bool]:
        """Tell whether states are looked at after so many steps, and whether that is a rung."""
        rung = self.rule.first
        while 2 * rung <= steps:
            rung *= 2
        looks = QUARTERS if rung >= FIRST_LOOK else 1
        is_mark = steps >= rung and (steps - rung) * looks % rung == 0
        return is_mark, steps == rung

    def _on_rung(self, state: State, steps: int) -> State:
        """Return the state with q set anew, and a step size that learns it."""
        dim = state.q.dim
        points = self.windows.points.reshape(-1, 2 * dim)
        if dim <= MAX_WHOLE:  # beyond, a copy with more digits would take longer than all else
            points = points.astype(np.float64)
        q = metric(points[:, :dim], points[:, dim:], state.q)
        taken = 0 if steps <= LEARNS_AFRESH else AS_IF_AFTER
        stretch = LONGER if steps >= MAY_STRETCH and self._lags() else 1.0
        return state._replace(q=q, eta=self._method.afresh(state.eta, taken, stretch))

    def _lags(self) -> bool:
        """Tell whether a few coordinates are known far worse than most, for they move slowly."""
        points = self.windows.points
        error = errors(points[..., : points.shape[-1] // 2])
        return bool(np.max(error) > MAX_LAG * np.median(error))


class Balanced(NamedTuple):
    """States (times, chains, d), controls at them if these are of use, and the worst error."""

    states: Any
    controls: Any
    error: float


def balanced(target: Target, points: Any, q: Family, tolerance: float) -> Balanced:
    """Return the states of points (times, chains, 2d), balanced by control variates if that helps.

    The worst error is that of all coordinates and of all of the model's own scalars. Where some are
    not known to the tolerance, states are taken so that the control variates of the coordinates
    that matter to those known worst average to zero, if the worst error gets smaller by it. Points
    (times, chains, d) are states without gradients, and there are no control variates.
    """
    dim = target.dim
    states = points[..., :dim]
    some, _ = some_states(target, states)
    error = errors(states)
    own, own_error = own_errors(target, some, tolerance)
    worst = float(np.max(np.concatenate([error, own_error])))
    plain = Balanced(states, None, worst)
    most = min(MAX_BALANCED, states[..., 0].size // (STATES_A_CONTROL * stein.PER_COORDINATE))
    most = most if points.shape[-1] > dim else 0
    if not most or not tolerance < worst < np.inf or not np.all(np.isfinite(points)):
        return plain
    at = _coordinates(error, some, own, own_error, most, tolerance)
    controls = stein.zero_means(states, points[..., dim:], _root(q), at)
    times = stein.balanced(controls)
    if times is None:
        return plain
    chain = np.arange(states.shape[1])
    states, controls = states[times, chain], controls[times, chain]
    after = float(np.max(errors(states, controls)))
    if after <= max(tolerance, MIN_GAIN * worst):
        some, some_controls = some_states(target, states, controls)
        after = max(after, *own_errors(target, some, tolerance, some_controls)[1])
    if after > max(tolerance, MIN_GAIN * worst):
        return plain
    return Balanced(states, controls.astype(np.float32), after)


def _coordinates(error: Any, z: Any, own: Any, own_error: Any, most: int, limit: float) -> Any:
    """Return the coordinates that matter most to what is known worst, beyond a limit.

    To one of the model's own scalars that is the one that it correlates with most.
    """
    found = dict.fromkeys((float(error[i]), int(i)) for i in np.flatnonzero(error > limit))
    x = z.reshape(-1, z.shape[-1]).astype(np.float64)
    x = (x - x.mean(0)) / x.std(0)
    for i in np.argsort(-own_error)[:most]:
        if own_error[i] > limit:
            y = own[..., i].ravel().astype(np.float64)
            found[float(own_error[i]), int(np.argmax(np.abs((y - y.mean()) @ x)))] = None
    ranked = dict.fromkeys(i for _, i in sorted(found, reverse=True))
    return np.sort(list(ranked)[:most])


def assess(states: Any, looks: int, tolerance: float, error: float | None = None) -> Convergence:
    """Return what late states (times, chains, d) of the chains say; R̂ only if the error allows."""
    x = np.asarray(states, np.float64)
    if len(x) < 4:
        return Convergence(0)
    with np.errstate(all="ignore"):
        worst = float(np.max(errors(x))) if error is None else error
        between = float(np.max(rhat(np.swapaxes(x, 0, 1)))) if worst <= tolerance else math.inf
    moves = np.mean(np.sum(np.any(x[1:] != x[:-1], axis=2), axis=0))
    worst, between = (x if np.isfinite(x) else math.inf for x in (worst, between))
    return Convergence(len(x), worst, between, moves=float(moves), looks=looks)


def errors(states: Any, controls: Any = None) -> Floats:
    """Return the larger standard error of every coordinate's mean and sd, in its sds."""
    worse: Floats = careful_errors(np.asarray(states), controls)
    return worse


def metric(z: Floats, g: Floats, before: Family) -> Family:
    """Return the Gaussian for whose covariance Σ the states z and Σ times the gradients g agree.

    Both covariances, C of the states and G of the gradients, are noisy in the same way: for a
    Gaussian posterior G is Σ⁻¹ C Σ⁻¹, wherever the states are and however few, so the solution of
    Σ G Σ = C, their geometric mean C # G⁻¹, is exact. With fewer states than dimensions only its
    diagonal is taken, (Var z / Var g)^½.
    """
    n, dim = z.shape
    mean = z.mean(0, dtype=np.float64)
    away, slopes = (x - x.mean(0, dtype=np.float64).astype(x.dtype) for x in (z, g))
    with np.errstate(all="ignore"):
        var, var_g = (np.mean(x**2, 0, dtype=np.float64) for x in (away, slopes))
        unit = (var / var_g) ** 0.25
    plain = np.where(var > 0, np.sqrt(var), np.asarray(before.sd, np.float64))
    unit = np.where(np.isfinite(unit) & (unit > 0), unit, plain)
    few = isinstance(before, FewDirections)
    dtype: Any = before.mean.dtype
    found: Family = _full_rank(mean, np.diag(unit), before)
    if few:
        found = FewDirections.plain(mean.astype(dtype), unit.astype(dtype), 2 * DIRECTIONS)
    if n > dim:
        try:
            x, y = away / unit.astype(z.dtype), slopes * unit.astype(z.dtype)
            if few:
                whole: Family = _in_few_directions(mean, unit, x, y, before)
            else:
                tril = unit[:, None] * np.linalg.cholesky(_geometric_mean(x, y))
                whole = _full_rank(mean, tril, before)
            if all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(whole)):
                found = whole
        except (np.linalg.LinAlgError, ValueError):
            pass
    return found


def first_metric(q: Family) -> Family:
    """Return the q that chains begin with: of a family that is quick in so many dimensions."""
    if q.dim <= MAX_WHOLE:
        return q
    return FewDirections.plain(q.mean, q.sd, 2 * DIRECTIONS)


def _geometric_mean(x: Floats, y: Floats) -> Floats:
    """Return C # G⁻¹ of the second moments C of the rows of x and G of those of y."""
    c, g = _second_moments(x), _second_moments(y)
    half = np.linalg.cholesky(c)
    values, vectors = np.linalg.eigh(half.T @ g @ half)
    factor = half @ (vectors * np.clip(values, 1 / MAX_RATIO, MAX_RATIO) ** -0.25)
    return factor @ factor.T


def _in_few_directions(
    mean: Floats, unit: Floats, x: Floats, y: Floats, before: Family
) -> FewDirections:
    """Return the same where it matters most: in the widest directions of x and of y, else one."""
    some = np.random.default_rng(0).standard_normal((x.shape[1], DIRECTIONS)).astype(x.dtype)
    axes = []
    for z in (x, y):
        basis = some
        for _ in range(POWERS):
            basis = np.linalg.qr(z.T @ (z @ basis))[0]
        axes.append(basis)
    basis = np.linalg.qr(np.concatenate(axes, axis=1))[0]
    inner = _geometric_mean(*((z @ basis).astype(np.float64) for z in (x, y)))
    values, vectors = np.linalg.eigh(inner)
    parts: Any = (mean, unit, basis @ vectors, np.sqrt(values))
    return FewDirections(*(part.astype(before.mean.dtype) for part in parts))


def gaussian(z: Any, before: Family, share: float | None = None) -> Family:
    """Return the Gaussian with the means and sds of the states z, and correlations as they say.

    As long as the states do not outnumber the dimensions by far, their correlations are shrunk
    towards those of the q that moved them; or by a `share`, 1 for those of q alone.
    """
    z = np.asarray(z, np.float64)
    n, dim = z.shape
    mean, sd = z.mean(0), z.std(0)
    old = _root(before)
    old = old / np.sqrt(np.sum(old**2, 1))[:, None]
    with np.errstate(all="ignore"):
        x = (z - mean) / sd
    if not np.all(np.isfinite(x)):
        return before
    share = dim / (n + dim) if share is None else share
    correlation = (1 - share) * (x.T @ x / n) + share * (old @ old.T)
    try:
        tril = sd[:, None] * np.linalg.cholesky(correlation)
    except np.linalg.LinAlgError:
        tril = sd[:, None] * old
    return _full_rank(mean, tril, before)


def _root(q: Any) -> Floats:
    """Return a factor F of q's covariance F Fᵀ."""
    return np.asarray(q.root if isinstance(q, FewDirections) else q.tril, np.float64)


def _second_moments(x: Floats) -> Floats:
    """Return the second moments of the rows of x, with a small multiple of the identity."""
    n, dim = x.shape
    c = x.T @ x / n
    ridge: Floats = (RIDGE * dim / n + 1e-9) * np.trace(c) / dim * np.eye(dim)
    return c + ridge


def _full_rank(mean: Floats, tril: Floats, before: Family) -> Family:
    """Return the `FullRank` with this mean and Cholesky factor, in the dtype of before."""
    dtype = before.mean.dtype
    return FullRank.from_factor(mean.astype(dtype), tril.astype(dtype))
