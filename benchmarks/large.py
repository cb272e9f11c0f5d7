"""`sa.fit` on linear regressions of many coefficients: time, errors, memory.

Errors are against the exact posterior. Each size runs in a process of its own, for its peak of
memory, which is also told before the fit: the difference must not grow faster than the dimension.
`python -m benchmarks.large 500 1000 2000` writes `docs/results/large.csv`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import scoreascent as sa
from scoreascent.fitting.provenance import versions

ROWS = 500
SIZES = (500, 1000, 2000)
PRIOR_SD = 2.0
RESULT = Path(__file__).parents[1] / "docs" / "results" / "large.csv"


def log_density(z: Any, data: Any) -> Any:
    """Unit noise, a Gaussian prior on every coefficient; predictors share a common factor."""
    X, y = data
    residual = y - X @ z
    return -0.5 * jnp.sum(residual**2) - 0.5 * jnp.sum((z / PRIOR_SD) ** 2)


def regression(dim: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A tenth of the coefficients matter; any two predictors correlate by a third."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, dim)) + 0.7 * rng.normal(size=(ROWS, 1))
    X /= np.sqrt(dim)
    y = 3 * X @ (rng.normal(size=dim) * (rng.random(dim) < 0.1)) + rng.normal(size=ROWS)
    return X.astype(np.float32), y.astype(np.float32)


def measure(dim: int, key: int = 0) -> dict[str, Any]:
    """One fit, cold, and how far it is from the exact posterior."""
    X, y = regression(dim)
    target = sa.Target(log_density, dim=dim, data=(X, y))
    before, clock = _peak(), time.perf_counter()
    result = sa.fit(target, key=key, progress=False)
    seconds, memory = time.perf_counter() - clock, _peak()
    wide = X.astype(np.float64)
    cov = np.linalg.inv(wide.T @ wide + np.eye(dim) / PRIOR_SD**2)
    mean, sd = cov @ (wide.T @ y), np.sqrt(np.diag(cov))
    assert result.diagnosis is not None
    assert result.evaluations is not None
    return {
        "dim": dim,
        "seconds": seconds,
        "mean_error": float(np.max(np.abs(np.asarray(result.q.mean) - mean) / sd)),
        "sd_error": float(np.mean(np.abs(np.log(np.asarray(result.q.sd) / sd)))),
        "verdict": result.diagnosis.verdict,
        "steps": int(result.state.step),
        "gradients": result.evaluations[1],
        "mib_before": before,
        "mib": memory,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure every size, print the table and store it."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    sizes = [int(x) for x in sys.argv[1:]] or list(SIZES)
    rows = []
    for dim in sizes:
        call = [sys.executable, "-m", "benchmarks.large", "--one", str(dim)]
        rows.append(json.loads(subprocess.check_output(call, text=True).splitlines()[-1]))
    table = pd.DataFrame(rows)
    shown = Table(*table.columns, title="regressions of many coefficients")
    for row in rows:
        shown.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(shown)
    made = {"command": f"python -m benchmarks.large {' '.join(map(str, sizes))}", **versions()}
    head = "".join(f"# {k}: {v}\n" for k, v in made.items())
    RESULT.write_text(head + table.to_csv(index=False, float_format="%.4g"), encoding="utf-8")


if __name__ == "__main__":
    main()
