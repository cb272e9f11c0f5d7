"""A large posterior: its density, its data, and why it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from scoreascent.target import Target

Data = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Detour:
    """Another way to the same posterior, on which NUTS is quick.

    `target` has draws that `back` takes, all at once, to draws of the model: (n, d') to (n, d).
    """

    target: Callable[[], Target]
    back: Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LargeModel:
    """A posterior of many dimensions, `density(params, data)`; of a vector without `params`.

    What is `held_out` is not looked at while the library's defaults are chosen. `exact` gives means
    and sds where they are known; `detour` is how the reference is sampled where the model itself is
    a bad way to do so.
    """

    dim: int
    reason: str
    density: Callable[[Any, Any], Any]
    data: Callable[[], Data]
    params: dict[str, Any] | None = None
    held_out: bool = False
    exact: Callable[[], tuple[NDArray[Any], NDArray[Any]]] | None = None
    detour: Detour | None = None

    def target(self) -> Target:
        """The posterior in jax's present precision; its data are the same numbers in both."""
        data = {name: rounded(x) for name, x in self.data().items()}
        if self.params is None:
            return Target(self.density, self.dim, data=data)
        return Target(self.density, params=self.params, data=data)


def rounded(x: Any) -> Any:
    """Data rounded to 32 bits, so that a reference in 64 bits is of the same posterior."""
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(jnp.zeros((), int).dtype)
    return x.astype(np.float32).astype(jnp.zeros(()).dtype)
