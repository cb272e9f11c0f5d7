"""Calibration: exact bands, a right procedure that passes, wrong ones that do not, and its file."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import scoreascent as sa
from scoreascent.diagnostics import uniform
from scoreascent.fitting import simulations
from scoreascent.fitting.calibration import MIN_SIMULATIONS, Calibration, how_wrong
from tests.stats import Z_MAX, Z_MUTANT

X = np.linspace(-1, 1, 6).astype(np.float32) + 1.5  # not centred, so that a and b correlate
Y = np.zeros(6, np.float32)
EXACT = {  # a fit whose q is the posterior of a line, whichever the data
    "method": sa.pmcsa(64),
    "q0": sa.FullRank.standard(2),
    "optimizer": sa.moment_matching(),
    "steps": 300,
    "average": True,
}


def line(x: Any, y: Any, width: float = 1.0) -> None:
    a = numpyro.sample("a", dist.Normal(0, width))
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a + b * x, 1), obs=y)


def wide(x: Any, y: Any) -> None:
    line(x, y, width=2.0)


def scale(y: Any) -> None:
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(0, sigma), obs=y)


def no_jacobian(y: Any) -> None:
    u = numpyro.sample("u", dist.ImproperUniform(dist.constraints.real, (), ()))
    sigma = numpyro.deterministic("sigma", jnp.exp(u))
    numpyro.factor("prior", dist.HalfNormal(1).log_prob(sigma))
    numpyro.sample("y", dist.Normal(0, sigma), obs=y)


def calibrate(model: Any = line, *args: Any, **settings: Any) -> Calibration:
    args = args or (() if isinstance(model, sa.Target) else (X, Y))
    settings = {"simulations": 128, "options": EXACT, "progress": False, "key": 1} | settings
    return sa.calibrate(model, *args, **settings)


# -- the band --------------------------------------------------------------------------------------


def test_the_probability_of_a_band_is_exact_where_it_can_be_counted():
    """Of two numbers all orders can be enumerated: each falls between two points, or beyond."""
    low, high = np.array([0, 1]), np.array([1, 2])
    cells = np.diff(np.concatenate([[0.0], uniform.points(2), [1.0]]))
    total = 0.0
    for places in itertools.product(range(3), repeat=2):
        counts = [sum(p <= k for p in places) for k in range(2)]
        inside = all(lo <= c <= hi for lo, c, hi in zip(low, counts, high))
        total += inside * np.prod(cells[list(places)])
    assert uniform._coverage(2, low, high) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("n", [20, 150])
def test_the_band_holds_as_often_as_it_says(n):
    rng, m = np.random.default_rng(0), 2000
    at = uniform.points(n)
    ecdf = np.mean(rng.uniform(size=(m, n, 1)) <= at, axis=1)

    def z(low: Any, high: Any) -> float:
        inside = np.mean(np.all((ecdf >= low) & (ecdf <= high), axis=1))
        return float((inside - 0.9) / np.sqrt(0.9 * 0.1 / m))

    assert z(*uniform.band(n, 0.9)) > -Z_MAX
    assert uniform._coverage(n, *(np.round(x * n).astype(int) for x in uniform.band(n, 0.9))) < 0.96
    pointwise = [x / n for x in uniform._bounds(n, 0.1)]
    assert z(*pointwise) < -Z_MUTANT


def test_p_values_are_small_as_often_as_they_say():
    rng, m = np.random.default_rng(1), 1000
    p = np.array([uniform.p_value(rng.uniform(size=60)) for _ in range(m)])
    for level in (0.05, 0.3):
        assert (np.mean(p <= level) - level) / np.sqrt(level * (1 - level) / m) < Z_MAX
    assert 0.3 < np.median(p) < 0.7
    narrow = [uniform.p_value(rng.beta(0.6, 0.6, size=120)) for _ in range(50)]
    assert np.mean(np.array(narrow) < 0.05) > 0.5


# -- right and wrong procedures --------------------------------------------------------------------


def test_a_right_procedure_is_calibrated():
    found = calibrate()
    assert found.names == ("a", "b", "log likelihood")
    assert found.pit.shape == (128, 3)
    assert found.calibrated
    assert "calibrated, as far as 128 simulations tell" in str(found)


def test_a_prior_that_is_too_wide_in_the_simulator_is_seen():
    found = calibrate(simulator=wide)
    assert not found.calibrated
    assert found.names[found.wrong[0]] == "a"
    assert "NOT calibrated: a comes out too narrow" in found.verdict


@pytest.mark.slow
def test_a_dropped_jacobian_is_seen():
    steps = EXACT | {"q0": sa.FullRank.standard(1)}
    y = np.zeros(4, np.float32)
    right, wrong = (
        calibrate(model, y, simulator=scale, options=steps, simulations=256)
        for model in (scale, no_jacobian)
    )
    assert right.p_values[0] > 10 * wrong.p_values[0]
    assert "sigma comes out too small" in wrong.verdict


def test_a_narrow_q_of_the_elbo_is_seen():
    steps = {"method": sa.elbo(8), "steps": 2000, "average": True}
    found = calibrate(options=steps)
    assert "too narrow" in found.verdict
    assert {found.names[i] for i in found.wrong} >= {"a", "b"}


@pytest.mark.slow
def test_automatic_fits_are_calibrated():
    found = calibrate(scale, np.zeros(5, np.float32), options=None, simulations=100)
    assert found.calibrated
    assert found.verdicts.count("good") > 90


def test_words_for_what_is_wrong():
    u = (np.arange(100) + 0.5) / 100
    assert how_wrong(u**2) == "comes out too large"
    assert how_wrong(np.sqrt(u)) == "comes out too small"
    assert how_wrong(0.5 + 0.5 * (u - 0.5)) == "comes out too wide"


def test_few_simulations_say_nothing():
    found = calibrate(simulations=MIN_SIMULATIONS - 1)
    assert not found.calibrated
    assert "too few simulations" in found.verdict


# -- targets, other runners, failures --------------------------------------------------------------


def test_a_target_with_a_simulator():
    """Means of one observation each: N(0, 1) priors, and no likelihood that is known by itself."""
    target = sa.Target(
        lambda p, y: -0.5 * jnp.sum(p["m"] ** 2 + (y - p["m"]) ** 2),
        params={"m": sa.Param(shape=(2,))},
        data=jnp.zeros(2),
    )

    def simulator(key: Any) -> Any:
        key_m, key_y = jax.random.split(key)
        m = jax.random.normal(key_m, (2,))
        return {"m": m}, m + jax.random.normal(key_y, (2,))

    found = calibrate(target, simulator=simulator, key=2)
    assert found.names == ("m[0]", "m[1]")
    assert found.calibrated


def test_any_map_gives_the_same_rows():
    one = {"options": None, "simulations": 3}
    plain = calibrate(**one)
    with ThreadPoolExecutor(2) as pool:
        assert np.array_equal(calibrate(**one, map=pool.map).pit, plain.pit)


def test_a_fit_that_fails_is_counted_and_said(monkeypatch):
    fit = simulations.fit

    def fragile(target: Any, **options: Any) -> Any:
        result = fit(target, **(options | EXACT | {"steps": 5}))
        if result.target.data[0][0] > 0:
            raise sa.DivergenceError("diverged", result)
        return result

    monkeypatch.setattr(simulations, "fit", fragile)
    found = calibrate(options=None, simulations=12)
    assert 0 < found.simulations < 12
    says = str(found)
    assert f"{12 - found.simulations} of 12 simulations are missing" in says
    assert f"{12 - found.simulations} failed: diverged" in says


# -- the file --------------------------------------------------------------------------------------


def test_a_calibration_resumes_where_it_was(tmp_path, monkeypatch):
    path = tmp_path / "ranks.npz"
    whole = calibrate(simulations=70)
    calibrate(simulations=30, checkpoint=path)
    seen = []
    inner = simulations.Simulation._side_by_side
    monkeypatch.setattr(
        simulations.Simulation, "_side_by_side", lambda s, n: (seen.extend(n), inner(s, n))[1]
    )
    resumed = calibrate(simulations=70, checkpoint=path)
    assert seen == list(range(64, 128))  # a block is computed whole
    assert np.array_equal(resumed.pit, whole.pit)


def test_a_file_of_another_calibration_is_refused(tmp_path):
    path = tmp_path / "ranks.npz"
    calibrate(simulations=2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(sa.CheckpointError, match="draws: file 99, now 50"):
        calibrate(simulations=2, draws=50, checkpoint=path)
    with pytest.raises(sa.CheckpointError, match="of another calibration"):
        calibrate(simulations=2, simulator=wide, checkpoint=path)
    assert path.read_bytes() == before
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(sa.CheckpointError, match="damaged"):
        calibrate(simulations=2, checkpoint=path)


def test_ctrl_c_gives_what_is_there(tmp_path, monkeypatch):
    inner = simulations.Simulation.__call__

    def stops(self: Any, i: int) -> Any:
        if i == 2:
            raise KeyboardInterrupt
        return inner(self, i)

    monkeypatch.setattr(simulations.Simulation, "__call__", stops)
    path = tmp_path / "ranks.npz"
    found = calibrate(options=None, simulations=5, checkpoint=path)
    assert found.simulations == 2
    assert "3 of 5 simulations are missing" in str(found)
    with np.load(path) as file:
        assert file["numbers"].tolist() == [0, 1]


# -- PyMC ------------------------------------------------------------------------------------------


def pymc_line(width: float = 1.0, held: bool = False) -> Any:
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        y = pm.Data("data", Y) if held else Y
        a = pm.Normal("a", 0, width)
        b = pm.Normal("b", 0, 1)
        pm.Deterministic("end", a + 2 * b)
        pm.Normal("y", a + b * X, 1, observed=y)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_a_pymc_model_is_calibrated(held):
    settings: dict[str, Any] = {"simulations": 128, "options": EXACT, "progress": False, "key": 1}
    found = sa.calibrate(pymc_line(held=held), **settings)
    assert found.names == ("a", "b", "end", "log likelihood")
    assert found.calibrated
    wrong = sa.calibrate(pymc_line(held=held), simulator=pymc_line(width=4.0), **settings)
    assert {"a", "end"} & {wrong.names[i] for i in wrong.wrong}


def test_a_pymc_model_takes_no_arguments():
    with pytest.raises(ValueError, match="a PyMC model has its data"):
        sa.calibrate(pymc_line(), X)
    with pytest.raises(ValueError, match="simulator must be a model of the same kind"):
        sa.calibrate(pymc_line(), simulator=line)
