"""What `tests/test_processes.py` runs in several processes: one fit, by all of them.

The first process prints what came out, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import scoreascent as sa

DIM, ROWS = 3, 48


def log_density(z: Any, data: Any) -> Any:
    logits = data["x"] @ z
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2)


def target(seed: int = 0) -> sa.Target:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    y = (x.sum(1) + 2 * rng.normal(size=ROWS) > 0).astype(np.float32)
    return sa.Target(log_density, dim=DIM, data={"x": x, "y": y}, rows=True)


def options(args: Any) -> dict[str, Any]:
    if args.auto:
        return {"key": 1}
    return {
        "method": sa.pmcsa(8), "q0": sa.FullRank.standard(DIM), "steps": args.steps, "key": 1,
        "optimizer": sa.moment_matching(),
    }  # fmt: skip


def parsed(given: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--axis", default="chains")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--die", type=int, help="this process kills itself halfway")
    parser.add_argument("--other-data", type=int, help="this process has other data")
    parser.add_argument("--patience", type=int, default=20)
    return parser.parse_args(given)


def dies_halfway(args: Any) -> Any:
    """A callback by which one process ends as by kill −9, once a checkpoint is there."""

    def callback(state: Any, trace: Any) -> None:
        if int(state.step) >= args.steps // 2 and jax.process_index() == args.die:
            while not args.checkpoint.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    return callback


def main() -> None:
    args = parsed()
    sa.distributed.start(patience=args.patience)
    own = target(1 if jax.process_index() == args.other_data else 0)
    given = options(args)
    if args.die is not None:
        given |= {"callback": dies_halfway(args), "callback_every": max(1, args.steps // 4)}
    mesh = Mesh(np.array(jax.devices()), (args.axis,))
    result = sa.fit(own, **given, mesh=mesh, checkpoint=args.checkpoint, checkpoint_every=0)
    told = {
        "processes": jax.process_count(), "mean": result.q.mean.tolist(),
        "sd": result.q.sd.tolist(), "steps": result.steps,
        "mesh": result.provenance["mesh"], "acceptance": result.trace.acceptance.tolist(),
    }  # fmt: skip
    if args.judge:
        told["verdict"] = result.diagnose().verdict
    if jax.process_index() == 0:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
