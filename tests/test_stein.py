"""Control variates: what averages to zero under π, states balanced by it, and what is then known.

Means are held against zero by z-tests on draws of known laws; a forgotten term, a wrong sign and a
gradient of another law are mutants. What balancing is worth is measured over replications.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.diagnostics import stein
from scoreascent.diagnostics.draws import careful_errors, moment_errors
from scoreascent.diagnostics.rules import GOOD
from scoreascent.fitting import ladder
from scoreascent.fitting.ladder import balanced, errors
from tests.helpers import same_run
from tests.stats import Z_MAX, Z_MUTANT, z_score

Floats = np.ndarray[Any, np.dtype[np.float64]]
TIMES, CHAINS = 200, 40
ROOT = np.array([[1.0, 0.0], [1.6, 0.5]])
FAMILY = sa.FullRank.from_factor(np.zeros(2, np.float32), ROOT.astype(np.float32))


def gaussian(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Draws of N(0, root rootᵀ), and the gradient of its log density."""
    z = rng.normal(size=(*shape, 2)) @ ROOT.T
    return z, -z @ np.linalg.inv(ROOT @ ROOT.T)


def log_gamma(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Logs of exponential variables: to the left their density falls like exp(−|z|)."""
    z = np.log(rng.gamma(1.0, size=(*shape, 2)))
    return z, 1 - np.exp(z)


def student(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Draws of a t with nine degrees of freedom: as many moments as the test needs."""
    z = rng.standard_t(9, size=(*shape, 2))
    return z, -10 * z / (9 + z**2)


LAWS: dict[str, Callable[..., tuple[Floats, Floats]]] = {
    "Gaussian": gaussian,
    "log of exponential": log_gamma,
    "Student-t": student,
}
MOMENTS = {
    "Gaussian": (0.0, float(np.linalg.norm(ROOT[1]))),
    "log of exponential": (-np.euler_gamma, np.pi / np.sqrt(6)),
    "Student-t": (0.0, np.sqrt(9 / 7)),
}


@pytest.mark.parametrize("law", LAWS)
def test_controls_have_mean_zero(law: str) -> None:
    z, g = LAWS[law](np.random.default_rng(1), (5000, 40))
    controls = stein.zero_means(z, g, ROOT, [0, 1])
    assert controls.shape == (5000, 40, 2 * stein.PER_COORDINATE)
    assert z_score(controls.mean(0), 0) < Z_MAX


@pytest.mark.parametrize("law", LAWS)
def test_a_gradient_of_another_law_is_seen(law: str) -> None:
    z, g = LAWS[law](np.random.default_rng(1), (5000, 40))
    for wrong in (-g, g + 0.1, 1.1 * g):
        controls = stein.zero_means(z, wrong, ROOT, [0, 1])
        assert z_score(controls.mean(0), 0) > Z_MUTANT


def test_controls_do_not_depend_on_units() -> None:
    z, g = gaussian(np.random.default_rng(1), (50, 10))
    scale = np.array([1e-3, 1e4])
    a = stein.zero_means(z, g, ROOT, [0, 1])
    b = stein.zero_means(5 + z * scale, g / scale, scale[:, None] * ROOT, [0, 1])
    np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("law", LAWS)
def test_balanced_states_are_a_chains_own_and_average_to_zero(law: str) -> None:
    z, g = LAWS[law](np.random.default_rng(2), (TIMES, CHAINS))
    controls = stein.zero_means(z, g, ROOT, [1])
    times = stein.balanced(controls)
    assert times is not None
    assert times.shape == (TIMES, CHAINS)
    assert np.all(np.diff(times, axis=0) >= 0)  # in their order
    taken = controls[times, np.arange(CHAINS)]
    assert np.max(np.abs(taken.mean((0, 1)))) < 0.3 * np.max(np.abs(controls.mean((0, 1))))


@pytest.mark.parametrize(
    "controls",
    [
        np.ones((20, 4, 2)),
        np.abs(np.random.default_rng(0).normal(size=(20, 4, 2))),  # zero is not among them
        3 + np.random.default_rng(0).normal(size=(20, 4, 1)),  # hardly
    ],
)
def test_what_cannot_be_balanced_is_left_alone(controls: Floats) -> None:
    assert stein.balanced(controls) is None


def errors_of_replications(law: str, balance: bool, n: int = 60) -> tuple[Floats, Floats]:
    """True errors of the mean and log sd of coordinate 1, and the errors that are said."""
    z, g = LAWS[law](np.random.default_rng(3), (n, TIMES, 16))
    mean, sd = MOMENTS[law]
    true, said = [], []
    for x, slope in zip(z, g):
        controls = None
        if balance:
            controls = stein.zero_means(x, slope, ROOT, [1])
            times = stein.balanced(controls)
            assert times is not None
            x, controls = (y[times, np.arange(16)] for y in (x, controls))
        column = x[..., 1:]
        true.append([column.mean() - mean, np.log(column.std() / sd)])
        said.append([e[0] / s for e, s in zip(moment_errors(column, controls), (1, column.std()))])
    return np.array(true), np.array(said)


@pytest.mark.parametrize(
    ("law", "gain"), [("Gaussian", 4.0), ("log of exponential", 3.0), ("Student-t", 4.0)]
)
def test_balanced_states_know_more_and_say_so(law: str, gain: float) -> None:
    """Errors are smaller by a factor, and what is said of them is true within its own noise."""
    plain, _ = errors_of_replications(law, balance=False)
    true, said = errors_of_replications(law, balance=True)
    assert np.all(np.sqrt(np.mean(true**2, 0)) * gain < np.sqrt(np.mean(plain**2, 0)))
    assert z_score(true**2, np.mean(said**2, 0)) < Z_MAX


def test_states_of_which_some_are_left_out_err_as_is_known() -> None:
    """Balance is of all states together: of half of them, controls tell what is missing."""
    z, g = gaussian(np.random.default_rng(4), (TIMES, 16))
    controls = stein.zero_means(z, g, ROOT, [1])
    times = stein.balanced(controls)
    assert times is not None
    x, controls = (y[times, np.arange(16)] for y in (z[..., 1:], controls))
    whole, _ = moment_errors(x, controls)
    half, _ = moment_errors(x[::2], controls[::2])
    off = abs(x[::2].mean() - x.mean())
    assert 0.9 * off < half[0] < 1.1 * off + 10 * whole[0]


# -- in a ladder ---------------------------------------------------------------------------------


PLAIN = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)  # of which only the names are asked


def as_points(z: Floats, g: Floats) -> Any:
    return np.concatenate([z, g], axis=-1).astype(np.float32)


def test_states_that_are_known_well_enough_stay_as_they_are() -> None:
    z, g = gaussian(np.random.default_rng(5), (TIMES, CHAINS))
    states, controls, _ = balanced(PLAIN, as_points(z, g), FAMILY, 0.5)
    np.testing.assert_array_equal(states, z.astype(np.float32))
    assert controls is None


def test_where_controls_explain_nothing_states_stay_as_they_are() -> None:
    z, g = gaussian(np.random.default_rng(5), (TIMES, CHAINS))
    states, controls, _ = balanced(PLAIN, as_points(z, g), FAMILY, 1e-3)
    assert controls is not None
    assert abs(states[..., 1].mean()) < 0.1 * abs(z[..., 1].mean())
    other = np.random.default_rng(6).normal(size=z.shape)  # gradients of nothing
    states, controls, _ = balanced(PLAIN, as_points(z, other), FAMILY, 1e-3)
    np.testing.assert_array_equal(states, z.astype(np.float32))
    assert controls is None


@pytest.mark.parametrize("spoil", [np.nan, np.inf])
def test_gradients_that_are_not_finite_balance_nothing(spoil: float) -> None:
    z, g = gaussian(np.random.default_rng(5), (TIMES, CHAINS))
    g[3, 4, 1] = spoil
    _, controls, _ = balanced(PLAIN, as_points(z, g), FAMILY, 1e-3)
    assert controls is None


def test_the_worst_error_is_told_as_it_is_left() -> None:
    z, g = gaussian(np.random.default_rng(5), (TIMES, CHAINS))
    plain = balanced(PLAIN, as_points(z, g), FAMILY, 0.5).error
    np.testing.assert_allclose(plain, np.max(errors(z.astype(np.float32))), rtol=1e-4)
    found = balanced(PLAIN, as_points(z, g), FAMILY, 1e-3)
    expected = np.max(errors(found.states, found.controls))
    np.testing.assert_allclose(found.error, expected, rtol=1e-3)
    assert found.error < 0.3 * plain


def test_an_own_scalar_is_known_by_the_coordinate_it_hangs_on() -> None:
    """Scales of which the logs are known well enough, and they themselves are not."""
    params = {"a": sa.Param(constraints.positive), "b": sa.Param(constraints.real)}
    target = sa.Target(lambda p: -p["a"] - p["b"] ** 2, params=params)
    rng = np.random.default_rng(7)
    z = rng.normal(size=(TIMES, CHAINS, 2)) * [0.5, 1.0]
    points = as_points(z, -z * [4.0, 1.0])
    q = sa.FullRank.from_factor(np.zeros(2, np.float32), np.diag([0.5, 1.0]).astype(np.float32))
    scale = np.exp(z[..., :1])
    limit = 0.9 * float(careful_errors(scale)[0])
    assert limit > np.max(errors(z))
    found = balanced(target, points, q, limit)
    assert found.controls is not None
    assert found.controls.shape[-1] == stein.PER_COORDINATE  # of that coordinate alone
    exact = np.exp(0.125), np.exp(0.125) * np.sqrt(np.exp(0.25) - 1)
    better = np.exp(found.states[..., 0].astype(np.float64))
    for statistic, value in zip((np.mean, np.std), exact):
        assert abs(statistic(better) - value) < 0.5 * abs(statistic(scale) - value) + 1e-3


def long_tailed(z: Any) -> Any:
    """Sixty dimensions, one of which is the log of an exponential variable."""
    return z[0] - jnp.exp(z[0]) - 0.5 * jnp.sum(z[1:] ** 2)


@pytest.mark.slow
def test_a_long_tail_is_known_from_fewer_states(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """And the states that are shown have its mean −γ and its sd π/√6."""
    target = sa.Target(long_tailed, dim=60)
    fit = lambda **more: sa.fit(target, key=1, tolerance=0.06, progress=False, **more)  # noqa: E731
    result = fit(checkpoint=tmp_path / "run.ckpt")
    assert result.diagnosis.verdict == GOOD
    assert result.controls is not None
    assert abs(np.mean(result.states[..., 0]) + np.euler_gamma) < 0.05
    assert abs(np.log(np.std(result.states[..., 0]) / (np.pi / np.sqrt(6)))) < 0.05
    again = fit(checkpoint=tmp_path / "run.ckpt")
    assert same_run(result, again)
    np.testing.assert_array_equal(result.states, again.states)
    np.testing.assert_array_equal(result.controls, again.controls)
    monkeypatch.setattr(ladder, "MAX_BALANCED", 0)
    plain = fit()
    assert plain.controls is None
    assert plain.steps > 1.5 * result.steps
