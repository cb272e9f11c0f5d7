"""What the sites of a NumPyro model are: found once, from runs on abstract arrays."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from scoreascent._arrays import canonical_dtype
from scoreascent._extras import install_hint
from scoreascent.adapters.centring import depends
from scoreascent.adapters.numpyro_call import ABSTRACT, Call, Site, site_shape

UNOBSERVED = "_unobserved"


class Sites(NamedTuple):
    """The latent sites of a model, in its order, and what is particular about some.

    `missing` has, of a site whose observations are in part missing, which of its entries these are,
    and the shape of all of them unconstrained: the others are no parameters. `summed` are discrete
    sites, with `nesting` plates at most, and `computed` the deterministic sites that do not depend
    on them. `looked` names the arguments whose values the model looks at.
    """

    site_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    free_shapes: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    missing: tuple[tuple[str, tuple[tuple[int, ...], tuple[int, ...]]], ...] = ()
    summed: tuple[str, ...] = ()
    nesting: int = 0
    computed: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """The numbers of z."""
        return sum(map(math.prod, self.free_shapes))


def look(call: Call, data: tuple[Any, ...]) -> tuple[Call, tuple[Any, ...], Sites]:
    """Return the sites; and the call and its data, less arrays whose values the model looks at.

    Such arrays the call holds itself, if the model runs so: one of them, if that does, else all.
    """
    try:
        return call, data, _look(call, data)
    except ABSTRACT as error:
        names = call.names()
        alone = [(i,) for i in range(len(data))] if len(data) > 1 else []
        for which in [*alone, tuple(range(len(data)))] if data else []:
            held, rest = call.held(data, which)
            try:
                sites = _look(held, rest)
            except Exception:  # the first error says more
                continue
            return held, rest, sites._replace(looked=tuple(names[i] for i in which))
        raise error


def _look(call: Call, data: tuple[Any, ...]) -> Sites:
    found: dict[str, Any] = {}

    def run(data: tuple[Any, ...]) -> None:
        sites = _trace(call, data)
        hidden = {k: s for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
        summed = tuple(k for k, s in hidden.items() if _is_discrete(s))
        latent = {k: s for k, s in hidden.items() if k not in summed}
        shapes = [jnp.shape(s["value"]) for s in latent.values()]
        free = [tuple(transform(s).inverse_shape(x)) for s, x in zip(latent.values(), shapes)]
        axes = {k: _axes(s) for k, s in sites.items() if s.get("cond_indep_stack")}
        found.update(
            sites=Sites(
                tuple(latent), tuple(shapes), tuple(free),
                tuple(x for x in axes.items() if x[1]),
                summed=summed, nesting=_nesting(sites),
            ),
            partly=[k for k in latent if _is_partly_observed(k, sites)],
        )  # fmt: skip

    jax.eval_shape(run, tuple(jax.ShapeDtypeStruct(x.shape, canonical_dtype(x)) for x in data))
    sites: Sites = found["sites"]
    if not sites.site_names:
        raise ValueError("model has no latent site, that is, no numpyro.sample without obs")
    if found["partly"]:
        sites = _without_observed(call, data, sites, found["partly"])
    if sites.summed:
        sites = sites._replace(computed=_not_of(call, data, sites.summed))
    return sites


def _trace(call: Call, data: Any, *wraps: Any) -> dict[str, Site]:
    seeded = lambda f: handlers.seed(f, jax.random.key(0))  # noqa: E731
    return call.trace(data, *wraps, Refuse(), seeded)


# -- observations that are in part missing ---------------------------------------------------------


def _is_partly_observed(name: str, sites: dict[str, Site]) -> bool:
    """Tell whether NumPyro made a latent site of `obs_mask`: flat where there is an observation."""
    first = name.removesuffix(UNOBSERVED)
    return first != name and f"{first}_observed" in sites and first in sites


def _without_observed(
    call: Call, data: tuple[Any, ...], sites: Sites, names: Sequence[str]
) -> Sites:
    """Return the sites with no more of these than the entries that have no observation."""
    traced = _trace(call, data)  # not compiled: a mask has its value then
    missing, shapes, free = {}, list(sites.shapes), list(sites.free_shapes)
    for name in names:
        site, i = traced[name], sites.site_names.index(name)
        batch = len(shapes[i]) - site["fn"].event_dim
        try:
            mask = np.broadcast_to(np.asarray(_mask(site["fn"]), bool), shapes[i][:batch])
        except ABSTRACT:
            raise ValueError(
                f"model: site {name.removesuffix(UNOBSERVED)!r} has obs_mask, whose values must be "
                "known: give it as a numpy array"
            ) from None
        at = tuple(map(int, np.flatnonzero(mask)))
        own = (len(shapes[i]) - batch) - (len(shapes[i]) - len(free[i]))  # free axes of one event
        events = free[i][len(free[i]) - own :]
        missing[name] = at, free[i]
        shapes[i] = (len(at), *shapes[i][batch:])
        free[i] = (len(at), *events)
    return sites._replace(
        shapes=tuple(shapes), free_shapes=tuple(free), missing=tuple(missing.items()),
        axes=tuple((k, axes) for k, axes in sites.axes if k not in missing),
    )  # fmt: skip


def _mask(fn: Any) -> Any:
    """The entries of a masked distribution that count."""
    while not hasattr(fn, "_mask"):
        fn = fn.base_dist
    return fn._mask


# -- discrete sites --------------------------------------------------------------------------------


def _is_discrete(site: Site) -> bool:
    support = site["fn"].support
    return support is not None and bool(support.is_discrete)


def _not_of(call: Call, data: Any, summed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the deterministic sites that do not depend on these."""
    names: list[str] = []

    def run(values: dict[str, Any], data: Any) -> list[Any]:
        sites = _trace(call, data, lambda f: handlers.substitute(f, data=values))
        found = {k: s["value"] for k, s in sites.items() if s["type"] == "deterministic"}
        names[:] = found
        return [jnp.asarray(x) for x in found.values()]

    shapes = jax.eval_shape(lambda d: {k: _trace(call, d)[k]["value"] for k in summed}, data)
    moves = depends(run, shapes, data)
    return tuple(name for name, moved in zip(names, moves) if not moved)


def _nesting(sites: dict[str, Site]) -> int:
    """How many plates stand around a site at most."""
    frames = [f.dim for s in sites.values() if s["type"] == "sample" for f in s["cond_indep_stack"]]
    return -min((d for d in frames if d is not None), default=0)


# -- what is refused -------------------------------------------------------------------------------


class Refuse(Messenger):  # type: ignore[misc]
    """Raises for what has no one fixed density on ℝᵈ; gives latent sites their value at z = 0."""

    def process_message(self, msg: Site) -> None:
        """Look at a site."""
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
        if kind == "sample" and not msg["is_observed"] and not _is_summed(msg):
            there = transform(msg)
            if msg["value"] is None:
                shape = there.inverse_shape(msg["kwargs"]["sample_shape"] + msg["fn"].shape())
                msg["value"] = there(jnp.zeros(shape))


def _is_summed(site: Site) -> bool:
    """Tell whether a latent site is discrete and can be summed out; raise if it cannot."""
    if not _is_discrete(site):
        return False
    what = (
        f"model: site {site['name']!r} ({type(site['fn']).__name__}) is discrete and not observed"
    )
    if not site["fn"].has_enumerate_support:
        raise ValueError(
            f"{what}; marginalise it, for example with dist.MixtureSameFamily: it has too many "
            "values, or unknown ones, for enumeration"
        )
    if importlib.util.find_spec("funsor") is None:
        raise ValueError(
            f"{what}; marginalise it, for example with dist.MixtureSameFamily: enumeration "
            f"{install_hint('funsor', 'enumerate')}"
        )
    return True


def transform(site: Site) -> Any:
    """From ℝ to the support of a latent site."""
    support = site["fn"].support
    what = f"model: site {site['name']!r} ({type(site['fn']).__name__})"
    try:
        if support is None:
            raise ValueError(f"{what} has no support; its distribution must say what it is")
        return biject_to(support)
    except NotImplementedError:
        raise ValueError(
            f"{what}: numpyro has no transform from ℝ to the support {support}; state the site by "
            "unconstrained ones, for example with numpyro.handlers.reparam"
        ) from None


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
