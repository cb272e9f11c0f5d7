"""`scoreascent fit`: a model in a file and a table, to a folder; errors are one line."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import scoreascent as sa
from scoreascent import from_csv
from scoreascent.cli import app
from scoreascent.diagnostics.rules import GOOD, LONGER

pytest.importorskip("matplotlib").use("Agg")

MODELS = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from beside import WIDE

def line(x, kind, y, kind_labels, wide=WIDE):
    a = numpyro.sample("a", dist.Normal(0, wide).expand([len(kind_labels)]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, wide))
    numpyro.sample("y", dist.Normal(a[kind] + b * x, 0.5), obs=y)

def everything(**columns):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(mu, 1), obs=columns["y"])

def alone():
    numpyro.sample("mu", dist.Normal(1, 2))

number = 3
"""

PYMC = """
import pymc
import numpy as np

def made(x, y):
    with pymc.Model() as model:
        b = pymc.Normal("b", 0, 5)
        pymc.Normal("y", b * x, 0.5, observed=y)
    return model

with pymc.Model() as held:
    x = pymc.Data("x", np.zeros(2))
    b = pymc.Normal("b", 0, 5)
    pymc.Normal("obs", b * x, 0.5, observed=np.array([2.0, 4.0]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models and tables, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCOREASCENT_CACHE", "0")
    (tmp_path / "model.py").write_text(MODELS)
    (tmp_path / "beside.py").write_text("WIDE = 5.0\n")
    rng = np.random.default_rng(0)
    kind, x = rng.integers(2, size=40), rng.normal(size=40)
    y = np.array([1.0, -1.0])[kind] + 2 * x + 0.5 * rng.normal(size=40)
    rows = zip(x, np.array(["low", "high"])[kind], y)
    lines = [f'{a:.4f}, "{k}",{b:.4f},{i}' for i, (a, k, b) in enumerate(rows)]
    (tmp_path / "data.csv").write_text("\ufeffx,kind,y,id\n" + "\n".join(lines) + "\n")
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["fit", *arguments])


def test_a_numpyro_model(folder: Path) -> None:
    result = run("model.py:line", "--data", "data.csv", "--out", "out", "--key", "3")
    assert result.exit_code == 0, result.output
    assert "verdict: good" in " ".join(result.stdout.split())
    assert "a[1]" in result.stdout
    names = {p.name for p in (folder / "out").iterdir()}
    assert names >= {"fit.npz", "summary.csv", "report.html", "labels.csv"}
    with (folder / "out" / "summary.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["a[0]", "a[1]", "b"]
    assert float(rows["a[0]"]["mean"]) == pytest.approx(-1.0, abs=0.4)  # "high" comes first
    assert float(rows["b"]["mean"]) == pytest.approx(2.0, abs=0.3)
    assert float(rows["b"]["mean_error"]) > 0
    labels = (folder / "out" / "labels.csv").read_text().splitlines()
    assert labels == ["column,code,label", "kind,0,high", "kind,1,low"]
    kept = sa.load(folder / "out" / "fit.npz")
    assert kept.diagnosis.verdict == GOOD
    assert float(rows["b"]["mean"]) == kept.summary()[2]["mean"]
    assert (folder / "out" / "report.html").read_text().startswith("<!doctype html>")


def test_draws_for_arviz(folder: Path) -> None:
    pytest.importorskip("arviz")
    xarray = pytest.importorskip("xarray")
    result = run("model.py:alone", "--out", "out", "--quiet")
    assert result.exit_code == 0
    if not (folder / "out" / "draws.nc").exists():
        pytest.skip("nothing to write netCDF by")
    posterior = xarray.open_dataset(folder / "out" / "draws.nc", group="posterior")
    assert float(posterior["mu"].mean()) == pytest.approx(1.0, abs=0.3)


def test_quiet_and_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def short(target: sa.Target, **options: Any) -> sa.Result:
        asked.update(options, target=target)
        method = sa.pmcsa(4)
        return sa.fit(target, method, steps=3, progress=False)

    class Library:
        fit = staticmethod(short)

        def __getattr__(self, name: str) -> Any:
            return getattr(sa, name)

    monkeypatch.setattr(from_csv, "sa", Library())
    monkeypatch.setattr(from_csv, "write", lambda *_: [])
    command = ("model.py:line", "--data", "data.csv", "--set", "wide=2.0", "--tolerance", "0.2")
    widths: list[Any] = []
    monkeypatch.setattr(jax.config, "update", lambda *to: widths.append(to))
    result = run(*command, "--key", "5", "--quiet", "--x64")
    assert widths[0] == ("jax_enable_x64", True)
    assert result.exit_code == from_csv.NOT_GOOD  # nobody has judged
    assert result.output == ""
    assert (asked["key"], asked["tolerance"], asked["progress"]) == (5, 0.2, False)
    assert "wide=2.0" in repr(asked["target"])


def test_a_verdict_that_is_not_good_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    class Shown:
        diagnosis = type("Diagnosis", (), {"verdict": LONGER})

    monkeypatch.setattr(from_csv, "run", lambda *_: (Shown(), ["a note"]))
    (folder / "fit").mkdir()
    result = run("model.py:alone")
    assert result.exit_code == 3
    assert "a note" in result.output


@pytest.mark.parametrize("name", ["made", "held"])
def test_a_pymc_model(name: str, folder: Path) -> None:
    pytest.importorskip("pymc")
    (folder / "pymc_model.py").write_text(PYMC)
    (folder / "two.csv").write_text("x,y\n1,2\n2,4\n")
    table = from_csv.Table(folder / "two.csv")
    model = from_csv.load_model("pymc_model.py:" + name)
    target, labels = from_csv.as_target(model, table, {})
    assert target.site_names == ("b",)
    assert labels == {}
    # the conjugate posterior of y = b x: N(8.0, 20) / 20.04, precision x·x/0.25 + 1/25
    slope = jax.grad(target.log_prob)(jnp.array([2.0]))[0]
    assert float(slope) == pytest.approx(10 / 0.25 - (5 / 0.25 + 1 / 25) * 2.0, rel=1e-4)


def test_a_numpyro_function_where_pymc_is_there_too(folder: Path) -> None:
    pytest.importorskip("pymc")
    model = from_csv.load_model("model.py:everything")
    target, _ = from_csv.as_target(model, from_csv.Table(folder / "data.csv"), {})
    assert target.site_names == ("mu",)


def test_columns(folder: Path) -> None:
    (folder / "t.csv").write_text('i,f,t,u\n1,1,yes,1_0\n-2,2.5,"no, not",1_1\n')
    table = from_csv.Table(folder / "t.csv")
    assert table.names == ["i", "f", "t", "u"]
    assert table["i"].values.dtype == np.int32
    assert table["f"].values.dtype == np.float32
    assert table["t"].labels == ("no, not", "yes")
    assert table["t"].values.tolist() == [1, 0]
    assert table["u"].labels == ("1_0", "1_1")  # no numbers, though Python reads them as such


WRONG: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no colon": (("model.py",), "", "model must be FILE:NAME, .* got 'model.py'"),
    "no file": (("none.py:line",), "", "model: there is no file 'none.py'"),
    "no name": (("model.py:lines",), "", "has no 'lines'; it defines line, everything, alone"),
    "no model": (("model.py:number",), "", "model must be a NumPyro function, a pymc.Model"),
    "no data": (("model.py:line",), "", "the model needs x, kind, y, kind_labels, for which"),
    "a column less": (("model.py:line",), "x,y\n1,2\n", "needs kind, kind_labels.*there are x, y"),
    "no table": (("model.py:line", "--data", "none.csv"), "", "data: there is no file 'none.csv'"),
    "an empty table": (("model.py:line",), "x,kind,y\n", "needs a line of names and a line of"),
    "a value less": (
        ("model.py:line",), "x,kind,y\n1,a,2\n1,,3\n",
        r"column 'kind' has no value in row 2 \(line 3 of 't.csv': ''\)",
    ),
    "NA": (("model.py:line",), "x,kind,y\nNA,a,2\n", "column 'x' has no value in row 1"),
    "infinite": (("model.py:line",), "x,kind,y\ninf,a,2\n", "'x' must hold finite numbers, got"),
    "ragged": (("model.py:line",), "x,kind,y\n1,a\n", "row 1 of 't.csv' has 2 values where"),
    "twice": (("model.py:line",), "x,x\n1,2\n", "has the column 'x' twice"),
    "too long": (("model.py:line",), "x,kind,y\n99999999999,a,1\n", "'x' .* give --x64"),
    "set what": (("model.py:line", "--set", "deep=2"), "x\n1\n", "no argument deep; it has x"),
    "set how": (("model.py:line", "--set", "wide"), "x\n1\n", "set must be NAME=VALUE, got 'wide'"),
    "tolerance": (("model.py:alone", "--tolerance", "7"), "", "tolerance must be a number"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_one_line(what: str, folder: Path) -> None:
    arguments, text, says = WRONG[what]
    if text:
        (folder / "t.csv").write_text(text)
        arguments = (*arguments, "--data", "t.csv")
    result = run(*arguments)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert said.startswith("error: ")
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(says, said), said


def test_pymc_data_of_other_names(folder: Path) -> None:
    pytest.importorskip("pymc")
    (folder / "pymc_model.py").write_text(PYMC)
    (folder / "t.csv").write_text("z\n1\n")
    for arguments, says in (
        (("--data", "t.csv"), "no pymc.Data of the name of a column (z); it has x"),
        (("--set", "x=3"), "a pymc.Model has no arguments, got x"),
    ):
        result = run("pymc_model.py:held", *arguments)
        assert result.exit_code == 1
        assert says in " ".join(result.output.split())
