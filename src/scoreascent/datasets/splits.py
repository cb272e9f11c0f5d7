"""A data set and its train–test splits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

SMALLEST_SD = 1e-6

Array = np.ndarray[Any, np.dtype[np.float64]]


class DatasetError(ValueError):
    """A data set that is unknown, not there, or not what it should be.

    >>> from scoreascent.datasets import load
    >>> try:
    ...     load("diabetis")
    ... except DatasetError as error:
    ...     print("diabetis" in str(error))
    True
    """


class Split(NamedTuple):
    """One train–test split, whitened by the training rows. The test target keeps its unit.

    A prediction m of the whitened target is y_mean + y_sd · m in the unit of `y_test`.

    >>> from scoreascent.datasets import load
    >>> split = load("diabetes").split(seed=0)
    >>> split.x_train.shape, split.x_test.shape
    ((397, 10), (45, 10))
    """

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    y_mean: Any
    y_sd: Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """A regression data set in its original units.

    >>> from scoreascent.datasets import load
    >>> data = load("diabetes")
    >>> data.x.shape, data.name
    ((442, 10), 'diabetes')
    """

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
        for column, sd in zip((*self.features, self.target), (*x_sd, y_sd)):
            if not sd > SMALLEST_SD:
                raise DatasetError(
                    f"{column!r} of data set {self.name!r} has standard deviation {sd:.3g} over "
                    f"the training rows of split {seed}, and cannot be whitened; leave it out"
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
