"""Cells of the tables that are killed, interrupted or out of time, and the command line.

Saving and resuming within a cell is tested on a linear regression that compiles quickly; the
command line runs the quick tables themselves.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import signal
import subprocess
import sys
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
from scoreascent.experiments import registry, regression, runner
from scoreascent.experiments import store as store_module
from scoreascent.experiments.regression import LAYOUT, Problem
from scoreascent.experiments.runner import Execution
from scoreascent.experiments.store import RunFolder
from scoreascent.experiments.table_bnn import TABLE as BNN
from tests.experiments_helpers import CELLS, QUIET, ROOT, files, frames, full_from, reproduce

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


def grid(
    folder: Path, table: Any = LINE, execution: Execution = QUIET, settings: Any = SMALL
) -> Any:
    store = RunFolder(folder, table.name, asdict(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optax, "adam", ADAM)
        patch.setattr(jax, "clear_caches", lambda: None)
        ends = runner.run(table.compute, store, table.cells(settings), settings, execution)
    return store, ends


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    store, ends = grid(tmp_path_factory.mktemp("uncut") / "run")
    assert ends == Counter(done=2)
    store.finish(LAYOUT)
    return store


def numbers(store: RunFolder) -> pd.DataFrame:
    """All that the clock does not decide, at full precision."""
    return store.table().drop(columns="seconds")


def check_same(store: RunFolder, uncut: RunFolder) -> None:
    pd.testing.assert_frame_equal(numbers(store), numbers(uncut), check_exact=True)
    pd.testing.assert_frame_equal(store.table("weights"), uncut.table("weights"), check_exact=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            store_module, "SECONDS_UNTIL_STALE", -1.0
        )  # what killed writers left goes at once
        store.finish(LAYOUT)
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
        store, ends = grid(tmp_path / "run", execution=limited)
        assert ends == Counter(unfinished=2)
        shares.append(store.share(name))
    assert shares == [(look - 1) / LOOKS, 2 * (look - 1) / LOOKS]
    clock(None)
    store, ends = grid(tmp_path / "run", execution=limited)
    assert ends == Counter(done=2)
    check_same(store, uncut)


def test_a_cell_that_ends_with_its_time_is_done(
    uncut: RunFolder, tmp_path: Path, clock: Any
) -> None:
    clock(1 + LOOKS)
    store, ends = grid(tmp_path / "run", execution=replace(QUIET, minutes=60.0))
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
    check_same(cut, (whole.finish(LAYOUT), whole)[1])
    assert not jax.config.jax_enable_x64


@pytest.fixture
def cut(tmp_path: Path, clock: Any) -> RunFolder:
    """Both cells half-way."""
    clock(4)
    store, ends = grid(tmp_path / "run", execution=replace(QUIET, minutes=60.0))
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
    looks, original = [0], regression._Log.record

    def pressed(self: Any, *args: Any) -> bool:
        looks[0] += 1
        if looks[0] == look:
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(regression._Log, "record", pressed)
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
    store, ends = grid(tmp_path / "run", execution=Execution(2, progress=False))
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
    regression.SECONDS_BETWEEN_SAVES = 0.0
    grid(Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    "writes",
    # in the middle of the first cell, then between the two files of its end; and elsewhere
    [(5, 8), *((w, 3, 6) for w in (2, 9, 10, 19))],
)
def test_killed_while_writing(writes: Any, uncut: RunFolder, tmp_path: Path) -> None:
    """One write is the manifest's; a cell saves at every look and then has two files."""
    folder, killed = tmp_path / "run", 0
    for write in writes:
        child = start(f"from tests.test_cells import victim; victim({str(folder)!r}, {write})")
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


LONG = replace(SMALL, steps=2000, every=20, methods=(("pmcsa", 3),))


def use_line() -> None:
    """Make `table-bnn --quick` the linear regression, and save at every look."""
    experiment = registry.EXPERIMENTS["table-bnn"]
    small = replace(
        experiment, quick=LONG, cells=LINE.cells, compute=LINE.compute, draw=lambda *_: None
    )
    registry.EXPERIMENTS["table-bnn"] = small
    regression.SECONDS_BETWEEN_SAVES = 0.0


def interruptible(*argv: str) -> None:
    """The command line on that table; runs in its own process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if we are a background job
    use_line()
    app(argv)


@pytest.mark.slow
def test_ctrl_c_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["reproduce", "table-bnn", "--quick", "--out", str(tmp_path / "run")]
    child = start(f"from tests.test_cells import interruptible; interruptible(*{command!r})")
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
    monkeypatch.setattr(registry, "EXPERIMENTS", dict(registry.EXPERIMENTS))
    monkeypatch.setattr(regression, "SECONDS_BETWEEN_SAVES", 30.0)
    use_line()
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "1 of 1 cells" in " ".join(ran.output.split())
    whole, _ = grid(tmp_path / "whole", settings=LONG)
    check_same(store, (whole.finish(LAYOUT), whole)[1])


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
        assert {(c.piece[3], c.piece[4]) for c in cells} == blocks
    assert {(c.piece[3], c.piece[4]) for c in BNN.cells(settings)} == {(0, 3), (3, 6), (6, 7)}


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
    # experiment, methods, number of cells, values, settings that make the quick version quicker
    "bnn": (
        "table-bnn",
        ("pmcsa", "jsa"),
        2,
        ("lpd", "rmse"),
        {"steps": 100, "every": 10},
    ),
    "bnn, whole": ("table-bnn", (), 6, ("lpd", "rmse"), {}),
    "gp": ("table-gp", ("elbo",), 1, ("lpd", "lpd_published", "rmse"), {"steps": 6, "every": 2}),
    "gp, whole": ("table-gp", (), 5, ("lpd", "lpd_published", "rmse"), {}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "gp")) for n in TABLES]
)
def test_quick_tables(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what, methods, count, values, smaller = TABLES[name]
    whole = registry.known(what)
    experiment = replace(whole, quick=replace(whole.quick, **smaller))
    monkeypatch.setitem(registry.EXPERIMENTS, what, experiment)
    options = [word for method in methods for word in ("--method", method)]
    out = tmp_path / what
    ran = reproduce(what, "--quick", *options, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert f"{what}: {count} of {count} cells" in " ".join(ran.output.split())
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
