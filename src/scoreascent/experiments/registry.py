"""All experiments by name."""

from __future__ import annotations

import functools
from typing import Literal

from scoreascent.experiments import drawing, figure1, figure2
from scoreascent.experiments.accuracy.bench import ACCURACY
from scoreascent.experiments.experiment import Experiment
from scoreascent.experiments.large.bench import LARGE
from scoreascent.experiments.regression import LAYOUT, PARTS, Table
from scoreascent.experiments.table_bnn import TABLE as BNN
from scoreascent.experiments.table_gp import TABLE as GP
from scoreascent.experiments.verdict.bench import VERDICT


def _of_table(table: Table, title: str) -> Experiment:
    return Experiment(
        table.name,
        table.settings,
        table.quick,
        table.cells,
        table.compute,
        functools.partial(drawing.draw_scores, table.name),
        layout=LAYOUT,
        parts=PARTS,
        title=title,
        shown_as="scores",
    )


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "figure1",
            figure1.Settings(),
            figure1.QUICK,
            figure1.cells,
            figure1.compute,
            drawing.draw_figure1,
            title="Figure 1: variance of the gradient",
        ),
        Experiment(
            "figure2",
            figure2.Settings(),
            figure2.QUICK,
            figure2.cells,
            figure2.compute,
            drawing.draw_figure2,
            title="Figure 2: final KL against the step size",
        ),
        _of_table(BNN, "Bayesian neural networks"),
        _of_table(GP, "Gaussian processes"),
        ACCURACY,
        VERDICT,
        LARGE,
    )
}


def known(name: str, command: Literal["reproduce", "bench"] = "reproduce") -> Experiment:
    """The experiment of that name, among those that a command runs."""
    names = [n for n, experiment in EXPERIMENTS.items() if experiment.command == command]
    if name not in names:
        raise ValueError(f"there is no experiment {name!r}; choose from {', '.join(names)}")
    return EXPERIMENTS[name]
