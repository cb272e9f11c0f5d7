"""A run folder: what was asked for, every finished cell, and the table made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scoreascent._files import write_atomically
from scoreascent._version import __version__
from scoreascent.provenance import versions

MANIFEST = "manifest.json"


class RunFolderError(ValueError):
    """A folder that holds something else than the run that was asked for. It is left as it is."""


class RunFolder:
    """Cells of an experiment on disk, each written whole or not at all.

    A cell is a small table; one that is there is not computed again. The manifest holds the
    experiment's name, its settings, the seeds among them, and the versions that made it.
    """

    def __init__(self, path: Path, experiment: str, settings: dict[str, Any]) -> None:
        self.path = path
        self._cells = path / "cells"
        wanted = {"experiment": experiment, "settings": json.loads(json.dumps(settings))}
        manifest = path / MANIFEST
        if manifest.exists():
            self.manifest = _read_manifest(manifest)
            _check_same(path, self.manifest, wanted)
        elif path.exists() and any(path.iterdir()):
            raise RunFolderError(
                f"folder {str(path)!r} is not empty and has no {MANIFEST}; name another folder"
            )
        else:
            self._cells.mkdir(parents=True, exist_ok=True)
            self.manifest = {**wanted, "versions": versions()}
            text = json.dumps(self.manifest, indent=1)
            write_atomically(manifest, lambda file: file.write(text.encode()))
        self._cells.mkdir(exist_ok=True)

    def compute(self, cell: str, make: Callable[[], pd.DataFrame]) -> bool:
        """Compute and write a cell unless it is there; whether it had to be computed."""
        path = self._cells / f"{cell}.csv"
        if path.exists():
            return False
        text = make().to_csv(index=False)
        write_atomically(path, lambda file: file.write(text.encode()))
        return True

    def table(self) -> pd.DataFrame:
        """All finished cells, one under the other."""
        paths = sorted(self._cells.glob("*.csv"))
        if not paths:
            raise RunFolderError(f"folder {str(self.path)!r} holds no finished cell")
        table = pd.concat([pd.read_csv(p) for p in paths], ignore_index=True)
        # the numbers were computed in 32 bits, and text read back as 64 would not compress
        return table.astype(dict.fromkeys(table.select_dtypes("float64"), np.float32))

    def finish(self) -> Path:
        """Write the whole table as `table.parquet`."""
        path = self.path / "table.parquet"
        content = _parquet(self.table())
        write_atomically(path, lambda file: file.write(content))
        return path


def _parquet(table: pd.DataFrame) -> bytes:
    try:
        content: bytes = table.to_parquet(None, index=False)
    except ImportError:
        raise ModuleNotFoundError(
            "the cells are finished, but the Parquet table needs pyarrow: "
            "pip install 'scoreascent[experiments]' and repeat the command"
        ) from None
    return content


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        manifest["experiment"], manifest["settings"], manifest["versions"]["scoreascent"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RunFolderError(f"{str(path)!r} is no manifest of scoreascent: {error}") from error
    return manifest


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
