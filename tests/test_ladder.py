"""Chains that move by themselves: the metric they learn, when they are looked at, when they stop.

What is learnt has closed forms on Gaussians; what is measured is held against draws of known laws;
that nothing cuts the run's bits, and that what comes out is right, is looked at on fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import scoreascent as sa
from scoreascent.diagnostics.draws import moment_errors, own_errors
from scoreascent.diagnostics.rules import GOOD
from scoreascent.families import FewDirections
from scoreascent.fitting import arguments, ladder
from scoreascent.fitting.ladder import Ladder, assess, errors, first_metric, gaussian, metric
from scoreascent.run import Convergence
from scoreascent.update import Still
from tests.helpers import host, same_bits, same_run, x64
from tests.stats import Z_MAX, Z_MUTANT, z_score

Floats = np.ndarray[Any, np.dtype[np.float64]]


def random_cov(dim: int, seed: int = 0, noise: float = 1.0) -> Floats:
    """A covariance matrix with scales from 0.01 to 100; less noise makes stronger correlations."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim)) + np.eye(dim)
    scale = np.geomspace(0.01, 100, dim)
    return scale[:, None] * (root @ root.T / dim + noise * np.eye(dim)) * scale


def relative(found: Any, cov: Floats) -> float:
    """The largest error of a covariance matrix, in units of the sds."""
    sd = np.sqrt(np.diagonal(cov))
    return float(np.max(np.abs(np.asarray(found) - cov) / np.outer(sd, sd)))


def cloud(n: int, dim: int, seed: int = 1) -> Floats:
    """States that have nothing to do with the posterior: skewed, off centre, of other scales."""
    rng = np.random.default_rng(seed)
    return 3.0 + np.linspace(0.5, 2, dim) * rng.gamma(1.0, size=(n, dim))


# -- the metric ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "error"), [(60, 0.06), (400, 0.01), (4000, 0.001)])
def test_the_metric_of_a_gaussian_is_exact_from_states_anywhere(n: int, error: float) -> None:
    """C of the states and Σ⁻¹ C Σ⁻¹ of the gradients: their geometric mean with Σ between is Σ."""
    dim, cov = 8, random_cov(8)
    z = cloud(n, dim) * np.sqrt(np.diagonal(cov))
    g = -np.linalg.solve(cov, (z - 1.7).T).T
    with x64():
        q = metric(z, g, sa.FullRank.standard(dim))
        assert isinstance(q, sa.FullRank)
        assert relative(q.cov, cov) < error
        np.testing.assert_allclose(q.mean, z.mean(0), rtol=1e-12)
    assert relative(np.cov(z.T), cov) > 0.2  # the states' own covariance is another


def test_the_smaller_the_ridge_the_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the metric is off by is the ridge alone."""
    dim, cov = 8, random_cov(8)
    z = cloud(20, dim) * np.sqrt(np.diagonal(cov))
    g = -np.linalg.solve(cov, z.T).T
    monkeypatch.setattr(ladder, "RIDGE", 0.0)
    with x64():
        assert relative(metric(z, g, sa.FullRank.standard(dim)).cov, cov) < 1e-4


def test_mutant_the_arithmetic_mean_is_not_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    dim, cov = 8, random_cov(8)
    z = cloud(4000, dim) * np.sqrt(np.diagonal(cov))
    g = -np.linalg.solve(cov, z.T).T

    def between(x: Floats, y: Floats) -> Floats:
        mean: Floats = (x.T @ x / len(x) + np.linalg.inv(y.T @ y / len(y))) / 2
        return mean

    monkeypatch.setattr(ladder, "_geometric_mean", between)
    with x64():
        assert relative(metric(z, g, sa.FullRank.standard(dim)).cov, cov) > 0.1


@pytest.mark.parametrize("n", [2, 8, 12])
def test_of_few_states_the_metric_is_a_diagonal(n: int) -> None:
    """Exact if Σ is one."""
    var = np.geomspace(1e-4, 1e4, 12)
    z = cloud(n, 12)
    with x64():
        q = metric(z, -z / var, sa.FullRank.standard(12))
        np.testing.assert_allclose(q.cov, np.diag(var), rtol=1e-9, atol=1e-12)


def same(x: Floats) -> Floats:
    return x


def with_one(value: float) -> Any:
    """Put a number in place of one of the second row's."""
    return lambda x: np.where(np.arange(x.size).reshape(x.shape) == 4, value, x)


STRANGE: dict[str, tuple[Any, Any]] = {
    "no gradients": (same, lambda g: 0 * g),
    "states that stand still": (lambda z: 0 * z + 2, same),
    "nothing moves": (lambda z: 0 * z, lambda g: 0 * g),
    "a constant coordinate": (lambda z: z * [0, 1, 1], same),
    "a gradient that is constant": (same, lambda g: g * [0, 1, 1]),
    "an infinite gradient": (same, with_one(np.inf)),
    "a gradient that is no number": (same, with_one(np.nan)),
    "huge gradients": (same, lambda g: 1e30 * g),
    "tiny gradients": (same, lambda g: 1e-30 * g),
    "two coordinates that are one": (lambda z: z[:, [0, 0, 2]], lambda g: g[:, [0, 0, 2]]),
    "gradients that have nothing to do with the states": (same, lambda g: g[::-1] ** 3),
}


@pytest.mark.parametrize("n", [2, 50])
@pytest.mark.parametrize("name", STRANGE)
def test_the_metric_is_finite_whatever_it_is_given(name: str, n: int) -> None:
    of_states, of_gradients = STRANGE[name]
    z = cloud(n, 3)
    before = sa.FullRank.from_moments(np.zeros(3, np.float32), np.diag(np.float32([0.25, 1, 4])))
    q = metric(of_states(z), of_gradients(-z), before)
    assert np.all(np.isfinite(q.tril))  # type: ignore[attr-defined]
    assert np.all(q.sd > 0)
    assert np.all(np.isfinite(q.mean))
    assert q.mean.dtype == before.mean.dtype
    if name == "states that stand still":
        np.testing.assert_allclose(q.sd, before.sd, rtol=1e-5)


@pytest.mark.parametrize("axes", [2, 3])
def test_beyond_many_dimensions_the_widest_and_narrowest_directions_are_found(
    axes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Σ is the identity but for some directions: wide ones by the states, narrow by the slopes."""
    monkeypatch.setattr(ladder, "MAX_WHOLE", 20)
    monkeypatch.setattr(ladder, "DIRECTIONS", 6)
    dim, rng = 64, np.random.default_rng(2)
    basis = scipy.linalg.hadamard(dim)[:, 3 : 3 + 2 * axes] / 8  # each coordinate has its share
    scales = np.r_[np.linspace(100, 200, axes), 1 / np.linspace(100, 200, axes)]
    cov = np.eye(dim) + basis @ np.diag(scales - 1) @ basis.T
    z = rng.normal(size=(4000, dim)) @ np.linalg.cholesky(cov).T
    g = -np.linalg.solve(cov, z.T).T

    def ratios() -> Any:
        with x64():
            q: Any = metric(z, g, first_metric(sa.FullRank.standard(dim)))
            assert isinstance(q, FewDirections)
            return np.linalg.eigvals(np.linalg.solve(cov, np.asarray(q.cov))).real

    assert 0.7 < ratios().min() < ratios().max() < 1.4
    monkeypatch.setattr(ladder, "POWERS", 1)
    assert 0.5 < ratios().min() < ratios().max() < 2
    monkeypatch.setattr(ladder, "DIRECTIONS", axes - 1)  # too few of them: some are missed
    monkeypatch.setattr(ladder, "POWERS", 3)
    assert ratios().max() > 20


# -- the Gaussian that is given back -------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 10, 40, 400])
def test_the_gaussian_has_the_states_means_and_sds(n: int) -> None:
    z = cloud(n, 12)
    with x64():
        q: Any = gaussian(z, sa.FullRank.from_moments(np.zeros(12), random_cov(12)))
        np.testing.assert_allclose(q.mean, z.mean(0), rtol=1e-10)
        np.testing.assert_allclose(q.sd, z.std(0), rtol=1e-10)
        assert np.linalg.eigvalsh(q.cov / np.outer(q.sd, q.sd)).min() > 1e-4


def test_its_correlations_are_the_states_as_far_as_they_are_known() -> None:
    """Else those of the q before: n/(n + d) of the one and d/(n + d) of the other."""
    z = cloud(36, 4) @ np.array([[1, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1.0]])
    cov = random_cov(4)
    with x64():
        q: Any = gaussian(z, sa.FullRank.from_moments(np.zeros(4), cov))
        old = cov / np.sqrt(np.outer(np.diagonal(cov), np.diagonal(cov)))
        expected = 0.9 * np.corrcoef(z.T) + 0.1 * old
        np.testing.assert_allclose(q.cov / np.outer(q.sd, q.sd), expected, rtol=1e-9)


@pytest.mark.parametrize("z", [np.ones((9, 2)), np.full((9, 2), np.nan)], ids=["constant", "nan"])
def test_states_that_say_nothing_leave_q_as_it_is(z: Any) -> None:
    before = sa.FullRank.standard(2)
    with np.errstate(all="ignore"):
        assert gaussian(z, before) is before


# -- marks, rungs, late states -------------------------------------------------------------------


class Little(NamedTuple):
    """A state, as far as rungs look at it."""

    q: Any
    eta: Any


class Rows(NamedTuple):
    """A trace, as far as rungs look at it."""

    loss: Any


DIM, CHAINS = 2, 4
KERNEL = sa.HMC(length=(0.6, 3.0), hurry=True)


def first_little(dim: int = DIM) -> Little:
    q, z = sa.FullRank.standard(dim), jnp.zeros((CHAINS, dim))
    return Little(q, sa.Particles(z, z[:, 0], z[:, 0], KERNEL.first_tuning(q), z))


def first_climb(rule: Ladder | None = None, dim: int = DIM) -> ladder.Climb:
    rule, method = rule or Ladder(tolerance=1e-9), sa.pmcsa(CHAINS, KERNEL)
    rungs = rule.blank(method, first_little(dim), False)  # type: ignore[arg-type]
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=dim)
    return rule.watch(method, rungs, target)


def climb_on(climb: ladder.Climb, steps: int, numbers: Any) -> list[tuple[int, bool]]:
    """Run the rule on made-up states, at most `room` at a time: (steps, whether q was set)."""
    state, done, marks = first_little(), 0, []
    while done < steps:
        n = climb.room(done)
        assert n >= 1
        new = climb.after_chunk(state, [Rows(np.zeros(n))], done + n, numbers(done + 1, done + n))  # type: ignore[arg-type]
        done += n
        if climb._is_mark(done)[0]:
            marks.append((done, new is not state))
        state = new
    return marks


def by_number(first: int, last: int) -> Floats:
    """States whose first coordinate is the number of the step, and slopes like a Gaussian's."""
    rng = np.random.default_rng(first)
    z = rng.normal(size=(last - first + 1, CHAINS, DIM))
    z[..., 0] = np.arange(first, last + 1)[:, None]
    return np.concatenate([z, -z], -1)


def test_marks_and_rungs() -> None:
    """Rungs are 5 steps and each time twice as many; from 80 on three more looks between them."""
    marks = climb_on(first_climb(), 640, by_number)
    quarters = [int(r * (1 + k / 4)) for r in (80, 160, 320) for k in range(4)]
    assert [m for m, _ in marks] == [5, 10, 20, 40, *quarters, 640]
    assert [m for m, rung in marks if rung] == [5, 10, 20, 40, 80, 160, 320, 640]
    marks = climb_on(first_climb(Ladder(first=3)), 48, by_number)
    assert [m for m, _ in marks] == [3, 6, 12, 24, 48]


def test_looks_begin_late_and_are_counted() -> None:
    climb = first_climb()
    climb_on(climb, 40, by_number)
    assert int(climb.windows.looks) == 0
    assert climb.seen == Convergence(0)
    climb = first_climb()
    climb_on(climb, 160, by_number)
    assert climb.seen.looks == int(climb.windows.looks) == 5
    assert climb.seen.windows == 80


@pytest.mark.parametrize("steps", [5, 10, 80, 120, 320])
def test_late_states_are_the_second_half(steps: int) -> None:
    climb = first_climb()
    climb_on(climb, steps, by_number)
    late, _ = climb.late_states(first_little())
    expected = np.arange(steps // 2 + 1, steps + 1)
    np.testing.assert_array_equal(climb.windows.at, expected)
    np.testing.assert_array_equal(climb.windows.points[:, 0, 0], expected)
    assert late.shape == (len(expected), CHAINS, DIM)  # without the gradients
    assert np.all(np.isin(late[:, 0, 0], expected))


def test_states_are_thinned_to_the_most_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "MAX_STATES", 16 * CHAINS)
    climb = first_climb()
    for steps in (20, 40, 80, 160, 400):
        climb = first_climb()
        climb_on(climb, steps, by_number)
        at, thin = climb.windows.at, climb.states_every()
        assert 8 <= len(at) <= 16
        np.testing.assert_array_equal(at % thin, 0)
        np.testing.assert_array_equal(np.diff(at), thin)
        assert steps // 2 < at[0] <= at[-1] <= steps
        np.testing.assert_array_equal(climb.windows.points[:, 0, 0], at)
        assert thin & (thin - 1) == 0


def test_a_rung_sets_q_to_the_metric_and_the_step_size_learns_it() -> None:
    taken = {}
    climb, state, done = first_climb(), first_little(), 0
    worn = state.eta._replace(tuning=state.eta.tuning._replace(taken=jnp.int32(77)))
    while done < 160:
        n = climb.room(done)
        rows = by_number(done + 1, done + n)
        new = climb.after_chunk(state._replace(eta=worn), [Rows(np.zeros(n))], done + n, rows)  # type: ignore[arg-type]
        done += n
        taken[done] = int(new.eta.tuning.taken)
        if climb._is_mark(done)[1]:
            points = np.asarray(climb.windows.points, np.float64).reshape(-1, 2 * DIM)
            assert same_bits(new.q, metric(points[:, :DIM], points[:, DIM:], state.q))
        state = new
    assert [taken[m] for m in (5, 10, 20, 40, 80, 160)] == [0, 0, 0, 0, 5, 5]
    assert {taken[m] for m in (100, 120, 140)} == {77}


@pytest.mark.parametrize(("lag", "stretch"), [(10.0, 2.0), (1.0, 1.0)])
def test_where_a_coordinate_lags_trajectories_get_longer(lag: float, stretch: float) -> None:
    """From 320 steps on: chains that each stay about a place of their own in one coordinate."""
    dim = 5
    climb = first_climb(dim=dim)
    rng = np.random.default_rng(0)
    places = rng.normal(size=(CHAINS, dim)) * np.r_[lag, np.zeros(dim - 1)]
    states = first_little(dim)
    seen, done = [], 0
    while done < 640:
        n = climb.room(done)
        z = 0.3 * rng.normal(size=(n, CHAINS, dim)) + (places if lag > 1 else 0)
        rows = np.concatenate([z, -z], -1)
        new = climb.after_chunk(states, [Rows(np.zeros(n))], done + n, rows)  # type: ignore[arg-type]
        done += n
        if climb._is_mark(done)[1]:
            seen.append((done, float(new.eta.tuning.stretch)))
    assert [s for m, s in seen if m < 320] == [1.0] * 6
    assert [s for m, s in seen if m >= 320] == [stretch] * 2


# -- what late states say ------------------------------------------------------------------------

TIMES, COLUMNS = 40, 400


def draws(chains: int = 16, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(TIMES, chains, COLUMNS))


def test_errors_of_independent_draws_are_known() -> None:
    """1/√n of the mean and 1/√(2n) of the sd, in sds; without √chains they would be too large."""
    x, n = draws(), TIMES * 16
    found = np.stack(moment_errors(x), -1) ** 2
    assert z_score(found, [1 / n, 1 / (2 * n)]) < Z_MAX
    assert z_score(16 * found, [1 / n, 1 / (2 * n)]) > Z_MUTANT


def for_long_tails(x: np.ndarray) -> np.ndarray:
    """By how much errors of sds count: more where the fourth moment is well above a Gaussian's."""
    fourth = np.mean(((x - x.mean((0, 1))) / x.std((0, 1))) ** 4, (0, 1))
    return np.where(fourth > 3.6, 1.4, 1.0)


def test_errors_are_the_larger_of_the_two_in_sds() -> None:
    """Signs know their sd, so theirs is the mean's; scales do not matter."""
    signs, n = 1e-3 * np.sign(draws()), TIMES * 16
    assert z_score(errors(signs) ** 2, 1 / n) < Z_MAX
    assert z_score(errors(1e6 * signs) ** 2, 16 / n) > Z_MUTANT
    x = draws()
    mean_error, sd_error = moment_errors(x)
    both = np.maximum(mean_error, sd_error * for_long_tails(x)) / x.std((0, 1))
    np.testing.assert_allclose(errors(x), both, rtol=1e-12)
    seen = assess(x, 3, 0.5)
    np.testing.assert_allclose(seen.error, np.max(both), rtol=1e-12)
    assert (seen.windows, seen.looks) == (TIMES, 3)


def test_slow_chains_are_known_less_well() -> None:
    """States that repeat each draw k times: the error is that of the draws."""
    x = np.repeat(draws(), 5, 0)
    assert z_score(errors(np.sign(x)) ** 2, 1 / (TIMES * 16)) < Z_MAX
    assert z_score(errors(np.sign(x)) ** 2, 1 / (5 * TIMES * 16)) > Z_MUTANT
    assert assess(x, 1, 0.5).moves == TIMES - 1


def test_rhat_waits_for_the_errors() -> None:
    x = draws()[..., :3]
    assert assess(x, 1, 1e-3).rhat == np.inf
    assert 0.95 < assess(x, 1, 0.5).rhat < 1.1
    apart = x + 0.5 * np.arange(16)[:, None]
    assert assess(apart, 1, 10.0).rhat > 1.5


@pytest.mark.parametrize("spoil", [0.0, np.nan, np.inf])
def test_a_coordinate_that_says_nothing_is_not_known(spoil: float) -> None:
    x = draws()[..., :3]
    x[..., 1] = spoil
    seen = assess(x, 1, 0.5)
    assert seen.error == seen.rhat == np.inf
    assert Ladder().complaints(seen)


def test_too_few_states_say_nothing() -> None:
    assert assess(draws()[:3], 1, 0.5) == Convergence(0)


# -- words ---------------------------------------------------------------------------------------

ENOUGH = Convergence(100, 0.02, 1.01, moves=50.0, looks=3)
SAYS: list[tuple[Convergence, str]] = [
    (Convergence(0), "no look was taken yet"),
    (ENOUGH, ""),
    (ENOUGH._replace(moves=9.9), "the chains moved only 9.9 times each in the late steps"),
    (ENOUGH._replace(error=0.05), "means and sds known to 0.05 sds where 0.029 is asked"),
    (ENOUGH._replace(error=np.nan), "means and sds known to nan sds where 0.029 is asked"),
    (ENOUGH._replace(rhat=1.2), "R̂ 1.2 over the chains where 1.04 is asked"),
    (ENOUGH._replace(rhat=np.inf), "R̂ inf over the chains where 1.04 is asked"),
]


@pytest.mark.parametrize(("seen", "says"), SAYS)
def test_complaints(seen: Convergence, says: str) -> None:
    rule = Ladder()
    assert rule.complaints(seen) == ([says] if says else [])
    words = rule.words(seen, 123)
    if says:
        assert words == f"not converged after 123 steps: {says}"
    else:
        assert words == (
            "converged after 123 steps: means and sds known to 0.02 sds, R̂ 1.01 over the chains"
        )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
        ({"tolerance": np.nan}, "tolerance must be positive and finite, got nan"),
        ({"rhat": 1.0}, "rhat must be above 1 and finite, got 1.0"),
        ({"first": 1}, "first must be an integer ≥ 2, got 1"),
        ({"most": 4}, "most must be an integer ≥ 5, got 4"),
    ],
)
def test_bad_settings(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Ladder(**settings)


# -- q stands still ------------------------------------------------------------------------------


def test_still() -> None:
    """q as it was, to the bit, and the loss that of the objective; nothing is remembered."""
    target, q = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2), sa.FullRank.standard(2)
    method, update = sa.pmcsa(4, KERNEL), Still()
    eta = method.init(jax.random.key(0), target, q)
    after, memory, loss, slope = update.step(method, target, q, eta, update.init(q))
    assert same_bits(after, q)
    assert memory == ()
    assert float(loss) == float(method.objective(target, q, eta))
    assert float(slope) == 0
    assert same_bits(update.average(q, after, eta, jnp.int32(3)), q)


# -- fits by hand --------------------------------------------------------------------------------

COV = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 100.0]])
MEAN = np.array([1.0, -2.0, 30.0])


def log_density(z: Any, data: Any) -> Any:
    return -0.5 * (z - data[0]) @ data[1] @ (z - data[0])


TARGET = sa.Target(log_density, 3, data=tuple(np.float32(x) for x in (MEAN, np.linalg.inv(COV))))
METHOD = sa.pmcsa(8, KERNEL)
RULE = Ladder(tolerance=0.06)


def run(stop: Ladder = RULE, **options: Any) -> sa.Result:
    """A fit with a ladder, which by itself `sa.fit` takes in many dimensions alone."""
    options = {"steps": 1500, "key": 2, "progress": False, "optimizer": Still(),
               "q0": sa.FullRank.standard(3, scale=0.1)} | options  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_check_stop", lambda *_: None)
        return sa.fit(TARGET, METHOD, stop=stop, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole() -> sa.Result:
    return run()


def test_a_fit(whole: sa.Result) -> None:
    assert whole.status == "converged"
    assert 80 <= whole.steps < 1500
    sd = np.sqrt(np.diagonal(COV))
    assert np.max(np.abs(np.asarray(whole.q.mean) - MEAN) / sd) < 5 * RULE.tolerance
    assert relative(whole.q.cov, COV) < 0.3  # type: ignore[attr-defined]
    assert relative(whole.state.q.cov, COV) < 0.05  # the metric knows it better
    states = np.asarray(whole.states)
    assert states.shape == (whole.steps - whole.steps // 2, 8, 3)
    np.testing.assert_allclose(whole.q.mean, states.mean((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(whole.q.sd, states.std((0, 1)), rtol=1e-4)
    np.testing.assert_array_equal(states[-1], whole.state.eta.z)
    assert whole.convergence is not None
    assert whole.convergence.error <= RULE.tolerance
    assert "converged" in whole.provenance["stop"]


def test_arviz_has_the_states_that_are_shown(whole: sa.Result) -> None:
    """No chain is moved for it."""
    pytest.importorskip("arviz")
    data = whole.to_arviz(n=40, draws="chains")
    states = np.asarray(whole.states)
    chains = np.asarray(data["chains"]["z"])
    assert chains.shape[0] == 8
    assert chains.shape[1] <= 400
    np.testing.assert_array_equal(chains[:, -1], states[-1])
    drawn = np.asarray(data["posterior"]["z"]).reshape(-1, 3)
    assert np.all(np.isin(drawn[:, 0], states[..., 0]))


def test_chunks_and_callbacks_change_nothing(
    whole: sa.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    again = run(callback=lambda state, _: seen.append(int(state.step)), callback_every=7)
    assert same_run(again, whole)
    assert seen[1] == 7
    monkeypatch.setattr(host, "CHUNK_SECONDS", 0)
    again = run(progress=True)
    assert same_run(again, whole)
    np.testing.assert_array_equal(again.states, whole.states)
    assert again.provenance["stop"] == whole.provenance["stop"]


@pytest.mark.parametrize("at", [3, 10, 63, 80, 95, "last but one"])
def test_resumed(at: Any, whole: sa.Result, tmp_path: Path) -> None:
    """Cut anywhere, between two marks or at one, before looks are taken or after."""
    at = whole.steps - 1 if at == "last but one" else at
    assert at < whole.steps
    path = tmp_path / "run"
    stops = lambda state, _: bool(int(state.step) == at)  # noqa: E731
    cut = run(checkpoint=path, callback=stops, callback_every=at)
    assert (cut.status, cut.steps) == ("stopped", at)
    resumed = run(checkpoint=path)
    assert same_run(resumed, whole)
    np.testing.assert_array_equal(resumed.states, whole.states)
    assert resumed.convergence == whole.convergence
    before = path.read_bytes()
    again = run(checkpoint=path)  # a finished run is read back
    assert same_run(again, whole)
    assert path.read_bytes() == before


def test_another_rule_is_another_run(tmp_path: Path) -> None:
    """A rung of another size would have set another q."""
    path = tmp_path / "run"
    run(checkpoint=path, steps=30)
    with pytest.raises(sa.CheckpointError, match="another run"):
        run(Ladder(first=7), checkpoint=path)


def test_a_hopeless_run_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the errors fall too slowly for the steps that there may be."""
    monkeypatch.setattr(ladder, "PATIENCE", 160)
    result = run(Ladder(tolerance=1e-4, most=1500))
    assert (result.status, result.steps) == ("max_steps", 160)
    assert result.provenance["stop"].startswith("not converged after 160 steps: means and sds")
    # with as many steps as it takes, it goes on
    assert run(Ladder(tolerance=1e-4, most=10**9), steps=200).steps == 200


def test_replications_are_refused() -> None:
    with pytest.raises(ValueError, match="a ladder is for one fit"):
        run(replications=2)


# -- automatic fits ------------------------------------------------------------------------------


def check_automatic(target: sa.Target, mean: Floats, sd: Floats) -> sa.Result:
    """A good fit by the ladder, right in means and sds, for fewer gradients than it once took."""
    result = sa.fit(target, key=1, progress=False)
    assert any("short searches" in text for text in result.decisions)
    assert result.status == "converged"
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == GOOD
    assert result.draws_from == "chains"
    assert result.evaluations[1] < 100_000
    assert np.max(np.abs(np.asarray(result.q.mean) - mean) / sd) < 0.15
    assert np.max(np.abs(np.log(np.asarray(result.q.sd) / sd))) < 0.15
    states = np.asarray(result.states, np.float64)
    error = np.stack(moment_errors(states))[0]
    assert np.max(np.abs(states.mean((0, 1)) - mean) / error) < 6  # 15 degrees of freedom
    return result


def gaussian_of(dim: int) -> tuple[sa.Target, Floats, Floats]:
    cov = random_cov(dim, 3, noise=0.2)
    sd = np.sqrt(np.diagonal(cov))
    mean = sd * np.linspace(-2, 2, dim)
    inverse = np.linalg.inv(cov / np.outer(sd, sd))

    def density(z: Any, data: Any) -> Any:
        x = (z - data[0]) / data[1]
        return -0.5 * x @ data[2] @ x

    return sa.Target(density, dim, data=tuple(map(np.float32, (mean, sd, inverse)))), mean, sd


def test_a_correlated_gaussian_of_sixty_dimensions() -> None:
    check_automatic(*gaussian_of(60))


@pytest.mark.slow
def test_an_automatic_fit_is_the_same_watched_cut_or_not(tmp_path: Path) -> None:
    target, path = gaussian_of(60)[0], tmp_path / "run"
    whole = sa.fit(target, key=1, progress=False)
    watched = sa.fit(target, key=1, progress=True, callback=lambda *_: None, callback_every=7)
    assert same_run(watched, whole)
    stops = lambda state, _: bool(int(state.step) >= 60)  # noqa: E731
    cut = sa.fit(target, key=1, progress=False, checkpoint=path, callback=stops, callback_every=60)
    assert (cut.status, cut.steps) == ("stopped", 60)
    resumed = sa.fit(target, key=1, progress=False, checkpoint=path)
    assert same_run(resumed, whole)
    assert resumed.decisions == whole.decisions
    assert resumed.evaluations == whole.evaluations


GROUPS = 58
Y = np.random.default_rng(5).normal(1.0, np.sqrt(1 + 2.0**2), GROUPS)


def hierarchy(z: Any, y: Any) -> Any:
    """y ~ N(θ, 1), θ ~ N(μ, τ), μ ~ N(0, 5), log τ ~ N(0, 1)."""
    mu, log_tau, theta = z[0], z[1], z[2:]
    spread = -0.5 * jnp.sum((theta - mu) ** 2) * jnp.exp(-2 * log_tau) - GROUPS * log_tau
    return -0.5 * jnp.sum((y - theta) ** 2) + spread - mu**2 / 50 - log_tau**2 / 2


def moments_of_hierarchy() -> tuple[Floats, Floats]:
    """By Gaussian conditioning given τ, and a grid of log τ."""
    grid = np.linspace(-6, 4, 4001)
    tau2 = np.exp(2 * grid)
    precision = GROUPS / (1 + tau2) + 1 / 25
    mu = GROUPS * Y.mean() / (1 + tau2) / precision
    cov = lambda t: (1 + t) * np.eye(GROUPS) + 25.0  # noqa: E731
    log_w = np.array([-0.5 * (np.linalg.slogdet(cov(t))[1] + Y @ np.linalg.solve(cov(t), Y))
                      for t in tau2[::10]])  # fmt: skip
    log_w = np.interp(grid, grid[::10], log_w) - grid**2 / 2
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    share = tau2 / (1 + tau2)
    theta = share[:, None] * Y + (1 - share)[:, None] * mu[:, None]
    within = share + (1 - share) ** 2 / precision
    means = np.column_stack([mu, grid, theta])
    variances = np.column_stack([1 / precision, 0 * grid, np.repeat(within[:, None], GROUPS, 1)])
    mean = w @ means
    return mean, np.sqrt(w @ (variances + (means - mean) ** 2))


def test_a_hierarchy_of_sixty_dimensions() -> None:
    result = check_automatic(
        sa.Target(hierarchy, GROUPS + 2, data=np.float32(Y)), *moments_of_hierarchy()
    )
    assert isinstance(result.q, sa.FullRank)
    assert result.method.chains >= 4


@pytest.mark.parametrize("dim", [50, 2001])
def test_fewer_or_many_more_dimensions_take_no_ladder(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scoreascent.fitting import automatic

    class TookTheOther(Exception):
        pass

    def laplace(*_: Any) -> Any:
        raise TookTheOther

    monkeypatch.setattr(automatic, "laplace", laplace)
    with pytest.raises(TookTheOther):
        sa.fit(sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim), progress=False)


# -- the model's own scalars ---------------------------------------------------------------------


def positive(**shapes: tuple[int, ...]) -> sa.Target:
    from numpyro.distributions import constraints

    params = {k: sa.Param(constraints.positive, shape=s) for k, s in shapes.items()}
    return sa.Target(lambda p: sum(-jnp.sum(x) for x in p.values()), params=params)


def test_own_scalars_have_errors_of_their_own() -> None:
    target = positive(a=(2,), b=())
    z = np.random.default_rng(0).normal(size=(50, 16, 3)).astype(np.float32)
    z[..., 2] *= 0.5
    x, found = own_errors(target, z, 10.0)
    np.testing.assert_allclose(x, np.exp(z.astype(np.float64)), rtol=1e-5)
    more = for_long_tails(x)
    assert 1.4 in more
    mean_error, sd_error = moment_errors(x)
    expected = np.maximum(mean_error, more * sd_error) / x.std((0, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.max(found) > np.max(errors(z))  # exponentials are known less well


@pytest.mark.parametrize(("shape", "counts"), [(1.0, "nothing"), (0.3, "mean"), (0.1, "sd")])
def test_what_heavy_tails_keep_unknown_does_not_count(shape: float, counts: str) -> None:
    """The exponential of an exponential variable of scale k has a tail of shape k."""
    target = positive(a=(), b=())
    z = shape * np.random.default_rng(0).exponential(size=(400, 16, 2))
    z[..., 1] = 1.0  # and constants say nothing
    x = np.exp(z[..., :1])
    mean_error, sd_error = (e[0] / x.std() for e in moment_errors(x))
    assert 1.4 * sd_error > 1.5 * mean_error
    _, found = own_errors(target, z.astype(np.float32), 0.3 * mean_error)
    expected = {"nothing": 0.0, "mean": mean_error, "sd": 1.4 * sd_error}[counts]
    np.testing.assert_allclose(found, [expected, 0.0], rtol=1e-3)
    _, known = own_errors(target, z.astype(np.float32), 2 * sd_error)  # is not looked at
    np.testing.assert_allclose(known, [1.4 * sd_error, 0.0], rtol=1e-3)
