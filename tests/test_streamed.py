"""Rows that stay with the host: the same density, read once for all chains, at flat memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scoreascent as sa
from tests.helpers import first_state, run_chunk

DIM = 3


def log_density(z: Any, data: Any) -> Any:
    """A logistic regression; the scale of its prior is no row."""
    logits = data["x"] @ z
    prior = -0.5 * jnp.sum((z / data["scale"]) ** 2)
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) + prior


def table(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, DIM)).astype(np.float32)
    y = (x.sum(1) + 2 * rng.normal(size=rows) > 0).astype(np.float32)
    return {"x": x, "y": y, "scale": np.float32(1.5)}


def targets(rows: int, piece: int) -> tuple[sa.Target, sa.Target]:
    data = table(rows)
    return (
        sa.Target(log_density, dim=DIM, data=data),
        sa.Target(log_density, dim=DIM, data=data, rows=["x", "y"], piece=piece),
    )


Z = jnp.array([[0.1, -0.4, 0.3], [1.0, 0.2, -2.0]])


@pytest.mark.parametrize(("rows", "piece"), [(103, 20), (100, 25), (7, 50)])
def test_values_slopes_and_curvatures_are_those_of_the_whole(rows: int, piece: int) -> None:
    whole, pieces = targets(rows, piece)
    for of in (lambda f: f, jax.value_and_grad, jax.hessian):
        one, other = (jax.jit(jax.vmap(of(t.log_prob)))(Z) for t in (whole, pieces))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-4)


def test_rows_are_read_once_for_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pieces = targets(103, 20)
    seen: list[int] = []
    rows = pieces.log_density.rows
    load = rows.read
    monkeypatch.setattr(rows, "read", lambda k: seen.append(int(k)) or load(k))
    jax.block_until_ready(jax.jit(jax.vmap(jax.value_and_grad(pieces.log_prob)))(Z))
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


class Chunked:
    """What arrays of Zarr and HDF5 have: a shape, a dtype and slices; some have no length."""

    def __init__(self, x: Any) -> None:
        self._x, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim
        self.most = 0

    def __getitem__(self, at: Any) -> Any:
        found = self._x[at]
        self.most = max(self.most, len(found))
        return found


def test_arrays_of_other_libraries_are_read_by_slices() -> None:
    data = table(103) | {"scale": np.float32(1.5)}
    x, y = Chunked(data["x"]), Chunked(data["y"])
    pieces = sa.Target(
        log_density, dim=DIM, data=data | {"x": x, "y": y}, rows=["x", "y"], piece=20
    )
    whole = targets(103, 20)[1]
    np.testing.assert_array_equal(jax.vmap(pieces.log_prob)(Z), jax.vmap(whole.log_prob)(Z))
    assert x.most == y.most == 64  # a look whether it is a sum over rows; pieces are smaller


def test_named_parameters_and_files(tmp_path: Any) -> None:
    data = table(60)
    np.save(tmp_path / "x.npy", data["x"].astype(np.float64))
    data["x"] = np.load(tmp_path / "x.npy", mmap_mode="r")  # 64 bits, narrowed as it is read

    def named(params: Any, data: Any) -> Any:
        return log_density(params["beta"] * params["size"], data)

    params = {"beta": sa.Param(shape=(DIM,)), "size": sa.Param()}
    rows = {"x": True, "y": True, "scale": False}
    pieces = sa.Target(named, params=params, data=data, rows=rows, piece=16)
    whole = sa.Target(named, params=params, data=table(60))
    z = jnp.array([0.3, 0.2, -0.1, 1.2])
    np.testing.assert_allclose(pieces.log_prob(z), whole.log_prob(z), rtol=1e-5)


def test_a_fit_is_the_same_and_needs_no_more_memory_for_more_rows() -> None:
    whole, pieces = targets(103, 20)
    given: Any = {"q0": sa.FullRank.standard(DIM), "steps": 5, "progress": False, "key": 1}
    given["optimizer"] = sa.moment_matching()
    one, other = (sa.fit(t, sa.pmcsa(8, sa.HMC()), **given) for t in (whole, pieces))
    np.testing.assert_allclose(one.q.mean, other.q.mean, atol=1e-3)
    used = []
    for rows in (200, 20_000):
        begin: Any = (targets(rows, 20)[1], sa.pmcsa(8), sa.update.Still(), "nothing")
        q, key = given["q0"], jax.random.key(0)
        state = first_state.eval_shape(*begin, False, q, key, np.int32(0))
        told = run_chunk.lower(*begin, state, np.int32(1)).compile().memory_analysis()
        used.append(told.argument_size_in_bytes + told.temp_size_in_bytes)
    assert used[0] == used[1]


def no_sum(z: Any, data: Any) -> Any:
    """A mean over rows: with half of them it is not half as much."""
    return -0.5 * jnp.mean((data["x"] - z) ** 2) - 0.5 * jnp.sum(z**2)


def fails(z: Any, data: Any) -> Any:
    return -jnp.sum((data["x"][0] - z) ** 2)


@pytest.mark.parametrize(
    ("density", "options", "message"),
    [
        (no_sum, {}, "log_density must be a sum over rows, and a part that all of them share"),
        (fails, {}, "log_density must be a sum over rows that is there for no rows too"),
        (log_density, {"rows": None}, "piece is for a plain log_density whose data have rows"),
        (log_density, {"piece": 0}, "piece must be an integer ≥ 1, got 0"),
    ],
)
def test_what_cannot_be_read_in_pieces_is_refused(density, options, message) -> None:
    given: Any = {"data": table(50), "rows": ["x", "y"], "piece": 10} | options
    with pytest.raises(ValueError) as error:  # noqa: PT011
        sa.Target(density, dim=DIM, **given)
    assert message in str(error.value)
