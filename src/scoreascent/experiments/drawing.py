"""What is made of a finished run of the paper's experiments: pictures and small tables."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from scoreascent._figures import save
from scoreascent.experiments import curves, figures, tables
from scoreascent.experiments.store import TIMES, StoredRun

SCHEDULES = ("duchi", "doan", "doan_nesterov")


def draw_figure1(run: StoredRun, console: Console) -> None:
    """Write Figure 1 and the variances at the end of its runs."""
    table = run.read_table()
    save(figures.draw_figure1(table), run.path / "figure1.png", console)
    _summary(figures.final_variances(table), run, console)


def draw_figure2(run: StoredRun, console: Console) -> None:
    """Write Figure 2, its extension by schedules, and the widths of the basins."""
    table = run.read_table()
    save(figures.draw_figure2(table), run.path / "figure2.png", console)
    if set(SCHEDULES) & set(table["optimizer"]):
        picture = figures.draw_figure2(table, SCHEDULES)
        save(picture, run.path / "figure2-schedules.png", console)
    _summary(figures.basins(table), run, console)


def _summary(summary: pd.DataFrame, run: StoredRun, console: Console) -> None:
    summary.to_csv(run.path / "summary.csv", index=False)
    shown = Table(*summary.columns)
    for row in summary.itertuples(index=False):
        shown.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    console.print(shown)


def draw_scores(experiment: str, run: StoredRun, console: Console) -> None:
    """Write the tables of every score, its curves, and the densities of the weights."""
    table, times = run.read_table(), run.read_table(TIMES)
    values = [v for v in tables.SCORES if v in table]
    summaries = {v: tables.summarise(table, experiment, v) for v in values}
    for value, summary in summaries.items():
        summary.to_csv(run.path / f"{value}.csv", index=False, float_format="%.5g")
        (run.path / f"{value}.md").write_text(tables.markdown(summary))
        (run.path / f"{value}.tex").write_text(tables.latex(summary))
        save(curves.draw_curves(table, times, value), run.path / f"{value}.png", console)
    text = tables.markdown(summaries["lpd"])
    if "lpd_published" in summaries:
        text = tables.markdown_gp(summaries["lpd_published"], summaries["lpd"])
        (run.path / "both.md").write_text(text)
    if run.has_table("weights"):
        picture = curves.draw_pruning(run.read_table("weights"))
        save(picture, run.path / "pruning.png", console)
    console.print(Markdown(text))
