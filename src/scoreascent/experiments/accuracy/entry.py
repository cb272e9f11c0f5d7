"""An entry of the suite: a posterior, its data, and the reason why it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from scoreascent.adapters import from_numpyro
from scoreascent.experiments.accuracy.moments import Moments
from scoreascent.target import Target

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Entry:
    """A posterior of the suite: a NumPyro `model` with its `data`, or a `density` of its own.

    A `regular` one has a single mode, and no region where its scale shrinks without end: a fit can
    be asked to be right. Of the others it is asked not to be called good if it is not. What is
    `held_out` was not looked at while the library's defaults were chosen; the flags were set before
    any of them were tried. `exact` gives moments where they are known, `masses` where modes are,
    and how much is near each. The `reason` says why it is there.
    """

    dim: int
    reason: str
    model: Callable[..., None] | None = None
    data: Callable[[], Arrays] | None = None
    groups: int | None = None  # the model's last argument, where it needs their number
    density: Callable[[], Target] | None = None
    exact: Callable[[], Moments] | None = None
    masses: Callable[[], tuple[NDArray[Any], NDArray[Any]]] | None = None
    regular: bool = True
    held_out: bool = False

    def target(self) -> Target:
        """The posterior in jax's present precision."""
        if self.density is not None:
            return self.density()
        assert self.model is not None
        return from_numpyro(self.model, *self.arguments())

    def arguments(self) -> tuple[Any, ...]:
        """What the NumPyro model is called with.

        Data are rounded to 32 bits in both precisions, so that a reference in 64 bits is of the
        same posterior.
        """
        assert self.data is not None
        arrays = tuple(_rounded(x) for x in self.data())
        return arrays if self.groups is None else (*arrays, self.groups)


def _rounded(x: Any) -> Any:
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(jnp.zeros((), int).dtype)
    return x.astype(np.float32).astype(jnp.zeros(()).dtype)
