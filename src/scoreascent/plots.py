"""Pictures of a fit: how it went, its marginals and pairs over its chains, the tail of its weights.

Every function takes a `Result`, draws into the axes it is given or into a new figure of pyplot, and
returns the axes; saving and closing are the caller's. matplotlib is imported when one is called.

>>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
>>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=3)
>>> result = sa.fit(target, sa.pmcsa(4), steps=100, progress=False)
>>> [ax.get_ylabel() for ax in sa.plots.plot_trace(result)]
['loss', 'acceptance']
>>> [ax.get_xlabel() for ax in sa.plots.plot_marginals(result)]
['z[0]', 'z[1]', 'z[2]']
>>> sa.plots.plot_pairs(result, ["z[0]", "z[2]"]).shape
(2, 2)
>>> figure, (left, right) = plt.subplots(1, 2)
>>> sa.plots.plot_khat(result, right) is right
True
>>> plt.close("all")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.special import logsumexp

from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.diagnostics.psis import effective_sample_size, psis
from scoreascent.diagnostics.rules import MAX_GOOD_K, MAX_USABLE_K
from scoreascent.diagnostics.weights import draw, log_weights
from scoreascent.fitting.result import Result
from scoreascent.run import check_single

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray
    from matplotlib.axes import Axes

    Numbers = np.ndarray[Any, Any]
    Panels = np.ndarray[Any, Any]  # of axes
    Sources = dict[str, Numbers]  # q, chains and reference, draws of one scalar each

__all__ = ["plot_khat", "plot_marginals", "plot_pairs", "plot_trace"]

# Okabe and Ito's palette, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, RED, INK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "0.15"
PALETTE = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#000000")
COLOURS = {"q": BLUE, "chains": ORANGE, "reference": INK}

MOST_MARGINALS, MOST_PAIRS = 36, 8  # panels, and rows of panels, that one can still read
WINDOWS = 400  # places at which a running median is taken
K_HAT = r"$\hat{k}$"  # fonts put a combining hat beside the letter
REGIONS = (0.9, 0.5)  # of the reference's mass, outlined in pairs


# -- the run ---------------------------------------------------------------------------------------


def plot_trace(result: Result, axes: Any = None) -> Panels:
    """Loss and acceptance against iterations: as they were, faint; their running medians, strong.

    Iterations whose update was skipped are ticked below. The first of `axes` gets the loss, the
    second the acceptance; replications are drawn over each other. The loss may start so high that
    nothing else could be seen: the picture ends where 99 % of the numbers lie.
    """
    _check_result(result)
    loss, acceptance, skipped = (
        np.atleast_2d(np.asarray(x, np.float64))
        for x in (result.trace.loss, result.trace.acceptance, result.trace.skipped)
    )
    steps = loss.shape[1]
    if not steps:
        raise ValueError("result has an empty trace: no iteration was run, so there is no picture")
    panels = _panels(axes, (2, 1), (6.4, 4.2), "the loss and the acceptance", sharex=True)
    last = int(np.max(np.asarray(result.state.step)))
    x = np.arange(last - steps + 1, last + 1)  # a resumed run has the trace of its own steps
    for ax, values, name in zip(panels, (loss, acceptance), ("loss", "acceptance")):
        _series(ax, x, values)
        ax.set_ylabel(name)
        _tidy(ax)
    panels[0].set_ylim(*np.nanquantile(np.where(np.isfinite(loss), loss, np.nan), [0.005, 0.995]))
    panels[1].set_ylim(0, min(1.0, 1.15 * float(np.nanmax(np.append(acceptance, 1e-3)))))
    panels[1].set_xlabel("iteration")
    if (at := np.flatnonzero(skipped.any(0))).size:
        panels[0].plot(
            x[at],
            np.full(at.size, 0.015),
            "|",
            color=RED,
            ms=9,
            transform=panels[0].get_xaxis_transform(),
            label=f"skipped updates: {int(skipped.sum())}",
        )
    panels[0].legend(
        frameon=False, fontsize="small", ncols=4, loc="lower right", bbox_to_anchor=(1, 1)
    )
    return panels


def _series(ax: Axes, x: Numbers, values: Numbers) -> None:
    """Each row and its running median; a few rows have a colour and a name each."""
    few, n = len(values) <= len(PALETTE), len(values)
    for i, row in enumerate(values):
        colour = PALETTE[i] if few else BLUE
        ax.plot(x, row, color=colour, alpha=0.25 / math.sqrt(n), lw=0.6, zorder=1)
    for i, row in enumerate(values):
        name = "running median" if n == 1 else f"replication {i}" if few else None
        if i == 0 and not few:
            name = f"running medians of {n} replications"
        colour, width = (PALETTE[i], 1.6) if few else (BLUE, 0.8)
        ax.plot(*_running_median(x, row), color=colour, lw=width, zorder=2, label=name)
    ax.margins(x=0.01)


def _running_median(x: Numbers, row: Numbers) -> tuple[Numbers, Numbers]:
    """Medians over windows of a fiftieth of the run, and their middles; NaN is left out."""
    width = max(1, len(row) // 50)
    every = max(1, (len(row) - width + 1) // WINDOWS)
    windows = np.lib.stride_tricks.sliding_window_view(row, width)[::every]
    some = np.isfinite(windows).any(1)
    medians = np.nanmedian(np.where(np.isfinite(windows), windows, np.nan)[some], axis=1)
    middles = np.lib.stride_tricks.sliding_window_view(x, width)[::every].mean(1)
    return middles[some], medians


# -- what q looks like -----------------------------------------------------------------------------


def plot_marginals(
    result: Result,
    names: str | Iterable[str] | None = None,
    reference: Any = None,
    axes: Any = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 4000,
) -> Panels:
    """The density of q over a histogram of the chains' states at the fitted q, by parameter.

    Where the two differ, q's family cannot follow the posterior, or the fit has not arrived; where
    the histogram is all spikes, the chains do not move.

    Args:
        result: one fit; of replications take one, `result[i]`.
        names: what is drawn: parameters or computed values (`"theta"`, with all its entries) or
            single entries (`"theta[3]"`). All free parameters, if not said.
        reference: draws of the posterior to compare with, by MCMC say: arrays by name, draws in
            front, or an ArviZ object with a posterior.
        axes: as many as there are scalars to draw.
        key: for the draws of q and the steps of the chains.
        draws: how many of q are drawn; of the chains' states at most as many are shown.
    """
    scalars = _collect(result, names, reference, key, draws, MOST_MARGINALS)
    columns = min(4, len(scalars))
    rows = -(-len(scalars) // columns)
    size = (max(3.6, 2.3 * columns), 1.9 * rows + 0.3)
    panels = _panels(axes, (rows, columns), size, "one panel for each scalar", len(scalars))
    for ax, (label, sources) in zip(panels, scalars.items()):
        _marginal(ax, sources)
        ax.set_xlabel(label)
        ax.set_yticks([])
    _legend(panels, axes is None)
    return panels


def _marginal(ax: Axes, sources: Sources) -> None:
    """One density over another; heights are densities over the whole line, seen or not."""
    low, high = _span(sources.values())
    grid = np.linspace(low, high, 200)
    if "chains" in sources:
        edges = np.linspace(low, high, 41)
        x = sources["chains"]
        heights = np.histogram(x, edges)[0] / (x.size * (edges[1] - edges[0]))
        ax.stairs(heights, edges, fill=True, color=ORANGE, alpha=0.45, lw=0, label="chains")
    ax.plot(grid, _density(sources["q"], grid), color=BLUE, lw=1.8, label="q")
    dashed: dict[str, Any] = {"color": INK, "lw": 1.3, "ls": (0, (4, 2)), "label": "reference"}
    if "reference" in sources and _varies(sources["reference"]):
        ax.plot(grid, _density(sources["reference"], grid), **dashed)
    elif "reference" in sources:  # one value, as the truth of a simulation is
        ax.axvline(sources["reference"][0], **dashed)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    _tidy(ax)
    ax.spines["left"].set_visible(False)


def _density(x: Numbers, grid: Numbers) -> Numbers:
    """A Gaussian kernel estimate, reflected at the ends of the draws so that bounds stay bounds."""
    x = x[np.isfinite(x)]
    quarter = np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    width = 0.9 * (min(np.std(x), quarter) or np.std(x)) * x.size**-0.2
    low, high = x.min(), x.max()
    total = sum(
        np.exp(-0.5 * ((grid[:, None] - copy) / width) ** 2).sum(1)
        for copy in (x, 2 * low - x, 2 * high - x)
    )
    inside = (grid >= low) & (grid <= high)
    heights: Numbers = np.where(inside, total, 0) / (x.size * width * math.sqrt(2 * math.pi))
    return heights


def plot_pairs(
    result: Result,
    names: str | Iterable[str] | None = None,
    reference: Any = None,
    axes: Any = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 1000,
) -> Panels:
    """Draws of q and states of its chains, each scalar against each: what a marginal cannot show.

    The arguments are those of `plot_marginals`; `axes` has a row and a column for each scalar. The
    marginals are on the diagonal, and what lies above it is left empty.
    """
    scalars = _collect(result, names, reference, key, draws, MOST_PAIRS)
    labels, n = list(scalars), len(scalars)
    if n < 2:
        raise ValueError(f"names must choose two scalars or more to make pairs, got {labels}")
    side = 1.5 * n + 0.6
    panels = _panels(axes, (n, n), (side, side), "a row and a column for each scalar", n * n)
    panels = panels.reshape(n, n)
    for i, j in np.ndindex(n, n):
        ax: Any = panels[i, j]
        if i < j:
            ax.set_axis_off()
            continue
        if i == j:
            _marginal(ax, scalars[labels[i]])
        else:
            _scatter(ax, scalars[labels[j]], scalars[labels[i]])
        ax.set_xlabel(labels[j] if i == n - 1 else "")
        ax.set_ylabel(labels[i] if j == 0 and i else "")
        ax.tick_params(labelbottom=i == n - 1, labelleft=j == 0 and i > 0)
        if i == j:
            ax.set_yticks([])
    _legend(panels.ravel(), axes is None)
    return panels


def _scatter(ax: Axes, x: Sources, y: Sources) -> None:
    """Points of q and of the chains; the reference as outlines, or a cross if it is one value."""
    for source in ("q", "chains"):
        if source in x:
            ax.plot(x[source], y[source], ".", ms=3, mew=0, alpha=0.5, color=COLOURS[source])
    spans = _span(x.values()), _span(y.values())
    if "reference" in x and "reference" in y:
        pair = x["reference"], y["reference"]
        if all(map(_varies, pair)):
            _outline(ax, *pair, spans)
        else:
            ax.plot(pair[0][0], pair[1][0], "+", ms=9, mew=1.6, color=INK)
    ax.set_xlim(*spans[0])
    ax.set_ylim(*spans[1])
    _tidy(ax)


def _outline(ax: Axes, x: Numbers, y: Numbers, spans: Any) -> None:
    """Regions of high density that hold so much of the draws, by a smoothed histogram."""
    counts, edges_x, edges_y = np.histogram2d(x, y, bins=50, range=spans)
    counts = gaussian_filter(counts, 2 * (4000 / x.size) ** (1 / 6))
    at = [np.clip(np.digitize(v, e) - 1, 0, 49) for v, e in ((x, edges_x), (y, edges_y))]
    levels = np.unique(np.quantile(counts[tuple(at)], [1 - region for region in REGIONS]))
    middles = [(e[1:] + e[:-1]) / 2 for e in (edges_x, edges_y)]
    ax.contour(*middles, counts.T, levels, colors=INK, linewidths=1, linestyles="dashed")


# -- whether q covers the posterior ----------------------------------------------------------------


def plot_khat(
    result: Result,
    ax: Axes | None = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 4000,
) -> Axes:
    """Log importance ratios π/q of draws of q, sorted, with the tail that k̂ is the shape of.

    Far out, a tail of shape k climbs by k for every factor of e to the right. Up to 0.5, the dashed
    curve, it is light; up to 0.7, the dotted one, weights can be relied on (`result.resample`). It
    is what draws of q can tell: of a place where none of them is, they know nothing. With the same
    `key` and `draws`, k̂ is that of `result.diagnose`.
    """
    _pyplot()
    _check_result(result)
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
    (ax,) = _panels(ax, (1, 1), (5.2, 3.6), "one panel", name="ax")
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
    _tidy(ax)
    return ax


def _tails(ax: Axes, x: Numbers, smooth: Numbers, share: Numbers, k_hat: float, n: int) -> None:
    """The fitted tail, and tails of shape 0.5 and 0.7 that start as it does and have its median."""
    cutoff = x[-n - 1]
    tail = np.flatnonzero(x > cutoff)
    fitted = smooth[tail] + (cutoff - smooth[tail[0] - 1])  # what lies below is not smoothed
    share, middle = share[tail], tail.size // 2
    depth = np.log(tail.size / x.size / share)  # where a unit exponential has this share above
    ax.axvspan(share[0], 0.1 / x.size, color="0.95", lw=0, zorder=0)
    for k, style, what in (
        (MAX_USABLE_K, (0, (1, 1.5)), "weights hold"),
        (MAX_GOOD_K, (0, (5, 2)), "light"),
    ):
        shape = np.expm1(k * depth) / math.expm1(k * depth[middle])
        curve = np.logaddexp(cutoff, cutoff + np.log(np.expm1(fitted[middle] - cutoff) * shape))
        ax.plot(share, curve, color=RED, lw=1.3, ls=style, label=f"k = {k}: {what} up to here")
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


# -- draws by name ---------------------------------------------------------------------------------


def _collect(
    result: Result, names: Any, reference: Any, key: Any, draws: int, most: int
) -> dict[str, Sources]:
    """What there is to draw of each scalar: finite draws of q, states of chains, the reference."""
    _pyplot()
    _check_result(result)
    check_single(result)
    draws = check_count("draws", draws, 100)
    key_draw, key_chain = jax.random.split(as_key(key))  # as `diagnose` does
    found = {"q": _numpy(result.sample(key_draw, draws))}
    entries = _chosen(found["q"], result.target.site_names, names, most)
    if reference is not None:
        found["reference"] = _reference(reference, found["q"], {site for site, _ in entries})
    seen = chain_states(result, key_chain)
    if seen is not None:
        z = seen[0][:, MAX_ROWS // 4 :].reshape(
            -1, result.target.dim
        )  # those that q has left behind
        thin = np.linspace(0, len(z) - 1, min(len(z), draws)).astype(int)
        found["chains"] = _numpy(jax.jit(jax.vmap(result.target.named))(z[thin]))
    scalars: dict[str, Sources] = {}
    for site, index in entries:
        label = _label(site, index)
        scalars[label] = {
            source: _entry(values, site, index)
            for source, values in found.items()
            if site in values
        }
    return scalars


def _chosen(
    draws: dict[str, Numbers], sites: tuple[str, ...], names: Any, most: int
) -> list[tuple[str, tuple[int, ...]]]:
    """The scalars that are asked for, less constant ones, as the zeros of a Cholesky factor."""
    every = {
        _label(site, index): (site, index)
        for site, values in draws.items()
        for index in np.ndindex(values.shape[1:])
    }
    asked = list(sites) if names is None else [names] if isinstance(names, str) else list(names)
    labels: list[str] = []
    for name in asked:
        name = name.replace(", ", ",") if isinstance(name, str) else name
        matching = (
            [name] if name in every else [k for k, (site, _) in every.items() if site == name]
        )
        if not matching:
            raise ValueError(
                f"names must be parameters ({', '.join(draws)}) or their entries, such as "
                f"{list(every)[-1]!r}, got {name!r}"
            )
        labels += matching
    free = [every[k] for k in dict.fromkeys(labels) if _varies(_entry(draws, *every[k]))]
    if not free:
        raise ValueError(f"names must choose something that varies, got {asked}: constant or NaN")
    if len(free) > most:
        raise ValueError(
            f"names must choose at most {most} scalars, got {len(free)}; say which, such as "
            f"names={[_label(*entry) for entry in free[:3]]}"
        )
    return free


def _reference(reference: Any, ours: dict[str, Numbers], sites: set[str]) -> dict[str, Numbers]:
    """The draws to compare with, by name, in one row; ArviZ's objects have them in `posterior`."""
    given = getattr(reference, "posterior", reference)
    if not isinstance(given, Mapping):
        raise ValueError(
            "reference must be arrays of draws by name, or an ArviZ object with a posterior, got "
            f"{type(reference).__name__}"
        )
    found = {}
    for site in sorted(sites & set(given)):
        values, shape = np.asarray(given[site], np.float64), ours[site].shape[1:]
        lead = values.ndim - len(shape)
        if lead < 1 or values.shape[lead:] != shape:
            raise ValueError(
                f"reference[{site!r}] must have draws in front and the parameter's shape {shape} "
                f"behind, got {values.shape}"
            )
        if values.size == 0 or not np.isfinite(values).all():
            raise ValueError(f"reference[{site!r}] must be finite numbers, and at least one draw")
        found[site] = values.reshape(-1, *shape)
    if not found:
        raise ValueError(
            f"reference must have draws of {', '.join(sorted(sites))}, got {list(given)}"
        )
    return found


def _numpy(draws: Mapping[str, Any]) -> dict[str, Numbers]:
    return {name: np.asarray(values, np.float64) for name, values in draws.items()}


def _entry(draws: dict[str, Numbers], site: str, index: tuple[int, ...]) -> Numbers:
    at: Any = (slice(None), *index)
    entry: Numbers = draws[site][at]
    return entry


def _label(site: str, index: tuple[int, ...]) -> str:
    return site + (f"[{','.join(map(str, index))}]" if index else "")


def _varies(x: Numbers) -> bool:
    x = x[np.isfinite(x)]
    return x.size > 0 and bool(np.any(x != x[0]))


# -- figures ---------------------------------------------------------------------------------------


def _panels(
    axes: Any,
    shape: tuple[int, int],
    size: tuple[float, float],
    what: str,
    count: int | None = None,
    name: str = "axes",
    **settings: Any,
) -> Panels:
    """A row of the axes that are given, if they are as many as asked for, or of a new figure's."""
    plt = _pyplot()
    count = shape[0] * shape[1] if count is None else count
    if axes is None:
        _, grid = plt.subplots(
            *shape, figsize=size, layout="constrained", squeeze=False, **settings
        )
        for ax in grid.ravel()[count:]:
            ax.remove()
        panels: Panels = grid.ravel()[:count]
        return panels
    from matplotlib.axes import Axes

    panels = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    wrong = [type(ax).__name__ for ax in panels if not isinstance(ax, Axes)]
    if wrong or panels.size != count:
        raise ValueError(
            f"{name} must be {count} of matplotlib's axes ({what}), got "
            f"{wrong[0] if wrong else panels.size}"
        )
    return panels


def _span(values: Iterable[Numbers]) -> tuple[float, float]:
    """From where to where a picture goes: all but the last of every tail, and less of a long one.

    What holds a twentieth of the draws, a second mode say, is always inside.
    """
    ends = []
    for x in values:
        low, q05, middle, q95, high = np.quantile(
            x[np.isfinite(x)], [0.001, 0.05, 0.5, 0.95, 0.999]
        )
        ends.append((max(low, 2 * q05 - middle), min(high, 2 * q95 - middle)))
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    room = 0.02 * (high - low) or 0.5 * (abs(low) or 1.0)
    return low - room, high + room


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize="small")


def _legend(panels: Panels, own: bool) -> None:
    """Above a figure of ours; inside the first panel of somebody else's."""
    handles, labels = panels[0].get_legend_handles_labels()
    if own:
        panels[0].figure.legend(
            handles, labels, loc="outside upper center", ncols=len(labels), frameon=False
        )
    else:
        panels[0].legend(handles, labels, frameon=False, fontsize="small")


def _check_result(result: Any) -> None:
    if not isinstance(result, Result):
        raise ValueError(f"result must be what fit gave back, got {type(result).__name__}")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "plots need matplotlib: pip install 'scoreascent[plots]'", name="matplotlib"
        ) from None
    return plt
