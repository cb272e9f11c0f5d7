"""The command line: `scoreascent fit | launch | demo | reproduce | report | bench | doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

from scoreascent import distributed
from scoreascent._cache import use_cache
from scoreascent._extras import require
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting.provenance import versions

app = typer.Typer(no_args_is_help=True, add_completion=False)
bench = typer.Typer(no_args_is_help=True)
app.add_typer(bench, name="bench", help="Measure the library against its peers.")
PLAIN_WIDTH = 120  # columns of what goes into a file or a pipe, unless COLUMNS says otherwise
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH)


@app.callback()
def _root() -> None:
    """Variational inference that gets the uncertainties right."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture")] = Path("out"),
    key: Annotated[int, typer.Option(help="the seed")] = 0,
) -> None:
    """Fit a regression on real data by the ELBO, pMCSA and sa.fit, and compare with NUTS."""
    use_cache()  # a second demo need not compile what the first one did
    module = _load("demo", "cli", "the demo")
    out.mkdir(parents=True, exist_ok=True)
    module.run(console, out / "demo.png", key)


@app.command()
def fit(
    model: Annotated[str, typer.Argument(help="FILE:NAME, such as model.py:model")],
    data: Annotated[Path | None, typer.Option(help="a CSV file with a header")] = None,
    out: Annotated[Path, typer.Option(help="the folder for what comes out")] = Path("fit"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, an argument (repeat)")
    ] = None,
    key: Annotated[int, typer.Option(help="the seed")] = 0,
    tolerance: Annotated[
        float, typer.Option(help="what is good: means in sds, sds as a share")
    ] = 0.1,
    x64: Annotated[bool, typer.Option(help="compute with 64 bits")] = False,
    quiet: Annotated[bool, typer.Option(help="print nothing but errors")] = False,
) -> None:
    """Fit a NumPyro or PyMC model to a table, and keep what is found in a folder.

    NAME is a NumPyro function, a pymc.Model or a function that returns one. Columns of the table
    become its arguments by name: numbers as arrays, texts as codes 0, 1, … of their labels in
    alphabetical order, and `x_labels` gets the labels of column `x`. The folder gets fit.npz (for
    sa.load), summary.csv, report.html, draws.nc if ArviZ is there, and labels.csv if texts are.

    Ends with 0 if the verdict is good, with 3 if the fit is there but the verdict is not good, with
    1 if something went wrong, and with 2 if the command line was wrong.
    """
    if x64:
        jax.config.update("jax_enable_x64", True)
    use_cache()
    module = _load("from_csv", "cli", "scoreascent fit")
    with _told_in_one_line():
        result, says = module.run(model, data, out, set_ or (), key, tolerance, not quiet)
    if not quiet:
        console.print(str(result), markup=False, highlight=False)
        for line in (*says, f"in {out}: {', '.join(sorted(p.name for p in out.iterdir()))}"):
            console.print(line, markup=False, highlight=False)
    if result.diagnosis is None or result.diagnosis.verdict != GOOD:
        raise typer.Exit(module.NOT_GOOD)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="a Python script; what follows are its arguments")],
    processes: Annotated[int, typer.Option(help="how many")] = 2,
    patience: Annotated[float, typer.Option(help="seconds to end after one has failed")] = 60.0,
) -> None:
    """Run a script so many times on this machine, as processes of one fit (docs/scaling.md)."""
    command = [sys.executable, str(script), *context.args]
    with _told_in_one_line():
        status = distributed.launch(processes, command, patience)
    raise typer.Exit(status)


@app.command()
def doctor() -> None:
    """Print the versions and the device that results depend on."""
    table = Table(show_header=False)
    for name, value in versions().items():
        table.add_row(name, value)
    console.print(table)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="figure1, figure2, table-bnn or table-gp")],
    out: Annotated[Path | None, typer.Option(help="run folder; runs/<what> if not given")] = None,
    quick: Annotated[bool, typer.Option(help="a small version: a minute")] = False,
    draw: Annotated[bool, typer.Option(help="draw what the folder has")] = False,
    data: Annotated[list[str] | None, typer.Option(help="only this data set (repeat)")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method (repeat)")] = None,
    splits: Annotated[int | None, typer.Option(help="only so many train-test splits")] = None,
    jobs: Annotated[int, typer.Option(help="processes on this machine")] = 1,
    backend: Annotated[str, typer.Option(help="local, dask or ray")] = "local",
    address: Annotated[str | None, typer.Option(help="of the cluster's scheduler")] = None,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so many")] = None,
) -> None:
    """Reproduce a figure or a table of the paper, going on from what the folder holds."""
    registry = _load("experiments.registry")
    with _told_in_one_line():
        experiment = registry.known(what)
    part = {"only_datasets": tuple(data or ()), "only_methods": tuple(method or ())}
    _run_or_draw(
        experiment,
        out,
        quick,
        draw,
        {"jobs": jobs, "backend": backend, "address": address, "minutes": minutes},
        **part,
        splits=splits,
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders that hold some")],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Write one HTML page, which needs no server and no network, about finished and other runs."""
    module = _load("experiments.report")
    with _told_in_one_line():
        page = module.write(module.find(runs), out)
    console.print(f"report: {page}")


@bench.callback()
def _bench() -> None:
    """Measure the library against its peers."""


@bench.command()
def accuracy(
    model: Annotated[list[str] | None, typer.Option(help="only this model (repeat)")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method (repeat)")] = None,
    seeds: Annotated[int, typer.Option(help="fits of each model by each method")] = 5,
    quick: Annotated[bool, typer.Option(help="a small version: a minute")] = False,
    draw: Annotated[bool, typer.Option(help="draw what the folder has")] = False,
    references: Annotated[bool, typer.Option(help="make the references, not the fits")] = False,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/accuracy if none")] = None,
    jobs: Annotated[int, typer.Option(help="processes; with one, times are true")] = 1,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so many")] = None,
) -> None:
    """Compare means and spreads with trusted references: this library, its peers and NUTS."""
    registry = _load("experiments.registry")
    module = _load("experiments.accuracy.bench")
    models = tuple(model or ())
    if references:
        with _told_in_one_line():
            module.make_references(models, out, console)
        return
    experiment = registry.known("accuracy", "bench")
    if not (quick or draw):
        with _told_in_one_line():
            experiment = _load("experiments.experiment").with_seeds(experiment, seeds)
    _run_or_draw(
        experiment,
        out,
        quick,
        draw,
        {"jobs": jobs, "minutes": minutes},
        only_models=models,
        only_methods=tuple(method or ()),
    )


@bench.command()
def verdict(
    shape: Annotated[list[str] | None, typer.Option(help="only this shape (repeat)")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method (repeat)")] = None,
    seeds: Annotated[int, typer.Option(help="fits of each shape by each method")] = 5,
    quick: Annotated[bool, typer.Option(help="a small version: a minute")] = False,
    draw: Annotated[bool, typer.Option(help="draw what the folder has")] = False,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/verdict if none")] = None,
    jobs: Annotated[int, typer.Option(help="processes on this machine")] = 1,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so many")] = None,
) -> None:
    """Try to fool the verdict: odd shapes with exact moments, right or wrong, good or not."""
    experiment = _load("experiments.registry").known("verdict", "bench")
    if not (quick or draw):
        with _told_in_one_line():
            experiment = _load("experiments.experiment").with_seeds(experiment, seeds)
    _run_or_draw(
        experiment,
        out,
        quick,
        draw,
        {"jobs": jobs, "minutes": minutes},
        only_shapes=tuple(shape or ()),
        only_methods=tuple(method or ()),
    )


@bench.command()
def large(
    model: Annotated[list[str] | None, typer.Option(help="only this model (repeat)")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="scoreascent, nuts or nuts-dense (repeat)")
    ] = None,
    seeds: Annotated[int, typer.Option(help="fits of each model by each method")] = 3,
    quick: Annotated[bool, typer.Option(help="one model, one seed")] = False,
    draw: Annotated[bool, typer.Option(help="draw what the folder has")] = False,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/large if none")] = None,
    jobs: Annotated[int, typer.Option(help="processes; with one, times are true")] = 1,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so many")] = None,
) -> None:
    """Compare with NUTS on posteriors of 80 to 2000 dimensions: errors, gradients, cold time."""
    experiment = _load("experiments.registry").known("large", "bench")
    if not (quick or draw):
        with _told_in_one_line():
            experiment = _load("experiments.experiment").with_seeds(experiment, seeds)
    _run_or_draw(
        experiment,
        out,
        quick,
        draw,
        {"jobs": jobs, "minutes": minutes},
        only_models=tuple(model or ()),
        only_methods=tuple(method or ()),
    )


# -- what the commands share -----------------------------------------------------------------------


def _run_or_draw(
    experiment: Any,
    out: Path | None,
    quick: bool,
    only_draw: bool,
    execution: dict[str, Any],
    **part: Any,
) -> None:
    """Run an experiment into its folder, or only draw what the folder holds."""
    module = _load("experiments.experiment")
    name = experiment.name
    folder = out or Path("runs") / (f"{name}-quick" if quick else name)
    with _told_in_one_line():
        if only_draw:
            experiment.draw(module.StoredRun(folder), console)
            return
        options = module.Execution(**execution)
        ends = module.run(experiment, folder, console, options, quick=quick, **part)
    if ends["failed"]:
        raise typer.Exit(1)


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Say what went wrong without a traceback, and end with a status that tells."""
    try:
        yield
    except (ValueError, ModuleNotFoundError, OSError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on from here", err=True)
        raise typer.Exit(130) from None


def _load(module: str, extra: str = "experiments", purpose: str = "this command") -> Any:
    """One of our modules that need an extra; where that is missing, the command ends."""
    try:
        return require(f"scoreascent.{module}", extra, purpose)
    except ModuleNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
