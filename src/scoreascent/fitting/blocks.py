"""A folder of many fits: a manifest that says of what, and two files for every block of them.

The numbers of a block (verdicts, summaries, failures) are in one file, which is written last and
with which the block is there; all else that its results need is in the other. Fits that were left
over by the batch have files of their own, as `Result.save` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from scoreascent import _npz
from scoreascent._files import write_atomically
from scoreascent._version import __version__
from scoreascent.fitting.batch import Batch
from scoreascent.fitting.checkpoint import CheckpointError, is_same
from scoreascent.fitting.loading import load
from scoreascent.fitting.many import Part
from scoreascent.fitting.provenance import versions
from scoreascent.fitting.records import Packer, Unknown, Unpacker
from scoreascent.fitting.result import Result
from scoreascent.target import Target

FORMAT = "scoreascent fits 1"
MANIFEST = "manifest.json"
JUDGED = "diagnosis"  # the field of a batch that is kept with the numbers


@dataclass(frozen=True)
class Folder:
    """The folder, and the posteriors that its fits are of."""

    path: Path

    def claim(self, problem: dict[str, Any]) -> None:
        """Begin to fill the folder, or go on if it holds fits of the same posteriors."""
        file = self.path / MANIFEST
        wanted = json.loads(json.dumps(problem))
        if file.exists():
            self._check(file, wanted)
            return
        if self.path.exists() and any(not p.name.endswith(".part") for p in self.path.iterdir()):
            raise CheckpointError(
                f"out: the folder {str(self.path)!r} is not empty and holds no fits; name another"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "problem": wanted, "versions": versions()}
        text = json.dumps(content, indent=1).encode()
        write_atomically(file, lambda out: out.write(text))

    def _check(self, file: Path, wanted: dict[str, Any]) -> None:
        where = f"out: the folder {str(self.path)!r}"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(content["format"])
            found = dict(content["problem"])
            version = content["versions"]["scoreascent"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{where} has a {MANIFEST} that is not of fits ({error}); name another folder"
            ) from error
        if version != __version__:
            raise CheckpointError(
                f"{where} holds fits of scoreascent {version}, and this is {__version__}; name "
                "another folder"
            )
        width = str(wanted["float"])
        differ = [k for k in wanted if not is_same(found.get(k), wanted[k], width)]
        if differ:
            says = "; ".join(f"{k}: there {found.get(k)!r}, now {wanted[k]!r}" for k in differ)
            raise CheckpointError(
                f"{where} holds fits of another problem ({says}); name another folder"
            )

    # -- one block -----------------------------------------------------------------------------

    def _name(self, numbers: range, kind: str) -> Path:
        return self.path / f"{numbers.start:09d}-{numbers.stop:09d}.{kind}.npz"

    def _own(self, number: int) -> Path:
        return self.path / f"fit-{number:09d}.npz"

    def write(self, part: Part, first: str) -> None:
        """Write a finished block; `first` tells the data of its first fit."""
        for i, result in part.others.items():
            result.save(self._own(part.numbers[i]))
        packer = Packer()
        judged: Any = None
        if part.batch is not None:
            rest = {f.name: getattr(part.batch, f.name) for f in fields(Batch) if f.name != JUDGED}
            states = {"batch": packer.pack(rest, "batch")}
            _npz.write(self._name(part.numbers, "states"), packer.arrays, states)
            judged = part.batch.diagnosis
        packer = Packer()
        header = {
            "format": FORMAT,
            "numbers": [part.numbers.start, part.numbers.stop],
            "first": first,
            "judged": packer.pack(judged, "judged"),
            "others": packer.pack({i: r.diagnosis for i, r in part.others.items()}, "others"),
            "failures": packer.pack(part.failures, "failures"),
            "seconds": part.seconds,
        }
        _npz.write(self._name(part.numbers, "fits"), packer.arrays, header)

    def read(self, numbers: range) -> dict[str, Any] | None:
        """Return the numbers of a block; None if it is not there, or not whole."""
        try:
            arrays, header = _npz.read(self._name(numbers, "fits"))
            if header["format"] != FORMAT or header["numbers"] != [numbers.start, numbers.stop]:
                return None
            unpacker = Unpacker(arrays)
            told = {k: unpacker.unpack(header[k]) for k in ("judged", "others", "failures")}
        except (OSError, _npz.Damaged, LookupError, TypeError, Unknown):
            return None
        return {**told, "first": header["first"], "seconds": header["seconds"]}

    def batch(self, numbers: range, judged: Any) -> Batch:
        """Return what the batch of a block left behind."""
        file = self._name(numbers, "states")
        try:
            arrays, header = _npz.read(file)
            return Batch(**Unpacker(arrays).unpack(header["batch"]), diagnosis=judged)
        except (OSError, _npz.Damaged, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{str(file)!r} cannot be read ({error}); remove it and the file of the same name "
                "with fits in place of states, and call fit_many again"
            ) from error

    def own(self, number: int, target: Target) -> Result:
        """Return a fit that has a file of its own."""
        return load(self._own(number), target)


@dataclass(eq=False)
class Stored:
    """A block in a folder, as a part of `Fits`: read when it is asked for."""

    folder: Folder
    numbers: range
    target: Callable[[int], Target]
    made: Callable[..., Part]
    _told: dict[str, Any] | None = field(default=None, repr=False)

    def _read(self) -> dict[str, Any]:
        if self._told is None:
            told = self.folder.read(self.numbers)
            if told is None:
                every = dict.fromkeys(range(len(self.numbers)), "not fitted yet")
                told = {"judged": None, "others": {}, "failures": every}
            self._told = told
        return self._told

    @property
    def failures(self) -> dict[int, str]:
        """Why there is no result, of the fits that failed, counted within the block."""
        return dict(self._read()["failures"])

    def diagnosis(self, i: int) -> Any:
        """Return the diagnosis of a fit, counted within the block; None if it failed."""
        told = self._read()
        if i in told["others"]:
            return told["others"][i]
        return None if told["judged"] is None or i in told["failures"] else told["judged"][i]

    def result(self, i: int) -> Result:
        """Return a fit, counted within the block, as a result of its own."""
        target = self.target(self.numbers[i])
        if i in self._read()["others"]:
            return self.folder.own(self.numbers[i], target)
        batch = self.folder.batch(self.numbers, self._read()["judged"])
        part = self.made(self.numbers, {i: target}, batch)
        return part.result(i)
