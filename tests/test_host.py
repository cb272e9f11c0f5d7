"""Densities that are not JAX's: the same answers as JAX's, one call a batch, clear errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from tests.helpers import x64

MEAN = np.array([3.0, -40.0])
PRECISION = np.linalg.inv(np.array([[1.0, 1.2], [1.2, 4.0]]))
SD = np.array([1.0, 2.0])


def log_p(z: Any) -> Any:
    away = z - MEAN
    return -0.5 * away @ PRECISION @ away


def slope(z: Any) -> Any:
    return -PRECISION @ (z - MEAN)


def many(z: Any) -> Any:
    away = z - MEAN
    return -0.5 * np.sum(away @ PRECISION * away, -1)


def many_slopes(z: Any) -> Any:
    return -(z - MEAN) @ PRECISION


def in_jax() -> sa.Target:
    return sa.Target(
        lambda z: -0.5 * (z - MEAN.astype("f4")) @ PRECISION.astype("f4") @ (z - MEAN), dim=2
    )


FORMS: dict[str, dict[str, Any]] = {
    "a gradient": {"log_density": log_p, "gradient": slope},
    "returned": {"log_density": lambda z: (log_p(z), slope(z)), "gradient": "returned"},
    "differences": {"log_density": log_p, "gradient": "differences"},
    "batched": {"log_density": many, "gradient": many_slopes, "batched": True},
    "batched differences": {"log_density": many, "gradient": "differences", "batched": True},
    "threads": {"log_density": log_p, "gradient": slope, "threads": 3},
}


def target(name: str) -> sa.Target:
    return sa.Target.from_host(**FORMS[name], dim=2)


# -- values and derivatives ------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_values_and_derivatives_are_jaxs(name: str) -> None:
    z = np.random.default_rng(1).normal(size=(6, 2)) + MEAN
    with x64():
        ours, theirs = target(name), in_jax()

        def all_of(target: sa.Target) -> Any:
            one = jax.value_and_grad(target.log_prob)
            hessian = jax.hessian(target.log_prob)
            return jax.jit(lambda z: (jax.vmap(one)(z), jax.vmap(hessian)(z)))(z)

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
            all_of(ours),
            all_of(theirs),
        )
        nested = jax.vmap(jax.vmap(ours.log_prob))(z.reshape(2, 3, 2))
        np.testing.assert_allclose(nested.ravel(), many(z), rtol=1e-10)
    assert jax.jit(target(name).log_prob)(np.float32([0, 0])).dtype == jnp.float32


def test_a_batch_is_one_call() -> None:
    sizes: list[int] = []

    def counted(z: Any) -> Any:
        sizes.append(len(z))
        return many(z)

    host = sa.Target.from_host(counted, many_slopes, dim=2, batched=True)
    sizes.clear()
    z = np.zeros((64, 2), np.float32)
    jax.block_until_ready(jax.jit(jax.vmap(host.log_prob))(z))
    assert sizes == [64]
    sizes.clear()
    jax.block_until_ready(jax.jit(jax.vmap(jax.value_and_grad(host.log_prob)))(z))
    assert sizes == [64]


def test_threads_share_the_points() -> None:
    seen = set()

    def slow(z: Any) -> float:
        seen.add(threading.get_ident())
        time.sleep(0.002)
        return float(log_p(z))

    host = sa.Target.from_host(slow, dim=2, threads=4)
    seen.clear()
    jax.block_until_ready(jax.jit(jax.vmap(host.log_prob))(np.zeros((32, 2), np.float32)))
    assert len(seen) == 4


@pytest.mark.parametrize("n", [3, 20_000])
def test_large_batches_do_not_wait_for_themselves(n: int) -> None:
    """A callback that asks jax for its arguments can hang where these are large."""
    host = sa.Target.from_host(
        lambda z: -0.5 * np.sum(z**2, -1), lambda z: -z, dim=50, batched=True
    )
    z = jnp.ones((n, 50))
    out = jax.jit(lambda z: jax.vmap(jax.value_and_grad(host.log_prob))(2 * z)[1])(z)
    np.testing.assert_allclose(out, -2.0)


def test_targets_of_one_function_share_compiled_code() -> None:
    one, two = target("a gradient"), target("a gradient")
    assert one.log_density == two.log_density
    assert hash(one.log_density) == hash(two.log_density)
    assert one.log_density != target("differences").log_density
    assert "log_p of the host" in repr(one)


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batched", "threads"])
def test_an_automatic_fit_is_that_of_the_jax_density(name: str) -> None:
    ours = sa.fit(target(name), progress=False)
    assert ours.diagnosis is not None
    assert ours.diagnosis.verdict == "good"
    rows = ours.summary()
    assert np.all(np.abs([r["mean"] for r in rows] - MEAN) < 0.1 * SD)
    assert np.all(np.abs([r["sd"] / s - 1 for r, s in zip(rows, SD)]) == pytest.approx(0, abs=0.1))


@pytest.mark.slow
def test_a_fit_without_gradient_finds_what_is_far_away() -> None:
    """Its mean is 40 standard deviations of the first q away."""
    found = sa.fit(sa.Target.from_host(many, dim=2, batched=True), progress=False)
    assert found.diagnosis is not None
    assert found.diagnosis.verdict == "good"
    assert found.evaluations is not None
    assert found.evaluations[1] == 0
    assert any("log_density has no gradient: no searches" in text for text in found.decisions)
    rows = found.summary()
    assert np.all(np.abs([r["mean"] for r in rows] - MEAN) < 0.1 * SD)
    assert np.all(np.abs([r["sd"] / s - 1 for r, s in zip(rows, SD)]) == pytest.approx(0, abs=0.1))


X = np.random.default_rng(4).normal(size=(30, 3))
Y = (np.random.default_rng(5).random(30) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(float)


@pytest.mark.slow
def test_a_regression_without_gradient_is_that_with_jax() -> None:
    def by_numpy(z: Any) -> Any:
        eta = z @ X.T
        return (Y * eta - np.logaddexp(0, eta)).sum(-1) - 0.5 * (z**2).sum(-1)

    def by_jax(z: Any) -> Any:
        eta = X.astype("f4") @ z
        return jnp.sum(Y.astype("f4") * eta - jnp.logaddexp(0, eta)) - 0.5 * jnp.sum(z**2)

    ours = sa.fit(sa.Target.from_host(by_numpy, dim=3, batched=True), progress=False)
    theirs = sa.fit(sa.Target(by_jax, dim=3), progress=False)
    assert ours.diagnosis is not None
    assert ours.diagnosis.verdict == "good"
    for a, b in zip(ours.summary(), theirs.summary()):
        assert abs(a["mean"] - b["mean"]) < 0.1 * b["sd"]
        assert abs(a["sd"] / b["sd"] - 1) < 0.1


def test_nan_is_an_impossible_point() -> None:
    def holes(z: Any) -> Any:
        return np.where(z[:, 0] < 0, np.nan, -0.5 * np.sum(z**2, -1))

    host = sa.Target.from_host(holes, dim=2, batched=True)
    with pytest.warns(RuntimeWarning, match=r"NaN or \+∞ at \d+ proposals"):
        result = sa.fit(host, sa.pmcsa(8), steps=200, progress=False)
    assert np.all(np.asarray(result.state.eta.z)[:, 0] >= 0)


def test_points_that_ran_away_are_not_asked_for() -> None:
    def careful(z: Any) -> float:
        assert np.all(np.isfinite(z))
        return float(log_p(z))

    host = sa.Target.from_host(careful, dim=2)
    out = jax.vmap(host.log_prob)(jnp.array([[0.0, 0.0], [jnp.inf, 0.0], [jnp.nan, 1.0]]))
    assert np.isfinite(out).tolist() == [True, False, False]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_an_exception_names_the_point(batched: bool) -> None:
    calls = [0]

    def fails(z: Any) -> Any:
        calls[0] += 1
        if calls[0] > 5 and np.any(z[..., 0] > 0.5):
            raise ZeroDivisionError("no such place")
        return many(z) if batched else log_p(z)

    host = sa.Target.from_host(fails, dim=2, batched=batched)
    with pytest.raises(RuntimeError, match=r"raised ZeroDivisionError at z = \[.*: no such") as e:
        sa.fit(host, sa.pmcsa(16), steps=100, progress=False)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    place = float(str(e.value).split("[")[1].split()[0])
    assert place > 0.5
    assert sa.fit(in_jax(), sa.pmcsa(2), steps=1, progress=False)  # jax goes on


def of(**options: Any) -> Any:
    return lambda: sa.Target.from_host(**({"log_density": log_p, "dim": 2} | options))


BAD: dict[str, tuple[Any, str]] = {
    "not callable": (of(log_density=3.0), "log_density must be a function, got 3.0"),
    "gradient": (of(gradient=True), "gradient must be a function, 'differences', .* got True"),
    "dim": (of(dim=0), "dim must be an integer ≥ 1, got 0"),
    "threads": (of(threads=0), "threads must be an integer ≥ 1, got 0"),
    "batched": (of(batched=3), "batched must be True or False, got 3"),
    "threads and batched": (of(batched=True, threads=2), "threads are for a function of one point"),
    "a vector": (of(log_density=lambda z: z), r"log_density must return shape \(\) here, got \(2,"),
    "a batch": (
        of(log_density=lambda z: np.zeros(1), batched=True),
        r"log_density must return shape \(3,\) here, got \(1,\)",
    ),
    "text": (of(log_density=lambda z: "a"), "log_density must return real numbers, got 'a'"),
    "gradient's shape": (
        of(gradient=lambda z: np.zeros(3)), r"gradient must return shape \(2,\) here, got \(3,\)"
    ),
    "no pair": (of(gradient="returned"), "log_density must return a value and its gradient"),
    "sign": (of(gradient=lambda z: -slope(z)), "gradient: coordinate 0 is .* but differences"),
    "one coordinate": (
        of(gradient=lambda z: slope(z) * [1.0, 1.02]), "gradient: coordinate 1 is .* differences"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_refused_with_the_name_of_the_argument(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_a_right_gradient_is_taken_at_any_scale() -> None:
    for scale in (1e-4, 1.0, 1e4):
        sa.Target.from_host(
            lambda z, s=scale: -np.sum(np.log1p((z / s) ** 2)),
            lambda z, s=scale: -2 * z / (s**2 + z**2),
            dim=3,
        )
    single = lambda z: np.float32(np.sum(np.float32(z) ** 4))  # noqa: E731
    sa.Target.from_host(single, lambda z: 4 * np.float32(z) ** 3, dim=3)


def test_what_a_function_raises_at_once_is_told_at_once() -> None:
    def fails(z: Any) -> Any:
        raise OSError("no library")

    with pytest.raises(RuntimeError, match=r"raised OSError at z = .* no library"):
        sa.Target.from_host(fails, dim=2)


SLOW = """
import time
import numpy as np
import scoreascent as sa

def slow(z):
    time.sleep(0.002)
    return -0.5 * float(np.sum(z**2))

def started(state, trace):
    print("started", flush=True)

if __name__ == "__main__":
    target = sa.Target.from_host(slow, dim=2)
    {call}
    print(result.status)
"""
CALLS = {
    "between chunks": (
        "result = sa.fit(target, sa.pmcsa(4), steps=10**6, progress=False, callback=started, "
        "callback_every=1)"
    ),
    "in compiled code": "started(None, None); result = sa.fit(target, progress=False)",
}


@pytest.mark.parametrize(
    "name", ["between chunks", pytest.param("in compiled code", marks=pytest.mark.slow)]
)
def test_ctrl_c_ends_a_slow_fit(name: str, tmp_path: Any) -> None:
    """Between chunks it keeps what is there; where one call takes long, it is told in there."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW.format(call=CALLS[name]))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "started"
    if name == "in compiled code":
        time.sleep(5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    if name == "between chunks":
        assert out.splitlines()[-1] == "interrupted", errors
    else:
        assert process.returncode != 0
        assert "KeyboardInterrupt" in errors
