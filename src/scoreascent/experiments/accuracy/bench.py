"""The accuracy suite as an experiment: every model by every method, and the references."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console

from scoreascent.experiments.accuracy import own, reference, show
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit, compare, mass_error
from scoreascent.experiments.accuracy.models import MODELS, entry
from scoreascent.experiments.accuracy.peers import PEERS, peer
from scoreascent.experiments.experiment import Experiment
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, RunFolder, StoredRun

# What a method may answer when a posterior is too much for it; anything else is a mistake of ours.
REFUSALS = (ValueError, RuntimeError, FloatingPointError)
MEASURED = (
    "mean_error", "sd_error", "sd_ratio", "coverage", "k_hat", "own_mean_error", "own_sd_error",
    "quantile_error", "mass_error", "densities", "gradients",
)  # fmt: skip
LONGEST_NOTE = 200  # in letters


@dataclass(frozen=True)
class Settings:
    """Which models and methods there are, and how many fits of each pair."""

    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = tuple(PEERS)
    seeds: int = 5


QUICK = Settings(("poisson", "ar2"), ("scoreascent", "numpyro-normal"), 1)


def cells(
    settings: Settings, only_models: tuple[str, ...] = (), only_methods: tuple[str, ...] = ()
) -> list[Cell]:
    """A cell for every model with every method; it holds all seeds, for the clock's sake."""
    for name in only_models:
        entry(name)
    for name in only_methods:
        peer(name)
    models = [m for m in settings.models if not only_models or m in only_models]
    methods = [p for p in settings.methods if not only_methods or p in only_methods]
    if not (models and methods):
        raise ValueError(
            f"models {only_models} and methods {only_methods} leave nothing of this version, which "
            f"has {settings.models} and {settings.methods}; leave out --quick"
        )
    return [Cell(f"{m}_{p}", (m, p), float(MODELS[m].dim)) for m in models for p in methods]


def compute(cell: Cell, settings: Settings, store: RunFolder, deadline: float) -> Frames | None:
    """Fit one model by one method: a row for every seed.

    The first seed's time is cold: compiled code is thrown away before. The others' are warm. A fit
    that raises an error of its own has no numbers but says why.
    """
    model, method = entry(cell.piece[0]), peer(cell.piece[1])
    about = {
        "model": cell.piece[0],
        "method": cell.piece[1],
        "dim": model.dim,
        "regular": model.regular,
        "held_out": model.held_out,
    }
    if missing := method.missing():
        blank = dict.fromkeys((*MEASURED, "clock"), np.nan)
        row = {**about, "seed": 0, **blank, "verdict": "", "note": missing}
        return {"table": pd.DataFrame([row])}
    expected, known, rows = reference.load(cell.piece[0]), own.load(cell.piece[0]), []
    jnp.zeros(1).block_until_ready()  # the device is up before the clock starts
    jax.clear_caches()
    gc.collect()
    target, begun = model.target(), None
    for seed in range(settings.seeds):
        if time.time() >= deadline:
            return None
        clock = time.perf_counter()
        result: dict[str, Any] = dict.fromkeys(MEASURED, np.nan)
        try:
            begun = begun or method.begin(model, target)
            read = begun(seed)
            seconds = time.perf_counter() - clock
            fit = read()
            result = {
                **compare(fit, expected),
                **own.errors(fit.shown or own.of_draws(target, fit.draws), known),
                "mass_error": _mass_error(fit, model),
                "densities": fit.densities,
                "gradients": fit.gradients,
            }
            verdict, note = fit.verdict, ""
        except REFUSALS as error:
            seconds = time.perf_counter() - clock
            says = f"{type(error).__name__}: {error}".splitlines()[0]
            verdict, note = "refused", says[:LONGEST_NOTE]
        result |= {"clock": seconds, "verdict": verdict, "note": note}
        rows.append({**about, "seed": seed, **result})
    return {"table": pd.DataFrame(rows)}


def _mass_error(fit: Fit, model: Entry) -> float:
    """The largest error of a mode's mass; NaN where the model has no modes to speak of."""
    if model.masses is None:
        return np.nan
    return mass_error(fit.draws if fit.shown_z is None else fit.shown_z, *model.masses())


def draw(run: StoredRun, console: Console) -> None:
    """Write the tables and the figure."""
    table = run.read_table(hint="run `scoreascent bench accuracy` first")
    show.write(table, run.path, console)


ACCURACY = Experiment(
    "accuracy",
    Settings(),
    QUICK,
    cells,
    compute,
    draw,
    parts=("only_models", "only_methods"),
    command="bench",
)


def make_references(names: tuple[str, ...], folder: Path | None, console: Console) -> None:
    """Compute and write the references of these models, of all if none is named."""
    for name in names:
        entry(name)
    for name in names or MODELS:
        clock = time.perf_counter()
        found, origin, known = reference.compute(name, own.of_draws)
        path = reference.write(folder or reference.STORED, name, found, origin)
        if known is not None:
            own.write(folder or reference.STORED, name, known, origin)
        says = f"R̂ ≤ {found.rhat.max():.4f}, ESS ≥ {found.ess.min():.0f}"
        took = f"{time.perf_counter() - clock:.0f} s"
        console.print(f"{path.name}: {origin['source']}, {says}, {took}", highlight=False)
