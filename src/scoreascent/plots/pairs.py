"""What q looks like, each scalar against each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import gaussian_filter

from scoreascent.fitting.result import Result
from scoreascent.plots import panels as shared
from scoreascent.plots.marginals import draw_marginal
from scoreascent.plots.scalars import Sources, collect, varies

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray
    from matplotlib.axes import Axes

MOST_PAIRS = 8  # rows of panels that one can still read
POINT_COLOURS = {"q": shared.BLUE, "chains": shared.ORANGE}
OUTLINED_MASS = (0.9, 0.5)  # of the reference


def plot_pairs(
    result: Result,
    names: str | Iterable[str] | None = None,
    reference: Any = None,
    axes: Any = None,
    *,
    key: PRNGKeyArray | int = 0,
    draws: int = 1000,
) -> shared.Panels:
    """Draw q and the states of its chains, each scalar against each: more than marginals show.

    The arguments are those of `plot_marginals`; `axes` has a row and a column for each scalar. The
    marginals are on the diagonal, and what lies above it is left empty.

    >>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(4), steps=50, progress=False)
    >>> sa.plots.plot_pairs(result).shape
    (2, 2)
    >>> plt.close("all")
    """
    scalars = collect(result, names, reference, key, draws, MOST_PAIRS)
    labels, n = list(scalars), len(scalars)
    if n < 2:
        raise ValueError(f"names must choose two scalars or more to make pairs, got {labels}")
    side = 1.5 * n + 0.6
    panels = shared.panels_of(
        axes, (n, n), (side, side), "a row and a column for each scalar", n * n
    )
    panels = panels.reshape(n, n)
    draw_pairs(panels, scalars)
    shared.legend_of_panels(panels.ravel(), axes is None)
    return panels


def draw_pairs(panels: shared.Panels, scalars: dict[str, Sources]) -> None:
    """Draw each scalar against each into a square of panels."""
    labels, n = list(scalars), len(scalars)
    for i, j in np.ndindex(n, n):
        ax: Any = panels[i, j]
        if i < j:
            ax.set_axis_off()
            continue
        if i == j:
            draw_marginal(ax, scalars[labels[i]])
        else:
            _scatter(ax, scalars[labels[j]], scalars[labels[i]])
        ax.set_xlabel(labels[j] if i == n - 1 else "")
        ax.set_ylabel(labels[i] if j == 0 and i else "")
        ax.tick_params(labelbottom=i == n - 1, labelleft=j == 0 and i > 0)
        if i == j:
            ax.set_yticks([])


def _scatter(ax: Axes, x: Sources, y: Sources) -> None:
    """Draw points of q and of the chains; the reference is outlined, or a cross if one value."""
    for source, colour in POINT_COLOURS.items():
        if source in x:
            ax.plot(x[source], y[source], ".", ms=3, mew=0, alpha=0.5, color=colour)
    spans = shared.span(x.values()), shared.span(y.values())
    if "reference" in x and "reference" in y:
        pair = x["reference"], y["reference"]
        if all(map(varies, pair)):
            _outline(ax, *pair, spans)
        else:
            ax.plot(pair[0][0], pair[1][0], "+", ms=9, mew=1.6, color=shared.INK)
    ax.set_xlim(*spans[0])
    ax.set_ylim(*spans[1])
    shared.tidy(ax)


def _outline(ax: Axes, x: shared.Numbers, y: shared.Numbers, spans: Any) -> None:
    """Outline the regions of high density that hold so much of the draws, smoothed."""
    counts, edges_x, edges_y = np.histogram2d(x, y, bins=50, range=spans)
    counts = gaussian_filter(counts, 2 * (4000 / x.size) ** (1 / 6))
    at = [np.clip(np.digitize(v, e) - 1, 0, 49) for v, e in ((x, edges_x), (y, edges_y))]
    levels = np.unique(np.quantile(counts[tuple(at)], [1 - mass for mass in OUTLINED_MASS]))
    middles = [(e[1:] + e[:-1]) / 2 for e in (edges_x, edges_y)]
    ax.contour(*middles, counts.T, levels, colors=shared.INK, linewidths=1, linestyles="dashed")
