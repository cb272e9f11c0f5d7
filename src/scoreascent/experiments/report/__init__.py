"""`scoreascent report`: run folders as one page of HTML that needs no network and no server."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from scoreascent._extras import require
from scoreascent._files import write_atomically
from scoreascent.experiments.report.sections import Section
from scoreascent.experiments.store import MANIFEST, StoredRun

__all__ = ["find", "write"]


def find(paths: Iterable[Path]) -> list[Path]:
    """The run folders that `paths` name: each is one, or a folder that contains some."""
    found: dict[Path, Path] = {}
    for path in paths:
        if (path / MANIFEST).is_file():
            here = [path]
        else:
            here = sorted(p.parent for p in path.glob(f"*/{MANIFEST}"))
        if not here:
            raise ValueError(
                f"{str(path)!r} is no run folder and contains none (a run has a {MANIFEST}); "
                "name a folder that `scoreascent reproduce` wrote, or the folder above it"
            )
        for run in here:
            found.setdefault(run.resolve(), run)
    if not found:
        raise ValueError("no run folder was named; name one that `scoreascent reproduce` wrote")
    return list(found.values())


def write(runs: list[Path], out: Path) -> Path:
    """Write the report on `runs` to the file `out`, whole or not at all; return `out`."""
    if not runs:
        raise ValueError("`runs` is empty; name a folder that `scoreascent reproduce` wrote")
    if out.is_dir():
        raise ValueError(f"out = {str(out)!r} is a folder; name a file, such as report.html, in it")
    sections = [
        Section(StoredRun(run), name, f"run-{number}")
        for number, (run, name) in enumerate(zip(runs, _names(runs)), 1)
    ]
    scripts = [_plotly(), _asset("script.js")] if any(s.has_plots for s in sections) else []
    page = (
        _environment()
        .get_template("page.html")
        .render(
            style=_asset("style.css"), sections=sections, scripts=[Markup(code) for code in scripts]
        )
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda file: file.write(page.encode()))
    return out


def _names(runs: list[Path]) -> list[str]:
    """A folder's name, with its parent's where two runs share it."""
    full = [run.resolve() for run in runs]
    short = [path.name for path in full]
    return [
        f"{path.parent.name}/{path.name}" if short.count(path.name) > 1 else path.name
        for path in full
    ]


def _plotly() -> str:
    plotly: Any = require("plotly.offline", "experiments", "the report with its curves")
    code: str = plotly.get_plotlyjs()
    return code


def _asset(name: str) -> Markup:
    """A file of this package, which goes into the page as it is."""
    return Markup(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"))


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(__name__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
