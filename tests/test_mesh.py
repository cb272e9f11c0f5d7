"""One fit over many devices: the same answer, little that they exchange, less memory on each.

A process has as many devices as it was started with, so `tests/eight_devices.py` runs in another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import scoreascent as sa
from tests.registry import FAMILIES, METHODS, MOVES

ROOT = Path(__file__).parents[1]
EIGHT = "--xla_force_host_platform_device_count=8"
ROUNDING = 2e-5  # of points and λ after a few steps, as a share of the numbers beside
DIM = 5

NAMES = [f"method {x}" for x in METHODS]
NAMES += [f"moves {x}" for x in MOVES] + [f"family {x}" for x in FAMILIES]


def asked(what: str) -> dict[str, Any]:
    """What the script says."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {EIGHT}"
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.eight_devices", what],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return asked("quick")


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return asked("all")


def check_same(told: dict[str, Any]) -> None:
    for steps in told.values():
        assert max(steps["points"], steps["q"], steps["trace"]) < ROUNDING


@pytest.mark.parametrize("name", ["method pmcsa", "family full-rank"])
def test_chains_and_rows_spread_over_devices_are_the_same(quick: Any, name: str) -> None:
    check_same(quick["same"][name]["both"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_method_kernel_and_family_is_the_same(whole: Any, name: str) -> None:
    """With chains alone, and with rows where there are data."""
    check_same(whole["same"][name]["chains"])
    check_same(whole["same"][name]["both"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["method pmcsa", "method msc-rb", "method pmcsa-rb"])
def test_what_each_chain_does_alone_is_the_same_to_the_last_bit(whole: Any, name: str) -> None:
    """Sums over chains are not, nor what follows from them: q, and all that q moves."""
    assert whole["same"][name]["chains"]["1"]["points"] == 0


def check_exchanged(told: list[dict[str, Any]], chains: int, rows: bool) -> None:
    """Moments, counts and, with rows, a density and a gradient of each chain of the device."""
    moments = {1, DIM, DIM**2}
    each = {chains, chains * DIM} if rows else set()
    assert told
    for seen in told:
        assert seen["op"] == "all-reduce"
        numbers = set(seen["numbers"])
        assert numbers <= (each if seen["inner"] or numbers & each else moments), seen
    assert not rows or any(chains in seen["numbers"] for seen in told)


@pytest.mark.parametrize("kernel", ["imh", "hmc"])
def test_devices_exchange_moments_and_counts(quick: Any, kernel: str) -> None:
    told = quick["exchanged"]
    check_exchanged(told[f"{kernel} moments chains"], 2, rows=False)
    check_exchanged(told[f"{kernel} moments both"], 4, rows=True)
    most = 4 if jax.__version_info__ >= (0, 7) else 5  # operations a step; older XLA joins fewer
    assert len(told[f"{kernel} moments chains"]) <= most


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["imh", "hmc"])
def test_devices_exchange_counts_alone_where_q_stands_still(whole: Any, kernel: str) -> None:
    told = whole["exchanged"][f"{kernel} still chains"]
    assert {n for seen in told for n in seen["numbers"]} == {1}


@pytest.mark.parametrize("axis", ["chains", "rows"])
def test_memory_of_a_device_falls(quick: Any, axis: str) -> None:
    one, eight = quick["memory"][axis]
    assert eight < one / 6


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["chains", "rows"])
def test_memory_of_a_device_falls_with_each_doubling(whole: Any, axis: str) -> None:
    used = whole["memory"][axis]
    assert all(after < 0.6 * before for before, after in pairwise(used))


@pytest.mark.slow
def test_an_automatic_fit_is_judged_alike(whole: Any) -> None:
    one = whole["judged"]["one"]
    for name in ("chains", "both"):
        found = whole["judged"][name]
        off = np.abs(np.subtract(found["mean"], one["mean"])) / one["sd"]
        assert np.max(off) < 0.05
        assert found["verdict"] == one["verdict"] == "good"
        assert found["decisions"][0].startswith("mesh: 8 devices")


@pytest.mark.slow
def test_densities_of_the_host_are_called_by_every_device(whole: Any) -> None:
    assert whole["judged"]["host"]["off"] < ROUNDING


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("axes", "mesh must have axes 'chains' and 'rows', or one of them, got ('model',)"),
        ("no rows", "which of the target's data have rows is not known"),
        ("rows", "63 rows do not divide over the 2 devices of the mesh's axis 'rows'; leave out 1"),
        ("chains", "chains: 30 chains do not divide over the 4 devices"),
        ("method", "method: 30 chains do not divide over the 4 devices"),
        ("several", "mesh spreads one fit over devices, but there are several"),
        ("both", "give mesh or devices, not both"),
        ("no mesh", "mesh must be a jax.sharding.Mesh, got (4, 2)"),
        ("some", "devices must be 'all'"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(quick: Any, name: str, message: str) -> None:
    assert message in quick["refused"][name]


# -- a mesh of one device, in this process ---------------------------------------------------------


def log_density(z: Any, data: Any) -> Any:
    return -0.5 * np.float32(1) * ((data["x"] - z) ** 2).sum()


def test_a_mesh_of_one_device_changes_no_bit() -> None:
    target = sa.Target(log_density, dim=1, data={"x": np.ones((4, 1), np.float32)}, rows=True)
    given: Any = {"steps": 20, "progress": False, "key": 3}
    plain = sa.fit(target, sa.pmcsa(4), **given)
    spread = sa.fit(target, sa.pmcsa(4), **given, mesh=Mesh(np.array(jax.devices()), ("chains",)))
    assert np.array_equal(plain.q.mean, spread.q.mean)
    assert np.array_equal(plain.trace.loss, spread.trace.loss)
    assert spread.provenance["mesh"] == "1 device: chains 1"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["w"], "rows names ['w'], but data has entries ['prior', 'x']"),
        ({"x": True, "prior": True}, "rows must be as many in all data that have them"),
        ({"x": 3, "prior": False}, "rows must say True of some of the data"),
        ((True, False), "rows must be True, a tree of True and False"),
    ],
)
def test_rows_that_data_do_not_have_are_refused(rows: Any, message: str) -> None:
    data = {"x": np.ones((4, 1), np.float32), "prior": np.ones(2, np.float32)}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        sa.Target(log_density, dim=1, data=data, rows=rows)
    assert message in str(error.value)


def test_rows_of_a_numpyro_model_are_known() -> None:
    import numpyro
    import numpyro.distributions as dist

    def model(x: Any, groups: Any, y: Any) -> None:
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(slope * x + groups.sum(), 1), obs=y)

    target = sa.from_numpyro(model, np.ones(6), np.ones(3), np.ones(6))
    assert target.row_leaves() is not None
    assert target.row_leaves()[:3] == (True, False, True)
