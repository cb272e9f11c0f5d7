"""What one does with a fit every day, in seconds: keep it, read it again, look at it.

    python -m benchmarks.daily --parameters 10000 --draws 4000

The posterior is a Gaussian of that many named parameters, whose density costs next to nothing, and
q is at its optimum: the fit itself is not what is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import scoreascent as sa


def log_density(params: Any, data: Any) -> Any:
    """Independent Gaussians."""
    mean, sd = data
    return -0.5 * jnp.sum(((params["x"] - mean) / sd) ** 2)


def fitted(parameters: int) -> sa.Result:
    """Return a fit of that many parameters, of a few steps from where it should end."""
    mean = np.linspace(-3, 3, parameters, dtype=np.float32)
    sd = np.geomspace(0.1, 10, parameters, dtype=np.float32)
    target = sa.Target(log_density, params={"x": sa.Param(shape=(parameters,))}, data=(mean, sd))
    q0 = sa.MeanField.from_moments(mean, sd)
    method, update = sa.pmcsa(64), sa.moment_matching(sa.schedules.Decay(first=1e-3))
    return sa.fit(target, method, q0=q0, optimizer=update, steps=20, progress=False)


def jobs(result: sa.Result, folder: Path, draws: int) -> dict[str, Callable[[], object]]:
    """Return what is done, by name, in this order."""
    path = folder / "fit.npz"
    rows = np.random.default_rng(0).normal(size=(100, result.target.dim)).astype(np.float32)
    return {
        "save": lambda: result.save(path, draws=draws),
        "load, with the target": lambda: sa.load(path, result.target),
        "load, without": lambda: sa.load(path),
        "draws of what was loaded": lambda: sa.load(path).sample(0, draws // 2),
        "predict 100 rows": lambda: result.predict(0, lambda x: rows @ x["x"], n=draws),
        "to ArviZ, its import included": lambda: result.to_arviz(n=draws),
        "print": lambda: str(result),
        "to HTML, for a notebook": lambda: result._repr_html_(),
        "report": lambda: result.report(folder / "fit.html"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    result = fitted(args.parameters)
    clock = time.perf_counter()
    result = replace(result, diagnosis=result.diagnose())
    judged = time.perf_counter() - clock
    title = (
        f"{args.parameters} parameters, {args.draws} draws: seconds, the first time and the best"
    )
    table = Table("", "first", f"best of {args.turns}", "MB", title=title)
    table.add_row("diagnose, as an automatic fit has done", f"{judged:.2f}", "", "")
    with tempfile.TemporaryDirectory() as name:
        for what, do in jobs(result, Path(name), args.draws).items():
            seconds = []
            for _ in range(args.turns):
                clock = time.perf_counter()
                do()
                seconds.append(time.perf_counter() - clock)
            file = Path(name) / ("fit.html" if what == "report" else "fit.npz")
            size = f"{file.stat().st_size / 1e6:.1f}" if what in ("save", "report") else ""
            table.add_row(what, f"{seconds[0]:.2f}", f"{min(seconds):.2f}", size)
    Console().print(table)


if __name__ == "__main__":
    main()
