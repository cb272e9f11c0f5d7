"""What of a fit's arguments changes when it is spread over devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scoreascent.fitting.arguments import Arguments
from scoreascent.fitting.devices import put
from scoreascent.fitting.processes import check_same, is_first
from scoreascent.fitting.provenance import digest, printed, versions


def spread(given: Arguments) -> Arguments:
    """Return the arguments of a fit on many devices, the same in every process.

    Data whose rows are spread lie on the devices from here on; otherwise what comes before and
    after the loop is done by each process for itself, and only the loop has them everywhere.
    """
    layout = given.layout
    if layout is None:
        return given
    check_same(layout, _settings(given))
    target = put(given.target, layout) if layout.rows > 1 else given.target
    progress = given.progress and is_first(layout)
    return replace(given, target=target, progress=progress)


def _settings(given: Arguments) -> dict[str, Any]:
    """Return what all processes must have alike."""
    there = given.checkpoint is not None and given.checkpoint.exists()
    settings: dict[str, Any] = {
        "target": printed(given.target),
        "data": digest(given.target),
        "method": repr(given.method),
        "update": repr(given.update),
        "q0": digest(given.q),
        "state": digest(given.state),
        "stop": repr(given.stop),
        "chains and batch": [given.chains, given.batch],
        "steps": given.steps,
        "key": digest(given.key),
        "average and tolerance": [given.average, given.tolerance],
        "family": given.family,
        "callback_every": given.callback_every,
        "whether there is a checkpoint": there,
        "mesh": repr(given.layout),
    }
    device = {"device"}  # may differ, as long as all can compute together
    return settings | {k: v for k, v in versions().items() if k not in device}
