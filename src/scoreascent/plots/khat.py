"""Whether q covers the posterior: the tail of its importance weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import numpy as np
from scipy.special import logsumexp

from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.diagnostics.psis import effective_sample_size, psis
from scoreascent.diagnostics.rules import MAX_GOOD_K, MAX_USABLE_K
from scoreascent.diagnostics.weights import draw, log_weights
from scoreascent.fitting.result import Result
from scoreascent.plots.panels import BLUE, INK, RED, Numbers, check_result, panels_of, pyplot, tidy
from scoreascent.run import check_single

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray
    from matplotlib.axes import Axes

K_HAT = r"$\hat{k}$"  # fonts put a combining hat beside the letter


def plot_khat(
    result: Result,
    ax: Axes | None = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 4000,
) -> Axes:
    """Draw the log importance ratios π/q of draws of q, sorted, and the tail whose shape is k̂.

    Far out, a tail of shape k climbs by k for every factor of e to the right. Up to 0.5, the dashed
    curve, it is light; up to 0.7, the dotted one, weights can be relied on (`result.resample`). It
    is what draws of q can tell: of a place where none of them is, they know nothing. With the same
    `key` and `draws`, k̂ is that of `result.diagnose`.

    >>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(4), steps=50, progress=False)
    >>> len(sa.plots.plot_khat(result).lines) > 0
    True
    >>> plt.close("all")
    """
    pyplot()
    check_result(result)
    check_single(result)
    draws = check_count("draws", draws, 100)
    key_draw, _ = jax.random.split(as_key(key))
    _, log_p, log_q = draw(key_draw, result.target, result.q, draws)
    log_w, _ = log_weights(log_p, log_q)
    if not np.any(log_w > -np.inf):
        raise ValueError("result: no draw of q lies where the posterior has mass, nothing to draw")
    smooth = psis(log_w)
    log_w = log_w - (logsumexp(log_w) - math.log(draws))  # their mean is then 1
    order = np.argsort(log_w, kind="stable")
    ranks = (draws - np.arange(draws) - 0.5) / draws  # the share of draws that have more
    (ax,) = panels_of(ax, (1, 1), (5.2, 3.6), "one panel", name="ax")
    x = log_w[order]
    ax.plot(ranks[np.isfinite(x)], x[np.isfinite(x)], ".", color=BLUE, ms=3.5, label="draws of q")
    tail = math.ceil(min(draws / 5, 3 * math.sqrt(draws)))  # as in `psis`
    if math.isfinite(smooth.k_hat) and np.isfinite(x[-tail - 1]):
        _tails(ax, x, smooth.log_weights[order], ranks, smooth.k_hat, tail)
        climb = x[-1] - x[-tail - 1]
        ax.set_ylim(x[-tail - 1] - climb, x[-1] + 0.5 * climb)
    ax.set_xscale("log")
    ax.set_xlim(1, 0.35 / draws)
    ax.set_xlabel("share of draws with a larger ratio")
    ax.set_ylabel("log π/q (their mean is 1)")
    ess = effective_sample_size(smooth.log_weights)
    title = f"{_reading(smooth.k_hat)}; effective draws {ess:.0f} of {draws}"
    ax.set_title(title, fontsize="medium", loc="left")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    tidy(ax)
    return ax


def _tails(ax: Axes, x: Numbers, smooth: Numbers, share: Numbers, k_hat: float, n: int) -> None:
    """Draw the fitted tail, and tails of shape 0.5 and 0.7 with its start and its median."""
    cutoff = x[-n - 1]
    tail = np.flatnonzero(x > cutoff)
    fitted = smooth[tail] + (cutoff - smooth[tail[0] - 1])  # what lies below is not smoothed
    share, middle = share[tail], tail.size // 2
    depth = np.log(tail.size / x.size / share)  # where a unit exponential has this share above
    ax.axvspan(share[0], 0.1 / x.size, color="0.95", lw=0, zorder=0)
    for k, style, meaning in (
        (MAX_USABLE_K, (0, (1, 1.5)), "weights hold"),
        (MAX_GOOD_K, (0, (5, 2)), "light"),
    ):
        shape = np.expm1(k * depth) / math.expm1(k * depth[middle])
        curve = np.logaddexp(cutoff, cutoff + np.log(np.expm1(fitted[middle] - cutoff) * shape))
        ax.plot(share, curve, color=RED, lw=1.3, ls=style, label=f"k = {k}: {meaning} up to here")
    ax.plot(share, fitted, color=INK, lw=1.8, label=f"fitted tail, {K_HAT} = {k_hat:.2f}")


def _reading(k_hat: float) -> str:
    """What k̂ says of the weights."""
    if k_hat == math.inf:
        return f"no {K_HAT}: too few draws have any weight"
    if k_hat == -math.inf:
        return f"no {K_HAT}: the largest weights are equal"
    word = "light tail" if k_hat <= MAX_GOOD_K else "heavy tail"
    if k_hat > MAX_USABLE_K:
        word = "tail too heavy for weights"
    return f"{K_HAT} = {k_hat:.2f}: {word}"
