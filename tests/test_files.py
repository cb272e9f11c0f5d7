"""Files written whole or not at all, and what killed writers leave."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scoreascent._files import ORPHAN_AGE, write_atomically


def test_what_killed_writers_left_goes_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "run[1].ckpt"
    old, young, other = (
        tmp_path / name
        for name in (".run[1].ckpt.77.part", ".run[1].ckpt.78.part", ".else.ckpt.77.part")
    )
    for part in (old, young, other):
        part.write_bytes(b"half")
    then = time.time() - ORPHAN_AGE - 60
    for part in (old, other):
        os.utime(part, (then, then))
    write_atomically(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, young, other])


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file: object) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
