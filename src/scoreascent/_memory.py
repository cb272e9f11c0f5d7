"""C's allocator, told to keep what large arrays give back, while a fit has many of them."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Of mallopt, in glibc's malloc.h; and what that library sets itself as large arrays come and go
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP, USUAL_MMAP, USUAL_TRIM = 2**30, 2**25, 2**26

_lock, _users = threading.Lock(), 0


@contextmanager
def memory_kept(wanted: bool = True) -> Iterator[None]:
    """Keep the pages of freed arrays for the next ones, and give all of them back at the end.

    glibc returns arrays of 32 MiB and more to the system at once, which gives their pages anew, one
    by one, for the next: where XLA asks for them at every density of a million rows, that took a
    sixth of a fit's time. With another allocator this does nothing.
    """
    global _users
    libc = _glibc() if wanted else None
    if libc is None:
        yield
        return
    with _lock:
        _users += 1
        libc.mallopt(M_MMAP_THRESHOLD, KEEP)
        libc.mallopt(M_TRIM_THRESHOLD, KEEP)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                libc.mallopt(M_MMAP_THRESHOLD, USUAL_MMAP)
                libc.mallopt(M_TRIM_THRESHOLD, USUAL_TRIM)
                libc.malloc_trim(0)


def _glibc() -> Any:
    """Return C's library if it is glibc, else None."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
