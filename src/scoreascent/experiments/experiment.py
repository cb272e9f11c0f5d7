"""An experiment, and the one way in which all of them are run: cells, tables, pictures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from scoreascent._structs import check_count
from scoreascent.experiments import runner
from scoreascent.experiments.runner import Cell, Compute, Execution
from scoreascent.experiments.store import ONLY_A_TABLE, Layout, RunFolder, StoredRun


@dataclass(frozen=True)
class Experiment:
    """All that is to be known of a figure, a table or a suite.

    Attributes:
        name: what it is called on the command line, in the manifest and in messages.
        settings: the full version; a frozen dataclass.
        quick: a small version, in about a minute.
        cells: the grid of given settings, or a part of it, named by the arguments in `parts`.
        compute: what computes one cell; a function that worker processes can import.
        draw: writes all that is made of the finished tables into the run's folder.
        layout: which files the finished folder has, and which columns are the clock's.
        parts: the arguments of `cells` by which a part of the grid can be chosen.
        command: the command of the command line that runs it.
        title: a heading for the report; the name if there is none.
        shown_as: what the report shows of it: its pictures, or scores along its runs.
    """

    name: str
    settings: Any
    quick: Any
    cells: Callable[..., list[Cell]]
    compute: Compute
    draw: Callable[[StoredRun, Console], None]
    layout: Layout = ONLY_A_TABLE
    parts: tuple[str, ...] = ()
    command: Literal["reproduce", "bench"] = "reproduce"
    title: str = ""
    shown_as: Literal["pictures", "scores"] = "pictures"

    def chosen_cells(self, settings: Any, **part: Any) -> list[Cell]:
        """The grid, or the part of it that is asked for; None and () ask for nothing."""
        part = {key: value for key, value in part.items() if value not in (None, ())}
        if not part.keys() <= set(self.parts):
            raise ValueError(
                f"{self.name} is one whole; --data, --method and --splits are for the tables"
            )
        return self.cells(settings, **part)


def with_seeds(experiment: Experiment, seeds: int) -> Experiment:
    """Return a suite whose settings have so many seeds."""
    settings = replace(experiment.settings, seeds=check_count("seeds", seeds, 1))
    return replace(experiment, settings=settings)


def run(
    experiment: Experiment,
    folder: Path,
    console: Console,
    execution: Execution | None = None,
    *,
    quick: bool = False,
    **part: Any,
) -> Counter[str]:
    """Compute what is missing, then write the tables and everything drawn from them.

    `part` names the part of the grid that is wanted, by the experiment's `parts`. Gives how many
    cells ended how.
    """
    execution = execution or Execution()
    execution.leave_room_on_the_device()  # before jax sees it
    settings = experiment.quick if quick else experiment.settings
    cells = experiment.chosen_cells(settings, **part)
    store = RunFolder(folder, experiment.name, asdict(settings))
    clock, there = time.perf_counter(), sum(store.has(c.name) for c in cells)
    ends = runner.run(experiment.compute, store, cells, settings, execution)
    now = sum(store.has(c.name) for c in cells)
    took = f"{time.perf_counter() - clock:.0f} s"
    console.print(
        f"{experiment.name}: {now} of {len(cells)} cells in {folder}, {now - there} new, {took}"
    )
    _tell_failures(store, cells)
    if ends["unfinished"]:
        console.print("time is up; the same command goes on from here")
    if now:
        store.finish(experiment.layout)
        experiment.draw(StoredRun(folder), console)
    return ends


def _tell_failures(store: RunFolder, cells: list[Cell]) -> None:
    failed = {failure["cell"]: failure["error"] for failure in store.failures()}
    errors = Console(stderr=True)
    for cell in cells:
        if cell.name in failed:
            errors.print(f"! {cell.name} failed: {failed[cell.name]}", markup=False)
