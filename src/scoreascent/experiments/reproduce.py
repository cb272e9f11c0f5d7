"""`scoreascent reproduce`: run an experiment into a folder, write its table, draw its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from rich.console import Console
from rich.table import Table

from scoreascent.experiments import figure1, figure2, figures

EXPERIMENTS: dict[str, Any] = {"figure1": figure1, "figure2": figure2}


def run(what: str, folder: Path, quick: bool, console: Console) -> None:
    """Compute what is missing, then write the table and everything drawn from it."""
    experiment = _known(what)
    settings = experiment.QUICK if quick else experiment.Settings()
    clock = time.perf_counter()
    store = experiment.run(folder, settings)
    console.print(f"{what}: cells complete in {folder} after {time.perf_counter() - clock:.0f} s")
    store.finish()
    draw(what, folder, console)


def draw(what: str, folder: Path, console: Console) -> None:
    """Figures and small tables, from the folder's table alone."""
    _known(what)
    path = folder / "table.parquet"
    if not path.exists():
        raise ValueError(f"{str(path)!r} does not exist; run the experiment first")
    table = pd.read_parquet(path)
    if what == "figure1":
        pictures: dict[str, Callable[[], Any]] = {"figure1": lambda: figures.draw_figure1(table)}
        small = figures.final_variances(table)
    else:
        pictures = {"figure2": lambda: figures.draw_figure2(table)}
        if {"duchi", "doan", "doan_nesterov"} & set(table["optimizer"]):
            schedules = ("duchi", "doan", "doan_nesterov")
            pictures["figure2-schedules"] = lambda: figures.draw_figure2(table, schedules)
        small = figures.basins(table)
    for name, make in pictures.items():
        figure = make()
        figure.savefig(folder / f"{name}.png", dpi=150)
        plt.close(figure)
        console.print(f"picture: {folder / name}.png")
    small.to_csv(folder / "summary.csv", index=False)
    shown = Table(*small.columns)
    for row in small.itertuples(index=False):
        shown.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    console.print(shown)


def _known(what: str) -> Any:
    if what not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {what!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[what]
