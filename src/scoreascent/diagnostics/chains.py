"""Whether chains agree, and how many independent draws they are worth.

Rank-normalised split R̂ and effective sample sizes (Vehtari, Gelman, Simpson, Carpenter, Bürkner
2021). Every function takes draws of shape (chains, draws, ...), treats each coordinate of the
trailing axes by itself and returns an array of their shape: a number for (chains, draws). Chains
are cut in halves; of an odd number of draws the middle one is left out.

NaN says that there is no telling: with fewer than four draws, where a value is not finite, and
for R̂ with one chain. All is as in ArviZ but for infinite values, which it ranks, and for tied
draws at a quantile, which ArviZ 0.23 now and then rounds to one side of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import next_fast_len
from scipy.special import ndtri

from scoreascent.theory._checks import Floats, real, unwrap

_LEAST_DRAWS = 4
_BLOCK = 2**20  # numbers worked on at a time: many coordinates do not need much memory


def rhat(x: ArrayLike) -> Floats:
    """R̂: 1 where chains agree in place and in spread; above 1.01 they do not yet.

    It is the larger R̂ of the ranks and of the ranks of the distances from the median. NaN for
    a coordinate that is one constant, +inf for chains each stuck in a place of its own.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000))
    >>> round(float(rhat(draws)), 2), round(float(rhat(draws + np.arange(4)[:, None])), 1)
    (1.0, 1.6)
    """

    def one_block(x: Floats) -> Floats:
        halves = _halves(x)
        folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        return np.fmax(_ratio(_normal_scores(halves)), _ratio(_normal_scores(folded)))

    return _by_coordinate(one_block, x, least_chains=2)


def ess_bulk(x: ArrayLike) -> Floats:
    """Effective sample size for the middle of the distribution, from the ranks of the draws.

    A coordinate that is one constant has as many as it has draws.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000))
    >>> bool(3500 < ess_bulk(draws) < 4500)
    True
    """
    return _by_coordinate(lambda x: _ess(_normal_scores(_halves(x))), x)


def ess_tail(x: ArrayLike) -> Floats:
    """Effective sample size for the tails: the smaller of those of the 5 % and 95 % quantiles.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000))
    >>> bool(3500 < ess_tail(draws) < 4500)
    True
    """

    def one_block(x: Floats) -> Floats:
        low, high = np.quantile(x, [0.05, 0.95], axis=(1, 2), keepdims=True)
        below = [_halves(x <= quantile).astype(np.float64) for quantile in (low, high)]
        return np.minimum(_ess(below[0]), _ess(below[1]))

    return _by_coordinate(one_block, x)


def _by_coordinate(
    statistic: Callable[[Floats], Floats], x: ArrayLike, least_chains: int = 1
) -> Floats:
    """Check draws, and apply a statistic of (coordinates, chains, draws) in blocks."""
    values = real("x", x)
    if values.ndim < 2 or values.shape[0] < 1:
        raise ValueError(f"x must have shape (chains, draws, ...), got {values.shape}")
    chains, draws, *shape = values.shape
    result = np.full(int(np.prod(shape)), np.nan)
    if draws >= _LEAST_DRAWS and chains >= least_chains:
        flat = values.reshape(chains, draws, result.size)
        finite = np.flatnonzero(np.isfinite(flat).all(axis=(0, 1)))
        for block in np.split(finite, range(0, finite.size, max(1, _BLOCK // (chains * draws)))):
            if block.size:
                coordinates = np.ascontiguousarray(np.moveaxis(flat[..., block], -1, 0))
                result[block] = statistic(coordinates)
    return unwrap(result.reshape(shape))


def _halves(x: Floats) -> Floats:
    """Cut (coordinates, chains, draws) into twice as many chains."""
    half = x.shape[-1] // 2
    result: Floats = np.concatenate([x[..., :half], x[..., -half:]], axis=1)
    return result


def _normal_scores(x: Floats) -> Floats:
    """The normal quantiles of each coordinate's ranks over all chains; ties share their rank."""
    flat = x.reshape(x.shape[0], -1)
    n = flat.shape[1]
    order = np.argsort(flat, axis=1)
    ascending = np.take_along_axis(flat, order, axis=1)
    step = ascending[:, 1:] != ascending[:, :-1]
    edge, place = np.ones((x.shape[0], 1), bool), np.arange(n)
    first = np.maximum.accumulate(np.where(np.hstack([edge, step]), place, 0), axis=1)
    last = np.where(np.hstack([step, edge]), place, n)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    scores = np.empty_like(flat)
    rank = np.arange(1, n + 0.5, 0.5)  # all that can occur: (first + last)/2, from one on
    quantile = ndtri((rank - 3 / 8) / (n + 1 / 4))
    np.put_along_axis(scores, order, quantile[first + last], axis=1)
    return scores.reshape(x.shape)


def _ratio(z: Floats) -> Floats:
    """R̂ of each coordinate's chains as they are."""
    n = z.shape[-1]
    low, high = z.min(axis=-1), z.max(axis=-1)
    stuck, constant = (low == high).all(axis=-1), low.min(axis=-1) == high.max(axis=-1)
    # variances that are zero but for rounding are made zero
    within = np.where(stuck, 0.0, z.var(axis=-1, ddof=1).mean(axis=-1))
    between = np.where(constant, 0.0, n * z.mean(axis=-1).var(axis=-1, ddof=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = np.sqrt((between / within + n - 1) / n)
    return result


def _ess(z: Floats) -> Floats:
    """Effective sample size of each coordinate's mean over chains as they are.

    The autocorrelations are summed in pairs, which Geyer (1992) shows to be positive and to fall:
    the sum ends before the first pair that is not positive, and pairs that rise are cut.
    """
    coordinates, chains, n = z.shape
    centre = z.mean(axis=-1, keepdims=True)
    padded = next_fast_len(2 * n, real=True)
    power = (np.abs(np.fft.rfft(z - centre, padded)) ** 2).mean(axis=1)
    covariance = np.fft.irfft(power, padded)[:, :n] / n
    within = covariance[:, :1] * n / (n - 1)
    total = covariance[:, :1] + centre[..., 0].var(axis=1, ddof=1)[:, None]
    constant = z.max(axis=(1, 2)) == z.min(axis=(1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance) / total
    rho[:, 0] = 1.0
    pairs = max(0, (n - 3) // 2) + 1
    even = rho[:, : 2 * pairs : 2]
    paired = even + rho[:, 1 : 2 * pairs : 2]
    ended = paired <= 0
    end = np.where(ended.any(axis=1), ended.argmax(axis=1), pairs - 1)
    falling = np.minimum.accumulate(paired, axis=1)
    whole = np.where(np.arange(pairs) < end[:, None], falling, 0.0).sum(axis=1)
    row = np.arange(coordinates)
    half = np.where(paired[row, end] >= 0, even[row, end], np.maximum(even[row, end], 0.0))
    size = chains * n
    tau = np.maximum(2 * whole + half - 1, 1 / np.log10(size))
    result: Floats = np.where(constant, float(size), size / tau)
    return result
