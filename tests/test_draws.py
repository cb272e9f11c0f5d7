"""The numbers a user reads: where draws come from, and that they are right in the model's space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.diagnostics import draws
from scoreascent.diagnostics.draws import MIN_STATES, late_states, moment_errors
from scoreascent.diagnostics.numbers import gaps_by_chains, gaps_by_weights
from scoreascent.diagnostics.rules import GOOD, WEIGH
from tests.registry import quick_rows
from tests.stats import Z_MAX, Z_MUTANT, z_score


def log_normal_like(p: dict[str, Any]) -> Any:
    """A scale whose logarithm is skewed to the left, as that of a hierarchy's: Gamma(1.5, 1)."""
    return 0.5 * jnp.log(p["scale"]) - p["scale"] - 0.5 * jnp.sum(p["x"] ** 2)


TARGET = sa.Target(
    log_normal_like, params={"scale": constraints.positive, "x": sa.Param(shape=(2,))}
)


@pytest.fixture(scope="module")
def result() -> sa.Result:
    return sa.fit(TARGET, key=1, progress=False)


def test_draws_are_states_of_the_chains(result: sa.Result) -> None:
    states = late_states(result)
    assert states is not None
    times, chains, dim = states.shape
    assert (chains, dim) == (result.method.chains, 3)
    assert times * chains >= MIN_STATES
    assert result.draws_from == "chains"
    draws = result.sample(0, 500)
    there = np.exp(states[..., 0]).ravel()
    assert np.all(np.min(np.abs(np.asarray(draws["scale"])[:, None] - there), 1) < 1e-5)
    assert draws["x"].shape == (500, 2)
    assert {"numbers", "chains'"} <= set(str(result).split())


def test_they_are_right_where_draws_of_q_are_not(result: sa.Result) -> None:
    """The scale is Gamma(1.5): mean 1.5, variance 1.5; as exp of a Gaussian it is too wide."""
    moments = lambda x: np.column_stack([x, (x - 1.5) ** 2])  # noqa: E731
    chains, of_q = (
        moments(np.asarray(result.sample(3, n, source)["scale"], float))
        for source, n in (("chains", 1000), ("q", 20_000))
    )
    assert z_score(chains, [1.5, 1.5]) < Z_MAX
    assert z_score(of_q, [1.5, 1.5]) > Z_MAX
    weighed = moments(np.asarray(result.sample(4, 1000, "resampled")["scale"], float))
    assert z_score(weighed, [1.5, 1.5]) < Z_MAX


def test_the_summary_knows_its_errors(result: sa.Result) -> None:
    rows = {row["name"]: row for row in result.summary()}
    assert list(rows) == ["scale", "x[0]", "x[1]"]
    scale = rows["scale"]
    assert abs(scale["mean"] - 1.5) < 5 * scale["mean_error"] < 0.5
    assert abs(scale["sd"] - np.sqrt(1.5)) < 5 * scale["sd_error"] < 0.5
    assert scale["q05"] < scale["q50"] < scale["q95"]
    assert np.isnan(result.summary("q")[0]["mean_error"])


def test_errors_are_those_of_repeated_runs() -> None:
    """Chains of AR(1) states, far from independent: their own averages know."""
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(300):
        x = np.empty((40, 30, 1))
        x[0] = rng.normal(size=(30, 1))
        for i in range(1, 40):
            x[i] = 0.9 * x[i - 1] + np.sqrt(1 - 0.81) * rng.normal(size=(30, 1))
        found.append((x.mean(), x.std()))
        errors.append([e[0] for e in moment_errors(x)])
    spread, claimed = np.std(found, 0), np.mean(errors, 0)
    np.testing.assert_allclose(claimed, spread, rtol=0.15)
    naive = 1 / np.sqrt(40 * 30)
    assert claimed[0] > 2 * naive


@pytest.mark.slow
def test_draws_of_a_mixture_with_the_posteriors_shape_are_fresh() -> None:
    """Its numbers are the chains' own all the same; a q that is off gives way to the chains."""
    at = np.array([[-4.0], [4.0]], np.float32)
    weights = np.array([0.3, 0.7], np.float32)
    q = sa.Mixture.from_moments(at, np.ones((2, 1, 1), np.float32), weights)
    result = sa.fit(sa.Target(q.log_prob, dim=1), key=0, progress=False)
    assert result.draws_from == "q"
    z = np.asarray(result.sample(0, 20_000)["z"], float)
    assert len(np.unique(z)) > 19_000
    assert z_score(z < 0, [0.3]) < Z_MAX
    assert result.summary()[0] == dict(result.diagnosis.numbers[0])
    assert np.isfinite(result.summary()[0]["mean_error"])
    for worse in ({"q_gap": 0.2}, {"k_hat": 0.8}, {"chi2": 1.0}, {"verdict": "x"}):
        other = replace(result, diagnosis=replace(result.diagnosis, **worse))
        assert other.draws_from == "chains"


def test_a_fit_by_hand_has_draws_of_q_unless_it_kept_states() -> None:
    plain = sa.fit(TARGET, sa.pmcsa(8), steps=50, progress=False)
    assert plain.draws_from == "q"
    assert late_states(plain) is None
    with pytest.raises(ValueError, match="kept no states of chains"):
        plain.sample(0, 10, "chains")
    with pytest.raises(ValueError, match="draws must be 'q', 'resampled' or 'chains', got 'p'"):
        plain.sample(0, 10, "p")  # type: ignore[arg-type]
    many = sa.fit(TARGET, sa.pmcsa(8), steps=5, replications=2, progress=False)
    assert many.draws_from == "q"
    assert many.sample(0, 7)["scale"].shape == (2, 7)
    with pytest.raises(ValueError, match=r"result\[0\]"):
        many.sample(0, 10, "resampled")


@pytest.mark.parametrize("every", [1, 2, 20])
def test_states_are_of_the_late_steps_only(every: int) -> None:
    """A few times in each late window, the last of them at the end, whatever the chunks were."""
    rule = sa.Converged(tolerance=1e-9, every=every, windows=4)
    steps = 40 * every + every // 2
    kept = {}

    def callback(state: sa.State, trace: sa.Trace) -> None:
        kept[int(state.step)] = np.asarray(state.eta.z)

    settings: dict[str, Any] = {"steps": steps, "stop": rule, "progress": False}
    result = sa.fit(TARGET, sa.pmcsa(6), callback=callback, callback_every=1, **settings)
    whole = sa.fit(TARGET, sa.pmcsa(6), **settings)
    np.testing.assert_array_equal(result.states, whole.states)
    last = steps // every * every
    np.testing.assert_array_equal(
        result.states[: len(result.states)][-1],
        kept[steps // result.states_every * result.states_every],
    )
    first = last - len(result.states) * result.states_every
    assert 0.4 * last < first + 2 * every
    for z in result.states:
        assert any(np.array_equal(z, there) for step, there in kept.items() if step > 0.4 * last)


def test_mutant_of_the_errors() -> None:
    """Errors that take states for independent would be far too small."""
    rng = np.random.default_rng(1)
    x = np.repeat(rng.normal(size=(1, 100, 1)), 50, 0)  # chains that never move
    assert moment_errors(x)[0][0] == pytest.approx(0.1, rel=0.2)
    assert z_score(x.reshape(-1, 1), x.mean() + 0.1) > Z_MUTANT / 2
    assert jax.tree.leaves(moment_errors(x))[0].shape == (1,)


def test_a_fit_by_hand_is_held_to_what_it_shows() -> None:
    """q has the moments of log scale, but the scale that its draws show has not the right sd."""
    update = sa.moment_matching()
    settings: dict[str, Any] = {"q0": sa.FullRank.standard(3), "optimizer": update}
    run = sa.fit(TARGET, sa.pmcsa(64), steps=2000, progress=False, average=True, **settings)
    diagnosis = run.diagnose()
    assert run.draws_from == "q"
    assert diagnosis.verdict == WEIGH
    assert diagnosis.worst == "scale"
    assert diagnosis.gap > 0.1
    row = next(row for row in diagnosis.numbers if row["name"] == "scale")
    assert abs(row["sd"] - np.sqrt(1.5)) < 2 * row["sd_error"]  # it knows that it is wrong
    moves = sa.pmcsa(128, sa.Cycle(sa.IMH(), sa.HMC()))
    stopped = sa.fit(TARGET, moves, stop=sa.Converged(every=20), progress=False, **settings)
    assert stopped.draws_from == "chains"
    assert stopped.diagnose().verdict == GOOD


def test_gaps_are_those_of_two_gaussians() -> None:
    """Draws of N(0, 1) weighted to N(0.3, 0.8²): the gaps are 0.3 / 0.8 and log 0.8."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        x = rng.normal(size=(1000, 1))
        weights = np.exp(-0.5 * ((x - 0.3) / 0.8) ** 2 + 0.5 * x**2)[:, 0]
        found.append(np.concatenate(gaps_by_weights(x, weights)))
    mean, spread = np.mean(found, 0), np.std(found, 0)
    np.testing.assert_allclose(mean[:2], [0.375, -np.log(0.8)], atol=0.01)
    np.testing.assert_allclose(mean[2:], spread[:2], rtol=0.25)
    chains = 0.3 + 0.8 * rng.normal(size=(50, 40, 1))
    by_chains = gaps_by_chains(rng.normal(size=(4000, 1)), chains)
    np.testing.assert_allclose([by_chains.mean[0], by_chains.sd[0]], mean[:2], atol=0.1)
    assert 0.02 < by_chains.mean_noise[0] < 0.04


def test_numbers_that_cannot_be_known_are_not_shown() -> None:
    """A half-Cauchy scale has neither mean nor variance, though its logarithm has both."""

    def density(p: dict[str, Any]) -> Any:
        return -jnp.log1p(p["scale"] ** 2) - 0.5 * p["x"] ** 2

    target = sa.Target(density, params={"scale": constraints.positive, "x": sa.Param()})
    result = sa.fit(target, key=0, progress=False)
    rows = {row["name"]: row for row in result.summary()}
    assert np.isnan(rows["scale"]["mean"])
    assert np.isnan(rows["scale"]["sd"])
    assert rows["scale"]["tail"] > 0.8
    assert rows["scale"]["q50"] == pytest.approx(1, abs=0.15)
    assert rows["x"]["sd"] == pytest.approx(1, abs=0.1)
    assert "–: tails too heavy" in str(result)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == GOOD


@pytest.mark.parametrize("tolerance", quick_rows([0.3, 0.05], 0.3))
def test_tolerance_is_what_a_good_fit_is_known_to(tolerance: float) -> None:
    result = sa.fit(TARGET, key=0, tolerance=tolerance, progress=False)
    diagnosis = result.diagnosis
    assert diagnosis is not None
    assert diagnosis.verdict == GOOD
    assert diagnosis.tolerance == result.tolerance == tolerance
    assert diagnosis.unsure < tolerance
    assert diagnosis.error < 0.3 * tolerance
    assert f"within {tolerance:g} posterior sds" in str(result)


@pytest.mark.parametrize("summed", [1, 10**3, 10**9])
def test_errors_are_the_same_however_many_states_are_summed_at_a_time(
    summed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).gamma(2.0, size=(37, 11, 3)).astype(np.float32)
    monkeypatch.setattr(draws, "SUMMED", summed)
    away = x.astype(np.float64) - x.mean((0, 1), dtype=np.float64)
    sd = away.std((0, 1))
    errors = [(away**k).mean(0).std(0, ddof=1) / np.sqrt(11) for k in (1, 2)]
    found = moment_errors(x)
    np.testing.assert_allclose(found[0], errors[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], errors[1] / (2 * sd), rtol=1e-6)


def test_of_very_many_scalars_those_known_worst_are_looked_at() -> None:
    """The others keep the error that they have at first, which is smaller."""
    heavy, plain = sa.Param(constraints.positive, (4,)), sa.Param(constraints.real, (36,))
    params = {"heavy": heavy, "plain": plain}
    target = sa.Target(lambda p: -jnp.sum(p["plain"] ** 2), params=params)
    states = np.random.default_rng(0).normal(size=(30, 20, 40)).astype(np.float32)
    states[..., :4] *= 2.5
    all_of_them, some = (draws.own_errors(target, states, 0.02, most=most)[1] for most in (40, 5))
    assert np.max(all_of_them) == np.max(some)
    worst = np.argsort(-all_of_them)[:5]
    np.testing.assert_array_equal(all_of_them[worst], some[worst])
    assert np.sum(all_of_them != some) <= 4
