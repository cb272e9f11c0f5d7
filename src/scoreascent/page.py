"""One page about a fit for any browser: a single file that asks the network for nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from scoreascent import _html
from scoreascent._files import write_atomically
from scoreascent._random import as_key, split
from scoreascent.diagnostics.draws import best_source, late_states, named, scalar_names
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.diagnostics.verdict import measured_rows
from scoreascent.fitting import showing
from scoreascent.fitting.result import Result
from scoreascent.fitting.saving import checked
from scoreascent.plots import plot_trace
from scoreascent.plots.marginals import draw_marginal
from scoreascent.plots.pairs import draw_pairs
from scoreascent.plots.panels import PALETTE, Numbers, check_result, legend_beside, tidy
from scoreascent.plots.scalars import Sources, varies
from scoreascent.run import check_single

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

MOST_ROWS = 200  # of the table of numbers
MOST_MARGINALS, MOST_PAIRS, MOST_PATHS = 12, 4, 5  # that are drawn
MIN_DRAWS, MAX_DRAWS = 1000, 4000  # of each scalar, the fewer the more there are,
MAX_NUMBERS = 4_000_000  # so many in all
POINTS = 1000  # in a picture of a pair
MOST_COMPARED = 1000  # scalars, those known worst, among which correlations are looked for
MOST_MOVED = 200  # dimensions in which the chains of a fit without late states move once more
MIN_CORRELATION = 0.3  # of ranks, from which on a pair is worth a picture
DPI = 110

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d1f21; --line: #d8d8d8; --soft: #555; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17191c; --ink: #e6e6e6; --line: #3a3d41; --soft: #a5a5a5; }
}
body { font: 16px/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  max-width: 58rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
td, th { border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { position: sticky; top: 0; background: var(--paper); }
figure { margin: 1rem 0; } img { max-width: 100%; background: #fff; border-radius: 6px; }
figcaption, .soft { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow: auto; max-height: 32rem; } code { overflow-wrap: anywhere; }
"""


def write(result: Result, path: str | PathLike[str], key: PRNGKeyArray | int = 0) -> Path:
    """Write the page, whole or not at all; see `Result.report`."""
    check_result(result)
    check_single(result)
    file = checked(path)
    if result.diagnosis is None and result.has_density:
        result = replace(result, diagnosis=result.diagnose())
    text = _page(result, key)
    write_atomically(file, lambda out: out.write(text.encode()))
    return file


def _page(result: Result, key: PRNGKeyArray | int) -> str:
    rows = result.summary()
    scalars = _scalars(result, key)
    title = escape(f"A fit of {', '.join(result.target.site_names[:6])}")
    parts = [
        _html.tag("h1", title),
        showing.headline(result),
        _html.tag("p", escape(showing.how_it_ended(result)), class_="soft"),
        *_rests_on(result),
        _section("Numbers", _numbers(result, rows)),
        *_pictures(result, rows, scalars),
    ]
    if result.decisions:
        parts.append(_section("What it decided", _html.lines(result.decisions)))
    parts.append(_section("How it was made", _made(result)))
    head = (
        '<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>'
        f"<title>{title}</title><style>{STYLE}</style>"
    )
    body = _html.tag("main", "\n".join(parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _section(title: str, inside: str) -> str:
    return _html.tag("section", _html.tag("h2", escape(title)) + inside)


def _rests_on(result: Result) -> list[str]:
    """Return the sections of the verdict's grounds, and of what should make one doubt."""
    parts = []
    found = result.diagnosis
    if found is not None:
        advice = _html.tag("p", escape(f"try {found.advice}")) if found.advice else ""
        table = _html.table([], measured_rows(found), words=2)
        parts.append(_section("What the verdict rests on", advice + table))
    if doubts := result.warnings():
        parts.append(_section("What to doubt", _html.lines(doubts)))
    return parts


def _numbers(result: Result, rows: list[dict[str, Any]]) -> str:
    """Return the table of the summary, or of those numbers in it that are known worst."""
    some = known_worst(rows, MOST_ROWS)
    table = _html.table(["", *showing.columns(result)], showing.cells(result, some))
    says = [x for x in showing.notes(result, some) if not x.startswith("!")]  # they stand above
    if len(some) < len(rows):
        says.append(f"{len(some)} of {len(rows)} numbers: those known worst")
    words = _html.tag("p", "<br/>".join(map(escape, says)), class_="soft")
    return _html.tag("div", table, class_="scroll") + words


def known_worst(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return so many rows of a summary, those whose errors are largest in sds, in their order.

    >>> rows = [{"sd": 1.0, "mean_error": e, "sd_error": 0.0} for e in (0.1, 0.3, np.nan, 0.2)]
    >>> [row["mean_error"] for row in known_worst(rows, 2)]
    [0.3, 0.2]
    """
    with np.errstate(all="ignore"):
        error = [np.fmax(row["mean_error"], row["sd_error"]) / row["sd"] for row in rows]
    worst = np.argsort(-np.nan_to_num(error, nan=0.0, posinf=0.0), kind="stable")[:most]
    return [rows[i] for i in sorted(worst)]


def _made(result: Result) -> str:
    """Return the table of what the run was."""
    entries = {"method": result.method, "update": result.update, **result.provenance}
    if result.evaluations is not None:
        densities, gradients = result.evaluations
        entries["evaluations"] = f"{densities} densities, {gradients} with gradients"
    if result.start is not None:
        entries["start"] = result.start
    pairs = [(k, str(v)) for k, v in entries.items() if k != "log_density"]
    return _html.table([], pairs, words=2)


# -- draws -----------------------------------------------------------------------------------------


def _scalars(result: Result, key: PRNGKeyArray | int) -> dict[str, Sources]:
    """Return draws of every scalar that varies: of q, and states of the chains."""
    found = {source: _columns(draws) for source, draws in _draws(result, key).items()}
    names = dict.fromkeys(name for columns in found.values() for name in columns)
    scalars = {
        name: {source: columns[name] for source, columns in found.items() if name in columns}
        for name in names
    }
    return {k: x for k, x in scalars.items() if all(varies(values) for values in x.values())}


def _draws(result: Result, key: PRNGKeyArray | int) -> dict[str, dict[str, Any]]:
    """Return named draws by what they are; without a target, those that the file holds."""
    key_q, key_chains = split(as_key(key))
    n = int(np.clip(MAX_NUMBERS // result.target.dim, MIN_DRAWS, MAX_DRAWS))
    if result.kept is None and not result.has_density and result.target.is_named:
        return {}
    if result.kept is not None:
        held = next(iter(result.kept.draws.values())).shape[0]
        source: Any = result.kept.source
        return {source: result.sample(key_q, min(n, held), source)}
    found = {"q": result.sample(key_q, n, "q")}
    if best_source(result) == "chains":
        found["chains"] = result.sample(key_chains, n, "chains")
    elif result.has_density and result.target.dim <= MOST_MOVED:
        seen = chain_states(result, key_chains)
        if seen is not None:
            z = seen[0][:, MAX_ROWS // 4 :].reshape(-1, result.target.dim)
            thin = np.linspace(0, len(z) - 1, min(len(z), n)).astype(int)
            found["chains"] = named(result, z[thin])
    return found


def _columns(draws: dict[str, Any]) -> dict[str, Numbers]:
    """Return the scalars of named draws as columns."""
    found: dict[str, Numbers] = {}
    for site, values in draws.items():
        array = np.asarray(values)
        flat = array.reshape(len(array), -1)
        names = scalar_names(site, array.shape[1:])
        found.update(zip(names, flat.T))
    return found


def most_correlated(scalars: dict[str, Sources], most: int) -> list[str]:
    """Return the names of so many scalars at most: the pairs whose ranks correlate most."""
    names = list(scalars)
    draws = [next(reversed(scalars[name].values())) for name in names]  # of the chains if there are
    ranks = np.argsort(np.argsort(np.stack(draws), axis=1), axis=1).astype(np.float32)
    r = np.abs(np.triu(np.corrcoef(ranks), 1)) if len(names) > 1 else np.zeros((1, 1))
    chosen: dict[str, None] = {}
    for at in np.argsort(-r, axis=None, kind="stable")[: most**2]:
        pair = np.unravel_index(at, r.shape)
        new = dict.fromkeys(names[i] for i in pair)
        if r[pair] < MIN_CORRELATION or len({**chosen, **new}) > most:
            break
        chosen |= new
    return [name for name in names if name in chosen]


# -- pictures --------------------------------------------------------------------------------------


def _pictures(
    result: Result, rows: list[dict[str, Any]], scalars: dict[str, Sources]
) -> Iterable[str]:
    """Return the sections with pictures."""
    rows = [row for row in rows if row["name"] in scalars]
    if rows:
        shown = [row["name"] for row in known_worst(rows, MOST_MARGINALS)]
        says = "" if len(shown) == len(scalars) else f": {len(shown)} of {len(scalars)}"
        words = {"q": "q", "chains": "the chains' states"}
        caption = " over ".join(words[source] for source in next(iter(scalars.values())))
        marginals = {k: scalars[k] for k in shown}
        yield _section(f"Marginals{says}", _figure(lambda: _marginals(marginals), caption))
        some = {row["name"]: scalars[row["name"]] for row in known_worst(rows, MOST_COMPARED)}
        near = most_correlated(some, MOST_PAIRS)
        if len(near) > 1:
            yield _section(
                "What correlates most",
                _figure(lambda: _pairs({k: scalars[k] for k in near}), ", ".join(near)),
            )
    if result.trace.loss.shape[-1]:
        yield _section("How it went", _figure(lambda: _trace(result), "loss and acceptance"))
    states = late_states(result)
    if states is not None and len(states) > 3:
        caption = "late states: the mean over the chains, in sds, of what moved most"
        yield _section("Where the chains were", _figure(lambda: _paths(states), caption))


def _figure(draw: Callable[[], Figure], caption: str) -> str:
    """Return a picture that is part of the page."""
    out = io.BytesIO()
    draw().savefig(out, format="png", dpi=DPI)
    data = base64.b64encode(out.getvalue()).decode()
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}"/>'
    return _html.tag("figure", image + _html.tag("figcaption", escape(caption)))


def _marginals(scalars: dict[str, Sources]) -> Figure:
    columns = min(4, len(scalars))
    lines = -(-len(scalars) // columns)
    size = (max(3.6, 2.3 * columns), 1.9 * lines + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax in panels[len(scalars) :]:
        ax.remove()
    for ax, (name, sources) in zip(panels, scalars.items()):
        draw_marginal(ax, sources)
        ax.set_xlabel(_plain(name))
        ax.set_yticks([])
    handles, labels = panels[0].get_legend_handles_labels()
    legend_beside(figure, handles, labels, above=True)
    return figure


def _pairs(scalars: dict[str, Sources]) -> Figure:
    n = len(scalars)
    figure = Figure(figsize=(1.7 * n + 0.6, 1.7 * n + 0.6), layout="constrained")
    panels = figure.subplots(n, n, squeeze=False)
    few = {k: {source: v[:POINTS] for source, v in x.items()} for k, x in scalars.items()}
    draw_pairs(panels, {_plain(name): x for name, x in few.items()})
    handles, labels = panels[0, 0].get_legend_handles_labels()
    legend_beside(figure, handles, labels, above=True)
    return figure


def _trace(result: Result) -> Figure:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    plot_trace(result, figure.subplots(2, 1, sharex=True))
    return figure


def _paths(states: Numbers) -> Figure:
    """Draw the means over the chains by time, of the coordinates whose means went furthest."""
    mean = states.mean(1, dtype=np.float64)
    sd = states.std((0, 1), dtype=np.float64)
    paths = (mean - mean.mean(0)) / np.where(sd > 0, sd, 1.0)
    furthest = np.argsort(-np.ptp(paths, axis=0), kind="stable")[:MOST_PATHS]
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    ax = figure.subplots()
    for i, colour in zip(sorted(furthest), PALETTE):
        ax.plot(paths[:, i], color=colour, lw=1.2, label=f"unconstrained z[{i}]")
    ax.set_xlabel("late state")
    ax.set_ylabel("sds from its mean")
    ax.legend(frameon=False, fontsize="small", ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    tidy(ax)
    return figure


def _plain(name: str) -> str:
    """Return a name as matplotlib writes it, which takes dollars for formulas."""
    return name.replace("$", r"\$")
