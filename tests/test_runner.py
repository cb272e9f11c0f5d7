"""Grids that are killed, interrupted, short of time or disk, or spread over processes and machines.

These are the runner's own tests, on cells that cost nothing; those of the tables' cells and of the
command line are in `test_cells.py`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scoreascent.experiments import runner
from scoreascent.experiments.runner import Cell, Execution
from scoreascent.experiments.store import RunFolder
from tests.experiments_helpers import (
    CELLS,
    QUIET,
    WITH_WEIGHTS,
    files,
    frames,
    full_from,
    reproduce,
)

# -- cells that cost nothing -----------------------------------------------------------------------


def note(settings: Any, cell: Cell) -> None:
    """Write down that a cell was begun; a line is appended whole, whichever process writes it."""
    with Path(settings["log"]).open("a") as file:
        file.write(f"{cell.name} {os.getpid()}\n")


def begun(settings: Any) -> list[str]:
    log = Path(settings["log"])
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def plain(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    note(settings, cell)
    return frames(cell)


def fragile(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    """c2 fails while the file `bad` is there."""
    note(settings, cell)
    if cell.name == "c2" and Path(settings["bad"]).exists():
        raise FloatingPointError("c2 went wrong")
    return frames(cell)


def mortal(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    """The first worker that gets c2 is killed, as by a system that is out of memory."""
    note(settings, cell)
    flag = Path(settings["flag"])
    if cell.name == "c2" and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return frames(cell)


def deadly(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    note(settings, cell)
    os.kill(os.getpid(), signal.SIGKILL)


def patient(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    note(settings, cell)
    time.sleep(settings["sleep"])
    return frames(cell)


def punctual(cell: Cell, settings: Any, store: RunFolder, deadline: float) -> Any:
    """Works until the deadline, and is done only if there is none."""
    note(settings, cell)
    while time.time() < deadline:
        if deadline == math.inf:
            return frames(cell)
        time.sleep(0.01)
    return None


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {name: str(tmp_path / name) for name in ("log", "bad", "flag")}


@pytest.fixture
def store(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run", "fake", {})


def check_whole(store: RunFolder, cells: list[Cell] = CELLS) -> None:
    """Every cell with both its frames, as computed, and nothing else."""
    names = {f"{c.name}{frame}.parquet" for c in cells for frame in ("", ".weights")}
    assert set(files(store)) == names
    wanted = pd.concat([frames(c)["table"] for c in cells], ignore_index=True)
    pd.testing.assert_frame_equal(store.table(), wanted)
    assert store.failures() == []


def test_finished_cells_are_not_computed_again(store: RunFolder, settings: Any) -> None:
    some = [CELLS[1], CELLS[3]]
    assert runner.run(plain, store, some, settings, QUIET) == Counter(done=2)
    before = files(store)
    assert runner.run(plain, store, CELLS, settings, QUIET) == Counter(done=2)
    assert sorted(begun(settings)) == ["c0", "c1", "c2", "c3"]
    assert before.items() <= files(store).items()
    assert runner.run(plain, store, CELLS, settings, QUIET) == Counter()
    check_whole(store)


def test_the_costliest_cell_comes_first(store: RunFolder, settings: Any) -> None:
    cells = [replace(c, cost=cost) for c, cost in zip(CELLS, (2.0, 8.0, 1.0, 4.0))]
    runner.run(plain, store, cells, settings, QUIET)
    assert begun(settings) == ["c1", "c3", "c0", "c2"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_is_recorded_and_the_rest_goes_on(
    jobs: int, store: RunFolder, settings: Any
) -> None:
    Path(settings["bad"]).touch()
    execution = Execution(jobs, progress=False)
    assert runner.run(fragile, store, CELLS, settings, execution) == Counter(done=3, failed=1)
    record = json.loads((store.path / "cells" / "c2.error.json").read_text())
    assert record["cell"] == "c2"
    assert record["error"] == "FloatingPointError: c2 went wrong"
    assert "in fragile" in record["traceback"]
    assert store.failures() == [record]
    assert not store.has("c2")
    # it fails again, and the record is of the last time; then it succeeds, and the record goes
    assert runner.run(fragile, store, CELLS, settings, execution) == Counter(failed=1)
    assert len(store.failures()) == 1
    Path(settings["bad"]).unlink()
    assert runner.run(fragile, store, CELLS, settings, execution) == Counter(done=1)
    assert begun(settings).count("c2") == 3
    check_whole(store)


def test_a_cell_of_another_worker_is_not_computed(store: RunFolder, settings: Any) -> None:
    """Two commands may fill a folder: what the other has done meanwhile counts as done."""
    store.write("c0", frames(CELLS[0]))
    assert runner.attempt(plain, store, CELLS[0], settings, math.inf) == "done"
    assert begun(settings) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_time_is_up(jobs: int, store: RunFolder, settings: Any) -> None:
    execution = Execution(jobs, minutes=0.3 / 60, progress=False)
    assert runner.run(punctual, store, CELLS, settings, execution) == Counter(unfinished=4)
    if jobs == 1:
        assert begun(settings) == ["c3"]  # no cell is begun after the deadline
    assert files(store) == {}
    assert runner.run(punctual, store, CELLS, settings, QUIET) == Counter(done=4)
    check_whole(store)


def test_two_processes_make_the_same_folder(tmp_path: Path, settings: Any) -> None:
    stores = [RunFolder(tmp_path / f"run{jobs}", "fake", {}) for jobs in (1, 2)]
    for jobs, store in zip((1, 2), stores):
        ends = runner.run(plain, store, CELLS, settings, Execution(jobs, progress=False))
        assert ends == Counter(done=4)
        store.finish(WITH_WEIGHTS)
        check_whole(store)
    one, two = stores
    assert files(one) == files(two)
    for name in ("table.parquet", "weights.parquet", "manifest.json"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    pids = {line.split()[1] for line in Path(settings["log"]).read_text().splitlines()}
    assert len(pids) > 1
    assert str(os.getpid()) in pids  # of the first of the two runs alone
    assert begun(settings).count("c0") == 2


def test_a_killed_worker_does_not_lose_the_grid(store: RunFolder, settings: Any) -> None:
    ends = runner.run(mortal, store, CELLS, settings, Execution(2, progress=False))
    assert ends == Counter(done=4)
    assert begun(settings).count("c2") >= 2
    for left in (store.path / "cells").glob(".*.part"):  # its neighbour died while it was writing
        left.unlink()
    check_whole(store)


@pytest.mark.slow
def test_a_pool_that_keeps_dying_gives_up(store: RunFolder, settings: Any) -> None:
    with pytest.raises(RuntimeError, match="killed 3 times before any cell was done"):
        runner.run(deadly, store, CELLS[:1], settings, Execution(2, progress=False))
    assert begun(settings) == ["c0"] * runner.MOST_BROKEN_POOLS
    assert files(store) == {}
    assert runner.run(plain, store, CELLS, settings, Execution(2, progress=False)) == Counter(
        done=4
    )
    check_whole(store)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_full_disk_ends_the_run_and_leaves_nothing_half(
    call: int, store: RunFolder, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell has two files, the main one last, so an even call falls on that of a cell."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_from(call))
        with pytest.raises(OSError, match="No space left on device"):
            runner.run(plain, store, CELLS, settings, QUIET)
    assert [c.name for c in CELLS if store.has(c.name)] == ["c3"][: (call - 1) // 2]
    assert not [name for name in files(store) if name.endswith((".part", ".json"))]
    assert runner.run(plain, store, CELLS, settings, QUIET)["done"] == 4 - (call - 1) // 2
    check_whole(store)


def test_a_disk_that_is_full_for_a_moment_costs_one_cell(
    store: RunFolder, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_from(4, until=4))
        ends = runner.run(plain, store, CELLS, settings, QUIET)
    assert ends == Counter(done=3, failed=1)
    assert "No space left on device" in store.failures()[0]["error"]
    assert store.failures()[0]["cell"] == "c2"
    assert runner.run(plain, store, CELLS, settings, QUIET) == Counter(done=1)
    check_whole(store)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jobs": 0}, "jobs must be an integer ≥ 1, got 0"),
        ({"jobs": 1.5}, r"jobs must be an integer ≥ 1, got 1\.5"),
        ({"jobs": True}, "jobs must be an integer ≥ 1, got True"),
        ({"backend": "slurm"}, "backend must be one of .*dask.*, got 'slurm'"),
        ({"minutes": -1}, "minutes must be positive, got -1"),
        ({"minutes": 0}, "minutes must be positive, got 0"),
        ({"minutes": math.nan}, "minutes must be positive, got nan"),
        ({"address": "tcp://a:1"}, "address 'tcp://a:1' needs backend 'dask' or 'ray'"),
    ],
)
def test_a_bad_execution(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Execution(**options)


def test_the_bar_ends_where_the_run_ends(
    store: RunFolder, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = runner.run(plain, store, CELLS, settings, Execution())
    assert ends == Counter(done=4)
    assert "/4 cells" in capsys.readouterr().err


def test_the_bar_shows_the_last_cell(
    store: RunFolder, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.run(plain, store, CELLS, settings, Execution())
    assert "4/4 cells" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("length", "array"),
    [(0, False), (1, False), (60, False), (300, False), (None, True)],
)
def test_a_damaged_part_counts_as_nothing(
    length: int | None, array: bool, store: RunFolder
) -> None:
    """The bar looks at every part; what it cannot read it must not stumble over."""
    store.save_part("c0", np.arange(3.0), 0.5, {})
    assert store.share("c0") == 0.5
    path = store.path / "cells" / "c0.part"
    if array:
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        path.write_bytes(path.read_bytes()[:length])
    assert store.share("c0") == 0.0


def test_a_folder_whose_manifest_was_being_written_is_taken_up(tmp_path: Path) -> None:
    """Killed during its very first write, a run leaves the part of its manifest, and goes on."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".manifest.json.12345.part").write_bytes(b"{")
    assert RunFolder(folder, "fake", {}).manifest["experiment"] == "fake"


# -- clusters --------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Any:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker(cluster: Any, store: RunFolder, settings: Any) -> None:
    settings["sleep"] = 1.0
    victims: list[str] = []

    def kill() -> None:
        """Kill whoever began the third cell."""
        log = Path(settings["log"])
        while len(begun(settings)) < 3:
            time.sleep(0.02)
        name, pid = log.read_text().splitlines()[2].split()
        victims.append(name)
        os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    execution = Execution(backend="dask", address=cluster.scheduler_address, progress=False)
    assert runner.run(patient, store, CELLS, settings, execution) == Counter(done=4)
    killer.join()
    again = Counter(begun(settings))
    assert again[victims[0]] == 2
    assert set(again) == {"c0", "c1", "c2", "c3"}
    check_whole(store)


@pytest.mark.slow
def test_a_cluster_makes_the_same_table(cluster: Any, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    quick = ("table-bnn", "--quick")
    address = cluster.scheduler_address
    ran = reproduce(*quick, "--backend", "dask", "--address", address, "--out", there)
    assert ran.exit_code == 0, ran.output
    assert reproduce(*quick, "--out", here).exit_code == 0
    for name in ("table.parquet", "weights.parquet"):
        assert (here / name).read_bytes() == (there / name).read_bytes()


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed(
    backend: Any, module: str, store: RunFolder, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)  # another test may have used it
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module}.*'scoreascent\[{backend}\]'"):
        runner.run(plain, store, CELLS, settings, Execution(backend=backend, progress=False))
    assert begun(settings) == []
    # and on the command line
    ran = reproduce("table-bnn", "--quick", "--backend", backend, "--out", store.path.parent / "o")
    assert ran.exit_code == 1
    assert f"scoreascent[{backend}]" in ran.stderr
    assert "Traceback" not in ran.output
