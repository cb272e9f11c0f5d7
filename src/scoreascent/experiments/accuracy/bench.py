"""`scoreascent bench accuracy`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from scoreascent.experiments.accuracy import reference
from scoreascent.experiments.accuracy.models import MODELS, entry


def make_references(names: tuple[str, ...], folder: Path | None, console: Console) -> None:
    """Compute and write the references of these models, of all if none is named."""
    for name in names:
        entry(name)
    for name in names or MODELS:
        clock = time.perf_counter()
        made, how = reference.compute(name)
        path = reference.write(folder or reference.STORED, name, made, how)
        says = f"R̂ ≤ {made.rhat.max():.4f}, ESS ≥ {made.ess.min():.0f}"
        took = f"{time.perf_counter() - clock:.0f} s"
        console.print(f"{path.name}: {how['source']}, {says}, {took}", highlight=False)
