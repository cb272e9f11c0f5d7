"""Large posteriors: `sa.fit(target)` beside NUTS, every fit in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from scoreascent.experiments.experiment import Experiment
from scoreascent.experiments.large.cell import in_its_own_process
from scoreascent.experiments.large.methods import METHODS, way
from scoreascent.experiments.large.models import MODELS, large_model
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, RunFolder, StoredRun
from scoreascent.run import TOLERANCE


@dataclass(frozen=True)
class Settings:
    """Which models and methods there are, and how many fits of each pair."""

    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: int = 3


QUICK = Settings(("slopes",), ("scoreascent", "nuts"), 1)


def cells(
    settings: Settings, only_models: tuple[str, ...] = (), only_methods: tuple[str, ...] = ()
) -> list[Cell]:
    """A cell for every model with every method and seed."""
    for name in only_models:
        large_model(name)
    for name in only_methods:
        way(name)
    chosen = [
        Cell(f"{model}-by-{method}-{seed}", (model, method, seed), float(MODELS[model].dim))
        for model in settings.models
        for method in settings.methods
        for seed in range(settings.seeds)
        if (not only_models or model in only_models)
        and (not only_methods or method in only_methods)
        and MODELS[model].dim <= METHODS[method].max_dim
    ]
    if not chosen:
        raise ValueError(
            f"models {only_models} and methods {only_methods} leave nothing of this version, which "
            f"has {settings.models} and {settings.methods}; nuts-dense is for "
            f"{METHODS['nuts-dense'].max_dim} dimensions and fewer"
        )
    return chosen


def compute(cell: Cell, settings: Settings, store: RunFolder, deadline: float) -> Frames | None:
    """Fit one model by one method with one seed, in a fresh process: its time is cold."""
    name, method, seed = cell.piece
    model = large_model(name)
    measured = in_its_own_process(name, method, seed, deadline - time.time())
    if measured is None:
        return None
    about = {"model": name, "dim": model.dim, "held_out": model.held_out, "method": method}
    return {"table": pd.DataFrame([{**about, "seed": seed, **measured}])}


# -- tables ----------------------------------------------------------------------------------------


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with whether every fit keeps what *good* promises: all means and all sds."""
    right = (table["mean_error"] <= TOLERANCE) & (table["worst_sd_error"] <= TOLERANCE)
    return table.assign(right=right)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every model and method: medians over seeds, and how many seeds were good."""
    rows = []
    for (name, method), fits in judged(table).groupby(["model", "method"], sort=False):
        middle = fits[list(NUMBERS)].median()
        rows.append(
            {
                "model": name,
                "dim": int(fits["dim"].iloc[0]),
                "held out": "yes" if fits["held_out"].iloc[0] else "",
                "method": method,
                **{NUMBERS[key]: _short(middle[key]) for key in NUMBERS},
                "good": f"{int(fits['good'].sum())}/{len(fits)}",
                "good, not right": int((fits["good"] & ~fits["right"]).sum()),
                "says": fits["says"].mode().iloc[0],
            }
        )
    order = {name: i for i, name in enumerate([*MODELS, *METHODS])}
    made = pd.DataFrame(rows)
    return made.sort_values(["model", "method"], key=lambda x: x.map(order), ignore_index=True)


NUMBERS = {
    "mean_error": "worst mean",
    "sd_error": "log sd",
    "worst_sd_error": "worst log sd",
    "gradients": "gradients",
    "seconds": "cold s",
}


def _short(x: Any) -> str:
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def draw(run: StoredRun, console: Console) -> None:
    """Write the table of fits, and a shorter one of medians."""
    table = run.read_table(hint="run `scoreascent bench large` first")
    judged(table).to_csv(run.path / "table.csv", index=False, float_format="%.4g")
    found = summary(table)
    header = "| " + " | ".join(found.columns) + " |\n|" + "---|" * len(found.columns)
    lines = ["| " + " | ".join(map(str, r)) + " |" for r in found.itertuples(index=False)]
    text = "\n".join([header, *lines]) + "\n"
    (run.path / "summary.md").write_text(text, encoding="utf-8")
    console.print(Markdown(text))


LARGE = Experiment(
    "large",
    Settings(),
    QUICK,
    cells,
    compute,
    draw,
    parts=("only_models", "only_methods"),
    command="bench",
)
