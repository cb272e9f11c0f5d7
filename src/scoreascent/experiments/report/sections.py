"""One run's part of the page: what there is to show of it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scoreascent.experiments import tables
from scoreascent.experiments.experiment import Experiment
from scoreascent.experiments.registry import EXPERIMENTS
from scoreascent.experiments.report import charts
from scoreascent.experiments.report.numbers import (
    CAPTIONS,
    SummaryTable,
    plain_text,
    setting_text,
)
from scoreascent.experiments.store import TIMES, StoredRun
from scoreascent.experiments.tables import RUN_KEY

TABLE_COLUMNS = (*RUN_KEY, "split", "step", "lpd", "rmse")
TIME_COLUMNS = (*RUN_KEY, "splits", "step", "seconds")
WEIGHT_COLUMNS = (*RUN_KEY, "mean")


@dataclass(frozen=True)
class Part:
    """A piece of a section under its heading; the template of that name shows the content."""

    anchor: str
    heading: str
    template: str
    content: Any


@dataclass(frozen=True)
class Unfinished:
    """How far a run has come whose tables or pictures are not there yet."""

    cells: int
    failed: int
    rest: str


class Section:
    """A run: its title, what state it is in, and its parts from top to bottom."""

    def __init__(self, run: StoredRun, name: str, anchor: str) -> None:
        self.run, self.name, self.anchor = run, name, anchor
        manifest = run.read_manifest()
        self.experiment: str = manifest["experiment"]
        known = EXPERIMENTS.get(self.experiment)
        self.title = known.title or self.experiment if known else self.experiment
        self.failures = run.failures()
        self.extent = ""
        self.unfinished: Unfinished | None = None
        self.parts: list[Part] = []
        if _shows_scores(known):
            self._add_scores()
        else:
            self._add_pictures()
        if self.failures:
            heading = f"Failed cells ({len(self.failures)})"
            self._add("failed", heading, "failed", self.failures)
        for pairs in ("settings", "versions"):
            texts = {str(key): setting_text(value) for key, value in manifest[pairs].items()}
            self._add(pairs, pairs.capitalize(), "pairs", texts)

    @property
    def has_plots(self) -> bool:
        """Whether the page needs Plotly."""
        return any(part.template == "plot" for part in self.parts)

    def _add(self, anchor: str, heading: str, template: str, content: Any) -> None:
        self.parts.append(Part(anchor, heading, template, content))

    # -- pictures ------------------------------------------------------------------------------

    def _add_pictures(self) -> None:
        folder = self.run.path
        summary, pictures = folder / "summary.csv", sorted(folder.glob("*.png"))
        if summary.exists():
            self._add("summary", "Summary", "plain", _plain_table(summary))
        if pictures:
            self._add("pictures", "Pictures", "pictures", [_picture(path) for path in pictures])
        if not (summary.exists() or pictures):
            self._set_unfinished(len(self.run.finished()), "its pictures are not drawn yet")

    # -- scores --------------------------------------------------------------------------------

    def _add_scores(self) -> None:
        run, times = self.run, None
        if run.has_table():
            table = run.read_table(columns=TABLE_COLUMNS)
            if run.has_table(TIMES):
                times = run.read_table(TIMES, TIME_COLUMNS)
            self.extent = _extent(table)
        elif cells := run.finished():
            table, times = _from_cells(run, cells)
            self._set_unfinished(len(cells))
            self.extent = f"{_extent(table)} so far."
        else:
            self._set_unfinished(0)
            return
        values = charts.present(table, CAPTIONS)
        summaries = [tables.summarise(table, self.experiment, value) for value in values]
        shown = [SummaryTable(summary, value) for summary, value in zip(summaries, values)]
        self._add("tables", "Tables", "summaries", shown)
        order = [str(dataset) for dataset in dict.fromkeys(summaries[0]["dataset"])]
        self._add_plot("curves", "Curves", charts.curves(table, times), order)
        if run.has_table("weights"):
            weights = run.read_table("weights", WEIGHT_COLUMNS)
            self._add_plot("weights", "Weights", charts.densities(weights), order)

    def _add_plot(self, anchor: str, heading: str, data: dict[str, Any], order: list[str]) -> None:
        """Add a figure; its data sets stand in the order of the tables."""
        curves = data["curves"]
        data["curves"] = {name: curves[name] for name in order if name in curves} | curves
        content = {
            "id": f"{self.anchor}-{anchor}-plot",
            "kind": data["kind"],
            "json": charts.script_json(data),
        }
        self._add(anchor, heading, "plot", content)

    def _set_unfinished(self, cells: int, rest: str = "what follows is made of those") -> None:
        rest = rest if cells else "there is nothing to show yet"
        self.unfinished = Unfinished(cells, len(self.failures), rest)


def _shows_scores(experiment: Experiment | None) -> bool:
    return experiment is not None and experiment.shown_as == "scores"


def _from_cells(run: StoredRun, cells: list[str]) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The table and the times of the cells that are there."""
    parts, times = [], []
    for cell in cells:
        part = run.read_cell(cell, columns=TABLE_COLUMNS)
        assert part is not None
        parts.append(part)
        if "seconds" in part:
            block = part.groupby([*RUN_KEY, "step"], sort=False)
            times.append(block.agg(seconds=("seconds", "max"), splits=("split", "nunique")))
    table = pd.concat(parts, ignore_index=True)
    return table, pd.concat(times).reset_index() if times else None


def _extent(table: pd.DataFrame) -> str:
    counts = {
        "data set": table["dataset"].nunique(),
        "method": len(table[["method", "n"]].drop_duplicates()),
        "split": table["split"].nunique(),
    }
    words = [f"{count} {word}{'s' * (count != 1)}" for word, count in counts.items()]
    return f"{', '.join(words)}, {table['step'].max():,} iterations"


def _plain_table(path: Path) -> dict[str, Any]:
    """A CSV file as texts: its columns and its rows."""
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' own errors are among these
        raise ValueError(
            f"{str(path)!r} cannot be read as a table ({error}); delete it and repeat "
            "`scoreascent reproduce` with --draw"
        ) from error
    rows: Iterable[Any] = table.itertuples(index=False)
    return {
        "columns": [str(column) for column in table.columns],
        "rows": [[plain_text(value) for value in row] for row in rows],
    }


def _picture(path: Path) -> dict[str, str]:
    return {"name": path.stem, "data": base64.b64encode(path.read_bytes()).decode()}
