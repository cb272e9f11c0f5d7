"""The large models, their references, and the bench that holds fits against them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from scoreascent._structs import x64
from scoreascent.cli import app
from scoreascent.experiments import registry
from scoreascent.experiments.accuracy.models import coordinates
from scoreascent.experiments.large import bench, cell, methods, reference
from scoreascent.experiments.large.curves import JITTER, _raw_of_waves, _waves, process_data
from scoreascent.experiments.large.methods import METHODS, Seen, Way
from scoreascent.experiments.large.models import MODELS, large_model
from tests.registry import quick_rows

# in one or two seconds each; the others are slow
FIRST = ("slopes", "splines", "capture", "factors-regression")
# detours whose draws have the model's own dimension
ONTO = [n for n, m in MODELS.items() if m.detour is not None and n != "latent-gp"]


# -- models ----------------------------------------------------------------------------------------


def test_there_are_fifteen_and_a_third_is_held_out():
    assert len(MODELS) == 15
    assert sum(m.held_out for m in MODELS.values()) == 5
    assert min(m.dim for m in MODELS.values()) >= 80
    assert max(m.dim for m in MODELS.values()) == 2000
    with pytest.raises(ValueError, match="no model 'nothing'; choose from poisson-glmm"):
        large_model("nothing")


@pytest.mark.parametrize("name", quick_rows(MODELS, *FIRST))
def test_a_model_is_a_finite_density_of_its_dimension(name):
    """Also: its reference is of this density, which a change of model or data would break."""
    model, known = MODELS[name], reference.load(name)
    target = model.target()
    assert target.dim == model.dim
    assert tuple(coordinates(target)) == known.names
    assert not any(x.dtype == np.float64 for x in jax.tree.leaves(target.data))
    starts = np.random.default_rng(0).uniform(-2, 2, (3, model.dim))
    z = np.vstack([known.mean, starts]).astype(np.float32)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(target.log_prob)))(z)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    np.testing.assert_allclose(values[0], known.log_density, rtol=1e-4, atol=0.05)


def test_data_do_not_depend_on_when_they_are_made():
    for name in ("slopes", "latent-gp"):
        first, second = MODELS[name].data(), MODELS[name].data()
        assert all(np.array_equal(first[key], second[key]) for key in first)


# -- detours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick_rows(ONTO, "slopes-centred", "splines"))
def test_a_detour_has_the_posterior_of_the_model(name):
    """log p(back(z)) + log |det| − log p'(z) is one number, whatever z is."""
    model, step = MODELS[name], 1e-6
    with x64():
        target, other = model.target(), model.detour.target()
        z = 0.5 * np.random.default_rng(0).normal(size=(3, other.dim))
        there = model.detour.back(z)
        eye = step * np.eye(other.dim)
        slopes = [(model.detour.back(x + eye) - model.detour.back(x - eye)) / (2 * step) for x in z]
        dets = np.array([np.linalg.slogdet(slope)[1] for slope in slopes])
        ours = np.asarray(jax.vmap(target.log_prob)(jnp.asarray(there)))
        theirs = np.asarray(jax.vmap(other.log_prob)(jnp.asarray(z)))
    assert np.ptp(theirs) > 1  # the points differ,
    assert np.max(np.abs(theirs)) < 1e6  # and no number is so large that it hides an error
    np.testing.assert_allclose(np.diff(ours + dets - theirs), 0, atol=1e-5)
    assert np.ptp(ours - theirs) > 1e-3 or name == "counties"  # the Jacobian matters


@pytest.mark.parametrize("length", [0.1, 0.25, 0.6])
def test_waves_add_up_to_the_kernel_of_the_process(length):
    """The reference's log length is −1.40 ± 0.17: five sds are between 0.11 and 0.57."""
    x = process_data()["x"]
    waves, frequency = _waves(x)
    spectrum = np.sqrt(2 * np.pi) * length * np.exp(-0.5 * (length * frequency) ** 2)
    kernel = np.exp(-0.5 * (x[:, None] - x) ** 2 / length**2)
    np.testing.assert_allclose((waves * spectrum) @ waves.T, kernel, atol=1e-6)
    known = reference.load("latent-gp")
    at = known.names.index("log_length")
    assert np.log(0.1) < known.mean[at] - 5 * known.sd[at]
    assert known.mean[at] + 5 * known.sd[at] < np.log(0.6)


@pytest.mark.slow
def test_draws_of_waves_become_independent_noise():
    """Of the prior at one length: raw = L⁻¹ f has unit variances and no correlations."""
    rng, n = np.random.default_rng(0), 1000
    z = np.hstack([np.tile([0.3, np.log(0.25), 0.0], (n, 1)), rng.normal(size=(n, 428))])
    raw = _raw_of_waves(z[:, :])[:, 3:]
    assert raw.shape == (n, 300)
    assert JITTER < 0.01
    seen = np.cov(raw.T)
    assert np.max(np.abs(seen - np.eye(300))) < 6 * np.sqrt(2 / n)


# -- references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_reference_is_there_and_its_chains_agree(name):
    known = reference.load(name)
    assert known.good
    assert np.all(known.sd > 0)
    assert np.all(known.mcse <= 0.03 * known.sd)
    path = reference.STORED / f"{name}.csv"
    assert path.stat().st_size < 200_000
    assert "# source: " in path.read_text()
    assert "# jax: " in path.read_text()


def test_stored_values_are_the_exact_ones():
    mean, sd = MODELS["factors-regression"].exact()
    stored = reference.load("factors-regression")
    np.testing.assert_allclose(stored.mean, mean, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(stored.sd, sd, rtol=1e-5)
    assert np.all(stored.mcse == 0)


def test_twins_share_their_draws_and_what_they_have_in_common():
    assert reference.twins("logistic-groups") == ("logistic-groups-centred",)
    assert reference.twins("counties") == ()
    one, other = reference.load("slopes"), reference.load("slopes-centred")
    for name in ("mu[0]", "tau[1]", "sigma"):
        assert one.mean[one.names.index(name)] == other.mean[other.names.index(name)]


def test_a_summary_knows_its_error_and_its_file_comes_back(tmp_path):
    draws = np.random.default_rng(0).normal([1.0, -2.0], [1.0, 3.0], size=(4, 1000, 2))
    made = reference.summarise(draws, ("a", "b"))
    np.testing.assert_allclose(made.mcse, np.array([1.0, 3.0]) / np.sqrt(4000), rtol=0.3)
    assert made.good
    assert not reference.summarise(draws + np.arange(4)[:, None, None], ("a", "b")).good
    made = dataclasses.replace(made, log_density=1.5)
    with pytest.raises(ValueError, match=r"no reference .*large.reference splines"):
        reference.load("splines", tmp_path)
    reference.write(tmp_path, "splines", made, {"source": "a test", "log_density": 1.5})
    with pytest.raises(ValueError, match="has 2 coordinates, but model 'splines' has 82"):
        reference.load("splines", tmp_path)


@pytest.mark.slow
def test_processes_share_the_chains():
    few_draws = reference.settings_of(
        "slopes", chains=2, warmup=10, draws=10, block=10, processes=2
    )
    draws, counts = reference._sampled("slopes", few_draws)
    assert draws.shape == (2, 10, 175)
    assert not np.allclose(draws[0], draws[1])
    assert counts["gradients"] > counts["warmup_gradients"] > 0


# -- measuring -------------------------------------------------------------------------------------


def known_two():
    return reference.Reference(
        ("a", "b"), np.zeros(2), np.array([1.0, 2.0]), np.zeros(2), np.ones(2)
    )


def test_errors_are_those_computed_by_hand_and_the_worse_moments_count():
    right = (np.zeros(2), np.array([1.0, 2.0]))
    off = (np.array([0.1, -1.0]), np.array([2.0, 2.0]))
    seen = cell.row(Seen((right, off), True, "good", 7, 3), known_two())
    assert seen["mean_error"] == 0.5
    assert seen["worst_sd_error"] == pytest.approx(np.log(2))
    assert seen["sd_error"] == pytest.approx(np.log(2) / 2)
    assert (seen["gradients"], seen["densities"], seen["good"]) == (7, 3, True)


@pytest.mark.parametrize(
    "moments", [(), ((np.array([np.nan, 0.0]), np.ones(2)),), ((np.zeros(2), np.zeros(2)),)]
)
def test_moments_without_numbers_are_never_right(moments):
    seen = cell.row(Seen(moments, True, "good", 0), known_two())
    assert not bench.judged(pd.DataFrame([seen]))["right"].any()


def stub(target, seed):
    """A method that knows the reference, but for the seed's share of an sd."""
    known = reference.load("splines")
    assert target.dim == 82
    return lambda: Seen(((known.mean + seed * known.sd, known.sd),), True, "good", 10)


def refusing(target, seed):
    raise RuntimeError("too much\nfor me")


@pytest.fixture
def small_bench(monkeypatch):
    """Two methods that take no time, measured in this process."""
    monkeypatch.setitem(METHODS, "stub", Way(stub, "a test"))
    monkeypatch.setitem(METHODS, "refusing", Way(refusing, "a test"))

    def here(model, method, seed, seconds):
        return json.loads(json.dumps(cell.measure(model, method, seed)))

    monkeypatch.setattr(bench, "in_its_own_process", here)
    settings = bench.Settings(("splines",), ("stub", "refusing"), 2)
    small = dataclasses.replace(registry.known("large", "bench"), quick=settings)
    monkeypatch.setitem(registry.EXPERIMENTS, "large", small)


def test_the_command_writes_its_tables(small_bench, tmp_path):
    out = tmp_path / "run"
    seen = CliRunner().invoke(app, ["bench", "large", "--quick", "--out", str(out)])
    assert seen.exit_code == 0, seen.output
    assert "4 of 4 cells" in seen.output
    table = pd.read_csv(out / "table.csv").set_index(["method", "seed"])
    assert table.loc[("stub", 0), "right"]
    assert table.loc[("stub", 1), "mean_error"] == pytest.approx(1.0)
    assert table.loc[("refusing", 0), "note"] == "RuntimeError: too much"
    assert not table.loc[("refusing", 0), "good"]
    text = (out / "summary.md").read_text()
    assert "| splines | 82 |" in text
    row = next(line for line in text.splitlines() if "stub" in line).split(" | ")
    assert row[-3:-1] == ["2/2", "1"]  # good twice, once without being right


def test_a_cell_for_each_seed_and_dense_only_where_it_is_small():
    found = {c.piece for c in bench.cells(bench.Settings())}
    assert ("splines", "nuts-dense", 2) in found
    assert not any(m == "wide-glm" and p == "nuts-dense" for m, p, _ in found)
    assert len(found) == len({c.name for c in bench.cells(bench.Settings())})
    with pytest.raises(ValueError, match="leave nothing of this version"):
        bench.cells(bench.Settings(), ("wide-glm",), ("nuts-dense",))
    with pytest.raises(ValueError, match="no method 'nothing'"):
        bench.cells(bench.Settings(), (), ("nothing",))


def test_a_process_that_fails_says_why_and_a_late_one_is_unfinished():
    with pytest.raises(RuntimeError, match="no method 'nothing'"):
        cell.in_its_own_process("splines", "nothing", 0, np.inf)
    assert cell.in_its_own_process("splines", "nuts", 0, 0.01) is None


@pytest.mark.slow
def test_nuts_counts_the_gradients_of_its_warm_up(monkeypatch):
    monkeypatch.setattr(methods, "WARMUP", 20)
    monkeypatch.setattr(methods, "DRAWS", 10)
    seen = METHODS["nuts"].fit(MODELS["slopes"].target(), 0)()
    assert seen.gradients > 4 * 30  # a step at least for each draw,
    assert seen.moments[0][0].shape == (175,)
    monkeypatch.setattr(methods, "WARMUP", 40)
    more = METHODS["nuts"].fit(MODELS["slopes"].target(), 0)()
    assert more.gradients > seen.gradients  # and more with a longer warm-up
