"""`scoreascent bench accuracy`: every method on every model, into a folder that can be resumed."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console

from scoreascent._structs import check_count
from scoreascent.experiments import runner
from scoreascent.experiments.accuracy import reference, show
from scoreascent.experiments.accuracy.metrics import compare
from scoreascent.experiments.accuracy.models import MODELS, entry
from scoreascent.experiments.accuracy.peers import PEERS, peer
from scoreascent.experiments.store import Frames, RunFolder

NAME = "accuracy"
# What a method may answer when a posterior is too much for it; anything else is a mistake of ours.
REFUSALS = (ValueError, RuntimeError, FloatingPointError)
MEASURED = ("mean_error", "sd_error", "sd_ratio", "coverage", "k_hat", "densities", "gradients")


@dataclass(frozen=True)
class Settings:
    """Which models and methods there are, and how many fits of each pair."""

    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = tuple(PEERS)
    seeds: int = 5


QUICK = Settings(("poisson", "ar2"), ("scoreascent", "numpyro-normal"), 1)


def run(
    folder: Path,
    quick: bool,
    seeds: int,
    console: Console,
    how: runner.How | None = None,
    models: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
) -> Counter[str]:
    """Compute what is missing of these models and methods (all, if none is named), then draw.

    Gives how many cells ended how.
    """
    how = how or runner.How()
    settings = QUICK if quick else Settings(seeds=check_count("seeds", seeds, 1))
    if how.jobs > 1:  # before jax sees the GPU: it must leave room for the others
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    wanted = cells(settings, models, methods)
    store = RunFolder(folder, NAME, asdict(settings))
    clock, there = time.perf_counter(), sum(store.has(c.name) for c in wanted)
    ends = runner.run(compute, store, wanted, settings, how)
    now = sum(store.has(c.name) for c in wanted)
    took = f"{time.perf_counter() - clock:.0f} s"
    console.print(f"{NAME}: {now} of {len(wanted)} cells in {folder}, {now - there} new, {took}")
    errors = Console(stderr=True)
    failed = {f["cell"]: f["error"] for f in store.failures()}
    for cell in wanted:
        if cell.name in failed:
            errors.print(f"! {cell.name} failed: {failed[cell.name]}", markup=False)
    if ends["unfinished"]:
        console.print("time is up; the same command goes on from here")
    if now:
        store.finish()
        draw(folder, console)
    return ends


def draw(folder: Path, console: Console) -> None:
    """Tables and the figure, from the folder's table alone."""
    path = folder / "table.parquet"
    if not path.exists():
        raise ValueError(f"{str(path)!r} does not exist; run `scoreascent bench accuracy` first")
    show.write(pd.read_parquet(path), folder, console)


def cells(
    settings: Settings, models: tuple[str, ...] = (), methods: tuple[str, ...] = ()
) -> list[runner.Cell]:
    """A cell for every model with every method; it holds all seeds, for the clock's sake."""
    for name in models:
        entry(name)
    for name in methods:
        peer(name)
    chosen = [
        [x for x in given if not only or x in only]
        for given, only in ((settings.models, models), (settings.methods, methods))
    ]
    if not all(chosen):
        raise ValueError(
            f"models {models} and methods {methods} leave nothing of this version, which has "
            f"{settings.models} and {settings.methods}; leave out --quick"
        )
    return [
        runner.Cell(f"{m}_{p}", (m, p), float(MODELS[m].dim)) for m in chosen[0] for p in chosen[1]
    ]


def compute(
    cell: runner.Cell, settings: Settings, store: RunFolder, deadline: float
) -> Frames | None:
    """One model by one method, a row for every seed.

    The first seed's time is cold: compiled code is thrown away before. The others' are warm. A fit
    that raises an error of its own has no numbers but says why.
    """
    model, method = cell.what
    what, how = entry(model), peer(method)
    row = {"model": model, "method": method, "dim": what.dim, "regular": what.regular,
           "held_out": what.held_out}  # fmt: skip
    if missing := how.missing():
        blank = dict.fromkeys((*MEASURED, "clock"), np.nan)
        return {
            "table": pd.DataFrame([{**row, "seed": 0, **blank, "verdict": "", "note": missing}])
        }
    expected, rows = reference.load(model), []
    jnp.zeros(1).block_until_ready()  # the device is up before the clock starts
    jax.clear_caches()
    gc.collect()
    target, begun = what.target(), None
    for seed in range(settings.seeds):
        if time.time() >= deadline:
            return None
        clock, numbers = time.perf_counter(), dict.fromkeys(MEASURED, np.nan)
        verdict, note = "", ""
        try:
            begun = begun or how.begin(what, target)
            read = begun(seed)
            seconds = time.perf_counter() - clock
            fit = read()
            numbers = {**compare(fit, expected), "densities": fit.densities,
                       "gradients": fit.gradients}  # fmt: skip
            verdict = fit.verdict
        except REFUSALS as error:
            seconds = time.perf_counter() - clock
            verdict, note = "refused", f"{type(error).__name__}: {error}".splitlines()[0][:200]
        rows.append({**row, "seed": seed, **numbers, "clock": seconds, "verdict": verdict,
                     "note": note})  # fmt: skip
    return {"table": pd.DataFrame(rows)}


def make_references(names: tuple[str, ...], folder: Path | None, console: Console) -> None:
    """Compute and write the references of these models, of all if none is named."""
    for name in names:
        entry(name)
    for name in names or MODELS:
        clock = time.perf_counter()
        made, how = reference.compute(name)
        path = reference.write(folder or reference.STORED, name, made, how)
        says = f"R̂ ≤ {made.rhat.max():.4f}, ESS ≥ {made.ess.min():.0f}"
        took = f"{time.perf_counter() - clock:.0f} s"
        console.print(f"{path.name}: {how['source']}, {says}, {took}", highlight=False)
