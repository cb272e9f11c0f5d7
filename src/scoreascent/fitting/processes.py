"""Several processes at one fit: what they must agree on, and what happens when one has gone.

All of them do the same, each on its own devices. What a clock or a person decides, the first
process decides for all; it alone writes and shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from scoreascent._layout import Layout

NAMES = 64  # settings that are compared, at most
# what collectives and the coordination service say where another process does not answer
CODES = ("UNKNOWN:", "UNAVAILABLE:", "INTERNAL:", "DEADLINE_EXCEEDED:", "ABORTED:", "CANCELLED:")
GONE = ("gloo", "nccl", "connection", "coordination", "heartbeat", "deadline", "timed out",
        "timeout", "unavailable", "socket", "peer")  # fmt: skip


class ProcessLostError(RuntimeError):
    """Another process of the fit has ended before its time.

    >>> import scoreascent as sa
    >>> try:
    ...     raise sa.ProcessLostError("process 1 of 4 is gone")
    ... except RuntimeError as error:  # the checkpoint is there, and a new run goes on from it
    ...     print(error)
    process 1 of 4 is gone
    """


def is_first(layout: Layout | None) -> bool:
    """Tell whether this process writes and shows."""
    return layout is None or not layout.is_shared or jax.process_index() == 0


def agreed(
    layout: Layout | None, first: tuple[int, ...], anyone: tuple[bool, ...] = ()
) -> tuple[Any, ...]:
    """Return to all processes the first one's numbers, and whether a flag is set in any of them."""
    if layout is None or not layout.is_shared:
        return *first, *anyone
    every = _everyones((*first, *anyone))
    n = len(first)
    flags = np.any(every[:, n:] != 0, axis=0).tolist()
    return (*every[0, :n].tolist(), *flags)


def check_same(layout: Layout | None, settings: dict[str, Any]) -> None:
    """Refuse to run if processes were given different things, and say which."""
    if layout is None or not layout.is_shared:
        return
    words = {k: json.dumps(v, sort_keys=True, default=str) for k, v in settings.items()}
    names = sorted(words)[:NAMES]
    table = np.zeros(1 + NAMES, np.int32)
    table[0] = _short(" ".join(names))
    table[1 : 1 + len(names)] = [_short(words[name]) for name in names]
    every = _everyones(table)
    differ = {name for i, name in enumerate(names) if len(set(every[:, 1 + i].tolist())) > 1}
    if len(set(every[:, 0].tolist())) > 1:
        differ = {"scoreascent"}
    if differ:
        mine = "; ".join(f"{name}: {words.get(name, '?')[:80]}" for name in sorted(differ))
        raise ValueError(
            f"the processes of this fit were not given the same: they differ in "
            f"{', '.join(sorted(differ))} (process {jax.process_index()} has {mine}). Start all "
            "with the same version, data and settings."
        )


@contextmanager
def company(layout: Layout | None) -> Iterator[None]:
    """Name it plainly if another process has gone while this one waited for it."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # jax raises either
        if layout is None or not layout.is_shared or not tells_of_loss(str(error)):
            raise
        raise ProcessLostError(
            f"process {jax.process_index()} of {jax.process_count()}: another process of this fit "
            "has ended, or does not answer, so this one ends too. Start all of them again; a fit "
            f"with a checkpoint then goes on from there. (jax: {str(error).splitlines()[0]})"
        ) from error


def tells_of_loss(text: str) -> bool:
    """Tell whether an error of jax says that another process does not answer.

    >>> tells_of_loss("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
    True
    """
    return any(code in text for code in CODES) and any(word in text.lower() for word in GONE)


def _everyones(numbers: Any) -> np.ndarray[Any, Any]:
    """Return everyone's numbers, a row for each process."""
    mine = np.asarray(numbers, np.int32)
    return np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, len(mine))


def _short(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()[:4]
    return int.from_bytes(digest, "little", signed=True)
