"""The callback of `fit`, on which saving and resuming a table's cells rests."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import scoreascent as sa
from tests.helpers import host, nan_density, same_bits, same_run

T = 50


def density(z: Any, centre: Any) -> Any:
    return -0.5 * jnp.sum((z - centre) ** 2)


TARGETS = [sa.Target(density, dim=2, data=jnp.array([1.0, c])) for c in (-0.5, 2.0)]
METHOD, OPTIMIZER = sa.pmcsa(3), optax.adam(0.05)


def fit(target: Any = TARGETS[0], **options: Any) -> sa.Result:
    options = {"steps": T, "optimizer": OPTIMIZER, "key": 7, "progress": False} | options
    return sa.fit(target, METHOD, **options)


class Spy:
    """A callback that keeps what it is called with, and ends the run at a step."""

    def __init__(self, stop: int | None = None, says: Any = True) -> None:
        self.calls: list[tuple[sa.State, sa.Trace]] = []
        self.stop, self.says = stop, says

    def __call__(self, state: sa.State, trace: sa.Trace) -> object:
        self.calls.append((state, trace))
        return self.says if self.steps[-1] == self.stop else None

    @property
    def steps(self) -> list[int]:
        return [int(np.max(np.asarray(state.step))) for state, _ in self.calls]

    @property
    def trace(self) -> sa.Trace:
        return sa.Trace(*(np.concatenate(xs, -1) for xs in zip(*(t for _, t in self.calls))))


TARGET_KINDS: dict[str, dict[str, Any]] = {
    "single": {},
    "seeds": {"replications": 3},
    "data": {"target": TARGETS},
    "average": {"average": True},
}


@pytest.mark.parametrize("kind", TARGET_KINDS)
@pytest.mark.parametrize(
    ("every", "at"),
    [(20, [0, 20, 40, 50]), (25, [0, 25, 50]), (50, [0, 50]), (1000, [0, 50])],
)
def test_callback_is_called_when_it_says(kind: str, every: int, at: list[int]) -> None:
    options, spy = TARGET_KINDS[kind], Spy()
    result = fit(callback=spy, callback_every=every, **options)
    assert spy.steps == at
    assert [t.loss.shape[-1] for _, t in spy.calls] == [0, *np.diff(at)]
    assert same_bits(spy.trace, result.trace)
    assert same_bits(spy.calls[-1][0], result.state)
    assert same_run(result, fit(**options))


def test_callback_sees_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a chunk would be longer or shorter than `callback_every`."""
    for seconds in (0, 10):
        monkeypatch.setattr(host, "CHUNK_SECONDS", seconds)
        for every in (1, 7):
            spy = Spy()
            result = fit(callback=spy, callback_every=every)
            assert spy.steps == sorted({*range(0, T, every), T})
            assert same_bits(spy.trace, result.trace)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_callback_stops_a_run(kind: str) -> None:
    options, spy = TARGET_KINDS[kind], Spy(stop=20)
    whole = fit(**options)
    result = fit(callback=spy, callback_every=10, **options)
    assert spy.steps == [0, 10, 20]
    assert result.state.step.max() == 20
    statuses = result.status if isinstance(result.status, tuple) else (result.status,)
    assert set(statuses) == {"stopped"}
    assert "stopped" in str(result)
    for a, b in zip(result.trace, whole.trace):
        np.testing.assert_array_equal(a, b[..., :20])
    # and on from there
    more = Spy()
    onward = fit(state=result.state, callback=more, callback_every=15, **options)
    assert more.steps == [20, 30, 45, 50]
    assert same_bits((onward.q, onward.state), (whole.q, whole.state))
    assert [t.loss.shape[-1] for _, t in more.calls] == [0, 10, 15, 5]


def test_callback_stops_before_the_first_iteration() -> None:
    result = fit(callback=Spy(stop=0))
    assert result.status == "stopped"
    assert int(result.state.step) == 0
    assert result.trace.loss.shape == (0,)


def test_callback_at_the_end_stops_nothing() -> None:
    spy = Spy(stop=T)
    result = fit(callback=spy, callback_every=20)
    assert spy.steps == [0, 20, 40, 50]
    assert result.status == "max_steps"
    assert same_run(result, fit())


def test_callback_does_not_stop_a_finished_run() -> None:
    whole = fit()
    assert fit(state=whole.state, callback=Spy(stop=T)).status == "max_steps"


def test_callback_does_not_hide_a_divergence() -> None:
    target = sa.Target(nan_density, dim=1, data=0.0)
    options = {"steps": 200, "callback_every": 100, "progress": False}
    with pytest.raises(sa.DivergenceError):
        sa.fit(target, sa.elbo(1), callback=Spy(stop=100), **options)


@pytest.mark.parametrize("says", [None, False, 0, 1, "yes"])
def test_only_true_stops(says: Any) -> None:
    assert fit(callback=Spy(stop=20, says=says), callback_every=10).status == "max_steps"


@pytest.mark.parametrize("says", [np.bool_(True), jnp.array(True)], ids=["numpy", "jax"])
def test_a_comparison_of_arrays_stops_too(says: Any) -> None:
    assert fit(callback=Spy(stop=20, says=says), callback_every=10).status == "stopped"


def test_callback_and_checkpoint(tmp_path: Path) -> None:
    path, whole, first = tmp_path / "run", fit(), Spy(stop=20)
    fit(callback=first, callback_every=10, checkpoint=path)
    assert path.exists()
    second = Spy()
    result = fit(callback=second, callback_every=15, checkpoint=path)
    assert same_run(result, whole)
    assert second.steps == [20, 30, 45, 50]
    assert same_bits(second.trace, whole.trace)  # the file's part of it comes with the first call
    done = Spy()
    assert same_run(fit(callback=done, checkpoint=path), whole)
    assert done.steps == [T]


def test_callback_of_a_run_of_no_steps() -> None:
    spy = Spy()
    assert fit(steps=0, callback=spy).status == "max_steps"
    assert spy.steps == [0]


def test_an_error_in_the_callback_is_raised() -> None:
    handler = signal.getsignal(signal.SIGINT)

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        fit(callback=fail)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"callback": 3}, "callback must be a function of state and trace, got 3"),
        ({"callback": "print"}, "callback must be a function"),
        ({"callback": print, "callback_every": 0}, "callback_every must be an integer ≥ 1, got 0"),
        ({"callback": print, "callback_every": -5}, "callback_every must be an integer ≥ 1"),
        ({"callback": print, "callback_every": 2.5}, "callback_every must be an integer ≥ 1"),
    ],
)
def test_bad_callbacks(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit(**options)
