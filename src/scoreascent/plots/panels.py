"""Axes, colours and legends that the pictures share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from scoreascent._extras import require
from scoreascent.fitting.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = np.ndarray[Any, Any]
Panels = np.ndarray[Any, Any]  # an array of axes

# Okabe and Ito's palette, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, RED, INK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "0.15"
PALETTE = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#000000")


def panels_of(
    axes: Any,
    shape: tuple[int, int],
    size: tuple[float, float],
    expected: str,
    count: int | None = None,
    name: str = "axes",
    **settings: Any,
) -> Panels:
    """The axes that are given, if they are as many as expected, or those of a new figure."""
    plt = pyplot()
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
            f"{name} must be {count} of matplotlib's axes ({expected}), got "
            f"{wrong[0] if wrong else panels.size}"
        )
    return panels


def span(values: Iterable[Numbers]) -> tuple[float, float]:
    """The span that a picture shows: all but the last of every tail, and less of a long one.

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


def tidy(ax: Axes) -> None:
    """Take away what a panel does not need."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize="small")


def legend_of_panels(panels: Panels, own: bool) -> None:
    """Add a legend above a figure of ours, or inside the first panel of somebody else's."""
    handles, labels = panels[0].get_legend_handles_labels()
    if own:
        legend_beside(panels[0].figure, handles, labels, above=True)
    else:
        panels[0].legend(handles, labels, frameon=False, fontsize="small")


def legend_beside(
    figure: Any, handles: Any, labels: list[str], columns: int | None = None, above: bool = False
) -> None:
    """Add a legend below the panels of a figure, or above them; in one row unless told."""
    figure.legend(
        handles,
        labels,
        loc=f"outside {'upper' if above else 'lower'} center",
        ncols=len(labels) if columns is None else columns,
        frameon=False,
    )


def check_result(result: Any) -> None:
    """Refuse what no fit gave back."""
    if not isinstance(result, Result):
        raise ValueError(f"result must be what fit gave back, got {type(result).__name__}")


def pyplot() -> Any:
    """Matplotlib's pyplot, which is imported when a picture is asked for."""
    return require("matplotlib.pyplot", "plots", "a plot")
