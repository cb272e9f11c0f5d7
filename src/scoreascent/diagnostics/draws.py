"""Draws of the posterior as a result gives them: of q, of q by weights, or states of the chains."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, stdtrit

from scoreascent._arrays import default_dtype
from scoreascent.diagnostics.psis import tail_shape
from scoreascent.diagnostics.stein import slopes, unexplained
from scoreascent.diagnostics.weights import resample
from scoreascent.families import Family
from scoreascent.run import Kept, Run
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

Source = Literal["q", "resampled", "chains"]
SOURCES: tuple[Source, ...] = ("q", "resampled", "chains")
SUMMARISED = 4000  # draws of q
MIN_STATES = 1000  # of the chains, that are taken before draws of q
MAX_STATES = 65_536  # of the chains, that a summary looks at
MAX_NUMBERS = 2**23  # of a model with so many sites that fewer states must do, but at least
MIN_SUMMARISED = 512  # of them
BLOCK = 1024  # of them, at which a model's sites are computed at a time
SUMMED = 2**19  # numbers that are summed at a time, which a processor keeps near
REGRESSED = 8192  # states, that tell how controls explain them
MAX_SHOWN_TAIL = 0.4  # a heavier tail's sd cannot be known from thousands of draws, if it exists
MAX_KNOWN_TAIL = 0.25  # a heavier tail's sd is shown if it is known: its own error has no variance
NO_MEAN_TAIL = 0.8  # nor this one's mean
STANDARD_ERRORS = 3.5  # that make an error which is hardly ever exceeded
LONG_TAIL = 3.6  # the kurtosis of one,
MORE_FOR_LONG_TAILS = 1.4  # and by how much the error of its sd then counts


def best_source(run: Run) -> Source:
    """Return which draws to trust most.

    States of many chains in the late steps of a run are draws of the posterior itself, whatever
    its shape, in the model's own space as in ℝᵈ; draws of q have its means and sds in ℝᵈ alone.
    """
    states = late_states(run)
    return "q" if states is None or states.shape[0] * states.shape[1] < MIN_STATES else "chains"


def late_states(run: Run) -> np.ndarray[Any, Any] | None:
    """Return states (times, chains, d) of the chains in the late steps; None if not kept whole."""
    if run.replications is not None or run.states is None or not run.method.chains:
        return None
    if run.states.shape[-1] != run.target.dim:
        return None
    return np.asarray(run.states)[:, -run.method.chains :]


def points(run: Run, key: PRNGKeyArray, n: int, source: str) -> Float[Array, "n d"]:
    """Return n draws of a single fit as points of ℝᵈ; `draw` names the same ones."""
    if source not in SOURCES:
        raise ValueError(f"draws must be 'q', 'resampled' or 'chains', got {source!r}")
    if source == "q":
        return _points_of_q(key, run.q, n)
    if source == "resampled":
        return jnp.asarray(resample(run, key, n, 10 * n))
    states = late_states(run)
    if states is None:
        raise ValueError(
            "draws='chains': this fit kept no states of chains; give it stop=Converged(), or take "
            "'resampled'"
        )
    flat = jnp.asarray(states.reshape(-1, states.shape[-1]))
    return flat[jax.random.choice(key, len(flat), (n,), replace=len(flat) < n)]


def draw(run: Run, key: PRNGKeyArray, n: int, source: str) -> dict[str, Float[Array, "n ..."]]:
    """Return n named draws inside their supports; with replications, these stand in front."""
    if source not in SOURCES:
        raise ValueError(f"draws must be 'q', 'resampled' or 'chains', got {source!r}")
    if run.kept is not None and source == run.kept.source:
        return _of_kept(run.kept.draws, key, n, 0 if run.replications is None else 1)
    if run.replications is not None:
        if source != "q":
            raise ValueError(f"draws={source!r} needs one fit; take one, such as result[0]")
        keys = jax.random.split(key, run.replications)
        axes = (0, 0, 0 if run.data_replicated else None)
        many = jax.vmap(lambda k, q, t: _of_q(k, q, t, n), axes)
        return in_order(run, many(keys, run.q, run.target))
    if source == "q":
        return in_order(run, _of_q(key, run.q, run.target, n))
    return named(run, points(run, key, n, source))


def _held(kept: Kept | None, source: str, axis: int) -> int:
    """Return of how many draws of q a summary is: of those that a file holds, if it is of one."""
    if kept is None or source != kept.source:
        return SUMMARISED
    return int(next(iter(kept.draws.values())).shape[axis])


def _of_kept(draws: dict[str, Any], key: PRNGKeyArray, n: int, axis: int) -> dict[str, Any]:
    """Return n different ones of the draws that a file holds."""
    held = next(iter(draws.values())).shape[axis]
    if n > held:
        raise ValueError(
            f"n must be at most {held}, the draws that the file holds, got {n}; for more, give the "
            "target: sa.load(path, target)"
        )
    if n == held:
        return {name: jnp.asarray(x) for name, x in draws.items()}
    at = np.asarray(jax.random.permutation(key, held))[:n]
    return {name: jnp.asarray(np.take(x, at, axis)) for name, x in draws.items()}


def named(run: Run, z: Any) -> dict[str, Float[Array, "n ..."]]:
    """Return points of ℝᵈ, the rows of z, as named parameters inside their supports."""
    return in_order(run, _named(run.target, jnp.asarray(z)))


def in_order(run: Run, draws: dict[str, Any]) -> dict[str, Any]:
    """Put the free parameters first, as the target has them; compiled code sorts names."""
    return {name: draws[name] for name in dict.fromkeys((*run.target.site_names, *draws))}


@jax.jit
def _named(target: Target, z: Any) -> dict[str, Any]:
    return jax.vmap(target.named)(z)


def _named_in_blocks(target: Target, z: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the same on the host, by one compiled program whatever the number of points."""
    n, block = len(z), min(BLOCK, 1 << max(0, (len(z) - 1).bit_length()))
    padded = np.concatenate([z, np.repeat(z[-1:], -n % block, axis=0)])
    parts = [_named(target, padded[i : i + block]) for i in range(0, n, block)]
    return {name: np.concatenate([np.asarray(p[name]) for p in parts])[:n] for name in parts[0]}


@functools.partial(jax.jit, static_argnames="n")
def _of_q(key: PRNGKeyArray, q: Family, target: Target, n: int) -> dict[str, Float[Array, "n ..."]]:
    return jax.vmap(target.named)(q.sample(key, (n,)))


@functools.partial(jax.jit, static_argnames="n")
def _points_of_q(key: PRNGKeyArray, q: Family, n: int) -> Float[Array, "n d"]:
    return q.sample(key, (n,))


# -- summaries -------------------------------------------------------------------------------------


def summarise(run: Run, source: Source) -> list[dict[str, Any]]:
    """Return a row for every scalar: mean, sd and 90 % interval, and how well the first are known.

    `mean_error` and `sd_error` are Monte Carlo standard errors, from the spread of the chains' own
    averages; they are NaN for draws of q, whose error only a diagnosis can tell. `tail` is the
    shape of the scalar's heavier tail; where it is so heavy that no number of draws that one has
    tells the standard deviation, or the mean, that is NaN. Where it is nearly so heavy the standard
    deviation is NaN if it is not known to the run's tolerance.
    """
    controls = None
    if source == "chains":
        states = late_states(run)
        assert states is not None
        states, controls = some_states(run.target, states, run.controls)
        flat = states.reshape(-1, states.shape[-1])
        draws: Any = in_order(run, _named_in_blocks(run.target, flat))
        shape: tuple[int, ...] = states.shape[:2]
    else:
        n = _held(run.kept, source, 0 if run.replications is None else 1)
        draws = draw(run, jax.random.key(0), n, source)
        shape = (n,) if run.replications is None else (run.replications, n)
    rows = []
    for site, values in draws.items():
        array = np.asarray(values, np.float64)
        array = array.reshape(*shape, *array.shape[1 if source == "chains" else len(shape) :])
        inner = array.shape[len(shape) :]
        found = numbers_of(array, shape, source, controls, run.tolerance / STANDARD_ERRORS)
        for name, numbers in zip(scalar_names(site, inner), found):
            rows.append({"name": name, **numbers})
    return rows


def scalar_names(site: str, shape: tuple[int, ...]) -> list[str]:
    """Name every scalar of a site.

    >>> scalar_names("tau", ()), scalar_names("theta", (2,))
    (['tau'], ['theta[0]', 'theta[1]'])
    """
    at = [",".join(map(str, index)) for index in np.ndindex(shape)]
    return [f"{site}[{index}]" if index else site for index in at]


def count_scalars(target: Target) -> int:
    """Return how many scalars a point of ℝᵈ has in the model's own space."""
    z = jax.ShapeDtypeStruct((target.dim,), default_dtype())
    shapes = jax.eval_shape(target.named, z)
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes))


def numbers_of(
    array: Any, shape: tuple[int, ...], source: Source, controls: Any, limit: float
) -> list[dict[str, float]]:
    """Return the numbers of every scalar of one site."""
    flat = array.reshape(*shape, -1)
    error = np.full((2, flat.shape[-1]), np.nan)
    if source == "chains":
        error = np.stack(moment_errors(flat, controls))
        flat = flat.reshape(-1, flat.shape[-1])
    axis = flat.ndim - 2
    mean, sd = np.mean(flat, axis), np.std(flat, axis, ddof=1)
    quantiles = list(np.quantile(flat, [0.05, 0.5, 0.95], axis=axis))
    if flat.ndim == 3:
        tail = np.full(flat.shape[-1], np.nan)
        mean, sd, *quantiles = (np.mean(s, 0) for s in (mean, sd, *quantiles))
    else:
        tail = tail_shapes(flat)
    with np.errstate(all="ignore"):
        unknown = np.stack([tail > NO_MEAN_TAIL, too_heavy(tail, error[1] / sd, limit)])
    mean, sd = np.where(unknown, np.nan, [mean, sd])
    error = np.where(unknown, np.nan, error)
    names = ("mean", "sd", "q05", "q50", "q95", "mean_error", "sd_error", "tail")
    return [
        dict(zip(names, map(float, numbers), strict=True))
        for numbers in zip(mean, sd, *quantiles, *error, tail, strict=True)
    ]


def tail_shapes(x: Float[np.ndarray, "n k"]) -> Any:
    """Return the shape of the heavier tail of every column; −∞ of those that are not finite."""
    finite = np.all(np.isfinite(x), axis=0)
    return np.array([tail_shape(c) if ok else -np.inf for c, ok in zip(x.T, finite)])


def some_states(target: Target, states: Any, controls: Any = None) -> tuple[Any, Any]:
    """Return as many times of states (times, chains, d), and of controls, as a summary looks at."""
    times, n, _ = states.shape
    most = max(MIN_SUMMARISED, min(MAX_STATES, MAX_NUMBERS // count_scalars(target)))
    thin = -(-times * n // most)
    return states[::-1][::thin], None if controls is None else controls[::-1][::thin]


def own_errors(
    target: Target, states: Any, limit: float, controls: Any = None, most: int = 10
) -> tuple[Float[np.ndarray, "times chains k"], Float[np.ndarray, " k"]]:
    """Return a model's own scalars at states (times, chains, d), and how badly each is known.

    That is the larger standard error of its mean and sd, in its sds. Scalars whose tails are too
    heavy for an sd do not count: if the error exceeds the limit their tail is looked at. Where very
    many exceed it, tails are looked at until so `most` of those known worst count as they are.
    """
    named = _named_in_blocks(target, states.reshape(-1, states.shape[-1])).values()
    x = np.concatenate([np.asarray(x).reshape(*states.shape[:2], -1) for x in named], axis=-1)
    error = careful_errors(x, controls)
    counted = 0
    for i in np.argsort(-np.nan_to_num(error, nan=0.0), kind="stable"):
        if not error[i] > limit or counted == most:
            break
        column = x[..., i : i + 1].astype(np.float64)
        tail = tail_shape(column.ravel())
        if too_heavy(tail, error[i], limit):
            mean_error, _ = moment_errors(column, controls)
            error[i] = 0.0 if tail > MAX_SHOWN_TAIL else mean_error[0] / column.std()
        else:
            counted += 1
    return x, np.nan_to_num(error, posinf=0.0)


def standard_errors(chains: int) -> float:
    """Return how many make an error that is hardly ever exceeded, if so many chains tell them.

    Of few chains a standard error is itself not known well, and a rule that waits for it to be
    small ends a run when it is smaller than it should be: Student's t has longer tails.

    >>> [round(standard_errors(n), 1) for n in (8, 32, 1000)]
    [6.2, 3.9, 3.5]
    """
    return float(stdtrit(max(chains, 2) - 1, ndtr(STANDARD_ERRORS)))


def too_heavy(tail: Any, sd_error: Any, limit: float) -> Any:
    """Tell where a scalar's tail is too heavy for its sd to be shown."""
    return (tail > MAX_SHOWN_TAIL) | ((tail > MAX_KNOWN_TAIL) & (sd_error > limit))


class Sums(NamedTuple):
    """What the errors of means and sds are made of; see `_sums`."""

    sd: Any
    kurtosis: Any
    averages: Any  # (2, chains, k): every chain's, of x less its mean and of the square of that
    beta: Any  # (2, controls, k): how controls explain both; None without any


def careful_errors(x: Float[np.ndarray, "times chains k"], controls: Any = None) -> Any:
    """Return the larger standard error of every mean and sd, in sds, and more for long tails' sds.

    Where a tail is long, chains that have not been far out take its sd for smaller than it is, and
    the error of that sd too.

    >>> x = np.random.default_rng(0).normal(size=(50, 100, 1))
    >>> plain, long = (float(careful_errors(y)[0]) for y in (x, np.exp(x)))
    >>> bool(plain < 0.03 and long > 2 * plain)
    True
    """
    with np.errstate(all="ignore"):
        sums = _sums(x, controls)
        mean_error, sd_error = _errors(sums, controls)
        sd_error = np.where(sums.kurtosis > LONG_TAIL, MORE_FOR_LONG_TAILS * sd_error, sd_error)
        return np.fmax(mean_error, sd_error) / sums.sd


def moment_errors(x: Float[np.ndarray, "times chains k"], controls: Any = None) -> tuple[Any, Any]:
    """Return the standard errors of means and sds over chains that move independently.

    A chain's own average varies as its states correlate, so the spread of the averages over n
    chains, divided by √n, needs no autocorrelation. An sd's error is that of its variance / 2 sd.
    Of states that were balanced by `controls`, what these do not explain is all that errs.

    >>> x = np.random.default_rng(0).normal(size=(20, 100, 1))
    >>> [bool(0.7 < e[0] * np.sqrt(w) < 1.3) for e, w in zip(moment_errors(x), (2000, 4000))]
    [True, True]
    """
    with np.errstate(all="ignore"):
        return _errors(_sums(x, controls), controls)


def _sums(x: Float[np.ndarray, "times chains k"], controls: Any) -> Sums:
    """Return sums over the states, taken a few times of them at a time: what is small is quick."""
    times, chains, k = x.shape
    mean = x.mean((0, 1), dtype=np.float64)
    first, fourth = np.zeros((2, chains, k)), np.zeros(k)
    some = max(1, SUMMED // (chains * k))
    for i in range(0, times, some):
        away = x[i : i + some] - mean
        square = away * away
        for total, y in zip(first, (away, square)):
            total += y.sum(0)
        fourth += np.square(square, out=square).sum((0, 1))
    variance = first[1].sum(0) / (times * chains)
    kurtosis = fourth / (times * chains * variance**2)
    beta = None
    if controls is not None:
        thin = -(-times * chains // REGRESSED)
        away = x[::thin] - mean
        beta = np.stack([slopes(y, controls[::thin]) for y in (away, away * away)])
    return Sums(np.sqrt(variance), kurtosis, first / times, beta)


def _errors(sums: Sums, controls: Any) -> tuple[Any, Any]:
    """Return the standard errors of means and sds."""
    rest, known = sums.averages, np.zeros((2, 1))
    if controls is not None:
        rest, known = unexplained(rest, sums.beta, controls)
    errors = np.hypot(rest.std(1, ddof=1) / np.sqrt(rest.shape[1]), known)
    return errors[0], errors[1] / (2 * sums.sd)
