"""What the tests of the experiments share: the command line, cells that cost nothing, folders."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
from typer.testing import CliRunner

from scoreascent.cli import app
from scoreascent.experiments.runner import Cell, Execution
from scoreascent.experiments.store import Layout, RunFolder

ROOT = Path(__file__).parents[1]
QUIET = Execution(progress=False)
CELLS = [Cell(f"c{i}", (i,), cost=i + 1.0) for i in range(4)]
WITH_WEIGHTS = Layout(extra_frames=("weights",))


def reproduce(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def frames(cell: Cell) -> dict[str, pd.DataFrame]:
    x = math.sqrt(cell.piece[0] + 1)
    table = pd.DataFrame({"cell": [cell.name] * 2, "x": [x, -x]})
    return {"table": table, "weights": pd.DataFrame({"cell": [cell.name], "mean": [x]})}


def files(store: RunFolder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((store.path / "cells").iterdir())}


def full_from(call: int, until: float = math.inf) -> Any:
    """An `os.fsync` that finds the disk full from one call to another."""
    fsync, calls = os.fsync, [0]

    def full(descriptor: int) -> None:
        calls[0] += 1
        if call <= calls[0] <= until:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    return full
