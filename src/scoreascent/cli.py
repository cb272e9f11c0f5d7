"""The command line: `scoreascent demo | reproduce | doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scoreascent.provenance import versions

app = typer.Typer(no_args_is_help=True, add_completion=False)
console = Console()


@app.callback()
def _root() -> None:
    """Variational inference that gets the uncertainties right."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the picture")] = Path("out"),
    key: Annotated[int, typer.Option(help="the seed")] = 0,
) -> None:
    """Fit a regression on real data with pMCSA and the ELBO, and compare both with NUTS."""
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
    what: Annotated[str, typer.Argument(help="figure1 or figure2")],
    out: Annotated[Path | None, typer.Option(help="run folder; runs/<what> if not given")] = None,
    quick: Annotated[bool, typer.Option(help="a small version, in under a minute")] = False,
    draw: Annotated[bool, typer.Option(help="only draw, from the folder's table")] = False,
) -> None:
    """Reproduce a figure of the paper: compute its table, resuming what is there, and draw it."""
    try:
        from scoreascent.experiments import reproduce as module
    except ModuleNotFoundError as error:
        message = f"experiments need {error.name}: pip install 'scoreascent[experiments]'"
        typer.echo(message, err=True)
        raise typer.Exit(1) from None
    folder = out or Path("runs") / (f"{what}-quick" if quick else what)
    try:
        if draw:
            module.draw(what, folder, console)
        else:
            module.run(what, folder, quick, console)
    except (ValueError, ModuleNotFoundError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
