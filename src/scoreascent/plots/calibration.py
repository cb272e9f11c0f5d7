"""Whether a procedure is calibrated: where true parameters lie among draws of their posteriors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from scoreascent.diagnostics.uniform import band, points
from scoreascent.fitting.calibration import Calibration
from scoreascent.plots.panels import BLUE, RED, Panels, panels_of, tidy

MOST = 12  # panels, if none are named: the worst


def plot_calibration(
    found: Calibration, names: str | Iterable[str] | None = None, axes: Any = None
) -> Panels:
    """Draw, by scalar, how the distribution function of its PITs differs from the uniform one.

    The grey band holds a calibrated procedure's curve everywhere at once with the probability
    `found.level`, as Säilynoja et al. (2022) draw it. A curve that rises and then falls is of a
    posterior that is too narrow, one that falls and then rises of one too wide; one that is only
    above of estimates that are too large, only below of ones too small. Red curves are those that
    the verdict counts as wrong.

    Args:
        found: what `calibrate` gave back.
        names: of the scalars to draw; the twelve with the smallest p, if not said.
        axes: as many as there are scalars to draw.

    >>> import matplotlib.pyplot as plt, numpy as np, scoreascent as sa
    >>> pit = (np.arange(40)[:, None] + 0.5) / 40
    >>> found = sa.Calibration(("mu",), pit, ("good",) * 40, 0.99, 40)
    >>> len(np.ravel(sa.plots.plot_calibration(found)))
    1
    >>> plt.close("all")
    """
    if not isinstance(found, Calibration):
        raise ValueError(f"found must be what calibrate gave back, got {type(found).__name__}")
    if not found.simulations:
        raise ValueError("found: no simulation has a row, nothing to draw")
    chosen = _chosen(found, names)
    columns = min(4, len(chosen))
    rows = -(-len(chosen) // columns)
    size = (max(3.6, 2.6 * columns), 2.1 * rows + 0.3)
    panels = panels_of(axes, (rows, columns), size, "one panel for each scalar", len(chosen))
    n, at = found.simulations, points(found.simulations)
    low, high = (np.concatenate([[0.0], x - at, [0.0]]) for x in band(n, found.level))
    x = np.concatenate([[0.0], at, [1.0]])
    wrong = set(found.wrong)
    for ax, i in zip(panels, chosen):
        pit = np.sort(found.pit[:, i])
        ecdf = np.searchsorted(pit, at, side="right") / n - at
        ax.fill_between(x, low, high, color="0.88", lw=0)
        ax.axhline(0, color="0.6", lw=0.8)
        colour = RED if i in wrong else BLUE
        ax.plot(x, np.concatenate([[0.0], ecdf, [0.0]]), color=colour, lw=1.4)
        ax.set_title(
            f"{found.names[i]}   p = {found.p_values[i]:.2g}", fontsize="small", loc="left"
        )
        ax.set_xlim(0, 1)
        tidy(ax)
    for ax in panels[-columns:]:
        ax.set_xlabel("PIT", fontsize="small")
    for ax in panels[::columns]:
        ax.set_ylabel("ECDF − uniform", fontsize="small")
    return panels


def _chosen(found: Calibration, names: str | Iterable[str] | None) -> list[int]:
    """Return the columns of these names, or of the worst."""
    if names is None:
        return [int(i) for i in np.argsort(found.p_values, kind="stable")[:MOST]]
    asked = [names] if isinstance(names, str) else list(names)
    if missing := [name for name in asked if name not in found.names]:
        raise ValueError(f"names: {missing[0]!r} is none of {list(found.names)}")
    return [found.names.index(name) for name in asked]
