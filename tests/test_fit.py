"""What a fit finds, and what its result says.

The compiled loops of tests/test_contract.py are used again: the same density, methods, optimiser.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.distributions import constraints

import scoreascent as sa
from tests.helpers import OPTIMIZER, RHO, TARGET, TARGETS, fit, host, run_chunk, same_bits, same_run
from tests.registry import METHODS

T = 12


@pytest.fixture(scope="module")
def single() -> sa.Result:
    return fit("pmcsa")


@pytest.fixture(scope="module")
def many() -> sa.Result:
    return fit("pmcsa", TARGETS, average=0.25)


# -- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_spreads_of_a_correlated_gaussian(name: str) -> None:
    """Score ascent finds the marginal spreads, the ELBO the conditional ones, 0.6 of them."""
    result = fit(name, TARGETS, steps=20_000, average=0.25)
    ratio = np.sqrt(1 - RHO**2) if name == "elbo" else 1.0
    for i, target in enumerate(TARGETS):
        scale = np.asarray(target.data["scale"])
        off = (result[i].q.mean - target.data["centre"]) / scale
        np.testing.assert_allclose(off, 0.0, atol=0.15)
        np.testing.assert_allclose(result[i].q.sd / scale, ratio, atol=0.17)
    assert set(result.status) == {"max_steps"}
    assert result.warnings() == []


OPTIMIZERS = {
    "clipped adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.02)),
    "duchi": optax.sgd(sa.schedules.duchi(0.5)),
    "polyak": optax.polyak_sgd(max_learning_rate=0.05, f_min=-100.0),
}
SLOW = {
    "nesterov": sa.schedules.doan_nesterov(4.0),
    "doan": optax.sgd(sa.schedules.doan(1.0)),
    "momentum": optax.sgd(0.02, momentum=0.9),
    "lion": optax.lion(0.005),
    "lbfgs": optax.lbfgs(),
}


@pytest.mark.parametrize(
    "optimizer",
    [
        *(pytest.param(o, id=k) for k, o in OPTIMIZERS.items()),
        *(pytest.param(o, id=k, marks=pytest.mark.slow) for k, o in SLOW.items()),
    ],
)
def test_any_optimiser(optimizer: Any) -> None:
    result = sa.fit(TARGET, sa.pmcsa(32), optimizer=optimizer, steps=1000, progress=False)
    assert not np.any(result.trace.skipped)
    late = np.mean(result.trace.loss[-200:])
    assert np.all(np.isfinite(result.trace.loss))
    np.testing.assert_allclose(result.q.mean, TARGET.data["centre"], atol=0.4)
    np.testing.assert_allclose(result.q.sd / TARGET.data["scale"], 1.0, atol=0.4)
    assert late < result.trace.loss[0]


def test_optimiser_that_looks_into_q() -> None:
    """A mask by attribute: the spreads stay, the means move."""
    spreads = lambda q: jax.tree.map(lambda x: x is q.omega, q)  # noqa: E731
    optimizer = optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), spreads))
    result = fit("elbo", optimizer=optimizer, steps=5)
    np.testing.assert_array_equal(result.q.omega, sa.MeanField.standard(2).omega)
    assert np.all(np.asarray(result.q.loc) != 0)


# -- schedules -----------------------------------------------------------------------------------


def test_schedules_count_from_one() -> None:
    t = np.arange(1, 6)
    at = lambda schedule: [float(schedule(jnp.int32(count))) for count in t - 1]  # noqa: E731
    np.testing.assert_allclose(at(sa.schedules.duchi(0.3)), 0.3 / np.sqrt(t), rtol=1e-6)
    np.testing.assert_allclose(at(sa.schedules.doan(0.3)), 0.3 / t, rtol=1e-6)


def test_doan_nesterov_by_hand() -> None:
    """γ_t = 2/(t + 1), β_t = 1/(2L√(t + 1)); Nesterov's step is −γ (g + β m), m = g + β m₋₁."""
    smoothness = 3.0
    optimizer = sa.schedules.doan_nesterov(smoothness)
    state, momentum = optimizer.init(jnp.float32(0.0)), 0.0
    for t, g in enumerate([1.0, -2.0, 0.5, 3.0], start=1):
        update, state = optimizer.update(jnp.float32(g), state)
        beta = 1 / (2 * smoothness * np.sqrt(t + 1))
        momentum = g + beta * momentum
        np.testing.assert_allclose(update, -2 / (t + 1) * (g + beta * momentum), rtol=1e-5)


# -- averages ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iterates() -> list[Any]:
    """λ₁, λ₂, …, one fit for each."""
    result = fit("pmcsa", TARGETS, steps=0, average=0.0)
    qs = []
    for t in range(1, T + 1):
        result = fit("pmcsa", TARGETS, steps=t, average=0.0, state=result.state)
        qs.append(result.state.q)
    return qs


@pytest.mark.parametrize(("average", "start"), [(0.0, 0), (0.25, 3), (True, 6), (0.95, 11)])
def test_average_is_the_mean_of_the_iterates(average: Any, start: int, iterates: Any) -> None:
    result = fit("pmcsa", TARGETS, steps=T, average=average)
    assert same_bits(result.state.q, iterates[-1])  # averaging does not touch the run
    for leaf in ("loc", "omega"):
        mean = np.mean([np.asarray(getattr(q, leaf), np.float64) for q in iterates[start:]], 0)
        np.testing.assert_allclose(getattr(result.q, leaf), mean, rtol=1e-5, atol=1e-6)
    assert same_bits(result.q, result.state.average.q)


def test_without_an_average_the_last_iterate_is_given(single: sa.Result) -> None:
    assert single.state.average is None
    assert same_bits(single.q, single.state.q)


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [3, np.int64(3), jax.random.key(3), jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))],
    ids=["int", "numpy int", "typed", "legacy", "legacy numpy"],
)
def test_key_forms(key: Any, single: sa.Result) -> None:
    assert same_run(fit("pmcsa", key=key), single)


def test_an_optimiser_is_an_update(single: sa.Result) -> None:
    assert same_run(fit("pmcsa", optimizer=sa.gradient(OPTIMIZER)), single)


def test_another_key_is_another_run(single: sa.Result) -> None:
    assert not same_bits(fit("pmcsa", key=4).q, single.q)


def test_q0_may_depend_on_the_key() -> None:
    def q0(key: Any) -> sa.MeanField:
        return sa.MeanField.from_moments(jax.random.normal(key, (2,)), 2.0 * jnp.ones(2))

    many = fit("pmcsa", TARGETS, q0=q0, steps=0, average=0.25)
    means = np.asarray(many.q.mean)
    assert means.shape == (3, 2)
    assert len(np.unique(means)) == 6
    np.testing.assert_allclose(many.q.sd, 2.0, rtol=1e-6)
    one, same, other = (fit("pmcsa", q0=q0, steps=0, key=key) for key in (3, 3, 4))
    assert same_bits(one.q, same.q)
    assert not same_bits(one.q, other.q)


# -- cost ----------------------------------------------------------------------------------------


def test_trace_is_all_that_grows() -> None:
    short, long = fit("pmcsa", steps=50), fit("pmcsa", steps=9000)  # more than two chunks hold
    row = sum(x.dtype.itemsize for x in short.trace)
    assert row == 20
    for result, steps in ((short, 50), (long, 9000)):
        assert all(isinstance(x, np.ndarray) for x in result.trace)
        assert sum(x.nbytes for x in result.trace) == steps * row
    size = lambda result: sum(x.nbytes for x in jax.tree.leaves(result.state))  # noqa: E731
    assert size(short) == size(long)


def test_short_chunks_do_not_hold_long_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk has room for 4096 rows; of a chunk of one iteration, one row may be kept."""
    join, kept = host.join, []

    def spy(parts: Any) -> Any:
        kept.extend(x if x.base is None else x.base for part in parts for x in part)
        return join(parts)

    monkeypatch.setattr(host, "CHUNK_SECONDS", 0)
    monkeypatch.setattr(host, "join", spy)
    fit("pmcsa", steps=40)
    held = sum(len(memoryview(x).cast("B")) for x in kept)
    assert held < 10 * 40 * 20


def test_one_program_serves_every_length(single: sa.Result) -> None:
    before = run_chunk._cache_size()
    for steps in (1, 2, 17, 5000):
        fit("pmcsa", steps=steps)
    assert run_chunk._cache_size() == before


# -- the result ----------------------------------------------------------------------------------


def named_density(p: Any, data: Any) -> Any:
    log_p = -0.5 * jnp.sum((p["beta"] - data) ** 2) - p["sigma"] - 0.1 * p["sigma"] ** 2
    return log_p + jnp.sum(jnp.log(p["mix"])) - p["sub"]["rho"] ** 2


PARAMS = {
    "beta": sa.Param(shape=(2,)),
    "mix": sa.Param(constraints.simplex, (3,)),
    "sigma": constraints.positive,
    "sub": {"rho": constraints.interval(-1.0, 1.0)},
}
NAMES = ["beta[0]", "beta[1]", "mix[0]", "mix[1]", "mix[2]", "sigma", "sub.rho"]
SHAPES = {"beta": (2,), "mix": (3,), "sigma": (), "sub.rho": ()}


@pytest.fixture(scope="module")
def named() -> tuple[sa.Result, list[Any]]:
    """Two replications of a target with names, and the warnings they gave."""
    targets = [sa.Target(named_density, params=PARAMS, data=jnp.float32(x)) for x in (0.0, 5.0)]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = sa.fit(targets, sa.elbo(8), steps=500, progress=False)
    return result, heard


def test_nothing_is_deprecated(named: Any) -> None:
    """Nor is anything else said when all is well."""
    assert [str(w.message) for w in named[1]] == []


def test_draws_are_named_and_in_their_supports(named: Any, single: sa.Result) -> None:
    assert single.sample(0)["z"].shape == (1000, 2)
    many = named[0]
    draws = many.sample(0, 50)
    assert {k: v.shape for k, v in draws.items()} == {k: (2, 50, *s) for k, s in SHAPES.items()}
    for one in many:
        draws = one.sample(jax.random.key(1), 50)
        assert {k: v.shape for k, v in draws.items()} == {k: (50, *s) for k, s in SHAPES.items()}
        assert np.all(draws["sigma"] > 0)
        assert np.all(np.abs(draws["sub.rho"]) < 1)
        assert np.all(draws["mix"] > 0)
        np.testing.assert_allclose(np.sum(draws["mix"], -1), 1.0, rtol=1e-5)
    assert same_bits(many[1].sample(1, 50), draws)
    with pytest.raises(ValueError, match="n must be an integer ≥ 1, got 0"):
        many.sample(0, 0)


def test_summary_is_that_of_the_draws(named: Any) -> None:
    many = named[0]
    rows = many[1].summary()
    assert [row["name"] for row in rows] == NAMES
    row, q = rows[0], many[1].q
    np.testing.assert_allclose(row["mean"], q.mean[0], atol=5 * q.sd[0] / np.sqrt(4000))
    np.testing.assert_allclose(row["sd"], q.sd[0], rtol=0.07)
    quantiles = q.mean[0] + 1.645 * np.array([-1, 1]) * q.sd[0]
    np.testing.assert_allclose([row["q05"], row["q95"]], quantiles, rtol=0.1)
    assert all(r["q05"] < r["mean"] < r["q95"] for r in rows)
    both = {row["name"]: row["mean"] for row in many.summary()}
    assert list(both) == NAMES
    np.testing.assert_allclose(both["beta[0]"], np.mean(many.q.mean[:, 0]), atol=0.1)


def test_result_prints_what_a_person_needs(named: Any, single: sa.Result, many: sa.Result) -> None:
    text = str(named[0])
    assert "PathElbo(n=8)" in text
    assert "2 max_steps after 500 steps × 2 replications" in text
    assert all(name in text for name in NAMES)
    text = str(single)
    assert "ScoreAscent(Parallel(IMH(), n=4))" in text
    assert "max_steps after 40 steps; last tenth: loss" in text
    assert "acceptance" in text
    assert "z[1]" in text
    assert "!" not in text
    assert "3 max_steps" in str(many)


def test_long_tables_are_cut(single: sa.Result) -> None:
    target = sa.Target(lambda z: -jnp.sum(z**2), dim=40)
    text = str(dataclasses.replace(single, q=sa.MeanField.standard(40), target=target))
    assert "z[29]" in text
    assert "z[30]" not in text
    assert "… 10 more" in text


def test_warnings_are_printed(single: sa.Result) -> None:
    assert single.warnings() == []
    still = single.trace._replace(acceptance=np.zeros(40, np.float32))
    stuck = dataclasses.replace(single, trace=still)
    assert any("chains hardly move (acceptance 0.00%" in says for says in stuck.warnings())
    assert "! chains hardly move" in str(stuck)
    late = still._replace(acceptance=np.r_[np.zeros(36), np.full(4, 0.5)])
    assert dataclasses.replace(single, trace=late).warnings() == []
    bad = single.trace._replace(
        skipped=np.r_[np.zeros(38, int), 1, 1], invalid=np.r_[np.zeros(38, int), 5, 2]
    )
    says = dataclasses.replace(single, trace=bad).warnings()
    assert any(line.startswith("2 of 40 updates were skipped") for line in says)
    assert any("at 7 proposals" in line for line in says)


def test_result_says_what_made_it(single: sa.Result, many: sa.Result) -> None:
    made = single.provenance
    assert made["method"] == repr(METHODS["pmcsa"])
    assert made["scoreascent"] == sa.__version__
    assert made["jax"] == jax.__version__
    assert made["optax"] == optax.__version__
    assert {"python", "numpyro", "device", "seconds", "steps", "update", "data", "q0"} <= set(made)
    assert made["steps"] == 40
    assert made["key"] == [0, 3]
    assert made["replications"] is None
    assert many.provenance["replications"] == 3
    assert many.provenance["average"] != made["average"]
    assert single.method == METHODS["pmcsa"]
    assert single.target is TARGET


def test_a_result_is_true(single: sa.Result, many: sa.Result) -> None:
    """`if result:` must not ask for a length that only replications have."""
    assert single
    assert many
