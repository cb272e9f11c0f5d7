"""Figures 1 and 2, and their small tables, from the stored tables alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scoreascent._figures import plt
from scoreascent.experiments.methods import PAPER_OPTIMIZERS, colour, in_figure_order, label
from scoreascent.plots.panels import legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_figure1(table: pd.DataFrame) -> Figure:
    """Draw a panel for each method, N from light to dark: medians and 80 % bands of the runs."""
    methods = in_figure_order(table["method"])
    figure, axes = plt.subplots(
        1, len(methods), figsize=(3.1 * len(methods), 3.3), sharey=True, layout="constrained",
        squeeze=False,
    )  # fmt: skip
    budgets = sorted(set(table["n"]))
    shades = plt.get_cmap("viridis_r")(np.linspace(0.12, 1, len(budgets)))
    for ax, method in zip(axes[0], methods):
        for n, shade in zip(budgets, shades):
            part = table[(table["method"] == method) & (table["n"] == n)]
            _band(ax, part, "step", "variance", shade, f"N = {n}")
        ax.set_title(label(method))
        ax.set_xlabel("iteration")
    axes[0, 0].set_ylabel("variance of the gradient (trace)")
    # a few copies far out can widen a band by decades for a moment; the curves set the scale
    top = 3 * table.groupby(["method", "n", "step"])["variance"].median().max()
    axes[0, 0].set_ylim(0.5 * table["variance"].min(), top)
    legend_beside(figure, *axes[0, 0].get_legend_handles_labels())
    return figure


def draw_figure2(table: pd.DataFrame, optimizers: tuple[str, ...] = PAPER_OPTIMIZERS) -> Figure:
    """Draw a column for each optimiser; last iterate above, averaged iterate below."""
    optimizers = tuple(o for o in optimizers if o in set(table["optimizer"]))
    figure, axes = plt.subplots(
        2, len(optimizers), figsize=(3.2 * len(optimizers), 5.6), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    floor = float(table["kl_floor"].iloc[0])
    # a diverged run has a KL of any size: what lies far above the best is not worth the paper
    top = 1e4 * floor
    for column, optimizer in enumerate(optimizers):
        for row, value in enumerate(("kl_last", "kl_average")):
            ax = axes[row, column]
            for method in in_figure_order(table["method"]):
                part = table[(table["method"] == method) & (table["optimizer"] == optimizer)]
                clipped = part.assign(**{value: part[value].fillna(np.inf).clip(upper=10 * top)})
                _band(ax, clipped, "step_size", value, colour(method, "0.2"), label(method))
            ax.axhline(floor, color="0.2", ls="--", lw=1, label="smallest possible")
            ax.set_ylim(0.7 * floor, top)
        axes[0, column].set_title(label(optimizer))
        axes[1, column].set_xlabel("step size")
    axes[0, 0].set_ylabel("final KL(π‖q), last iterate")
    axes[1, 0].set_ylabel("final KL(π‖q), averaged")
    legend_beside(figure, *axes[0, 0].get_legend_handles_labels())
    return figure


def _band(ax: Axes, part: pd.DataFrame, x: str, y: str, shade: Any, name: str) -> None:
    if part.empty:  # a folder whose cells are not all there yet
        return
    quantiles = part.groupby(x)[y].quantile([0.1, 0.5, 0.9]).unstack()
    ax.fill_between(quantiles.index, quantiles[0.1], quantiles[0.9], color=shade, alpha=0.18, lw=0)
    ax.plot(quantiles.index, quantiles[0.5], color=shade, lw=1.6, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.grid(color="0.92")


def basins(table: pd.DataFrame, factor: float = 1.5) -> pd.DataFrame:
    """The width, in decades of step size, where the median final KL is below `factor` × the best.

    The best is that of the optimiser over all methods. Between the step sizes of the grid the
    median is interpolated on log–log axes.
    """
    rows = []
    for value in ("kl_last", "kl_average"):
        medians = table.groupby(["optimizer", "method", "step_size"])[value].median()
        for optimizer, by_method in medians.groupby(level=0):
            best = by_method.min()
            for method, curve in by_method.droplevel(0).groupby(level=0):
                sizes = np.log10(curve.index.get_level_values("step_size"))
                wide = curve.astype(np.float64).fillna(np.inf).clip(upper=1e300)
                excess = np.log(wide / (factor * best))
                rows.append(
                    {
                        "iterate": value.removeprefix("kl_"),
                        "optimizer": optimizer,
                        "method": method,
                        "best_kl": curve.min(),
                        "basin_decades": _width_below_zero(sizes.to_numpy(), excess.to_numpy()),
                    }
                )
    return pd.DataFrame(rows)


def _width_below_zero(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The length of {x : y(x) < 0} for the piecewise linear curve through the points."""
    low, high = np.minimum(y[:-1], y[1:]), np.maximum(y[:-1], y[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(high <= 0, 1.0, np.where(low >= 0, 0.0, -low / (high - low)))
    return float(np.sum(np.diff(x) * share))


def final_variances(table: pd.DataFrame) -> pd.DataFrame:
    """Median variance at the end of Figure 1's runs, beside pMCSA's closed form at the same q."""
    last = table[table["step"] == table["step"].max()]
    medians = last.groupby(["method", "n"])[["variance", "closed_form"]].median()
    medians["ratio"] = (
        last.assign(ratio=last["variance"] / last["closed_form"])
        .groupby(["method", "n"])["ratio"]
        .median()
    )
    return medians.reset_index()
