"""An automatic fit that is killed at any moment, shared by two processes, or damaged on disk."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from scoreascent.fitting.checkpoint import CheckpointError

STEPS, KILLS = 400, 20


def funnel(z: jax.Array) -> jax.Array:
    """A density that is never called good, so that a fit of it takes all three stages."""
    return -0.5 * (z[0] / 3) ** 2 - 0.5 * jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) - 1.5 * z[0]


def child(checkpoint: str) -> None:
    """Fit in a process of its own, and say what came out."""
    print("begins", flush=True)
    target = sa.Target(funnel, dim=4)
    result = sa.fit(target, steps=STEPS, checkpoint=checkpoint, checkpoint_every=0, progress=False)
    stages = sum("verdict" in line for line in result.decisions)
    bits = hashlib.sha256()
    for leaf in jax.tree.leaves((result.q, result.states, result.trace)):
        bits.update(np.ascontiguousarray(leaf).tobytes())
    print(f"done {stages} {bits.hexdigest()}", flush=True)


def start(checkpoint: Path, cache: Path) -> subprocess.Popen[str]:
    """Start a child, with the programs that others have compiled."""
    code = f"from tests.test_survival import child; child({str(checkpoint)!r})"
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **settings},
        cwd=Path(__file__).parents[1],
    )  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> str:
    """Return what a child says at its end."""
    said = process.communicate(timeout=300)[0].strip().splitlines()
    assert process.returncode == 0, said
    return said[-1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> str:
    said = outcome(start(tmp_path_factory.mktemp("uncut") / "run.ckpt", cache))
    assert said.startswith("done 3 ")
    return said


@pytest.mark.slow
def test_killed_twenty_times_in_all_three_stages(tmp_path: Path, cache: Path, uncut: str) -> None:
    """Every fit is killed at a random moment, and begun again until it is done: the same bits."""
    rng = random.Random(0)
    killed_in: dict[int, int] = {0: 0, 1: 0, 2: 0, 3: 0}
    clock = time.monotonic()
    process = start(tmp_path / "timed.ckpt", cache)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    assert outcome(process) == uncut
    took, number = time.monotonic() - began, 0
    assert took < time.monotonic() - clock
    path = tmp_path / "0.ckpt"
    while sum(killed_in.values()) < KILLS:
        process = start(path, cache)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, took))
        process.kill()
        said = process.communicate(timeout=60)[0]
        if process.returncode == 0:  # it was done before
            assert said.strip() == uncut
            number += 1
            path = tmp_path / f"{number}.ckpt"
            continue
        stages = [path, path.with_name(f"{path.name}.2"), path.with_name(f"{path.name}.3")]
        killed_in[sum(p.exists() for p in stages)] += 1
    assert outcome(start(path, cache)) == uncut
    assert all(killed_in[stage] >= 1 for stage in (1, 2, 3)), killed_in


@pytest.mark.slow
def test_two_processes_of_one_file(tmp_path: Path, cache: Path, uncut: str) -> None:
    """Both write the same file, each of them whole; neither disturbs the other."""
    both = [start(tmp_path / "run.ckpt", cache) for _ in range(2)]
    assert {outcome(process) for process in both} == {uncut}
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.slow
def test_every_byte_flipped(tmp_path: Path) -> None:
    """A damaged file is refused, or was not damaged where it matters: never another result."""
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=1)

    def fit(path: Path) -> sa.Result:
        settings = {"q0": sa.MeanField.standard(1), "steps": 2, "progress": False}
        return sa.fit(target, sa.jsa(1), checkpoint=path, key=1, **settings)

    path = tmp_path / "run.ckpt"
    right = fit(path)
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        damaged = tmp_path / "damaged.ckpt"
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = fit(damaged)
        except CheckpointError:
            refused += 1
            continue
        for a, b in zip(jax.tree.leaves(found.q), jax.tree.leaves(right.q), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(found.trace.loss, right.trace.loss)
    assert refused > len(whole) / 2
