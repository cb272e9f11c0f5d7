"""On which devices a fit runs: `mesh` and `devices` of `fit`, checked, and what is put where."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from scoreascent._layout import CHAINS, ROWS, Layout
from scoreascent.methods import Method
from scoreascent.target import MANY_DATA, Target


def as_layout(
    mesh: Any, devices: Any, target: Target, method: Method | None, chains: Any, count: int | None
) -> Layout | None:
    """Return how the fit lies on the devices that were asked for; None if none were."""
    if mesh is None and devices is None:
        return None
    if mesh is not None and devices is not None:
        raise ValueError("give mesh or devices, not both: each says where the fit runs")
    if count is not None:
        raise ValueError(
            "mesh spreads one fit over devices, but there are several: leave out mesh and devices, "
            "or fit them one by one"
        )
    layout = Layout(_own_mesh(mesh) if devices is None else _all_devices(devices, target))
    everyone = tuple(range(jax.process_count()))
    if layout.processes not in (everyone, (jax.process_index(),)):
        raise ValueError(
            f"mesh has devices of processes {layout.processes} of {len(everyone)}: give it those "
            "of all processes (jax.devices()) or of this one alone (jax.local_devices())"
        )
    if layout.rows > 1:
        _check_rows(target, layout)
    n = chains if method is None else method.chains
    if isinstance(n, int) and n > 1 and not layout.divides(n):
        name = "chains" if method is None else "method"
        raise ValueError(
            f"{name}: {n} chains do not divide over the {layout.chains} devices of the mesh's axis "
            f"'chains'; take {layout.rounded(n)}"
        )
    return layout


def put(target: Target, layout: Layout | None) -> Target:
    """Return the target with its data on all devices, whole or, where rows are spread, in parts."""
    if layout is None:
        return target
    flags = (target.row_leaves() if layout.rows > 1 else None) or ()
    whole = jax.tree.map(lambda x: layout.sharding(), target)
    leaves, structure = jax.tree.flatten(whole)  # type: tuple[list[Any], Any]
    # the data are the first leaves of a target
    for i, has_rows in enumerate(flags):
        leaves[i] = layout.sharding(ROWS) if has_rows else leaves[i]
    return layout.place(target, structure.unflatten(leaves))


def _own_mesh(mesh: Any) -> Mesh:
    """Return the mesh, its axes such that the compiler spreads what is in between."""
    if not isinstance(mesh, Mesh):
        raise ValueError(f"mesh must be a jax.sharding.Mesh, got {mesh!r}")
    if not set(mesh.axis_names) <= {CHAINS, ROWS}:
        raise ValueError(
            f"mesh must have axes 'chains' and 'rows', or one of them, got {mesh.axis_names}: "
            "jax.make_mesh((4, 2), ('chains', 'rows'))"
        )
    return Mesh(mesh.devices, mesh.axis_names)


def _all_devices(devices: Any, target: Target) -> Mesh:
    """Return a mesh of all devices: rows over them where data are many, else chains."""
    if not (isinstance(devices, str) and devices == "all"):
        raise ValueError(f"devices must be 'all', or leave it out and give mesh, got {devices!r}")
    every = np.array(jax.devices())
    many = target.data_size >= MANY_DATA and _rows(target) % len(every) == 0 < _rows(target)
    return Mesh(every, (ROWS if many else CHAINS,))


def _rows(target: Target) -> int:
    """Return how many rows the data have, 0 if that is not known."""
    flags = target.row_leaves() or ()
    lengths = [x.shape[0] for x, flag in zip(jax.tree.leaves(target.data), flags) if flag]
    return lengths[0] if lengths else 0


def _check_rows(target: Target, layout: Layout) -> None:
    rows = _rows(target)
    if not rows:
        raise ValueError(
            "mesh has an axis 'rows', but which of the target's data have rows is not known: say "
            "so by Target(…, data=…, rows=True), or give a mesh of 'chains' alone"
        )
    if rows % layout.rows:
        less = rows - rows % layout.rows
        raise ValueError(
            f"data: {rows} rows do not divide over the {layout.rows} devices of the mesh's axis "
            f"'rows'; leave out {rows - less} of them, add rows of weight 0, or take another mesh"
        )
