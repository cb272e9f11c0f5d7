"""What q looks like, parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from scoreascent.fitting.result import Result
from scoreascent.plots.panels import (
    BLUE,
    INK,
    ORANGE,
    Numbers,
    Panels,
    legend_of_panels,
    panels_of,
    span,
    tidy,
)
from scoreascent.plots.scalars import Sources, collect, varies

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray
    from matplotlib.axes import Axes

MOST_MARGINALS = 36  # panels that one can still read


def plot_marginals(
    result: Result,
    names: str | Iterable[str] | None = None,
    reference: Any = None,
    axes: Any = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 4000,
) -> Panels:
    """Draw the density of q over a histogram of the chains' states at the fitted q, by parameter.

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

    >>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(4), steps=50, progress=False)
    >>> [ax.get_xlabel() for ax in sa.plots.plot_marginals(result)]
    ['z[0]', 'z[1]']
    >>> plt.close("all")
    """
    scalars = collect(result, names, reference, key, draws, MOST_MARGINALS)
    columns = min(4, len(scalars))
    rows = -(-len(scalars) // columns)
    size = (max(3.6, 2.3 * columns), 1.9 * rows + 0.3)
    panels = panels_of(axes, (rows, columns), size, "one panel for each scalar", len(scalars))
    for ax, (label, sources) in zip(panels, scalars.items()):
        draw_marginal(ax, sources)
        ax.set_xlabel(label)
        ax.set_yticks([])
    legend_of_panels(panels, axes is None)
    return panels


def draw_marginal(ax: Axes, sources: Sources) -> None:
    """Draw one density over another; heights are densities over the whole line, seen or not."""
    low, high = span(sources.values())
    grid = np.linspace(low, high, 200)
    if "chains" in sources:
        edges = np.linspace(low, high, 41)
        x = sources["chains"]
        heights = np.histogram(x, edges)[0] / (x.size * (edges[1] - edges[0]))
        ax.stairs(heights, edges, fill=True, color=ORANGE, alpha=0.45, lw=0, label="chains")
    if "q" in sources:
        ax.plot(grid, kernel_density(sources["q"], grid), color=BLUE, lw=1.8, label="q")
    dashed: dict[str, Any] = {"color": INK, "lw": 1.3, "ls": (0, (4, 2)), "label": "reference"}
    if "reference" in sources and varies(sources["reference"]):
        ax.plot(grid, kernel_density(sources["reference"], grid), **dashed)
    elif "reference" in sources:  # one value, as the truth of a simulation is
        ax.axvline(sources["reference"][0], **dashed)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    tidy(ax)
    ax.spines["left"].set_visible(False)


def kernel_density(x: Numbers, grid: Numbers) -> Numbers:
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
