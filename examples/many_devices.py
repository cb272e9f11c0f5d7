"""A logistic regression over all devices there are, and the same with its rows left on the disk.

By itself it takes the devices of one process. Several processes, here or on a cluster, take those
of all of them, and do the same fit:

    python examples/many_devices.py
    scoreascent launch --processes 2 examples/many_devices.py
    srun --ntasks=2 python examples/many_devices.py
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from reference import compare

import scoreascent as sa

DIM = 4


def log_density(beta, data):
    """A sum over rows, and a prior: what can be spread over rows, or read in pieces."""
    logits = data["x"] @ beta
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(beta**2)


def table(rows):
    """Simulated rows, the same in every process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, DIM)).astype(np.float32)
    y = (x.sum(1) + 2 * rng.normal(size=rows) > 0).astype(np.float32)
    return {"x": x, "y": y}


def main(rows=4096):
    """Fit with rows over the devices, then with rows that are read in pieces, and compare."""
    sa.distributed.start()  # alone, if nothing tells of other processes
    first = jax.process_index() == 0
    data = table(rows)

    # `rows=True`: all of these data have one row an observation. The mesh has all devices along
    # the axis over which rows are spread; along "chains" chains would be.
    target = sa.Target(log_density, dim=DIM, data=data, rows=True)
    mesh = jax.make_mesh((len(jax.devices()),), ("rows",))
    spread = sa.fit(target, mesh=mesh, key=0)
    if first:
        print(spread)
        print("spread over", spread.provenance["mesh"])

    # In a file, read a quarter at a time within each density. The chains of a mesh share the
    # reading; here there is no mesh, so every process does this by itself.
    with tempfile.TemporaryFile() as file:
        on_disk = np.memmap(file, np.float32, "w+", shape=data["x"].shape)
        on_disk[:] = data["x"]
        left = data | {"x": on_disk}
        pieces = sa.Target(log_density, dim=DIM, data=left, rows=True, piece=rows // 4)
        read = sa.fit(pieces, key=0, progress=first)
    if first:
        compare(["z"], over_devices=spread.sample(1, 4000), from_the_disk=read.sample(1, 4000))
    return spread, read


if __name__ == "__main__":
    main()
