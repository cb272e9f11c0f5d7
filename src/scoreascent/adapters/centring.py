"""Sites of NumPyro's location–scale families, stated half way between centred and not.

A site x ~ D(loc, scale) whose location or scale is another parameter is stated by u with
x = loc + scale^(1 − c) (u − c loc): c = 1 is the model as written, c = 0 leaves D(0, 1). Which c is
best depends on what the data say of each element, and any of them is the same posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.infer.reparam import Reparam

from scoreascent._arrays import default_dtype

if TYPE_CHECKING:
    from jaxtyping import Array, Float

FAMILIES = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel)
WRAPPERS = (dist.ExpandedDistribution, dist.Independent)
SUFFIX = "_decentered"
AS_WRITTEN, AUTO = "as written", "auto"


def loc_scale(fn: Any) -> Any:
    """Return the distribution of a location–scale family that fn is made of; None if it is none."""
    while isinstance(fn, WRAPPERS):
        fn = fn.base_dist
    return fn if type(fn) in (*FAMILIES, dist.LogNormal) else None


class Partly(Reparam):  # type: ignore[misc]
    """NumPyro's site by the value u."""

    def __init__(self, centredness: Float[Array, ...]) -> None:
        self.centredness = centredness

    def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Any]:
        """Draw u, and return x."""
        c = self.centredness
        fn, shape, event_dim = self._unwrap(fn)
        is_log = isinstance(fn, dist.LogNormal)
        kind = dist.Normal if is_log else type(fn)
        extra = {"df": fn.df} if isinstance(fn, dist.StudentT) else {}
        inner = kind(loc=c * fn.loc, scale=fn.scale**c, **extra)
        u = numpyro.sample(f"{name}{SUFFIX}", self._wrap(inner, shape, event_dim))
        x = fn.loc + fn.scale ** (1 - c) * (u - c * fn.loc)
        return None, jnp.exp(x) if is_log else x


def partly(centredness: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a handler that states sites by u."""
    config = {name: Partly(c) for name, c in centredness.items()}
    return lambda function: handlers.reparam(function, config=config)


def stated(fn: Any, x: Any, c: Any) -> Any:
    """Return the u of a site's value x."""
    base = loc_scale(fn)
    x = jnp.log(x) if isinstance(base, dist.LogNormal) else x
    return (x - base.loc) * base.scale ** (c - 1) + c * base.loc


def depends(function: Callable[[Any, Any], list[Any]], z: Any, data: Any) -> list[bool]:
    """Tell which of the outputs of function(z, data) are computed from z.

    >>> depends(lambda z, data: [z + data, data * 2, jnp.ones(2)], jnp.ones(2), jnp.ones(2))
    [True, False, False]
    """
    closed = jax.make_jaxpr(function)(z, data)
    known = {id(v) for v in closed.jaxpr.invars[: len(jax.tree.leaves(z))]}
    for equation in closed.jaxpr.eqns:
        if any(id(v) in known for v in equation.invars):
            known |= {id(v) for v in equation.outvars}
    return [id(v) in known for v in closed.jaxpr.outvars]


def asked(
    centring: Any, names: dict[str, tuple[int, ...]], whys: Mapping[str, str]
) -> Float[np.ndarray, " m"] | None:
    """Return the centredness of all elements that was asked for: NaN leaves it open; None, no c.

    `names` are the sites that can be stated so, with their shapes, in the order of z; `whys` tells
    of others why they cannot.
    """
    if isinstance(centring, str) and centring in (AUTO, AS_WRITTEN):
        size = sum(int(np.prod(s)) for s in names.values())
        return np.full(size, np.nan, default_dtype()) if centring == AUTO and names else None
    if not isinstance(centring, Mapping):
        raise ValueError(
            f"centring must be 'auto', 'as written', or a dictionary of sites and numbers between "
            f"0 and 1, got {centring!r}"
        )
    for name in centring:
        if name not in names:
            why = whys.get(name, "the model has no such latent site")
            raise ValueError(f"centring: {name!r} cannot be stated otherwise, for {why}")
    parts = []
    for name, shape in names.items():
        c = np.asarray(centring.get(name, 1.0), default_dtype())
        try:
            parts.append(np.broadcast_to(c, shape).ravel())
        except ValueError:
            raise ValueError(
                f"centring[{name!r}] must have a shape that fits {shape}, got {c.shape}"
            ) from None
        if not np.all((parts[-1] >= 0) & (parts[-1] <= 1)):
            raise ValueError(f"centring[{name!r}] must lie between 0 and 1, got {centring[name]!r}")
    return np.concatenate(parts) if parts else None


def as_written(model: Any, z: Float[Array, " d"], data: Any) -> tuple[Float[Array, " d"], Any]:
    """Return z, and the data, by which all sites of a model are stated as they are written."""
    if not model.centrable:
        return z, data
    plain = (*data[:-1], jnp.ones_like(jnp.asarray(data[-1])))
    at, _ = model.centred_at()
    own = model.unconstrain(model.constrain(z, data), plain)
    return jnp.asarray(z).at[at].set(own[at]), plain


def by_site(c: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float[Array, ...]]:
    """Return the centredness of every site from that of all elements; left open, it is 1.

    >>> found = by_site(jnp.array([0.5, jnp.nan, 0]), {"a": (), "b": (2,)})
    >>> {name: c.tolist() for name, c in found.items()}
    {'a': 0.5, 'b': [1.0, 0.0]}
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    if not sizes:
        return {}
    c = jnp.broadcast_to(jnp.where(jnp.isnan(c), 1, c), (sum(sizes),))
    parts = jnp.split(c, np.cumsum(sizes)[:-1])
    return {k: part.reshape(shape) for (k, shape), part in zip(shapes.items(), parts)}


def elements(
    shapes: Mapping[str, tuple[int, ...]], centrable: tuple[str, ...]
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return where in z, which holds sites of these shapes, the centrable are, and their names.

    >>> elements({"a": (2,), "b": (), "c": (2,)}, ("c",))
    (array([3, 4]), ('c', 'c'))
    """
    names = [name for name, shape in shapes.items() for _ in range(math.prod(shape))]
    at = [i for i, name in enumerate(names) if name in centrable]
    return np.array(at, int), tuple(names[i] for i in at)
