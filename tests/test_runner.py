"""Grids that are killed, interrupted, short of time or disk, or spread over processes and machines.

The runner's own tests use cells that cost nothing; what the tables add (saving and resuming within
a cell) is tested on a linear regression that compiles quickly; the command line runs the quick
tables themselves. The last section is about the callback of `fit`, on which all of it rests.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from jax.scipy.stats import norm
from typer.testing import CliRunner

import scoreascent as sa
from scoreascent import datasets
from scoreascent.cli import app
from scoreascent.experiments import regression, runner
from scoreascent.experiments import reproduce as reproduce_module
from scoreascent.experiments import store as store_module
from scoreascent.experiments.regression import Problem
from scoreascent.experiments.runner import Cell, How
from scoreascent.experiments.store import RunFolder
from scoreascent.experiments.table_bnn import TABLE as BNN

ROOT = Path(__file__).parents[1]
QUIET = How(progress=False)


# -- cells that cost nothing -----------------------------------------------------------------------

CELLS = [Cell(f"c{i}", (i,), cost=i + 1.0) for i in range(4)]


def frames(cell: Cell) -> dict[str, pd.DataFrame]:
    x = math.sqrt(cell.what[0] + 1)
    table = pd.DataFrame({"cell": [cell.name] * 2, "x": [x, -x]})
    return {"table": table, "weights": pd.DataFrame({"cell": [cell.name], "mean": [x]})}


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


def files(store: RunFolder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((store.path / "cells").iterdir())}


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
    how = How(jobs, progress=False)
    assert runner.run(fragile, store, CELLS, settings, how) == Counter(done=3, failed=1)
    record = json.loads((store.path / "cells" / "c2.error.json").read_text())
    assert record["cell"] == "c2"
    assert record["error"] == "FloatingPointError: c2 went wrong"
    assert "in fragile" in record["traceback"]
    assert store.failures() == [record]
    assert not store.has("c2")
    # it fails again, and the record is of the last time; then it succeeds, and the record goes
    assert runner.run(fragile, store, CELLS, settings, how) == Counter(failed=1)
    assert len(store.failures()) == 1
    Path(settings["bad"]).unlink()
    assert runner.run(fragile, store, CELLS, settings, how) == Counter(done=1)
    assert begun(settings).count("c2") == 3
    check_whole(store)


def test_a_cell_of_another_worker_is_not_computed(store: RunFolder, settings: Any) -> None:
    """Two commands may fill a folder: what the other has done meanwhile counts as done."""
    store.write("c0", frames(CELLS[0]))
    assert runner.attempt(plain, store, CELLS[0], settings, math.inf) == "done"
    assert begun(settings) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_time_is_up(jobs: int, store: RunFolder, settings: Any) -> None:
    how = How(jobs, minutes=0.3 / 60, progress=False)
    assert runner.run(punctual, store, CELLS, settings, how) == Counter(unfinished=4)
    if jobs == 1:
        assert begun(settings) == ["c3"]  # no cell is begun after the deadline
    assert files(store) == {}
    assert runner.run(punctual, store, CELLS, settings, QUIET) == Counter(done=4)
    check_whole(store)


def test_two_processes_make_the_same_folder(tmp_path: Path, settings: Any) -> None:
    stores = [RunFolder(tmp_path / f"run{jobs}", "fake", {}) for jobs in (1, 2)]
    for jobs, store in zip((1, 2), stores):
        ends = runner.run(plain, store, CELLS, settings, How(jobs, progress=False))
        assert ends == Counter(done=4)
        store.finish()
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
    ends = runner.run(mortal, store, CELLS, settings, How(2, progress=False))
    assert ends == Counter(done=4)
    assert begun(settings).count("c2") >= 2
    for left in (store.path / "cells").glob(".*.part"):  # its neighbour died while it was writing
        left.unlink()
    check_whole(store)


def test_a_pool_that_keeps_dying_gives_up(store: RunFolder, settings: Any) -> None:
    with pytest.raises(RuntimeError, match="killed 3 times before any cell was done"):
        runner.run(deadly, store, CELLS[:1], settings, How(2, progress=False))
    assert begun(settings) == ["c0"] * runner.BROKEN
    assert files(store) == {}
    assert runner.run(plain, store, CELLS, settings, How(2, progress=False)) == Counter(done=4)
    check_whole(store)


def full_from(call: int, until: float = math.inf) -> Any:
    """An `os.fsync` that finds the disk full from one call to another."""
    fsync, calls = os.fsync, [0]

    def full(descriptor: int) -> None:
        calls[0] += 1
        if call <= calls[0] <= until:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    return full


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
def test_bad_how(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        How(**options)


def test_the_bar_ends_where_the_run_ends(
    store: RunFolder, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = runner.run(plain, store, CELLS, settings, How())
    assert ends == Counter(done=4)
    assert "/4 cells" in capsys.readouterr().err


def test_the_bar_shows_the_last_cell(
    store: RunFolder, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.run(plain, store, CELLS, settings, How())
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
    how = How(backend="dask", address=cluster.scheduler_address, progress=False)
    assert runner.run(patient, store, CELLS, settings, how) == Counter(done=4)
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
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module}.*'scoreascent\[{backend}\]'"):
        runner.run(plain, store, CELLS, settings, How(backend=backend, progress=False))
    assert begun(settings) == []
    # and on the command line
    ran = reproduce("table-bnn", "--quick", "--backend", backend, "--out", store.path.parent / "o")
    assert ran.exit_code == 1
    assert f"scoreascent[{backend}]" in ran.stderr
    assert "Traceback" not in ran.output


# -- within a cell ---------------------------------------------------------------------------------


def line_density(z: Any, data: Any) -> Any:
    x, y = data
    return -0.5 * jnp.sum((y - x @ z) ** 2) - 0.5 * jnp.sum(z**2)


def nan_density(z: Any, data: Any) -> Any:
    """Zero everywhere, but its gradient is NaN: the old trap of `where`."""
    return jnp.where(z[0] ** 2 >= 0, 0.0, jnp.sqrt(-1 - z[0] ** 2))


def line(splits: list[datasets.Split], method: str) -> Problem:
    """Linear regression: what a table needs, and compiled in a second."""
    dim = splits[0].x_train.shape[1]

    def q0(key: Any) -> sa.MeanField:
        return sa.MeanField(0.1 * jax.random.normal(key, (dim,)), jnp.zeros(dim))

    def score(q: sa.MeanField, split: datasets.Split) -> dict[str, Any]:
        mean = split.y_mean + split.y_sd * (split.x_test @ q.mean)
        return {
            "lpd": jnp.mean(norm.logpdf(split.y_test, mean, split.y_sd)),
            "rmse": jnp.sqrt(jnp.mean((split.y_test - mean) ** 2)),
        }

    targets = [sa.Target(line_density, dim=dim, data=(s.x_train, s.y_train)) for s in splits]
    return Problem(targets, q0, score)


LINE = replace(BNN, name="line", problem=line)
SMALL = replace(BNN.quick, steps=24, every=4, methods=(("pmcsa", 3), ("jsa", 2)))
LOOKS = SMALL.steps // SMALL.every


ADAM = functools.cache(optax.adam)  # the same object again, so that nothing is compiled twice


def grid(folder: Path, table: Any = LINE, how: How = QUIET, settings: Any = SMALL) -> Any:
    store = RunFolder(folder, table.name, asdict(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optax, "adam", ADAM)
        patch.setattr(jax, "clear_caches", lambda: None)
        ends = runner.run(table.compute, store, table.cells(settings), settings, how)
    return store, ends


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    store, ends = grid(tmp_path_factory.mktemp("uncut") / "run")
    assert ends == Counter(done=2)
    store.finish()
    return store


def numbers(store: RunFolder) -> pd.DataFrame:
    """All that the clock does not decide, at full precision."""
    return store.table().drop(columns="seconds")


def check_same(store: RunFolder, uncut: RunFolder) -> None:
    pd.testing.assert_frame_equal(numbers(store), numbers(uncut), check_exact=True)
    pd.testing.assert_frame_equal(store.table("weights"), uncut.table("weights"), check_exact=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "HOUR", -1.0)  # what killed writers left goes at once
        store.finish()
    for name in ("table.parquet", "weights.parquet"):
        assert (store.path / name).read_bytes() == (uncut.path / name).read_bytes()
    assert not [name for name in files(store) if not name.endswith(".parquet")]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets time be up at every cell's look of that number; the first look is at once."""

    def up_at(look: int | None) -> None:
        looks = [0]

        def now() -> float:
            looks[0] += 1
            return math.inf if look is not None and looks[0] % look == 0 else 0.0

        fake = SimpleNamespace(time=now, perf_counter=time.perf_counter)
        monkeypatch.setattr(regression, "time", fake)

    return up_at


def test_a_cell_has_a_row_for_every_look_and_split(uncut: RunFolder) -> None:
    table = numbers(uncut)
    assert len(table) == 2 * 2 * LOOKS
    for _, part in table.groupby(["method", "split"]):
        assert part["step"].tolist() == [4, 8, 12, 16, 20, 24]
    assert table["acceptance"].between(0, 1).all()
    assert table["acceptance"].nunique() > 3
    assert np.all(np.isfinite(table.select_dtypes("number")))
    seconds = uncut.table().groupby(["method", "split"])["seconds"]
    assert seconds.apply(lambda s: s.is_monotonic_increasing and s.min() > 0).all()


@pytest.mark.parametrize("look", [2, 3])
def test_a_cell_out_of_time_goes_on_from_its_part(
    look: int, uncut: RunFolder, tmp_path: Path, clock: Any
) -> None:
    """Every command comes `look` - 1 looks further; the last of them is not cut."""
    limited = replace(QUIET, minutes=60.0)
    shares, name = [], LINE.cells(SMALL)[0].name
    for _ in range(2):
        clock(look)
        store, ends = grid(tmp_path / "run", how=limited)
        assert ends == Counter(unfinished=2)
        shares.append(store.share(name))
    assert shares == [(look - 1) / LOOKS, 2 * (look - 1) / LOOKS]
    clock(None)
    store, ends = grid(tmp_path / "run", how=limited)
    assert ends == Counter(done=2)
    check_same(store, uncut)


def test_a_cell_that_ends_with_its_time_is_done(
    uncut: RunFolder, tmp_path: Path, clock: Any
) -> None:
    clock(1 + LOOKS)
    store, ends = grid(tmp_path / "run", how=replace(QUIET, minutes=60.0))
    assert ends == Counter(done=2)
    check_same(store, uncut)


def test_resuming_in_double_precision(tmp_path: Path, clock: Any) -> None:
    """As the GP table does; the part's state and rows are then 64 bits wide."""
    table, settings = replace(LINE, dtype=np.float64), replace(SMALL, methods=(("elbo", 1),))
    clock(None)
    whole, _ = grid(tmp_path / "whole", table, settings=settings)
    clock(3)
    cut, ends = grid(tmp_path / "cut", table, replace(QUIET, minutes=60.0), settings)
    assert ends == Counter(unfinished=1)
    with np.load(next((cut.path / "cells").glob("*.part"))) as part:
        assert any(part[n].dtype == np.float64 and "q.loc" in n for n in part.files)
    clock(None)
    cut, ends = grid(tmp_path / "cut", table, settings=settings)
    assert ends == Counter(done=1)
    check_same(cut, (whole.finish(), whole)[1])
    assert not jax.config.jax_enable_x64


@pytest.fixture
def cut(tmp_path: Path, clock: Any) -> RunFolder:
    """Both cells half-way."""
    clock(4)
    store, ends = grid(tmp_path / "run", how=replace(QUIET, minutes=60.0))
    assert ends == Counter(unfinished=2)
    clock(None)
    return store


def refused(cut: RunFolder, name: str, says: str) -> None:
    """The cell fails, with that reason; its part is as it was; the other cell is done."""
    path = cut.path / "cells" / f"{name}.part"
    before = path.read_bytes()
    store, ends = grid(cut.path)
    assert ends == Counter(done=1, failed=1)
    (record,) = store.failures()
    assert record["cell"] == name
    assert record["error"].startswith("CheckpointError: ")
    assert says in record["error"]
    assert path.read_bytes() == before


def test_a_part_of_another_cell_is_refused(cut: RunFolder, uncut: RunFolder) -> None:
    one, two = (cell.name for cell in LINE.cells(SMALL))
    mine, other = (cut.path / "cells" / f"{name}.part" for name in (one, two))
    mine.write_bytes(other.read_bytes())
    refused(cut, one, f"cell: file {two!r}, now {one!r}")
    mine.unlink()  # as the message advises
    store, ends = grid(cut.path)
    assert ends == Counter(done=1)
    check_same(store, uncut)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_part_is_refused(share: float, cut: RunFolder) -> None:
    name = LINE.cells(SMALL)[0].name
    path = cut.path / "cells" / f"{name}.part"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(cut, name, "damaged")


def test_a_part_of_another_setting_is_refused(cut: RunFolder) -> None:
    """Not even where someone has edited the manifest."""
    settings = replace(SMALL, seed=1)
    manifest = cut.path / "manifest.json"
    held = json.loads(manifest.read_text())
    held["settings"]["seed"] = 1
    manifest.write_text(json.dumps(held))
    before = files(cut)
    store, ends = grid(cut.path, settings=settings)
    assert ends == Counter(failed=2)
    assert "seed: file 0, now 1" in store.failures()[0]["error"]
    assert before.items() <= files(store).items()


def test_a_cell_that_diverges_has_failed(tmp_path: Path) -> None:
    def hopeless(splits: list[datasets.Split], method: str) -> Problem:
        easy = line(splits, method)
        targets = [sa.Target(nan_density, dim=10, data=t.data) for t in easy.targets]
        return easy._replace(targets=targets)

    settings = replace(SMALL, steps=200, every=50, methods=(("elbo", 1),))
    store, ends = grid(tmp_path / "run", replace(LINE, problem=hopeless), settings=settings)
    assert ends == Counter(failed=1)
    assert "diverged" in store.failures()[0]["error"]


@pytest.fixture
def sigint() -> Any:
    """Ctrl-C raises, even if the tests run as a background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("look", [3, LOOKS + 1])
def test_ctrl_c_in_a_cell(
    look: int, uncut: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigint: None
) -> None:
    """The grid ends there, whenever it comes, and keeps what the cell has."""
    looks, original = [0], regression._Log.look

    def pressed(self: Any, *args: Any) -> bool:
        looks[0] += 1
        if looks[0] == look:
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(regression._Log, "look", pressed)
        with pytest.raises(KeyboardInterrupt):
            grid(tmp_path / "run")
    first, second = (cell.name for cell in LINE.cells(SMALL))
    store = RunFolder(tmp_path / "run", "line", asdict(SMALL))
    assert store.share(first) == (look - 1) / LOOKS
    assert store.share(second) == 0
    assert store.failures() == []
    store, _ = grid(tmp_path / "run")
    check_same(store, uncut)


def test_two_processes_make_the_same_cells(uncut: RunFolder, tmp_path: Path) -> None:
    store, ends = grid(tmp_path / "run", how=How(2, progress=False))
    assert ends == Counter(done=2)
    check_same(store, uncut)


# -- killed ----------------------------------------------------------------------------------------


def start(code: str) -> subprocess.Popen[str]:
    """Code in a new process, which finds what this one finds."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def victim(folder: str, write: int) -> None:
    """The small grid, killed while it writes its file of that number; runs in its own process."""
    fsync, calls = os.fsync, [0]

    def deadly_fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == write:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = deadly_fsync
    regression.SAVE_EVERY = 0.0
    grid(Path(folder))


@pytest.mark.parametrize(
    "writes",
    [
        (5, 8),  # in the middle of the first cell, then between the two files of its end
        *(pytest.param((w, 3, 6), marks=pytest.mark.slow) for w in (2, 9, 10, 19)),
    ],
)
def test_killed_while_writing(writes: Any, uncut: RunFolder, tmp_path: Path) -> None:
    """One write is the manifest's; a cell saves at every look and then has two files."""
    folder, killed = tmp_path / "run", 0
    for write in writes:
        child = start(f"from tests.test_runner import victim; victim({str(folder)!r}, {write})")
        _, said = child.communicate()
        assert child.returncode in (-signal.SIGKILL, 0), said
        killed += child.returncode != 0
    assert killed >= 2
    store, _ = grid(folder)
    check_same(store, uncut)


def scoreascent(*arguments: Any) -> subprocess.Popen[str]:
    argv = ["scoreascent", *map(str, arguments)]
    return start(f"import sys; sys.argv = {argv!r}; from scoreascent.__main__ import main; main()")


@pytest.mark.slow
def test_killed_at_random_ten_times(tmp_path: Path) -> None:
    command = ("reproduce", "table-bnn", "--quick", "--out")
    began = time.monotonic()
    whole = scoreascent(*command, tmp_path / "whole")
    _, said = whole.communicate()
    assert whole.returncode == 0, said
    took, rng, killed = time.monotonic() - began, random.Random(0), 0
    for _ in range(10):
        child = scoreascent(*command, tmp_path / "killed")
        try:
            child.communicate(timeout=rng.uniform(0, 0.3 * took))  # a cell or two, or none
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            killed += 1
    assert killed >= 5  # the others found everything done
    last = scoreascent(*command, tmp_path / "killed")
    _, said = last.communicate()
    assert last.returncode == 0, said
    for name in ("table.parquet", "weights.parquet"):
        one, two = (tmp_path / folder / name for folder in ("whole", "killed"))
        assert one.read_bytes() == two.read_bytes()


# -- the command line ------------------------------------------------------------------------------


def reproduce(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


LONG = replace(SMALL, steps=2000, every=20, methods=(("pmcsa", 3),))


def use_line() -> None:
    """Make `table-bnn --quick` the linear regression, and save at every look."""
    experiment = reproduce_module.EXPERIMENTS["table-bnn"]
    small = replace(experiment, quick=LONG, cells=LINE.cells, compute=LINE.compute)
    reproduce_module.EXPERIMENTS["table-bnn"] = small
    regression.SAVE_EVERY = 0.0


def interruptible(*argv: str) -> None:
    """The command line on that table; runs in its own process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if we are a background job
    use_line()
    app(argv)


def test_ctrl_c_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["reproduce", "table-bnn", "--quick", "--out", str(tmp_path / "run")]
    child = start(f"from tests.test_runner import interruptible; interruptible(*{command!r})")
    cells = tmp_path / "run" / "cells"
    while child.poll() is None and not list(cells.glob("d*.part")):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130, said
    assert "interrupted; the same command goes on from here" in said
    assert "Traceback" not in said
    (part,) = cells.iterdir()
    store = RunFolder(tmp_path / "run", "table-bnn", asdict(LONG))
    assert 0 <= store.share(part.stem) < 1
    # the same command, here
    monkeypatch.setattr(reproduce_module, "EXPERIMENTS", dict(reproduce_module.EXPERIMENTS))
    monkeypatch.setattr(reproduce_module, "draw", lambda *_: None)
    monkeypatch.setattr(regression, "SAVE_EVERY", 30.0)
    use_line()
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "1 of 1 cells" in " ".join(ran.output.split())
    whole, _ = grid(tmp_path / "whole", settings=LONG)
    check_same(store, (whole.finish(), whole)[1])


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


BAD: dict[str, tuple[list[str], str]] = {
    "unknown data set": (["table-bnn", "--data", "mnist"], "no data set 'mnist'"),
    "not in the quick table": (["table-bnn", "--quick", "--data", "yacht"], "data set 'yacht'"),
    "unknown method": (["table-gp", "--method", "nuts"], "no method 'nuts'"),
    "too many splits": (["table-bnn", "--splits", "99"], "between 1 and 20, got 99"),
    "negative splits": (["table-bnn", "--splits", "-1"], "between 1 and 20, got -1"),
    "part of a figure": (["figure1", "--data", "yacht"], "figure1 is one whole"),
    "method of a figure": (["figure2", "--quick", "--method", "jsa"], "figure2 is one whole"),
    "jobs": (["table-bnn", "--jobs", "0"], "jobs must be an integer ≥ 1"),
    "backend": (["table-bnn", "--backend", "slurm"], "backend must be one of"),
    "address": (["table-bnn", "--address", "tcp://a:1"], "needs backend 'dask' or 'ray'"),
    "minutes": (["table-bnn", "--minutes", "-1"], "minutes must be positive"),
    "no experiment": (["table-bmm"], "no experiment 'table-bmm'"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD)
def test_bad_commands_write_nothing(arguments: list[str], says: str, tmp_path: Path) -> None:
    ran = reproduce(*arguments, "--out", tmp_path / "run")
    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: ")
    assert says in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["table-bnn", "--quick"], ["figure1", "--quick"]])
def test_no_splits_at_all(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "attempt", lambda *_: "failed")
    ran = reproduce(*arguments, "--splits", "0", "--out", tmp_path / "run")
    assert ran.exit_code == 1
    assert "splits" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_fewer_splits() -> None:
    """Blocks stay whole, so that a folder never holds a split twice."""
    settings = replace(BNN.quick, splits=7, blocks=(("diabetes", 3),))
    for splits, blocks in ((1, {(0, 3)}), (3, {(0, 3)}), (4, {(0, 3), (3, 6)})):
        cells = BNN.cells(settings, splits=splits)
        assert {(c.what[3], c.what[4]) for c in cells} == blocks
    assert {(c.what[3], c.what[4]) for c in BNN.cells(settings)} == {(0, 3), (3, 6), (6, 7)}


@pytest.mark.parametrize("what", ["settings", "version", "experiment"])
def test_a_folder_of_another_run_is_refused(what: str, tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "run", "table-bnn", asdict(BNN.quick))
    store.write("diabetes-pmcsa10-00-01", frames(CELLS[0]))
    manifest = store.path / "manifest.json"
    held = json.loads(manifest.read_text())
    if what == "settings":
        held["settings"]["steps"] = 7
    elif what == "version":
        held["versions"]["scoreascent"] = "0.0.1"
    else:
        held["experiment"] = "table-gp"
    manifest.write_text(json.dumps(held))
    before = everything(store.path)
    ran = reproduce("table-bnn", "--quick", "--out", store.path)
    assert ran.exit_code == 1
    says = {"settings": "steps: there 7, now 1000", "version": "of scoreascent 0.0.1",
            "experiment": "holds 'table-gp', not 'table-bnn'"}  # fmt: skip
    assert says[what] in ran.stderr
    assert everything(store.path) == before


def without_data(folder: Path, *more: str) -> Any:
    asked = ("--data", "yacht", "--method", "pmcsa", "--method", "jsa")
    return reproduce("table-bnn", *asked, *more, "--out", folder)


def test_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    ran = without_data(tmp_path / "run")
    assert ran.exit_code == 1
    assert "Traceback" not in ran.output
    assert f"{datasets.FOLDER} is not set" in " ".join(ran.stderr.split())
    assert list(tmp_path.iterdir()) == []  # before anything is written


def failing(*_: Any) -> Any:
    raise ZeroDivisionError("no such luck")


@pytest.mark.parametrize("more", [(), ("--minutes", "60")])
def test_failed_cells_tell(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "_compute", failing)
    ran = reproduce("table-bnn", "--quick", "--method", "msc", *more, "--out", tmp_path / "run")
    assert ran.exit_code == 1
    assert "diabetes-msc10-00-01 failed: ZeroDivisionError: no such luck" in ran.stderr


def test_a_full_disk_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures of the first cell: to be computed, and to write that down."""
    monkeypatch.setattr(regression, "_compute", failing)
    monkeypatch.setattr(os, "fsync", full_from(2))
    ran = reproduce("table-bnn", "--quick", "--out", tmp_path / "run")
    assert ran.exit_code == 1
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.output
    assert set(everything(tmp_path / "run")) == {"manifest.json"}


TABLES = {
    # what, methods, number of cells, values
    "bnn": ("table-bnn", ("pmcsa", "jsa"), 2, ("lpd", "rmse")),
    "bnn, whole": ("table-bnn", (), 6, ("lpd", "rmse")),
    "gp": ("table-gp", ("elbo",), 1, ("lpd", "lpd_published", "rmse")),
    "gp, whole": ("table-gp", (), 5, ("lpd", "lpd_published", "rmse")),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("whole" in n)) for n in TABLES]
)
def test_quick_tables(name: str, tmp_path: Path) -> None:
    what, methods, count, values = TABLES[name]
    options = [word for method in methods for word in ("--method", method)]
    out = tmp_path / what
    ran = reproduce(what, "--quick", *options, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert f"{what}: {count} of {count} cells" in " ".join(ran.output.split())
    experiment = reproduce_module.known(what)
    quick = experiment.quick
    cells = [c.name for c in experiment.cells(quick, only_methods=methods)]
    assert len(cells) == count
    assert {p.name.split(".")[0] for p in (out / "cells").iterdir()} == set(cells)
    table = pd.read_parquet(out / "table.parquet")
    assert len(table) == count * quick.splits * (quick.steps // quick.every)
    assert set(table["dataset"]) == {"diabetes"}
    assert set(table["split"]) == {0, 1}
    assert np.all(np.isfinite(table.select_dtypes("number")))
    assert table["acceptance"].between(0, 1).all()
    assert (table["acceptance"][table["method"] == "elbo"] == 1).all()
    assert (table["acceptance"][table["method"] == "pmcsa"] < 1).all()
    assert not table["skipped"].any()
    last = table[table["step"] == quick.steps]
    assert len(last) == 2 * count
    assert last["rmse"].between(30, 100).all()  # the target's own sd is 77
    assert last["lpd"].between(-8, -5).all()
    for value in values:
        assert "diabetes" in (out / f"{value}.md").read_text()
        assert "\\begin{tabular}" in (out / f"{value}.tex").read_text()
        assert (out / f"{value}.png").read_bytes().startswith(b"\x89PNG")
        small = pd.read_csv(out / f"{value}.csv")
        assert len(small) == count
        assert np.all(np.isfinite(small["mean"]))
    assert (out / "pruning.png").exists() == (what == "table-bnn")
    if "whole" not in name:
        return
    # the same command again computes nothing and leaves the same tables
    before = {p: p.stat().st_mtime_ns for p in (out / "cells").iterdir()}
    tables = {p.name: p.read_bytes() for p in out.glob("*.parquet")}
    again = reproduce(what, "--quick", *options, "--out", out)
    assert again.exit_code == 0
    assert "0 new" in " ".join(again.output.split())
    assert {p: p.stat().st_mtime_ns for p in (out / "cells").iterdir()} == before
    assert {p.name: p.read_bytes() for p in out.glob("*.parquet")} == tables


# -- the callback of fit ---------------------------------------------------------------------------


def same_bits(a: Any, b: Any) -> bool:
    one, two = (jax.tree.leaves(jax.tree.map(_plain, tree)) for tree in (a, b))
    return len(one) == len(two) and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(one, two)
    )


def _plain(x: Any) -> Any:
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if key else x)


def same_run(a: sa.Result, b: sa.Result) -> bool:
    return same_bits((a.state, a.trace, a.q), (b.state, b.trace, b.q)) and a.status == b.status


fit_module = importlib.import_module("scoreascent.fit")  # `sa.fit` is the function
T = 50


def density(z: Any, centre: Any) -> Any:
    return -0.5 * jnp.sum((z - centre) ** 2)


TARGETS = [sa.Target(density, dim=2, data=jnp.array([1.0, c])) for c in (-0.5, 2.0)]
METHOD, OPTIMIZER = sa.pmcsa(3), optax.adam(0.05)


def fit(target: Any = TARGETS[0], **options: Any) -> sa.Result:
    options = {"steps": T, "optimizer": OPTIMIZER, "key": 7, "progress": False} | options
    return sa.fit(target, METHOD, **options)


class Spy:
    """A callback that keeps what it is called with, and ends the run at a step."""

    def __init__(self, stop: int | None = None, says: Any = True) -> None:
        self.calls: list[tuple[sa.State, sa.Trace]] = []
        self.stop, self.says = stop, says

    def __call__(self, state: sa.State, trace: sa.Trace) -> object:
        self.calls.append((state, trace))
        return self.says if self.steps[-1] == self.stop else None

    @property
    def steps(self) -> list[int]:
        return [int(np.max(np.asarray(state.step))) for state, _ in self.calls]

    @property
    def trace(self) -> sa.Trace:
        return sa.Trace(*(np.concatenate(xs, -1) for xs in zip(*(t for _, t in self.calls))))


TARGET_KINDS: dict[str, dict[str, Any]] = {
    "single": {},
    "seeds": {"replications": 3},
    "data": {"target": TARGETS},
    "average": {"average": True},
}


@pytest.mark.parametrize("kind", TARGET_KINDS)
@pytest.mark.parametrize(
    ("every", "at"),
    [(20, [0, 20, 40, 50]), (25, [0, 25, 50]), (50, [0, 50]), (1000, [0, 50])],
)
def test_callback_is_called_when_it_says(kind: str, every: int, at: list[int]) -> None:
    options, spy = TARGET_KINDS[kind], Spy()
    result = fit(callback=spy, callback_every=every, **options)
    assert spy.steps == at
    assert [t.loss.shape[-1] for _, t in spy.calls] == [0, *np.diff(at)]
    assert same_bits(spy.trace, result.trace)
    assert same_bits(spy.calls[-1][0], result.state)
    assert same_run(result, fit(**options))


def test_callback_sees_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a chunk would be longer or shorter than `callback_every`."""
    for seconds in (0, 10):
        monkeypatch.setattr(fit_module, "CHUNK_SECONDS", seconds)
        for every in (1, 7):
            spy = Spy()
            result = fit(callback=spy, callback_every=every)
            assert spy.steps == sorted({*range(0, T, every), T})
            assert same_bits(spy.trace, result.trace)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_callback_stops_a_run(kind: str) -> None:
    options, spy = TARGET_KINDS[kind], Spy(stop=20)
    whole = fit(**options)
    result = fit(callback=spy, callback_every=10, **options)
    assert spy.steps == [0, 10, 20]
    assert result.state.step.max() == 20
    statuses = result.status if isinstance(result.status, tuple) else (result.status,)
    assert set(statuses) == {"stopped"}
    assert "stopped" in str(result)
    for a, b in zip(result.trace, whole.trace):
        np.testing.assert_array_equal(a, b[..., :20])
    # and on from there
    more = Spy()
    onward = fit(state=result.state, callback=more, callback_every=15, **options)
    assert more.steps == [20, 30, 45, 50]
    assert same_bits((onward.q, onward.state), (whole.q, whole.state))
    assert [t.loss.shape[-1] for _, t in more.calls] == [0, 10, 15, 5]


def test_callback_stops_before_the_first_iteration() -> None:
    result = fit(callback=Spy(stop=0))
    assert result.status == "stopped"
    assert int(result.state.step) == 0
    assert result.trace.loss.shape == (0,)


def test_callback_at_the_end_stops_nothing() -> None:
    spy = Spy(stop=T)
    result = fit(callback=spy, callback_every=20)
    assert spy.steps == [0, 20, 40, 50]
    assert result.status == "max_steps"
    assert same_run(result, fit())


def test_callback_does_not_stop_a_finished_run() -> None:
    whole = fit()
    assert fit(state=whole.state, callback=Spy(stop=T)).status == "max_steps"


def test_callback_does_not_hide_a_divergence() -> None:
    target = sa.Target(nan_density, dim=1, data=0.0)
    options = {"steps": 200, "callback_every": 100, "progress": False}
    with pytest.raises(sa.DivergenceError):
        sa.fit(target, sa.elbo(1), callback=Spy(stop=100), **options)


@pytest.mark.parametrize("says", [None, False, 0, 1, "yes"])
def test_only_true_stops(says: Any) -> None:
    assert fit(callback=Spy(stop=20, says=says), callback_every=10).status == "max_steps"


@pytest.mark.parametrize("says", [np.bool_(True), jnp.array(True)], ids=["numpy", "jax"])
def test_a_comparison_of_arrays_stops_too(says: Any) -> None:
    assert fit(callback=Spy(stop=20, says=says), callback_every=10).status == "stopped"


def test_callback_and_checkpoint(tmp_path: Path) -> None:
    path, whole, first = tmp_path / "run", fit(), Spy(stop=20)
    fit(callback=first, callback_every=10, checkpoint=path)
    assert path.exists()
    second = Spy()
    result = fit(callback=second, callback_every=15, checkpoint=path)
    assert same_run(result, whole)
    assert second.steps == [20, 30, 45, 50]
    assert same_bits(second.trace, whole.trace)  # the file's part of it comes with the first call
    done = Spy()
    assert same_run(fit(callback=done, checkpoint=path), whole)
    assert done.steps == [T]


def test_callback_of_a_run_of_no_steps() -> None:
    spy = Spy()
    assert fit(steps=0, callback=spy).status == "max_steps"
    assert spy.steps == [0]


def test_an_error_in_the_callback_is_raised() -> None:
    handler = signal.getsignal(signal.SIGINT)

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        fit(callback=fail)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"callback": 3}, "callback must be a function of state and trace, got 3"),
        ({"callback": "print"}, "callback must be a function"),
        ({"callback": print, "callback_every": 0}, "callback_every must be an integer ≥ 1, got 0"),
        ({"callback": print, "callback_every": -5}, "callback_every must be an integer ≥ 1"),
        ({"callback": print, "callback_every": 2.5}, "callback_every must be an integer ≥ 1"),
    ],
)
def test_bad_callbacks(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit(**options)
