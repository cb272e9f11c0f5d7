"""How a run went."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from scoreascent.fitting.result import Result
from scoreascent.plots.panels import (
    BLUE,
    PALETTE,
    RED,
    Numbers,
    Panels,
    check_result,
    panels_of,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_MEDIANS = 400  # in one curve of running medians


def plot_trace(result: Result, axes: Any = None) -> Panels:
    """Draw loss and acceptance, iteration by iteration: faint as they were, strong as medians.

    Iterations whose update was skipped are ticked below. The first of `axes` gets the loss, the
    second the acceptance; replications are drawn over each other. The loss may start so high that
    nothing else could be seen: the picture ends where 99 % of the numbers lie.

    >>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(4), steps=50, progress=False)
    >>> [ax.get_ylabel() for ax in sa.plots.plot_trace(result)]
    ['loss', 'acceptance']
    >>> plt.close("all")
    """
    check_result(result)
    loss, acceptance, skipped = (
        np.atleast_2d(np.asarray(x, np.float64))
        for x in (result.trace.loss, result.trace.acceptance, result.trace.skipped)
    )
    steps = loss.shape[1]
    if not steps:
        raise ValueError("result has an empty trace: no iteration was run, so there is no picture")
    panels = panels_of(axes, (2, 1), (6.4, 4.2), "the loss and the acceptance", sharex=True)
    last = int(np.max(np.asarray(result.state.step)))
    x = np.arange(last - steps + 1, last + 1)  # a resumed run has the trace of its own steps
    for ax, values, name in zip(panels, (loss, acceptance), ("loss", "acceptance")):
        _series(ax, x, values)
        ax.set_ylabel(name)
        tidy(ax)
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
    """Draw each row and its running median; a few rows have a colour and a name each."""
    n = len(values)
    distinct = n <= len(PALETTE)
    for i, row in enumerate(values):
        colour = PALETTE[i] if distinct else BLUE
        ax.plot(x, row, color=colour, alpha=0.25 / math.sqrt(n), lw=0.6, zorder=1)
    for i, row in enumerate(values):
        name = "running median" if n == 1 else f"replication {i}" if distinct else None
        if i == 0 and not distinct:
            name = f"running medians of {n} replications"
        colour, width = (PALETTE[i], 1.6) if distinct else (BLUE, 0.8)
        ax.plot(*_running_median(x, row), color=colour, lw=width, zorder=2, label=name)
    ax.margins(x=0.01)


def _running_median(x: Numbers, row: Numbers) -> tuple[Numbers, Numbers]:
    """Medians over windows of a fiftieth of the run, and their middles; NaN is left out."""
    width = max(1, len(row) // 50)
    every = max(1, (len(row) - width + 1) // MOST_MEDIANS)
    windows = np.lib.stride_tricks.sliding_window_view(row, width)[::every]
    some = np.isfinite(windows).any(1)
    medians = np.nanmedian(np.where(np.isfinite(windows), windows, np.nan)[some], axis=1)
    middles = np.lib.stride_tricks.sliding_window_view(x, width)[::every].mean(1)
    return middles[some], medians
