"""The data of the page's figures, which its script hands to Plotly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy.stats import gaussian_kde

from scoreascent.experiments.methods import METHODS, UNKNOWN_COLOURS, colour, label_with_budget
from scoreascent.experiments.report.numbers import columns_of
from scoreascent.experiments.statistics import bootstrap_band
from scoreascent.experiments.tables import RUN_KEY

SCORE_LABELS = {
    "lpd": "LPD",
    "lpd_published": "LPD, published formula",
    "rmse": "RMSE",
    "acceptance": "acceptance rate",
}
DASHES = ("solid", "dash", "dot", "dashdot")
STORED_DIGITS = 5
POINTS_OF_A_DENSITY = 161


def present(table: pd.DataFrame, values: Iterable[str]) -> list[str]:
    """Those of `values` that the table has numbers of; the LPD in any case."""
    return [v for v in values if v == "lpd" or (v in table and table[v].notna().any())]


def curves(table: pd.DataFrame, times: pd.DataFrame | None) -> dict[str, Any]:
    """Every data set's curves: the mean over splits and its 95 % interval at each step."""
    columns = columns_of(table)
    values = present(table, SCORE_LABELS)
    clock = None
    if times is not None:
        # the splits of a block run side by side: what one costs is its share
        total = times.groupby([*RUN_KEY, "step"])[["seconds", "splits"]].sum()
        clock = total["seconds"] / total["splits"]
    drawn: dict[str, list[dict[str, Any]]] = {}
    for dataset, rows in table.groupby("dataset", sort=False):
        drawn[str(dataset)] = []
        groups = dict(list(rows.groupby(["method", "n"], sort=False)))
        for place, (method, n) in enumerate(columns):
            if (method, n) not in groups:
                continue
            wide = groups[method, n].pivot(index="split", columns="step", values=values)
            curve: dict[str, Any] = {"method": place}
            for value in values:
                curve[value] = _band(wide[value])
            steps = wide[values[0]].columns
            curve["step"] = [int(step) for step in steps]
            if clock is not None and (dataset, method, n) in clock.index.droplevel("step"):
                own = clock.loc[(dataset, method, n)]
                curve["seconds"] = _rounded(own.reindex(steps))
            drawn[str(dataset)].append(curve)
    axes = [["step", "iterations"]]
    if clock is not None:
        axes.append(["seconds", "seconds per split"])
    return {
        "kind": "curves",
        "methods": _styles(columns),
        "values": [[v, SCORE_LABELS[v]] for v in values],
        "axes": axes,
        "curves": drawn,
    }


def _band(wide: pd.DataFrame) -> list[list[float | None]]:
    """Mean over splits (rows) and the ends of its 95 % interval, at each step (columns)."""
    # a split that diverged leaves a gap rather than a better mean
    values = wide.to_numpy(np.float64)
    with np.errstate(invalid="ignore"):
        mean = values.mean(0)
    # a fifth of the tables' draws: on a curve nobody sees the difference
    low, high = bootstrap_band(values, draws=2000)
    return [_rounded(mean), _rounded(low), _rounded(high)]


def densities(weights: pd.DataFrame) -> dict[str, Any]:
    """For every data set the density of the weights' posterior means, a curve for each method."""
    columns = columns_of(weights)
    drawn: dict[str, list[dict[str, Any]]] = {}
    for dataset, rows in weights.groupby("dataset", sort=False):
        drawn[str(dataset)] = []
        groups = dict(list(rows.groupby(["method", "n"], sort=False)["mean"]))
        for place, column in enumerate(columns):
            if column not in groups:
                continue
            x = groups[column].to_numpy(np.float64)
            x = x[np.isfinite(x)]
            if len(x) < 2 or np.ptp(x) <= 1e-9 * np.abs(x).max():
                continue  # no density: all weights are at one place
            kde = gaussian_kde(x)
            margin = 3 * math.sqrt(float(kde.covariance[0, 0]))
            grid = np.linspace(x.min() - margin, x.max() + margin, POINTS_OF_A_DENSITY)
            density = _rounded(kde(grid))
            drawn[str(dataset)].append(
                {"method": place, "weight": _rounded(grid), "density": [density]}
            )
    return {
        "kind": "weights",
        "methods": _styles(columns),
        "values": [["density", "density"]],
        "axes": [["weight", "posterior mean of a weight"]],
        "curves": drawn,
    }


def _styles(columns: list[tuple[str, int]]) -> list[dict[str, str]]:
    """Name, colour and dash of each method; its largest budget is solid, the others dashed."""
    names = [method for method, _ in columns]
    unknown = [m for m in dict.fromkeys(names) if m not in METHODS]
    others = {m: UNKNOWN_COLOURS[i % len(UNKNOWN_COLOURS)] for i, m in enumerate(unknown)}
    return [
        {
            "name": label_with_budget(method, n),
            "colour": colour(method, others.get(method, "")),
            "dash": DASHES[names[place + 1 :].count(method) % len(DASHES)],
        }
        for place, (method, n) in enumerate(columns)
    ]


def _rounded(numbers: Iterable[float]) -> list[float | None]:
    return [float(f"{x:.{STORED_DIGITS}g}") if math.isfinite(x) else None for x in numbers]


def script_json(data: dict[str, Any]) -> Markup:
    """JSON that can stand inside <script>: it has no `<`, so nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for letter in ("<", "\u2028", "\u2029"):
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
