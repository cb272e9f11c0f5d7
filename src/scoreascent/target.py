"""The posterior: a log density on ℝᵈ, with its data as leaves and its parameters named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from scoreascent._arrays import canonical, default_dtype
from scoreascent._structs import check_count
from scoreascent.foreign import Foreign, Gradient, foreign
from scoreascent.model import Model, Param
from scoreascent.streamed import Streamed, check_sum, streamed

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

# If so many numbers are data, few densities must do. Below, one takes less than half a millisecond,
# and the forty thousand of a fit now and then land in a narrow part that no search finds.
MANY_DATA = 2_000_000


class Target:
    """An unnormalised log density π on ℝᵈ.

    Two ways to state it:

    - `Target(log_density, dim=3)`: `log_density(z)` takes a vector of three numbers.
    - `Target(log_density, params={"beta": Param(shape=(3,)), "sigma": constraints.positive})`:
      `log_density(params)` takes a dictionary (or any nesting of dictionaries, lists and tuples)
      of values inside their supports. The unconstraining transforms and their Jacobians are
      NumPyro's.

    With `data`, the function is called as `log_density(z, data)`. Data given so are arguments of
    the compiled loop rather than constants in it: they do not slow the compiler down, and other
    data of the same shape do not recompile.

    `rows` says which of the data have one row an observation, along their first axis, so that
    `fit(mesh=…)` can spread them: True for all, a tree of True and False in the shape of the data
    (or of their upper part), or names of a dictionary's entries. What an adapter makes knows it by
    itself where its observations tell.

    With `piece`, rows stay with the host, in memory or in files (`numpy.memmap`), and so many at a
    time are read within each density, for all chains at once: for data that do not fit on the
    device. `log_density` must then be a sum over rows, and a part that all of them share; two
    halves of the first rows tell whether it is.

    `log_density` must return a real scalar. −∞ is a legal value (the point is outside the
    support); NaN is never accepted by a kernel, and is counted and reported.

    >>> import jax.numpy as jnp
    >>> target = Target(lambda z: -0.5 * jnp.sum(z**2), dim=3)
    >>> float(target.log_prob(jnp.ones(3)))
    -1.5
    >>> from numpyro.distributions import constraints
    >>> target = Target(lambda p: -p["scale"], params={"scale": constraints.positive})
    >>> float(target.log_prob(jnp.zeros(1)))  # log p(1) + log |d scale / d z| = −1 + 0
    -1.0
    """

    def __init__(
        self,
        log_density: Callable[..., Any],
        dim: int | None = None,
        *,
        params: Any = None,
        data: Any = None,
        rows: Any = None,
        piece: int | None = None,
    ) -> None:
        if not callable(log_density):
            raise ValueError(f"log_density must be a function, got {log_density!r}")
        try:
            hash(log_density)
        except TypeError:
            raise ValueError(
                f"log_density must be hashable so that compiled code can be reused; wrap "
                f"{log_density!r} in a function"
            ) from None
        if (dim is None) == (params is None):
            raise ValueError("give exactly one of dim (a density on ℝᵈ) and params (named ones)")
        if piece is None:
            self.log_density, self.data = log_density, canonical(data, "data")
            self.rows = stated_rows(rows, self.data)
        else:
            flags = stated_rows(rows, data)
            if flags is None or isinstance(log_density, Model | Foreign):
                raise ValueError(
                    "piece is for a plain log_density whose data have rows: say which by rows=True"
                )
            self.log_density, self.data = streamed(log_density, data, flags, piece)
            self.rows = None  # they are with the host
        if params is None:
            dim = check_count("dim", dim, 1)
            specs, self._tree = [Param(constraints.real, (dim,))], None
        else:
            leaves, self._tree = jax.tree.flatten(params, is_leaf=_is_param)
            names = [
                _path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(params, _is_param)
            ]
            specs = [_as_param(name, leaf) for name, leaf in zip(names, leaves)]
            if not specs:
                raise ValueError("params must name at least one parameter, got an empty container")
            if len(set(names)) < len(names):
                raise ValueError(f"params must have one name for each parameter, got {names}")
        self.supports: tuple[Constraint, ...] = tuple(s.support for s in specs)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(s.shape for s in specs)
        self.site_names: tuple[str, ...] = ("z",) if params is None else tuple(names)
        if self.model is not None:
            self.site_names = self.model.site_names
        self._free_shapes = tuple(
            _free_shape(name, spec) for name, spec in zip(self.site_names, specs)
        )
        self.dim: int = check_count(
            "dim", sum(math.prod(s) for s in self._free_shapes), 1, " (params have no free entry)"
        )
        if isinstance(self.log_density, Streamed):
            check_sum(self.log_density, lambda z: self._constrain(z)[0], self.dim, self.data)
        self._check_output()

    @classmethod
    def from_host(
        cls,
        log_density: Callable[..., Any],
        gradient: Gradient | None = None,
        *,
        dim: int,
        batched: bool = False,
        threads: int | None = None,
    ) -> Target:
        """A log density that is not JAX's: NumPy's, or of compiled code such as Stan's.

        `log_density(z)` takes a vector of d numbers (64 bits, numpy's) and returns one; if
        `batched`, an array (n, d) and returns n. It is called from the compiled loop, for all
        chains at once, with one point after the other, or in so many `threads` (for functions that
        let go of Python's lock), unless it is batched.

        `gradient(z)` returns its gradient; "returned" says that `log_density` returns the pair of
        both; "differences" computes it by differences, at 2d densities each. It is held against
        differences at three places, and a wrong one is refused. Without one, `fit(target)` finds
        its start by particles and goes on with independent proposals, and says what that gives up.

        NaN is never accepted, −∞ is a legal value; what a function raises ends the fit with an
        error that names the point. Derivatives beyond the first are differences of the gradient.

        >>> target = Target.from_host(lambda z: -0.5 * np.sum(z**2), lambda z: -z, dim=3)
        >>> float(target.log_prob(jnp.ones(3))), jax.grad(target.log_prob)(jnp.ones(3)).tolist()
        (-1.5, [-1.0, -1.0, -1.0])
        """
        return cls(foreign(log_density, gradient, dim, batched, threads), dim=dim)

    @property
    def is_foreign(self) -> bool:
        """Whether the density is not JAX's, but called back."""
        return isinstance(self.log_density, Foreign)

    def take_raised(self) -> BaseException | None:
        """Return what a density of the host's has raised, which jax tells in its own words alone.

        It is told once.
        """
        if not isinstance(self.log_density, Foreign) or not self.log_density.raised:
            return None
        found = self.log_density.raised[0]
        self.log_density.raised.clear()
        return found

    # -- the density ---------------------------------------------------------------------------

    @property
    def model(self) -> Model | None:
        """The model that an adapter made the target of; None if it is a plain function."""
        return self.log_density if isinstance(self.log_density, Model) else None

    @property
    def is_named(self) -> bool:
        """Whether its parameters have names and supports; else it is a density of the vector z."""
        return self.model is not None or self._tree is not None

    @property
    def data_size(self) -> int:
        """How many numbers the density is told as data."""
        own = getattr(self.log_density, "data_size", 0)  # of rows that are with the host
        return own + sum(int(np.size(x)) for x in jax.tree.leaves(self.data))

    def row_leaves(self) -> tuple[bool, ...] | None:
        """Tell of each array of the data whether it has rows; None if that is not known."""
        if self.rows is not None or self.model is None:
            return self.rows
        seen = jax.eval_shape(self.model.observed, self.data)
        n = max((x.shape[0] for x in jax.tree.leaves(seen) if x.ndim), default=0)
        found = tuple(np.shape(x)[:1] == (n,) for x in jax.tree.leaves(self.data))
        return found if n > 1 and any(found) else None

    def initial(self, key: PRNGKeyArray) -> Float[Array, " d"] | None:
        """Return a place where the model itself would begin; None if it knows of none."""
        return None if self.model is None else self.model.initial(key, self.data)

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return the log density of the unconstrained `z`, Jacobians of the transforms included."""
        value, log_det = self._constrain(z)
        takes_data = self.data is not None or self.model is not None
        args = (value, self.data) if takes_data else (value,)
        log_p = self.log_density(*args)
        return log_p if log_det is None else log_p + log_det

    def constrain(self, z: Float[Array, " d"]) -> Any:
        """Return the parameters, in their supports, at the unconstrained `z`.

        For a target stated by `dim` this is `z` itself.
        """
        if self.model is not None:
            return self.model.constrain(z, self.data)
        return self._constrain(z)[0]

    def unconstrain(self, params: Any) -> Float[Array, " d"]:
        """Return the `z` of parameters, the inverse of `constrain`.

        >>> import jax.numpy as jnp
        >>> target = Target(lambda p: -p["s"], params={"s": constraints.positive})
        >>> target.unconstrain({"s": jnp.e}).tolist()
        [1.0]
        """
        if self.model is not None:
            return self.model.unconstrain(params, self.data)
        if self._tree is None:
            return jnp.asarray(params)
        leaves = self._tree.flatten_up_to(params)
        parts = []
        for name, support, shape, leaf in zip(self.site_names, self.supports, self.shapes, leaves):
            leaf = jnp.asarray(leaf)
            if leaf.shape != shape:
                raise ValueError(f"params[{name!r}] must have shape {shape}, got {leaf.shape}")
            parts.append(jnp.ravel(biject_to(support).inv(leaf)))
        return jnp.concatenate(parts)

    def structured(self, named: dict[str, Any]) -> Any:
        """Return named parameters as `constrain` gives them: the inverse of what `named` does."""
        if self.model is not None:
            return named
        if self._tree is None:
            return named["z"]
        return self._tree.unflatten([named[name] for name in self.site_names])

    def named(self, z: Float[Array, " d"]) -> dict[str, Float[Array, ...]]:
        """Return the constrained parameters at `z` as a flat dictionary; `{"z": z}` if unnamed."""
        if self.model is not None:
            return self.model.constrain(z, self.data)
        if self._tree is None:
            return {"z": z}
        return dict(zip(self.site_names, self._tree.flatten_up_to(self.constrain(z))))

    def _constrain(self, z: Float[Array, " d"]) -> tuple[Any, Float[Array, ""] | None]:
        if self._tree is None:
            return z, None
        values, log_det, start = [], jnp.zeros((), z.dtype), 0
        for support, shape in zip(self.supports, self._free_shapes):
            stop = start + math.prod(shape)
            free = z[start:stop].reshape(shape)
            transform = biject_to(support)
            value = transform(free)
            log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(free, value))
            values.append(value)
            start = stop
        return self._tree.unflatten(values), log_det

    # -- checks and plumbing -------------------------------------------------------------------

    def _check_output(self) -> None:
        z = jax.ShapeDtypeStruct((self.dim,), default_dtype())
        out = jax.eval_shape(self.log_prob, z)
        if not hasattr(out, "shape") or out.shape != ():
            shape = getattr(out, "shape", type(out).__name__)
            raise ValueError(
                f"log_density must return a scalar, got shape {shape}; sum over the observations"
            )
        if not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(f"log_density must return a real float, got dtype {out.dtype}")

    def _static(self) -> tuple[Any, ...]:
        return (self.log_density, self.shapes, self.site_names, self._free_shapes, self._tree,
                self.dim, self.rows)  # fmt: skip

    def __repr__(self) -> str:
        name = getattr(self.log_density, "__qualname__", repr(self.log_density))
        if self.model is not None:
            return f"Target({self.model!r})"
        what = f"dim={self.dim}" if self._tree is None else f"params={list(self.site_names)}"
        data = "" if self.data is None else ", data=…"
        return f"Target({name}, {what}{data})"


def _flatten(target: Target) -> tuple[Any, Any]:
    return (target.data, target.supports), target._static()


def _unflatten(static: Any, children: Any) -> Target:
    target = object.__new__(Target)
    target.data, target.supports = children
    (target.log_density, target.shapes, target.site_names, target._free_shapes, target._tree,
     target.dim, target.rows) = static  # fmt: skip
    return target


jax.tree_util.register_pytree_with_keys(
    Target,
    lambda t: (
        ((jax.tree_util.GetAttrKey("data"), t.data),
         (jax.tree_util.GetAttrKey("supports"), t.supports)),
        t._static(),
    ),
    _unflatten,
    _flatten,
)  # fmt: skip


def stack(targets: list[Target] | tuple[Target, ...]) -> Target:
    """Stack targets that differ only in their data along a new leading axis of every leaf."""
    if not targets or not all(isinstance(t, Target) for t in targets):
        raise ValueError("targets must be a non-empty list of Target objects")
    structures: list[Any] = [jax.tree.structure(t) for t in targets]
    if any(s != structures[0] for s in structures):
        raise ValueError(
            "targets must share one log_density, one set of params and one structure of data; "
            "only the numbers in data may differ"
        )
    shapes = [[jnp.shape(x) for x in jax.tree.leaves(t)] for t in targets]
    if any(s != shapes[0] for s in shapes):
        raise ValueError(
            "targets must have data of the same shape; pad them, or fit them one by one"
        )
    return jax.tree.map(_stacked, *targets)


def _stacked(*leaves: Any) -> Any:
    """Stack arrays, on the host where they are there: nothing is compiled for their number."""
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        return jnp.stack([jnp.asarray(x) for x in leaves])
    return jnp.asarray(np.stack([np.asarray(x) for x in leaves]))


def stated_rows(rows: Any, data: Any) -> tuple[bool, ...] | None:
    """Return of each leaf of the data whether it has rows, or raise a ValueError that says why not.

    >>> stated_rows(["x"], {"x": np.zeros((5, 2)), "prior": np.zeros(2)})
    (False, True)
    """
    if rows is None or rows is False:
        return None
    names = [_path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(data)]
    if isinstance(rows, list | tuple) and rows and all(isinstance(x, str) for x in rows):
        if not isinstance(data, dict) or not set(rows) <= set(data):
            known = f"entries {list(data)}" if isinstance(data, dict) else "no names"
            raise ValueError(f"rows names {list(rows)}, but data has {known}")
        rows = {name: name in rows for name in data}
    try:
        told = jax.tree.map(lambda r, x: jax.tree.map(lambda _: r, x), rows, data)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"rows must be True, a tree of True and False in the shape of data, or names of its "
            f"entries, got {rows!r}: {error}"
        ) from None
    flags = jax.tree.leaves(told)
    if not names or not all(isinstance(x, bool) for x in flags) or not any(flags):
        raise ValueError(f"rows must say True of some of the data, got {rows!r}")
    lengths = {}
    for name, flag, leaf in zip(names, flags, jax.tree.leaves(data)):
        if flag:
            lengths[name] = np.shape(leaf)[0] if np.ndim(leaf) else None
    if None in lengths.values() or len(set(lengths.values())) > 1:
        raise ValueError(f"rows must be as many in all data that have them, got {lengths}")
    return tuple(flags)


def _is_param(x: Any) -> bool:
    return isinstance(x, Param | Constraint)


def _as_param(name: str, leaf: Any) -> Param:
    param = leaf if isinstance(leaf, Param) else Param(leaf)
    if not isinstance(param.support, Constraint):
        raise ValueError(f"params[{name!r}] must be a Param or a numpyro constraint, got {leaf!r}")
    try:
        discrete = param.support.is_discrete
    except NotImplementedError:  # a support that depends on another value
        raise ValueError(
            f"params[{name!r}]: the support {param.support} depends on values that are not given"
        ) from None
    if discrete:
        raise ValueError(f"params[{name!r}] has a discrete support; marginalise it out first")
    shape = tuple(check_count(f"params[{name!r}].shape", s, 0) for s in np.atleast_1d(param.shape))
    return Param(param.support, shape)


def _free_shape(name: str, spec: Param) -> tuple[int, ...]:
    if len(spec.shape) < spec.support.event_dim:
        raise ValueError(
            f"params[{name!r}]: support {spec.support} needs a shape of at least "
            f"{spec.support.event_dim} axes, got {spec.shape}"
        )
    try:
        return tuple(biject_to(spec.support).inverse_shape(spec.shape))
    except NotImplementedError:
        raise ValueError(f"params[{name!r}]: numpyro has no transform to {spec.support}") from None
    except ValueError as error:
        message = f"params[{name!r}]: no value of shape {spec.shape} is in {spec.support}: {error}"
        raise ValueError(message) from None


def _path_name(path: Any) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
