"""`stop=Converged()`: when a run ends, whether its error is honest, that nothing moves its bits.

The rule is tested twice: on windows that are drawn from a known law, thousands of runs at once,
and on fits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import scoreascent as sa
from tests.helpers import Bar, host, same_bits, same_run, stopping, x64
from tests.registry import FAMILIES, METHODS, quick_rows
from tests.stats import Z_MAX, Z_MUTANT

ROOT = Path(__file__).parents[1]
CENTRE, SCALE = np.array([1.0, -2.0]), np.array([1.0, 2.0])


def log_density(z: Any, data: Any) -> Any:
    return -0.5 * jnp.sum(((z - data[0]) / data[1]) ** 2)


def make_target(shift: float = 0.0) -> sa.Target:
    data = (jnp.asarray(CENTRE + shift, jnp.float32), jnp.asarray(SCALE, jnp.float32))
    return sa.Target(log_density, dim=2, data=data)


TARGET = make_target()
METHOD = sa.pmcsa(4)
OPTIMIZER = optax.adam(0.05)
SHORT = sa.Converged(tolerance=0.1, every=10)  # met within a few hundred steps
LOOSE = sa.Converged(tolerance=10.0, rhat=9.0, every=5, windows=4)  # met as soon as may be


def run(target: Any = TARGET, method: Any = METHOD, **options: Any) -> sa.Result:
    options = {"stop": SHORT, "optimizer": OPTIMIZER, "steps": 3000, "key": 5,
               "progress": False} | options  # fmt: skip
    return sa.fit(target, method, **options)


@pytest.fixture(scope="module")
def whole() -> sa.Result:
    return run()


def slow_numbers(rho: float, runs: int, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Stationary AR(1) series of unit variance, (n, runs, k)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, runs, k))
    for t in range(1, n):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
    return x


# -- the rule's numbers on windows of a known law ------------------------------------------------


def optimism(error: np.ndarray, x: np.ndarray) -> float:
    """z of E (mean / reported error)² ≤ 1: large if the error claims too much."""
    ratio = np.mean((x.mean(0) / error[:, None]) ** 2, -1) - 1
    return float(ratio.mean() / (ratio.std(ddof=1) / np.sqrt(len(ratio))))


def uncorrected(x: np.ndarray) -> np.ndarray:
    """A mutant: correlated windows counted as independent ones."""
    return np.max(x.std(0, ddof=1), -1) / np.sqrt(len(x))


@pytest.mark.parametrize("n", [8, 12, 32])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("k", [2, 20])
def test_error_is_not_optimistic(rho: float, n: int, k: int) -> None:
    x = slow_numbers(rho, 2000, n, k)
    error = stopping.monte_carlo_error(x)
    assert optimism(error, x) < Z_MAX
    assert np.mean(error) < 8 * x.mean(0).std()  # nor of no use


@pytest.mark.parametrize("n", [8, 32])
def test_error_without_correction_is_optimistic(n: int) -> None:
    x = slow_numbers(0.6, 2000, n, 2)
    assert optimism(uncorrected(x), x) > Z_MUTANT


def test_error_scales_and_is_the_worst() -> None:
    x = slow_numbers(0.3, 3, 16, 5)
    error = stopping.monte_carlo_error(x)
    np.testing.assert_allclose(stopping.monte_carlo_error(7 * x + 3), 7 * error)
    x[:, :, 2] *= 100
    assert np.all(stopping.monte_carlo_error(x) > 20 * error)


@pytest.mark.parametrize("k", [2, 2000])
def test_rhat_lets_pass_what_does_not_move(k: int) -> None:
    """With 2000 coordinates too, of which the worst alone has R̂ above 1.1."""
    x = slow_numbers(0.0, 200, 8, k)
    assert np.mean(stopping.split_rhat(x) <= 1.1) > 0.6
    alone = stopping.split_rhat(np.moveaxis(x, -1, 1).reshape(8, -1, 1)).reshape(k, 200)
    if k == 2000:
        assert np.all(stopping.split_rhat(x) <= 1.1)
        assert np.min(np.max(alone, 0)) > 1.5
    trend = x + np.arange(8)[:, None, None]
    assert np.mean(stopping.split_rhat(trend) > 1.1) > 0.99


def test_rhat_by_hand() -> None:
    x = np.array([0.0, 2.0, 5.0, 9.0])[:, None, None]
    within, between = (2.0 + 8.0) / 2, 2 * (6.0**2) / 2
    np.testing.assert_allclose(stopping.split_rhat(x), np.sqrt((between / within + 1) / 2))


def test_drift_of_one_coordinate_among_many() -> None:
    """No false alarm beyond its level; a drift much smaller than the noise of others is found."""
    x = slow_numbers(0.0, 4000, 12, 10)
    alarms = 4000 * stopping.TREND_LEVEL
    assert np.sum(stopping.drifts(x)) < alarms + Z_MAX * np.sqrt(alarms)
    x[:, :, 3] = 1e-3 * x[:, :, 3] + 0.01 * np.arange(12)[:, None]
    assert np.mean(stopping.drifts(x)) > 0.99


# -- fits ----------------------------------------------------------------------------------------

SEEDS = 40


def errors(rule: sa.Converged) -> np.ndarray:
    """(true error of a mean / reported)², less one, for each seed and coordinate."""
    ratios = []
    for key in range(SEEDS):
        result = run(key=key, stop=rule)
        assert result.status == "converged"
        reported = float(result.provenance["stop"].split("known to ")[1].split()[0])
        ratios.append((np.asarray(result.q.mean) - CENTRE) / SCALE / reported)
    return np.mean(np.square(ratios), 1) - 1


def z_of(x: np.ndarray) -> float:
    return float(x.mean() / (x.std(ddof=1) / np.sqrt(len(x))))


@pytest.mark.slow
def test_a_stopped_fit_knows_its_error() -> None:
    """Against the closed form, over seeds; stopping early because of luck would show here."""
    assert z_of(errors(SHORT)) < Z_MAX


def test_a_rule_that_forgets_correlation_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "monte_carlo_error", uncorrected)
    monkeypatch.setattr(stopping, "drifts", lambda x: np.zeros(x.shape[1], bool))
    rule = sa.Converged(tolerance=0.1, rhat=9.0, every=3)
    assert z_of(errors(rule)) > Z_MUTANT / 2  # forty seeds of heavy tails: 8σ is out of reach


def test_a_drifting_q_is_not_stopped() -> None:
    """Steps so small that every window's error is within tolerance, far from the posterior."""
    result = run(
        q0=sa.MeanField.from_moments([30.0, -40.0], [1.0, 2.0]),
        optimizer=optax.adam(1e-5),
        method=sa.elbo(4),
        stop=sa.Converged(every=50),
    )
    assert result.status == "max_steps"
    assert "q still drifts" in result.provenance["stop"]
    assert "known to" not in result.provenance["stop"]  # the error alone would have let it pass
    assert result.warnings() == [result.provenance["stop"]]


def stuck_density(z: Any) -> Any:
    """So rough that after a few moves no proposal is ever as good as where a chain is."""
    return 1e6 * jnp.sum(jnp.sin(1e4 * z)) - jnp.sum(z**2)


def test_stuck_chains_are_not_converged() -> None:
    result = run(sa.Target(stuck_density, dim=2), stop=LOOSE, steps=300)
    assert np.mean(result.trace.acceptance[-150:]) < 0.05
    assert result.status == "max_steps"
    assert "the chains moved only" in result.provenance["stop"]


def test_a_q_that_stands_still_is_not_converged() -> None:
    result = run(optimizer=optax.sgd(0.0), stop=LOOSE, steps=300)
    assert result.status == "max_steps"
    assert "q did not move at all" in result.provenance["stop"]
    result = run(stop=LOOSE, steps=300)
    assert result.status == "converged"


def test_updates_that_were_skipped() -> None:
    """NaN losses skip updates; a fit of which many are missing is not called converged."""
    stripes = lambda z: jnp.where(jnp.sin(20 * z[0]) > 0.5, jnp.nan, 0.0)  # noqa: E731
    target = sa.Target(lambda z: stripes(z) - 0.5 * jnp.sum((z - 1) ** 2), dim=2)
    with pytest.warns(RuntimeWarning, match="updates were skipped"):
        result = run(target, sa.elbo(1), stop=LOOSE, steps=300)
    assert result.status == "max_steps"
    assert "of the late updates were skipped" in result.provenance["stop"]
    assert np.all(np.isfinite(result.q.mean))


# -- what comes back -----------------------------------------------------------------------------


def test_q_is_the_average_of_the_late_windows(whole: sa.Result) -> None:
    """By hand, from the iterates of a run without the rule."""
    steps = int(whole.state.step)
    count = steps // SHORT.every
    assert whole.status == "converged"
    assert steps == count * SHORT.every < 3000
    assert count <= stopping.MAX_WINDOWS  # so that no windows were merged
    iterates: list[Any] = []
    last = run(stop=None, steps=steps, callback_every=1,
               callback=lambda state, _: iterates.append(state.q) or False)  # fmt: skip
    assert same_bits(last.state.q, whole.state.q)  # the rule does not touch the run
    first = 1 + count // 2 * SHORT.every  # the callback is called before iteration 1 too
    for leaf in ("loc", "omega"):
        mean = np.mean([np.asarray(getattr(q, leaf), np.float64) for q in iterates[first:]], 0)
        np.testing.assert_allclose(getattr(whole.q, leaf), mean, rtol=1e-5, atol=1e-6)


def test_it_says_what_it_saw(whole: sa.Result) -> None:
    says = whole.provenance["stop"]
    assert says.startswith(f"converged after {int(whole.state.step)} steps: averaged λ known to 0.")
    assert says.endswith(" late windows")
    assert "R̂" in says
    assert says in " ".join(str(whole).split())
    assert whole.warnings() == []
    assert whole.provenance["stop_rule"] == "Converged(tolerance=0.1, every=10)"


def test_it_says_what_was_missing() -> None:
    result = run(stop=sa.Converged(tolerance=1e-4, every=10), steps=400)
    assert result.status == "max_steps"
    assert "not converged after 400 steps: averaged λ known to 0." in result.provenance["stop"]
    assert "sds where 0.0001 is asked" in result.provenance["stop"]
    assert result.warnings() == [result.provenance["stop"]]
    assert "! not converged after 400 steps" in str(result)


@pytest.mark.parametrize("steps", [0, 7, 10, 35, 149])
def test_too_few_steps_for_the_windows(steps: int) -> None:
    result = run(steps=steps, stop=sa.Converged(tolerance=9.0, rhat=9.0, every=10))
    assert result.status == "max_steps"
    late = steps // 10 - steps // 20
    assert f"{late} late windows where 8 are needed" in result.provenance["stop"]
    if steps == 0:
        assert same_bits(result.q, sa.MeanField.standard(2))
    if steps in (7, 10):  # of no or one window: all iterates
        mean = run(stop=None, average=0.0, steps=steps).q
        for leaf in ("loc", "omega"):
            np.testing.assert_allclose(getattr(result.q, leaf), getattr(mean, leaf), atol=1e-6)


def test_windows_are_merged() -> None:
    """Of a long run at most 64 are kept, of one width; their average is that of the iterates."""
    kept: list[Any] = []
    original = stopping.assess

    def spy(windows: stopping.Windows) -> stopping.Convergence:
        kept.append(windows)
        return original(windows)

    rule = sa.Converged(tolerance=1e-9, every=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "assess", spy)
        result = run(stop=rule, steps=600)
    assert max(len(w.skipped) for w in kept) < stopping.MAX_WINDOWS
    last, count = kept[-1], 600 // 16
    assert int(last.width) == 16
    for field in (last.mean, last.sd, last.acceptance, last.skipped, *jax.tree.leaves(last.q)):
        assert len(field) == count
    steps, start = count * 16, count // 2 * 16
    by_hand = run(stop=None, steps=steps, average=start / steps)
    assert by_hand.provenance["average"] == f"after step {start}"
    np.testing.assert_allclose(result.q.loc, by_hand.q.loc, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.mean, last.q.loc)
    np.testing.assert_allclose(last.acceptance[3], np.mean(result.trace.acceptance[48:64]), 1e-6)


@pytest.mark.parametrize("name", quick_rows(METHODS))
def test_every_method(name: str) -> None:
    result = run(method=METHODS[name], stop=LOOSE, steps=400)
    assert result.status == "converged"
    assert np.all(np.isfinite(result.q.mean))


@pytest.mark.parametrize("family", quick_rows(FAMILIES))
def test_every_family(family: str) -> None:
    result = run(q0=FAMILIES[family](2), stop=LOOSE, steps=2000, replications=2)
    assert result.status == ("converged", "converged")
    assert jax.tree.structure(result.q) == jax.tree.structure(result.state.q)
    assert np.all(np.isfinite(jax.vmap(lambda q: q.sd)(result.q)))


def test_float64() -> None:
    with x64():
        result = run(stop=LOOSE, steps=400, q0=sa.MeanField.standard(2), target=sa.Target(
            lambda z: -0.5 * jnp.sum(z**2), dim=2))  # fmt: skip
        assert result.status == "converged"
        assert result.q.mean.dtype == jnp.float64


# -- the same bits -------------------------------------------------------------------------------


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
    assert again.provenance["stop"] == whole.provenance["stop"]


def victim(path: str) -> None:
    """A run that saves after every iteration and dies in the middle; runs in its own process."""
    host.CHUNK_SECONDS = 0  # type: ignore[attr-defined]
    original, calls = Bar.update, [0]

    def deadly(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 77:  # in the eighth window
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    Bar.update = deadly  # type: ignore[method-assign]
    run(checkpoint=path, checkpoint_every=0.0)


def test_killed_and_resumed(whole: sa.Result, tmp_path: Path) -> None:
    path = tmp_path / "run"
    code = f"from tests.test_stopping import victim; victim({str(path)!r})"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    with np.load(path, allow_pickle=False) as file:
        assert file["[0].step"] == 85  # the first chunk ends with the first window, at step 10
    resumed = run(checkpoint=path)
    assert same_run(resumed, whole)
    assert resumed.provenance["stop"] == whole.provenance["stop"]
    before = path.read_bytes()
    again = run(checkpoint=path)  # a finished run is read back
    assert same_run(again, whole)
    assert path.read_bytes() == before


def test_more_steps_or_a_stricter_rule_go_on(whole: sa.Result, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert run(checkpoint=path, steps=100).status == "max_steps"
    assert same_run(run(checkpoint=path), whole)
    strict = sa.Converged(tolerance=0.05, every=10)
    assert same_run(run(checkpoint=path, stop=strict), run(stop=strict))


@pytest.mark.parametrize(
    "change", [{"stop": None}, {"stop": sa.Converged(every=20)}, {"stop": None, "average": 0.0}]
)
def test_another_rule_is_another_run(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(checkpoint=path, steps=100)
    with pytest.raises(sa.CheckpointError, match="average: file 'windows of 10 steps', now"):
        run(checkpoint=path, **change)


def test_windows_begin_anew_from_a_state() -> None:
    short = run(steps=1003, stop=None)
    result = run(state=short.state, stop=LOOSE, steps=3000)
    assert result.status == "converged"
    steps = int(result.state.step)
    assert (steps - 1003) % LOOSE.every == 0
    assert steps >= 1003 + 7 * LOOSE.every
    assert same_bits(result.state.q, run(steps=steps, stop=None).state.q)
    again = run(state=result.state, stop=sa.Converged(tolerance=1e-9), steps=steps + 10)
    assert again.status == "max_steps"
    assert "0 late windows" in again.provenance["stop"]


# -- replications --------------------------------------------------------------------------------


def test_replications_stop_together() -> None:
    """Each with the average over the same windows."""
    targets = [make_target(), make_target(3.0)]
    many = run(targets)
    assert many.status == ("converged", "converged")
    steps = int(many.state.step[0])
    assert "late windows × 2 replications" in " ".join(str(many).split())
    assert many[1].status == "converged"
    assert "converged after" in str(many[1])
    start = steps // SHORT.every // 2 * SHORT.every
    by_hand = run(targets, stop=None, steps=steps, average=(start + 0.1) / steps)
    assert by_hand.provenance["average"] == f"after step {start}"
    np.testing.assert_allclose(many.q.loc, by_hand.q.loc, rtol=1e-4, atol=1e-5)


def test_all_replications_must_meet_the_rule() -> None:
    """What is reported is the worst of them."""
    x = 0.01 * slow_numbers(0.0, 3, 32, 4, seed=3)
    width, share = np.asarray(10), np.full((32, 3), 0.5)

    def seen(x: Any) -> stopping.Convergence:
        mean, sd = x[..., :2], np.exp(x[..., 2:])
        kept = {
            "width": width,
            "mean": mean,
            "sd": sd,
            "acceptance": share,
            "skipped": 0 * share,
            "states": np.zeros((len(x), 0, 0)),
        }
        return stopping.assess(stopping.Windows(**dict.fromkeys(stopping.Windows._fields) | kept))

    rule = sa.Converged()
    assert rule.complaints(seen(x)) == []
    wide = x.copy()
    wide[:, 1, 0] *= 100
    assert any("known to" in says for says in rule.complaints(seen(wide)))
    far = x.copy()
    far[:, 2, 3] += 0.002 * np.arange(32)
    assert "q still drifts" in rule.complaints(seen(far))
    assert seen(wide).error > 20 * seen(x).error


def test_one_that_diverges_keeps_no_other_waiting() -> None:
    def density(z: Any, start: Any) -> Any:
        return -jnp.sqrt(jnp.maximum(start + jnp.sum(z**2), 0))  # no slope at 0

    targets = [sa.Target(density, dim=2, data=jnp.float32(x)) for x in (1.0, -1e6)]
    with pytest.warns(RuntimeWarning, match="skipped"):
        many = run(targets, sa.elbo(4), q0=sa.MeanField.standard(2), stop=SHORT)
    assert many.status == ("converged", "diverged")


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
        ({"tolerance": np.nan}, "tolerance must be positive and finite, got nan"),
        ({"tolerance": np.inf}, "tolerance must be positive"),
        ({"rhat": 1.0}, "rhat must be above 1 and finite, got 1.0"),
        ({"rhat": np.nan}, "rhat must be above 1"),
        ({"every": 0}, "every must be an integer ≥ 1, got 0"),
        ({"every": 2.5}, "every must be an integer ≥ 1, got 2.5"),
        ({"windows": 3}, "windows must be an integer ≥ 4 and ≤ 16, got 3"),
        ({"windows": 17}, "windows must be an integer ≥ 4 and ≤ 16, got 17"),
    ],
)
def test_bad_settings(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sa.Converged(**options)


@pytest.mark.parametrize("stop", [True, 0.02, "converged", sa.Converged])
def test_stop_must_be_a_rule(stop: Any) -> None:
    with pytest.raises(ValueError, match=r"stop must be a rule such as Converged\(\), got"):
        run(stop=stop)


@pytest.mark.parametrize("average", [True, 0.0, 0.5])
def test_stop_or_average(average: Any) -> None:
    with pytest.raises(ValueError, match="give stop or average, not both"):
        run(average=average)
