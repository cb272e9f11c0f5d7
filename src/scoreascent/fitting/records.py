"""Values as JSON and named arrays, and back: trees of arrays, settings, records. Code is not kept.

A record is a named tuple or a dataclass, kept by the name of its class and its fields. When it is
read its class is looked for among those that this process knows already; nothing is imported and
no constructor of a dataclass runs.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import canonical_dtype
from scoreascent._random import FUSED, TAG
from scoreascent._structs import Config
from scoreascent.diagnostics.measure import Measured
from scoreascent.families import Family
from scoreascent.kernels import Kernel, Moves
from scoreascent.methods import Method
from scoreascent.run import Start
from scoreascent.update import Update

# what a class must derive from to be found again
ROOTS = (tuple, Config, Family, Kernel, Moves, Method, Update, Start, Measured)
HERE = "scoreascent"


class Unkept(TypeError):
    """A value that a file of plain arrays cannot hold, such as a function."""


class Unknown(LookupError):
    """A record whose class this process does not know."""


class Packer:
    """Turns values into JSON; the arrays in them are gathered in `arrays`, each once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._seen: dict[int, tuple[Any, str]] = {}  # the value itself, for an id is of the living

    def pack(self, value: Any, name: str) -> Any:
        """Return a value as JSON; `name` is what its arrays are called."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value, name)
        inner = lambda x, key: self.pack(x, f"{name}.{key}")  # noqa: E731
        if type(value) is list:
            return [inner(x, i) for i, x in enumerate(value)]
        if type(value) is tuple:
            return {"is": "tuple", "of": [inner(x, i) for i, x in enumerate(value)]}
        if type(value) is dict:
            return {"is": "dict", "of": [[inner(k, "key"), inner(x, k)] for k, x in value.items()]}
        fields = _fields(type(value))
        if fields is None:
            raise Unkept(f"{name} is a {type(value).__name__}")
        of = {field: inner(getattr(value, field), field) for field in fields}
        kind = "named tuple" if isinstance(value, tuple) else "record"
        return {"is": kind, "class": _class_name(type(value)), "of": of}

    def _array(self, value: Any, name: str) -> Any:
        """Return the entry of an array, of a number that has a width, or of a key."""
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            generator = _generator(value)
            return {"is": "key", "by": generator, "of": self.pack(jax.random.key_data(value), name)}
        if value.dtype.kind not in "biufcU":  # bfloat16 and its kin, objects
            raise Unkept(f"{name} has the dtype {value.dtype}")
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return {"is": "number", "dtype": str(value.dtype), "of": value.item()}
        known = self._seen.setdefault(id(value), (value, name))[1]
        if known == name:
            self.arrays[name] = np.asarray(value)
        return {"is": "array", "name": known, "jax": isinstance(value, jax.Array)}


class Unpacker:
    """Turns such JSON into the values that it stands for."""

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays
        below = (cls for root in ROOTS for cls in _below(root))
        self._known = {_class_name(cls): cls for cls in below if _fields(cls) is not None}

    def unpack(self, entry: Any) -> Any:
        """Return the value that an entry stands for."""
        if isinstance(entry, list):
            return [self.unpack(x) for x in entry]
        if not isinstance(entry, dict):
            return entry
        kind = entry["is"]
        if kind == "array":
            array = self._arrays[entry["name"]]
            narrowed = canonical_dtype(array) != array.dtype  # jax would lose digits of it
            return jnp.asarray(array) if entry["jax"] and not narrowed else array
        if kind == "number":
            return np.dtype(entry["dtype"]).type(entry["of"])
        if kind == "tuple":
            return tuple(self.unpack(x) for x in entry["of"])
        if kind == "dict":
            return {self.unpack(k): self.unpack(x) for k, x in entry["of"]}
        if kind == "key":
            impl = FUSED if entry["by"] == TAG else entry["by"]
            return jax.random.wrap_key_data(jnp.asarray(self.unpack(entry["of"])), impl=impl)
        of = {field: self.unpack(x) for field, x in entry["of"].items()}
        return self._made(entry["class"], of, kind == "named tuple")

    def _made(self, name: str, of: dict[str, Any], is_tuple: bool) -> Any:
        """Return a record of a class; fields that it has got since take their defaults."""
        cls = self._find(name)
        if cls is None and is_tuple and not _is_ours(name):
            label = name.split(":")[1].split(".")[-1]  # of a library that calls it otherwise now
            return namedtuple(label, of, rename=True)(*of.values())  # type: ignore[misc]
        if cls is None:
            remedy = "this version has none" if _is_ours(name) else "import what defines it first"
            raise Unknown(f"it holds a {name.replace(':', '.')}, and {remedy}")
        fields = _fields(cls) or ()
        of = {**_defaults(cls), **{field: x for field, x in of.items() if field in fields}}
        if missing := [field for field in fields if field not in of]:
            raise Unknown(f"it holds a {name.replace(':', '.')} without {', '.join(missing)}")
        if is_tuple:
            return cls(**of)
        record = object.__new__(cls)
        for field, x in of.items():
            object.__setattr__(record, field, x)
        return record

    def _find(self, name: str) -> Any:
        """Return the class of that name; one of ours may stand in another module by now."""
        if name in self._known or not _is_ours(name):
            return self._known.get(name)
        last = name.split(":")[1]
        found = [
            cls
            for other, cls in self._known.items()
            if _is_ours(other) and cls.__qualname__ == last
        ]
        return found[0] if len(found) == 1 else None


def _is_ours(name: str) -> bool:
    """Tell whether a class is of this library, by its full name."""
    return name.startswith((f"{HERE}.", f"{HERE}:"))


def _below(cls: Any) -> Iterator[Any]:
    yield cls
    for other in type.__subclasses__(cls):
        yield from _below(other)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _fields(cls: Any) -> tuple[str, ...] | None:
    """Return the names of a record's fields; None of a class that is no record that we know."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    if issubclass(cls, ROOTS) and dataclasses.is_dataclass(cls):
        return tuple(f.name for f in dataclasses.fields(cls))
    return None


def _defaults(cls: Any) -> dict[str, Any]:
    if issubclass(cls, tuple):
        return dict(cls._field_defaults)
    found = {f.name: f.default for f in dataclasses.fields(cls)}
    return {name: x for name, x in found.items() if x is not dataclasses.MISSING}


def _generator(key: Any) -> str:
    """Return the name of the generator that a key is of."""
    if str(key.dtype) == f"key<{TAG}>":
        return TAG
    return str(jax.random.key_impl(key))
