"""Triangular systems that are solved by matrix products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_triangular

from scoreascent._structs import x64
from scoreascent._triangles import inverse, solve
from tests.stats import quick_jit


def triangle(n: int, spread: float = 0.0) -> Any:
    """A lower triangle, whose rows differ in size by factors of about e^`spread`."""
    rng = np.random.default_rng(n)
    root = np.tril(rng.normal(size=(n, n))) / n**0.5 + np.diag(rng.uniform(0.7, 2, n))
    return root * np.exp(spread * rng.normal(size=(n, 1)))


@pytest.mark.parametrize("leaf", [1, 4, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 11, 16, 21])
def test_a_triangle_is_inverted_by_blocks(n: int, leaf: int) -> None:
    """One block, whole blocks, and a last block that has to be filled up; two at a time."""
    roots = np.stack([triangle(n), triangle(n) + np.eye(n)])
    with x64():
        found = quick_jit(jax.vmap(lambda root: inverse(root, leaf)))(jnp.asarray(roots))
    np.testing.assert_allclose(found, np.linalg.inv(roots), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("n", "spread"), [(1, 0.0), (3, 0.0), (20, 0.0), (60, 0.0), (20, 8.0)])
def test_systems_are_solved_as_well_as_by_substitution(n: int, spread: float) -> None:
    """In float32, scales of rows that differ by factors of millions among them."""
    root = triangle(n, spread).astype(np.float32)
    b = root.astype(float) @ np.random.default_rng(1).normal(size=(n, 40))
    b = b.astype(np.float32)
    known = solve_triangular(root.astype(float), b.astype(float), lower=True)
    plain = solve_triangular(root, b, lower=True)
    ours = quick_jit(jax.vmap(solve, (None, 1), 1))(root, b)
    assert np.abs(ours - known).max() <= 4 * max(np.abs(plain - known).max(), 1e-6)
    np.testing.assert_allclose(quick_jit(solve)(root, b), ours, rtol=1e-5, atol=1e-5)


def test_slopes_are_those_of_substitution() -> None:
    """Of both arguments, forwards and backwards."""
    n = 11
    with x64():
        root, b = jnp.asarray(triangle(n)), jnp.asarray(np.random.default_rng(2).normal(size=n))

        def through(solver: Any) -> Any:
            def loss(root: Any, b: Any) -> Any:
                return jnp.sum(jnp.sin(solver(root, b)))

            return loss

        def plain(root: Any, b: Any) -> Any:
            return jax.scipy.linalg.solve_triangular(root, b, lower=True)

        for derivative in (jax.grad, jax.jacfwd):
            ours = quick_jit(derivative(through(solve), (0, 1)))(root, b)
            known = quick_jit(derivative(through(plain), (0, 1)))(root, b)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-10), ours, known)
        curved = quick_jit(jax.hessian(through(solve), 1))(root, b)
        np.testing.assert_allclose(
            curved, quick_jit(jax.hessian(through(plain), 1))(root, b), atol=1e-10
        )
