"""Numbers as the page shows them, and the tables of scores beside the published ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scoreascent.experiments import tables
from scoreascent.experiments.methods import in_report_order, label

CAPTIONS = {
    "lpd": "Log predictive density on the test set (LPD); larger is better",
    "lpd_published": "LPD by the formula of the published code; larger is better",
    "rmse": "Root mean squared error on the test set (RMSE); smaller is better",
}


def columns_of(table: pd.DataFrame) -> list[tuple[str, int]]:
    """The methods of a table, each with its budget, in the page's order."""
    pairs = table[["method", "n"]].drop_duplicates().itertuples(index=False)
    found = [(str(method), int(n)) for method, n in pairs]
    order = in_report_order(method for method, _ in found)
    return sorted(found, key=lambda pair: (order.index(pair[0]), pair[1]))


@dataclass(frozen=True)
class SummaryCell:
    """A method on a data set: ours, the median where it counts, the published value below."""

    ours: str
    bold: bool
    tip: str
    median: str = ""
    paper: str = ""
    paper_bold: bool = False
    differs: bool = False


class SummaryTable:
    """Data sets down, methods across."""

    def __init__(self, summary: pd.DataFrame, value: str) -> None:
        self.value, self.caption = value, CAPTIONS[value]
        columns = columns_of(summary)
        self.heads = [(label(method), n) for method, n in columns]
        rows = {(r["dataset"], r["method"], r["n"]): r for r in summary.to_dict("records")}
        self.rows = [
            (str(dataset), [_cell(rows.get((dataset, *column))) for column in columns])
            for dataset in dict.fromkeys(summary["dataset"])
        ]
        verdicts = [row.get("agrees") for row in rows.values()]
        self.agreeing = sum(_is(verdict, True) for verdict in verdicts)
        self.compared = self.agreeing + sum(_is(verdict, False) for verdict in verdicts)


def _cell(row: dict[str, Any] | None) -> SummaryCell | None:
    if row is None:
        return None
    places = 3 if not _is_number(row["mean"]) or abs(row["mean"]) < 100 else 1
    median = f"median {_number(row['median'], places)}"
    tip = [median, f"{int(row['splits'])} splits"]
    published = _is_number(row.get("published"))
    if published and _is_number(row.get("difference")):
        tip.append(f"differs from the paper by {_number(row['difference'], places)}")
    return SummaryCell(
        ours=_plus_minus(row["mean"], row["ci95"], places),
        bold=_is(row.get("bold"), True),
        tip=", ".join(tip),
        median=median if row["dataset"] in tables.DATASETS_WITH_OUTLIERS else "",
        paper=_plus_minus(row["published"], row.get("published_ci95"), 2) if published else "",
        paper_bold=_is(row.get("published_bold"), True),
        differs=published and _is(row.get("agrees"), False),
    )


def _is(value: Any, wanted: bool) -> bool:
    return isinstance(value, bool | np.bool_) and bool(value) is wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int | np.number) and math.isfinite(value)


def _number(value: Any, places: int) -> str:
    if not _is_number(value):
        return "–" if value is None or value != value else str(value)
    return f"{value:.{places}f}".replace("-", "−")


def _plus_minus(mean: Any, ci95: Any, places: int) -> str:
    spread = f" ± {_number(ci95, places)}" if _is_number(ci95) else ""
    return _number(mean, places) + spread


def plain_text(value: Any) -> str:
    """An entry of a small table.

    >>> plain_text("pmcsa"), plain_text(-0.123456), plain_text(8)
    ('pMCSA', '−0.1235', '8')
    """
    if isinstance(value, str):
        return label(value)
    return f"{value:.4g}".replace("-", "−") if isinstance(value, float) else str(value)


def setting_text(value: Any) -> str:
    """A setting as it stands in the manifest, without brackets.

    >>> setting_text([["pmcsa", 10], None])
    'pmcsa, 10, null'
    """
    if isinstance(value, list):
        return ", ".join(map(setting_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
