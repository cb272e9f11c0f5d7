"""A model in a file and a table of data, fitted into a folder: what `scoreascent fit` does."""

from __future__ import annotations

import ast
import csv
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpyro import handlers

import scoreascent as sa
from scoreascent._arrays import canonical_dtype, default_dtype
from scoreascent._files import write_atomically

MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL"}
LABELS = "_labels"  # an argument `x_labels` gets the labels of the text column `x`
NOT_GOOD = 3  # the exit status of a fit that is there, but not called good


@dataclass(frozen=True)
class Column:
    """A column as a model gets it; of text, codes and what they stand for, by the alphabet."""

    values: np.ndarray[Any, Any]
    labels: tuple[str, ...] | None = None


class Table:
    """A CSV file with a header; a column is looked at when it is asked for."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._cells: dict[str, list[str]] = {} if path is None else _read(path)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._cells)

    def __contains__(self, name: str) -> bool:
        return name in self._cells

    def __getitem__(self, name: str) -> Column:
        cells = self._cells[name]
        for i, cell in enumerate(cells):
            if cell in MISSING:
                raise ValueError(
                    f"data: column {name!r} has no value in row {i + 1} (line {i + 2} of "
                    f"{str(self.path)!r}: {cell!r}); fill it, leave the row out, or model what is "
                    "missing"
                )
        numbers = _numbers(cells)
        if numbers is None:
            labels = tuple(sorted(set(cells)))
            codes = {label: i for i, label in enumerate(labels)}
            return Column(np.array([codes[cell] for cell in cells], np.int32), labels)
        bad = np.flatnonzero(~np.isfinite(numbers))
        if bad.size:
            at = int(bad[0])
            raise ValueError(
                f"data: column {name!r} must hold finite numbers, got {cells[at]!r} in row {at + 1}"
            )
        return Column(_narrowed(name, numbers))


def _read(path: Path) -> dict[str, list[str]]:
    """Return the cells of a CSV file by column, stripped."""
    if not path.is_file():
        raise ValueError(f"data: there is no file {str(path)!r}")
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [row for row in csv.reader(file, skipinitialspace=True) if row]
    if len(lines) < 2:
        raise ValueError(f"data: {str(path)!r} needs a line of names and a line of values at least")
    head, *body = [[cell.strip() for cell in line] for line in lines]
    if len(set(head)) < len(head):
        twice = next(name for name in head if head.count(name) > 1)
        raise ValueError(f"data: {str(path)!r} has the column {twice!r} twice")
    for i, row in enumerate(body):
        if len(row) != len(head):
            raise ValueError(
                f"data: row {i + 1} of {str(path)!r} has {len(row)} values where there are "
                f"{len(head)} columns"
            )
    return {name: [row[i] for row in body] for i, name in enumerate(head)}


def _numbers(cells: Sequence[str]) -> np.ndarray[Any, Any] | None:
    """Return the numbers that texts are, whole ones if all are; None if any is none.

    >>> _numbers(["1", "2"]).dtype.kind, _numbers(["1", "2.5"]).dtype.kind, _numbers(["1", "b"])
    ('i', 'f', None)
    """
    if any("_" in cell for cell in cells):  # Python takes it for a separator
        return None
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells])
        except (ValueError, OverflowError):
            continue
    return None


def _narrowed(name: str, numbers: Any) -> Any:
    """Return numbers in the width that jax computes in."""
    if numbers.dtype.kind == "f":
        return numbers.astype(default_dtype())
    narrow = numbers.astype(canonical_dtype(numbers)) if numbers.dtype.kind == "i" else None
    if narrow is None or np.any(narrow != numbers):
        raise ValueError(
            f"data: column {name!r} has whole numbers that do not fit 32 bits; give --x64, or "
            "write them with a decimal point if they are no codes"
        )
    return narrow


# -- the model -------------------------------------------------------------------------------------


def load_model(where: str) -> Any:
    """Return what `file.py:name` names."""
    file, _, name = where.rpartition(":")
    if not file or not name:
        raise ValueError(f"model must be FILE:NAME, such as model.py:model, got {where!r}")
    path = Path(file).resolve()
    if not path.is_file():
        raise ValueError(f"model: there is no file {file!r}")
    called = f"model_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(called, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"model: {file!r} is no Python file")
    module = sys.modules[called] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # for what it imports from beside itself
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    if not hasattr(module, name):
        made = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == called]
        defines = ", ".join(made) or "nothing"
        raise ValueError(f"model: {file!r} has no {name!r}; it defines {defines}")
    return getattr(module, name)


def as_target(model: Any, table: Table, settings: Mapping[str, Any]) -> tuple[sa.Target, Any]:
    """Return the posterior of a model with the table's columns as its data, and their labels."""
    pymc = sys.modules.get("pymc")  # if it is a model of PyMC's, that has been imported
    if pymc is not None and isinstance(model, pymc.Model):
        return _of_pymc(pymc, model, table, settings)
    if not callable(model):
        raise ValueError(
            f"model must be a NumPyro function, a pymc.Model or a function that returns one, got "
            f"{model!r}"
        )
    given, labels = arguments(model, table, settings)
    if pymc is not None:
        with handlers.seed(rng_seed=0):  # if it is one of NumPyro's after all
            made = model(**given)
        if isinstance(made, pymc.Model):
            return sa.from_pymc(made), labels
    return sa.from_numpyro(model, **given), labels


def arguments(
    model: Any, table: Table, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return what a function is called with: columns, labels of columns, and settings, by name."""
    parameters = inspect.signature(model).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    many = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = {p.name: p.default is p.empty for p in parameters if p.kind not in many}
    if unknown := [k for k in settings if k not in names and not takes_all]:
        has = ", ".join(names)
        raise ValueError(f"set: the model has no argument {', '.join(unknown)}; it has {has}")
    given: dict[str, Any] = dict(settings)
    columns = [k for k in (table.names if takes_all else names) if k in table and k not in given]
    found = {name: table[name] for name in columns}
    given |= {name: column.values for name, column in found.items()}
    labels = {k: column.labels for k, column in found.items() if column.labels is not None}
    for name in names:
        base = name.removesuffix(LABELS)
        if name not in given and name != base and base in table:
            given[name] = table[base].labels or ()
    if missing := [k for k, needed in names.items() if needed and k not in given]:
        raise ValueError(
            f"data: the model needs {', '.join(missing)}, for which there is no column; there are "
            f"{', '.join(table.names) or 'none'}. Name columns as the model's arguments, or give "
            f"--set {missing[0]}=…"
        )
    return given, labels


def _of_pymc(
    pymc: Any, model: Any, table: Table, settings: Mapping[str, Any]
) -> tuple[sa.Target, Any]:
    """Return the posterior of a PyMC model, whose `pymc.Data` take the columns of their names."""
    if settings:
        raise ValueError(f"set: a pymc.Model has no arguments, got {', '.join(settings)}")
    held = [v.name for v in model.data_vars]
    found = {name: table[name] for name in table.names if name in held}
    if table.names and not found:
        raise ValueError(
            f"data: the model has no pymc.Data of the name of a column ({', '.join(table.names)}); "
            f"it has {', '.join(held) or 'none'}"
        )
    pymc.set_data({name: column.values for name, column in found.items()}, model=model)
    labels = {k: column.labels for k, column in found.items() if column.labels is not None}
    return sa.from_pymc(model), labels


def setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`: a Python literal, or a text.

    >>> setting("kinds=2"), setting("prior=wide")
    (('kinds', 2), ('prior', 'wide'))
    """
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError(f"set must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


# -- results ---------------------------------------------------------------------------------------


def write(
    result: sa.Result, labels: Mapping[str, Sequence[str]], folder: Path, key: int
) -> list[str]:
    """Write what there is to keep of a fit into a folder; say what could not be written."""
    result.save(folder / "fit.npz")
    rows = result.summary()
    _write_csv(folder / "summary.csv", list(rows[0]), [list(row.values()) for row in rows])
    if labels:
        codes = [[k, i, label] for k, of in labels.items() for i, label in enumerate(of)]
        _write_csv(folder / "labels.csv", ["column", "code", "label"], codes)
    result.report(folder / "report.html", key=key)
    try:
        result.to_arviz(key=key).to_netcdf(str(folder / "draws.nc"))
    except (
        ModuleNotFoundError,
        ImportError,
        ValueError,
    ) as error:  # no ArviZ, or nothing to write by
        return [f"draws.nc was not written: {error}"]
    return []


def _write_csv(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    def text(cell: Any) -> str:
        text = str(cell)
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text

    lines = [",".join(map(text, line)) for line in (head, *rows)]
    write_atomically(path, lambda file: file.write(("\n".join(lines) + "\n").encode()))


def run(
    model: str,
    data: Path | None,
    folder: Path,
    settings: Sequence[str],
    key: int,
    tolerance: float,
    progress: bool,
) -> tuple[sa.Result, list[str]]:
    """Fit and write; return the result, and what there is to say beside it."""
    table = Table(data)
    target, labels = as_target(load_model(model), table, dict(map(setting, settings)))
    folder.mkdir(parents=True, exist_ok=True)
    result = sa.fit(target, key=key, tolerance=tolerance, progress=progress)
    return result, write(result, labels, folder, key)
