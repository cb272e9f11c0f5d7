"""Two small habits used everywhere: settings that print as what they are, and pytrees of arrays."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, TypeVar

import jax

try:
    from jax import enable_x64
except ImportError:  # before 2025
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]

T = TypeVar("T")


class Config:
    """Base of the frozen dataclasses that hold settings.

    They hash and compare by value, so they are static arguments of `jit`, and they print as the
    shortest call that makes them: defaults are left out and nested settings stand first, unnamed.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, repr=False)
    ... class Walk(Config):
    ...     scale: float = 0.5
    ...     steps: int = 1
    >>> Walk(), Walk(scale=2.0), Walk() == Walk(steps=1)
    (Walk(), Walk(scale=2.0), True)
    """

    def __repr__(self) -> str:
        parts: list[str] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Config) and not parts:
                parts.append(repr(value))
            elif value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


def pytree(cls: type[T] | None = None, *, static: tuple[str, ...] = ()) -> Any:
    """Register a frozen dataclass as a pytree whose fields are all children, but for `static`.

    Unlike `jax.tree_util.register_dataclass`, unflattening does not run `__init__`, so a class may
    check its arguments when a person builds it and still be filled by jax with tracers or axes.
    Static fields must hash; `jit` compiles for each of their values.

    >>> from dataclasses import dataclass
    >>> @pytree(static=("name",))
    ... @dataclass(frozen=True)
    ... class Named:
    ...     values: jax.Array
    ...     name: str
    >>> jax.tree.map(lambda x: 2 * x, Named(jax.numpy.ones(2), "ones"))
    Named(values=Array([2., 2.], dtype=float32), name='ones')
    """
    if cls is None:
        return functools.partial(pytree, static=static)
    names = tuple(f.name for f in dataclasses.fields(cls) if f.name not in static)  # type: ignore

    def aux(node: Any) -> Any:
        return tuple(getattr(node, n) for n in static) or None

    def flatten_with_keys(node: Any) -> Any:
        return [(jax.tree_util.GetAttrKey(n), getattr(node, n)) for n in names], aux(node)

    def flatten(node: Any) -> Any:
        return [getattr(node, n) for n in names], aux(node)

    def unflatten(fixed: Any, children: Any) -> Any:
        node = object.__new__(cls)
        for name, child in zip((*names, *static), (*children, *(fixed or ())), strict=True):
            object.__setattr__(node, name, child)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def unchecked(node: T, **fields: Any) -> T:
    """A copy of a frozen dataclass with these fields replaced, past the checks of `__init__`.

    For arrays that the library computed: jax may be tracing them, and a fit reports by itself what
    is not finite.
    """
    copy = object.__new__(type(node))
    for field in dataclasses.fields(node):  # type: ignore[arg-type]
        value = fields.pop(field.name) if field.name in fields else getattr(node, field.name)
        object.__setattr__(copy, field.name, value)
    assert not fields
    return copy


def check_count(name: str, value: Any, minimum: int, why: str = "") -> int:
    """Return `value` as an int, or raise a ValueError that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < minimum:
        raise ValueError(f"{name} must be an integer ≥ {minimum}{why}, got {value!r}")
    return number


def x64(wide: bool = True) -> Any:
    """Return a context in which jax computes with float64, or with float32 if not wide."""
    return enable_x64(wide)
