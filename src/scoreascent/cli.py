"""The command line: `scoreascent demo | reproduce | report | bench | doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scoreascent.fitting.provenance import versions

app = typer.Typer(no_args_is_help=True, add_completion=False)
bench = typer.Typer(no_args_is_help=True)
app.add_typer(bench, name="bench", help="Measure the library against its peers.")
console = Console()


@app.callback()
def _root() -> None:
    """Variational inference that gets the uncertainties right."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture")] = Path("out"),
    key: Annotated[int, typer.Option(help="the seed")] = 0,
) -> None:
    """Fit a regression on real data by the ELBO, pMCSA and sa.fit, and compare with NUTS."""
    try:
        from scoreascent import demo as module
    except ModuleNotFoundError as error:
        typer.echo(f"the demo needs {error.name}: pip install 'scoreascent[cli]'", err=True)
        raise typer.Exit(1) from None
    out.mkdir(parents=True, exist_ok=True)
    module.run(console, out / "demo.png", key)


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
    quick: Annotated[bool, typer.Option(help="a small version, in under a minute")] = False,
    draw: Annotated[bool, typer.Option(help="only draw, from the folder's tables")] = False,
    data: Annotated[list[str] | None, typer.Option(help="only this data set (repeat)")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method (repeat)")] = None,
    splits: Annotated[
        int | None, typer.Option(help="only the first so many, in whole blocks")
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes on this machine")] = 1,
    backend: Annotated[str, typer.Option(help="local, dask or ray")] = "local",
    address: Annotated[str | None, typer.Option(help="of the cluster's scheduler")] = None,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so long")] = None,
) -> None:
    """Reproduce a figure or a table of the paper, going on from what the folder holds."""
    try:
        from scoreascent.experiments import reproduce as module
        from scoreascent.experiments.runner import How
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    folder = out or Path("runs") / (f"{what}-quick" if quick else what)
    try:
        if draw:
            module.draw(what, folder, console)
            return
        how = How(jobs, backend, address, minutes)  # type: ignore[arg-type]
        part = {"only_datasets": tuple(data or ()), "only_methods": tuple(method or ())}
        ends = module.run(what, folder, quick, console, how, **part, splits=splits)
    except (ValueError, ModuleNotFoundError, OSError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    if ends["failed"]:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders that hold some")],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Write one HTML page, which needs no server and no network, about finished and other runs."""
    try:
        from scoreascent.experiments import report as module
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        page = module.write(module.find(runs), out)
    except (ValueError, ModuleNotFoundError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    console.print(f"report: {page}")


@bench.callback()
def _bench() -> None:
    """Measure the library against its peers."""


@bench.command()
def accuracy(
    model: Annotated[list[str] | None, typer.Option(help="only this model (repeat)")] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method (repeat)")] = None,
    seeds: Annotated[int, typer.Option(help="fits of each model by each method")] = 5,
    quick: Annotated[bool, typer.Option(help="a small version, in under a minute")] = False,
    draw: Annotated[bool, typer.Option(help="only draw, from the folder's table")] = False,
    references: Annotated[bool, typer.Option(help="make the references, not the fits")] = False,
    out: Annotated[Path | None, typer.Option(help="run folder; runs/accuracy if none")] = None,
    jobs: Annotated[int, typer.Option(help="processes; the clock is true with one")] = 1,
    minutes: Annotated[float | None, typer.Option(help="stop cleanly after so long")] = None,
) -> None:
    """Compare means and spreads with trusted references: this library, its peers and NUTS."""
    try:
        from scoreascent.experiments.accuracy import bench as module
        from scoreascent.experiments.runner import How
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    names = tuple(model or ())
    try:
        if references:
            module.make_references(names, out, console)
            return
        folder = out or Path("runs") / ("accuracy-quick" if quick else "accuracy")
        if draw:
            module.draw(folder, console)
            return
        how = How(jobs, minutes=minutes)
        ends = module.run(folder, quick, seeds, console, how, names, tuple(method or ()))
    except (ValueError, ModuleNotFoundError, OSError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    if ends["failed"]:
        raise typer.Exit(1)


def _missing(error: ModuleNotFoundError) -> typer.Exit:
    typer.echo(f"experiments need {error.name}: pip install 'scoreascent[experiments]'", err=True)
    return typer.Exit(1)
