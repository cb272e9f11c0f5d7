"""Several processes that work at one fit: how they start, and how they find each other.

A script says `sa.distributed.start()` before anything else of jax, makes a mesh of `jax.devices()`,
which are then those of all processes, and gives it to `fit`. `scoreascent launch --processes 4
script.py` runs it four times on this machine; on a cluster its own launcher does (`srun`).
"""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from scoreascent._structs import check_count

# what `launch` tells the processes that it starts
COORDINATOR, PROCESSES, INDEX = (
    f"SCOREASCENT_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS")
)
CPU = "jax_cpu_collectives_implementation"
PATIENCE = 60  # seconds
POLL = 0.1  # seconds between two looks of `launch`


def start(
    coordinator: str | None = None,
    processes: int | None = None,
    index: int | None = None,
    *,
    patience: int = PATIENCE,
) -> int:
    """Join the other processes of this run, and return how many there are.

    Without arguments they are those that `scoreascent launch` has started, or those of the cluster
    that jax finds (Slurm, Open MPI, Kubernetes); where there is neither, the process stays alone,
    so that a script runs by itself too. With them, `coordinator` is an address and a port of the
    first process, "node1:12345", `processes` their number and `index` the number of this one.

    A process that does not answer for `patience` seconds is given up: all others then end.

    >>> try:
    ...     start("node1:12345")  # which of how many is this one?
    ... except ValueError as error:
    ...     print(error)
    give coordinator, processes and index, or none of them, got ('node1:12345', None, None)
    """
    patience = check_count("patience", patience, 1)
    given = (coordinator, processes, index)
    if any(x is None for x in given) and any(x is not None for x in given):
        raise ValueError(f"give coordinator, processes and index, or none of them, got {given}")
    if coordinator is None and COORDINATOR in os.environ:
        coordinator = os.environ[COORDINATOR]
        processes, index = int(os.environ[PROCESSES]), int(os.environ[INDEX])
    if processes is not None:
        processes = check_count("processes", processes, 1)
        index = check_count("index", index, 0)
        if index >= processes:
            raise ValueError(f"index must be below processes, {processes}, got {index}")
    # in older versions of jax a CPU has no such operations by itself
    before = getattr(jax.config, CPU, None)
    jax.config.update(CPU, "gloo")
    known = inspect.signature(jax.distributed.initialize).parameters
    limits: dict[str, Any] = {
        "heartbeat_timeout_seconds": patience,
        "shutdown_timeout_seconds": patience,
    }
    limits = {name: value for name, value in limits.items() if name in known}  # since jax 0.7
    try:
        jax.distributed.initialize(coordinator, processes, index, **limits)
    except ValueError:
        if coordinator is not None:
            raise
        jax.config.update(CPU, before)
        return 1
    return jax.process_count()


def launch(processes: int, command: Sequence[str], patience: float = PATIENCE) -> int:
    """Run a command so many times on this machine, as processes of one run; return the worst end.

    When one of them fails the others have `patience` seconds to end, and are then stopped.

    >>> launch(2, [sys.executable, "-c", "import os; os.environ['SCOREASCENT_PROCESS']"])
    0
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = []
    for index in range(check_count("processes", processes, 1)):
        told = {COORDINATOR: address, PROCESSES: str(processes), INDEX: str(index)}
        running.append(subprocess.Popen(command, env=os.environ | told))
    failed: float | None = None
    try:
        while any(p.poll() is None for p in running):
            if failed is None and any(p.returncode for p in running):
                failed = time.monotonic()
            if failed is not None and time.monotonic() - failed > patience:
                break
            time.sleep(POLL)
    finally:
        for p in running:
            p.kill()
            p.wait()
    statuses = [abs(p.returncode) for p in running]
    for index, p in enumerate(running):
        if p.returncode:
            print(f"process {index} ended with {p.returncode}", file=sys.stderr)
    return max(statuses)
