"""Families against scipy, against each other, and against the definition of their matching step.

tests/test_contract.py has what every row of the registry owes; here are the closed forms. Oracles
are scipy's densities and plain float64 numpy; the step of `match` is held against the natural
gradient, which autodiff gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import scoreascent as sa
from scoreascent.families import FewDirections, _numbers
from scoreascent.theory import gaussian_kl
from tests.helpers import pytree, x64
from tests.registry import AFFINE, FAMILIES, MATCHED, quick_rows
from tests.stats import Z_MAX, Z_MUTANT, quick_jit, z_score

each_family = pytest.mark.parametrize(
    "family", quick_rows(FAMILIES, "full-rank", "full-rank-student-t", "flow")
)
each_matched = pytest.mark.parametrize(
    "family", quick_rows(MATCHED, "full-rank", "full-rank-student-t")
)
GAUSSIANS = ["mean-field", "full-rank", "low-rank"]
STUDENTS = ["student-t", "full-rank-student-t"]


def member(family: str, dim: int = 3, dtype: Any = jnp.float64) -> Any:
    """The registry's member, in this dtype; call it under x64 for float64."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), FAMILIES[family](dim))


def flat(q: Any) -> Any:
    return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(q)])


def points(q: Any, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points that are not q's own, and weights."""
    rng = np.random.default_rng(seed)
    z = 0.4 + np.asarray(q.mean) + rng.normal(size=(n, q.dim)) * [1.7, 0.6, 1.1][: q.dim]
    z[:, 0] += 0.8 * z[:, -1]
    return z, rng.dirichlet(np.ones(n))


# -- densities -----------------------------------------------------------------------------------


def scipy_log_prob(q: Any, z: np.ndarray) -> np.ndarray:
    mean, cov = np.asarray(q.mean), np.asarray(q.cov)
    match q:
        case sa.StudentT():
            scale = np.asarray(q.sd) * np.sqrt((q.df - 2) / q.df)
            return np.sum(scipy.stats.t.logpdf(z, q.df, mean, scale), -1)
        case sa.FullRankStudentT():
            shape = cov * (q.df - 2) / q.df
            return scipy.stats.multivariate_t.logpdf(z, mean, shape, q.df)
        case sa.Mixture():
            parts = [
                np.log(w) + scipy.stats.multivariate_normal.logpdf(z, m, t @ t.T)
                for w, m, t in zip(*(np.asarray(x) for x in (q.weights, q.loc, q.tril)))
            ]
            return np.logaddexp.reduce(parts)
        case sa.Flow():
            return np.array([by_jacobian(q, x) for x in z])
        case _:
            return scipy.stats.multivariate_normal.logpdf(z, mean, cov)


def by_jacobian(q: Any, z: np.ndarray) -> float:
    """The density of T(ε) at z: that of ε = T⁻¹(z), less log |det T'(ε)| by autodiff."""
    noise, _ = q.inverse(jnp.asarray(z))
    np.testing.assert_allclose(q.transport(noise), z, rtol=1e-9, atol=1e-9)
    log_det = np.linalg.slogdet(jax.jacobian(q.transport)(noise))[1]
    return float(np.sum(scipy.stats.norm.logpdf(noise)) - log_det)


@each_family
def test_log_density_is_scipys(family: str) -> None:
    with x64():
        q = member(family)
        z, _ = points(q, 6)
        z[0] *= 30  # far out
        ours = np.asarray(jax.vmap(q.log_prob)(jnp.asarray(z)))
        np.testing.assert_allclose(ours, scipy_log_prob(q, z), rtol=1e-12)
    near = [FAMILIES[family](3).log_prob(jnp.asarray(x, jnp.float32)) for x in z[1:3]]
    np.testing.assert_allclose(near, ours[1:3], rtol=1e-5)


@pytest.mark.parametrize("family", quick_rows(AFFINE, "full-rank", "full-rank-student-t"))
def test_density_is_that_of_the_transported_noise(family: str) -> None:
    """T_λ is affine, so what it makes of the base noise is known in closed form."""
    with x64():
        q = member(family)
        noise = q.noise(jax.random.key(0))
        assert noise.shape == (q.dim + getattr(q, "rank", 0),)
        assert noise.dtype == q.loc.dtype
        origin = np.asarray(q.transport(jnp.zeros_like(noise)))
        jacobian = np.asarray(jax.jacobian(q.transport)(noise))
        np.testing.assert_allclose(q.transport(noise), origin + jacobian @ noise, rtol=1e-12)
        scale = jacobian @ jacobian.T
        z = np.asarray(q.transport(noise))
        if family == "student-t":
            np.testing.assert_allclose(jacobian, np.diag(np.diag(jacobian)))
            expected = np.sum(scipy.stats.t.logpdf(z, q.df, origin, np.diag(jacobian)))
        elif family == "full-rank-student-t":
            expected = scipy.stats.multivariate_t.logpdf(z, origin, scale, q.df)
        else:
            expected = scipy.stats.multivariate_normal.logpdf(z, origin, scale)
        np.testing.assert_allclose(q.log_prob(q.transport(noise)), expected, rtol=1e-12)


@pytest.mark.parametrize("family", quick_rows(STUDENTS, "full-rank-student-t"))
def test_base_noise_is_student_t(family: str) -> None:
    """By the Kolmogorov distance of each number, which a Gaussian or another df would not pass."""
    q = FAMILIES[family](2)
    noise = np.asarray(jax.vmap(q.noise)(jax.random.split(jax.random.key(3), 60_000)))
    bound = 2.2 / np.sqrt(len(noise))  # exceeded once in 10⁴
    distance = lambda law: max(  # noqa: E731
        scipy.stats.kstest(noise[:, i], law).statistic for i in range(2)
    )
    assert distance(scipy.stats.t(q.df).cdf) < bound
    assert distance(scipy.stats.norm.cdf) > 1.3 * bound
    assert distance(scipy.stats.t(4).cdf) > 1.3 * bound
    # the squares of spherical noise go together, those of independent noise do not
    together = np.corrcoef(np.argsort(np.argsort(noise**2, 0), 0).T)[0, 1]
    if family == "student-t":
        assert abs(together) < 5 / np.sqrt(len(noise))
    else:
        assert together > 0.05


@each_family
def test_score_is_that_of_finite_differences(family: str) -> None:
    with x64():
        q = member(family)
        z = jnp.asarray(points(q, 1)[0][0])
        leaves, tree = jax.tree.flatten(q)
        score = jax.grad(lambda q: q.log_prob(z))(q)
        log_prob = jax.jit(lambda *leaves: tree.unflatten(leaves).log_prob(z))
        for k, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(score), strict=True)):
            for index in np.ndindex(leaf.shape):
                ends = []
                for h in (1e-5, -1e-5):
                    moved = [*leaves[:k], leaf.at[index].add(h), *leaves[k + 1 :]]
                    ends.append(float(log_prob(*moved)))
                np.testing.assert_allclose(
                    slope[index], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8
                )


def test_scores_in_closed_form() -> None:
    """∇_loc: Σ⁻¹(z − loc) for a Gaussian, (ν + d)/(ν + δ) times the scale's for a t."""
    with x64():
        for family in AFFINE:
            q = member(family)
            z = points(q, 1)[0][0]
            score = np.asarray(jax.grad(lambda q, z: q.log_prob(z))(q, jnp.asarray(z)).loc)
            off, cov = z - np.asarray(q.loc), np.asarray(q.cov)
            if family in GAUSSIANS:
                expected = np.linalg.solve(cov, off)
            else:
                scale = cov * (q.df - 2) / q.df
                pull = np.linalg.solve(scale, off)
                many = family == "full-rank-student-t"
                delta = off @ pull if many else off * pull
                expected = pull * (q.df + (q.dim if many else 1)) / (q.df + delta)
            np.testing.assert_allclose(score, expected, rtol=1e-9)


def test_nothing_above_the_diagonal_counts() -> None:
    raw = jnp.array([[0.3, 9.0], [-0.7, 0.1]])
    for make in (sa.FullRank, sa.FullRankStudentT):
        q = make(jnp.zeros(2), raw)
        assert q.raw[0, 1] == 0
        spoilt = jax.tree.map(lambda x: x, q)
        object.__setattr__(spoilt, "raw", raw)  # as an optimiser might
        z = jnp.array([0.4, -1.0])
        assert spoilt.log_prob(z) == q.log_prob(z)
        assert jax.grad(lambda q, z: q.log_prob(z))(spoilt, z).raw[0, 1] == 0
        moved = spoilt.match(jnp.eye(2), jnp.array([0.5, 0.5]), 0.3)
        assert moved.raw[0, 1] == 0


def test_low_rank_is_the_full_rank_of_its_covariance() -> None:
    with x64():
        low = member("low-rank", 6)
        full = sa.FullRank.from_moments(low.mean, low.cov)
        z = jnp.asarray(np.random.default_rng(0).normal(size=(5, 6)))
        both = [np.asarray(jax.vmap(q.log_prob)(z)) for q in (low, full)]
        np.testing.assert_allclose(both[0], both[1], rtol=1e-12)
        np.testing.assert_allclose(low.sd, full.sd, rtol=1e-12)


def test_low_rank_density_where_the_factor_explains_nearly_all() -> None:
    """‖x‖² − ‖…‖² would keep no digit of this in float32; the factor is 10⁴ times the diagonal."""
    rng = np.random.default_rng(0)
    factor, own = rng.normal(size=(40, 2)), 1e-4 * rng.uniform(0.5, 2, 40)
    z = factor @ [0.8, -1.1] + own * rng.normal(size=40)
    omega = np.log(np.expm1(own))
    arrays = [np.zeros(40), factor, omega]
    q = sa.LowRank(*(jnp.asarray(x, jnp.float32) for x in arrays))
    with x64():
        exact = sa.LowRank(*map(jnp.asarray, arrays)).log_prob(jnp.asarray(z))
        # of the float32 z, whose rounding alone is a large part of a diagonal standard deviation
        exact = sa.LowRank(*(x.astype(jnp.float64) for x in jax.tree.leaves(q))).log_prob(
            jnp.asarray(z.astype(np.float32), jnp.float64)
        )
    np.testing.assert_allclose(q.log_prob(jnp.asarray(z, jnp.float32)), exact, rtol=1e-3)


# -- large dimensions ----------------------------------------------------------------------------


def largest(jaxpr: Any) -> int:
    """The number of entries of the largest array that a traced function makes, inside and out."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in equation.outvars if hasattr(v.aval, "shape")]
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                sizes.append(largest(inner))
    return max(sizes)


def everything(q: Any, key: Any, n: int) -> Any:
    z = q.sample(key, (n,))
    weight = jnp.full(n, 1 / n, z.dtype)
    loss = lambda q: jnp.mean(jax.vmap(q.log_prob)(z))  # noqa: E731
    moved = q.match(z, weight, 0.1)
    return jax.value_and_grad(loss)(q), moved, sa.kl(moved, q), moved.sd


def test_low_rank_is_linear_in_the_dimension() -> None:
    """d = 10⁴: draws, density, score, step and KL make nothing larger than points or columns."""
    d, n, rank = 10_000, 20, 4
    q = sa.LowRank.standard(d, rank)
    trace = jax.make_jaxpr(everything, static_argnums=2)(q, jax.random.key(0), n)
    assert largest(trace.jaxpr) == d * (n + rank + 1)
    assert largest(jax.make_jaxpr(lambda q: q.cov)(q).jaxpr) == d * d
    (loss, score), moved, far, sd = jax.jit(everything, static_argnums=2)(q, jax.random.key(0), n)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((loss, score, moved, far)))
    assert abs(float(jnp.mean(sd)) - 1) < 0.02
    np.testing.assert_allclose(loss, -0.5 * d * np.log(2 * np.pi * np.e), rtol=0.01)


# -- KL ------------------------------------------------------------------------------------------


def other(family: str) -> Any:
    """A member other than the registry's."""
    return jax.tree.map(lambda x: 1.2 * x + 0.15, member(family))


@pytest.mark.parametrize("p_family", quick_rows(GAUSSIANS, "full-rank"))
@pytest.mark.parametrize("q_family", quick_rows(GAUSSIANS, "full-rank"))
def test_kl_is_the_theorys(p_family: str, q_family: str) -> None:
    with x64():
        p, q = member(p_family), other(q_family)
        expected = gaussian_kl(p.mean, p.cov, q.mean, q.cov)
        assert expected > 0.1
        np.testing.assert_allclose(sa.kl(p, q), expected, rtol=1e-10)
        assert abs(float(sa.kl(p, p))) < 1e-12
        assert abs(float(sa.kl(q, p)) / expected - 1) > 0.05  # it has a direction


@pytest.mark.slow
def test_kl_is_the_mean_log_ratio() -> None:
    p, q = FAMILIES["low-rank"](3), FAMILIES["full-rank"](3)
    q = jax.tree.map(lambda x: 1.5 * x + 0.4, q)
    z = p.sample(jax.random.key(0), (20_000,))
    ratio = jax.vmap(lambda z: p.log_prob(z) - q.log_prob(z))(z)
    assert z_score(ratio, sa.kl(p, q)) < Z_MAX
    assert z_score(ratio, sa.kl(q, p)) > Z_MUTANT
    slope = jax.grad(lambda q: sa.kl(p, q))(q)
    scores = jax.vmap(lambda z: -flat(jax.grad(lambda q: q.log_prob(z))(q)))(z)
    assert z_score(scores, flat(slope)) < Z_MAX


def test_kl_of_what_has_no_closed_form() -> None:
    q, t = sa.MeanField.standard(2), sa.StudentT.standard(2)
    for name, pair in {"p": (t, q), "q": (q, t)}.items():
        with pytest.raises(ValueError, match=rf"^{name} must be a MeanField.*no closed form"):
            sa.kl(*pair)
    with pytest.raises(ValueError, match="the same dimension, got 2 and 3"):
        sa.kl(q, sa.FullRank.standard(3))


# -- match: the definition -----------------------------------------------------------------------


def moments(q: Any, z: Any, weight: Any, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (1 − γ)θ + γ Σ w T(z), straight from the raw second moments."""
    mean, cov = np.asarray(q.mean), np.asarray(q.cov)
    new = (1 - rate) * mean + rate * weight @ z
    second = (1 - rate) * (cov + np.outer(mean, mean)) + rate * (z.T * weight) @ z
    return new, second - np.outer(new, new)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("family", quick_rows(GAUSSIANS, "full-rank"))
def test_match_moves_the_expectation_parameters(family: str, rate: float) -> None:
    with x64():
        q = member(family)
        z, weight = points(q, 12)
        mean, cov = moments(q, z, weight, rate)
        moved = q.match(jnp.asarray(z), jnp.asarray(weight), rate)
        assert type(moved) is type(q)
        np.testing.assert_allclose(moved.mean, mean, rtol=1e-12)
        np.testing.assert_allclose(moved.sd, np.sqrt(np.diag(cov)), rtol=1e-12)
        if family == "full-rank":
            np.testing.assert_allclose(moved.cov, cov, rtol=1e-12, atol=1e-13)
        if family == "low-rank":
            own = np.asarray(q.own_sd)
            assert np.all(moved.own_sd >= np.sqrt(1 - rate) * own * (1 - 1e-12))
        if rate == 1:  # nothing is left of q: the moments of the weighted points
            np.testing.assert_allclose(moved.mean, weight @ z, rtol=1e-12)
            sample = np.cov(z.T, aweights=weight, ddof=0)
            np.testing.assert_allclose(moved.sd**2, np.diag(sample), rtol=1e-10)


@pytest.mark.slow
def test_low_rank_match_is_the_best_factor_for_its_diagonal() -> None:
    """No factor near it, in any direction, is nearer in KL to the matched covariance."""
    with x64():
        q = member("low-rank", 6)
        rng = np.random.default_rng(0)
        for n in (4, 30):  # fewer and more than dimensions: two ways to the same directions
            z, weight = rng.normal(size=(n, 6)) @ rng.normal(size=(6, 6)), rng.dirichlet(np.ones(n))
            _, cov = moments(q, z, weight, 0.3)
            moved = q.match(jnp.asarray(z), jnp.asarray(weight), 0.3)
            wide = sa.FullRank.from_moments(q.mean, cov)

            def loss(factor: Any) -> Any:
                return sa.kl(wide, sa.LowRank(q.mean, factor, q.omega))  # noqa: B023

            slope = jax.grad(loss)(moved.factor)
            np.testing.assert_allclose(slope, 0, atol=1e-10)
            assert np.max(np.abs(jax.grad(loss)(q.factor))) > 0.01
            for scale in 0.1 * rng.normal(size=(20, 6, 2)):
                assert loss(moved.factor + scale) > loss(moved.factor)


@each_matched
def test_match_of_a_vanishing_step_changes_nothing(family: str) -> None:
    """The leaves move continuously, the low-rank factor's columns too, so averages make sense."""
    with x64():
        q = member(family, 5)
        z = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)))
        for rate in (1e-3, 1e-6):
            moved = q.match(z, jnp.full(8, 1 / 8), rate)
            off = np.max(np.abs(flat(moved) - flat(q)))
            assert 0.01 * rate < off < 100 * rate


# -- match: the natural gradient -----------------------------------------------------------------


def fisher(q: Any, n: int = 0) -> np.ndarray:
    """E_q[s sᵀ]. For Gaussians exactly, as the Hessian of KL(q₀‖q); for t by quadrature."""
    leaves, tree = jax.tree.flatten(q)
    shapes = [x.shape for x in leaves]

    def build(vector: Any) -> Any:
        parts = np.cumsum([0] + [int(np.prod(s)) for s in shapes])
        return tree.unflatten(
            [vector[a:b].reshape(s) for a, b, s in zip(parts, parts[1:], shapes, strict=False)]
        )

    if isinstance(q, sa.MeanField | sa.FullRank | sa.LowRank):
        cov, mean = q.cov, q.mean

        def twice(vector: Any) -> Any:
            other = build(vector)
            inverse = jnp.linalg.inv(other.cov)
            off = mean - other.mean
            return jnp.trace(inverse @ cov) + off @ inverse @ off + jnp.linalg.slogdet(other.cov)[1]

        return np.asarray(0.5 * jax.hessian(twice)(flat(q)))
    # x = tan-like grid of a two-dimensional integral over t noise
    axis = np.linspace(-7, 7, 161)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    z = np.asarray(q.mean) + np.sinh(grid)
    score = np.asarray(
        jax.vmap(lambda z: flat(jax.grad(lambda q: q.log_prob(z))(q)))(jnp.asarray(z))
    )
    mass = np.exp(np.asarray(jax.vmap(q.log_prob)(jnp.asarray(z)))) * np.cosh(grid).prod(-1)
    return (score.T * mass) @ score * (axis[1] - axis[0]) ** 2


def direction(q: Any, z: Any, weight: Any, rate: float = 1e-7) -> np.ndarray:
    """The step of `match` divided by its length."""
    moved = q.match(jnp.asarray(z), jnp.asarray(weight), rate)
    return np.asarray(flat(moved) - flat(q)) / rate


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in AFFINE if f != "low-rank"])
def test_match_is_the_natural_gradient(family: str) -> None:
    """F Δλ = γ ∇ Σ w log q(z): at every λ for exponential families, times (ν+d)/(ν+d+2) for t."""
    with x64():
        q = member(family, 2)
        z, weight = points(q, 9)

        def objective(q: Any) -> Any:
            return jnp.asarray(weight) @ jax.vmap(q.log_prob)(jnp.asarray(z))

        gradient = np.asarray(flat(jax.grad(objective)(q)))
        step = direction(q, z, weight)
        many = {"student-t": 1, "full-rank-student-t": q.dim}.get(family)
        short = 1 if many is None else (q.df + many) / (q.df + many + 2)
        np.testing.assert_allclose(fisher(q) @ step, short * gradient, rtol=1e-5, atol=1e-5)
        # mutants: a plain gradient step, and weights that went with other points
        assert not np.allclose(step, short * gradient, rtol=0.1)
        wrong = direction(q, z, weight[::-1].copy())
        assert not np.allclose(fisher(q) @ wrong, short * gradient, rtol=0.05, atol=0.05)


def test_low_rank_match_descends_and_rests_where_the_gradient_does() -> None:
    """Exact moments of a Gaussian π, given as points: there the step is deterministic."""
    with x64():
        rng = np.random.default_rng(1)
        columns = rng.normal(size=(6, 3)) * [1.5, 1.0, 0.3]  # one more than q has
        root = np.linalg.cholesky(columns @ columns.T + np.diag(rng.uniform(0.5, 1.5, 6)))
        mean = rng.normal(size=6)
        ends = np.sqrt(6) * np.concatenate([root.T, -root.T])  # their moments are π's
        z, weight = jnp.asarray(mean + ends), jnp.full(12, 1 / 12)
        pi = sa.FullRank.from_moments(mean, root @ root.T)
        q = sa.LowRank.standard(6, 2)

        @jax.jit
        def run(q: Any) -> Any:
            def step(q: Any, _: Any) -> Any:
                q = q.match(z, weight, 0.3)
                return q, sa.kl(pi, q)

            return jax.lax.scan(step, q, length=3000)

        q, losses = run(q)
        assert losses[0] - losses[-1] > 0.1
        assert np.all(np.diff(losses) < 1e-6)
        np.testing.assert_allclose(q.mean, mean, rtol=1e-8)
        np.testing.assert_allclose(q.sd, pi.sd, rtol=1e-8)
        slope = np.asarray(flat(jax.grad(lambda q: sa.kl(pi, q))(q)))
        np.testing.assert_allclose(slope, 0, atol=1e-8)
        # the mutant: leading directions that keep the variance which the diagonal explains too
        spoilt = jax.tree.map(lambda x: x, q)
        object.__setattr__(spoilt, "factor", 1.1 * q.factor)
        assert np.max(np.abs(flat(jax.grad(lambda q: sa.kl(pi, q))(spoilt)))) > 0.01


@functools.cache
def student_draws() -> np.ndarray:
    rng = np.random.default_rng(7)
    return scipy.stats.multivariate_t.rvs(
        [0.5, -1.0], [[1.0, 0.5], [0.5, 0.7]], 8, size=40_000, random_state=rng
    )


@pytest.mark.parametrize("family", quick_rows(STUDENTS, "full-rank-student-t"))
def test_student_match_rests_at_the_optimum(family: str) -> None:
    """π is a multivariate t: the optimum is π itself, or the product of its marginals."""
    with x64():
        shape = np.array([[1.0, 0.5], [0.5, 0.7]])
        cov = shape * 8 / 6
        if family == "student-t":
            q = sa.StudentT.from_moments([0.5, -1.0], np.sqrt(np.diag(cov)), df=8)
        else:
            q = sa.FullRankStudentT.from_moments([0.5, -1.0], cov, df=8)
        each = quick_jit(jax.vmap(lambda z: flat(q.match(z[None], jnp.ones(1), 1e-6)) - flat(q)))
        steps = np.asarray(each(jnp.asarray(student_draws()))) / 1e-6
        steps = steps[:, np.std(steps, 0) > 1e-6]  # nothing above the diagonal moves
        assert z_score(steps, 0.0) < Z_MAX
        wide = jax.tree.map(lambda x: x, q)
        object.__setattr__(wide, "df", 30.0)  # the mutant: weights of another df
        each = quick_jit(
            jax.vmap(lambda z: flat(wide.match(z[None], jnp.ones(1), 1e-6)) - flat(wide))
        )
        steps = np.asarray(each(jnp.asarray(student_draws()))) / 1e-6
        assert z_score(steps[:, np.std(steps, 0) > 1e-6], 0.0) > Z_MUTANT


@pytest.mark.parametrize("family", quick_rows(STUDENTS, "full-rank-student-t"))
def test_student_match_never_raises_the_loss(family: str) -> None:
    """Full EM steps on fixed points, down to where the gradient of their likelihood vanishes."""
    with x64():
        q = member(family)
        z, weight = (jnp.asarray(x) for x in points(q, 15))
        loss = jax.jit(lambda q: -weight @ jax.vmap(q.log_prob)(z))
        step = jax.jit(lambda q: q.match(z, weight, 1.0))
        losses = [float(loss(q))]
        for _ in range(60):
            q = step(q)
            losses.append(float(loss(q)))
        assert np.all(np.diff(losses) < 1e-12)
        assert losses[0] - losses[-1] > 0.05
        np.testing.assert_allclose(flat(jax.grad(loss)(q)), 0, atol=1e-6)


# -- match: floating point -----------------------------------------------------------------------


@each_matched
@pytest.mark.parametrize("bad", [jnp.inf, jnp.nan, 1e30])
def test_match_ignores_points_without_weight(family: str, bad: float) -> None:
    q = FAMILIES[family](3)
    z, weight = (jnp.asarray(x, jnp.float32) for x in points(q, 6))
    weight = weight.at[2].set(0) / (1 - weight[2])
    step = jax.jit(lambda z, weight: q.match(z, weight, 0.2))
    moved = step(z.at[2].set(bad), weight)
    assert np.all(np.isfinite(flat(moved)))
    np.testing.assert_array_equal(flat(moved), flat(step(z, weight)))
    assert not np.all(np.isfinite(flat(step(z.at[1].set(jnp.nan), weight))))


@pytest.mark.slow
@each_matched
def test_match_compiled_vmapped_and_in_float32(family: str) -> None:
    q = FAMILIES[family](3)
    z, weight = points(q, 10)
    ours = [jnp.asarray(x, jnp.float32) for x in (z, weight)]
    rates = jnp.array([0.05, 0.6])
    many = jax.jit(jax.vmap(lambda rate: q.match(*ours, rate)))(rates)
    for i, rate in enumerate((0.05, 0.6)):
        with x64():
            exact = member(family).match(jnp.asarray(z), jnp.asarray(weight), rate)
            mean, cov = np.asarray(exact.mean), np.asarray(exact.cov)
            under = q.match(*ours, jnp.float64(rate))  # a rate of 64 bits does not widen q
        eager = q.match(*ours, rate)
        one = jax.tree.map(lambda x: x[i], many)  # noqa: B023
        for moved in (eager, one, under):
            assert {x.dtype for x in jax.tree.leaves(moved)} == {jnp.dtype(jnp.float32)}
            np.testing.assert_allclose(moved.cov, cov, rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(moved.mean, mean, rtol=2e-5, atol=2e-6)
    pair = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), q)
    both = jax.vmap(lambda q: q.match(*ours, 0.3))(pair)
    np.testing.assert_allclose(
        jax.tree.map(lambda x: x[0], both).cov, q.match(*ours, 0.3).cov, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@each_matched
def test_q_stays_a_distribution_in_float32(family: str) -> None:
    """10⁴ random steps of γ = 0.1 towards points whose covariance has condition number 10⁶."""
    dim, n = 6, 12
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    root = jnp.asarray(turn * np.logspace(0, -3, dim), jnp.float32)
    q = jax.tree.map(lambda x: x, FAMILIES[family](dim))

    @jax.jit
    def run(q: Any, key: Any) -> Any:
        def step(q: Any, key: Any) -> Any:
            z = jax.random.normal(key, (n, dim)) @ root.T
            q = q.match(z, jnp.full(n, 1 / n), 0.1)
            return q, jnp.log(q.sd)

        return jax.lax.scan(step, q, jax.random.split(key, 10_000))

    q, log_sd = run(q, jax.random.key(0))
    exact = np.sqrt(np.diag(np.asarray(root, np.float64) @ np.asarray(root, np.float64).T))
    assert np.all(np.isfinite(log_sd))
    assert np.all(np.isfinite(jax.vmap(q.log_prob)(q.sample(jax.random.key(1), (10,)))))
    if family in GAUSSIANS:  # unbiased but for the noise of a constant step
        np.testing.assert_allclose(np.mean(log_sd[1000:], 0), np.log(exact), atol=0.05)
    if family == "full-rank":
        values = np.linalg.eigvalsh(np.asarray(q.cov, np.float64))
        assert 1e5 < values[-1] / values[0] < 1e7


def test_points_far_out_do_not_break_a_full_rank_step() -> None:
    """10⁵ standard deviations away, rounding of YᵀY outweighs the identity's 1 − γ."""
    z = jnp.asarray(1e5 * np.random.default_rng(0).normal(size=(20, 30)), jnp.float32)
    moved = sa.FullRank.standard(30).match(z, jnp.full(20, 0.05), 0.5)
    assert np.all(np.isfinite(flat(moved)))
    assert np.all(jnp.diagonal(moved.tril) > 0)
    # and with γ = 1, points fewer than dimensions still make a distribution
    moved = sa.FullRank.standard(30).match(z / 1e5, jnp.full(20, 0.05), 1.0)
    assert np.all(np.isfinite(flat(moved)))
    np.testing.assert_allclose(moved.sd, np.std(z / 1e5, 0), rtol=1e-3)


def test_the_ridge_is_the_identitys_unless_points_are_far_out() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4))
    with x64():
        factor = np.asarray(_numbers.matched_factor(jnp.asarray(rows), jnp.asarray(0.25)))
        np.testing.assert_allclose(factor @ factor.T, 0.75 * np.eye(4) + rows.T @ rows, rtol=1e-14)


# -- by its factor -------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 5])
def test_a_full_rank_member_by_its_factor(dim: int) -> None:
    """A round trip, also for scales from 10⁻⁴ to 10⁴; what is above the diagonal does not count."""
    with x64():
        rng = np.random.default_rng(dim)
        scale = np.geomspace(1e-4, 1e4, dim)
        tril = scale[:, None] * (np.tril(rng.normal(size=(dim, dim)), -1) + np.eye(dim))
        q = sa.FullRank.from_factor(np.arange(float(dim)), tril)
        np.testing.assert_allclose(q.tril, tril, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(q.cov, tril @ tril.T, rtol=1e-9)
        np.testing.assert_array_equal(q.mean, np.arange(dim))
        above = sa.FullRank.from_factor(q.mean, tril + np.triu(np.ones((dim, dim)), 1))
        np.testing.assert_array_equal(above.tril, q.tril)
        again = sa.FullRank.from_factor(q.mean, q.tril)
        np.testing.assert_allclose(again.raw, q.raw, rtol=1e-9, atol=1e-12)
        moments = sa.FullRank.from_moments(q.mean, q.cov)
        z = tril @ np.linspace(-1, 1, dim)
        np.testing.assert_allclose(moments.log_prob(z), q.log_prob(z), rtol=1e-6)


# -- starts and bad input ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fresh_low_rank_member_is_not_at_a_saddle() -> None:
    """Its marginals are what they should be, and no column has or keeps another's gradient."""
    q = sa.LowRank.from_moments([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], rank=3)
    np.testing.assert_allclose(q.sd, [1, 2, 3, 4], rtol=1e-6)
    z = jax.random.normal(jax.random.key(0), (6, 4))
    loss = lambda q: jnp.mean(jax.vmap(q.log_prob)(z))  # noqa: E731
    slope = jax.grad(loss)(q).factor
    assert np.all(np.max(np.abs(slope), 0) > 1e-3)
    gram = np.asarray(q.factor / q.sd[:, None]).T @ np.asarray(q.factor / q.sd[:, None])
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-6)
    flat_start = sa.LowRank(q.loc, 0 * q.factor, q.omega)
    np.testing.assert_array_equal(jax.grad(loss)(flat_start).factor, 0)  # the saddle


@pytest.mark.parametrize(
    "make",
    [sa.FullRank.standard, sa.LowRank.standard, sa.StudentT.standard, sa.FullRankStudentT.standard],
    ids=lambda f: f.__self__.__name__,
)
def test_standard_members(make: Callable[..., Any]) -> None:
    for dim in (1, 4):
        q = make(dim, scale=2.5)
        assert q.dim == dim
        assert q.loc.dtype == jnp.float32
        np.testing.assert_array_equal(q.mean, np.zeros(dim))
        np.testing.assert_allclose(q.sd, np.full(dim, 2.5), rtol=1e-6)
    with x64():
        assert {x.dtype for x in jax.tree.leaves(make(2, dtype=jnp.float32))} == {
            jnp.dtype("float32")
        }
        assert {x.dtype for x in jax.tree.leaves(make(2))} == {jnp.dtype("float64")}
    for dim in (0, 2.5, True):
        with pytest.raises(ValueError, match="dim must be an integer ≥ 1"):
            make(dim)
    for scale in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="scale must be positive"):
            make(2, scale=scale)


EYE = np.eye(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sa.FullRank([0.0, 0.0], [[1.0]]), r"loc and raw must .* got \(2,\).*\(1, 1\)"),
        (lambda: sa.FullRank([0.0], [0.0]), "raw must be a matrix"),
        (lambda: sa.FullRank([np.nan], [[0.0]]), "loc must be finite"),
        (lambda: sa.FullRank([0.0], [[np.inf]]), "raw must be finite"),
        (lambda: sa.FullRank.from_factor([0, 0], -EYE), "tril must have a positive diagonal"),
        (lambda: sa.FullRank.from_factor([0, 0], 0 * EYE), "tril must have a positive diagonal"),
        (lambda: sa.FullRank.from_factor([0, 0, 0], EYE), "tril"),
        (lambda: sa.FullRank.from_factor([0, 0], np.ones((2, 3), np.float32)), "tril"),
        (lambda: sa.FullRank.from_moments([0, 0], -EYE), "positive definite.*eigenvalue is -1"),
        (
            lambda: sa.FullRank.from_moments([0, 0], np.ones((2, 2), np.float32)),
            "positive definite",
        ),
        (lambda: sa.FullRank.from_moments([0, 0], [[1, 0.5], [0.4, 1]]), "cov must be symmetric"),
        (lambda: sa.FullRank.from_moments([0, 0], np.ones((2, 3), np.float32)), "must be square"),
        (lambda: sa.FullRank.from_moments([0, 0, 0], EYE), "mean and cov must"),
        (lambda: sa.LowRank([0.0], [[1.0]], [0.0, 1.0]), "loc and factor and omega must"),
        (lambda: sa.LowRank([0.0, 1.0], [[1.0]], [0.0, 1.0]), "loc and factor and omega must"),
        (lambda: sa.LowRank.standard(3, 4), "rank must be at most the dimension 3, got 4"),
        (lambda: sa.LowRank.standard(3, 0), "rank must be an integer ≥ 1"),
        (lambda: sa.LowRank.from_moments([0.0], [-1.0]), "sd must be positive"),
        (lambda: sa.StudentT([0.0], [0.0], df=2), "df must be a number above 2.*got 2"),
        (lambda: sa.StudentT([0.0], [0.0], df=np.inf), "df must be a number above 2"),
        (lambda: sa.StudentT([0.0], [0.0], df="five"), "df must be a number above 2.*'five'"),
        (lambda: sa.StudentT([0.0], [0.0, 1.0]), "loc and omega must"),
        (lambda: sa.StudentT.from_moments([0.0], [0.0]), "sd must be positive"),
        (lambda: sa.StudentT.from_moments([0.0], [1.0], df=1), "df must be a number above 2"),
        (lambda: sa.FullRankStudentT.from_moments([0, 0], -EYE), "positive definite"),
        (lambda: sa.FullRankStudentT([0.0], [[0.0]], df=0), "df must be a number above 2"),
    ],
)
def test_bad_input(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_moments_round_trip() -> None:
    with x64():
        rng = np.random.default_rng(3)
        scale = 10.0 ** rng.uniform(-3, 3, 5)
        root = rng.normal(size=(5, 5)) * scale[:, None]
        mean, cov = rng.normal(size=5), root @ root.T
        for q in (
            sa.FullRank.from_moments(mean, cov),
            sa.FullRankStudentT.from_moments(mean, cov, df=3),
            jax.jit(sa.FullRank.from_moments)(mean, cov),
        ):
            np.testing.assert_array_equal(q.mean, mean)
            np.testing.assert_allclose(q.cov / np.outer(scale, scale), cov / np.outer(scale, scale),
                                       rtol=1e-9, atol=1e-9)  # fmt: skip
        for family in (sa.LowRank, sa.StudentT):
            np.testing.assert_allclose(family.from_moments(mean, scale).sd, scale, rtol=1e-9)


def test_df_is_not_a_leaf() -> None:
    q, wider = sa.StudentT.standard(2), sa.StudentT.standard(2, df=3)
    assert q.df == 5.0
    assert len(jax.tree.leaves(q)) == 2
    assert jax.tree.structure(q) != jax.tree.structure(wider)
    assert jax.tree.map(lambda x: 2 * x, wider).df == 3.0
    assert jax.grad(lambda q: q.log_prob(jnp.ones(2)))(wider).df == 3.0
    assert hash(jax.tree.structure(q)) == hash(jax.tree.structure(sa.StudentT.standard(2)))
    assert float(jax.jit(lambda q: q.sd[0])(sa.StudentT(q.loc, q.omega, df=50))) < float(q.sd[0])


def test_pytree_with_static_fields_keeps_the_keys_of_its_leaves() -> None:
    paths = [jax.tree_util.keystr(k) for k, _ in jax.tree.leaves_with_path(sa.StudentT.standard(1))]
    assert paths == [".loc", ".omega"]

    @pytree(static=("name",))
    @dataclass(frozen=True)
    class Named:
        x: Any
        name: str

    assert jax.tree.leaves(Named(1.0, "a")) == [1.0]
    assert jax.tree.structure(Named(1.0, "a")) != jax.tree.structure(Named(1.0, "b"))


@pytest.mark.slow
def test_families_fit_what_they_can_hold() -> None:
    """Through `fit` with plain gradients, with noise of d + r numbers in the ELBO."""
    target = sa.Target(lambda z: -0.5 * jnp.sum((z - 1.0) ** 2), dim=2)
    for method in (sa.elbo(4), sa.pmcsa(4)):
        for make in (sa.LowRank.standard, sa.FullRankStudentT.standard):
            q0 = make(2)
            result = sa.fit(target, method, q0=q0, steps=5, key=0, progress=False)
            assert type(result.q) is type(q0)
            for old, new in zip(jax.tree.leaves(q0), jax.tree.leaves(result.q), strict=True):
                assert not np.array_equal(old, new)


# -- a diagonal but for a few directions ---------------------------------------------------------


def few_directions(dim: int = 7) -> FewDirections:
    """A member whose directions are one wide and one narrow, and one that is neither."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(dim, 3)))[0]
    return FewDirections(
        jnp.asarray(rng.normal(size=dim)),
        jnp.asarray(np.geomspace(0.1, 10, dim)),
        jnp.asarray(basis),
        jnp.asarray([5.0, 0.2, 1.0]),
    )


def test_few_directions_are_the_gaussian_of_their_covariance() -> None:
    with x64():
        q = few_directions()
        same = sa.FullRank.from_moments(q.mean, q.cov)
        z = same.sample(jax.random.key(0), (20,))
        np.testing.assert_allclose(jax.vmap(q.log_prob)(z), jax.vmap(same.log_prob)(z), rtol=1e-9)
        np.testing.assert_allclose(q.sd, same.sd, rtol=1e-9)
        root = jax.jacobian(q.transport)(jnp.zeros(q.dim))
        np.testing.assert_allclose(root, q.root, atol=1e-12)
        np.testing.assert_allclose(root @ root.T, q.cov, atol=1e-9)
        assert not np.allclose(q.cov, np.diag(np.diagonal(q.cov)))


def test_plain_few_directions_are_a_diagonal() -> None:
    q = FewDirections.plain(jnp.zeros(4), jnp.array([1.0, 2.0, 3.0, 4.0]), 2)
    np.testing.assert_allclose(q.cov, np.diag([1.0, 4, 9, 16]), rtol=1e-6)


@pytest.mark.parametrize("dim", [5, 7])
def test_few_directions_must_fit_each_other(dim: int) -> None:
    with pytest.raises(ValueError, match="loc and unit and basis and stretch must"):
        FewDirections(jnp.zeros(6), jnp.ones(6), jnp.eye(dim, 2), jnp.ones(2))
