"""The model's own space, which is what a user reads: tau, not log tau, and deterministic sites."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scoreascent._files import write_atomically
from scoreascent.diagnostics.draws import MAX_SHOWN_TAIL, scalar_names, tail_shapes
from scoreascent.experiments.accuracy import reference
from scoreascent.run import TOLERANCE
from scoreascent.target import Target

LEVELS = (0.05, 0.5, 0.95)
COLUMNS = ("mean", "sd", "q05", "q50", "q95")
MAX_DRAWS = 40_000
NORMAL_RANGE = 3.2897  # of sds, between the 5 and the 95 % points of a Gaussian
RIGHT = TOLERANCE  # sds, for means, log sds and quantiles alike: what *good* promises


@dataclass(frozen=True, eq=False)
class Own:
    """Mean, sd and quantiles at `LEVELS` of every scalar; NaN where a tail is too heavy."""

    names: tuple[str, ...]
    numbers: NDArray[Any]  # (scalars, columns)


def of_draws(target: Target, z: Any) -> Own:
    """Return the numbers of draws z (n, d)."""
    z = np.asarray(z)[:: -(-len(z) // MAX_DRAWS)]
    dtype = jnp.zeros(()).dtype
    values = jax.jit(jax.vmap(target.named))(jnp.asarray(z, dtype))
    names, columns = [], []
    for site, x in values.items():
        array = np.asarray(x, np.float64)
        names += scalar_names(site, array.shape[1:])
        columns.append(array.reshape(len(z), -1))
    x = np.concatenate(columns, axis=1)
    with np.errstate(all="ignore"):
        moments = np.where(tail_shapes(x) > MAX_SHOWN_TAIL, np.nan, [x.mean(0), x.std(0, ddof=1)])
        quantiles = np.quantile(x, LEVELS, axis=0)
    return Own(tuple(names), np.concatenate([moments, quantiles]).T)


def of_rows(rows: list[dict[str, Any]]) -> Own:
    """Return the numbers that a result's summary shows."""
    names = tuple(row["name"] for row in rows)
    return Own(names, np.array([[row[c] for c in COLUMNS] for row in rows]))


def errors(found: Own, known: Own) -> dict[str, float]:
    """Return the worst errors, in sds of the reference; NaN if nothing can be compared.

    - `own_mean_error`: of a mean;
    - `own_sd_error`: of the logarithm of an sd;
    - `quantile_error`: of a 5, 50 or 95 % point; of a positive scalar without an sd, of its
      logarithm, for quantiles are the same points on any scale; of another without one, in shares
      of the 90 % range.

    Numbers that the reference does not know, or that the fit does not show, are left out.
    """
    at = {name: i for i, name in enumerate(found.names)}
    x = np.array([found.numbers[at[name]] for name in known.names])
    mean, sd = known.numbers[:, 0], known.numbers[:, 1]
    width = (known.numbers[:, 4] - known.numbers[:, 2]) / NORMAL_RANGE
    moves = width > 0  # a scalar may be a constant, such as the corner of a triangle
    with np.errstate(all="ignore"):
        mean_error = np.abs(x[:, 0] - mean) / sd
        sd_error = np.abs(np.log(x[:, 1] / sd))
        away = np.max(np.abs(x[:, 2:] - known.numbers[:, 2:]), 1)
        quantile_error = away / sd
        log_width = np.log(known.numbers[:, 4] / known.numbers[:, 2]) / NORMAL_RANGE
        log_error = np.max(np.abs(np.log(x[:, 2:] / known.numbers[:, 2:])), 1) / log_width
        log_error = np.where(known.numbers[:, 2] > 0, log_error, away / width)
        quantile_error = np.where(np.isfinite(sd), quantile_error, log_error)
    return {
        "own_mean_error": _worst(mean_error[moves]),
        "own_sd_error": _worst(sd_error[moves]),
        "quantile_error": _worst(quantile_error[moves]),
    }


def _worst(x: NDArray[Any]) -> float:
    known = x[~np.isnan(x)]
    return float(np.max(known)) if known.size else np.nan


# -- references ------------------------------------------------------------------------------------


def write(folder: Path, name: str, known: Own, origin: dict[str, Any]) -> Path:
    """Write a row for every scalar."""
    table = pd.DataFrame(known.numbers, columns=list(COLUMNS))
    table.insert(0, "name", list(known.names))
    text = io.StringIO()
    for key, value in origin.items():
        text.write(f"# {key}: {value}\n")
    table.to_csv(text, index=False, float_format="%.7g")
    (folder / "own").mkdir(parents=True, exist_ok=True)
    path = folder / "own" / f"{name}.csv"
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))
    return path


def load(name: str, folder: Path | None = None) -> Own:
    """Return the stored reference; where z is all that there is, that of z.

    >>> load("gaussian-ar1").names[:2]
    ('z[0]', 'z[1]')
    """
    base = folder or (reference.INSTALLED if reference.INSTALLED.is_dir() else reference.STORED)
    path = base / "own" / f"{name}.csv"
    if path.exists():
        table = pd.read_csv(path, comment="#")
        return Own(tuple(table["name"]), table[list(COLUMNS)].to_numpy(np.float64))
    known = reference.load(name, folder)
    if not all(n.startswith("z[") or n == "z" for n in known.names):
        raise ValueError(
            f"model {name!r} has no reference of its own space at {str(path)!r}; make it with "
            f"`scoreascent bench accuracy --references --model {name}`"
        )
    quantiles = np.stack([known.quantile(level) for level in LEVELS])
    return Own(known.names, np.concatenate([[known.mean, known.sd], quantiles]).T)
