"""The library's random numbers are jax's own, bit for bit; only the compiled code differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scoreascent._random import as_key, materialise
from tests.helpers import x64

DRAWS = {
    "normal": lambda k: jax.random.normal(k, (7, 3)),
    "uniform": lambda k: jax.random.uniform(k, (5,)),
    "bits-8": lambda k: jax.random.bits(k, (9,), "uint8"),
    "bits-16": lambda k: jax.random.bits(k, (9,), "uint16"),
    "bits-32": lambda k: jax.random.bits(k, (2, 4), "uint32"),
    "scalar": lambda k: jax.random.normal(k),
    "empty": lambda k: jax.random.normal(k, (0,)),
    "split": lambda k: jax.random.key_data(jax.random.split(k, (3, 2))),
    "fold-in": lambda k: jax.random.key_data(jax.random.fold_in(k, 123456789)),
    "split-then-normal": lambda k: jax.vmap(lambda k: jax.random.normal(k, (4,)))(
        jax.random.split(k, 6)
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_same_bits_as_jax(draw, seed):
    np.testing.assert_array_equal(draw(as_key(seed)), draw(jax.random.key(seed)))


def test_a_loop_that_refuses_draws_as_jax_does():
    """But for the rounding of its logarithms and roots, which are compiled with the generator."""
    ours, theirs = (jax.random.gamma(key, 2.5, (4,)) for key in (as_key(1), jax.random.key(1)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert not np.allclose(ours, jax.random.gamma(as_key(2), 2.5, (4,)), rtol=0.01)


def test_same_bits_as_jax_in_64_bits():
    with x64():
        for draw in (
            lambda k: jax.random.bits(k, (9,), "uint64"),
            lambda k: jax.random.normal(k, (9,), "float64"),
        ):
            np.testing.assert_array_equal(draw(as_key(5)), draw(jax.random.key(5)))


def test_other_generators_are_left_alone():
    key = jax.random.key(0, impl="rbg")
    assert jax.random.key_impl(as_key(key)) == jax.random.key_impl(key)


def test_materialise_is_the_identity():
    x = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([jnp.nan, 1.0])}
    for made in (materialise(x), jax.jit(materialise)(x), jax.vmap(materialise)(x)):
        jax.tree.map(np.testing.assert_array_equal, made, x)
