"""The accuracy suite: its models, their references, its metrics, its peers and its command."""

import dataclasses
import io
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from rich.console import Console
from scipy.special import ndtr, ndtri
from typer.testing import CliRunner

from scoreascent import _nuts
from scoreascent._structs import x64
from scoreascent.cli import app
from scoreascent.experiments import experiment, registry
from scoreascent.experiments.accuracy import (
    bench,
    exact,
    models,
    own,
    peers,
    reference,
    shapes,
    show,
)
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit, compare, is_right, mass_below, mass_error
from scoreascent.experiments.accuracy.models import MODELS
from scoreascent.experiments.accuracy.moments import LEVELS, Moments
from scoreascent.experiments.accuracy.peers import base, ours
from scoreascent.models.gaussian import Gaussian
from scoreascent.theory import kl_star
from tests.registry import quick_rows
from tests.stats import Z_MAX, Z_MUTANT

EXACT = [name for name, entry in MODELS.items() if entry.exact is not None]


def gaussian_moments(mean, sd):
    mean, sd = np.asarray(mean, float), np.asarray(sd, float)
    return Moments(mean, sd, mean[:, None] + sd[:, None] * ndtri(LEVELS))


def gaussian_fit(mean, sd, **numbers):
    """A fit whose draws are a Gaussian's quantiles, so that its 5 and 95 % points are exact."""
    mean, sd = np.asarray(mean, float), np.asarray(sd, float)
    draws = mean + sd * ndtri(np.linspace(0.0005, 0.9995, 1000))[:, None]
    return Fit(mean, sd, draws, **numbers)


# -- metrics ---------------------------------------------------------------------------------------


def test_errors_are_those_computed_by_hand():
    true = gaussian_moments([0.0, 10.0], [1.0, 2.0])
    seen = compare(gaussian_fit([0.1, 9.0], [0.5, 3.0]), true)
    assert seen["mean_error"] == pytest.approx(0.5)  # |9 − 10| / 2
    assert seen["sd_error"] == pytest.approx((np.log(2) + np.log(1.5)) / 2)
    assert seen["sd_ratio"] == pytest.approx(0.5)  # farther from 1 than 1.5
    first = ndtr(0.1 + 0.5 * ndtri(0.95)) - ndtr(0.1 - 0.5 * ndtri(0.95))
    second = ndtr((-1 + 3 * ndtri(0.95)) / 2) - ndtr((-1 - 3 * ndtri(0.95)) / 2)
    assert seen["coverage"] == pytest.approx((first + second) / 2, abs=2e-3)
    assert np.isnan(seen["k_hat"])  # without weights there is none


def test_a_perfect_fit_covers_ninety_per_cent_and_a_narrow_one_less():
    true = gaussian_moments([3.0], [2.0])
    assert compare(gaussian_fit([3.0], [2.0]), true)["coverage"] == pytest.approx(0.9, abs=2e-3)
    assert compare(gaussian_fit([3.0], [1.0]), true)["coverage"] < 0.6


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_a_fit_without_numbers_is_never_right(bad):
    true = gaussian_moments([0.0, 0.0], [1.0, 1.0])
    seen = compare(gaussian_fit([0.0, 0.0], [1.0, bad]), true)
    assert seen["sd_error"] == np.inf
    assert not is_right(seen["mean_error"], seen["sd_error"])
    lost = compare(gaussian_fit([np.nan, 0.0], [1.0, 1.0]), true)
    assert lost["mean_error"] == np.inf


def test_the_masses_of_modes_are_counted():
    centres, masses = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]), np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)
    draws = np.repeat(centres, [500, 400, 100], axis=0) + rng.normal(size=(1000, 2))
    assert mass_error(draws, centres, masses) == pytest.approx(0.1)
    assert mass_error(draws, centres, masses[[1, 0, 2]]) == pytest.approx(0.2)
    assert mass_error(np.full((5, 2), np.nan), centres, masses) == np.inf
    fit = Fit(masses, masses, draws[:500], shown_z=draws)  # what is shown counts
    assert (
        bench._mass_error(fit, Entry(2, "a test"))
        != bench._mass_error(fit, Entry(2, "a test", masses=lambda: (centres, masses)))
        == pytest.approx(0.1)
    )


def test_right_asks_for_means_and_spreads():
    assert is_right(0.1, 0.05)
    assert not is_right(0.11, 0.0)
    assert not is_right(0.0, 0.051)
    assert not is_right(np.nan, 0.0)


def test_weights_that_are_nan_have_no_mass():
    true = gaussian_moments([0.0], [1.0])
    rng = np.random.default_rng(0)
    weights = 0.1 * rng.normal(size=1000)
    clean = compare(gaussian_fit([0.0], [1.0], log_weights=weights), true)["k_hat"]
    assert clean < 0.5
    spoilt = np.where(np.arange(1000) % 10 == 0, np.nan, weights)
    assert compare(gaussian_fit([0.0], [1.0], log_weights=spoilt), true)["k_hat"] < 0.5
    nothing = np.full(1000, -np.inf)
    assert compare(gaussian_fit([0.0], [1.0], log_weights=nothing), true)["k_hat"] == np.inf


def test_mass_between_and_beyond_the_stored_quantiles():
    true = gaussian_moments([1.0, -2.0], [3.0, 0.5])
    for score in (-3.5, -1.1, 0.0, 0.33, 2.9):
        np.testing.assert_allclose(mass_below(true, true.mean + score * true.sd), ndtr(score))
    modes = exact.two_modes().moments
    at = mass_below(modes, modes.quantile(0.2))
    np.testing.assert_allclose(at, 0.2, atol=1e-9)


# -- models ----------------------------------------------------------------------------------------


FIRST = ("gaussian-ar1", "regression-raw", "logistic", "horseshoe", "eight-schools", "gp",
         "stochastic-volatility", "funnel")  # fmt: skip


@pytest.mark.parametrize("name", quick_rows(MODELS, *FIRST))
def test_a_model_is_a_finite_density_of_its_dimension(name):
    """Also: its reference is of this density, which a change of model or data would break."""
    entry, known = MODELS[name], reference.load(name)
    target = entry.target()
    assert target.dim == entry.dim
    assert tuple(models.coordinates(target)) == known.names
    assert not any(x.dtype == np.float64 for x in jax.tree.leaves(target.data))
    starts = np.random.default_rng(0).uniform(-2, 2, (3, entry.dim))
    z = np.vstack([known.mean, starts]).astype(np.float32)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(target.log_prob)))(z)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    np.testing.assert_allclose(values[0], known.log_density, rtol=1e-4, atol=1e-2)


def test_a_third_is_held_out_and_the_suite_is_large_enough():
    regular = [e for e in MODELS.values() if e.regular]
    assert len(regular) >= 16
    assert sum(e.held_out for e in MODELS.values()) in (len(MODELS) // 3, len(MODELS) // 3 + 1)
    assert any(e.held_out for e in MODELS.values() if not e.regular)
    assert max(e.dim for e in MODELS.values()) <= 200
    assert kl_star(exact.autoregressive_gaussian().cov) > 10  # far from any mean-field q


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression-raw", "stochastic-volatility"])
def test_both_precisions_see_one_posterior(name):
    known = reference.load(name)
    rng = np.random.default_rng(1)
    z = known.mean + known.sd * rng.normal(size=(4, len(known.mean))) / 3
    narrow = jax.vmap(MODELS[name].target().log_prob)(z.astype(np.float32))
    with x64():
        target = MODELS[name].target()
        assert all(x.dtype == np.float64 for x in jax.tree.leaves(target.data))
        wide = np.asarray(jax.vmap(target.log_prob)(jnp.asarray(z.astype(np.float32), float)))
    np.testing.assert_allclose(np.diff(narrow), np.diff(wide), atol=0.02)


# -- exact values ----------------------------------------------------------------------------------


def draws_of(name, n, rng):
    if name == "funnel":
        v = 3 * rng.normal(size=(n, 1))
        return np.hstack([v, np.exp(v / 2) * rng.normal(size=(n, 9))])
    modes = {"bimodal": exact.two_modes, "trimodal": exact.three_modes}[name]()
    which = rng.choice(len(modes.weights), n, p=modes.weights)
    return modes.centres[which] + rng.normal(size=(n, modes.centres.shape[1]))


@pytest.mark.parametrize("name", ["funnel", "bimodal", "trimodal"])
def test_exact_quantiles_are_those_of_draws(name):
    n = 20_000
    known = MODELS[name].exact()
    draws = draws_of(name, n, np.random.default_rng(2))

    def worst(quantiles):
        below = (draws[:, :, None] <= quantiles).mean(0)
        p = np.array(LEVELS)
        return np.max(np.abs(below - p) / np.sqrt(p * (1 - p) / n))

    assert worst(known.quantiles) < Z_MAX
    assert worst(known.quantiles + 0.1 * known.sd[:, None]) > Z_MUTANT


@pytest.mark.parametrize("name", ["bimodal", "trimodal"])
def test_exact_moments_are_those_of_draws(name):
    n = 20_000
    known, draws = MODELS[name].exact(), draws_of(name, n, np.random.default_rng(3))
    assert np.max(np.abs(draws.mean(0) - known.mean) / (known.sd / np.sqrt(n))) < Z_MAX
    squares = (draws - known.mean) ** 2
    z = (squares.mean(0) - known.sd**2) / (squares.std(0) / np.sqrt(n))
    assert np.max(np.abs(z)) < Z_MAX
    assert np.max(np.abs((squares.mean(0) - 1) / (squares.std(0) / np.sqrt(n)))) > Z_MUTANT


def test_the_funnels_spread():
    known = exact.funnel_moments()
    assert known.sd[0] == 3
    assert known.sd[1] ** 2 == pytest.approx(np.exp(4.5))  # E eᵛ, v ~ N(0, 9)


# -- references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_reference_is_there_and_its_chains_agree(name):
    known = reference.load(name)
    assert np.all(known.rhat < 1.005)
    assert np.all(known.ess >= 10_000)
    assert np.all(known.sd > 0)
    assert np.all(np.diff(known.quantiles) > 0)
    text = (reference.STORED / f"{name}.csv").read_text()
    assert f"# command: scoreascent bench accuracy --references --model {name}\n" in text
    assert "# jax: " in text


@pytest.mark.parametrize("name", EXACT)
def test_stored_values_are_the_exact_ones(name):
    known, stored = MODELS[name].exact(), reference.load(name)
    for field in ("mean", "sd", "quantiles"):
        np.testing.assert_allclose(
            getattr(stored, field), getattr(known, field), rtol=1e-6, atol=1e-9
        )


SMALL = reference.Settings(warmup=300, block=500, blocks=3, ess=1000.0, rhat=1.05)


@pytest.fixture
def known_gaussian(monkeypatch):
    """A model of the suite that does not say that it is exact."""
    problem = Gaussian(np.array([1.0, -2.0]), np.array([[1.0, 0.8], [0.8, 4.0]]))
    made = Entry(2, "a test", density=lambda: problem.target)
    monkeypatch.setitem(MODELS, "known", made)
    return problem


@pytest.mark.slow
def test_a_run_of_nuts_finds_a_gaussian_and_its_file_comes_back(known_gaussian, tmp_path):
    made, how, _ = reference.compute("known", settings=SMALL)
    sd = np.sqrt(np.diag(known_gaussian.cov))
    error = sd / np.sqrt(made.ess)
    assert np.max(np.abs(made.mean - known_gaussian.mean) / error) < Z_MAX
    assert np.max(np.abs(made.mean - 0.0) / error) > Z_MUTANT
    spread = (made.sd / sd - 1) * np.sqrt(2 * made.ess)
    assert np.max(np.abs(spread)) < Z_MAX
    assert np.max(np.abs((made.sd - 1) * np.sqrt(2 * made.ess))) > Z_MUTANT
    assert how["divergent"] == 0
    assert "64 bits" in how["source"]
    reference.write(tmp_path, "known", made, how)
    back = reference.load("known", tmp_path)
    np.testing.assert_allclose(back.mean, made.mean, rtol=1e-6)
    np.testing.assert_allclose(back.quantiles, made.quantiles, rtol=1e-6)
    assert back.log_density == pytest.approx(made.log_density)
    assert back.names == ("z[0]", "z[1]")


class Independent:
    """A sampler whose every draw is a new one; its chains stand `apart` from each other."""

    last_state, apart, blocks = types.SimpleNamespace(rng_key=0), 0.0, 0

    def __init__(self, kernel, *, num_samples, **other):
        self.shape = (4, num_samples, 2)

    def run(self, key, **other):
        Independent.blocks += 1

    def get_samples(self, group_by_chain):
        noise = np.random.default_rng(Independent.blocks).normal(size=self.shape)
        return noise + self.apart * np.arange(4)[:, None, None]

    def get_extra_fields(self):
        return {"diverging": np.zeros(1, bool)}


@pytest.mark.parametrize(
    ("ess", "apart", "blocks"), [(1000.0, 0.0, 1), (3000.0, 0.0, 2), (1000.0, 0.5, None)]
)
def test_a_run_goes_on_until_both_rules_hold(ess, apart, blocks, known_gaussian, monkeypatch):
    """Here a block is worth 2000 draws; chains that stand apart are never enough."""
    monkeypatch.setattr(_nuts, "MCMC", Independent)
    monkeypatch.setattr(Independent, "apart", apart)
    monkeypatch.setattr(Independent, "blocks", 0)
    settings = dataclasses.replace(SMALL, ess=ess)
    if blocks is None:
        with pytest.raises(RuntimeError, match=r"'known' has R̂ 1\..* after 1500 draws a chain"):
            reference.compute("known", settings=settings)
    else:
        how = reference.compute("known", settings=settings)[1]
        assert how["source"] == f"NUTS, {500 * blocks} draws a chain, 64 bits"
        assert Independent.blocks == blocks


def test_a_reference_of_another_model_is_refused(known_gaussian, tmp_path):
    with pytest.raises(ValueError, match=r"no reference .*--references --model known"):
        reference.load("known", tmp_path)
    text = (reference.STORED / "ar2.csv").read_text()
    (tmp_path / "known.csv").write_text(text)
    with pytest.raises(ValueError, match="has 4 coordinates, but model 'known' has 2"):
        reference.load("known", tmp_path)


# -- peers -----------------------------------------------------------------------------------------


def two_sites(y):
    """Conjugate; the sites are not in alphabetical order, and `b` is first in z."""
    b = numpyro.sample("b", dist.Normal(0, 1))
    a = numpyro.sample("a", dist.Normal(3, 0.5))
    numpyro.sample("y", dist.Normal(a + b, 0.5), obs=y)


NATIVE = Entry(2, "a test", two_sites, lambda: (np.array([4.0]),))
FLAT = Entry(2, "a test", density=lambda: NATIVE.target())
PRECISION = np.array([[1 + 4, 4], [4, 4 + 4]])
COV = np.linalg.inv(PRECISION)
MEAN = COV @ np.array([4 * 4.0, 4 * 3.0 + 4 * 4.0])


def fitted(name, entry, monkeypatch, steps=2000):
    monkeypatch.setattr(base, "STEPS", steps)
    return peers.peer(name).begin(entry, entry.target())(1)()


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["numpyro-multivariate", "blackjax-full-rank", *slow("nuts", "numpyro-low-rank")],
)
def test_a_full_rank_peer_finds_a_gaussian_in_the_order_of_z(name, monkeypatch):
    fit = fitted(name, NATIVE, monkeypatch)
    sd = np.sqrt(np.diag(COV))
    assert np.max(np.abs(fit.mean - MEAN) / sd) < 0.25
    assert np.max(np.abs(fit.mean[::-1] - MEAN) / sd) > 2
    assert np.max(np.abs(np.log(fit.sd / sd))) < 0.2
    assert np.corrcoef(fit.draws.T)[0, 1] < -0.4
    if name == "nuts":  # at least one leapfrog step for each of 4 × 2000 draws, at most 2¹⁰ − 1
        assert fit.draws.shape == (4000, 2)
        assert 8000 < fit.gradients < 8000 * 1023
        assert fit.log_weights is None
    else:
        assert fit.gradients == 2000 * (5 if "blackjax" in name else 1)
        assert compare(fit, gaussian_moments(MEAN, sd))["k_hat"] < 0.7


@pytest.mark.parametrize("entry", [NATIVE, FLAT], ids=["model", "density"])
@pytest.mark.parametrize(
    "name", ["numpyro-normal", *slow("blackjax-mean-field", "scoreascent-paper")]
)
def test_a_mean_field_peer_has_the_optimum_of_its_divergence(name, entry, monkeypatch):
    fit = fitted(name, entry, monkeypatch)
    inclusive = name == "scoreascent-paper"
    sd = np.sqrt(np.diag(COV)) if inclusive else 1 / np.sqrt(np.diag(PRECISION))
    assert np.max(np.abs(fit.mean - MEAN) / np.sqrt(np.diag(COV))) < 0.3
    assert np.max(np.abs(np.log(fit.sd / sd))) < 0.2
    assert np.max(np.abs(np.log(fit.sd[::-1] / sd))) > 0.2
    assert (fit.densities, fit.gradients) == (
        (10.0 * 2001, 0.0) if inclusive else (0.0, (1 if "numpyro" in name else 5) * 2000.0)
    )
    assert (fit.verdict != "") == inclusive


def test_weights_of_a_perfect_fit_are_flat():
    target = NATIVE.target()
    good = base.gaussian_fit(MEAN, COV, target, 0, 0.0)
    assert np.ptp(good.log_weights) < 1e-3
    assert np.ptp(base.gaussian_fit(MEAN, 2 * COV, target, 0, 0.0).log_weights) > 1
    singular = base.gaussian_fit(MEAN, np.ones((2, 2)), target, 0, 0.0)
    assert singular.log_weights is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["pymc-advi", "blackjax-pathfinder", "blackjax-smc", "scoreascent", "scoreascent-mean-field"],
)
def test_the_other_peers_run(name, monkeypatch):
    pytest.importorskip(peers.peer(name).needs or "numpy")
    fit = fitted(name, NATIVE, monkeypatch, 30_000)  # PyMC's default rate is small
    assert np.max(np.abs(fit.mean - MEAN)) < 0.5
    assert not jax.config.jax_enable_x64


def test_a_peer_that_is_not_installed_says_so_and_the_run_goes_on(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    settings = bench.Settings(("ar2",), ("blackjax-pathfinder",), 1)
    ran = bench.compute(bench.cells(settings)[0], settings, None, np.inf)["table"]
    assert ran["note"].tolist() == ["needs blackjax: pip install 'scoreascent[blackjax]'"]
    assert np.isnan(ran["mean_error"][0])
    assert not show.by_model(ran)["right"].any()
    assert show.summarise(pd.concat([ran, row("ar2", "nuts")]))["method"].tolist() == ["nuts"]


@pytest.mark.parametrize(
    ("error", "recorded"), [(ValueError("no\nmore"), True), (KeyError("a bug"), False)]
)
def test_a_refusal_is_a_result_and_a_bug_is_not(error, recorded, monkeypatch):
    def begin(entry, target):
        raise error

    monkeypatch.setitem(peers.PEERS, "nuts", dataclasses.replace(peers.PEERS["nuts"], begin=begin))
    settings = bench.Settings(("ar2",), ("nuts",), 2)
    cell = bench.cells(settings)[0]
    if not recorded:
        with pytest.raises(KeyError):
            bench.compute(cell, settings, None, np.inf)
        return
    ran = bench.compute(cell, settings, None, np.inf)["table"]
    assert ran["verdict"].tolist() == ["refused"] * 2
    assert ran["note"].tolist() == ["ValueError: no"] * 2
    assert show.by_model(ran)["mean_error"].tolist() == [np.inf]


# -- tables ----------------------------------------------------------------------------------------


def row(model, method, seed=0, error=0.01, clock=1.0, verdict="", **other):
    entry = MODELS[model]
    what = {"model": model, "method": method, "dim": entry.dim, "regular": entry.regular,
            "held_out": entry.held_out, "seed": seed}  # fmt: skip
    numbers = {"mean_error": error, "sd_error": 0.01, "sd_ratio": 0.99, "coverage": 0.9,
               "k_hat": 0.3, "own_mean_error": 0.02, "own_sd_error": 0.03,
               "quantile_error": 0.04, "mass_error": np.nan, "densities": 10.0, "gradients": 5.0,
               "clock": clock}  # fmt: skip
    return pd.DataFrame([{**what, **numbers, "verdict": verdict, "note": "", **other}])


def test_one_bad_seed_spoils_a_model_and_the_clock_is_read_by_seed():
    table = pd.concat(
        [row("ar2", "nuts", s, e, c) for s, e, c in ((0, 0.01, 9.0), (1, 0.2, 2.0), (2, 0.0, 4.0))]
    )
    only = show.by_model(table).iloc[0]
    assert only["mean_error"] == 0.2
    assert not only["right"]
    assert (only["cold"], only["warm"]) == (9.0, 3.0)
    assert show.by_model(table[table["seed"] != 1]).iloc[0]["right"]


def test_a_fit_without_numbers_is_an_error_without_bound_in_its_own_space_too():
    blank = dict.fromkeys(show.OWN, np.nan)
    diverged = show.by_model(row("ar2", "nuts", error=np.nan, **blank)).iloc[0]
    assert all(diverged[name] == np.inf for name in show.OWN)
    not_known = show.by_model(row("ar2", "nuts", **blank)).iloc[0]  # its tails are too heavy
    assert all(np.isnan(not_known[name]) for name in show.OWN)


def test_a_refusal_has_no_masses_and_a_model_without_modes_asks_for_none():
    refused = row("bimodal", "nuts", error=np.nan, mass_error=np.nan)
    assert show.by_model(refused)["mass_error"][0] == np.inf
    assert np.isnan(show.by_model(row("bimodal", "nuts"))["mass_error"][0])  # not measured yet
    assert np.isnan(show.by_model(row("ar2", "nuts"))["mass_error"][0])
    both = pd.concat([row("bimodal", "nuts", s, mass_error=e) for s, e in enumerate((0.01, 0.3))])
    assert show.by_model(both)["mass_error"][0] == 0.3
    old = row("bimodal", "nuts").drop(columns="mass_error")
    assert np.isnan(show.by_model(old)["mass_error"][0])


@pytest.mark.parametrize(
    ("differs", "right"),
    [
        ({"error": 3.0}, True),  # of a Gaussian's moments, which are not what is shown
        ({"own_sd_error": np.nan}, True),  # a tail is too heavy for it
        ({"own_mean_error": 0.11}, False),
        ({"own_sd_error": 0.11}, False),
        ({"mass_error": 0.021}, False),
        ({"error": np.nan}, False),
    ],
)
def test_an_irregular_model_is_right_by_what_is_shown(differs, right):
    made = row("bimodal", "scoreascent", **{"mass_error": 0.01, **differs})
    assert show.by_model(made)["right"].tolist() == [right]


def test_the_summary_counts_what_it_says():
    good = {"verdict": "good"}
    table = pd.concat(
        [
            row("ar2", "scoreascent", clock=1.0, **good),
            row("poisson", "scoreascent", clock=5.0, **good),  # right, and slower than NUTS
            row("gp", "scoreascent", error=0.5, **good),  # wrong, and called good
            row("growth", "scoreascent", **good),  # held out
            row("softmax", "scoreascent", error=0.5, verdict="not converged: run longer"),
            row("funnel", "scoreascent", **good),
            row("bimodal", "scoreascent", error=9.0, verdict="refused", mass_error=0.4),
            row("trimodal", "scoreascent", mass_error=0.01),
            *(row(m, "nuts", clock=2.0) for m in ("ar2", "poisson", "gp", "growth", "softmax")),
        ]
    )
    seen = show.summarise(table).set_index("method")
    ours, nuts = seen.loc["scoreascent"], seen.loc["nuts"]
    assert (ours["right_regular"], ours["regular"]) == (2, 3)
    assert (ours["right_held_out"], ours["held_out"]) == (1, 2)
    assert (ours["good"], ours["false_good"]) == (4, 1)
    assert ours["faster"] == 2  # ar2 and growth
    assert ours["judges"]
    assert not nuts["judges"]
    assert (nuts["right_regular"], nuts["cold"]) == (3, 2.0)
    assert (ours["right_irregular"], ours["irregular"]) == (2, 3)
    assert (ours["masses"], ours["with_masses"]) == (1, 2)
    text = show.markdown_summary(show.summarise(table))
    assert "| scoreascent | 2/3 | 1/2 | 2/3 | 1/2 | 4 | 1 | 1 | 2 | 0.02 | 0.03 | 0.04 |" in text
    assert "| nuts | 3/3 | 2/2 | 0/0 |  |  |  |  |  |" in text


def test_irregular_models_alone_have_a_summary():
    table = pd.concat([row("funnel", name) for name in ("scoreascent", "nuts")])
    assert show.summarise(table)["right_irregular"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("differs", "kept"),
    [
        ({}, True),
        ({"error": 0.11}, False),
        ({"sd_ratio": 0.89}, False),
        ({"sd_ratio": np.nan}, False),
        ({"own_mean_error": 0.11}, False),
        ({"own_sd_error": 0.11}, False),
        ({"own_sd_error": np.nan}, True),  # nothing of it can be known
    ],
)
def test_a_promise_is_kept_by_the_worst_number(differs, kept):
    assert show.keeps_promise(row("ar2", "scoreascent", **differs)).tolist() == [kept]


def test_errors_in_the_models_own_space():
    known = own.Own(("a", "b", "c"), np.array([[1.0, 2, -2, 1, 4], [np.nan] * 2 + [0, 1, 9],
                                               [1.0, 0, 1, 1, 1]]))  # fmt: skip
    found = own.Own(("c", "b", "a"), np.array([[1.0, 0, 1, 1, 1], [5.0, 6, 0.5, 1, 9],
                                               [1.2, 2.2, -2, 1, 4.1]]))  # fmt: skip
    seen = own.errors(found, known)
    assert seen["own_mean_error"] == pytest.approx(0.1)
    assert seen["own_sd_error"] == pytest.approx(np.log(1.1))
    assert seen["quantile_error"] == pytest.approx(0.5 / (9 / own.NORMAL_RANGE))


def test_quantiles_of_a_positive_scalar_without_an_sd_are_held_on_a_log_scale():
    known = own.Own(("a",), np.array([[np.nan, np.nan, 0.1, 1, 10]]))
    found = own.Own(("a",), np.array([[np.nan, np.nan, 0.1, 1, 12]]))
    expected = np.log(1.2) / (np.log(100) / own.NORMAL_RANGE)
    assert own.errors(found, known)["quantile_error"] == pytest.approx(expected)


def test_own_numbers_of_draws_are_those_of_the_models_space(tmp_path):
    entry = MODELS["eight-schools"]
    target = entry.target()
    z = np.random.default_rng(0).normal(size=(5000, target.dim)).astype(np.float32)
    seen = own.of_draws(target, z)
    named = jax.vmap(target.named)(z)
    at = seen.names.index("tau")
    assert seen.numbers[at, 0] == pytest.approx(float(named["tau"].mean()), rel=1e-3)
    assert seen.numbers[at, 3] == pytest.approx(float(np.median(named["tau"])), rel=1e-3)
    own.write(tmp_path, "eight-schools", seen, {"command": "none"})
    back = own.load("eight-schools", tmp_path)
    assert back.names == seen.names
    np.testing.assert_allclose(back.numbers, seen.numbers, rtol=1e-6)
    np.testing.assert_array_equal(own.load("bimodal").numbers[:, 0], reference.load("bimodal").mean)
    (tmp_path / "poisson.csv").write_text((reference.STORED / "poisson.csv").read_text())
    with pytest.raises(ValueError, match="has no reference of its own space"):
        own.load("poisson", tmp_path)


def test_a_model_says_why_it_is_there_and_what_is_right_is_bold():
    text = show.markdown_models(
        show.by_model(pd.concat([row("ar2", "nuts"), row("ar2", "pymc-advi", error=0.5)]))
    )
    assert "## ar2: d = 4, regular" in text
    assert "| **nuts** |" in text
    assert "| pymc-advi | 0.5 |" in text


# -- what the stored table shows ------------------------------------------------------------------


STORED = reference.STORED.parent


@pytest.fixture(scope="module")
def stored():
    return pd.read_parquet(STORED / "table.parquet")


def test_the_stored_table_is_whole(stored):
    """Cells of what is new may be missing until `scoreascent bench accuracy` has made them."""
    seeds = stored.groupby(["model", "method"])["seed"].nunique()
    missing = {(m, p) for m in MODELS for p in peers.PEERS} - set(seeds.index)
    assert {(m, p) for m, p in missing if m not in shapes.SHAPES and p != "blackjax-smc"} == set()
    assert set(stored["model"]) <= set(MODELS)
    assert set(stored["method"]) <= set(peers.PEERS)
    assert set(seeds) == {5}


def test_with_nothing_said_every_seed_is_right_or_not_called_good(stored):
    ours = stored[stored["method"] == "scoreascent"]
    regular, others = ours[ours["regular"]], ours[~ours["regular"]]
    assert len(regular) == 5 * sum(e.regular for e in MODELS.values())
    assert is_right(regular["mean_error"], regular["sd_error"]).all()
    assert set(regular["verdict"]) == {"good"}
    assert len(others) == 5 * others["model"].nunique() >= 15
    assert show.keeps_promise(others[others["verdict"] == "good"]).all()


def test_it_is_quicker_than_nuts_on_most_models(stored):
    seen = show.summarise(stored).set_index("method")
    assert seen.loc["scoreascent", "faster"] >= 10
    assert seen.loc["scoreascent", "false_good"] == 0


def test_a_mean_field_fit_has_the_spreads_that_autonormal_lacks(stored):
    models = show.by_model(stored).set_index(["method", "model"])
    theirs, ours = models.loc["numpyro-normal"], models.loc["scoreascent-mean-field"]
    off = theirs.index[(theirs["group"] != "irregular") & (theirs["sd_error"] >= np.log(1.5))]
    assert len(off) >= 3
    assert (ours.loc[off, "sd_error"] <= 0.05).all()


def test_the_page_shows_the_stored_table(stored):
    page = (STORED.parents[1] / "choosing.md").read_text(encoding="utf-8")
    rows = show.markdown_summary(show.summarise(stored)).splitlines()
    rows = [line for line in rows if line.startswith("|")]
    assert len(rows) == stored["method"].nunique() + 2
    for line in rows:
        assert line in page, line


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def few_steps(monkeypatch):
    small = bench.Settings(("ar2",), ("scoreascent-paper", "numpyro-normal"), 1)
    accuracy = dataclasses.replace(registry.EXPERIMENTS["accuracy"], quick=small)
    monkeypatch.setitem(registry.EXPERIMENTS, "accuracy", accuracy)
    monkeypatch.setattr(base, "STEPS", 200)
    monkeypatch.setattr(ours, "_verdict", lambda result: "not converged: run longer")


@pytest.mark.slow
def test_the_command_writes_its_tables_goes_on_and_draws_again(few_steps, tmp_path, monkeypatch):
    out = tmp_path / "run"
    command = ["bench", "accuracy", "--quick", "--out", str(out)]
    with monkeypatch.context() as patch:
        accuracy = dataclasses.replace(registry.known("accuracy", "bench"), draw=lambda *_: None)
        patch.setitem(registry.EXPERIMENTS, "accuracy", accuracy)
        part = CliRunner().invoke(app, [*command, "--method", "numpyro-normal"])
    assert part.exit_code == 0, part.output
    assert "1 of 1 cells" in part.output
    whole = CliRunner().invoke(app, command)
    said = " ".join(whole.output.split())  # lines are as wide as the terminal
    assert "2 of 2 cells" in said
    assert "1 new" in said
    table = pd.read_csv(out / "table.csv")
    assert sorted(table["method"]) == ["numpyro-normal", "scoreascent-paper"]
    assert set(table["model"]) == {"ar2"}
    assert np.isfinite(table[["mean_error", "sd_error", "coverage", "clock"]]).all(axis=None)
    for name in ("models.md", "models.csv", "summary.csv", "summary.md", "accuracy.png"):
        assert (out / name).stat().st_size > 100
        (out / name).unlink()
    drawn = CliRunner().invoke(app, ["bench", "accuracy", "--draw", "--out", str(out)])
    assert drawn.exit_code == 0, drawn.output
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "summary.md").read_text().startswith("Right: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "nothing"], "there is no model 'nothing'; choose from gaussian-ar1"),
        (["--method", "nothing"], "there is no method 'nothing'; choose from scoreascent"),
        (["--references", "--model", "nothing"], "there is no model 'nothing'"),
        (["--quick", "--model", "funnel"], "leave out --quick"),
        (["--seeds", "0"], "seeds must be an integer ≥ 1, got 0"),
        (["--jobs", "0"], "jobs must be an integer ≥ 1, got 0"),
        (["--draw"], "does not exist; run `scoreascent bench accuracy` first"),
    ],
)
def test_bad_arguments_are_named(arguments, says, tmp_path):
    ran = CliRunner().invoke(app, ["bench", "accuracy", *arguments, "--out", str(tmp_path / "x")])
    assert ran.exit_code == 1
    assert says in " ".join(ran.output.split())
    assert not (tmp_path / "x").exists()


def test_the_command_makes_references(tmp_path):
    names = ["--model", "bimodal", "--model", "gaussian-ar1"]
    ran = CliRunner().invoke(
        app, ["bench", "accuracy", "--references", *names, "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    made = reference.load("bimodal", tmp_path)
    np.testing.assert_allclose(made.sd, exact.two_modes().moments.sd, rtol=1e-6)
    assert (tmp_path / "gaussian-ar1.csv").exists()


@pytest.mark.slow
def test_the_quick_version_as_it_is(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    ends = experiment.run(bench.ACCURACY, tmp_path / "run", console, quick=True)
    assert ends == {"done": 4}
    assert "numpyro-normal" in (tmp_path / "run" / "summary.md").read_text()
