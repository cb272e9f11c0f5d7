"""A NumPyro model with its arguments, and what its sites are when it is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from scoreascent._arrays import canonical_dtype

Site = dict[str, Any]  # what NumPyro's handlers pass along


# what jax raises where a model asks for the value of an array that is abstract
ABSTRACT = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


# NumPyro's handlers are on one stack for all threads, so models run one at a time
TRACING = threading.RLock()


class Held:
    """An array that a model may look at while it is compiled; it hashes by its numbers."""

    def __init__(self, array: Any) -> None:
        self.array = np.array(array, canonical_dtype(array))
        self.array.flags.writeable = False
        self.key = (self.array.shape, self.array.dtype.str, self.array.tobytes())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.key == other.key


@dataclass(frozen=True)
class Call:
    """A model and its arguments, less the arrays among them."""

    function: Callable[..., Any]
    structure: Any
    static: tuple[tuple[type, Any] | None, ...]  # None: an array; the type, for 1 == 1.0 == True

    def fill(self, arrays: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with these arrays among them."""
        arrays = iter(arrays)
        leaves = [next(arrays) if s is None else s[1] for s in self.static]
        leaves = [x.array if isinstance(x, Held) else x for x in leaves]
        return self.structure.unflatten(leaves)

    def held(self, data: Any, which: Sequence[int] | None = None) -> tuple[Call, tuple[Any, ...]]:
        """Return a call that holds these arrays itself, all unless told which, and the others."""
        arrays = [i for i, s in enumerate(self.static) if s is None]
        chosen = range(len(arrays)) if which is None else which
        static = list(self.static)
        for i in chosen:
            static[arrays[i]] = (Held, Held(data[i]))
        rest = tuple(x for i, x in enumerate(data) if i not in chosen)
        return replace(self, static=tuple(static)), rest

    def trace(self, data: Any, *wraps: Callable[[Any], Any]) -> dict[str, Site]:
        """The sites of the model under handlers, the innermost first."""
        function: Any = self.function
        for wrap in wraps:
            function = wrap(function)
        args, kwargs = self.fill(data)
        with TRACING:
            return handlers.trace(function).get_trace(*args, **kwargs)

    def names(self) -> tuple[str, ...]:
        """What the arrays among the arguments are called."""
        numbers = self.structure.unflatten(range(len(self.static)))
        paths, _ = jax.tree_util.tree_flatten_with_path(numbers)
        every = [("args", "kwargs")[p[0].idx] + jax.tree_util.keystr(p[1:]) for p, _ in paths]
        return tuple(name for name, s in zip(every, self.static) if s is None)

    def __repr__(self) -> str:
        leaves = [... if s is None or s[0] is Held else s[1] for s in self.static]
        args, kwargs = self.structure.unflatten(leaves)
        parts = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{name}({', '.join(parts)})".replace("Ellipsis", "…")


def called(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Call, tuple[Any, ...]]:
    """Return a model's call, and the arrays among its arguments."""
    paths, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    static = tuple(_static(path, leaf) for path, leaf in paths)
    data = tuple(leaf for (_, leaf), s in zip(paths, static) if s is None)
    return Call(function, structure, static), data


class Redraw(Messenger):  # type: ignore[misc]
    """Draws every observed site anew, in the shape of its observation."""

    names: tuple[str, ...] = ()

    def process_message(self, msg: Site) -> None:
        """Take the observation away."""
        if is_observed(msg):
            shape = site_shape(msg)
            msg["fn"] = msg["fn"].expand(shape[: len(shape) - msg["fn"].event_dim])
            msg["kwargs"]["sample_shape"] = ()
            msg.update(value=None, is_observed=False)
            self.names += (msg["name"],)


def is_observed(site: Site) -> bool:
    """Tell whether something is observed there: the value of a factor has no entries."""
    return site["type"] == "sample" and site["is_observed"] and jnp.size(site["value"]) > 0


def site_shape(site: Site) -> tuple[int, ...]:
    """A site's value may be smaller than its distribution, or larger."""
    return jax.lax.broadcast_shapes(jnp.shape(site["value"]), tuple(site["fn"].shape()))


def _static(path: tuple[Any, ...], leaf: Any) -> tuple[type, Any] | None:
    """Return what is fixed about an argument; None if it is an array."""
    where = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
    if isinstance(leaf, np.ndarray | jax.Array):
        if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool):
            raise ValueError(f"{where} must be a numeric array, got dtype {leaf.dtype}")
        return None
    try:
        hash(leaf)
    except TypeError:
        raise ValueError(
            f"{where} is a {type(leaf).__name__}, which cannot be hashed; pass numbers as an "
            "array (numpy.asarray), and settings as Python scalars, strings or tuples"
        ) from None
    return type(leaf), leaf
