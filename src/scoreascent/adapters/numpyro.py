"""A NumPyro model as a target: its own potential energy, with the arrays it was given as data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_sample
from numpyro.infer.util import potential_energy

from scoreascent._arrays import default_dtype
from scoreascent.adapters.centring import (
    AS_WRITTEN,
    AUTO,
    SUFFIX,
    as_written,
    asked,
    by_site,
    depends,
    elements,
    loc_scale,
    partly,
    stated,
)
from scoreascent.adapters.numpyro_call import (
    TRACING,
    Call,
    Redraw,
    Site,
    called,
    is_observed,
    site_shape,
)
from scoreascent.adapters.numpyro_enumerate import summed_energy
from scoreascent.adapters.numpyro_look import Sites, look
from scoreascent.adapters.numpyro_predict import predictions
from scoreascent.model import Model, Predicted
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Named = dict[str, Float[Array, ...]]


def from_numpyro(
    model: Callable[..., Any],
    /,
    *args: Any,
    centring: str | Mapping[str, Any] = AUTO,
    **kwargs: Any,
) -> Target:
    """The posterior of a NumPyro model, called as `model(*args, **kwargs)`.

    The density on ℝᵈ is that of NumPyro's own samplers; z holds the unconstrained values of the
    latent sites in the order of the model. Arrays among the arguments, in containers too, are the
    target's data: other arrays of the same shapes do not recompile, and targets that differ only
    in them can be fitted as one list. Everything else (Python and NumPy scalars, strings, flags)
    is fixed, so that a model can use it as the size of a plate or in an `if`.

    `centring` says how sites of location–scale families (Normal, LogNormal, StudentT, Cauchy,
    Laplace, Logistic, Gumbel) are stated on ℝᵈ whose location or scale is another parameter:
    "auto" leaves it to `fit(target)`, which looks how much the data say of each element, and states
    it as written, non-centred, or in between; "as written"; or a dictionary of sites and numbers
    between 1, as written, and 0. The posterior, its names, draws and predictions are those of the
    model in every case; z, and the means of q, are not: `result.target` is the target they are of.

    Discrete latent sites that NumPyro can enumerate are summed out (extra `enumerate`). Of
    observations with `obs_mask` the missing ones are parameters. A model that looks at the values
    of arrays (`int(group.max())`) holds these itself: `print(target)` shows which, and other values
    compile anew. Subsampling plates, `numpyro.param` and `numpyro.prng_key` are refused.

    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> from_numpyro(model, jnp.array([0.5, 1.5]))
    Target(NumPyroModel(model(…), params=['mu']))
    """
    if not callable(model):
        raise ValueError(f"model must be a function with NumPyro's primitives, got {model!r}")
    call, data = called(model, args, kwargs)
    try:
        call, data, sites = look(call, data)
        found = NumPyroModel(call, sites)
        names = _centrable(found, data) if centring != AS_WRITTEN else {}
        why = "its distribution is of no location–scale family, or has constant parameters"
        c = asked(centring, names, dict.fromkeys(found.site_names, why))
        if c is None:
            return Target(found, dim=found.dim, data=data)
        return Target(replace(found, centrable=tuple(names)), dim=found.dim, data=(*data, c))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, AssertionError) as error:
        error.add_note(
            "from_numpyro: a model must have the same sites at every call. Arrays among its "
            "arguments and the values of its sites are abstract while it is compiled, so give "
            "sizes and flags as Python numbers, use jnp.where in place of `if`, or close over "
            "arrays whose values the model needs: from_numpyro(lambda y: model(groups, y), y)."
        )
        raise


@dataclass(frozen=True, repr=False)
class NumPyroModel(Model):
    """The log density of a NumPyro model and all that it says of its sites."""

    call: Call
    sites: Sites
    centrable: tuple[str, ...] = ()  # sites stated by another value; data ends with their c

    @property
    def dim(self) -> int:  # type: ignore[override]
        """The numbers of z."""
        return self.sites.dim

    @property
    def site_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The latent sites, in the model's order."""
        return self.sites.site_names

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Their shapes."""
        return self.sites.shapes

    @property
    def free_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of their unconstrained values."""
        return self.sites.free_shapes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done with the model that its author may not expect."""
        told = []
        if self.sites.looked:
            told.append(
                f"model: it looks at the values of {', '.join(self.sites.looked)}, which are "
                "constants of the compiled loop"
            )
        if self.sites.summed:
            told.append(f"model: summed over the discrete {', '.join(self.sites.summed)}")
        return tuple(told)

    def __call__(self, z: Float[Array, " d"], data: Any) -> Float[Array, ""]:
        """NumPyro's potential energy at z, negated."""
        function = self._stated(data)(self.call.function)
        args, kwargs = self.call.fill(data)
        if self.sites.summed:
            return -summed_energy(function, args, kwargs, self._split(z), self.sites.nesting)
        with TRACING:
            return -potential_energy(function, args, kwargs, self._split(z))

    def constrain(self, z: Float[Array, " d"], data: Any) -> Named:
        """The latent sites at z inside their supports, and the deterministic sites."""
        values = self.everywhere(z, data)
        for name, (at, _) in self.sites.missing:
            shape = dict(zip(self.site_names, self.shapes))[name]
            values[name] = values[name].reshape(-1, *shape[1:])[np.array(at, int)]
        return values

    def everywhere(self, z: Float[Array, " d"], data: Any) -> Named:
        """As `constrain`, but sites that are partly observed have some value there too."""
        sites = self._trace(data, self._at(z))
        computed = [k for k, s in sites.items() if s["type"] == "deterministic"]
        if self.sites.summed:  # the others depend on what is summed out
            computed = [k for k in computed if k in self.sites.computed]
        names = dict.fromkeys((*self.site_names, *computed))
        return {k: jnp.asarray(sites[k]["value"]) for k in names}

    def unconstrain(self, values: Any, data: Any) -> Float[Array, " d"]:
        """The z of a dictionary of latent values; names that are not latent sites are ignored."""
        if not isinstance(values, Mapping) or not values.keys() >= set(self.site_names):
            got = list(values) if isinstance(values, Mapping) else values
            raise ValueError(f"values must be a dictionary of {self.site_names}, got {got!r}")
        latent = {k: jnp.asarray(values[k], float) for k in self.site_names}
        for (name, value), shape in zip(latent.items(), self.shapes):
            if value.shape != shape:
                raise ValueError(f"values[{name!r}] must have shape {shape}, got {value.shape}")
        whole = latent | {k: self._spread(k, x) for k, x in latent.items() if k in self._missing}
        sites = self._seeded(data, lambda f: handlers.substitute(f, data=whole))
        centredness = self._centredness(data)
        free = [
            stated(sites[k]["fn"], v, centredness[k])
            if k in centredness
            else biject_to(sites[k]["fn"].support).inv(v)
            for k, v in latent.items()
        ]
        return jnp.concatenate([jnp.ravel(x) for x in free])

    def log_likelihood(self, z: Float[Array, " d"], data: Any) -> Named:
        """The log density of every observation; what `numpyro.factor` adds is not among them.

        None where discrete sites are summed out, which observations may have in common.
        """
        if self.sites.summed:
            return {}
        sites = self._trace(data, self._at(z))
        return {k: s["fn"].log_prob(s["value"]) for k, s in sites.items() if is_observed(s)}

    def predict(self, key: PRNGKeyArray, z: Float[Array, " d"], data: Any) -> Named:
        """New observations of the shapes of the old, drawn at z; later sites see the new ones."""
        redraw = Redraw()
        sites = self._trace(data, self._at(z), redraw, lambda f: handlers.seed(f, key))
        return {name: sites[name]["value"] for name in redraw.names}

    def predictions(
        self,
        key: PRNGKeyArray,
        z: Float[Array, "n d"],
        data: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        anew: Sequence[str] = (),
    ) -> Predicted:
        """What the model says at draws z, with other arguments if any are given."""
        latent = _constrained(self, z, data)
        call = self.call
        if args or kwargs:
            call, data = called(call.function, args, dict(kwargs or {}))
        return predictions(call, key, {k: latent[k] for k in self.site_names}, data, anew)

    def observed(self, data: Any) -> Named:
        """The values of the observed sites."""
        sites = self._trace(data, self._at(jnp.zeros(self.dim)))
        kept = {k: s for k, s in sites.items() if is_observed(s)}
        return {k: jnp.broadcast_to(s["value"], site_shape(s)) for k, s in kept.items()}

    def initial(self, key: PRNGKeyArray, data: Any) -> Float[Array, " d"]:
        """A draw of the prior; a site whose prior has no draws is near zero, unconstrained."""
        return _prior_draw(self, key, data)

    @property
    def _missing(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        return dict(self.sites.missing)

    def as_written(self, z: Float[Array, " d"], data: Any) -> tuple[Float[Array, " d"], Any]:
        """The z of the model with no site stated otherwise, and the data that say so."""
        return as_written(self, z, data)

    def for_nuts(self, library: str, z: Float[Array, "n d"], metric: Any, data: Any) -> Any:
        """Arguments of NumPyro's `NUTS`, and of `MCMC.run`, for the model itself."""
        if library != "numpyro":
            return None
        args, kwargs = self.call.fill(data)
        names, dense = self.site_names, np.ndim(metric) == 2
        kernel = {
            "model": functools.partial(self.call.function, *args, **kwargs),
            "inverse_mass_matrix": {names: jnp.asarray(metric)},
            "dense_mass": [names] if dense else [],
            "adapt_mass_matrix": False,
        }
        stops = np.cumsum([math.prod(s) for s in self.free_shapes])
        parts = zip(names, jnp.split(z, stops[:-1], axis=-1), self.free_shapes)
        lead = jnp.shape(z)[:-1]
        return kernel, {"init_params": {k: x.reshape(*lead, *s) for k, x, s in parts}}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The plates of every site that is in any, from the left; event axes have no names."""
        return dict(self.sites.axes)

    def centred_at(self) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        """Return where in z the elements are that data has the centredness of, and their sites."""
        return elements(dict(zip(self.site_names, self.free_shapes)), self.centrable)

    def _centredness(self, data: Any) -> Named:
        """The centredness of every site that is stated by another value; left open, it is 1."""
        shapes = dict(zip(self.site_names, self.shapes))
        if not self.centrable:
            return {}
        return by_site(data[-1], {k: shapes[k] for k in self.centrable})

    def _stated(self, data: Any) -> Callable[[Any], Any]:
        """A handler that states those sites so."""
        return partly(self._centredness(data)) if self.centrable else lambda function: function

    def _trace(self, data: Any, *wraps: Callable[[Any], Any]) -> dict[str, Site]:
        return self._seeded(data, self._stated(data), *wraps)

    def _seeded(self, data: Any, *wraps: Callable[[Any], Any]) -> dict[str, Site]:
        """A run in which sites that are summed out have some value."""
        if self.sites.summed:
            wraps = (*wraps, lambda f: handlers.seed(f, jax.random.key(0)))
        return self.call.trace(data, *wraps)

    def _site(self, name: str) -> str:
        """The name of the site whose value z holds."""
        return f"{name}{SUFFIX}" if name in self.centrable else name

    def _split(self, z: Float[Array, " d"]) -> Named:
        stops = np.cumsum([math.prod(s) for s in self.free_shapes])
        parts = zip(self.site_names, jnp.split(z, stops[:-1]), self.free_shapes)
        free = {name: part.reshape(shape) for name, part, shape in parts}
        for name, (at, shape) in self.sites.missing:
            free[name] = _spread(free[name], at, shape)
        return {self._site(name): x for name, x in free.items()}

    def _spread(self, name: str, values: Any) -> Any:
        """All entries of a site that is partly observed: these where they are missing."""
        at, free = self._missing[name]
        batch = len(free) - (values.ndim - 1)
        return _spread(values, at, (*free[:batch], *values.shape[1:]))

    def _at(self, z: Float[Array, " d"]) -> Callable[[Any], Any]:
        """A handler that gives every latent site its value at z."""
        free = self._split(z)

        def value(site: Site) -> Any:
            if site["type"] == "sample" and site["name"] in free:
                return biject_to(site["fn"].support)(free[site["name"]])
            return None

        return lambda function: handlers.substitute(function, substitute_fn=value)

    def __repr__(self) -> str:
        holds = f", holds={list(self.sites.looked)}" if self.sites.looked else ""
        return f"NumPyroModel({self.call!r}, params={list(self.site_names)}{holds})"


@functools.partial(jax.jit, static_argnums=0)
def _prior_draw(model: NumPyroModel, key: PRNGKeyArray, data: Any) -> Float[Array, " d"]:
    sites = model._trace(
        data,
        lambda f: handlers.seed(f, key),
        lambda f: handlers.substitute(f, substitute_fn=init_to_sample),
    )
    latent = {k: sites[model._site(k)] for k in model.site_names}
    free = {k: biject_to(s["fn"].support).inv(s["value"]) for k, s in latent.items()}
    for name, (at, _) in model.sites.missing:
        shape = dict(zip(model.site_names, model.free_shapes))[name]
        free[name] = free[name].reshape(-1, *shape[1:])[np.array(at, int)]
    return jnp.concatenate([jnp.ravel(x) for x in free.values()])


def _spread(values: Any, at: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return an array of zeros of this shape, with the values at some of its leading entries."""
    rows = jnp.zeros((math.prod(shape) // max(1, math.prod(values.shape[1:])), *values.shape[1:]))
    return rows.astype(values.dtype).at[np.array(at, int)].set(values).reshape(shape)


@functools.partial(jax.jit, static_argnums=0)
def _constrained(model: NumPyroModel, z: Float[Array, "n d"], data: Any) -> Named:
    return jax.vmap(model.everywhere, (0, None))(z, data)


def _centrable(model: NumPyroModel, data: Any) -> dict[str, tuple[int, ...]]:
    """Return the sites, with their shapes, whose location or scale is another parameter."""
    if model.sites.summed:
        return {}
    candidates: list[str] = []

    def numbers(z: Any, data: Any) -> list[Any]:
        sites = model.call.trace(data, model._at(z))
        found = {k: loc_scale(sites[k]["fn"]) for k in model.site_names}
        candidates[:] = [k for k, fn in found.items() if fn is not None]
        return [jnp.asarray(x) for k in candidates for x in (found[k].loc, found[k].scale)]

    shape = jax.ShapeDtypeStruct((model.dim,), default_dtype())
    moves = depends(numbers, shape, tuple(data))
    shapes = dict(zip(model.site_names, model.shapes))
    pairs = zip(candidates, moves[::2], moves[1::2])
    found = [k for k, loc, scale in pairs if loc or scale]
    return {k: shapes[k] for k in found if _can_be_stated(model, k, shapes[k], shape, data)}


def _can_be_stated(
    model: NumPyroModel, name: str, size: tuple[int, ...], z: Any, data: Any
) -> bool:
    """Tell whether a site can have another value: not in a `scan`, say, or if it is masked."""
    other = replace(model, centrable=(name,))
    c = jax.ShapeDtypeStruct((math.prod(size),), default_dtype())
    try:
        jax.eval_shape(other, z, (*data, c))
    except Exception:  # what a model's own handlers raise can be anything
        return False
    return True
