"""Several models of the same data, side by side: evidence, posterior odds, and prediction."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp

from scoreascent._extras import require
from scoreascent._random import as_key, fold_in
from scoreascent.diagnostics.evidence import Evidence
from scoreascent.fitting.result import Result

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


@dataclass(frozen=True)
class Row:
    """One model of a comparison. What is not known is NaN, and `why` says why.

    Attributes:
        name: what it was called.
        evidence: its log evidence; None if it was refused.
        difference: of its log evidence from the largest; and `difference_error`.
        probability: of the model, if all are as likely before the data; unknown, of all of them, if
            the evidence of one was refused.
        elpd: the expected log density of new data, by ArviZ's leave-one-out, where pointwise
            likelihoods are there; and `elpd_error`, and the difference from the largest with its
            own error, of paired data points.
        why: why a number is missing.
    """

    name: str
    evidence: Evidence | None
    difference: float
    difference_error: float
    probability: float
    elpd: float
    elpd_error: float
    elpd_difference: float
    elpd_difference_error: float
    why: str


@dataclass(frozen=True)
class Comparison:
    """Models in the order of their evidence; `print` shows them as a table."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        return _render(self)


def compare(results: Mapping[str, Result], key: PRNGKeyArray | int = 0) -> Comparison:
    """Compare fits of several models of the same data, by name.

    The evidence is comparable if every density is normalised in the same way: `log_density` must
    hold all constants of priors and likelihood, as models of NumPyro and PyMC do.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> near, far = (
    ...     sa.Target(lambda z, at=at: -0.5 * jnp.sum((z - at) ** 2 + z**2) - 1.84, dim=1)
    ...     for at in (0.0, 2.0)
    ... )
    >>> fits = {n: sa.fit(t, progress=False) for n, t in {"near": near, "far": far}.items()}
    >>> table = sa.compare(fits)
    >>> table.rows[0].name, round(table["far"].difference, 1)
    ('near', -1.0)
    """
    if not isinstance(results, Mapping) or not results:
        raise ValueError(f"results must be a dictionary of fits by name, got {results!r}")
    for name, result in results.items():
        if not isinstance(result, Result):
            raise ValueError(f"results[{name!r}] must be what fit returns, got {result!r}")
    key = as_key(key)
    found: dict[str, Evidence | None] = {}
    loos: dict[str, Any] = {}
    why: dict[str, str] = {}
    for number, (name, result) in enumerate(results.items()):
        try:
            found[name], why[name] = result.log_evidence(fold_in(key, number)), ""
        except ValueError as error:
            found[name], why[name] = None, str(error)
        loos[name] = _loo(result, why, name)
    values = {n: e.value for n, e in found.items() if e is not None}
    best = max(values, key=lambda n: values[n], default="")
    # the share of one that is not known may be all of it
    total = logsumexp(list(values.values())) if len(values) == len(found) else np.nan
    ahead = max((n for n in loos if loos[n] is not None), key=lambda n: loos[n].sum(), default=None)
    rows = []
    for name in sorted(results, key=lambda n: -values.get(n, -np.inf)):
        ours = found[name]
        row = dict.fromkeys(("difference", "difference_error", "probability"), np.nan)
        first = found.get(best)
        if ours is not None and first is not None:
            row = {
                "difference": ours.value - first.value,
                "difference_error": float(np.hypot(ours.error, first.error)) * (name != best),
                "probability": float(np.exp(ours.value - total)),
            }
        rows.append(Row(name, ours, **row, **_predictive(loos, name, ahead), why=why[name]))
    return Comparison(tuple(rows))


def _loo(result: Result, why: dict[str, str], name: str) -> Any:
    """Return pointwise leave-one-out log densities; None, with the reason, if there are none."""
    model = result.target.model
    if model is None or not model.observed(result.target.data):
        return None
    try:
        arviz = require("arviz", "arviz", "compare")
        data = result.to_arviz(draws=result.draws_from)
        names = list(data["log_likelihood"].data_vars)
        if len(names) > 1:
            why[name] = "; ".join(filter(None, (why[name], "ELPD is of one observed site")))
            return None
        loo = arviz.loo(data, pointwise=True)
    except (ImportError, KeyError, TypeError, ValueError) as error:
        why[name] = "; ".join(filter(None, (why[name], f"no ELPD: {error}")))
        return None
    return np.ravel(np.asarray(loo.loo_i if hasattr(loo, "loo_i") else loo.elpd_i, np.float64))


def _predictive(loos: dict[str, Any], name: str, ahead: str | None) -> dict[str, float]:
    """Return the sums of pointwise numbers, and of what they lack of the best model's."""
    names = ("elpd", "elpd_error", "elpd_difference", "elpd_difference_error")
    points = loos[name]
    if points is None or ahead is None:
        return dict.fromkeys(names, np.nan)
    error = lambda x: float(np.sqrt(len(x) * np.var(x, ddof=1)))  # noqa: E731
    numbers = [float(points.sum()), error(points), np.nan, np.nan]
    if len(points) == len(loos[ahead]):
        lacks = points - loos[ahead]
        numbers[2:] = [float(lacks.sum()), error(lacks)]
    return dict(zip(names, numbers))


def _render(comparison: Comparison) -> str:
    table = Table()
    table.add_column("model")
    has_elpd = any(np.isfinite(row.elpd) for row in comparison.rows)
    titles = ["log evidence", "difference", "probability"]
    for title in titles + (["elpd", "difference"] if has_elpd else []):
        table.add_column(title, justify="right")
    for row in comparison.rows:
        value, error = (row.evidence.value, row.evidence.error) if row.evidence else (np.nan,) * 2
        cells = [
            _pair(value, error),
            _pair(row.difference, row.difference_error),
            "–" if np.isnan(row.probability) else f"{row.probability:.3g}",
        ]
        if has_elpd:
            cells.append(_pair(row.elpd, row.elpd_error))
            cells.append(_pair(row.elpd_difference, row.elpd_difference_error))
        table.add_row(row.name, *cells)
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    for row in comparison.rows:
        if row.why:
            console.print(f"{row.name}: {row.why}")
    return out.getvalue().rstrip()


def _pair(value: float, error: float) -> str:
    """Show a number to two digits of its error.

    >>> _pair(-230.94123, 0.00342), _pair(-12.3456, 1.234), _pair(0.0, 0.0)
    ('-230.9412 ± 0.0034', '-12.3 ± 1.2', '0')
    """
    if np.isnan(value):
        return "–"
    if not error > 0:
        return f"{value:.4g}"
    digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 4))
    return f"{value:.{digits}f} ± {error:.{digits}f}"
