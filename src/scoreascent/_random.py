"""Random numbers at the price of a fused loop: the same bits as jax's default, compiled faster.

On CPU jax compiles its default generator (Threefry-2x32, 20 rounds) as a loop of small kernels, and
XLA then repeats what follows in every place that uses the numbers: on the benchmark's network that
made an iteration half as long again. Here the rounds of a draw are written out, so that they become
one kernel, and `materialise` makes XLA compute it once. Keys are split as jax splits them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl, threefry_prng_impl

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray, UInt32

T = TypeVar("T")

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
TAG = "sa"
_PARITY = np.uint32(0x1BD11BDA)


def as_key(key: PRNGKeyArray | int) -> PRNGKeyArray:
    """A typed key from an integer seed, a typed key, or an old-style uint32 key.

    Threefry keys, jax's default, are given the generator of this module; others stay as they are.
    """
    given: Any = key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError(f"key must fit 64 bits as a seed, got {key!r}")
        if 0 <= key < 2**31:  # as jax seeds, and nothing is compiled for it
            return jax.random.wrap_key_data(jnp.asarray(np.array([0, key], np.uint32)), impl=FUSED)
        given = jax.random.key(int(key))
    elif isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape == (2,):
        given = jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    if not isinstance(given, jax.Array) or not jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key must be an integer seed or one jax.random.key, got {key!r}")
    if given.shape != ():
        raise ValueError(f"key must be one key, got an array of keys of shape {given.shape}")
    if str(jax.random.key_impl(given)) == "threefry2x32":
        given = jax.random.wrap_key_data(jax.random.key_data(given), impl=FUSED)
    return given


def split(key: PRNGKeyArray, n: int = 2) -> list[PRNGKeyArray]:
    """The keys of `jax.random.split`, the same bits; nothing is compiled for them.

    >>> a, b = split(as_key(0))
    >>> a == jax.random.split(as_key(0))[0]
    Array(True, dtype=bool)
    """
    if not _is_fused(key):
        return list(jax.random.split(key, n))
    return _derived(key, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))


def fold_in(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """The key of `jax.random.fold_in`, the same bits; nothing is compiled for it.

    >>> fold_in(as_key(0), 7) == jax.random.fold_in(as_key(0), 7)
    Array(True, dtype=bool)
    """
    if not _is_fused(key):
        return jax.random.fold_in(key, number)
    return _derived(key, np.zeros(1, np.uint32), np.array([number], np.uint32))[0]


def _is_fused(key: PRNGKeyArray) -> bool:
    """Tell whether a key has the generator of this module."""
    return str(key.dtype) == f"key<{TAG}>"


def _derived(key: PRNGKeyArray, high: Any, low: Any) -> list[PRNGKeyArray]:
    """The keys that numbers of 64 bits, given by their halves, make of a key."""
    data = np.asarray(jax.random.key_data(key))
    with np.errstate(over="ignore"):
        bits = np.stack(_threefry(data, high, low), axis=1)
    return [jax.random.wrap_key_data(jnp.asarray(x), impl=FUSED) for x in bits]


def materialise(x: T) -> T:
    """`x`, computed once: XLA on CPU otherwise fuses its making into every use, again and again.

    `lax.optimization_barrier` does not stop that; a loop does, and its two turns cost little.
    """

    def wall(x: T) -> T:
        def turn(carry: Any) -> Any:
            i, y = carry
            return i + 1, jax.tree.map(lambda old, new: jnp.where(i > 0, old, new), y, x)

        return jax.lax.while_loop(lambda carry: carry[0] < 2, turn, (0, x))[1]

    return jax.lax.platform_dependent(x, cpu=wall, default=lambda x: x)


def _threefry(key: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011), unrolled."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))) ^ x0
        x0 = x0 + schedule[(i + 1) % 3]
        x1 = x1 + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def _random_bits(key: UInt32[Array, 2], width: int, shape: tuple[int, ...]) -> Any:
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"at most 2³² − 1 random numbers can be drawn at once, asked for {shape}")
    count = jax.lax.iota(jnp.uint32, size).reshape(shape)
    high, low = _threefry(key, jnp.zeros_like(count), count)
    if width == 64:
        return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


FUSED = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    random_bits=_random_bits,
    fold_in=threefry_prng_impl.fold_in,
    name="scoreascent_threefry2x32",
    tag=TAG,
)
