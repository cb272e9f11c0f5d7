"""What the challenge before *good* costs on the accuracy suite: its share of gradients and of time.

`python -m benchmarks.challenge` fits every regular model twice, cold and warm, and takes the time
of the challenge alone on the warm fit. It writes `docs/results/challenge.csv`.
"""

from __future__ import annotations

import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from rich.console import Console

import scoreascent as sa
from scoreascent._random import as_key
from scoreascent.diagnostics.challenge import challenge
from scoreascent.experiments.accuracy.models import MODELS
from scoreascent.fitting.provenance import versions

RESULT = Path(__file__).parents[1] / "docs" / "results" / "challenge.csv"


def measure(name: str) -> dict[str, float | str]:
    """Fit a model warm, and repeat its challenge under a clock."""
    target = MODELS[name].target()
    sa.fit(target, key=0, progress=False)
    clock = time.perf_counter()
    result = sa.fit(target, key=1, progress=False)
    warm = time.perf_counter() - clock
    diagnosis, count = result.diagnosis, result.evaluations
    assert diagnosis is not None
    assert count is not None
    known = (diagnosis.least_log_q, diagnosis.log_evidence, diagnosis.log_w_star)
    key = as_key(0)
    challenge(result, key, *known)  # compiles what it has not met yet
    clock = time.perf_counter()
    challenge(result, key, *known)
    took = time.perf_counter() - clock
    densities, gradients = diagnosis.challenge_count
    return {
        "model": name,
        "verdict": diagnosis.verdict,
        "densities": densities,
        "gradients": gradients,
        "share_of_densities": densities / max(1, count[0]),
        "share_of_gradients": gradients / max(1, count[1]),
        "seconds": took,
        "warm_seconds": warm,
        "share_of_time": took / warm,
    }


def main() -> None:
    """Measure every regular model, show medians, write the table."""
    console = Console(width=120)
    rows = []
    for name, entry in MODELS.items():
        if entry.regular:
            rows.append(measure(name))
            console.print(
                {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}
            )
            jax.clear_caches()
    table = pd.DataFrame(rows)
    about = "; ".join(f"{k} {v}" for k, v in versions().items())
    text = table.to_csv(index=False, float_format="%.4g")
    RESULT.write_text(f"# python -m benchmarks.challenge; {about}\n{text}")
    for name in ("share_of_densities", "share_of_gradients", "share_of_time"):
        console.print(f"median {name}: {np.median(table[name]):.1%}")


if __name__ == "__main__":
    main()
