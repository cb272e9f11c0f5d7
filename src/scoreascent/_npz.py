"""Arrays and a JSON header in one npz file. No pickle, so no code; written whole or not at all."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scoreascent._files import write_atomically

HEADER = "header"
# whatever a damaged archive makes zipfile, zlib, numpy or json say
DAMAGE = (
    OSError, ValueError, LookupError, EOFError, TypeError, NotImplementedError, RuntimeError,
    MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Arrays = dict[str, np.ndarray[Any, Any]]


class Damaged(Exception):
    """A file that is no npz with a header, or no longer."""


def write(path: Path, arrays: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Write atomically: a reader finds the old file or the new one, never a part of either."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    everything: Any = {**arrays, HEADER: text}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **everything))


def read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the header, or raise `Damaged`."""
    try:
        # opened here, for numpy leaves a damaged file open
        with path.open("rb") as opened:
            # numpy stops where an array says that it ends, and then never sees its check sum
            if bad := zipfile.ZipFile(opened).testzip():
                raise zipfile.BadZipFile(f"the check sum of {bad!r} is another")
            opened.seek(0)
            file = np.load(opened, allow_pickle=False)
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop(HEADER).tobytes().decode())
        if not isinstance(header, dict):
            raise TypeError(f"its header is a {type(header).__name__}")
        return arrays, header
    except (PermissionError, FileNotFoundError):
        raise
    except DAMAGE as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
