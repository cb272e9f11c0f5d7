"""What a result shows of itself: as text for `print`, and as HTML for a notebook."""

from __future__ import annotations

import io
from html import escape
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent import _html
from scoreascent._arrays import last_tenth
from scoreascent.diagnostics.draws import best_source
from scoreascent.diagnostics.rules import GOOD, promise

MAX_ROWS = 30  # the most parameters that are shown
GREEN, AMBER = "#009E73", "#D55E00"

Row = dict[str, Any]


def shown(row: Row, name: str) -> str:
    """Return a number of a row of the summary for a table.

    >>> shown({"mean": 1.23456, "sd": np.nan, "mean_error": 0.0123}, "mean")
    '1.235'
    """
    digits = 2 if name.endswith("error") else 4
    return "–" if np.isnan(row[name]) else f"{row[name]:.{digits}g}"


def columns(result: Any) -> dict[str, str]:
    """Return the columns of the table, and what of a row stands in them."""
    if best_source(result) != "chains":
        return {"mean": "mean", "sd": "sd", "5 %": "q05", "95 %": "q95"}
    errors = {"mean": "mean", "±": "mean_error", "sd": "sd", "± ": "sd_error"}
    return {**errors, "5 %": "q05", "95 %": "q95"}


def cells(result: Any, rows: list[Row]) -> list[list[str]]:
    """Return the table's texts for these rows of the summary."""
    names = columns(result).values()
    return [[row["name"], *(shown(row, k) for k in names)] for row in rows]


def how_it_ended(result: Any) -> str:
    """Say how the run ended, and its last tenth."""
    many = "" if result.replications is None else f" × {result.replications} replications"
    status = result.status if isinstance(result.status, str) else ", ".join(
        f"{sum(s == w for s in result.status)} {w}" for w in dict.fromkeys(result.status)
    )  # fmt: skip
    line = f"{status} after {result.steps} steps{many}"
    if "converged" in result.status:
        line = f"{result.provenance['stop']}{many}"
    if result.trace.loss.size:
        line += f"; last tenth: loss {np.mean(last_tenth(result.trace.loss)):.4g}"
        line += f", acceptance {np.mean(last_tenth(result.trace.acceptance)):.1%}"
    return line


def notes(result: Any, rows: list[Row]) -> list[str]:
    """Say what the numbers are, and what should make one doubt."""
    says = []
    if best_source(result) == "chains":
        says.append("numbers and their standard errors are of the chains' states in late steps")
    if any(np.isnan(row["sd"]) for row in rows):
        says.append("–: tails too heavy for this number to be known; the quantiles are")
    return says + [f"! {warning}" for warning in result.warnings()]


def verdict(result: Any) -> list[str]:
    """Say what the fit was called and why, and what that promises; nothing if it was not judged."""
    found = result.diagnosis
    if found is None:
        return []
    says = [f"verdict: {found.verdict}, because {found.reason}"]
    return says + ([promise(result.tolerance)] if found.verdict == GOOD else [])


def as_text(result: Any) -> str:
    """Return the table that `print(result)` shows."""
    table = Table(title=f"{result.method!r}", title_justify="left")
    table.add_column("parameter")
    rows = result.summary()
    for name in columns(result):
        table.add_column(name, justify="right")
    for texts in cells(result, rows[:MAX_ROWS]):
        table.add_row(*texts)
    if len(rows) > MAX_ROWS:
        table.add_row(f"… {len(rows) - MAX_ROWS} more")
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    for line in (how_it_ended(result), *notes(result, rows), *verdict(result)):
        console.print(line)
    return out.getvalue().rstrip()


def as_html(result: Any) -> str:
    """Return the same for a notebook, with decisions and diagnosis folded."""
    rows = result.summary()
    parts = [headline(result), _html.table(["", *columns(result)], cells(result, rows[:MAX_ROWS]))]
    if len(rows) > MAX_ROWS:
        parts.append(_html.tag("p", f"… {len(rows) - MAX_ROWS} more"))
    texts = (how_it_ended(result), *notes(result, rows))
    parts.append(_html.tag("p", "<br/>".join(map(escape, texts))))
    if result.decisions:
        parts.append(_html.details("what it decided", _html.lines(result.decisions)))
    if result.diagnosis is not None:
        parts.append(_html.details("what the verdict rests on", result.diagnosis._repr_html_()))
    parts.append(_html.details("how it was made", _html.tag("code", escape(repr(result.method)))))
    return _html.tag("div", "".join(parts))


def headline(result: Any) -> str:
    """Return the verdict in HTML, in the colour of good or not."""
    first, *rest = verdict(result) or ["not judged: result.diagnose() does"]
    found = result.diagnosis
    is_good = found is not None and found.verdict == GOOD
    if found is not None and found.advice:
        rest.append(f"try {found.advice}")
    bar = f"border-left:0.4em solid {GREEN if is_good else AMBER};padding-left:0.6em"
    word, because, reason = first.partition(", because")
    inside = _html.tag("strong", escape(word)) + escape(because + reason)
    inside += "".join(f"<br/>{escape(x)}" for x in rest)
    return _html.tag("p", inside, bar)
