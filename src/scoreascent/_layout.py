"""How one fit lies on many devices: chains over one axis of a mesh, rows of data over another.

What a chain does alone is done by the device that has it (`by_chain`), without a word to the
others. Everything else, sums over chains and over rows among it, is left to the compiler, which
is told where arrays lie.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from jax import shard_map
except ImportError:  # jax 0.6
    from jax.experimental.shard_map import shard_map  # type: ignore[no-redef]

T = TypeVar("T")

CHAINS, ROWS = "chains", "rows"


@dataclass(frozen=True)
class Layout:
    """A mesh of devices whose axes are `chains`, `rows`, or both.

    >>> Layout(Mesh(np.array(jax.devices()[:1]), ("chains",)))
    Layout(1 device: chains 1)
    """

    mesh: Mesh

    @property
    def chains(self) -> int:
        """Over how many devices chains are spread."""
        return int(self.mesh.shape.get(CHAINS, 1))

    @property
    def rows(self) -> int:
        """Over how many devices rows are spread."""
        return int(self.mesh.shape.get(ROWS, 1))

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes whose devices these are."""
        return tuple(sorted({d.process_index for d in self.mesh.devices.flat}))

    @property
    def is_shared(self) -> bool:
        """Whether several processes have devices of it."""
        return len(self.processes) > 1

    def __repr__(self) -> str:
        return f"Layout({self.words()})"

    def words(self) -> str:
        """Say how many devices there are and what is spread over them."""
        n = self.mesh.size
        axes = " × ".join(f"{name} {size}" for name, size in self.mesh.shape.items())
        by = f" of {len(self.processes)} processes" if self.is_shared else ""
        return f"{n} device{'s' * (n > 1)}{by}: {axes}"

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Return where an array lies whose axes are spread so; without a word, whole everywhere."""
        known = [a if a in self.mesh.shape else None for a in axes]
        return NamedSharding(self.mesh, PartitionSpec(*known))

    def divides(self, n: int) -> bool:
        """Tell whether n chains divide over the devices."""
        return n % self.chains == 0

    def rounded(self, n: int) -> int:
        """Return n chains, or the next number that divides over the devices."""
        return -(-n // self.chains) * self.chains

    def of_points(self, x: Any, n: int) -> NamedSharding:
        """Return where an array lies that has n chains' points along its first axis, or has not."""
        has = n > 1 and x.ndim > 0 and x.shape[0] == n and self.divides(n)
        return self.sharding(CHAINS) if has else self.sharding()

    def place(self, tree: T, where: Any) -> T:
        """Return a tree of arrays at these places; every process has all of the numbers.

        An array that lies on devices of several processes already is moved by the compiler.
        """
        return jax.tree.map(_placed, tree, where)


_IN_FORCE: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextmanager
def in_force(layout: Layout | None) -> Iterator[None]:
    """Trace with this layout: `by_chain` then spreads what it is given.

    What is compiled so must have the layout among its static arguments.
    """
    token = _IN_FORCE.set(layout)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def is_spread(n: int) -> bool:
    """Tell whether n points, as those of so many chains, are spread over devices."""
    layout = _IN_FORCE.get()
    return layout is not None and layout.chains > 1 and layout.divides(n)


def by_chain(function: Callable[..., Any], whole: Any) -> Callable[..., Any]:
    """Return `function` of `whole` and of arrays, done on each device for the chains it has.

    It must map over the first axis of the arrays and of its results: one chain's results depend on
    `whole`, such as target and q, and on what is that chain's. What it closes over may be numbers
    that are there, but nothing traced. Where there is no mesh, or chains do not divide over it, it
    is the function as it is.

    >>> by_chain(lambda a, x: a * x, 2.0)(np.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """

    def spread(*args: Any) -> Any:
        layout = _IN_FORCE.get()
        if layout is None or not is_spread(jax.tree.leaves(args)[0].shape[0]):
            return function(whole, *args)

        def alone(whole: Any, args: Any) -> Any:
            with in_force(None):
                return function(whole, *args)

        return _mapped(alone, layout)(whole, args)

    return spread


def together(tree: T) -> T:
    """Return a tree of traced arrays that are whole on every device, if there is a mesh."""
    layout = _IN_FORCE.get()
    if layout is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, jax.tree.map(lambda x: layout.sharding(), tree))


def _mapped(function: Any, layout: Layout) -> Any:
    """Spread a function of what is whole and of arrays; rows are left to the compiler."""
    apart = PartitionSpec(CHAINS)
    options: dict[str, Any] = {
        "mesh": layout.mesh,
        "in_specs": (PartitionSpec(), apart),
        "out_specs": apart,
    }
    partly = layout.rows > 1
    made: Any = shard_map
    try:
        names = {"axis_names": {CHAINS}} if partly else {}
        return made(function, check_vma=False, **names, **options)
    except TypeError:  # jax 0.6
        auto = {"auto": frozenset({ROWS})} if partly else {}
        return made(function, check_rep=False, **auto, **options)


def to_host(x: Any) -> np.ndarray[Any, Any]:
    """Return an array's numbers, wherever they lie; all processes must ask for them together."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
        x = _moved(x, NamedSharding(x.sharding.mesh, PartitionSpec()))  # type: ignore[attr-defined]
    return np.asarray(x)


def local(layout: Layout | None, tree: T) -> T:
    """Return a tree whose arrays are whole and this process's alone; as it is without a layout."""
    return tree if layout is None else jax.tree.map(_local, tree)


def _local(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return x
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = to_host(jax.random.key_data(x))
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=jax.random.key_impl(x))
    return jax.numpy.asarray(to_host(x))


@functools.partial(jax.jit, static_argnames="where")
def _moved(x: Any, where: NamedSharding) -> Any:
    return jax.lax.with_sharding_constraint(x, where)


def _placed(x: Any, where: NamedSharding) -> Any:
    is_array = isinstance(x, jax.Array)
    if is_array and x.sharding.is_equivalent_to(where, x.ndim):
        return x
    is_key = is_array and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    if is_key or (is_array and not x.is_fully_addressable):
        return _moved(x, where)
    if where.is_fully_addressable:
        return jax.device_put(x, where)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, where, lambda at: host[at])
