"""Densities of NumPyro models with discrete latent sites, which funsor sums out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpyro.infer.util import potential_energy

from scoreascent._extras import require
from scoreascent.adapters.numpyro_call import TRACING

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def summed_energy(
    function: Callable[..., Any], args: Any, kwargs: Any, free: Any, nesting: int
) -> Float[Array, ""]:
    """Return NumPyro's potential energy, summed over the discrete sites inside `nesting` plates."""
    funsor = require("numpyro.contrib.funsor", "enumerate", "enumeration")
    enumerated = funsor.enum(funsor.config_enumerate(function), -nesting - 1)
    with TRACING:
        return potential_energy(enumerated, args, kwargs, free, enum=True)
