"""Reading a data set from its file or from scikit-learn, checked to the byte."""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from scoreascent._extras import require
from scoreascent.datasets.registry import AVAILABLE, REGISTRY, Source
from scoreascent.datasets.splits import Array, Dataset, DatasetError

FOLDER = "SCOREASCENT_DATA"


def load(name: str) -> Dataset:
    """Read a data set by name, and check it against the registry.

    `diabetes` needs scikit-learn; the others need their CSV file in the folder that the
    environment variable `SCOREASCENT_DATA` names.

    >>> load("diabetes").x.shape
    (442, 10)
    """
    source = _known(name)
    if name == "diabetes":
        header, table = _diabetes(source)
    else:
        header, table = _parse(*_checked_file(name, source))
    return Dataset(name, table[:, :-1], table[:, -1], header[:-1], source.target)


def check(name: str) -> tuple[int, int]:
    """Whether a data set is there, and to the byte what it should be; its rows and features.

    It raises what `load` would, but reads no numbers.

    >>> check("diabetes")
    (442, 10)
    """
    source = _known(name)
    if name == "diabetes":
        _diabetes(source)
    else:
        _checked_file(name, source)
    return source.rows, source.features


def _known(name: str) -> Source:
    if name not in REGISTRY:
        close = difflib.get_close_matches(str(name).lower(), AVAILABLE, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DatasetError(
            f"there is no data set {name!r}; {hint}choose from {', '.join(AVAILABLE)}"
        )
    return REGISTRY[name]


def _diabetes(source: Source) -> tuple[tuple[str, ...], Array]:
    """The names of the columns, and the table that comes with scikit-learn."""
    sklearn: Any = require("sklearn.datasets", "cli", "the diabetes data")
    raw = sklearn.load_diabetes(scaled=False)
    table = np.column_stack([raw.data, raw.target]).astype("<f8")
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    if digest != source.sha256:
        raise DatasetError(
            f"the diabetes data of the installed scikit-learn is not the one expected: "
            f"{_difference(source, table.shape, digest)}; install another version of scikit-learn"
        )
    return (*raw.feature_names, source.target), table.astype(np.float64)


def _checked_file(name: str, source: Source) -> tuple[Path, bytes]:
    """The path and the content of a data set's file, if it is the one expected."""
    path = _path(name, source)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.sha256:
        header, table = _parse(path, content)
        found = (
            f"{str(path)!r} is not the file expected: {_difference(source, table.shape, digest)}"
        )
        if table.shape != (source.rows, source.features + 1):
            raise DatasetError(f"{found}. It is cut short, or another version of {source}")
        if header[-1] != source.target:
            raise DatasetError(
                f"{found}. Its last column is {header[-1]!r}, and should be the target, "
                f"{source.target!r}"
            )
        raise DatasetError(f"{found}. A value, a name or the line endings were changed")
    return path, content


def _path(name: str, source: Source) -> Path:
    folder = os.environ.get(FOLDER)
    wanted = (
        f"The set is {source}; save it as {name}.csv, a CSV file with one header row and "
        f"the target in the last column, and set {FOLDER} to its folder"
    )
    if not folder:
        raise DatasetError(f"data set {name!r}: {FOLDER} is not set. {wanted}")
    path = Path(folder) / f"{name}.csv"
    if not path.is_file():
        raise DatasetError(f"data set {name!r}: there is no file {str(path)!r}. {wanted}")
    return path


def _parse(path: Path, content: bytes) -> tuple[tuple[str, ...], Array]:
    try:
        lines = content.decode().splitlines()
        if len(lines) < 2:
            raise ValueError(f"it has {len(lines)} lines")
        header = tuple(lines[0].split(","))
        table = np.loadtxt(lines[1:], delimiter=",", ndmin=2, dtype=np.float64, comments=None)
        if table.shape[1] != len(header):
            raise ValueError(f"{len(header)} names stand over {table.shape[1]} columns")
    except ValueError as error:
        raise DatasetError(
            f"{str(path)!r} is no CSV file of numbers under one header row: {error}; fetch it again"
        ) from error
    return header, table


def _difference(source: Source, shape: tuple[int, ...], digest: str) -> str:
    return (
        f"expected {source.rows} rows, {source.features + 1} columns, "
        f"sha256 {source.sha256[:12]}…; found {shape[0]} rows, {shape[1]} columns, "
        f"sha256 {digest[:12]}…"
    )
