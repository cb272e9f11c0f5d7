"""A run folder: what was asked for, every finished cell, and the tables made of them."""

from __future__ import annotations

import io
import json
import time
import traceback
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scoreascent._extras import require
from scoreascent._files import write_atomically
from scoreascent._version import __version__
from scoreascent.fitting import checkpoint
from scoreascent.fitting.provenance import versions

MANIFEST = "manifest.json"
TABLE = "table"  # the frame that every cell has; the others are extra
TIMES = "times"
ERROR_FILE = ".error.json"
SECONDS_UNTIL_STALE = 3600.0

Frames = Mapping[str, pd.DataFrame]


class RunFolderError(ValueError):
    """A folder that holds something else than the run that was asked for. It is left as it is."""


@dataclass(frozen=True)
class Layout:
    """Which files an experiment's finished folder has beside `table.parquet`.

    `clock` names the columns of `times.parquet`, as far as the cells have them, and `only_clock`
    those of them that the main table then does without: what another run of the same command does
    not repeat. There is no such file if `clock` is empty. `extra_frames` are the frames besides
    the main one that cells may have.
    """

    clock: tuple[str, ...] = ()
    only_clock: tuple[str, ...] = ()
    extra_frames: tuple[str, ...] = ()


ONLY_A_TABLE = Layout()


class StoredRun:
    """A run folder as it is read: nothing is made, changed or computed."""

    # what a file is refused with, after its name
    no_manifest = (
        "is no manifest of scoreascent ({kind}: {error}); leave this folder out, or run the "
        "experiment again"
    )
    no_parquet = (
        "cannot be read as Parquet ({error}); delete it and repeat `scoreascent reproduce`, which "
        "makes only what is missing"
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def _cells(self) -> Path:
        return self.path / "cells"

    def read_manifest(self) -> dict[str, Any]:
        """The experiment's name, its settings and the versions that made the run."""
        path = self.path / MANIFEST
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            return {
                "experiment": str(manifest["experiment"]),
                "settings": dict(manifest["settings"]),
                "versions": dict(manifest["versions"]),
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            says = self.no_manifest.format(kind=type(error).__name__, error=error)
            raise RunFolderError(f"{str(path)!r} {says}") from error

    # -- finished tables -----------------------------------------------------------------------

    def has_table(self, name: str = TABLE) -> bool:
        """Whether the tables of the finished cells were written, and this one is among them."""
        return self._table_file(name).exists()

    def read_table(
        self, name: str = TABLE, columns: Iterable[str] = (), hint: str = "run the experiment first"
    ) -> pd.DataFrame:
        """A table of the finished folder, which must have these columns."""
        path = self._table_file(name)
        if not path.exists():
            raise RunFolderError(f"{str(path)!r} does not exist; {hint}")
        return self._read(path, columns)

    def _table_file(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    # -- cells ---------------------------------------------------------------------------------

    def finished(self) -> list[str]:
        """The names of the finished cells, in order."""
        found = sorted(self._cells.glob("[!.]*.parquet"))
        return [path.stem for path in found if "." not in path.stem]

    def has(self, cell: str) -> bool:
        """Whether the cell is finished."""
        return self._file(cell).exists()

    def read_cell(
        self, cell: str, frame: str = TABLE, columns: Iterable[str] = ()
    ) -> pd.DataFrame | None:
        """A frame of a finished cell, which must have these columns; None if it has no such one."""
        path = self._file(cell, frame)
        return self._read(path, columns) if path.exists() else None

    def failures(self) -> list[dict[str, str]]:
        """What each cell left that failed when it was last tried, and is not there after all."""
        found = []
        for path in sorted(self._cells.glob(f"[!.]*{ERROR_FILE}")):
            cell = path.name.removesuffix(ERROR_FILE)
            if self.has(cell):
                continue
            try:
                left = dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                left = {"error": f"{path.name} cannot be read: {error}"}
            found.append({"cell": cell} | {key: str(value) for key, value in left.items()})
        return found

    def _file(self, cell: str, frame: str = TABLE) -> Path:
        return self._cells / (f"{cell}.parquet" if frame == TABLE else f"{cell}.{frame}.parquet")

    def _read(self, path: Path, columns: Iterable[str]) -> pd.DataFrame:
        require("pyarrow", "experiments", "reading the tables")
        try:
            table: pd.DataFrame = pd.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's own errors are among these
            raise RunFolderError(f"{str(path)!r} {self.no_parquet.format(error=error)}") from error
        if missing := [c for c in columns if c not in table.columns]:
            raise RunFolderError(
                f"{str(path)!r} has no column {', '.join(map(repr, missing))}, only "
                f"{', '.join(map(repr, table.columns))}; delete it and repeat "
                "`scoreascent reproduce`"
            )
        return table


class RunFolder(StoredRun):
    """Cells of an experiment on disk, each written whole or not at all.

    A cell is one or more small tables; one that is there is not computed again. The manifest holds
    the experiment's name, its settings, the seeds among them, and the versions that made it.
    Several processes may fill one folder: every file belongs to one cell.
    """

    no_manifest = "is no manifest of scoreascent: {error}"
    no_parquet = (
        "is damaged ({error}); remove it and repeat the command, which computes this cell again"
    )

    def __init__(self, path: Path, experiment: str, settings: dict[str, Any]) -> None:
        super().__init__(path := path.absolute())  # a worker may have another working directory
        wanted = {"experiment": experiment, "settings": json.loads(json.dumps(settings))}
        manifest = path / MANIFEST
        if manifest.exists():
            self.manifest = self.read_manifest()
            _check_same(path, self.manifest, wanted)
            if self._table_file(TABLE).exists() and not self._cells.is_dir():
                raise RunFolderError(
                    f"folder {str(path)!r} has a table but not the cells it was made of, so a run "
                    "into it would overwrite the table by new cells alone; name another folder"
                )
        elif path.exists() and any(not _is_left_over(p) for p in path.iterdir()):
            raise RunFolderError(
                f"folder {str(path)!r} is not empty and has no {MANIFEST}; name another folder"
            )
        else:
            path.mkdir(parents=True, exist_ok=True)
            self.manifest = {**wanted, "versions": versions()}
            _write(manifest, json.dumps(self.manifest, indent=1).encode())
        self._cells.mkdir(exist_ok=True)

    # -- one cell ------------------------------------------------------------------------------

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
        record = {
            "cell": cell,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        }
        _write(self._error(cell), json.dumps(record, indent=1).encode())

    def _part(self, cell: str) -> Path:
        return self._cells / f"{cell}.part"

    def _error(self, cell: str) -> Path:
        return self._cells / f"{cell}{ERROR_FILE}"

    # -- all of them ---------------------------------------------------------------------------

    def table(self, frame: str = TABLE) -> pd.DataFrame | None:
        """All finished cells, one under the other, in the order of their names."""
        names = self.finished()
        if not names:
            raise RunFolderError(f"folder {str(self.path)!r} holds no finished cell")
        found = [part for name in names if (part := self.read_cell(name, frame)) is not None]
        return pd.concat(found, ignore_index=True) if found else None

    def finish(self, layout: Layout = ONLY_A_TABLE) -> None:
        """Write the tables of the cells that are there.

        `table.parquet` is the same, bit for bit, however the run went; what the clock said goes
        to `times.parquet`; 32 bits are more than any of the numbers are good for.
        """
        table = self.table()
        assert table is not None
        if clock := [column for column in layout.clock if column in table]:
            self._write_table(TIMES, table[clock].drop_duplicates())
            table = table.drop(columns=list(layout.only_clock))
        for name in layout.extra_frames:
            if (extra := self.table(name)) is not None:
                self._write_table(name, extra)
        self._write_table(TABLE, table)
        for path in (*self.path.iterdir(), *self._cells.iterdir()):
            if _is_left_over(path) and time.time() - path.stat().st_mtime > SECONDS_UNTIL_STALE:
                path.unlink(missing_ok=True)

    def _write_table(self, name: str, table: pd.DataFrame) -> None:
        narrow = table.astype(dict.fromkeys(table.select_dtypes("float64"), np.float32))
        _write(self._table_file(name), _parquet(narrow))


def _is_left_over(path: Path) -> bool:
    """Whether a file is what a writer that was killed leaves (or one that is at work uses)."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _parquet(table: pd.DataFrame) -> bytes:
    require("pyarrow", "experiments", "writing the tables")
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


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
    if (version := found["versions"].get("scoreascent")) != __version__:
        raise RunFolderError(
            f"{where} a run of scoreascent {version}, and this is {__version__}{other}"
        )
