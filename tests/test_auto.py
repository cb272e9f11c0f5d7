"""`fit(target)`: right where it says good, and honest where it is not."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.diagnostics import weights
from scoreascent.diagnostics.rules import GOOD, LONGER, STUCK
from scoreascent.fitting import automatic
from scoreascent.update import Still
from tests.helpers import WITH_GRADIENTS, searches


def fit(log_density: Any, dim: int, **options: Any) -> sa.Result:
    options = {"key": 0, "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return sa.fit(sa.Target(log_density, dim), **options)


def correlated(scales: Any, rho: float) -> Any:
    """A Gaussian with these sds, every pair of which correlates by rho."""
    d = len(scales)
    corr = (1 - rho) * np.eye(d) + rho
    cov = corr * np.outer(scales, scales)
    mean = np.asarray(scales) * np.arange(d)
    precision, centre = (jnp.asarray(x, jnp.float32) for x in (np.linalg.inv(corr), mean))
    unit = jnp.asarray(scales, jnp.float32)

    def log_density(z: Any) -> Any:
        x = (z - centre) / unit
        return -0.5 * x @ precision @ x

    return log_density, mean, np.sqrt(np.diagonal(cov))


def errors(result: sa.Result, mean: Any, sd: Any) -> tuple[float, float]:
    """The worst mean error in sds, and the mean |log ratio| of sds."""
    return (
        float(np.max(np.abs(np.asarray(result.q.mean) - mean) / sd)),
        float(np.mean(np.abs(np.log(np.asarray(result.q.sd) / sd)))),
    )


def test_a_badly_scaled_and_collinear_gaussian():
    log_density, mean, sd = correlated([1e-3, 1.0, 1e3, 0.1], 0.99)
    result = fit(log_density, 4)
    worst, spread = errors(result, mean, sd)
    assert worst < 0.1
    assert spread < 0.05
    assert result.diagnosis.verdict == GOOD
    assert result.diagnose() is result.diagnosis
    assert result.status == "converged"


@pytest.mark.slow
def test_gradient_moves_where_proposals_fail():
    """A skewed posterior in twelve dimensions: log Gamma(½) variables, closed-form moments."""

    def log_density(z: Any) -> Any:
        return jnp.sum(0.5 * z - jnp.exp(z))

    result = fit(log_density, 12)
    mean, sd = -1.9635100260214235, 2.221441469079183  # digamma(½), √trigamma(½)
    worst, spread = errors(result, mean, sd)
    assert worst < 0.1
    assert spread < 0.05
    assert result.method.moves.kernel == WITH_GRADIENTS
    assert result.diagnosis.verdict == GOOD
    assert any("kernel" in text for text in result.decisions)
    assert result.evaluations[1] > 10_000  # gradients were taken


@pytest.mark.slow
def test_mutant_a_rule_that_trusts_independent_proposals_alone_is_wrong_here():
    """The same posterior, by the kernel that `auto` turned down: off, and not called good."""

    def log_density(z: Any) -> Any:
        return jnp.sum(0.5 * z - jnp.exp(z))

    result = sa.fit(
        sa.Target(log_density, 12),
        sa.pmcsa(128),
        q0=sa.laplace(sa.Target(log_density, 12)),
        optimizer=sa.moment_matching(),
        steps=500,
        average=True,
        progress=False,
    )
    assert errors(result, -1.9635100260214235, 2.221441469079183)[1] > 0.05
    assert result.diagnose().verdict != GOOD


def funnel(z: Any) -> Any:
    return -(z[0] ** 2) / 18 - 0.5 * jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) - 4.5 * z[0]


def half_nan(z: Any) -> Any:
    return jnp.where(z[0] > 0, -0.5 * jnp.sum((z - 1) ** 2), jnp.nan)


def cliff(z: Any) -> Any:
    return jnp.where(jnp.all(z > 0), -jnp.sum(z), -jnp.inf)


def saddle(z: Any) -> Any:
    return -0.5 * z[0] ** 2 + 2 * z[1] ** 2 - z[1] ** 4 / 4


BAD = {
    "funnel": (funnel, 10, "chains|scale"),
    "NaN on half the space": (half_nan, 2, "NaN"),
    "infinite variance": (lambda z: -jnp.sum(jnp.log1p(z**2)), 2, ""),
    "a saddle at the origin": (saddle, 2, "modes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_never_called_good(name):
    log_density, dim, reason = BAD[name]
    result = fit(log_density, dim, steps=1500)
    assert result.diagnosis.verdict != GOOD
    assert re.search(reason, result.diagnosis.reason)
    assert result.diagnosis.verdict in str(result)


@pytest.mark.parametrize(
    "density",
    [
        lambda z: 0 * jnp.sum(z),
        lambda z: -0.5 * z[0] ** 2 + 0 * z[1],
        lambda z: -0.5 * z[0] ** 2 + z[1],
        lambda z: -0.5 * z[0] ** 2 - 0.5 * jnp.log1p(z[1] ** 2),
    ],
    ids=["constant", "flat in one direction", "no normalising constant", "a tail like 1/z"],
)
def test_no_mass_is_an_error_before_any_chain_runs(density):
    with pytest.raises(ValueError, match=r"along coordinate \d of 2 .* improper"):
        fit(density, 2)


@pytest.mark.parametrize("dim", [1, 3])
def test_cauchys_tails_are_no_such_error(dim):
    target = sa.Target(lambda z: -jnp.sum(jnp.log1p(z**2)), dim)
    assert searches.flat_direction(target, np.zeros(dim), np.ones(dim)) == ""


@pytest.mark.slow
def test_an_edge_is_no_failure():
    """Exponentials that end at zero: means and sds are one."""
    result = fit(cliff, 2)
    assert errors(result, np.ones(2), np.ones(2))[0] < 0.1
    assert errors(result, np.ones(2), np.ones(2))[1] < 0.1


def on_the_host(z: Any) -> Any:
    return np.asarray(-0.5 * np.sum((np.asarray(z) - 0.5) ** 2, -1), np.float32)


def test_a_density_without_gradient_is_fitted_by_proposals_alone():
    def density(z: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(on_the_host, shape, z, vmap_method="broadcast_all")

    result = fit(density, 2, steps=100)
    assert any("has no gradient" in text for text in result.decisions)
    assert result.method.is_independent
    assert result.evaluations[1] == 0
    assert np.all(np.abs(np.asarray(result.q.mean) - 0.5) < 0.3)


def test_data_with_holes_are_named():
    target = sa.Target(lambda z, y: -jnp.sum((z - y) ** 2), 2, data=np.float32([np.nan, 1]))
    with pytest.raises(ValueError, match="data holds NaN"):
        sa.fit(target, progress=False)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_it_runs_on_the_host(transform):
    def inside(y: Any) -> Any:
        target = sa.Target(lambda z, y: -jnp.sum((z - y) ** 2), 2, data=y)
        return sa.fit(target, sa.pmcsa(4), steps=2, progress=False).q.mean

    with pytest.raises(ValueError, match="cannot be called under jit, vmap or grad"):
        transform(inside)(jnp.ones((3, 2)))


def test_a_density_without_a_finite_value_is_an_error():
    with pytest.raises(ValueError, match="no search found a place"):
        fit(lambda z: jnp.nan * jnp.sum(z), 2)


@pytest.mark.slow
def test_every_choice_can_be_overruled():
    log_density, mean, sd = correlated([1.0, 2.0], 0.9)
    q0 = sa.MeanField.from_moments([0.0, 1.0], [1.0, 1.0])
    result = fit(log_density, 2, q0=q0, optimizer=sa.moment_matching(), steps=300, average=True)
    assert isinstance(result.q, sa.MeanField)
    assert int(result.state.step) == 300
    assert any("MeanField that was given" in text for text in result.decisions)
    start = sa.laplace(sa.Target(log_density, 2), searches=2)
    assert errors(fit(log_density, 2, q0=start), mean, sd)[0] < 0.1


def say_that_data_are_many_from(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (automatic, weights):
        monkeypatch.setattr(room, "MANY_DATA", size)


def mean_of_many(z: Any, x: Any) -> Any:
    """The posterior of the mean of many numbers, which is Gaussian."""
    return -0.5 * jnp.sum((x - z) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "many"), [(50_000, True), (500, False)])
def test_of_many_data_few_densities_do_where_the_start_is_close(
    rows: int, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All proposals of the start are accepted, so q stands still."""
    say_that_data_are_many_from(100_000, monkeypatch)
    x = np.random.default_rng(0).normal(size=(rows, 2))
    result = sa.fit(sa.Target(mean_of_many, dim=2, data=x), progress=False)
    assert ("Ladder" in result.provenance["stop_rule"]) == many
    assert (result.update == Still()) == many
    assert (result.steps * result.method.chains < 10_000) == many
    assert result.diagnosis.draws == (1024 if many else 4000)
    assert result.diagnosis.verdict == "good"
    np.testing.assert_allclose(result.q.mean, x.mean(0), atol=0.1 / np.sqrt(rows))
    np.testing.assert_allclose(result.q.sd, 1 / np.sqrt(rows), rtol=0.1)


def stretched(z: Any, x: Any) -> Any:
    """The same, but the second coordinate is 3 sds wide above and 1 below."""
    away = (z - jnp.mean(x, 0)) * jnp.sqrt(len(x))
    return -0.5 * jnp.sum((away * jnp.where(away > 0, jnp.array([1, 1 / 3]), 1)) ** 2)


@pytest.mark.slow
def test_of_many_data_q_moves_where_the_start_is_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many data, and a posterior whose start is wrong by a factor of two."""
    say_that_data_are_many_from(100_000, monkeypatch)
    x = np.random.default_rng(0).normal(size=(50_000, 2))
    result = sa.fit(sa.Target(stretched, dim=2, data=x), progress=False)
    assert result.update != Still()
    # |N(0, 3²)| three times as often as −|N(0, 1)|
    mean = np.sqrt(2 / np.pi) * (3 * 0.75 - 0.25)
    mean, sd = np.r_[0, mean], np.r_[1, np.sqrt(7 - mean**2)]
    unit = 1 / np.sqrt(len(x))
    assert result.diagnosis.verdict == "good"
    np.testing.assert_allclose(result.q.mean, x.mean(0) + mean * unit, atol=0.1 * unit)
    np.testing.assert_allclose(result.q.sd, sd * unit, rtol=0.1)


def test_the_same_key_gives_the_same_bits_and_another_other_ones():
    log_density, _, _ = correlated([1.0, 2.0], 0.5)
    target = sa.Target(log_density, 2)
    a, b, c = (sa.fit(target, key=k, progress=False) for k in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a.q, b.q))
    assert not jnp.all(a.q.mean == c.q.mean)
    assert a.decisions == b.decisions


def test_a_checkpoint_makes_a_second_call_free(tmp_path):
    log_density, _, _ = correlated([1.0, 2.0], 0.5)
    target = sa.Target(log_density, 2)
    path = tmp_path / "run.ckpt"
    a = sa.fit(target, key=1, progress=False, checkpoint=path)
    assert path.exists()
    b = sa.fit(target, key=1, progress=False, checkpoint=path)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a.q, b.q))
    assert b.diagnosis.verdict == a.diagnosis.verdict


def test_decisions_are_said_as_they_are_taken(capsys):
    log_density, _, _ = correlated([1.0, 2.0], 0.5)
    result = fit(log_density, 2, progress=True)
    err = capsys.readouterr().err
    for text in result.decisions:
        assert text.split(":")[0] in err
    assert all(word in err for word in ("start", "kernel", "verdict"))


@pytest.mark.slow
def test_many_dimensions_are_left_to_chains_that_move_by_themselves():
    scale = jnp.linspace(0.5, 2.0, 300)
    result = fit(lambda z: -0.5 * jnp.sum((z / scale) ** 2), 300)
    assert isinstance(result.q, sa.FullRank)
    assert result.method.moves.kernel == automatic.ON_THEIR_OWN
    worst, spread = errors(result, 0.0, np.asarray(scale))
    assert worst < 0.15  # of three hundred means, each known to 0.03
    assert spread < 0.05
    assert result.diagnosis.verdict == GOOD


@pytest.mark.slow
def test_more_dimensions_than_that_take_a_low_rank_family(monkeypatch):
    monkeypatch.setattr(automatic, "MAX_LADDER", 200)
    scale = jnp.linspace(0.5, 2.0, 300)
    result = fit(lambda z: -0.5 * jnp.sum((z / scale) ** 2), 300)
    assert isinstance(result.q, sa.LowRank)
    worst, spread = errors(result, 0.0, np.asarray(scale))
    assert worst < 0.1
    assert spread < 0.05
    assert result.diagnosis.verdict == GOOD


# -- which kernel comes next -----------------------------------------------------------------------

CARE, GRADIENTS, ALONE = automatic.WITH_CARE, automatic.WITH_GRADIENTS, automatic.PROPOSALS_ALONE
NEXT: list[tuple[Any, dict[str, Any], Any]] = [
    (ALONE, {"verdict": GOOD}, None),
    (ALONE, {"verdict": GOOD, "ess": 40.0}, GRADIENTS),  # chains stay long in tails
    (ALONE, {"verdict": LONGER}, ALONE),  # q is near: proposals go on to do
    (ALONE, {"verdict": LONGER, "ess": 80.0}, GRADIENTS),
    (ALONE, {"verdict": STUCK}, GRADIENTS),
    (ALONE, {"verdict": STUCK, "differentiable": False}, automatic.WITH_WALKS),
    (automatic.WITH_WALKS, {"verdict": STUCK, "differentiable": False}, automatic.WITH_WALKS),
    (GRADIENTS, {"verdict": GOOD, "ess": 40.0}, None),
    (GRADIENTS, {"verdict": LONGER}, GRADIENTS),
    (GRADIENTS, {"verdict": LONGER, "status": "max_steps"}, CARE),
    (GRADIENTS, {"verdict": STUCK}, CARE),
    (GRADIENTS, {"verdict": STUCK, "final": True}, None),
    (CARE, {"verdict": LONGER, "status": "max_steps"}, CARE),
    (automatic.ON_THEIR_OWN, {"verdict": LONGER}, None),  # they ran as long as they may
    (automatic.ON_THEIR_OWN, {"verdict": STUCK}, None),
]


@pytest.mark.parametrize(("kernel", "seen", "expected"), NEXT)
def test_the_next_kernel(kernel: Any, seen: dict[str, Any], expected: Any) -> None:
    usual = {"ess": 90.0, "draws": 100, "status": "converged", "final": False}
    diagnosis: Any = SimpleNamespace(**usual | seen)
    assert automatic._next_kernel(kernel, diagnosis, seen.get("differentiable", True)) == expected


@pytest.mark.parametrize(("unsure", "factor"), [(0.05, 1.0), (0.12, 1.56), (0.5, 2.0)])
def test_a_number_that_is_not_known_asks_for_more_of_the_next_stage(
    unsure: float, factor: float
) -> None:
    diagnosis: Any = SimpleNamespace(unsure=unsure, tolerance=0.1)
    stricter = automatic._stricter(sa.Converged(tolerance=0.03), diagnosis)
    assert stricter.tolerance == pytest.approx(0.03 / factor)
