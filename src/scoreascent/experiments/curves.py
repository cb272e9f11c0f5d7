"""Figures of the tables' runs: scores along the runs, and the weights that are left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy import stats

from scoreascent._figures import plt
from scoreascent.datasets import AVAILABLE
from scoreascent.experiments import methods as naming
from scoreascent.experiments.statistics import bootstrap_band
from scoreascent.experiments.tables import RUN_KEY
from scoreascent.plots.panels import legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS_ACROSS = 4
SCORE_LABELS = {
    "lpd": "test LPD",
    "lpd_published": "test LPD, published formula",
    "rmse": "test RMSE",
}


def draw_curves(table: pd.DataFrame, times: pd.DataFrame | None, value: str = "lpd") -> Figure:
    """Draw a panel for each data set: the mean over splits and its 95 % bootstrap band.

    The score stands against the iteration and, below it, against the seconds that a split took:
    those of its block of splits, which ran together, over their number. Without `times` the lower
    panels are left out. A few bad splits do not set the scale: where they pull the end of a mean
    out of the panel, the panel shows medians and their bands, and its title says so.
    """
    if value not in SCORE_LABELS:
        raise ValueError(f"value must be one of {', '.join(SCORE_LABELS)}, not {value!r}")
    axes_of = ["step"] if times is None else ["step", "seconds"]
    if times is not None:
        table = table.merge(seconds_per_split(times), "left", [*RUN_KEY, "split", "step"])
    datasets = _datasets(table)
    figure, panels = _panels(len(datasets), len(axes_of))
    for place, dataset in enumerate(datasets):
        part = table[table["dataset"] == dataset]
        limits = _limits(part, value)
        of: Literal["mean", "median"] = "median" if _outside(part, value, limits) else "mean"
        for ax, x in zip(panels[place], axes_of):
            for method, n in _methods(part):
                run = part[(part["method"] == method) & (part["n"] == n)]
                _curve(ax, run, x, value, _style(method, n), of)
            ax.set_ylim(*limits)
            if x == "seconds":
                _log_seconds(ax)
            ax.set_xlabel("iteration" if x == "step" else "seconds per split")
            if place % MOST_PANELS_ACROSS == 0:
                ax.set_ylabel(SCORE_LABELS[value])
        panels[place][0].set_title(f"{dataset} (medians)" if of == "median" else dataset)
    _legend(figure, _methods(table))
    return figure


def seconds_per_split(times: pd.DataFrame) -> pd.DataFrame:
    """The seconds from the start to each step, a row for each split of the blocks in `times`."""
    each = times.loc[times.index.repeat(times["splits"])].reset_index(names="block")
    each["split"] = each["first_split"] + each.groupby("block").cumcount()
    each["seconds"] = each["seconds"] / each["splits"]
    return each[[*RUN_KEY, "split", "step", "seconds"]]


def draw_pruning(weights: pd.DataFrame) -> Figure:
    """Draw a panel for each data set: densities of the weights' posterior means, by method.

    Kernels are Gaussian, their bandwidth is Silverman's. A peak at zero is pruned weights.
    """
    datasets = _datasets(weights)
    figure, panels = _panels(len(datasets), 1, height=2.3)
    for place, dataset in enumerate(datasets):
        ax, part = panels[place][0], weights[weights["dataset"] == dataset]
        finite = part["mean"][np.isfinite(part["mean"])]
        reach = 1.1 * float(finite.abs().quantile(0.99)) if len(finite) else 0.0
        grid = np.linspace(-1, 1, 801) * (reach or 1.0)
        for method, n in _methods(part):
            means = finite[(part["method"] == method) & (part["n"] == n)].to_numpy(np.float64)
            style = _style(method, n)
            if len(means) > 1 and np.ptp(means) > 0:
                density = stats.gaussian_kde(means, bw_method="silverman")(grid)
                ax.plot(grid, density, **style)
                ax.fill_between(grid, density, color=style["color"], alpha=0.08, lw=0)
            else:
                for x in np.unique(means):  # no spread: a line in place of a density
                    ax.axvline(x, **style)
        ax.set_xlim(grid[0], grid[-1])
        ax.set_ylim(bottom=0)
        ax.set_title(dataset)
        ax.set_xlabel("posterior mean of a weight")
        if place % MOST_PANELS_ACROSS == 0:
            ax.set_ylabel("density")
    _legend(figure, _methods(weights))
    return figure


def _panels(datasets: int, rows: int, height: float = 2.2) -> tuple[Figure, list[list[Axes]]]:
    """A grid of panels, and for each data set its panels from top to bottom."""
    across = min(datasets, MOST_PANELS_ACROSS)
    down = math.ceil(datasets / MOST_PANELS_ACROSS)
    figure, axes = plt.subplots(
        down * rows, across, figsize=(max(3.0 * across, 5.5), height * down * rows + 0.5),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    places = [
        [
            axes[rows * (i // MOST_PANELS_ACROSS) + row, i % MOST_PANELS_ACROSS]
            for row in range(rows)
        ]
        for i in range(down * across)
    ]
    for i, place in enumerate(places):
        for ax in place:
            ax.set_visible(i < datasets)
            ax.set_axisbelow(True)
            ax.grid(color="0.92")
            ax.spines[["top", "right"]].set_visible(False)
    return figure, places


def _datasets(table: pd.DataFrame) -> list[str]:
    found = set(table["dataset"])
    return [name for name in AVAILABLE if name in found] + sorted(found - set(AVAILABLE))


def _methods(table: pd.DataFrame) -> list[tuple[str, int]]:
    order = naming.in_figure_order(table["method"])
    found = set(zip(table["method"], table["n"]))
    return sorted(found, key=lambda pair: (order.index(pair[0]), pair[1]))


def _style(method: str, n: int) -> dict[str, Any]:
    return {
        "color": naming.colour(method, "0.2"),
        "lw": 1.5,
        "ls": (0, (3, 1.2)) if n == 1 else "-",
    }


def _legend(figure: Figure, methods: list[tuple[str, int]]) -> None:
    handles = [Line2D([], [], **_style(*pair)) for pair in methods]
    labels = [naming.label_with_budget(*pair) for pair in methods]
    legend_beside(figure, handles, labels, columns=6 if figure.get_figwidth() > 8 else 3)


def _log_seconds(ax: Axes) -> None:
    """Set ticks at 1, 3, 10, 30 …: matplotlib's own labels collide within one decade."""
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _curve(
    ax: Axes, run: pd.DataFrame, x: str, value: str, style: dict[str, Any],
    of: Literal["mean", "median"],
) -> None:  # fmt: skip
    run = run[np.isfinite(run[x])]
    if x == "seconds":
        run = run[run[x] > 0]
    if run.empty:
        return
    wide = run.pivot(index="split", columns="step", values=value).astype(np.float64)
    at = run.groupby("step")[x].mean().to_numpy(np.float64)
    low, high = bootstrap_band(wide.to_numpy(), draws=2000, of=of)
    ax.fill_between(at, low, high, color=style["color"], alpha=0.18, lw=0)
    ax.plot(at, wide.mean(skipna=False) if of == "mean" else wide.median(), **style)


def _limits(part: pd.DataFrame, value: str) -> tuple[float, float]:
    """Limits set by the quartiles over splits: the best, and not much below how the worst ends.

    The steep beginning of the runs may lie outside, and so may a few bad splits.
    """
    sign = -1 if value == "rmse" else 1
    finite = part.assign(score=sign * part[value].astype(np.float64))
    finite = finite[np.isfinite(finite["score"])]
    if finite.empty:
        return 0.0, 1.0
    quartiles = finite.groupby(["method", "n", "step"])["score"].quantile([0.25, 0.75]).unstack()
    best = float(quartiles[0.75].max())
    worst_end = float(quartiles[0.25].groupby(level=[0, 1]).last().min())
    low = max(float(quartiles[0.25].quantile(0.07)), best - 4 * (best - worst_end))
    low = min(low, worst_end)
    room = 0.06 * (best - low) or 0.5
    ends = sorted((sign * (low - room), sign * (best + room)))
    return ends[0], ends[1]


def _outside(part: pd.DataFrame, value: str, limits: tuple[float, float]) -> bool:
    """Whether a method's mean ends outside the limits, or as NaN."""
    last = part[part["step"] == part["step"].max()]
    ends = last.groupby(["method", "n"])[value].agg(lambda values: np.mean(values.to_numpy()))
    return not bool(ends.between(*limits).all())
