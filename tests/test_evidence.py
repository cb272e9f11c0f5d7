"""The log evidence and its error against closed forms, by weights and by a bridge; comparisons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import scoreascent as sa
from scoreascent.diagnostics.evidence import _by_bridge
from scoreascent.diagnostics.rules import STUCK


def regression(rows: int, coefficients: int, seed: int) -> tuple[sa.Target, float]:
    """A linear regression with unit noise and a normal prior, and its log evidence."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, coefficients))
    y = X @ rng.normal(size=coefficients) + rng.normal(size=rows)
    cov = np.eye(rows) + X @ X.T
    exact = -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(2 * np.pi * cov)[1])
    constant = -0.5 * (rows + coefficients) * math.log(2 * math.pi)

    def log_density(z: Any, data: Any) -> Any:
        X, y = data
        return constant - 0.5 * (jnp.sum((y - X @ z) ** 2) + jnp.sum(z**2))

    data = (X.astype(np.float32), y.astype(np.float32))
    return sa.Target(log_density, dim=coefficients, data=data), exact


def test_of_a_linear_regression() -> None:
    target, exact = regression(20, 3, 0)
    found = sa.fit(target, progress=False).log_evidence(1)
    assert found.how == "importance weights"
    assert abs(found.value - exact) < 4 * found.error + 1e-4 < 0.02
    low, high = found.interval(0.9)
    np.testing.assert_allclose(
        [low + high, high - low], [2 * found.value, 3.29 * found.error], 1e-3
    )
    assert "importance weights" in str(found)


@pytest.mark.slow
def test_bars_cover_as_often_as_they_say() -> None:
    """A skewed posterior, so that weights differ: 90 % bars, a hundred seeds."""
    target = sa.Target(lambda z: jnp.sum(2 * z - jnp.exp(z)), dim=4)  # Γ(2) = 1: log Z = 0
    result = sa.fit(target, progress=False)
    found = [result.log_evidence(key, draws=2000) for key in range(100)]
    inside = sum(low < 0 < high for low, high in (x.interval(0.9) for x in found))
    assert 82 <= inside <= 97
    assert 0.001 < np.mean([x.error for x in found]) < 0.05


@pytest.mark.slow
def test_a_bridge_where_weights_have_no_variance() -> None:
    """Tails of df 3 in 60 dimensions, of which chains rest by themselves."""
    dim, df = 60, 5.0
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    target = sa.Target(lambda z: jnp.sum(norm - (df + 1) / 2 * jnp.log1p(z**2 / df)), dim=dim)
    result = sa.fit(target, progress=False)
    found = result.log_evidence()
    assert found.how == "bridge"
    assert found.k_hat > 0.5
    assert abs(found.value) < 4 * found.error < 0.5
    # also where k̂ happens to be small, which is where the average of weights is too low
    again = [result.log_evidence(key) for key in range(10)]
    assert {x.how for x in again} == {"bridge"}
    assert all(abs(x.value) < 4 * x.error for x in again)


def bridge_z(log_ratio: Any, seed: int, chains: Any) -> float:
    """How many standard errors a bridge from N(0, 1) to `chains` of N(1, 1) is off log e² = 2."""
    rng = np.random.default_rng(seed)
    found = _by_bridge(log_ratio(rng.normal(size=2000)), log_ratio(chains(rng)), 0.9)
    return (found.value - 2) / found.error


def test_the_bridge_knows_its_error_also_for_chains_that_hardly_move() -> None:
    def slow(rng: Any) -> Any:
        return 1 + rng.normal(size=(60, 1)) * np.ones((1, 50))

    ratio = lambda z: z - 0.5 + 2  # noqa: E731
    z = [bridge_z(ratio, seed, slow) for seed in range(200)]
    assert abs(np.mean(z)) < 0.3
    assert 0.8 < np.std(z) < 1.25
    # a mutant that takes all states for independent draws
    cut = lambda rng: slow(rng).reshape(-1, 1)  # noqa: E731
    assert np.std([bridge_z(ratio, seed, cut) for seed in range(100)]) > 1.5


def test_refused_where_q_and_the_posterior_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    far = lambda z: -0.5 * ((z - 30) ** 2 - z**2)  # noqa: E731
    with pytest.raises(ValueError, match="hardly overlap"):
        _by_bridge(far(rng.normal(size=2000)), far(rng.normal(30, 1, (20, 100))), 9.0)


def test_refused_where_the_fit_is_not_believed() -> None:
    target, _ = regression(10, 2, 0)
    result = sa.fit(target, sa.pmcsa(8), steps=50, progress=False)
    stuck = replace(result, diagnosis=replace(result.diagnose(), verdict=STUCK))
    with pytest.raises(ValueError, match="mend the fit first"):
        stuck.log_evidence()
    wide = replace(result, q=sa.FullRank.standard(2, 1e-3))
    with pytest.raises(ValueError, match="no chains that move by themselves"):
        wide.log_evidence()
    with pytest.raises(ValueError, match="draws"):
        result.log_evidence(draws=3)
    with pytest.raises(ValueError, match="level"):
        result.log_evidence().interval(1.0)


# -- comparisons ---------------------------------------------------------------------------------


def line(x: Any, y: Any, degree: int) -> None:
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([degree + 1]).to_event(1))
    mean = sum(beta[k] * x**k for k in range(degree + 1))
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.slow
def test_rival_models_are_ordered_as_their_exact_evidence() -> None:
    pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40).astype(np.float32)
    y = (0.5 - x + 0.5 * rng.normal(size=40)).astype(np.float32)
    results, exact = {}, {}
    for degree in (0, 1, 3):
        X = x[:, None] ** np.arange(degree + 1)
        cov = 0.25 * np.eye(40) + X @ X.T
        log_det = np.linalg.slogdet(2 * np.pi * cov)[1]
        exact[f"degree {degree}"] = -0.5 * (y @ np.linalg.solve(cov, y) + log_det)
        target = sa.from_numpyro(line, x, y, degree)
        results[f"degree {degree}"] = sa.fit(target, progress=False)
    table = sa.compare(results)
    assert [row.name for row in table.rows] == sorted(exact, key=lambda n: -exact[n])
    for row in table.rows:
        assert row.evidence is not None
        assert abs(row.evidence.value - exact[row.name]) < 4 * row.evidence.error + 1e-3
    assert abs(sum(row.probability for row in table.rows) - 1) < 1e-6
    assert table.rows[0].difference == 0
    assert table["degree 0"].difference < -5
    assert table["degree 0"].elpd_difference < -5
    assert max(row.elpd_difference for row in table.rows) == 0
    assert "log evidence" in str(table)
    assert "elpd" in str(table)


@pytest.mark.slow
def test_elpd_is_arviz_leave_one_out_and_pairs_the_data() -> None:
    arviz = pytest.importorskip("arviz")
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, 30).astype(np.float32)
    y = (2 * x + 0.5 * rng.normal(size=30)).astype(np.float32)
    results = {
        degree: sa.fit(
            sa.from_numpyro(line, x, y, degree), sa.pmcsa(64), steps=400, progress=False,
            optimizer=sa.moment_matching(), q0=sa.FullRank.standard(degree + 1), average=True,
        )
        for degree in (0, 1)
    }  # fmt: skip
    named = {f"degree {k}": result for k, result in results.items()}
    table = sa.compare(named)
    for name, result in named.items():
        loo = arviz.loo(result.to_arviz(draws=result.draws_from))
        expected = loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd
        assert table[name].elpd == pytest.approx(float(expected), abs=1e-3)
    flat = table["degree 0"]
    assert table["degree 1"].elpd_difference == 0
    assert flat.elpd_difference == pytest.approx(flat.elpd - table["degree 1"].elpd)
    # of the same points: their common luck cancels
    assert flat.elpd_difference_error < np.hypot(flat.elpd_error, table["degree 1"].elpd_error)
    assert flat.elpd_difference < -3 * flat.elpd_difference_error


def test_bad_comparisons_are_named() -> None:
    with pytest.raises(ValueError, match="results must be a dictionary"):
        sa.compare([])
    with pytest.raises(ValueError, match=r"results\['a'\] must be what fit returns"):
        sa.compare({"a": 3})


def test_a_refused_evidence_is_a_dash_with_its_reason() -> None:
    target, _ = regression(10, 2, 0)
    result = sa.fit(target, sa.pmcsa(8), steps=50, progress=False)
    table = sa.compare({"bad": replace(result, q=sa.FullRank.standard(2, 1e-3))})
    assert table["bad"].evidence is None
    assert "no chains that move by themselves" in table["bad"].why
    assert "–" in str(table)
    with pytest.raises(KeyError):
        table["other"]


def test_beside_a_refused_evidence_no_probability_is_known() -> None:
    """It was one, of the models that were left."""
    target, _ = regression(10, 2, 0)
    good = sa.fit(target, progress=False)
    bad = replace(good, q=sa.FullRank.standard(2, 1e-3), diagnosis=None, states=None)
    alone, table = sa.compare({"good": good}), sa.compare({"good": good, "bad": bad})
    assert alone["good"].probability == 1.0
    assert table["bad"].evidence is None
    assert table["good"].difference == 0
    assert np.isnan(table["good"].probability)
