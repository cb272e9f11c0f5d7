"""Targets: supports and their Jacobians against NumPyro and autodiff, and data as leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints
from numpyro.infer.util import potential_energy

import scoreascent as sa
from tests.helpers import stack, x64

tril = np.tril_indices


def ordered() -> Any:
    normal = dist.Normal(jnp.zeros(3), 1.0).to_event(1)
    return dist.TransformedDistribution(normal, dist.transforms.OrderedTransform())


# a normalised distribution on each support, and coordinates of its values that are free
SUPPORTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "real": (lambda: dist.Normal(0.5, 2.0), jnp.ravel),
    "real-matrix": (lambda: dist.Normal(jnp.zeros((2, 3)), 1.0), jnp.ravel),
    "positive": (lambda: dist.Gamma(2.0, 3.0), jnp.ravel),
    "positive-vector": (lambda: dist.Gamma(jnp.array([2.0, 5.0]), 3.0), jnp.ravel),
    "unit-interval": (lambda: dist.Beta(2.0, 3.0), jnp.ravel),
    "interval": (lambda: dist.TruncatedNormal(0.5, 1.0, low=-1.0, high=2.0), jnp.ravel),
    "less-than": (lambda: dist.TruncatedNormal(0.5, 1.0, high=2.0), jnp.ravel),
    "ordered-vector": (ordered, jnp.ravel),
    "simplex": (lambda: dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])), lambda x: x[:-1]),
    "simplex-2": (lambda: dist.Dirichlet(jnp.array([2.0, 3.0])), lambda x: x[:-1]),
    "corr-cholesky": (lambda: dist.LKJCholesky(4, 2.0), lambda x: x[tril(4, -1)]),
    "corr-cholesky-2": (lambda: dist.LKJCholesky(2, 2.0), lambda x: x[tril(2, -1)]),
    "lower-cholesky": (
        lambda: dist.WishartCholesky(5.0, scale_matrix=jnp.eye(3)),
        lambda x: x[tril(3)],
    ),
}
ONE_DIMENSIONAL = [
    "real",
    "positive",
    "unit-interval",
    "interval",
    "less-than",
    "simplex-2",
    "corr-cholesky-2",
]
each_support = pytest.mark.parametrize("name", SUPPORTS)


def make(d: Any) -> sa.Target:
    shape = d.batch_shape + d.event_shape
    return sa.Target(
        lambda p: jnp.sum(d.log_prob(p["x"])), params={"x": sa.Param(d.support, shape)}
    )


@each_support
def test_density_against_numpyro_and_autodiff(name: str) -> None:
    """NumPyro's own unconstrained density, and the Jacobian as autodiff finds it."""
    with x64():
        make_d, free = SUPPORTS[name]
        d = make_d()
        target = make(d)
        shape = dist.biject_to(d.support).inverse_shape(d.batch_shape + d.event_shape)

        @jax.jit
        @jax.vmap
        def check(z: Any) -> Any:
            model = lambda: numpyro.sample("x", d)  # noqa: E731
            energy = potential_energy(model, (), {}, {"x": z.reshape(shape)})
            value = target.constrain(z)["x"]
            jacobian = jax.jacobian(lambda z: free(target.constrain(z)["x"]))(z)
            by_hand = jnp.sum(d.log_prob(value)) + jnp.linalg.slogdet(jacobian)[1]
            return target.log_prob(z), -energy, by_hand, jnp.all(d.support(value))

        z = 1.5 * np.random.default_rng(7).normal(size=(5, target.dim))
        ours, numpyros, by_hand, inside = check(jnp.asarray(z))
        assert ours.shape == (5,)
        assert np.all(inside)
        np.testing.assert_allclose(ours, numpyros, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(ours, by_hand, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ONE_DIMENSIONAL)
def test_density_integrates_to_one(name: str) -> None:
    with x64():
        target = make(SUPPORTS[name][0]())
        assert target.dim == 1
        grid = jnp.linspace(-60.0, 60.0, 48_001)
        density = jax.jit(lambda z: jnp.exp(jax.vmap(target.log_prob)(z[:, None])))(grid)
        np.testing.assert_allclose(jnp.trapezoid(density, grid), 1.0, rtol=1e-6)


TREE: Any = {
    "beta": sa.Param(shape=(2,)),
    "scale": {"sigma": constraints.positive, "tau": sa.Param(constraints.interval(-1.0, 3.0))},
    "mix": [sa.Param(constraints.simplex, (3,)), sa.Param(constraints.ordered_vector, (2,))],
    "chol": (sa.Param(constraints.corr_cholesky, (3, 3)),),
}
LEAVES = {
    "beta": TREE["beta"],
    "chol.0": TREE["chol"][0],
    "mix.0": TREE["mix"][0],
    "mix.1": TREE["mix"][1],
    "scale.sigma": TREE["scale"]["sigma"],
    "scale.tau": TREE["scale"]["tau"],
}
SHAPES = {
    "beta": (2,),
    "chol.0": (3, 3),
    "mix.0": (3,),
    "mix.1": (2,),
    "scale.sigma": (),
    "scale.tau": (),
}


def tree_density(p: Any) -> Any:
    return -0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(p)) - p["scale"]["sigma"]


def test_nested_parameters() -> None:
    with x64():
        target = sa.Target(tree_density, params=TREE)
        assert target.dim == 2 + 3 + 2 + 2 + 1 + 1
        assert target.site_names == tuple(LEAVES)
        z = jnp.linspace(-1.0, 1.0, target.dim)
        params, named, log_prob = jax.jit(
            lambda z: (target.constrain(z), target.named(z), target.log_prob(z))
        )(z)
        assert {k: v.shape for k, v in named.items()} == SHAPES
        assert named["scale.tau"] == params["scale"]["tau"]
        np.testing.assert_array_equal(named["mix.1"], params["mix"][1])
        np.testing.assert_array_equal(named["chol.0"], params["chol"][0])
        log_dets, at = 0.0, 0
        for name, spec in LEAVES.items():  # each has its own stretch of z, in the order of names
            one = sa.Target(lambda p: jnp.zeros(()), params={"x": spec})
            value, log_det = jax.jit(lambda z, one=one: (one.constrain(z)["x"], one.log_prob(z)))(
                z[at : at + one.dim]
            )
            np.testing.assert_allclose(value, named[name], rtol=1e-12)
            log_dets, at = log_dets + log_det, at + one.dim
        np.testing.assert_allclose(log_prob, tree_density(params) + log_dets, rtol=1e-10)


ROUND_TRIP = {name: make(make_d()) for name, (make_d, _) in SUPPORTS.items()}
ROUND_TRIP["tree"] = sa.Target(tree_density, params=TREE)


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_constrain_and_unconstrain(name: str) -> None:
    target = ROUND_TRIP[name]

    @jax.jit
    def there_and_back(z: Any) -> Any:
        params = target.constrain(z)
        back = target.unconstrain(params)
        return params, back, target.constrain(back)

    @settings(deadline=None, max_examples=25, derandomize=True, database=None)
    @given(st.lists(st.floats(-3.0, 3.0), min_size=target.dim, max_size=target.dim))
    def check(z: list[float]) -> None:
        params, back, again = there_and_back(jnp.asarray(z))
        assert back.shape == (target.dim,)
        np.testing.assert_allclose(back, z, rtol=1e-6, atol=1e-8)
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

    with x64():
        check()


def test_a_vector_is_its_own_parameter() -> None:
    target = sa.Target(lambda z: -jnp.sum(z**2), dim=3)
    z = jnp.arange(3.0)
    assert target.constrain(z) is z
    np.testing.assert_array_equal(target.unconstrain(z), z)
    assert list(target.named(z)) == ["z"]
    assert float(target.log_prob(z)) == -5.0


# -- data as leaves ------------------------------------------------------------------------------


def regression(p: Any, data: Any) -> Any:
    x, y = data["x"], data["y"]
    residual = (y - x @ p["beta"]) / p["sigma"]
    return -0.5 * jnp.sum(residual**2) - x.shape[0] * jnp.log(p["sigma"])


PARAMS = {"beta": sa.Param(shape=(2,)), "sigma": constraints.positive}


def make_data(seed: int, n: int = 5) -> dict[str, Any]:
    draw = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    return {"x": draw[:, :2], "y": draw[:, 2]}


def make_regression(seed: int, n: int = 5) -> sa.Target:
    return sa.Target(regression, params=PARAMS, data=make_data(seed, n))


def test_data_are_leaves() -> None:
    target, other = make_regression(0), make_regression(1)
    leaves, tree = jax.tree.flatten(target)
    shapes = [jnp.shape(x) for x in leaves]
    assert (5, 2) in shapes
    assert (5,) in shapes
    assert tree == jax.tree.structure(other)
    assert hash(tree) == hash(jax.tree.structure(other))
    assert tree != jax.tree.structure(sa.Target(lambda z: -jnp.sum(z**2), dim=3))
    back = jax.tree.unflatten(tree, leaves)
    assert isinstance(back, sa.Target)
    assert repr(back) == repr(target)
    z = jnp.array([0.3, -0.2, 0.4])
    np.testing.assert_array_equal(back.log_prob(z), target.log_prob(z))
    moved = jax.tree.unflatten(tree, jax.tree.leaves(other))
    np.testing.assert_array_equal(moved.log_prob(z), other.log_prob(z))
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(target)]
    assert ".data['x']" in paths


def test_log_prob_is_that_of_the_data() -> None:
    data = make_data(3)
    z = np.array([0.3, -0.2, 0.4])
    residual = (data["y"] - data["x"] @ z[:2]) / np.exp(z[2])
    expected = -0.5 * np.sum(residual**2) - 5 * z[2] + z[2]  # the last is log dσ/dz
    np.testing.assert_allclose(make_regression(3).log_prob(jnp.asarray(z)), expected, rtol=1e-5)


def test_one_compilation_serves_all_data() -> None:
    log_prob = jax.jit(lambda target, z: target.log_prob(z))
    z = jnp.array([0.3, -0.2, 0.4])
    for seed in range(3):
        target = make_regression(seed)
        np.testing.assert_allclose(log_prob(target, z), target.log_prob(z), rtol=1e-5)
    assert log_prob._cache_size() == 1


def test_vmap_over_data() -> None:
    targets = [make_regression(seed) for seed in range(3)]
    many = stack(targets)
    assert many.data["x"].shape == (3, 5, 2)
    z = jnp.array([0.3, -0.2, 0.4])
    together = jax.vmap(lambda target: target.log_prob(z))(many)
    np.testing.assert_allclose(together, [t.log_prob(z) for t in targets], rtol=1e-5)
    bounds = [sa.Target(line, params={"x": constraints.interval(0.0, top)}) for top in (1.0, 4.0)]
    tops = jax.vmap(lambda target: target.constrain(jnp.zeros(1))["x"])(stack(bounds))
    np.testing.assert_allclose(tops, [0.5, 2.0], rtol=1e-6)


def line(p: Any) -> Any:
    return -p["x"]


def free_form(z: Any, data: Any) -> Any:
    return -jnp.sum(z**2) * sum(jnp.sum(x) for x in jax.tree.leaves(data))


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([], "targets must be a non-empty list"),
        ([make_regression(0), "x"], "targets must be a non-empty list of Target"),
        ([make_regression(0), make_regression(1, n=6)], "targets must have data of the same shape"),
        (
            [sa.Target(line, params={"x": s}) for s in (constraints.real, constraints.positive)],
            "targets must",
        ),
        (
            [sa.Target(lambda z: -jnp.sum(z**2), dim=2) for _ in range(2)],
            "targets must share one log_density",
        ),
        (
            [sa.Target(free_form, dim=1, data={name: jnp.ones(2)}) for name in "ab"],
            "targets must",
        ),
    ],
    ids=["empty", "not targets", "shapes", "supports", "functions", "names"],
)
def test_stack_refuses(targets: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stack(targets)


def test_data_may_be_any_numeric_pytree() -> None:
    data = {"n": 3, "flag": np.array([True, False]), "rate": 0.5, "none": None, "x": [1.0, 2]}
    target = sa.Target(free_form, dim=1, data=data)
    assert float(target.log_prob(jnp.ones(1))) == -(3 + 1 + 0.5 + 3)
    assert target.data["n"].dtype == jnp.int32
    assert target.data["rate"].dtype == jnp.float32
    assert target.data["flag"].dtype == bool


def test_float64_data_stay_float64_under_x64() -> None:
    with x64():
        target = sa.Target(free_form, dim=1, data=np.array([1e300]))
        assert target.data.dtype == jnp.float64
        assert float(target.log_prob(jnp.ones(1))) == -1e300


def test_targets_print_what_they_are() -> None:
    assert repr(make_regression(0)) == "Target(regression, params=['beta', 'sigma'], data=…)"
    assert repr(sa.Target(line, params={"x": sa.Param()})) == "Target(line, params=['x'])"
    assert repr(sa.Target(free_form, dim=3, data=jnp.ones(2))) == "Target(free_form, dim=3, data=…)"
