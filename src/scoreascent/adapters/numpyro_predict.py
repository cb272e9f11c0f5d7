"""Predictions of a NumPyro model at draws of its latent sites, those of NumPyro's `Predictive`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.primitives import Messenger

from scoreascent._arrays import canonical_dtype
from scoreascent.adapters.numpyro_call import ABSTRACT, Call, Redraw, Site
from scoreascent.model import Predicted

if TYPE_CHECKING:
    from jaxtyping import Array, PRNGKeyArray

    Shapes = dict[str, tuple[int, ...]]


def predictions(
    call: Call, key: PRNGKeyArray, latent: dict[str, Any], data: Any, anew: Sequence[str]
) -> Predicted:
    """Return what the model says at draws of its latent sites, n of each in front.

    Sites without an observation are drawn, and those with one are drawn in its shape. A latent
    site is drawn given the others if it is named, or if a plate it is in has another size here.
    With one key for each draw these are the draws of `Predictive`, where that has the same sites.
    """
    shapes = {k: jnp.shape(v)[1:] for k, v in latent.items()}
    try:
        found = _look(call, data, shapes, anew)
    except ABSTRACT:  # a model that looks at its data
        call, data = call.held(data)
        found = _look(call, data, shapes, anew)
    others = tuple(k for k in latent if k in anew or found.get(k, shapes[k]) != shapes[k])
    kept = {k: v for k, v in latent.items() if k not in others}
    n = len(next(iter(latent.values())))
    return Predicted(_drawn(call, jax.random.split(key, n), kept, data), others)


@functools.partial(jax.jit, static_argnums=0)
def _drawn(call: Call, keys: PRNGKeyArray, latent: dict[str, Array], data: Any) -> dict[str, Array]:
    def one(key: PRNGKeyArray, latent: dict[str, Array]) -> dict[str, Array]:
        sites = call.trace(
            data,
            lambda f: handlers.substitute(f, data=latent),
            Redraw(),
            lambda f: handlers.seed(f, key),
        )
        return {k: jnp.asarray(s["value"]) for k, s in sites.items() if _is_shown(s, latent)}

    return jax.vmap(one)(keys, latent)


def _is_shown(site: Site, latent: dict[str, Any]) -> bool:
    """Tell whether a site is something new: drawn, or computed."""
    if site["type"] == "sample":  # the value of a factor has no entries
        return site["name"] not in latent and jnp.size(site["value"]) > 0
    return site["type"] == "deterministic"


def _look(call: Call, data: Any, shapes: Shapes, anew: Sequence[str]) -> Shapes:
    """Return the shapes that the latent sites have at these arguments; raise if they do not fit."""
    look = _Look(shapes, anew)

    def run(data: Any) -> None:
        call.trace(data, look, Redraw(), lambda f: handlers.seed(f, jax.random.key(0)))

    try:
        jax.eval_shape(run, tuple(jax.ShapeDtypeStruct(x.shape, canonical_dtype(x)) for x in data))
    except ABSTRACT:
        raise
    except (TypeError, ValueError) as error:
        if str(error).startswith("predict: "):
            raise
        raise ValueError(
            f"predict: the model cannot be run with these arguments: {error}; give arguments as "
            "those of the fit, with rows of your own, and None for what is to be drawn"
        ) from error
    return look.found


class _Look(Messenger):  # type: ignore[misc]
    """Learns the shapes of latent sites, and gives them some value of that shape."""

    def __init__(self, shapes: Shapes, anew: Sequence[str]) -> None:
        self.shapes, self.anew = shapes, anew
        self.found: Shapes = {}
        super().__init__()

    def process_message(self, msg: Site) -> None:
        """Look at a site."""
        name = msg.get("name")
        if msg["type"] != "sample" or name not in self.shapes or msg["is_observed"]:
            return
        here = tuple(msg["kwargs"]["sample_shape"]) + tuple(msg["fn"].shape())
        if msg["value"] is None:
            msg["value"] = jnp.zeros(here)
        self.found[name] = jnp.shape(msg["value"])
        if name not in self.anew and not _is_of_plates(self.shapes[name], here, msg):
            raise ValueError(
                f"predict: with these arguments site {name!r} has shape {here}, but in the fit it "
                f"had {self.shapes[name]}; give arguments as those of the fit, with rows of your "
                f"own, or anew=[{name!r}] to draw it given the other parameters"
            )


def _is_of_plates(fitted: tuple[int, ...], here: tuple[int, ...], site: Site) -> bool:
    """Tell whether two shapes of a site differ in nothing but the sizes of its plates."""
    if len(fitted) != len(here):
        return False
    batch = len(here) - site["fn"].event_dim
    plates = {batch + frame.dim for frame in site["cond_indep_stack"]}
    return all(a == b or i in plates for i, (a, b) in enumerate(zip(fitted, here)))
