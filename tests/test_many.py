"""Many fits at once: exact posteriors, one that is irregular among them, folders that go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.diagnostics.measure import measure
from scoreascent.diagnostics.rules import GOOD, judge
from scoreascent.fitting import many
from tests.helpers import same_bits

# the fits whose posteriors have a second mode of no weight, two modes, and data that are NaN
LIGHT, HALF, BROKEN = 2, 3, 5
COUNT = 8  # as many as the smallest program has


def log_density(z: Any, data: Any) -> Any:
    """A correlated Gaussian, and a second one at a distance that may have some of the mass."""
    x = (z - data["centre"]) / data["scale"]
    gauss = lambda x: -0.5 * (x[0] ** 2 - 1.2 * x[0] * x[1] + x[1] ** 2) / (1 - 0.36)  # noqa: E731
    return jnp.logaddexp(gauss(x), jnp.log(data["other"]) + gauss(x - 12))


def moments(i: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(i)
    return rng.normal(size=2) * 3, np.exp(rng.normal(size=2))


def make(i: int) -> sa.Target:
    centre, scale = moments(i)
    data = {"centre": np.float32(centre), "scale": np.float32(scale)}
    other = 1e-12 if i == LIGHT else 0.0
    return sa.Target(log_density, dim=2, data={**data, "other": np.float32(other)})


def irregular(i: int) -> sa.Target:
    target = make(i)
    if i == HALF:
        target.data["other"] = jnp.float32(0.5)
    if i == BROKEN:
        target.data["centre"] = target.data["centre"] * jnp.nan
    return target


@pytest.fixture(scope="module")
def fits() -> sa.Fits:
    return sa.fit([make(i) for i in range(COUNT)], key=3, progress=False)


@pytest.fixture(scope="module")
def mixed() -> sa.Fits:
    targets = [irregular(i) if i == BROKEN else make(i) for i in range(COUNT)]
    return sa.fit(targets, key=3, progress=False)


def scores(rows: list[dict[str, Any]]) -> Any:
    """By how many standard errors means and sds are off."""
    found = []
    for row in rows:
        mean, sd = (x[int(row["name"][2])] for x in moments(row["fit"]))
        found += [(row["mean"] - mean) / row["mean_error"], (row["sd"] - sd) / row["sd_error"]]
    return np.array(found)


def test_posteriors_that_are_known(fits: sa.Fits) -> None:
    assert fits.verdicts == (GOOD,) * COUNT
    assert not fits.failures
    assert not any("fitted by itself" in fits[i].decisions[0] for i in range(COUNT))
    rows = fits.summary()
    assert len(rows) == 2 * COUNT
    assert np.max(np.abs(scores(rows))) < 5
    # a mutant whose means are off by 0.15 sds
    moved = [{**row, "mean": row["mean"] + 0.15 * row["sd"]} for row in rows]
    assert np.max(np.abs(scores(moved))) > 5


def test_each_fit_is_a_result(fits: sa.Fits) -> None:
    result = fits[2]
    centre, scale = moments(2)
    assert isinstance(result, sa.Result)
    assert np.all(np.abs(result.q.mean - centre) < 0.1 * scale)
    assert result.status == "converged"
    assert result.decisions[-1].endswith("verdict: good")
    assert result.diagnosis is not None
    assert result.evaluations is not None
    assert min(result.evaluations) > 0
    assert "verdict: good" in str(result)
    draws = result.sample(0, 2000)["z"]
    assert np.all(np.abs(np.mean(draws, 0) - centre) < 0.15 * scale)
    assert abs(result.log_evidence().value - np.log(2 * np.pi * 0.8 * np.prod(scale))) < 0.1
    assert fits[-1].q.dim == 2
    with pytest.raises(IndexError, match=f"fit {COUNT} of {COUNT}"):
        fits[COUNT]


def test_the_verdict_rests_on_the_same_measures(fits: sa.Fits) -> None:
    """What many fits were measured by is what the instruments for one fit measure."""
    result = fits[4]
    known = result.diagnosis
    assert known is not None
    keys = jax.random.split(jax.random.key(1))
    alone = measure(result, (keys[0], keys[1]), None, 0)
    exact = (
        "looked", "acceptance", "stuck", "stay", "rhat", "chain_ess", "efficiency", "shift",
        "ratio", "narrowest", "tail", "least_log_q", "spacing", "rhat_lambda", "error", "growth",
        "reach", "places_agree", "parts", "moves_alone", "bent", "tolerance", "worst", "status",
    )  # fmt: skip
    for name in exact:
        a, b = getattr(alone, name), getattr(known, name)
        assert a == b or np.isclose(a, b, rtol=1e-4, atol=1e-5), (name, a, b)
    for row, other in zip(alone.numbers, known.numbers, strict=True):
        assert row["name"] == other["name"]
        values = [[r[k] for k in r if k != "name"] for r in (row, other)]
        assert np.allclose(*values, rtol=1e-5, equal_nan=True)
    assert known.unsure == pytest.approx(alone.unsure * 5.0 / 3.5)
    assert abs(alone.ess - known.ess) < 200  # by other draws
    assert abs(alone.log_evidence - known.log_evidence) < 0.05
    assert max(alone.unseen, known.unseen, alone.lacking, known.lacking) < 0.02
    assert judge(alone).verdict == GOOD


@pytest.mark.slow
def test_an_irregular_one_does_not_spoil_the_others(fits: sa.Fits) -> None:
    mixed = sa.fit([irregular(i) for i in range(COUNT)], key=3, progress=False)
    result = mixed[HALF]
    assert "fitted by itself" in result.decisions[0]
    assert result.diagnosis is not None
    centre, scale = moments(HALF)
    if result.diagnosis.verdict == GOOD:  # then both modes must be there
        sd = scale * np.sqrt(1 + 144 * 2 / 9)
        rows = [row for row in mixed.summary() if row["fit"] == HALF]
        mean = np.array([row["mean"] for row in rows])
        assert np.all(np.abs(mean - centre - 4 * scale) < 0.1 * sd)
    rest = [i for i in range(COUNT) if i not in (HALF, BROKEN)]
    assert all(mixed.verdicts[i] == GOOD for i in rest)
    assert all(same_bits(mixed[i].q, fits[i].q) for i in rest)


def test_data_that_are_nan_fail_alone(fits: sa.Fits, mixed: sa.Fits) -> None:
    assert list(mixed.failures) == [BROKEN]
    assert "data holds NaN" in mixed.failures[BROKEN]
    assert mixed.verdicts[BROKEN] == "failed"
    with pytest.raises(ValueError, match=f"fit {BROKEN} failed: .*NaN"):
        mixed[BROKEN]
    assert all(same_bits(mixed[i].q, fits[i].q) for i in range(COUNT) if i != BROKEN)
    row = next(row for row in mixed.summary() if row["fit"] == BROKEN)
    assert row["verdict"] == "failed"
    assert np.isnan(row["mean"])
    assert f"! fit {BROKEN}: ValueError" in str(mixed)


def test_a_table(fits: sa.Fits, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas, arrow = fits.to_pandas(), fits.to_arrow()
    assert list(pandas.columns) == arrow.column_names == list(many.COLUMNS)
    assert len(pandas) == arrow.num_rows == 2 * COUNT
    assert pandas["mean"][0] == fits.summary()[0]["mean"] == arrow["mean"][0].as_py()
    for name, module in (("to_pandas", "pandas"), ("to_arrow", "pyarrow")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ModuleNotFoundError, match=r"scoreascent\[experiments\]"):
                getattr(fits, name)()


def shapes() -> list[sa.Target]:
    density = lambda z, x: -jnp.sum((z - x) ** 2)  # noqa: E731
    return [sa.Target(density, dim=2, data=np.zeros((n, 2), np.float32)) for n in (3, 4)]


WRONG = {
    "nothing": (lambda: sa.fit([], progress=False), "target is an empty list"),
    "shapes": (lambda: sa.fit(shapes()), r"target\[1\] has data of shapes \[\(4, 2\)\]"),
    "functions": (
        lambda: sa.fit([make(0), sa.Target(lambda z: -jnp.sum(z**2), dim=2)]),
        r"target\[1\] differs from the first in more than the numbers",
    ),
    "no target": (lambda: sa.fit([make(0), 3]), r"target\[1\] must be a Target, got 3"),
    "an option": (lambda: sa.fit([make(0)], steps=7), "take key, tolerance and progress, got step"),
    "tolerance": (lambda: sa.fit([make(0)], tolerance=0), "tolerance must be a number from"),
    "no count": (lambda: sa.fit_many(make, "x"), "count: say how many"),
    "one": (lambda: sa.fit_many(make(0), "x"), "targets is one Target"),
    "none": (lambda: sa.fit_many([], "x"), "targets is empty"),
    "another count": (lambda: sa.fit_many([make(0)], "x", count=2), "count is 2 but 1"),
    "a backend": (lambda: sa.fit_many([make(0)], "x", backend="slurm"), "backend must be one of"),
    "an address": (lambda: sa.fit_many([make(0)], "x", address="a"), "address is for backend"),
    "no targets": (lambda: sa.fit_many([3], "x"), "must give Target objects"),
    "a number": (lambda: sa.fit_many(3, "x"), "targets must be targets or a function"),
    "a block": (lambda: sa.fit_many([make(0)], "x", block=0), "block must be an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()
    assert not list(tmp_path.iterdir())


# -- folders ---------------------------------------------------------------------------------------


def some(i: int) -> sa.Target:
    """One of which cannot be made."""
    if i == 10:
        raise KeyError("no such shop")
    return make(i)


def together(folder: Path, count: int = 12, **options: Any) -> sa.Fits:
    options = {"key": 3, "block": COUNT, "progress": False} | options
    return sa.fit_many(options.pop("targets", some), folder, count=count, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fits") / "out"
    together(path)
    return path


def test_a_folder_holds_what_a_list_does(folder: Path, fits: sa.Fits) -> None:
    stored = together(folder)  # nothing is computed
    assert stored.failures == {10: "could not be made: KeyError: 'no such shop'"}
    assert [v for i, v in enumerate(stored.verdicts) if i != 10] == [GOOD] * 11
    assert stored.summary()[: 2 * COUNT] == fits.summary()
    assert same_bits(stored[2].q, fits[2].q)
    assert same_bits(stored[2].states, fits[2].states)
    assert stored[2].decisions == fits[2].decisions
    assert same_bits(stored[2].sample(0, 10), fits[2].sample(0, 10))


def test_fits_do_not_depend_on_blocks(tmp_path: Path, folder: Path) -> None:
    parts = together(tmp_path / "out", block=5).summary()
    assert parts == together(folder).summary()
    other = together(tmp_path / "other", block=5, key=4, count=2).summary()
    assert other[0]["mean"] != parts[0]["mean"]


def times(path: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in path.glob("*.npz")}


def test_what_is_missing_or_half_written_is_computed_again(folder: Path, tmp_path: Path) -> None:
    expected = together(folder).summary()
    before = times(folder)
    second = folder / f"{COUNT:09d}-{12:09d}.fits.npz"
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2])
    assert together(folder).summary() == expected
    after = times(folder)
    assert {n for n in before if before[n] != after[n]} == {
        second.name, second.name.replace("fits", "states")
    }  # fmt: skip


def test_a_folder_of_another_problem_is_refused(folder: Path, tmp_path: Path) -> None:
    before = times(folder)
    for options, message in (
        ({"key": 4}, "key: there"),
        ({"tolerance": 0.2}, "tolerance: there 0.1, now 0.2"),
        ({"targets": lambda i: make(i + 1)}, "data: there"),
    ):
        with pytest.raises(sa.CheckpointError, match=f"holds fits of another problem .*{message}"):
            together(folder, **options)
    with pytest.raises(sa.CheckpointError, match="holds fit 8 of other data"):
        together(folder, targets=lambda i: make(i + (i == COUNT)))
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(sa.CheckpointError, match="is not empty and holds no fits"):
        together(tmp_path)
    assert times(folder) == before


def test_what_is_left_over_may_stay_so(tmp_path: Path) -> None:
    targets = [irregular(i) for i in range(COUNT)]
    stream = iter(targets)
    found = sa.fit_many(stream, tmp_path / "o", key=3, finish=False, block=COUNT, progress=False)
    assert found.failures[BROKEN].startswith("not finished: ")
    assert set(found.failures) <= {HALF, BROKEN}  # of one mode there may be a result, not good
    assert [i for i, v in enumerate(found.verdicts) if v != GOOD] == [HALF, BROKEN]
    with pytest.raises(ValueError, match="needs its target: give fit_many a sequence"):
        found[0]


@pytest.mark.slow
def test_models_of_numpyro_are_many_fits_too() -> None:
    """Which differ in their arguments; numbers have the names of sites, in their own spaces."""
    made = [regression(i) for i in range(COUNT)]
    found = sa.fit([target for target, _, _ in made], key=3, progress=False)
    assert set(found.verdicts) == {GOOD}
    for i, (_, mean, sd) in enumerate(made):
        rows = {row["name"]: row for row in found.summary() if row["fit"] == i}
        assert set(rows) == {"b[0]", "b[1]"}
        for j, row in enumerate(rows.values()):
            assert abs(row["mean"] - mean[j]) < 4.5 * row["mean_error"]
            assert abs(row["sd"] - sd[j]) < 4.5 * row["sd_error"]


def regression(i: int) -> tuple[sa.Target, Any, Any]:
    """A NumPyro model of 30 rows with known noise, and its posterior means and sds."""
    rng = np.random.default_rng(i)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    y = (x @ [1.0, -1.0] + 0.5 * rng.normal(size=30)).astype(np.float32)
    cov = np.linalg.inv(x.T @ x / 0.25 + np.eye(2) / 4)
    return sa.from_numpyro(line, x, y), cov @ (x.T @ y) / 0.25, np.sqrt(np.diag(cov))


def line(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0, 2).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 0.5), obs=y)


def test_a_log_says_how_many_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    """They have no loss and no acceptance in common, and their number is known."""
    sa.fit([make(i) for i in range(COUNT)], key=3)
    assert capsys.readouterr().err.splitlines()[-1].strip() == f"fits {COUNT}/{COUNT}"


def test_interrupted_between_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]

    def look(self: Any) -> None:
        looks[0] += 1
        if looks[0] == 3:
            os.kill(os.getpid(), signal.SIGINT)
        self_asked(self)

    self_asked = many.Shown.look
    monkeypatch.setattr(many.Shown, "look", look)
    found = together(tmp_path / "out", count=COUNT)
    assert set(found.failures.values()) == {"not fitted yet"}
    looks[0] = 10
    assert together(tmp_path / "out", count=COUNT).verdicts == (GOOD,) * COUNT
    looks[0] = 0
    listed = sa.fit([make(i) for i in range(COUNT)], key=3, progress=False)
    assert set(listed.failures.values()) == {many.INTERRUPTED}


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed(
    backend: Any, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module}.*'scoreascent\[{backend}\]'"):
        together(tmp_path / "out", backend=backend)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_workers_fill_the_same_folder(backend: Any, tmp_path: Path, folder: Path) -> None:
    pytest.importorskip(
        "distributed" if backend == "dask" else "ray", reason=f"{backend} is not installed here"
    )
    spread = together(tmp_path / "out", backend=backend, jobs=2)
    expected = together(folder).summary()
    for row, other in zip(spread.summary(), expected, strict=True):
        assert (row["fit"], row["verdict"]) == (other["fit"], other["verdict"])
        assert np.isclose(row["mean"], other["mean"], atol=0.1 * other["sd"], equal_nan=True)
    listed = [make(i) for i in range(COUNT)]
    of_list = sa.fit_many(listed, tmp_path / "l", backend=backend, jobs=1, key=3, progress=False)
    assert of_list.verdicts == (GOOD,) * COUNT


CHILD = """
import sys, scoreascent as sa
sys.path.insert(0, {root!r})
from tests.test_many import make
sa.fit_many(make, {out!r}, count=4000, key=3, block=8, progress=False)
"""


@pytest.mark.slow
def test_killed_and_begun_again(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "out"
    code = CHILD.format(root=str(Path(__file__).parents[1]), out=str(out))
    child = subprocess.Popen([sys.executable, "-c", code])
    while len(list(out.glob("*.fits.npz"))) < 2 and child.poll() is None:
        time.sleep(0.05)
    child.kill()
    child.wait()
    before = times(out)
    assert before
    found = together(out, targets=make, count=24)
    assert found.verdicts == (GOOD,) * 24
    after = times(out)
    assert all(after[name] == at for name, at in before.items() if ".fits." in name)
    assert found.summary()[: 2 * COUNT] == together(folder).summary()[: 2 * COUNT]


# -- other shapes ----------------------------------------------------------------------------------


def positive(params: Any, data: Any) -> Any:
    rate = params["rate"]
    return data["n"] * jnp.log(rate) - data["total"] * rate


@pytest.mark.slow
def test_named_parameters_in_their_own_space() -> None:
    counts = [(5.0, 2.0), (12.0, 30.0), (40.0, 8.0)]
    targets = [
        sa.Target(
            positive,
            params={"rate": constraints.positive},
            data={"n": np.float32(n - 1), "total": np.float32(t)},
        )
        for n, t in counts
    ]
    fits = sa.fit(targets, progress=False)
    assert fits.verdicts == (GOOD,) * 3
    for row, (n, t) in zip(fits.summary(), counts, strict=True):  # Gamma(n, t)
        assert row["name"] == "rate"
        assert abs(row["mean"] - n / t) < 0.1 * n**0.5 / t
        assert abs(np.log(row["sd"] / (n**0.5 / t))) < 0.1


@pytest.mark.slow
def test_densities_that_no_batch_takes_are_fitted_one_by_one() -> None:
    target = sa.Target.from_host(lambda z: -0.5 * np.sum(z**2), lambda z: -z, dim=2)
    fits = sa.fit([target, target], progress=False)
    assert fits.verdicts == (GOOD, GOOD)
    assert "log_density is not jax's" in fits[0].decisions[0]
