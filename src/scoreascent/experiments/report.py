"""`scoreascent report`: run folders as one page of HTML that needs no network and no server."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scoreascent._files import write_atomically
from scoreascent.experiments import tables
from scoreascent.experiments.figures import COLOURS, NAMES
from scoreascent.experiments.statistics import bootstrap_band
from scoreascent.experiments.store import MANIFEST

TITLES = {
    "table-bnn": "Bayesian neural networks",
    "table-gp": "Gaussian processes",
    "figure1": "Figure 1: variance of the gradient",
    "figure2": "Figure 2: final KL against the step size",
}
METHODS = ("elbo", "pmcsa", "pmcsa_rb", "jsa", "msc", "msc_rb")
VALUES = {
    "lpd": "LPD",
    "lpd_published": "LPD, published formula",
    "rmse": "RMSE",
    "acceptance": "acceptance rate",
}
CAPTIONS = {
    "lpd": "Log predictive density on the test set (LPD); larger is better",
    "lpd_published": "LPD by the formula of the published code; larger is better",
    "rmse": "Root mean squared error on the test set (RMSE); smaller is better",
}
KEYS = ["dataset", "method", "n"]
TABLE_COLUMNS = (*KEYS, "split", "step", "lpd", "rmse")
TIME_COLUMNS = (*KEYS, "splits", "step", "seconds")
WEIGHT_COLUMNS = (*KEYS, "mean")
OTHER_COLOURS = ("#e7298a", "#66a61e", "#1f78b4", "#a6761d")
DIGITS = 5


def find(paths: Iterable[Path]) -> list[Path]:
    """The run folders that `paths` name: each is one, or a folder that contains some."""
    found: dict[Path, Path] = {}
    paths = list(paths)
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
    contents, sections, scripts = [], [], []
    names = _names(runs)
    for number, (run, name) in enumerate(zip(runs, names), 1):
        section = _Section(run, name, f"run-{number}")
        contents.append(section.contents())
        sections.append(section.html())
        scripts += section.data
    library = ""
    if scripts:
        library = "".join(f"<script>{code}</script>\n" for code in (_plotly(), _SCRIPT))
    page = _PAGE.format(
        style=_STYLE, contents="\n".join(contents), sections="\n".join(sections), library=library
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, lambda file: file.write(page.encode()))
    return out


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the report's curves need {error.name}: pip install 'scoreascent[experiments]'",
            name=error.name,
        ) from None
    code: str = get_plotlyjs()
    return code


def _names(runs: list[Path]) -> list[str]:
    """A folder's name, with its parent's where two runs share it."""
    full = [run.resolve() for run in runs]
    short = [path.name for path in full]
    return [
        f"{path.parent.name}/{path.name}" if short.count(path.name) > 1 else path.name
        for path in full
    ]


# -- reading ---------------------------------------------------------------------------------------


def _manifest(run: Path) -> dict[str, Any]:
    path = run / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {
            "experiment": str(manifest["experiment"]),
            "settings": dict(manifest["settings"]),
            "versions": dict(manifest["versions"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is no manifest of scoreascent ({type(error).__name__}: {error}); "
            "leave this folder out, or run the experiment again"
        ) from error


def _read(path: Path, columns: Iterable[str]) -> pd.DataFrame:
    try:
        table: pd.DataFrame = pd.read_parquet(path)
    except ImportError:
        raise ModuleNotFoundError(
            "reading the tables needs pyarrow: pip install 'scoreascent[experiments]'",
            name="pyarrow",
        ) from None
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise ValueError(
            f"{str(path)!r} cannot be read as Parquet ({error}); delete it and repeat "
            "`scoreascent reproduce`, which makes only what is missing"
        ) from error
    if missing := [c for c in columns if c not in table.columns]:
        raise ValueError(
            f"{str(path)!r} has no column {', '.join(map(repr, missing))}, only "
            f"{', '.join(map(repr, table.columns))}; delete it and repeat `scoreascent reproduce`"
        )
    return table


def _cells(run: Path) -> list[Path]:
    return sorted(
        path
        for path in (run / "cells").glob("*.parquet")
        if not path.name.startswith(".") and not path.name.endswith(".weights.parquet")
    )


def _from_cells(cells: list[Path]) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The table and the times of the cells that are there."""
    parts, times = [], []
    for path in cells:
        part = _read(path, TABLE_COLUMNS)
        parts.append(part)
        if "seconds" in part:
            block = part.groupby([*KEYS, "step"], sort=False)
            times.append(block.agg(seconds=("seconds", "max"), splits=("split", "nunique")))
    table = pd.concat(parts, ignore_index=True)
    return table, pd.concat(times).reset_index() if times else None


def _failures(run: Path) -> list[dict[str, str]]:
    """What each failed cell left, but for the cells that are there after all."""
    failures = []
    for path in sorted((run / "cells").glob("*.error.json")):
        cell = path.name.removesuffix(".error.json")
        if path.name.startswith(".") or path.with_name(f"{cell}.parquet").exists():
            continue
        try:
            left = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            left = {"error": f"{path.name} cannot be read: {error}"}
        failures.append({"cell": cell} | {key: str(value) for key, value in left.items()})
    return failures


# -- a run -----------------------------------------------------------------------------------------


class _Section:
    """One run's part of the page."""

    def __init__(self, run: Path, name: str, anchor: str) -> None:
        self.run, self.name, self.anchor = run, name, anchor
        self.manifest = _manifest(run)
        self.experiment = self.manifest["experiment"]
        self.title = TITLES.get(self.experiment, self.experiment)
        self.failures = _failures(run)
        self.data: list[str] = []
        self.parts: list[tuple[str, str, str]] = []  # anchor, heading, content
        if self.experiment.startswith("table-"):
            self.state = self._tables()
        else:
            self.state = self._pictures()
        if self.failures:
            heading = f"Failed cells ({len(self.failures)})"
            self.parts.append(("failed", heading, _failed(self.failures)))
        settings = _pairs(self.manifest["settings"])
        self.parts.append(("settings", "Settings", settings))
        self.parts.append(("versions", "Versions", _pairs(self.manifest["versions"])))

    def contents(self) -> str:
        links = " · ".join(
            f'<a href="#{self.anchor}-{anchor}">{escape(heading)}</a>'
            for anchor, heading, _ in self.parts
        )
        return (
            f'<li><a href="#{self.anchor}">{escape(self.title)}</a> '
            f'<span class="quiet">{escape(self.name)}</span><br><small>{links}</small></li>'
        )

    def html(self) -> str:
        parts = "\n".join(
            f'<h3 id="{self.anchor}-{anchor}">{escape(heading)}</h3>\n{content}'
            for anchor, heading, content in self.parts
        )
        name = f'<span class="quiet">{escape(self.name)}</span>'
        return (
            f'<section id="{self.anchor}">\n<h2>{escape(self.title)} {name}</h2>\n'
            f"{self.state}\n{parts}\n</section>"
        )

    def _pictures(self) -> str:
        summary, pictures = self.run / "summary.csv", sorted(self.run.glob("*.png"))
        if summary.exists():
            self.parts.append(("summary", "Summary", _csv(summary)))
        if pictures:
            self.parts.append(("pictures", "Pictures", "\n".join(map(_picture, pictures))))
        if summary.exists() or pictures:
            return ""
        count = sum(not p.name.startswith(".") for p in (self.run / "cells").glob("*.csv"))
        return _unfinished(count, len(self.failures), "its pictures are not drawn yet")

    def _tables(self) -> str:
        path, cells = self.run / "table.parquet", _cells(self.run)
        times: pd.DataFrame | None
        if path.exists():
            table = _read(path, TABLE_COLUMNS)
            beside = self.run / "times.parquet"
            times = _read(beside, TIME_COLUMNS) if beside.exists() else None
            state = f"<p>{escape(_extent(table))}</p>"
        elif cells:
            table, times = _from_cells(cells)
            extent = f"<p>{escape(_extent(table))} so far.</p>"
            state = _unfinished(len(cells), len(self.failures)) + extent
        else:
            return _unfinished(0, len(self.failures))
        values = _present(table, CAPTIONS)
        summaries = [tables.summarise(table, self.experiment, v) for v in values]
        shown = "\n".join(map(_summary, summaries, values))
        self.parts.append(("tables", "Tables", shown + _LEGEND))
        order = [str(dataset) for dataset in dict.fromkeys(summaries[0]["dataset"])]
        self._plot("curves", "Curves", _curves(table, times), order)
        weights = self.run / "weights.parquet"
        if weights.exists():
            self._plot("weights", "Weights", _densities(_read(weights, WEIGHT_COLUMNS)), order)
        return state

    def _plot(self, anchor: str, heading: str, data: dict[str, Any], order: list[str]) -> None:
        """Add a figure; its data sets stand in the order of the tables."""
        curves = data["curves"]
        data["curves"] = {name: curves[name] for name in order if name in curves} | curves
        name = f"{self.anchor}-{anchor}-plot"
        self.data.append(name)
        note = _NOTES[data["kind"]]
        content = (
            f'<figure class="plot" id="{name}"><div class="choices"></div>'
            f'<div class="canvas"></div><figcaption>{note}</figcaption>'
            f'<script type="application/json">{_json(data)}</script></figure>'
        )
        self.parts.append((anchor, heading, content))


def _extent(table: pd.DataFrame) -> str:
    datasets, splits = table["dataset"].nunique(), table["split"].nunique()
    methods = len(table[["method", "n"]].drop_duplicates())
    return (
        f"{datasets} data set{'s' * (datasets != 1)}, {methods} method{'s' * (methods != 1)}, "
        f"{splits} split{'s' * (splits != 1)}, {table['step'].max():,} iterations"
    )


def _present(table: pd.DataFrame, values: Iterable[str]) -> list[str]:
    """Those of `values` that the table has numbers of; the LPD in any case."""
    return [v for v in values if v == "lpd" or (v in table and table[v].notna().any())]


def _unfinished(cells: int, failed: int, rest: str = "what follows is made of those") -> str:
    done = f"{cells or 'no'} cell{'s' * (cells != 1)} finished"
    failures = f", {failed} failed" if failed else ""
    if not cells:
        rest = "there is nothing to show yet"
    return f'<p class="warning"><b>This run is unfinished</b>: {done}{failures}; {rest}.</p>'


# -- tables ----------------------------------------------------------------------------------------


def _columns(table: pd.DataFrame) -> list[tuple[str, int]]:
    """The methods of a table, each with its budget, in the page's order."""
    pairs = table[["method", "n"]].drop_duplicates().itertuples(index=False)
    rank = {method: place for place, method in enumerate(METHODS)}
    return sorted(
        ((str(method), int(n)) for method, n in pairs),
        key=lambda pair: (rank.get(pair[0], len(rank)), *pair),
    )


def _summary(summary: pd.DataFrame, value: str) -> str:
    columns = _columns(summary)
    rows = {(row["dataset"], row["method"], row["n"]): row for row in summary.to_dict("records")}
    head = "".join(
        f"<th>{escape(_name(method))}<small>N = {n}</small></th>" for method, n in columns
    )
    body = []
    for dataset in dict.fromkeys(summary["dataset"]):
        cells = "".join(_cell(rows.get((dataset, *column))) for column in columns)
        body.append(f"<tr><th>{escape(str(dataset))}</th>{cells}</tr>")
    agree, differ = (sum(_is(r.get("agrees"), w) for r in rows.values()) for w in (True, False))
    count = ""
    if both := agree + differ:
        count = f'<span class="quiet"> — {agree} of {both} agree with the paper</span>'
    return (
        f'<div class="wide"><table class="numbers summary" data-value="{escape(value)}">'
        f"<caption>{escape(CAPTIONS[value])}{count}</caption>"
        f"<thead><tr><th>data set</th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return '<td class="quiet">–</td>'
    places = _places(row["mean"])
    text = _plus_minus(row["mean"], row["ci95"], places)
    if _is(row.get("bold"), True):
        text = f"<b>{text}</b>"
    median, mark = f"median {_number(row['median'], places)}", ""
    tip = [median, f"{int(row['splits'])} splits"]
    if row["dataset"] in tables.OUTLIERS:  # where one split can decide the mean
        text += f'<small class="median">{median}</small>'
    if _is_number(row.get("published")):
        paper = _plus_minus(row["published"], row.get("published_ci95"), 2)
        if _is(row.get("published_bold"), True):
            paper = f"<b>{paper}</b>"
        text += f"<small>{paper}</small>"
        if _is_number(row.get("difference")):
            tip.append(f"differs from the paper by {_number(row['difference'], places)}")
        if _is(row.get("agrees"), False):
            mark = ' class="differs"'
    return f'<td{mark} title="{escape(", ".join(tip))}">{text}</td>'


def _is(value: Any, wanted: bool) -> bool:
    return isinstance(value, bool | np.bool_) and bool(value) is wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int | np.number) and math.isfinite(value)


def _places(value: Any) -> int:
    return 3 if not _is_number(value) or abs(value) < 100 else 1


def _number(value: Any, places: int) -> str:
    if not _is_number(value):
        return "–" if value is None or value != value else str(value)
    return f"{value:.{places}f}".replace("-", "−")


def _plus_minus(mean: Any, ci95: Any, places: int) -> str:
    spread = f" ± {_number(ci95, places)}" if _is_number(ci95) else ""
    return _number(mean, places) + spread


def _csv(path: Path) -> str:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' own errors are among these
        raise ValueError(
            f"{str(path)!r} cannot be read as a table ({error}); delete it and repeat "
            "`scoreascent reproduce` with --draw"
        ) from error
    head = "".join(f"<th>{escape(str(column))}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_plain(x))}</td>" for x in row) + "</tr>"
        for row in table.itertuples(index=False)
    )
    return (
        f'<div class="wide"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return NAMES.get(value, value)
    return f"{value:.4g}".replace("-", "−") if isinstance(value, float) else str(value)


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{data}">'


def _pairs(pairs: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(key))}</th><td>{escape(_setting(value))}</td></tr>"
        for key, value in pairs.items()
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _failed(failures: list[dict[str, str]]) -> str:
    rows = []
    for left in failures:
        error = escape(left.get("error", "no reason was stored"))
        if traceback := left.get("traceback"):
            text = f"<pre>{escape(traceback)}</pre>"
            error += f"<details><summary>traceback</summary>{text}</details>"
        cell, when = escape(left["cell"]), escape(left.get("when", ""))
        rows.append(f"<tr><th>{cell}</th><td>{error}</td><td>{when}</td></tr>")
    return (
        '<div class="wide"><table class="failed"><thead><tr><th>cell</th><th>error</th>'
        f"<th>when</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# -- curves ----------------------------------------------------------------------------------------


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _legend(columns: list[tuple[str, int]]) -> list[dict[str, str]]:
    """Name, colour and dash of each method; its largest budget is solid, the others dashed."""
    known = [method for method, _ in columns]
    unknown = [m for m in dict.fromkeys(known) if m not in COLOURS]
    others = {m: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, m in enumerate(unknown)}
    dashes = ("solid", "dash", "dot", "dashdot")
    entries = []
    for place, (method, n) in enumerate(columns):
        later = known[place + 1 :].count(method)
        entries.append(
            {
                "name": f"{_name(method)}, N = {n}",
                "colour": COLOURS.get(method, others.get(method, "#777777")),
                "dash": dashes[later % len(dashes)],
            }
        )
    return entries


def _curves(table: pd.DataFrame, times: pd.DataFrame | None) -> dict[str, Any]:
    """Every data set's curves: the mean over splits and its 95 % interval at each step."""
    columns = _columns(table)
    values = _present(table, VALUES)
    clock = None
    if times is not None:
        # the splits of a block run side by side: what one costs is its share
        total = times.groupby([*KEYS, "step"])[["seconds", "splits"]].sum()
        clock = total["seconds"] / total["splits"]
    curves: dict[str, list[dict[str, Any]]] = {}
    for dataset, rows in table.groupby("dataset", sort=False):
        curves[str(dataset)] = []
        groups = dict(list(rows.groupby(["method", "n"], sort=False)))
        for place, (method, n) in enumerate(columns):
            if (method, n) not in groups:
                continue
            wide = groups[method, n].pivot(index="split", columns="step", values=values)
            curve: dict[str, Any] = {"method": place}
            for value in values:
                curve[value] = _band(wide[value])
            steps = wide[values[0]].columns
            curve["step"] = [int(step) for step in steps]
            if clock is not None and (dataset, method, n) in clock.index.droplevel("step"):
                own = clock.loc[(dataset, method, n)]
                curve["seconds"] = _rounded(own.reindex(steps))
            curves[str(dataset)].append(curve)
    axes = [["step", "iterations"]]
    if clock is not None:
        axes.append(["seconds", "seconds per split"])
    return {
        "kind": "curves",
        "methods": _legend(columns),
        "values": [[v, VALUES[v]] for v in values],
        "axes": axes,
        "curves": curves,
    }


def _band(wide: pd.DataFrame) -> list[list[float | None]]:
    """Mean over splits (rows) and the ends of its 95 % interval, at each step (columns)."""
    # a split that diverged leaves a gap rather than a better mean
    values = wide.to_numpy(np.float64)
    with np.errstate(invalid="ignore"):
        mean = values.mean(0)
    # a fifth of the tables' draws: on a curve nobody sees the difference
    low, high = bootstrap_band(values, draws=2000)
    return [_rounded(mean), _rounded(low), _rounded(high)]


def _densities(weights: pd.DataFrame, points: int = 161) -> dict[str, Any]:
    """For every data set the density of the weights' posterior means, a curve for each method."""
    from scipy.stats import gaussian_kde  # type: ignore[import-untyped, unused-ignore]

    columns = _columns(weights)
    curves: dict[str, list[dict[str, Any]]] = {}
    for dataset, rows in weights.groupby("dataset", sort=False):
        curves[str(dataset)] = []
        groups = dict(list(rows.groupby(["method", "n"], sort=False)["mean"]))
        for place, column in enumerate(columns):
            if column not in groups:
                continue
            x = groups[column].to_numpy(np.float64)
            x = x[np.isfinite(x)]
            if len(x) < 2 or np.ptp(x) <= 1e-9 * np.abs(x).max():
                continue  # no density: all weights are at one place
            kde = gaussian_kde(x)
            margin = 3 * math.sqrt(float(kde.covariance[0, 0]))
            grid = np.linspace(x.min() - margin, x.max() + margin, points)
            density = _rounded(kde(grid))
            curves[str(dataset)].append(
                {"method": place, "weight": _rounded(grid), "density": [density]}
            )
    return {
        "kind": "weights",
        "methods": _legend(columns),
        "values": [["density", "density"]],
        "axes": [["weight", "posterior mean of a weight"]],
        "curves": curves,
    }


def _rounded(numbers: Iterable[float]) -> list[float | None]:
    return [float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None for x in numbers]


def _json(data: dict[str, Any]) -> str:
    """JSON that can stand inside <script>: it has no `<`, so nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", r"\u003c").replace("\u2028", r"\u2028").replace("\u2029", r"\u2029")


# -- the page --------------------------------------------------------------------------------------

_NOTES = {
    "curves": (
        "Mean over splits and its 95 % bootstrap interval, with a gap where a split is not finite. "
        "A click on a name in the legend hides its curve, a double click shows it alone. The axis "
        "fits the last four fifths of the curves; a double click in the plot shows all of them."
    ),
    "weights": (
        "Kernel density of the posterior means of the weights, split 0. Weights in a narrow peak "
        "at zero are those that the method prunes."
    ),
}
_LEGEND = (
    '<p class="note">Mean over splits ± half its 95 % bootstrap interval. Bold: cannot be told '
    "from the best over the splits (Friedman and Nemenyi, 5 %). "
    "Small and grey below: the published value. "
    '<span class="differs">Tinted</span>: ours and the published value do not agree. Hold the '
    "pointer over a cell for its median and its number of splits.</p>"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>scoreascent: report</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>scoreascent: report</h1>
<nav><ul>
{contents}
</ul></nav>
</header>
<main>
{sections}
</main>
{library}</body>
</html>
"""
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --quiet: #68727d; --paper: #ffffff;
  --line: #dfe3e8; --soft: #f5f6f8; --tint: #fdeedd; --link: #14699b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --quiet: #98a2ad; --paper: #16191d;
  --line: #333940; --soft: #1f2429; --tint: #46341f; --link: #78bbe6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 2rem 5rem; max-width: 78rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial,
  "Liberation Sans", sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 1rem; }
h2 { font-size: 1.45rem; margin: 3.5rem 0 .6rem; padding-top: .8rem;
  border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .7rem; }
h2 .quiet { font-weight: normal; font-size: 1rem; margin-left: .5rem; }
.quiet { color: var(--quiet); font-weight: normal; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
nav ul { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .7rem 3rem; }
p { max-width: 48rem; }
.note, figcaption { color: var(--quiet); font-size: .85rem; max-width: 60rem; }
figcaption { margin-top: .5rem; }
.note .differs { padding: .1em .35em; color: var(--ink); border-radius: 3px; }
.warning { padding: .6rem .9rem; border-left: 4px solid #d98a1f; background: var(--tint); }
.wide { overflow-x: auto; margin: 0 0 1.6rem; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .45rem; }
th, td { padding: .38rem .8rem; text-align: left; vertical-align: top; }
tbody tr { border-bottom: 1px solid var(--line); }
thead tr { border-bottom: 2px solid var(--line); }
thead th { font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; }
.numbers { font-variant-numeric: tabular-nums; }
.numbers td, .numbers thead th { text-align: right; white-space: nowrap; }
.numbers th:first-child, .numbers td:first-child { text-align: left; }
.summary { min-width: 56rem; }
.summary td, .summary thead th { min-width: 8.2rem; }
.numbers small { display: block; color: var(--quiet); font-size: .84em; font-weight: normal; }
.numbers small.median { color: var(--ink); }
.summary td[title] { cursor: help; }
.differs { background: var(--tint); }
.pairs th { color: var(--quiet); padding-left: 0; white-space: nowrap; }
.pairs td { overflow-wrap: anywhere; }
pre { font-size: .78rem; background: var(--soft); padding: .7rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.failed tbody th { white-space: nowrap; }
.failed td { overflow-wrap: anywhere; }
.failed td:last-child { white-space: nowrap; color: var(--quiet); }
details summary { color: var(--quiet); cursor: pointer; }
img { max-width: 100%; background: #ffffff; margin: .4rem 0; }
figure { margin: 0; }
.choices { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; margin-bottom: .4rem; }
.choices label { font-size: .9rem; color: var(--quiet); }
.choices select { font: inherit; color: var(--ink); background: var(--soft);
  border: 1px solid var(--line); border-radius: 4px; padding: .2rem .4rem; margin-left: .3rem; }
.canvas { height: 480px; }
.js-plotly-plot text { fill: var(--ink) !important; }
.js-plotly-plot .gridlayer path { stroke: var(--line) !important; }
.js-plotly-plot .spikeline { stroke: var(--line) !important; }
.js-plotly-plot .hoverlayer .bg { fill: var(--paper) !important; stroke: var(--line) !important; }
@media print {
  :root { color-scheme: light; --ink: #000000; --quiet: #555555; --paper: #ffffff;
    --line: #cccccc; --soft: #ffffff; --tint: #fdeedd; --link: #000000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, .choices select { border: 0; }
  .modebar { display: none !important; }
  .wide { overflow: visible; }
  .summary { min-width: 0; font-size: 7.6pt; }
  .summary td, .summary thead th { min-width: 0; padding: .3rem .4rem; }
  .differs, .warning { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2, h3, caption { break-after: avoid; }
  tr, figure, img { break-inside: avoid; }
}
"""
_SCRIPT = r"""
"use strict";
document.querySelectorAll("figure.plot").forEach(function (figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const canvas = figure.querySelector(".canvas");
  const choices = figure.querySelector(".choices");

  function choice(name, label, options) {
    const select = document.createElement("select");
    select.name = name;
    options.forEach(function (option) { select.add(new Option(option[1], option[0])); });
    select.addEventListener("change", draw);
    if (options.length > 1 || name === "dataset") {
      const around = document.createElement("label");
      around.append(label, select);
      choices.append(around);
    }
    return select;
  }
  function named(options, key) {
    return options.find(function (option) { return option[0] === key; })[1];
  }
  function rgba(colour, alpha) {
    const part = [1, 3, 5].map(function (i) { return parseInt(colour.slice(i, i + 2), 16); });
    return "rgba(" + part.join(",") + "," + alpha + ")";
  }
  // Plotly reads a little HTML in names; ours are text
  function text(s) { return s.replace(/&/g, "&amp;").replace(/</g, "&lt;"); }

  const names = Object.keys(data.curves);
  const dataset = choice("dataset", "data set", names.map(function (d) { return [d, d]; }));
  const value = choice("value", "value", data.values);
  const axis = choice("axis", "against", data.axes);

  function draw() {
    const traces = [], seen = [], ends = [], band = [], line = [];
    const curves = data.curves[dataset.value] || [];
    data.methods.forEach(function (method, place) {
      const curve = curves.find(function (c) { return c.method === place; });
      const x = [], y = [], edgeX = [], high = [], low = [];
      const xs = curve && curve[axis.value], ys = curve && curve[value.value];
      if (xs && ys) {
        ends.push(xs.reduce(function (a, b) { return b === null ? a : Math.max(a, b); }, 0));
        xs.forEach(function (at, i) {
          const mean = ys[0][i], late = data.kind !== "curves" || i >= xs.length / 5;
          if (at === null) { return; }
          x.push(at);
          y.push(mean);
          if (mean !== null && late) { seen.push(mean); }
          if (ys.length < 3 || ys[1][i] === null) { return; }
          edgeX.push(at);
          low.push(ys[1][i]);
          high.push(ys[2][i]);
          if (late) { seen.push(ys[1][i], ys[2][i]); }
        });
      }
      const here = y.some(function (v) { return v !== null; });
      const shared = { type: "scatter", mode: "lines", legendgroup: String(place) };
      if (data.kind === "curves") {
        band.push(Object.assign({}, shared, {
          uid: "band" + place, x: edgeX.concat(edgeX.slice().reverse()),
          y: high.concat(low.reverse()), fill: "toself", fillcolor: rgba(method.colour, 0.16),
          line: { width: 0 }, hoverinfo: "skip", showlegend: false
        }));
      }
      line.push(Object.assign({}, shared, {
        uid: "line" + place, name: text(method.name), x: x, y: y, showlegend: here,
        line: { color: method.colour, width: 2, dash: method.dash },
        hovertemplate: "%{y:.4g}"
      }));
    });
    traces.push.apply(traces, band.concat(line));
    const state = [dataset.value, value.value, axis.value].join("|");
    const yaxis = { title: { text: named(data.values, value.value) }, uirevision: state,
      zeroline: false, automargin: true, exponentformat: "power" };
    if (seen.length) {
      const low = Math.min.apply(null, seen), high = Math.max.apply(null, seen);
      const pad = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
      yaxis.range = [data.kind === "curves" ? low - pad : 0, high + pad];
    }
    const xaxis = { title: { text: named(data.axes, axis.value) }, uirevision: state,
      zeroline: false, automargin: true, exponentformat: "none", separatethousands: true,
      hoverformat: axis.value === "step" ? ",d" : ".3g" };
    if (data.kind === "curves" && ends.length) {
      xaxis.range = [0, 1.01 * Math.max.apply(null, ends)];
    }
    Plotly.react(canvas, traces, {
      xaxis: xaxis, yaxis: yaxis, hovermode: data.kind === "curves" ? "x unified" : "closest",
      legend: { uirevision: "kept", orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      margin: { l: 70, r: 20, t: 20, b: 55 }, showlegend: true,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#99a1aa", activecolor: "#14699b" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13 }
    }, {
      // Plotly's own set of buttons has one that sends the chart to its server
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
      showSendToCloud: false, plotlyServerURL: "", displaylogo: false, responsive: true
    });
  }
  draw();
  // a page of paper is narrower than the window
  window.addEventListener("beforeprint", function () { Plotly.relayout(canvas, { width: 680 }); });
  window.addEventListener("afterprint", function () {
    Plotly.relayout(canvas, { width: null, autosize: true });
  });
});
"""
