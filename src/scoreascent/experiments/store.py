"""A run folder: what was asked for, every finished cell, and the tables made of them."""

from __future__ import annotations

import io
import json
import time
import traceback
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scoreascent._files import write_atomically
from scoreascent._version import __version__
from scoreascent.fitting import checkpoint
from scoreascent.fitting.provenance import versions

MANIFEST = "manifest.json"
TABLE = "table"  # the frame that every cell has; the others are extra
SECONDS = "seconds"  # the one column that another run of the same command does not repeat
HOUR = 3600.0
CLOCK = ["dataset", "method", "n", "first_split", "splits", "step", SECONDS]

Frames = Mapping[str, pd.DataFrame]


class RunFolderError(ValueError):
    """A folder that holds something else than the run that was asked for. It is left as it is."""


class RunFolder:
    """Cells of an experiment on disk, each written whole or not at all.

    A cell is one or more small tables; one that is there is not computed again. The manifest holds
    the experiment's name, its settings, the seeds among them, and the versions that made it.
    Several processes may fill one folder: every file belongs to one cell.
    """

    def __init__(self, path: Path, experiment: str, settings: dict[str, Any]) -> None:
        self.path = path = path.absolute()  # a worker may have another working directory
        wanted = {"experiment": experiment, "settings": json.loads(json.dumps(settings))}
        manifest = path / MANIFEST
        if manifest.exists():
            self.manifest = read_manifest(path)
            _check_same(path, self.manifest, wanted)
        elif path.exists() and any(not _is_left_over(p) for p in path.iterdir()):
            raise RunFolderError(
                f"folder {str(path)!r} is not empty and has no {MANIFEST}; name another folder"
            )
        else:
            path.mkdir(parents=True, exist_ok=True)
            self.manifest = {**wanted, "versions": versions()}
            _write(manifest, json.dumps(self.manifest, indent=1).encode())
        self._cells.mkdir(exist_ok=True)

    @property
    def _cells(self) -> Path:
        return self.path / "cells"

    # -- one cell ------------------------------------------------------------------------------

    def has(self, cell: str) -> bool:
        """Whether the cell is finished."""
        return self._file(cell).exists()

    def save_part(self, cell: str, tree: Any, share: float, run: dict[str, Any]) -> None:
        """Keep an unfinished cell, a `share` of it done."""
        checkpoint.save(self._part(cell), (tree, np.float64(share)), run)

    def load_part(self, cell: str, template: Any, run: dict[str, Any]) -> Any:
        """What `save_part` kept; the template itself if nothing was."""
        if not self._part(cell).exists():
            return template
        return checkpoint.load(self._part(cell), (template, np.float64(0)), run)[0]

    def share(self, cell: str) -> float:
        """How much of a cell is done and saved."""
        if self.has(cell):
            return 1.0
        try:
            with np.load(self._part(cell)) as file:
                return float(file["[1]"])
        except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
            return 0.0  # a file that cannot be read is for `load_part` to complain about

    def write(self, cell: str, frames: Frames) -> None:
        """Write a finished cell; its main table comes last, and with it the cell is there."""
        for name in sorted(frames, key=lambda name: name == TABLE):
            _write(self._file(cell, name), _parquet(frames[name]))
        self._part(cell).unlink(missing_ok=True)
        self._error(cell).unlink(missing_ok=True)

    def fail(self, cell: str, error: BaseException) -> None:
        """Record why a cell could not be computed; it is tried again by the next command."""
        says = {
            "cell": cell,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        }
        _write(self._error(cell), json.dumps(says, indent=1).encode())

    def failures(self) -> list[dict[str, str]]:
        """The cells that failed when they were last tried."""
        return [json.loads(p.read_text()) for p in sorted(self._cells.glob("*.error.json"))]

    def _file(self, cell: str, frame: str = TABLE) -> Path:
        return self._cells / (f"{cell}.parquet" if frame == TABLE else f"{cell}.{frame}.parquet")

    def _part(self, cell: str) -> Path:
        return self._cells / f"{cell}.part"

    def _error(self, cell: str) -> Path:
        return self._cells / f"{cell}.error.json"

    # -- all of them ---------------------------------------------------------------------------

    def table(self, frame: str = TABLE) -> pd.DataFrame | None:
        """All finished cells, one under the other, in the order of their names."""
        names = [p.stem for p in sorted(self._cells.glob("[!.]*.parquet")) if "." not in p.stem]
        if not names:
            raise RunFolderError(f"folder {str(self.path)!r} holds no finished cell")
        files = [f for name in names if (f := self._file(name, frame)).exists()]
        return pd.concat([_read(f) for f in files], ignore_index=True) if files else None

    def finish(self) -> None:
        """Write the tables of the cells that are there.

        `table.parquet` is the same, bit for bit, however the run went; what the clock said goes
        to `times.parquet`; 32 bits are more than any of the numbers are good for.
        """
        table = self.table()
        assert table is not None
        if SECONDS in table:
            times = table[[c for c in CLOCK if c in table]].drop_duplicates()
            _write(self.path / "times.parquet", _parquet(_narrow(times)))
            table = table.drop(columns=[SECONDS, "first_split", "splits"])
        if (weights := self.table("weights")) is not None:
            _write(self.path / "weights.parquet", _parquet(_narrow(weights)))
        _write(self.path / f"{TABLE}.parquet", _parquet(_narrow(table)))
        for path in (*self.path.iterdir(), *self._cells.iterdir()):
            if _is_left_over(path) and time.time() - path.stat().st_mtime > HOUR:
                path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        manifest["experiment"], manifest["settings"], manifest["versions"]["scoreascent"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RunFolderError(f"{str(path)!r} is no manifest of scoreascent: {error}") from error
    return manifest


def _is_left_over(path: Path) -> bool:
    """Whether a file is what a writer that was killed leaves (or one that is at work uses)."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _narrow(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(dict.fromkeys(table.select_dtypes("float64"), np.float32))


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, index=False)
    except ImportError:
        raise ModuleNotFoundError(
            "tables need pyarrow: pip install 'scoreascent[experiments]'", name="pyarrow"
        ) from None
    return buffer.getvalue()


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{str(path)!r} is damaged ({error}); remove it and repeat the command, which computes "
            "this cell again"
        ) from error


def _check_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    where = f"folder {str(path)!r} holds"
    other = "; name another folder with --out"
    if found["experiment"] != wanted["experiment"]:
        raise RunFolderError(
            f"{where} {found['experiment']!r}, not {wanted['experiment']!r}{other}"
        )
    if found["settings"] != wanted["settings"]:
        keys = found["settings"].keys() | wanted["settings"].keys()
        differ = [
            f"{k}: there {found['settings'].get(k)}, now {wanted['settings'].get(k)}"
            for k in sorted(keys)
            if found["settings"].get(k) != wanted["settings"].get(k)
        ]
        raise RunFolderError(f"{where} a run with other settings ({'; '.join(differ)}){other}")
    if (version := found["versions"]["scoreascent"]) != __version__:
        raise RunFolderError(
            f"{where} a run of scoreascent {version}, and this is {__version__}{other}"
        )
