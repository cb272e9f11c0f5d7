"""Parameters of the prior, data of the model, and the posterior of such data: for calibration."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from scoreascent._arrays import canonical
from scoreascent.adapters.centring import AUTO
from scoreascent.adapters.numpyro import from_numpyro
from scoreascent.adapters.numpyro_call import TRACING, Redraw
from scoreascent.adapters.pymc import PyMCModel, is_pymc, target_of
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Named = dict[str, Any]


class Simulator(ABC):
    """Draws parameters with data, and says what the posterior of such data is."""

    @abstractmethod
    def draw(self, key: PRNGKeyArray) -> tuple[Named, Any]:
        """Return parameters of the prior, by name, and data that were drawn at them."""

    @abstractmethod
    def target(self, data: Any) -> Target:
        """Return the posterior of such data."""


@dataclass(frozen=True)
class OfNumPyro(Simulator):
    """A NumPyro model and what it is called with; `source` is the model that draws."""

    model: Callable[..., Any]
    source: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def draw(self, key: PRNGKeyArray) -> tuple[Named, Any]:
        """Return latent and deterministic sites, and new values of what is observed."""
        redraw = Redraw()
        seeded = handlers.seed(redraw(self.source), key)
        with TRACING:
            sites = handlers.trace(seeded).get_trace(*self.args, **self.kwargs)
        data = {name: sites[name]["value"] for name in redraw.names}
        if not data:
            raise ValueError(
                "model observes nothing, so that no data can be drawn: call it with its data, as "
                "in calibrate(model, X, y=y); new ones of the same shapes are drawn in their place"
            )
        shown = ("sample", "deterministic")
        return {k: s["value"] for k, s in sites.items() if s["type"] in shown and k not in data
                and np.size(s["value"])}, data  # fmt: skip

    def target(self, data: Any) -> Target:
        """Return the posterior of the model in which these values are observed."""
        return from_numpyro(_Observing(self.model), data, *self.args, **self.kwargs)


@dataclass(frozen=True)
class OfPyMC(Simulator):
    """A PyMC model whose observations are data; `source` is the one that draws."""

    model: PyMCModel
    source: PyMCModel

    def draw(self, key: PRNGKeyArray) -> tuple[Named, Any]:
        """Return free variables and Deterministics, and new values of what is observed."""
        values, data = self.source.simulate(key)
        ours = self.model.observed_names
        if not data or set(data) != set(ours):
            raise ValueError(
                f"simulator observes {sorted(data)}, and the model {sorted(ours)}: they must "
                "observe the same, and something"
            )
        return values, data

    def target(self, data: Any) -> Target:
        """Return the posterior of the model in which these values are observed."""
        observed = tuple(data[name] for name in self.model.observed_names)
        return target_of(self.model, (observed, *(self.model.asked or ())))


@dataclass(frozen=True)
class OfTarget(Simulator):
    """A target with data, and a function of a key that gives parameters and data."""

    like: Target
    source: Callable[[PRNGKeyArray], tuple[Named, Any]]

    def draw(self, key: PRNGKeyArray) -> tuple[Named, Any]:
        """Return what the function gives, if the data are of the shapes of the target's."""
        found = self.source(key)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Mapping)):
            raise ValueError(
                "simulator must return (parameters by name, data), got "
                f"{found if np.isscalar(found) else type(found).__name__!r}"
            )
        values, data = found
        data = canonical(data, "data")
        shapes = [
            (jax.tree.structure(x), [(np.shape(y), y.dtype) for y in jax.tree.leaves(x)])
            for x in (data, self.like.data)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"simulator must return data like the target's, {_shapes(self.like.data)}, got "
                f"{_shapes(data)}"
            )
        return dict(values), data

    def target(self, data: Any) -> Target:
        """Return the target with these data."""
        new = copy.copy(self.like)
        new.data = data
        return new


def _shapes(tree: Any) -> str:
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(np.shape(x))}", tree))


@dataclass(frozen=True)
class _Observing:
    """A model called with values of what it observes, and then with its own arguments."""

    model: Callable[..., Any]

    def __call__(self, values: Named, *args: Any, **kwargs: Any) -> Any:
        with _Observe(values):
            return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        return getattr(self.model, "__qualname__", repr(self.model))


class _Observe(Messenger):  # type: ignore[misc]
    """Puts other values in the place of observed ones."""

    def __init__(self, values: Named) -> None:
        super().__init__()
        self.values = values

    def process_message(self, msg: Named) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


def simulator_of(
    model: Any, source: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Simulator:
    """Return what draws parameters and data of a model, or of another that stands for it."""
    if isinstance(model, Target):
        if not callable(source) or model.data is None or args or kwargs:
            raise ValueError(
                "a Target knows neither its prior nor how its data are drawn: give it data=, and "
                "calibrate a simulator, a function of a key that returns (parameters by name, data)"
            )
        return OfTarget(model, source)
    if is_pymc(model):
        if args or kwargs:
            raise ValueError("a PyMC model has its data: calibrate(model) takes no other arguments")
        if source is not None and not is_pymc(source):
            raise ValueError(f"simulator must be a model of the same kind, got {source!r}")
        first = PyMCModel(model, AUTO, simulates=True)
        return OfPyMC(first, first if source is None else PyMCModel(source, simulates=True))
    if not callable(model):
        raise ValueError(
            f"model must be a NumPyro or PyMC model, or a Target with data, got {model!r}"
        )
    if source is not None and not callable(source):
        raise ValueError(f"simulator must be a model of the same kind, got {source!r}")
    return OfNumPyro(model, model if source is None else source, args, kwargs)
