"""The tables of log predictive densities, ours beside the published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from scoreascent.experiments.methods import label_with_budget
from scoreascent.experiments.statistics import bootstrap, indistinct

PUBLISHED_FILES = {"table-bnn": "table_bnn.csv", "table-gp": "table_gp.csv"}
SCORES = ("lpd", "lpd_published", "rmse")
# A few of their rows lie so far out that one split can decide the mean: medians are shown too.
DATASETS_WITH_OUTLIERS = ("gas",)
RUN_KEY = ["dataset", "method", "n"]  # the columns that say which fits belong together


def published(experiment: str) -> pd.DataFrame:
    """The paper's table, a row for each data set, method and budget n."""
    if experiment not in PUBLISHED_FILES:
        raise ValueError(
            f"there is no table {experiment!r}; choose from {', '.join(PUBLISHED_FILES)}"
        )
    file = resources.files("scoreascent.experiments").joinpath(
        "published", PUBLISHED_FILES[experiment]
    )
    with file.open() as text:
        table = pd.read_csv(text)
    return table.rename(columns={"budget": "n"}).astype({"bold": bool})


def summarise(table: pd.DataFrame, experiment: str, value: str = "lpd") -> pd.DataFrame:
    """A row for each data set, method and n, in the paper's order: ours at the last step, theirs.

    `value` is `lpd`, `lpd_published` (the GP's published formula) or `rmse`, which the paper does
    not tabulate. The last step is that of the data set: a method that has not come so far is left
    out. `bold` marks what cannot be told from the best, over the splits that all methods of the
    data set have. `agrees` says whether mean and published value differ by no more than their 95 %
    half widths together, `median_agrees` the same of the median; they are None where there is
    nothing to compare.
    """
    if value not in SCORES:
        raise ValueError(f"value must be one of {', '.join(SCORES)}, not {value!r}")
    paper = published(experiment)
    theirs = paper[:0] if value == "rmse" else paper
    last = _last_step(table, value)
    methods = list(zip(paper["method"], paper["n"]))
    rows: list[dict[str, Any]] = []
    for dataset in _in_order(last["dataset"], paper["dataset"]):
        part = last[last["dataset"] == dataset].set_index(["split", "method", "n"])
        scores, there = part[value].unstack([1, 2]), part["step"].unstack([1, 2]).notna()
        scores = scores[_in_order(scores.columns, methods)]
        common = scores[there.all(axis=1)].to_numpy(np.float64)
        bold = indistinct(-common if value == "rmse" else common)
        for (method, n), told in zip(scores.columns, bold):
            values = scores.loc[there[method, n], (method, n)].to_numpy(np.float64)
            cell = {"dataset": dataset, "method": method, "n": int(n)}
            rows.append({**cell, **_ours(values, bool(told)), **_theirs(theirs, cell)})
    return pd.DataFrame([{**row, **_compared(row)} for row in rows])


def _last_step(table: pd.DataFrame, value: str) -> pd.DataFrame:
    missing = [c for c in (*RUN_KEY, "split", "step", value) if c not in table.columns]
    if missing:
        raise ValueError(f"table has no column {', '.join(missing)}")
    if table.empty:
        raise ValueError("table has no rows; run the experiment first")
    last = table[table["step"] == table.groupby("dataset")["step"].transform("max")]
    if (twice := last.duplicated([*RUN_KEY, "split"])).any():
        row = last.loc[twice, [*RUN_KEY, "split"]].iloc[0]
        raise ValueError(f"table has two rows for {row.to_dict()} at the last step")
    return last


def _ours(values: np.ndarray[Any, Any], told: bool) -> dict[str, Any]:
    low, high = bootstrap(values)
    median_low, median_high = bootstrap(values, of="median")
    return {
        "splits": len(values),
        "mean": values.mean(),
        "low": low,
        "high": high,
        "ci95": (high - low) / 2,
        "median": np.median(values),
        "median_ci95": (median_high - median_low) / 2,
        "bold": told and bool(np.isfinite(values.mean())),
    }


def _theirs(theirs: pd.DataFrame, cell: dict[str, Any]) -> dict[str, Any]:
    same = theirs[(theirs[RUN_KEY] == pd.Series(cell)).all(axis=1)]
    if same.empty:
        return {"published": np.nan, "published_ci95": np.nan, "published_bold": None}
    row = same.iloc[0]
    return {
        "published": float(row["lpd"]),
        "published_ci95": float(row["ci95"]),
        "published_bold": bool(row["bold"]),
    }


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    def agrees(ours: float, ci95: float) -> bool | None:
        room = ci95 + row["published_ci95"]
        return bool(abs(ours - row["published"]) <= room) if np.isfinite(room) else None

    return {
        "difference": row["mean"] - row["published"],
        "agrees": agrees(row["mean"], row["ci95"]),
        "median_agrees": agrees(row["median"], row["median_ci95"]),
    }


def _in_order(found: Any, order: Any) -> list[Any]:
    """What was found, each once: first in the paper's order, then what the paper has not."""
    unique, known = list(dict.fromkeys(found)), list(dict.fromkeys(order))
    return [x for x in known if x in unique] + [x for x in unique if x not in known]


# -- as text ---------------------------------------------------------------------------------------


def markdown(summary: pd.DataFrame) -> str:
    """Data sets down, methods across: mean ± half width, and the published value in brackets."""
    methods = _columns(summary)
    lines = [
        "| data set | " + " | ".join(label_with_budget(*method) for method in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for name, row, centre in _lines(summary):
        cells = [_cell(row, method, centre, _bold_markdown, _number) for method in methods]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _note(summary), ""])


def latex(summary: pd.DataFrame) -> str:
    """`markdown`'s table for LaTeX with the package booktabs."""
    methods = _columns(summary)
    head = " & ".join(label_with_budget(*method).replace("N =", "$N$ =") for method in methods)
    lines = [
        r"\begin{tabular}{l" + "c" * len(methods) + "}",
        r"\toprule",
        rf"data set & {head} \\",
        r"\midrule",
    ]
    for name, row, centre in _lines(summary):
        cells = [_cell(row, method, centre, _bold_latex, _number_latex) for method in methods]
        lines.append(rf"{name} & {' & '.join(cells)} \\".replace("±", r"$\pm$"))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def markdown_gp(summary_published: pd.DataFrame, summary_correct: pd.DataFrame) -> str:
    """The GP's table: the paper's value, our run predicting by its formula, and correctly."""
    lines = [
        "| data set | method | paper | published formula | correct |",
        "|---|---|---|---|---|",
    ]
    correct = {(name, centre): row for name, row, centre in _lines(summary_correct)}
    for name, row, centre in _lines(summary_published):
        for method in _columns(summary_published):
            if method not in row.index:
                continue
            cells = [_paper(row.loc[method])] + [
                "–" if part is None else _cell(part, method, centre, _bold_markdown, _number, False)
                for part in (row, correct.get((name, centre)))
            ]
            lines.append(f"| {name} | {label_with_budget(*method)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _note(summary_correct, brackets=False), ""])


def _columns(summary: pd.DataFrame) -> list[tuple[str, int]]:
    return list(dict.fromkeys(zip(summary["method"], summary["n"])))


def _lines(summary: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """The lines of a table: a name, the data set's rows by method, and what to show of them."""
    for dataset in dict.fromkeys(summary["dataset"]):
        row = summary[summary["dataset"] == dataset].set_index(["method", "n"])
        yield dataset, row, "mean"
        if (
            dataset in DATASETS_WITH_OUTLIERS and row["splits"].max() > 2
        ):  # of two, the median is the mean
            yield f"{dataset} (median)", row, "median"


def _note(summary: pd.DataFrame, brackets: bool = True) -> str:
    note = (
        f"Mean over {_splits(summary)} ± half of its 95 % bootstrap interval. Bold: cannot be told "
        "from the best at 0.05 (Friedman, then Nemenyi)."
    )
    if brackets and summary["published"].notna().any():
        note += " In brackets: published."
    return note


def _splits(summary: pd.DataFrame) -> str:
    """How many splits the cells have: the most common number, and what has another one."""
    usual = int(summary["splits"].mode().max())
    others = []
    for (dataset, splits), part in summary.groupby(["dataset", "splits"], sort=False):
        if splits != usual:
            whole = len(part) == np.sum(summary["dataset"] == dataset)
            methods = " and ".join(label_with_budget(*method) for method in _columns(part))
            others.append(f"{dataset if whole else f'{dataset}, {methods}'}: {splits}")
    return f"{usual} splits" + (f" ({'; '.join(others)})" if others else "")


def _cell(
    row: pd.DataFrame,
    method: tuple[str, int],
    centre: str,
    bold: Callable[[str], str],
    number: Callable[[float], str],
    brackets: bool = True,
) -> str:
    if method not in row.index:
        return "–"
    values = row.loc[method]
    # the test compares ranks, so the mean and the median share its verdict
    text = _pair(values[centre], values["ci95" if centre == "mean" else "median_ci95"], number)
    text = bold(text) if values["bold"] else text
    if brackets and not np.isnan(values["published"]):
        text += f" [{number(values['published'])}]"
    return text


def _paper(values: pd.Series[Any]) -> str:
    if np.isnan(values["published"]):
        return "–"
    text = _pair(values["published"], values["published_ci95"], _number)
    return _bold_markdown(text) if values["published_bold"] else text


def _pair(value: float, ci95: float, number: Callable[[float], str]) -> str:
    return number(value) if np.isnan(ci95) else f"{number(value)} ± {number(ci95)}"


def _number(value: float) -> str:
    text = f"{value:.2f}" if abs(value) < 1000 else f"{value:.2e}"
    return ("0.00" if text == "-0.00" else text).replace("-", "−")


def _number_latex(value: float) -> str:
    return f"${_number(value).replace('−', '-')}$"


def _bold_markdown(text: str) -> str:
    return f"**{text}**"


def _bold_latex(text: str) -> str:
    return rf"{{\boldmath\textbf{{{text}}}}}"
