"""Regression data sets, checked to the byte, and their train–test splits.

`diabetes` comes with scikit-learn. The eight UCI sets of the paper are read from the folder that
the environment variable `SCOREASCENT_DATA` names: nothing is downloaded, and a file that is not
the one the published numbers were compared with is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = "SCOREASCENT_DATA"
SMALLEST_SD = 1e-6

Array = np.ndarray[Any, np.dtype[np.float64]]


class DatasetError(ValueError):
    """A data set that is unknown, not there, or not what it should be."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it must look like.

    `sha256` is that of the CSV file; for diabetes, which has no file, that of the features and the
    target beside each other, row after row, as little-endian doubles.
    """

    title: str
    reference: str
    licence: str
    rows: int
    features: int
    target: str
    sha256: str
    uci: int | None = None
    doi: str | None = None

    def __str__(self) -> str:
        known = [self.reference]
        known += [f"UCI id {self.uci}"] if self.uci is not None else []
        known += [f"doi {self.doi}"] if self.doi is not None else []
        return f"{self.title} ({'; '.join(known)})"


REGISTRY: dict[str, Source] = {
    "yacht": Source(
        "Yacht Hydrodynamics",
        "Gerritsma, Onnink and Versluis, 1981",
        "CC BY 4.0",
        rows=308,
        features=6,
        target="residuary_resistance",
        sha256="0f076fe825b9df72135d8e84095523323e4347dac78045298f62d71b2d1442db",
        uci=243,
        doi="10.24432/C5XG7R",
    ),
    "concrete": Source(
        "Concrete Compressive Strength",
        "Yeh, Cement and Concrete Research 28(12), 1998",
        "CC BY 4.0",
        rows=1030,
        features=8,
        target="compressive_strength_mpa",
        sha256="763bce7fcfbc7a04855f97a734d20fcf350890a9e53b2baac4370d6b3975438f",
        uci=165,
        doi="10.24432/C5PK67",
    ),
    "airfoil": Source(
        "Airfoil Self-Noise",
        "Brooks, Pope and Marcolini, NASA RP-1218, 1989",
        "CC BY 4.0",
        rows=1503,
        features=5,
        target="sound_pressure_level_db",
        sha256="6175780c3c69e8bbd417a9de41d44040b6bf072079146dcf5d22c8961ebee223",
        uci=291,
        doi="10.24432/C5VW2C",
    ),
    "energy": Source(
        "Energy Efficiency",
        "Tsanas and Xifara, Energy and Buildings 49, 2012",
        "CC BY 4.0",
        rows=768,
        features=8,
        target="heating_load",
        sha256="de96ade93afe05be107b571c5a201a9c6247b1ac74fb06154799bc7162894920",
        uci=242,
        doi="10.24432/C51307",
    ),
    "wine": Source(
        "Wine Quality, red",
        "Cortez, Cerdeira, Almeida, Matos and Reis, Decision Support Systems 47(4), 2009",
        "CC BY 4.0",
        rows=1599,
        features=11,
        target="quality",
        sha256="76bb397799995e9bdf3eafaefc25fbf74b0fbc3d278059eacd0daf6d440555f8",
        uci=186,
        doi="10.24432/C56S3T",
    ),
    "boston": Source(
        "Boston Housing",
        "Harrison and Rubinfeld, J. Environ. Economics & Management 5, 1978; StatLib, formerly UCI",
        "none found",
        rows=506,
        features=13,
        target="medv",
        sha256="dabe774132cf1f35464a048f213b1d4f39f64ad9efb1157d64d457702f72e19b",
    ),
    "sml": Source(
        "SML2010",
        "Romeu-Guallart and Zamora-Martinez, 2014",
        "CC BY 4.0",
        rows=4137,
        features=22,
        target="humedad_habitacion_sensor",
        sha256="a6f83ed4745017898cc449c1f09b8aa74fc8f2f8055784d581e75080be398f01",
        uci=274,
        doi="10.24432/C5RS3S",
    ),
    "gas": Source(
        "Gas Sensor Array Drift Dataset at Different Concentrations, the ethanol measurements",
        "Vergara et al., Sensors and Actuators B 166-167, 2012",
        "CC BY 4.0; its description says research use only",
        rows=2565,
        features=128,
        target="log1p_ethanol_ppmv",
        sha256="f0ed0f38741cb797361ee57f93147a71c5d7fe21d92cee3190cebcd9cfc374e7",
        uci=270,
        doi="10.24432/C5MK6M",
    ),
    "diabetes": Source(
        "Diabetes, with scikit-learn",
        "Efron, Hastie, Johnstone and Tibshirani, Annals of Statistics 32(2), 2004",
        "that of scikit-learn, BSD 3-clause",
        rows=442,
        features=10,
        target="progression",
        sha256="839c546b0b4ac02c2e6cbe5e5c92313cefa993446c9733e9b49477cc3f96e104",
    ),
}
AVAILABLE = tuple(REGISTRY)  # what `load` knows, the paper's eight first


class Split(NamedTuple):
    """One train–test split, whitened by the training rows. The test target keeps its unit.

    A prediction m of the whitened target is y_mean + y_sd · m in the unit of `y_test`.
    """

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    y_mean: Any
    y_sd: Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """A regression data set in its original units."""

    name: str
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    features: tuple[str, ...]
    target: str

    def split(self, seed: int, fraction: float = 0.9) -> Split:
        """Shuffle the rows by `seed`; the first floor(fraction · n) train, the others test."""
        train, test = self._rows(seed, fraction)
        x, y = self.x[train], self.y[train]
        x_mean, x_sd = x.mean(0), x.std(0, ddof=1)
        y_mean, y_sd = float(y.mean()), float(y.std(ddof=1))
        for what, sd in zip((*self.features, self.target), (*x_sd, y_sd)):
            if not sd > SMALLEST_SD:
                raise DatasetError(
                    f"{what!r} of data set {self.name!r} has standard deviation {sd:.3g} over the "
                    f"training rows of split {seed}, and cannot be whitened; leave it out"
                )
        return Split(
            x_train=(x - x_mean) / x_sd,
            y_train=(y - y_mean) / y_sd,
            x_test=(self.x[test] - x_mean) / x_sd,
            y_test=self.y[test],
            y_mean=y_mean,
            y_sd=y_sd,
        )

    def _rows(self, seed: int, fraction: float) -> tuple[Any, Any]:
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must lie between 0 and 1, not {fraction}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        rows = len(self.y)
        # 0.9 is meant as nine tenths, and 0.9 · 10 must not come out below 9
        first = math.floor(Fraction(str(fraction)) * rows)
        if first < 2 or first == rows:
            raise ValueError(
                f"fraction {fraction} of the {rows} rows of {self.name!r} trains on {first}: "
                "at least 2 rows must train and 1 must test"
            )
        shuffled = np.random.default_rng(seed).permutation(rows)
        return shuffled[:first], shuffled[first:]


def load(name: str) -> Dataset:
    """A data set by name, checked against the registry.

    `diabetes` needs scikit-learn; the others need their CSV file in the folder that the
    environment variable `SCOREASCENT_DATA` names.
    """
    if name not in REGISTRY:
        close = difflib.get_close_matches(str(name).lower(), AVAILABLE, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DatasetError(
            f"there is no data set {name!r}; {hint}choose from {', '.join(AVAILABLE)}"
        )
    return _diabetes() if name == "diabetes" else _from_file(name)


def _diabetes() -> Dataset:
    try:
        from sklearn.datasets import load_diabetes
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the diabetes data comes with scikit-learn: pip install 'scoreascent[cli]'"
        ) from None
    raw: Any = load_diabetes(scaled=False)
    source = REGISTRY["diabetes"]
    both = np.column_stack([raw.data, raw.target]).astype("<f8")
    digest = hashlib.sha256(both.tobytes()).hexdigest()
    if digest != source.sha256:
        raise DatasetError(
            f"the diabetes data of the installed scikit-learn is not the one expected: "
            f"{_differ(source, both.shape, digest)}; install another version of scikit-learn"
        )
    x, y = both[:, :-1].astype(np.float64), both[:, -1].astype(np.float64)
    return Dataset("diabetes", x, y, tuple(raw.feature_names), source.target)


def _from_file(name: str) -> Dataset:
    source = REGISTRY[name]
    path = _path(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    header, table = _parse(path, content)
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.sha256:
        found = f"{str(path)!r} is not the file expected: {_differ(source, table.shape, digest)}"
        if table.shape != (source.rows, source.features + 1):
            raise DatasetError(f"{found}. It is cut short, or another version of {source}")
        if header[-1] != source.target:
            raise DatasetError(
                f"{found}. Its last column is {header[-1]!r}, and should be the target, "
                f"{source.target!r}"
            )
        raise DatasetError(f"{found}. A value, a name or the line endings were changed")
    return Dataset(name, table[:, :-1], table[:, -1], header[:-1], source.target)


def _path(name: str) -> Path:
    folder = os.environ.get(FOLDER)
    wanted = (
        f"The set is {REGISTRY[name]}; save it as {name}.csv, a CSV file with one header row and "
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


def _differ(source: Source, shape: tuple[int, ...], digest: str) -> str:
    return (
        f"expected {source.rows} rows, {source.features + 1} columns, "
        f"sha256 {source.sha256[:12]}…; found {shape[0]} rows, {shape[1]} columns, "
        f"sha256 {digest[:12]}…"
    )
