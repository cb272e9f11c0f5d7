"""The examples run, in short, and their posteriors are those of the long runs by NUTS."""

from __future__ import annotations

import functools
import importlib
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics.rules import GOOD, STUCK, UNSEEN, WEIGH

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "reference")

# Means and sds of NUTS, four chains of 2000 draws: what the scripts print when run in full.
SCHOOLS = {  # of raw and theta, the first school
    "mu": (4.35, 3.32),
    "tau": (3.56, 3.17),
    "raw": (0.31, 0.98),
    "theta": (6.11, 5.48),
}
STACK_LOSS = {"intercept": (17.5, 0.74), "slope": (6.55, 1.29), "scale": (3.09, 0.68)}
SEEDS = {"beta": (-0.044, 0.116)}


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the `main` of an example; what it prints goes with what it gives back."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sa, "fit", functools.partial(sa.fit, progress=False))

    def call(name: str, nuts: Any = instead_of_nuts, **settings: Any) -> Any:
        module = importlib.import_module(name)
        if nuts is not None:
            monkeypatch.setattr(module, "nuts", nuts)
        return module.main(**settings), capsys.readouterr().out

    return call


def instead_of_nuts(target: Any, draws: int = 100, key: int = 1) -> Any:
    """Draws of the right shape: one example runs NUTS itself, the others need not."""
    return jax.vmap(target.named)(jax.random.normal(jax.random.key(key), (draws, target.dim)))


def first(draws: Any) -> Any:
    return np.asarray(draws).reshape(len(draws), -1)[:, 0]


def off(result: Any, expected: dict[str, tuple[float, float]]) -> float:
    """The largest error of a mean, in sds, or of a log sd."""
    draws = result.sample(1, 10_000)
    errors = [
        (abs(x.mean() - mean) / sd, abs(np.log(x.std() / sd)))
        for name, (mean, sd) in expected.items()
        for x in [first(draws[name])]
    ]
    return float(np.max(errors))


def check_printed(out: str, diagnosis: Any) -> None:
    assert f"verdict: {diagnosis.verdict}" in out
    assert "NUTS" in out
    assert "parameter" in out


@pytest.mark.slow
def test_eight_schools_in_numpyro(run):
    (result, diagnosis, reference), out = run("eight_schools_numpyro", nuts=None, draws=400)
    check_printed(out, diagnosis)
    assert diagnosis.verdict == GOOD
    assert off(result, SCHOOLS) < 0.1
    # of draws of q this is wrong, though its verdict is good: they are not what is shown
    tau = np.asarray(result.sample(1, 10_000, draws="q")["tau"])
    assert np.log(tau.std() / SCHOOLS["tau"][1]) > 0.3
    assert off(result, {"mu": (0.0, 3.32)}) > 0.5  # it can fail
    assert reference["theta"].shape == (1600, 8)
    mu = np.asarray(reference["mu"])
    assert mu.mean() == pytest.approx(4.35, abs=5 * 3.32 / np.sqrt(400))  # no fewer effective draws


@pytest.mark.slow
def test_many_fits(run):
    fits, out = run("many_fits", shops=8)
    assert set(fits.verdicts) == {GOOD}
    assert "the largest effects:" in out
    assert "it should be about 1" in out


@pytest.mark.slow
def test_eight_schools_in_pymc(run):
    pytest.importorskip("pymc")
    pytest.importorskip("arviz")
    (result, diagnosis, _), out = run("eight_schools_pymc", draws=100)
    check_printed(out, diagnosis)
    assert diagnosis.verdict == GOOD
    assert off(result, SCHOOLS) < 0.1
    assert "theta[Lawrenceville]" in out


@pytest.mark.slow
def test_robust_regression(run):
    (result, diagnosis, _), out = run("robust_regression", steps=4000, draws=100)
    check_printed(out, diagnosis)
    assert diagnosis.verdict in (WEIGH, UNSEEN)  # `freedom` has a tail that q lacks
    assert off(result, STACK_LOSS) < 0.25
    assert "least squares: [17.52  6.4   4.   -0.8 ]" in out  # the data are the published ones


@pytest.mark.slow
def test_hierarchical_logistic(run):
    (result, diagnosis, _), out = run("hierarchical_logistic", steps=1500, draws=100)
    check_printed(out, diagnosis)
    assert diagnosis.verdict in (GOOD, WEIGH)
    assert diagnosis.stuck == 0
    assert off(result, SEEDS) < 0.25
    assert "kind × extract" in out


@pytest.mark.slow
def test_mean_field_fails_and_is_called_out(run, tmp_path):
    """The verdict against the closed form: wrong where it says so, right where it says so."""
    pytest.importorskip("matplotlib").use("Agg")
    picture = tmp_path / "pairs.png"
    (verdicts, results), out = run("mean_field_fails", nuts=None, steps=4000, picture=picture)
    module = importlib.import_module("mean_field_fails")
    assert verdicts["mean-field"].verdict == STUCK
    assert verdicts["full rank"].verdict == verdicts["other coordinates"].verdict == GOOD
    ratio = {name: np.asarray(results[name].q.sd) / module.SD for name in list(results)[:2]}
    assert np.all(ratio["mean-field"] < 0.92)
    np.testing.assert_allclose(ratio["full rank"], 1, atol=0.08)
    assert out.count("in truth") == 3
    assert picture.stat().st_size > 10_000


@pytest.mark.slow
def test_two_modes(run):
    """Labels that nothing tells apart: each order has half of the mass, by symmetry."""
    (results, table, _), out = run("two_modes", draws=100)
    diagnosis = results[2].diagnosis
    check_printed(out, diagnosis)
    assert diagnosis.verdict == GOOD
    mean = np.asarray(results[2].sample(3, 4000)["mean"])
    above = np.mean(mean[:, 0] > mean[:, 1])
    assert above == pytest.approx(0.5, abs=0.03)
    assert off(results[2], {"spread": (5.45, 0.62)}) < 0.1  # of NUTS, for which modes are alike
    assert table.rows[0].name == "2 kinds"
    assert table["1 kinds"].difference < -7


@pytest.mark.slow
def test_calibrated(run, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    found, out = run("calibrated", nuts=None, simulations=100, picture=tmp_path / "ranks.png")
    says = {name: one.verdict for name, one in found.items()}
    assert found["sa.fit"].calibrated
    assert "NOT calibrated: a comes out too narrow" in says["a wider prior drew"]
    assert "sigma comes out too small" in says["no Jacobian"]
    assert "too narrow" in says["the ELBO's q"]
    assert out.count("verdict: ") == 4
    assert (tmp_path / "ranks.png").stat().st_size > 10_000


@pytest.mark.slow
def test_new_data(run):
    """Of new rows the truth is within; a new group varies as the groups do, and more."""
    (result, rows, groups, share), out = run("new_data", nuts=None)
    assert result.diagnosis.verdict == GOOD
    assert out.count("drawn anew: pace") == 1
    assert "- within: [ True  True  True]" in out
    assert groups["pace"].shape == (4000, 1)
    assert groups.sd["mean"][0] > 3 * rows.sd["mean"][0]
    assert 0.1 < share < 0.9


@pytest.mark.slow
def test_from_a_table(run, tmp_path):
    result, out = run("from_a_table", nuts=None, folder=tmp_path)
    assert result.diagnosis.verdict == GOOD
    slope = np.asarray(result.sample(0, 1000)["slope"])
    assert abs(slope.mean() - 0.77) < 0.05
    assert "fit.npz labels.csv report.html summary.csv" in out
    assert "from_a_table.py:yields" in out


@pytest.mark.slow
def test_hand_over(run):
    (result, handed, alone, gradients, again), out = run(
        "hand_over", nuts=None, draws=100, warmup=400
    )
    assert result.diagnosis.verdict == again.diagnosis.verdict == GOOD
    assert gradients[0] > 3 * gradients[1]
    for name in ("beta", "noise"):
        mean, sd = np.mean(handed[name], 0), np.std(handed[name], 0)
        assert np.all(np.abs(np.mean(alone[name], 0) - mean) < 0.5 * sd)
    assert "a fit of these draws: good" in out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_compiled_density(run):
    results, out = run("compiled_density", nuts=None)
    assert [r.diagnosis.verdict for r in results.values()] == [GOOD] * 3
    assert results["C, no gradient"].evaluations[1] == 0
    by_jax = results["JAX"].summary()
    for result in results.values():
        for mine, right in zip(result.summary(), by_jax):
            assert abs(mine["mean"] - right["mean"]) < 0.1 * right["sd"]
            assert abs(mine["sd"] / right["sd"] - 1) < 0.1
    assert "log_density has no gradient" in out


def test_keep_and_look(run, tmp_path):
    """The same table with the model and without; the page needs matplotlib."""
    (result, alone, whole), out = run("keep_and_look", nuts=None, folder=tmp_path, picture=False)
    assert result.diagnosis.verdict == GOOD
    assert str(alone) == str(whole) == str(result)
    assert "the same table: True" in out
    assert "without its target" in out
    assert "another posterior" in out


@pytest.mark.slow
def test_many_devices(run, monkeypatch):
    """Of one process, which has one; `tests/test_mesh.py` and `test_processes.py` have more."""
    monkeypatch.setattr(sa.distributed, "start", lambda: 1)
    (spread, read), out = run("many_devices", nuts=None, rows=512)
    assert spread.diagnosis.verdict == read.diagnosis.verdict == GOOD
    assert np.max(np.abs(spread.q.mean - read.q.mean) / spread.q.sd) < 0.1
    assert "spread over 1 device: rows 1" in out


def test_every_example_is_listed_and_tested():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    here = Path(__file__).read_text(encoding="utf-8")
    for name in SCRIPTS:
        assert f"`python examples/{name}.py`" in page
        assert f'"{name}"' in here
    assert len(SCRIPTS) == 14
