"""Figures that go to files, of the demo and of the experiments: no window is ever opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from rich.console import Console

__all__ = ["plt", "save"]


def save(figure: Any, path: Path, console: Console | None = None) -> None:
    """Write a figure to a file, forget it, and say where it is."""
    figure.savefig(path, dpi=150)
    plt.close(figure)
    if console is not None:
        console.print(f"picture: {path}")
