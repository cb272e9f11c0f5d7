"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

ORPHAN_AGE = 3600.0  # seconds


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in its place.

    A reader, or a crash at any moment, finds the old file or the new one.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    _clear_orphans(path)
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _clear_orphans(path: Path) -> None:
    """Remove what writers of this file that were killed have left, once it is an hour old."""
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):  # another process may be faster
            if time.time() - orphan.stat().st_mtime > ORPHAN_AGE:
                orphan.unlink()
