"""What a parameter is, and what an adapter tells of a model beyond its log density."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


class Param(NamedTuple):
    """A named parameter: its support (a `numpyro.distributions.constraints` object) and its shape.

    The shape is that of the value a model sees: `(3, 3)` for a 3 × 3 Cholesky factor of a
    correlation matrix, though it has only three degrees of freedom.

    >>> from numpyro.distributions import constraints
    >>> Param(constraints.positive, (3,)).shape
    (3,)
    """

    support: Constraint = constraints.real
    shape: tuple[int, ...] = ()


class Predicted(NamedTuple):
    """What a model says at draws of its parameters, by name, with the draws in front.

    `anew` names the free parameters that were not taken from the draws, but drawn given the others.
    """

    draws: dict[str, Any]
    anew: tuple[str, ...] = ()


class Model(ABC):
    """A log density that knows more of itself than a function does: what an adapter makes.

    `Target(model, dim=model.dim, data=data)` then gives named draws, predictions and likelihoods.
    Every method is pure, takes one unconstrained point and can be compiled; the object itself must
    hash, for it is a static argument of compiled code. The first three methods are needed; what a
    model does not know of observations, it leaves to the defaults.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> class Scale(sa.Model):
    ...     dim, site_names = 1, ("scale",)
    ...     def __call__(self, z, data):
    ...         return z[0] - jnp.exp(z[0])  # an exponential scale, with its Jacobian
    ...     def constrain(self, z, data):
    ...         return {"scale": jnp.exp(z[0])}
    ...     def unconstrain(self, values, data):
    ...         return jnp.log(values["scale"])[None]
    >>> target = sa.Target(Scale(), dim=1)
    >>> target.site_names, {k: float(x) for k, x in target.named(jnp.zeros(1)).items()}
    (('scale',), {'scale': 1.0})
    """

    dim: int
    site_names: tuple[str, ...]  # the free parameters, in the order of z

    @abstractmethod
    def __call__(self, z: Float[Array, " d"], data: Any) -> Float[Array, ""]:
        """Return the log density at the unconstrained z, Jacobians included."""

    @abstractmethod
    def constrain(self, z: Float[Array, " d"], data: Any) -> dict[str, Float[Array, ...]]:
        """Return the free parameters at z, and what the model computes from them."""

    @abstractmethod
    def unconstrain(self, values: Any, data: Any) -> Float[Array, " d"]:
        """Return the z of such parameters."""

    def log_likelihood(self, z: Float[Array, " d"], data: Any) -> dict[str, Float[Array, ...]]:
        """Return the log density of every observation, by the name of what is observed."""
        return {}

    def predict(
        self, key: PRNGKeyArray, z: Float[Array, " d"], data: Any
    ) -> dict[str, Float[Array, ...]]:
        """Return new observations, drawn at z."""
        return {}

    def predictions(
        self,
        key: PRNGKeyArray,
        z: Float[Array, "n d"],
        data: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        anew: Sequence[str] = (),
    ) -> Predicted:
        """Return new observations at draws z, with other arguments of the model if any are given.

        `anew` names free parameters that are to be drawn given the others, such as those of new
        groups.
        """
        if args or kwargs or anew:
            raise ValueError(
                f"predict: a {type(self).__name__} knows no arguments but those of the fit"
            )
        keys = jax.random.split(key, len(z))
        return Predicted(_predicted(self, keys, z, data))

    def observed(self, data: Any) -> dict[str, Float[Array, ...]]:
        """Return the observations themselves."""
        return {}

    def initial(self, key: PRNGKeyArray, data: Any) -> Float[Array, " d"] | None:
        """Return a place where a search may begin, random or not; None if none is known."""
        return None

    def as_written(self, z: Float[Array, " d"], data: Any) -> tuple[Float[Array, " d"], Any]:
        """Return z and the data by which the model is stated as its author wrote it."""
        return z, data

    def for_nuts(self, library: str, z: Float[Array, "n d"], metric: Any, data: Any) -> Any:
        """Return what a library's own NUTS takes to go on from places z; None if nothing is known.

        The model is stated as it was written; `metric` is its covariance matrix, or the diagonal.
        """
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done with the model that its author may not expect, in words."""
        return ()

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of parameters and observations that have any."""
        return {}

    @property
    def coords(self) -> dict[str, Any]:
        """The labels along those axes."""
        return {}


@functools.partial(jax.jit, static_argnums=0)
def _predicted(model: Model, keys: PRNGKeyArray, z: Float[Array, "n d"], data: Any) -> Any:
    return jax.vmap(model.predict, (0, 0, None))(keys, z, data)
