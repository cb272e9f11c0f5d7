"""`scoreascent reproduce`: run an experiment into a folder, write its tables, draw its figures."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from scoreascent.experiments import curves, figure1, figure2, figures, runner, tables
from scoreascent.experiments.store import RunFolder, RunFolderError
from scoreascent.experiments.table_bnn import TABLE as BNN
from scoreascent.experiments.table_gp import TABLE as GP


@dataclass(frozen=True)
class Experiment:
    """What `reproduce` needs to know of a figure or a table."""

    settings: Any
    quick: Any
    cells: Callable[..., list[runner.Cell]]
    compute: runner.Compute
    draw: Callable[[Path, Console], None]


def run(
    what: str,
    folder: Path,
    quick: bool,
    console: Console,
    how: runner.How | None = None,
    **part: Any,
) -> Counter[str]:
    """Compute what is missing, then write the tables and everything drawn from them.

    `part` names the part of a table that is wanted: `only_datasets`, `only_methods`, `splits`.
    Gives how many cells ended how.
    """
    experiment, how = known(what), how or runner.How()
    if how.jobs > 1:  # before jax sees the GPU: it must leave room for the others
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    settings = experiment.quick if quick else experiment.settings
    part = {key: value for key, value in part.items() if value not in (None, ())}
    if part and what not in tables.FILES:
        raise ValueError(f"{what} is one whole; --data, --method and --splits are for the tables")
    cells = experiment.cells(settings, **part)
    store = RunFolder(folder, what, asdict(settings))
    clock, there = time.perf_counter(), sum(store.has(c.name) for c in cells)
    ends = runner.run(experiment.compute, store, cells, settings, how)
    now = sum(store.has(c.name) for c in cells)
    took = f"{time.perf_counter() - clock:.0f} s"
    console.print(f"{what}: {now} of {len(cells)} cells in {folder}, {now - there} new, {took}")
    failed = {f["cell"]: f["error"] for f in store.failures()}
    errors = Console(stderr=True)
    for cell in cells:
        if cell.name in failed:
            errors.print(f"! {cell.name} failed: {failed[cell.name]}", markup=False)
    if ends["unfinished"]:
        console.print("time is up; the same command goes on from here")
    if now:
        store.finish()
        draw(what, folder, console)
    return ends


def draw(what: str, folder: Path, console: Console) -> None:
    """Figures and small tables, from the folder's tables alone."""
    known(what).draw(folder, console)


# -- figures 1 and 2 -------------------------------------------------------------------------------


def _draw_figure1(folder: Path, console: Console) -> None:
    table = _read(folder, "table")
    _save(figures.draw_figure1(table), folder / "figure1.png", console)
    _summary(figures.final_variances(table), folder, console)


def _draw_figure2(folder: Path, console: Console) -> None:
    table = _read(folder, "table")
    _save(figures.draw_figure2(table), folder / "figure2.png", console)
    schedules = ("duchi", "doan", "doan_nesterov")
    if set(schedules) & set(table["optimizer"]):
        picture = figures.draw_figure2(table, schedules)
        _save(picture, folder / "figure2-schedules.png", console)
    _summary(figures.basins(table), folder, console)


def _summary(small: pd.DataFrame, folder: Path, console: Console) -> None:
    small.to_csv(folder / "summary.csv", index=False)
    shown = Table(*small.columns)
    for row in small.itertuples(index=False):
        shown.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    console.print(shown)


# -- the tables ------------------------------------------------------------------------------------


def _draw_table(what: str, folder: Path, console: Console) -> None:
    table, times = _read(folder, "table"), _read(folder, "times")
    values = [v for v in tables.VALUES if v in table]
    summaries = {v: tables.summarise(table, what, v) for v in values}
    for value, summary in summaries.items():
        summary.to_csv(folder / f"{value}.csv", index=False, float_format="%.5g")
        (folder / f"{value}.md").write_text(tables.markdown(summary))
        (folder / f"{value}.tex").write_text(tables.latex(summary))
        _save(curves.draw_curves(table, times, value), folder / f"{value}.png", console)
    text = tables.markdown(summaries["lpd"])
    if "lpd_published" in summaries:
        text = tables.markdown_gp(summaries["lpd_published"], summaries["lpd"])
        (folder / "both.md").write_text(text)
    if (folder / "weights.parquet").exists():
        picture = curves.draw_pruning(_read(folder, "weights"))
        _save(picture, folder / "pruning.png", console)
    console.print(Markdown(text))


# -- both ------------------------------------------------------------------------------------------


def _read(folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise RunFolderError(f"{str(path)!r} does not exist; run the experiment first")
    return pd.read_parquet(path)


def _save(figure: Any, path: Path, console: Console) -> None:
    figure.savefig(path, dpi=150)
    plt.close(figure)
    console.print(f"picture: {path}")


def known(what: str) -> Experiment:
    """The experiment of that name."""
    if what not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {what!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[what]


EXPERIMENTS = {
    "figure1": Experiment(
        figure1.Settings(), figure1.QUICK, figure1.cells, figure1.compute, _draw_figure1
    ),
    "figure2": Experiment(
        figure2.Settings(), figure2.QUICK, figure2.cells, figure2.compute, _draw_figure2
    ),
    **{
        table.name: Experiment(
            table.settings,
            table.quick,
            table.cells,
            table.compute,
            lambda folder, console, name=table.name: _draw_table(name, folder, console),  # type: ignore[misc]
        )
        for table in (BNN, GP)
    },
}
