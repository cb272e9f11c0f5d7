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
from numpyro.primitives import Messenger

from scoreascent._arrays import canonical_dtype, default_dtype
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
from scoreascent.adapters.numpyro_call import Call, Redraw, Site, called, is_observed, site_shape
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

    Discrete latent sites, subsampling plates, `obs_mask`, `numpyro.param` and `numpyro.prng_key`
    are refused.

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
        found = _look(call, data)
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
    dim: int
    site_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    free_shapes: tuple[tuple[int, ...], ...]  # of the unconstrained values
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    centrable: tuple[str, ...] = ()  # sites stated by another value; data ends with their c

    def __call__(self, z: Float[Array, " d"], data: Any) -> Float[Array, ""]:
        """NumPyro's potential energy at z, negated."""
        function = self._stated(data)(self.call.function)
        return -potential_energy(function, *self.call.fill(data), self._split(z))

    def constrain(self, z: Float[Array, " d"], data: Any) -> Named:
        """The latent sites at z inside their supports, and the deterministic sites."""
        sites = self._trace(data, self._at(z))
        wanted = {*self.site_names, *(k for k, s in sites.items() if s["type"] == "deterministic")}
        found = {k: jnp.asarray(s["value"]) for k, s in sites.items() if k in wanted}
        return {k: found[k] for k in dict.fromkeys((*self.site_names, *found))}

    def unconstrain(self, values: Any, data: Any) -> Float[Array, " d"]:
        """The z of a dictionary of latent values; names that are not latent sites are ignored."""
        if not isinstance(values, Mapping) or not values.keys() >= set(self.site_names):
            got = list(values) if isinstance(values, Mapping) else values
            raise ValueError(f"values must be a dictionary of {self.site_names}, got {got!r}")
        latent = {k: jnp.asarray(values[k], float) for k in self.site_names}
        for (name, value), shape in zip(latent.items(), self.shapes):
            if value.shape != shape:
                raise ValueError(f"values[{name!r}] must have shape {shape}, got {value.shape}")
        sites = self.call.trace(data, lambda f: handlers.substitute(f, data=latent))
        centredness = self._centredness(data)
        free = [
            stated(sites[k]["fn"], v, centredness[k])
            if k in centredness
            else biject_to(sites[k]["fn"].support).inv(v)
            for k, v in latent.items()
        ]
        return jnp.concatenate([jnp.ravel(x) for x in free])

    def log_likelihood(self, z: Float[Array, " d"], data: Any) -> Named:
        """The log density of every observation; what `numpyro.factor` adds is not among them."""
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
        return dict(self.axes)

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
        return self.call.trace(data, self._stated(data), *wraps)

    def _site(self, name: str) -> str:
        """The name of the site whose value z holds."""
        return f"{name}{SUFFIX}" if name in self.centrable else name

    def _split(self, z: Float[Array, " d"]) -> Named:
        stops = np.cumsum([math.prod(s) for s in self.free_shapes])
        parts = zip(self.site_names, jnp.split(z, stops[:-1]), self.free_shapes)
        return {self._site(name): part.reshape(shape) for name, part, shape in parts}

    def _at(self, z: Float[Array, " d"]) -> Callable[[Any], Any]:
        """A handler that gives every latent site its value at z."""
        free = self._split(z)

        def value(site: Site) -> Any:
            if site["type"] == "sample" and site["name"] in free:
                return biject_to(site["fn"].support)(free[site["name"]])
            return None

        return lambda function: handlers.substitute(function, substitute_fn=value)

    def __repr__(self) -> str:
        return f"NumPyroModel({self.call!r}, params={list(self.site_names)})"


@functools.partial(jax.jit, static_argnums=0)
def _prior_draw(model: NumPyroModel, key: PRNGKeyArray, data: Any) -> Float[Array, " d"]:
    sites = model._trace(
        data,
        lambda f: handlers.seed(f, key),
        lambda f: handlers.substitute(f, substitute_fn=init_to_sample),
    )
    latent = [sites[model._site(k)] for k in model.site_names]
    free = [biject_to(s["fn"].support).inv(s["value"]) for s in latent]
    return jnp.concatenate([jnp.ravel(x) for x in free])


@functools.partial(jax.jit, static_argnums=0)
def _constrained(model: NumPyroModel, z: Float[Array, "n d"], data: Any) -> Named:
    return jax.vmap(model.constrain, (0, None))(z, data)


class _Refuse(Messenger):  # type: ignore[misc]
    """Raises for what has no one fixed density on ℝᵈ; gives latent sites their value at z = 0."""

    def process_message(self, msg: Site) -> None:
        kind, name = msg["type"], msg.get("name")
        if kind in ("param", "prng_key"):
            what = "prng_key()" if kind == "prng_key" else f"param({name!r})"
            raise ValueError(
                f"model: numpyro.{what} is not supported, for the density must be one function of "
                "its sites; use numpyro.sample, or pass the value as an argument"
            )
        if kind == "plate" and msg["args"][1] not in (None, msg["args"][0]):
            raise ValueError(
                f"model: plate {name!r} subsamples {msg['args'][1]} of {msg['args'][0]} rows; "
                "minibatches are not supported because chains need one fixed density"
            )
        if kind == "sample" and not msg["is_observed"]:
            transform = _transform(msg)
            if msg["value"] is None:
                shape = transform.inverse_shape(msg["kwargs"]["sample_shape"] + msg["fn"].shape())
                msg["value"] = transform(jnp.zeros(shape))


def _transform(site: Site) -> Any:
    """From ℝ to the support of a latent site."""
    support = site["fn"].support
    what = f"model: site {site['name']!r} ({type(site['fn']).__name__})"
    try:
        if support is None:
            raise ValueError(f"{what} has no support; its distribution must say what it is")
        if support.is_discrete:
            raise ValueError(
                f"{what} is discrete and not observed; marginalise it, for example with "
                "dist.MixtureSameFamily: enumeration is not supported"
            )
        return biject_to(support)
    except NotImplementedError:
        raise ValueError(
            f"{what}: numpyro has no transform from ℝ to the support {support}; state the site by "
            "unconstrained ones, for example with numpyro.handlers.reparam"
        ) from None


def _look(call: Call, data: tuple[Any, ...]) -> NumPyroModel:
    """Find out what the model's sites are, from one run on abstract arrays."""
    found: dict[str, Any] = {}

    def run(data: tuple[Any, ...]) -> None:
        sites = call.trace(data, _Refuse(), lambda f: handlers.seed(f, jax.random.key(0)))
        latent = {k: s for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
        _refuse_half_observed(sites)
        shapes = [jnp.shape(s["value"]) for s in latent.values()]
        free = [tuple(_transform(s).inverse_shape(x)) for s, x in zip(latent.values(), shapes)]
        axes = {k: _axes(s) for k, s in sites.items() if s.get("cond_indep_stack")}
        found.update(site_names=tuple(latent), shapes=tuple(shapes), free_shapes=tuple(free),
                     axes=tuple(x for x in axes.items() if x[1]),
                     dim=sum(map(math.prod, free)))  # fmt: skip

    jax.eval_shape(run, tuple(jax.ShapeDtypeStruct(x.shape, canonical_dtype(x)) for x in data))
    if not found["site_names"]:
        raise ValueError("model has no latent site, that is, no numpyro.sample without obs")
    return NumPyroModel(call, **found)


def _centrable(model: NumPyroModel, data: Any) -> dict[str, tuple[int, ...]]:
    """Return the sites, with their shapes, whose location or scale is another parameter."""
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


def _refuse_half_observed(sites: dict[str, Site]) -> None:
    """NumPyro makes of `obs_mask` a latent site that is flat where the data are: no density."""
    for name in sites:
        first, _, last = name.rpartition("_")
        if last == "unobserved" and f"{first}_observed" in sites and first in sites:
            raise ValueError(
                f"model: site {first!r} has obs_mask, which is not supported: it makes a latent "
                "value of every entry, and the density is flat in those that are observed; "
                "sample the missing values as a site of their own, and observe the rest"
            )


def _axes(site: Site) -> tuple[str, ...]:
    """The names of a site's axes up to the last that is a plate's."""
    plates = {frame.dim: frame for frame in site["cond_indep_stack"]}
    if site["type"] == "sample" and jnp.size(site["value"]):
        ndim = len(site_shape(site)) - site["fn"].event_dim
    else:  # a deterministic site may have event axes, unless the plates are all of it
        sizes = [plates[i].size if i in plates else 1 for i in range(min(plates), 0)]
        ndim = len(sizes) if list(jnp.shape(site["value"])) == sizes else 0
    if site["type"] == "plate" or not ndim:
        return ()
    names = {ndim + dim: frame.name for dim, frame in plates.items()}
    return tuple(names.get(i, f"{site['name']}_dim_{i}") for i in range(max(names) + 1))
