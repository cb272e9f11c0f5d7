"""Densities that are not JAX's: NumPy's or compiled code's, called from compiled loops in batches.

Inside a callback everything is numpy: jax's own operations there can wait for the very computation
that waits for the callback.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._progress import Presses
from scoreascent._structs import check_count

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

Gradient = Callable[..., Any] | Literal["differences", "returned"]
STEP = 6e-6  # of differences of the density, in units of |z| or 1
BEND = 1e-4  # of differences of its gradient
MOST = 50  # coordinates, at each of three points, in which a gradient is checked,
SLOW = 0.02  # unless a density takes so many seconds: then in fewer, at one point
SAME = 1e-3  # by how much, of its size, it may be off differences
TINY = 1e-6  # of the largest slope, below which a coordinate's does not matter


class ForeignError(RuntimeError):
    """A density that is not JAX's has raised; the message names the point, the cause is its own."""


@dataclass(frozen=True)
class Foreign:
    """A log density of the host's, for `Target.from_host`, which says what its arguments are."""

    function: Callable[..., Any]
    gradient: Gradient | None
    dim: int
    batched: bool
    threads: int
    raised: list[BaseException] = field(default_factory=list, compare=False, repr=False)

    def __call__(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return the log density; one call of the host for all points of a batch."""
        return _values(self, z) if self.gradient is None else _density(self, z)

    def __repr__(self) -> str:
        return f"{getattr(self.function, '__qualname__', repr(self.function))} of the host"

    # -- what is called back: arrays of points (..., d) to arrays --------------------------------

    def values_at(self, z: Any) -> Any:
        """The log densities."""
        return self._guarded(lambda rows: (self._values(rows),), z)[0]

    def both_at(self, z: Any) -> Any:
        """The log densities and their gradients."""
        return self._guarded(self._both, z)

    def bend_at(self, z: Any, along: Any) -> Any:
        """The derivative of the gradient along a direction, by differences."""
        along = np.asarray(along, np.float64).reshape(-1, self.dim)

        def bend(rows: Numbers) -> tuple[Numbers]:
            size = np.linalg.norm(along, axis=1, keepdims=True)
            h = BEND * np.maximum(1.0, np.abs(rows).max(1, keepdims=True))
            step = h * along / np.where(size > 0, size, 1.0)
            _, slopes = self._both(np.concatenate([rows + step, rows - step]))
            return (size * (slopes[: len(rows)] - slopes[len(rows) :]) / (2 * h),)

        return self._guarded(bend, z)[0]

    def _guarded(self, what: Callable[[Numbers], tuple[Numbers, ...]], z: Any) -> tuple[Any, ...]:
        """Return it in the shape and the dtype that are asked for; remember what was raised."""
        z = np.asarray(z)
        try:
            found = what(z.reshape(-1, self.dim).astype(np.float64))
        except BaseException as error:
            self.raised.append(error)
            raise
        shaped = (x.reshape((*z.shape[:-1], *x.shape[1:])) for x in found)
        with np.errstate(over="ignore"):
            return tuple(np.asarray(x, z.dtype, order="C") for x in shaped)

    # -- the functions that were given, on rows (n, d) in 64 bits --------------------------------

    def _values(self, rows: Numbers) -> Numbers:
        if self.gradient == "returned":
            return self._both(rows)[0]
        return self._call(self.function, rows, ("log_density",), ((),))[0]

    def _both(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        if self.gradient == "returned":
            names = ("log_density", "the gradient that log_density returns")
            value, slope = self._call(self.function, rows, names, ((), (self.dim,)))
            return value, slope
        values = self._values(rows)
        if self.gradient == "differences":
            return values, self._differences(rows)
        assert callable(self.gradient)
        return values, self._call(self.gradient, rows, ("gradient",), ((self.dim,),))[0]

    def _differences(self, rows: Numbers, step: float = STEP) -> Numbers:
        """The gradients, by central differences of all coordinates."""
        h = step * np.maximum(1.0, np.abs(rows))
        steps = h[:, None] * np.eye(self.dim)
        both = np.stack([rows[:, None] + steps, rows[:, None] - steps])
        plus, minus = self._values(both.reshape(-1, self.dim)).reshape(2, len(rows), self.dim)
        return np.asarray((plus - minus) / (2 * h))

    def _call(
        self, function: Any, rows: Numbers, names: tuple[str, ...], shapes: tuple[Any, ...]
    ) -> tuple[Numbers, ...]:
        """Call a function at points of ℝᵈ; what runs away to infinity is not asked for."""
        fair = np.all(np.isfinite(rows), axis=1)
        found = tuple(np.full((len(rows), *shape), np.nan) for shape in shapes)
        if not fair.any():
            return found
        asked = rows[fair]
        if self.batched:
            parts = _checked(_told(function, asked), names, [(len(asked), *s) for s in shapes])
        else:
            one = lambda z: _checked(_told(function, z), names, shapes)  # noqa: E731
            every = _pool(self.threads).map(one, asked) if self.threads > 1 else map(one, asked)
            parts = tuple(np.stack(x) for x in zip(*every, strict=True))
        for whole, part in zip(found, parts, strict=True):
            whole[fair] = part
        return found


def foreign(
    function: Any, gradient: Any, dim: Any, batched: Any, threads: Any
) -> Foreign:  # what `Target.from_host` was given
    """Return the density, or raise a ValueError that names what is wrong with an argument."""
    if not callable(function):
        raise ValueError(f"log_density must be a function, got {function!r}")
    if not (gradient in (None, "differences", "returned") or callable(gradient)):
        raise ValueError(
            "gradient must be a function, 'differences', 'returned' (if log_density gives both), "
            f"or None, got {gradient!r}"
        )
    if not isinstance(batched, bool):
        raise ValueError(f"batched must be True or False, got {batched!r}")
    threads = 1 if threads is None else check_count("threads", threads, 1)
    if batched and threads > 1:
        raise ValueError("threads are for a function of one point: one that is batched has its own")
    found = Foreign(function, gradient, check_count("dim", dim, 1), batched, threads)
    _check_gradient(found)
    found.raised.clear()
    return found


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "scoreascent-host")


def _told(function: Any, z: Numbers) -> Any:
    """Call a function; what it raises is told with the point, the first of a batch that fails."""
    Presses.check()
    try:
        return function(z.copy())
    except Exception as error:
        if z.ndim == 2 and len(z) > 1:
            for row in z:
                _told(function, row[None])
        where = np.array2string(np.squeeze(z[:1], 0) if z.ndim == 2 else z, threshold=20)
        raise ForeignError(
            f"log_density or its gradient raised {type(error).__name__} at z = {where}: {error}"
        ) from error


def _checked(told: Any, names: tuple[str, ...], shapes: Any) -> tuple[Numbers, ...]:
    """Return what a function told as arrays, or raise if their shapes are others."""
    parts = told if len(names) > 1 else (told,)
    if not isinstance(parts, tuple | list) or len(parts) != len(names):
        raise ValueError(f"log_density must return a value and its gradient, got {told!r}")
    found = []
    for part, name, shape in zip(parts, names, shapes):
        try:
            x = np.asarray(part, np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must return real numbers, got {part!r}") from None
        if x.shape != tuple(shape):
            raise ValueError(
                f"{name} must return shape {tuple(shape)} here, got {x.shape}: one number a point "
                "for the density, d for the gradient, with the points in front if batched"
            )
        found.append(x)
    return tuple(found)


def _check_gradient(density: Foreign) -> None:
    """Raise a ValueError that names the coordinate if a gradient is not that of its density.

    Of two differences, one with twice the step of the other, neither is known better than they
    differ.
    """
    rng = np.random.default_rng(0)
    rows = np.array([0.1, 0.5, 1.0])[:, None] * rng.normal(size=(3, density.dim))
    clock = time.perf_counter()
    values = density._values(rows)
    is_slow = time.perf_counter() - clock > SLOW * len(rows)
    if density.gradient in (None, "differences"):
        return
    rows, values = (rows[:1], values[:1]) if is_slow else (rows, values)
    slopes = density._both(rows)[1]
    at = np.sort(rng.permutation(density.dim)[: MOST // 10 if is_slow else MOST])
    single = bool(np.all(values == values.astype(np.float32)))  # computed in 32 bits, that is
    eps = float(np.finfo(np.float32 if single else np.float64).eps)
    fair = np.isfinite(values)
    for z, value, slope in zip(rows[fair], values[fair], slopes[fair]):
        h = eps ** (1 / 3) * np.maximum(1.0, np.abs(z[at]))
        steps = h[:, None] * np.eye(density.dim)[at]
        four = np.concatenate([z + c * steps for c in (1, -1, 2, -2)])
        one, back, two, far = density._values(four).reshape(4, len(at))
        near, wide = (one - back) / (2 * h), (two - far) / (4 * h)
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(slope[at]), np.abs(near))
            allowed = SAME * size + TINY * np.nanmax(np.abs(near)) + 10 * np.abs(near - wide)
            allowed += 10 * eps * (1 + abs(value)) / h
            wrong = np.isfinite(near) & ~(np.abs(slope[at] - near) <= allowed)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ValueError(
                f"gradient: coordinate {at[i]} is {slope[at[i]]:.6g} at z = "
                f"{np.array2string(z, threshold=20)}, but differences of log_density give "
                f"{near[i]:.6g} there; is it that of log_density, not of its negative?"
            )


# -- jax's side ------------------------------------------------------------------------------------


def _values(density: Foreign, z: Any) -> Any:
    shape = jax.ShapeDtypeStruct((), z.dtype)
    value = jax.pure_callback(density.values_at, shape, z, vmap_method="broadcast_all")
    return _placed(value, z[0])


def _placed(x: Any, like: Any) -> Any:
    """Return x as something that comes from `like`, which jax 0.6 wants to see under a mesh."""
    return jnp.where(jnp.zeros_like(like) == 0, x, like)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _density(density: Foreign, z: Any) -> Any:
    return _values(density, z)


@_density.defjvp
def _density_jvp(density: Foreign, primals: Any, tangents: Any) -> Any:
    (z,), (along,) = primals, tangents
    value, slope = _both(density, z)
    return value, jnp.vdot(slope, along)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _both(density: Foreign, z: Any) -> Any:
    shapes = jax.ShapeDtypeStruct((), z.dtype), jax.ShapeDtypeStruct(z.shape, z.dtype)
    value, slope = jax.pure_callback(density.both_at, shapes, z, vmap_method="broadcast_all")
    return _placed(value, z[0]), _placed(slope, z)


@_both.defjvp
def _both_jvp(density: Foreign, primals: Any, tangents: Any) -> Any:
    (z,), (along,) = primals, tangents
    value, slope = _both(density, z)
    shape = jax.ShapeDtypeStruct(z.shape, z.dtype)
    bend = jax.pure_callback(density.bend_at, shape, z, along, vmap_method="broadcast_all")
    return (value, slope), (jnp.vdot(slope, along), _placed(bend, z))
