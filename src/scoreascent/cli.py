"""The command line: `scoreascent demo`, `scoreascent doctor`."""

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
