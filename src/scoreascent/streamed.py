"""Rows that do not fit on the device: read in pieces from the host within one density.

A log density that is a sum over rows, and a part that all of them share, is what its pieces say:
log p(z) = Σ_k f(z, piece k) − (K − 1) f(z, no rows). The pieces come one after the other from
arrays in the host's memory or in files (`numpy.memmap`), each for all chains at once, and a thread
reads the next one meanwhile; the device has two of them at most, however many there are.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import canonical, canonical_dtype
from scoreascent._structs import check_count

if TYPE_CHECKING:
    from jaxtyping import Array, Float

PIECE = 100_000  # rows that are read at a time
KEPT = 3  # pieces that stay with the host: those asked for last, and the next
LOOKED_AT = 64  # rows by which one looks whether the density is a sum over them
SUM_ERROR = 1e-3  # relative, that rounding is allowed there


class Rows:
    """Arrays of as many rows, read in pieces, the next one ahead of time.

    >>> rows = Rows([np.arange(10.0)], 4)
    >>> rows.count, rows.rest, [x.tolist() for x in rows.read(0)]
    (2, 2, [[0.0, 1.0, 2.0, 3.0]])
    """

    def __init__(self, arrays: list[Any], piece: int) -> None:
        self.arrays, self.size = arrays, int(arrays[0].shape[0])
        self.piece = min(piece, self.size)
        self.count, self.rest = divmod(self.size, self.piece)
        self._kept: dict[int, Future[list[Any]]] = {}
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(1)

    @property
    def turns(self) -> int:
        """How many pieces there are, a shorter last one included."""
        return self.count + (self.rest > 0)

    def like(self, rows: int) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of a piece of so many rows."""
        return [
            jax.ShapeDtypeStruct((rows, *x.shape[1:]), canonical_dtype(x[:0])) for x in self.arrays
        ]

    def read(self, k: Any) -> list[Any]:
        """Return piece k, and have the next one read."""
        k = int(k)
        with self._lock:
            wanted = [self._future(i) for i in (k, (k + 1) % self.turns)]
        return wanted[0].result()

    def _future(self, k: int) -> Future[list[Any]]:
        found = self._kept.pop(k, None) or self._pool.submit(self._load, k)
        self._kept[k] = found
        while len(self._kept) > KEPT:
            self._kept.pop(next(iter(self._kept)))
        return found

    def _load(self, k: int) -> list[Any]:
        at = slice(k * self.piece, (k + 1) * self.piece)
        # a copy: a part of a file that is mapped would be read later, when it is needed
        return [np.array(x[at], canonical_dtype(x[:0])) for x in self.arrays]


class Streamed:
    """A log density of values and of data of which some are `Rows`; it hashes by what it is.

    It is called with the data that are not, in whose places among all data `flags` has False.
    """

    def __init__(self, log_density: Callable[..., Any], rows: Rows, structure: Any, flags: Any):
        self.log_density, self.rows = log_density, rows
        self._structure, self._flags = structure, flags

    def __repr__(self) -> str:
        name = getattr(self.log_density, "__qualname__", repr(self.log_density))
        return f"{name} of {self.rows.size} rows, {self.rows.piece} at a time"

    @property
    def data_size(self) -> int:
        """How many numbers the rows have."""
        return sum(math.prod(x.shape) for x in self.rows.arrays)

    def __call__(self, value: Any, whole: Any) -> Float[Array, ""]:
        """Return the log density."""
        return _density(self, value, whole)

    def of(self, value: Any, whole: Any, piece: Any) -> Float[Array, ""]:
        """Return the log density of the rows of one piece alone."""
        one, other = iter(piece), iter(whole)
        leaves = [next(one) if flag else next(other) for flag in self._flags]
        return self.log_density(value, self._structure.unflatten(leaves))

    def total(self, function: Callable[..., Any], value: Any, whole: Any) -> Any:
        """Return the sum over pieces of what a function says, less what was counted too often."""
        rows = self.rows

        def read(k: Any, size: int) -> Any:
            return jax.pure_callback(rows.read, rows.like(size), k)

        none = [jnp.zeros(x.shape, x.dtype) for x in rows.like(0)]
        shared = function(value, whole, none)

        def add(k: Any, sums: Any, size: int = rows.piece) -> Any:
            more = function(value, whole, read(k, size))
            return jax.tree.map(lambda s, x, p: s + (x - p), sums, more, shared)

        sums = jax.lax.fori_loop(0, rows.count, add, shared)
        return add(jnp.int32(rows.count), sums, rows.rest) if rows.rest else sums


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _density(density: Streamed, value: Any, whole: Any) -> Any:
    return density.total(density.of, value, whole)


@_density.defjvp
def _density_and_slope(density: Streamed, primals: Any, tangents: Any) -> Any:
    """Value and gradient in one turn over the rows; data are no variables."""
    value, whole = primals
    both = jax.value_and_grad(density.of)
    log_p, slope = density.total(both, value, whole)
    along: Any = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, slope, tangents[0])))
    return log_p, along.astype(log_p.dtype)


def streamed(
    log_density: Callable[..., Any], data: Any, flags: tuple[bool, ...], piece: Any
) -> tuple[Streamed, Any]:
    """Return the density of rows that are read in pieces, and the data that are not."""
    leaves, structure = jax.tree.flatten(data)
    arrays = [x for x, flag in zip(leaves, flags) if flag]
    # a slice of jax's own would wait for the computation that asks for it
    arrays = [np.asarray(x) if isinstance(x, jax.Array | list) else x for x in arrays]
    for x in arrays:
        kind = np.dtype(getattr(x, "dtype", object))
        if not (hasattr(x, "shape") and kind.kind in "biuf"):
            raise ValueError(f"data: rows must be numeric arrays, such as numpy.memmap, got {x!r}")
    rows = Rows(arrays, check_count("piece", piece, 1))
    whole = canonical([x for x, flag in zip(leaves, flags) if not flag], "data")
    return Streamed(log_density, rows, structure, flags), whole


def check_sum(density: Streamed, constrain: Callable[..., Any], dim: int, whole: Any) -> None:
    """Refuse a density that is no sum over rows, by the halves of the first ones."""
    some = [np.ascontiguousarray(x[:LOOKED_AT], canonical_dtype(x[:0]))
            for x in density.rows.arrays]  # fmt: skip
    half = -(-len(some[0]) // 2)
    parts = [some, [x[:half] for x in some], [x[half:] for x in some], [x[:0] for x in some]]
    waves = np.cos(np.outer(np.arange(1, 4), 1.7 + np.arange(dim)))
    for z in jnp.asarray(waves * np.array([[0.1], [0.5], [1.0]])):
        try:
            both, one, other, none = (
                float(density.of(constrain(z), whole, [jnp.asarray(x) for x in part]))
                for part in parts
            )
        except (TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            raise ValueError(
                f"log_density must be a sum over rows that is there for no rows too, so that it "
                f"can be read in pieces, but it raised: {error}"
            ) from error
        off = abs(one + other - none - both)
        if not off <= SUM_ERROR * (abs(one) + abs(other) + abs(none) + 1):
            raise ValueError(
                "log_density must be a sum over rows, and a part that all of them share, so that "
                f"it can be read in pieces: of the first {len(some[0])} rows, two halves give "
                f"{one + other - none:.6g} and the whole {both:.6g}. Leave piece= out, or sum "
                "over the observations."
            )
