"""Rows that stay with the host: memory of the device, and time beside that of reading alone.

    python -m benchmarks.rows --rows 100000 1000000

For each number of rows: bytes that the compiled density of all chains needs on the device, by the
compiler's own account; seconds that reading all pieces takes, that reading them and copying them
to the device takes, that the work on as many pieces takes if they are there, and seconds of the
density itself, which does all, and what share this is of copy and work one after the other: less
than all where they overlap. The data are in a file. With `--memory` nothing is timed, and the
file has holes, so that any number of rows takes no disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import scoreascent as sa

CHAINS, DIM, WRITTEN = 64, 20, 100_000


def log_density(z: Any, data: Any) -> Any:
    logits = data["x"] @ z
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2)


def table(folder: Path, rows: int, fill: bool) -> dict[str, Any]:
    """Files of so many rows, of numbers if `fill` says so, else of zeros that are not on disk."""
    x = np.memmap(folder / "x", np.float32, "w+", shape=(rows, DIM))
    y = np.memmap(folder / "y", np.float32, "w+", shape=(rows,))
    rng = np.random.default_rng(0)
    for i in range(0, rows if fill else 0, WRITTEN):
        some = x[i : i + WRITTEN]
        some[:] = rng.standard_normal(some.shape, np.float32)
        y[i : i + WRITTEN] = some.sum(1) > 0
    return {"x": x, "y": y}


def seconds(call: Any, times: int = 3) -> float:
    """The least of a few, for a machine has other things to do."""
    found = []
    for _ in range(times):
        clock = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - clock)
    return min(found)


def measured(rows: int, piece: int, timed: bool) -> dict[str, float]:
    """Memory and, if asked for, times of value and gradient at all chains."""
    with tempfile.TemporaryDirectory() as folder:
        data = table(Path(folder), rows, timed)
        target = sa.Target(log_density, dim=DIM, data=data, rows=True, piece=piece)
        both = jax.jit(jax.vmap(jax.value_and_grad(target.log_prob)))
        z = 0.1 * jax.random.normal(jax.random.key(0), (CHAINS, DIM))
        memory: Any = both.lower(z).compile().memory_analysis()
        found = {"bytes": float(memory.argument_size_in_bytes + memory.temp_size_in_bytes)}
        if timed:
            streamed: Any = target.log_density
            there = [jnp.asarray(x) for x in streamed.rows.read(0)]
            one = jax.jit(
                jax.vmap(jax.value_and_grad(lambda z, p: streamed.of(z, [], p)), in_axes=(0, None))
            )
            one(z, there)
            turns = range(streamed.rows.turns)
            load = streamed.rows._load
            found["read"] = seconds(lambda: [np.shape(load(k)[0])[0] for k in turns])
            found["copy"] = seconds(
                lambda: [jax.block_until_ready(jax.device_put(load(k)))[0].shape[0] for k in turns]
            )
            found["work"] = seconds(lambda: [jax.block_until_ready(one(z, there)) for _ in turns])
            both(z)
            found["density"] = seconds(lambda: both(z))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--piece", type=int, default=20_000)
    parser.add_argument("--memory", action="store_true", help="time nothing")
    args = parser.parse_args()
    shown = Table(
        "rows", "device, bytes", "reading, s", "and copy, s", "work, s", "density, s", "of both"
    )
    for rows in args.rows:
        found = measured(rows, args.piece, not args.memory)
        cells = [f"{found.get(name, np.nan):.3g}" for name in ("read", "copy", "work", "density")]
        share = found.get("density", np.nan) / (
            found.get("copy", np.nan) + found.get("work", np.nan)
        )
        shown.add_row(f"{rows:.0e}", f"{found['bytes']:.0f}", *cells, f"{share:.0%}")
    Console().print(shown)


if __name__ == "__main__":
    main()
