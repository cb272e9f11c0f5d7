"""One fit of one large model, in a process of its own: nothing is compiled before the clock starts.

`python -m scoreascent.experiments.large.cell splines nuts 0` prints what was measured as JSON.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent.experiments.large.methods import Seen, way
from scoreascent.experiments.large.models import large_model
from scoreascent.experiments.large.reference import Reference, load

# What a method may answer when a posterior is too much for it; anything else is a mistake of ours.
REFUSALS = (ValueError, RuntimeError, FloatingPointError)
LONGEST_NOTE = 200  # in letters
MODULE = "scoreascent.experiments.large.cell"


def measure(model: str, method: str, seed: int) -> dict[str, Any]:
    """Fit a model once, data ready and nothing compiled, and hold it against its reference."""
    how, known = way(method), load(model)
    target = jax.block_until_ready(jax.device_put(large_model(model).target()))
    jnp.zeros(1).block_until_ready()  # the device is up
    clock = time.perf_counter()
    try:
        read = how.fit(target, seed)
        seconds = time.perf_counter() - clock
        return row(read(), known) | {"seconds": seconds, "note": ""}
    except REFUSALS as error:
        seconds = time.perf_counter() - clock
        says = f"{type(error).__name__}: {error}".splitlines()[0]
    blank = Seen((), False, "refused", 0)
    return row(blank, known) | {"seconds": seconds, "note": says[:LONGEST_NOTE]}


def row(seen: Seen, known: Reference) -> dict[str, Any]:
    """The worst errors among all moments that a method gives; without any they have no bound.

    - `mean_error`: the worst error of a mean, in sds of the reference;
    - `sd_error`, `worst_sd_error`: |log(sd/reference sd)|, the mean over coordinates and the worst.
    """
    found = {"mean_error": np.inf, "sd_error": np.inf, "worst_sd_error": np.inf}
    each = []
    for mean, sd in seen.moments:
        with np.errstate(all="ignore"):
            off = np.abs(mean - known.mean) / known.sd
            logs = np.abs(np.log(sd / known.sd))
        errors = (np.max(off), np.mean(logs), np.max(logs))
        each.append([np.inf if np.isnan(x) else float(x) for x in errors])
    if each:
        found = dict(zip(found, np.max(each, axis=0).tolist()))
    return {
        **found,
        "good": seen.good,
        "says": seen.says,
        "rhat": seen.rhat,
        "divergences": seen.divergences,
        "gradients": seen.gradients,
        "densities": seen.densities,
    }


def in_its_own_process(model: str, method: str, seed: int, seconds: float) -> dict[str, Any] | None:
    """Measure in a fresh process; None if it would take longer than so many seconds."""
    call = [sys.executable, "-m", MODULE, model, method, str(seed)]
    timeout = None if math.isinf(seconds) else max(seconds, 0.0)
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise RuntimeError(f"{' '.join(call[1:])} ended with {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure what the command line names."""
    model, method, seed = sys.argv[1:]
    print(json.dumps(measure(model, method, int(seed))))


if __name__ == "__main__":
    main()
