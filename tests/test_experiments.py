"""Run folders, the quick versions of Figures 1 and 2, and what the stored full tables show."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import scoreascent as sa
from scoreascent.cli import app
from scoreascent.experiments import drawing, figure1, figure2, figures, registry, tables
from scoreascent.experiments.methods import PAPER_OPTIMIZERS
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import RunFolder, RunFolderError
from tests.experiments_helpers import WITH_WEIGHTS

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SETTINGS = {"a": 1, "b": [1, 2]}


def one_row(value=1.0):
    return {"table": pd.DataFrame({"x": [value]})}


# -- run folders -----------------------------------------------------------------------------------


def test_cells_are_kept_and_joined(tmp_path):
    folder = RunFolder(tmp_path / "run", "figure1", SETTINGS)
    assert not folder.has("first")
    folder.write("first", one_row())
    again = RunFolder(tmp_path / "run", "figure1", SETTINGS)
    assert again.has("first")
    again.write("second", {"weights": pd.DataFrame({"w": [0.5]}), **one_row(2.0)})
    assert again.table()["x"].tolist() == [1.0, 2.0]
    again.finish(WITH_WEIGHTS)
    assert pd.read_parquet(tmp_path / "run" / "table.parquet")["x"].tolist() == [1.0, 2.0]
    assert pd.read_parquet(tmp_path / "run" / "weights.parquet")["w"].tolist() == [0.5]


def test_a_full_disk_leaves_no_part_of_a_cell(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run", "figure1", SETTINGS)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write("cell", one_row())
    assert list((tmp_path / "run" / "cells").iterdir()) == []


def test_a_damaged_cell_is_named(tmp_path):
    folder = RunFolder(tmp_path / "run", "figure1", SETTINGS)
    folder.write("cell", one_row())
    (tmp_path / "run" / "cells" / "cell.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(RunFolderError, match=r"cell\.parquet' is damaged"):
        folder.finish()


@pytest.mark.parametrize(
    ("experiment", "settings", "says"),
    [
        ("figure2", SETTINGS, "holds 'figure1', not 'figure2'"),
        ("figure1", {"a": 2, "b": [1, 2]}, "a: there 1, now 2"),
        ("figure1", {"a": 1}, "b: there"),
    ],
)
def test_another_run_is_refused(tmp_path, experiment, settings, says):
    RunFolder(tmp_path / "run", "figure1", SETTINGS)
    with pytest.raises(RunFolderError, match=says):
        RunFolder(tmp_path / "run", experiment, settings)


def test_another_version_is_refused(tmp_path):
    RunFolder(tmp_path / "run", "figure1", SETTINGS)
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["versions"]["scoreascent"] = "0.0.1"
    path.write_text(json.dumps(manifest))
    with pytest.raises(RunFolderError, match=r"scoreascent 0\.0\.1"):
        RunFolder(tmp_path / "run", "figure1", SETTINGS)


def test_stored_tables_without_their_cells_are_not_overwritten(tmp_path):
    folder = tmp_path / "run"
    RunFolder(folder, "figure1", SETTINGS)
    (folder / "cells").rmdir()
    (folder / "table.parquet").write_bytes(b"what was stored")
    with pytest.raises(RunFolderError, match="not the cells it was made of"):
        RunFolder(folder, "figure1", SETTINGS)
    assert (folder / "table.parquet").read_bytes() == b"what was stored"


@pytest.mark.parametrize("content", ["", "{}", "[1]", "not json"])
def test_a_damaged_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RunFolderError, match="manifest"):
        RunFolder(tmp_path, "figure1", SETTINGS)
    assert (tmp_path / "manifest.json").read_text() == content


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="not empty"):
        RunFolder(tmp_path, "figure1", SETTINGS)


def test_an_empty_run_has_no_table(tmp_path):
    with pytest.raises(RunFolderError, match="no finished cell"):
        RunFolder(tmp_path / "run", "figure1", SETTINGS).table()


# -- the quick versions, through the command line --------------------------------------------------


@pytest.mark.parametrize(
    ("what", "pictures", "smaller"),
    [
        ("figure1", ["figure1"], {"budgets": (4,), "steps": 300}),
        pytest.param("figure1", ["figure1"], {}, marks=pytest.mark.slow),
        pytest.param("figure2", ["figure2", "figure2-schedules"], {}, marks=pytest.mark.slow),
    ],
    ids=["figure1", "figure1, whole", "figure2, whole"],
)
def test_quick_figures(tmp_path, what, pictures, smaller, monkeypatch):
    experiment = registry.known(what)
    quick = replace(experiment.quick, **smaller)
    monkeypatch.setitem(registry.EXPERIMENTS, what, replace(experiment, quick=quick))
    out = tmp_path / what
    command = ["reproduce", what, "--quick", "--out", str(out)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    table = pd.read_parquet(out / "table.parquet")
    assert np.all(np.isfinite(table.select_dtypes("number")))
    for name in pictures:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    cells = {p: p.stat().st_mtime_ns for p in (out / "cells").iterdir()}
    assert len(cells) == (2 if smaller else 4)
    # killed and started again: one cell is lost, and only that one is made anew, to the same bits
    victim = sorted(cells)[0]
    before = victim.read_bytes()
    victim.unlink()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert victim.read_bytes() == before
    assert all(p.stat().st_mtime_ns == t for p, t in cells.items() if p != victim)


def test_bad_commands(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "figure9", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "no experiment 'figure9'" in result.output
    result = CliRunner().invoke(app, ["reproduce", "figure1", "--draw", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "run the experiment first" in result.output


@pytest.mark.slow
def test_step_sizes_really_differ():
    """Every replication of Figure 2 has its own step size, though all share one compiled loop."""
    settings = figure2.Settings(dim=2, nu=3, step_sizes=2, replications=1, steps=50)
    problem = figure2.wishart_gaussian(2, 3)

    def sweep(optimizer):
        cell = Cell("cell", ("pmcsa", optimizer))
        return figure2.compute(cell, settings, None, np.inf)["table"]

    for optimizer in ("sgd", "doan", "doan_nesterov"):
        table = sweep(optimizer)
        small, large = table["kl_last"]
        assert table["step_size"].tolist() == [0.001, 1.0]
        assert small != large, optimizer
    alone = sa.fit(
        problem.target, sa.pmcsa(10), steps=50, replications=2, progress=False,
        q0=lambda key: figure1.first_q(key, 2), optimizer=figure2.OPTIMIZERS["sgd"](1.0),
    )  # fmt: skip
    swept = sweep("sgd")
    assert float(problem.kl(alone[1].q)) == pytest.approx(swept["kl_last"][1], rel=1e-3)


# -- what the full tables show ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def full1():
    return pd.read_parquet(RESULTS / "figure1" / "table.parquet")


@pytest.fixture(scope="module")
def full2():
    return pd.read_parquet(RESULTS / "figure2" / "table.parquet")


@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_stored_tables_are_at_full_settings(name):
    manifest = json.loads((RESULTS / name / "manifest.json").read_text())
    module = {"figure1": figure1, "figure2": figure2}[name]
    wanted = json.loads(json.dumps(asdict(module.Settings())))
    assert manifest["settings"] == wanted


def variance(table, step):
    at = table[table["step"] == step]
    return at.groupby(["method", "n"])["variance"].median().unstack()


def test_pmcsa_variance_is_the_closed_form(full1):
    final = figures.final_variances(full1).set_index(["method", "n"])
    ratios = final.loc["pmcsa", "ratio"]
    assert list(ratios.index) == [8, 16, 32, 64, 128]
    assert np.all(np.abs(ratios - 1) < 0.15)


def test_pmcsa_is_lowest_and_falls_as_one_over_n(full1):
    for step in (100, 1000, 10_000):
        v = variance(full1, step)
        others = v.loc[["msc", "msc_rb", "jsa"]]
        assert np.all(v.loc["pmcsa"] < others.min())
        assert np.all(np.diff(v.loc["pmcsa"]) < 0)
    final = variance(full1, 10_000).loc["pmcsa"]
    assert final[8] / final[128] == pytest.approx(16, rel=0.15)


def test_msc_is_flat_in_n(full1):
    final = variance(full1, 10_000).loc["msc"]
    assert final.max() / final.min() < 1.25


@pytest.mark.parametrize("method", ["msc_rb", "jsa"])
def test_others_gain_from_n_only_late(full1, method):
    gain = [variance(full1, step).loc[method, 8] / variance(full1, step).loc[method, 128]
            for step in (100, 10_000)]  # fmt: skip
    assert gain[0] < 1.6
    assert gain[1] > 3


def test_rao_blackwellisation_lowers_the_variance(full1):
    final = variance(full1, 10_000)
    assert np.all(final.loc["pmcsa_rb"] < 0.95 * final.loc["pmcsa"])


def test_pmcsa_has_the_widest_basin(full2):
    basins = figures.basins(full2).set_index(["iterate", "optimizer", "method"])["basin_decades"]
    for iterate in ("last", "average"):
        for optimizer in PAPER_OPTIMIZERS:
            widths = basins[iterate][optimizer]
            assert widths["pmcsa"] > 1.2 * widths[["msc", "msc_rb", "jsa"]].max()


def test_no_run_ends_below_the_floor(full2):
    assert np.all(full2[["kl_last", "kl_average"]].min() > full2["kl_floor"].iloc[0])


def test_basin_width_is_that_of_a_known_curve():
    sizes = np.logspace(-3, 0, 4)
    rows = [
        {"optimizer": "sgd", "method": "pmcsa", "step_size": s, "kl_last": v, "kl_average": v}
        for s, v in zip(sizes, [4.0, 1.0, 1.0, 4.0])
    ]
    width = figures.basins(pd.DataFrame(rows), factor=2.0)["basin_decades"]
    np.testing.assert_allclose(width, 2.0)  # half of each slope lies below 2, on log axes


# -- what the stored tables show -------------------------------------------------------------------


@pytest.fixture(scope="module")
def bnn():
    return tables.summarise(pd.read_parquet(RESULTS / "table-bnn" / "table.parquet"), "table-bnn")


@pytest.fixture(scope="module")
def gp():
    table = pd.read_parquet(RESULTS / "table-gp" / "table.parquet")
    return {v: tables.summarise(table, "table-gp", v) for v in ("lpd", "lpd_published")}


@pytest.mark.parametrize("name", ["table-bnn", "table-gp"])
def test_stored_cells_are_at_full_settings(name):
    settings = registry.EXPERIMENTS[name].settings
    manifest = json.loads((RESULTS / name / "manifest.json").read_text())
    assert manifest["settings"] == json.loads(json.dumps(asdict(settings)))
    table = pd.read_parquet(RESULTS / name / "table.parquet")
    runs = table.groupby(["dataset", "method", "n", "split"])["step"]
    assert np.all(runs.max() == settings.steps)
    assert np.all(runs.count() == settings.steps // settings.every)


def test_the_bnn_table_is_whole_and_reproduces(bnn):
    assert len(bnn) == 48
    assert np.all(bnn["splits"] == 20)
    assert bnn["agrees"].sum() >= 45
    means = bnn.set_index(["dataset", "method", "n"])["mean"]
    for dataset in bnn["dataset"].unique():
        others = [means[dataset, m, 10] for m in ("jsa", "msc", "msc_rb")]
        assert means[dataset, "pmcsa", 10] > max(others)


def test_the_gp_table_reproduces_and_turns_over(gp):
    published, correct = (gp[v].set_index(["dataset", "method"]) for v in ("lpd_published", "lpd"))
    compared = published["agrees"].dropna()  # one split has no interval: gas, three methods
    assert (compared.sum(), len(compared)) == (30, 32)
    ahead = {v: t["mean"][:, "pmcsa"] - t["mean"][:, "elbo"]
             for v, t in (("published", published), ("correct", correct))}  # fmt: skip
    assert len(ahead["correct"]) == 7
    assert np.all(ahead["correct"] < 0)
    assert np.all(ahead["published"].drop(["gas", "boston"]) > 0.05)
    assert np.all(ahead["correct"].drop(["boston"]) < -0.2)
    for other in ("jsa", "msc", "msc_rb"):
        assert np.all(correct["mean"][:, "pmcsa"] > correct["mean"][:, other])


def test_the_gp_table_has_the_splits_that_the_page_names(gp):
    splits = gp["lpd"].set_index(["dataset", "method"])["splits"]
    usual = {
        "yacht": 20,
        "boston": 20,
        "energy": 20,
        "concrete": 20,
        "airfoil": 10,
        "wine": 5,
        "gas": 1,
    }
    for dataset, number in usual.items():
        by_method = dict.fromkeys(("elbo", "pmcsa", "jsa", "msc", "msc_rb"), number)
        other = {"airfoil": {"jsa": 5}, "gas": {"pmcsa": 3, "jsa": 3}}.get(dataset, {})
        assert splits[dataset].to_dict() == by_method | other


def test_the_page_shows_the_stored_tables():
    page = (RESULTS.parent / "experiments.md").read_text()
    for name in ("table-bnn/lpd.md", "table-gp/both.md"):
        assert (RESULTS / name).read_text().strip() in page


def test_the_tables_are_drawn_from_the_stored_numbers(tmp_path, monkeypatch):
    """The curves themselves, a thousand bootstraps, are drawn in `test_tables.py`."""
    drawn = []

    def draw_curves(table, times, value):
        drawn.append(value)
        return plt.figure(figsize=(1, 1))

    monkeypatch.setattr(drawing.curves, "draw_curves", draw_curves)
    for name in ("manifest.json", "table.parquet", "times.parquet"):
        (tmp_path / name).write_bytes((RESULTS / "table-gp" / name).read_bytes())
    command = ["reproduce", "table-gp", "--draw", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert drawn == ["lpd", "lpd_published", "rmse"]
    for name in ("both.md", "lpd.csv", "lpd.tex", "lpd_published.md"):
        assert (tmp_path / name).read_text() == (RESULTS / "table-gp" / name).read_text()
