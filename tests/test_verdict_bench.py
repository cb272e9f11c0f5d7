"""The shapes of `scoreascent bench verdict` have the moments they claim; its counts count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scoreascent as sa
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.peers.base import Peer
from scoreascent.experiments.verdict import bench
from scoreascent.experiments.verdict.bench import (
    ALL_SHAPES,
    METHODS,
    VERDICT,
    cells,
    counts,
    errors,
    judged,
)
from scoreascent.experiments.verdict.fooled import CASES, before_and_after
from scoreascent.experiments.verdict.posteriors import POSTERIORS
from scoreascent.experiments.verdict.random import random_shape
from scoreascent.experiments.verdict.shapes import SHAPES, Shape
from tests.helpers import x64

POINTS = {1: 400_001, 2: 1501}
# quadrature over a box misses what heavy tails have outside; t12 and lighter are as good as inside
QUADRATURE = [
    name
    for name, shape in SHAPES.items()
    if shape.dim <= 2
    and np.all(np.isfinite(shape.sd))
    and name not in ("t3-1", "t3-2", "t5-2", "sinh-2", "spike-0.01-2")
]


def moments(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds by a sum over a grid of fourteen sds to each side."""
    axes = [
        np.linspace(m - 14 * s, m + 14 * s, POINTS[shape.dim])
        for m, s in zip(shape.mean, shape.sd, strict=True)
    ]
    z = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, shape.dim)
    log_p = np.asarray(jax.jit(jax.vmap(shape.log_density))(jnp.asarray(z, jnp.float32)), float)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ z
    return mean, np.sqrt(weight @ (z - mean) ** 2)


@pytest.mark.parametrize("name", QUADRATURE)
def test_moments_are_those_of_the_density(name: str) -> None:
    shape = SHAPES[name]
    if "offset" in shape.kind and not shape.regular:
        pytest.skip("in float32 this log density is all steps: that is its point")
    found = errors(shape, *moments(shape))
    assert found["mean_error"] < 0.01
    assert found["sd_error"] < 0.01
    wrong = replace(shape, sd=1.05 * shape.sd)
    assert errors(wrong, *moments(shape))["sd_error"] > 0.04


def test_every_kind_has_a_shape_that_is_checked_or_a_closed_form() -> None:
    checked = {SHAPES[name].kind for name in QUADRATURE}
    assert {s.kind for s in SHAPES.values()} - checked == {"funnel", "narrow in wide"}


@pytest.mark.parametrize("name", ["funnel-1-5", "spike-0.1-10"])
def test_moments_of_the_others_by_exact_draws(name: str) -> None:
    shape, rng, n = SHAPES[name], np.random.default_rng(0), 400_000
    if shape.kind == "funnel":
        v = rng.normal(size=n)
        z = np.column_stack([v, np.exp(v / 2)[:, None] * rng.normal(size=(n, shape.dim - 1))])
    else:
        z = np.where(rng.random((n, 1)) < 0.1, 0.1, 1.0) * rng.normal(size=(n, shape.dim))
    found = errors(shape, z.mean(0), z.std(0))
    assert found["mean_error"] < 0.01
    assert found["sd_error"] < 0.02


def gaussian_but_for_one(shape: Shape, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds by a sum over coordinate `at`, given which the log density is quadratic.

    The Gaussian of the others comes from the density's own slope and curvature at zero.
    """
    others = np.delete(np.arange(shape.dim), at)

    def point(u: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.zeros(shape.dim, u.dtype).at[others].set(x).at[at].set(u)

    def around_zero(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        density = lambda x: shape.log_density(point(u, x))  # noqa: E731
        zero = jnp.zeros(shape.dim - 1, u.dtype)
        return jax.grad(density)(zero), -jax.hessian(density)(zero)

    with x64():
        u = np.linspace(-18, 30, 2401) * shape.sd[at] + shape.mean[at]
        slope, precision = map(np.asarray, jax.jit(jax.vmap(around_zero))(jnp.asarray(u)))
        # numpy's matrices: thousands of jax's, side by side, can wait for each other for ever
        top = np.linalg.solve(precision, slope[..., None])[..., 0]
        means = np.insert(top, at, u, axis=1)
        density = np.asarray(jax.jit(jax.vmap(shape.log_density))(jnp.asarray(means)))
    log_mass = density - 0.5 * np.linalg.slogdet(precision)[1]
    inverse = np.linalg.inv(precision)
    variances = np.insert(np.diagonal(inverse, axis1=1, axis2=2), at, 0.0, axis=1)
    weight = np.exp(log_mass - log_mass.max())
    weight /= weight.sum()
    mean = weight @ means
    return mean, np.sqrt(weight @ (variances + (means - mean) ** 2))


@pytest.mark.parametrize(
    ("name", "at"), [("flat-prior-6", 5), ("centred-18", 1), ("centred-26", 1)]
)
def test_moments_of_posteriors_are_those_of_the_density(name: str, at: int) -> None:
    shape = POSTERIORS[name]
    mean, sd = gaussian_but_for_one(shape, at)
    assert max(errors(shape, mean, sd).values()) < 1e-4
    wrong = replace(shape, sd=1.01 * shape.sd)
    assert errors(wrong, mean, sd)["sd_error"] > 0.005


def test_a_flat_prior_gives_a_student_whose_moments_are_exact() -> None:
    """Draws of the t that the moments belong to are draws of the density: their ratio is fixed."""
    shape, df, n = POSTERIORS["flat-prior-5"], 3, 2000
    with x64():
        top = jnp.asarray(shape.mean)
        precision = -jax.hessian(shape.log_density)(top)  # (df + d)/df of the scale's inverse
        scale = np.linalg.inv(np.asarray(precision)) * (df + shape.dim) / df
        rng = np.random.default_rng(0)
        z = rng.multivariate_normal(np.zeros(shape.dim), scale, n)
        z /= np.sqrt(rng.chisquare(df, (n, 1)) / df)
        log_p = np.asarray(jax.vmap(shape.log_density)(top + jnp.asarray(z)))
    away = np.einsum("ni,ij,nj->n", z, np.linalg.inv(scale), z)
    log_q = -0.5 * (df + shape.dim) * np.log1p(away / df)
    assert np.std(log_p - log_q) < 1e-9
    sd = np.sqrt(df / (df - 2) * np.diag(scale))
    assert max(errors(shape, shape.mean, sd).values()) < 1e-9


def test_no_moments_are_never_right() -> None:
    shape = SHAPES["t2-1"]
    assert errors(shape, shape.mean, [3.0])["sd_error"] == np.inf


def test_at_least_sixty_shapes_and_three_in_ten_kept_aside() -> None:
    assert len(SHAPES) >= 60
    assert sum(shape.held_out for shape in SHAPES.values()) >= 0.3 * len(SHAPES)
    assert {shape.dim for shape in SHAPES.values()} >= {1, 2, 5, 10, 20, 50, 200, 500}


def test_cells_and_a_name_that_is_not_there() -> None:
    some = cells(VERDICT.settings, ("t3-2",), ("nuts",))
    assert [cell.piece for cell in some] == [("t3-2", "nuts")]
    names = [cell.name for cell in cells(VERDICT.settings)]
    assert len(set(names)) == len(names) == len(METHODS) * len(ALL_SHAPES)
    with pytest.raises(ValueError, match="there is no shape 'torus'"):
        cells(VERDICT.settings, ("torus",))
    with pytest.raises(ValueError, match="there is no method 'gibbs'"):
        cells(VERDICT.settings, (), ("gibbs",))


def test_counts() -> None:
    rows = [
        ("tails", 0.02, 0.02, True, True),
        ("tails", 0.02, 0.02, False, True),
        ("tails", 0.02, 0.2, False, False),
        ("modes", 0.2, 0.02, True, False),
    ]
    names = ["kind", "mean_error", "sd_error", "good", "regular"]
    table = pd.DataFrame(rows, columns=names).assign(method="scoreascent")
    assert judged(table)["right"].tolist() == [True, True, False, False]
    found = counts(table).set_index("kind")
    assert found.loc["all", "WRONG, GOOD"] == found.loc["modes", "WRONG, GOOD"] == 1
    assert found.loc["tails", ["right, good", "right, not good", "wrong, not good"]].tolist() == [
        1, 1, 1,
    ]  # fmt: skip
    assert found.loc["all", "regular, not good"] == 1


def test_before_and_after_counts_what_is_good_and_says_what_is_not() -> None:
    rows = [
        ("scoreascent", "t2-1", np.inf, np.inf, False, "no moments: the posterior has none"),
        ("scoreascent", "t3-1", 0.01, 0.02, True, "good"),
        ("scoreascent", "t3-1", 0.031, 0.049, True, "good"),
        ("nuts", "t3-1", 0.5, 0.5, True, "R̂ 1.000"),
    ]
    names = ["method", "shape", "mean_error", "sd_error", "good", "says"]
    table = judged(pd.DataFrame(rows, columns=names))
    lines = before_and_after(table).splitlines()
    assert len(lines) == 3  # the header, a rule, and the one case that has fits
    assert lines[2].endswith(
        "| good: a finite sd | 2: mean 0.03, log sd 0.05 "
        "| 1, 0 right: mean ∞, log sd ∞; no moments (1) |"
    )
    assert {name for case in CASES for name in case.shapes} <= set(ALL_SHAPES)


def test_a_peer_keeps_its_compiled_code_between_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, begun = SHAPES["normal-1"], []

    def begin(entry: object, target: sa.Target) -> Callable[[int], Callable[[], Fit]]:
        begun.append(target)
        z = np.array([[-1.0], [1.0]])
        return lambda seed: lambda: Fit(np.full(1, float(seed)), np.ones(1), z, None, 0, 0)

    monkeypatch.setattr(bench, "peer", lambda name: Peer(begin, "", "o", "k"))
    fit = bench._by_peer("any")
    target, other = (sa.Target(SHAPES[name].log_density, dim=1) for name in ("normal-1", "t3-1"))
    assert [fit(shape, target, seed)["mean_error"] for seed in range(3)] == [0.0, 1.0, 2.0]
    assert len(begun) == 1
    fit(shape, other, 0)
    assert len(begun) == 2


@pytest.mark.parametrize("number", range(9))
def test_random_shapes_have_their_moments(number: int) -> None:
    """Against a long chain of exact draws where there are some, or importance weights of them."""
    shape = random_shape(number)
    rng, n = np.random.default_rng(number), 150_000
    cov = np.diag((1.5 * shape.sd) ** 2)
    z = rng.multivariate_normal(shape.mean, cov, n)
    t = rng.chisquare(5, n) / 5
    z = shape.mean + (z - shape.mean) / np.sqrt(t)[:, None]
    log_p = np.asarray(jax.jit(jax.vmap(shape.log_density))(jnp.asarray(z, jnp.float32)), float)
    away = np.sum(((z - shape.mean) / (1.5 * shape.sd)) ** 2, 1)
    log_w = log_p + 0.5 * (5 + shape.dim) * np.log1p(away / 5)
    w = np.exp(log_w - log_w.max())
    ess = w.sum() ** 2 / np.sum(w**2)
    if ess < 2000:
        pytest.skip(f"only {ess:.0f} effective draws: this one has narrow parts")
    mean = w @ z / w.sum()
    found = errors(shape, mean, np.sqrt(w @ (z - mean) ** 2 / w.sum()))
    assert found["mean_error"] < 5 / np.sqrt(ess) + 0.005
    assert found["sd_error"] < 8 / np.sqrt(ess) + 0.01


def test_random_shapes_are_of_three_kinds_and_some_are_regular() -> None:
    shapes = [random_shape(i) for i in range(30)]
    assert {shape.kind for shape in shapes} == {
        "random mixture", "random transform", "random regression"
    }  # fmt: skip
    assert 10 <= sum(shape.regular for shape in shapes) <= 20


@pytest.mark.slow
@settings(deadline=None, max_examples=12, derandomize=True, database=None)
@given(number=st.integers(100, 10_000))
def test_no_random_shape_is_wrong_and_called_good(number: int) -> None:
    shape = random_shape(number)
    target = sa.Target(shape.log_density, dim=shape.dim)
    row = judged(pd.DataFrame([METHODS["scoreascent"](shape, target, 0)])).iloc[0]
    assert row["right"] or not row["good"], (number, row.to_dict())


# -- what the stored table shows -------------------------------------------------------------------

STORED = Path(__file__).parents[1] / "docs" / "results" / "verdict"


@pytest.fixture(scope="module")
def stored() -> pd.DataFrame:
    return judged(pd.read_parquet(STORED / "table.parquet"))


def test_the_stored_table_is_whole(stored: pd.DataFrame) -> None:
    ours = stored[stored["method"] == "scoreascent"]
    assert set(ours["shape"]) == set(ALL_SHAPES)
    assert set(ours.groupby("shape")["seed"].nunique()) == {5}


def test_the_page_shows_the_stored_counts(stored: pd.DataFrame) -> None:
    page = (STORED.parents[1] / "verdict.md").read_text(encoding="utf-8")
    found = counts(stored)
    for row in found.itertuples(index=False):  # of others, their totals
        if row.method == "scoreascent" or row.kind == "all":
            assert "| " + " | ".join(map(str, row)) + " |" in page
    assert before_and_after(stored) in page
