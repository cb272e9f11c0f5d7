"""The step sizes of the paper's convergence table; t counts from one, optax's count from zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def duchi(gamma: float) -> optax.Schedule:
    """γ_t = γ/√t, for `optax.sgd`: rate G² log T/(log ρ⁻¹ √T) (Duchi et al., 2012).

    >>> float(duchi(1.0)(3))
    0.5
    """
    _check_positive("gamma", gamma)
    return lambda count: gamma / jnp.sqrt(count + 1.0)


def doan(gamma: float) -> optax.Schedule:
    """γ_t = γ/t, for `optax.sgd`: rate G² log T/T under strong convexity (Doan et al., 2020).

    >>> float(doan(1.0)(3))
    0.25
    """
    _check_positive("gamma", gamma)
    return lambda count: gamma / (count + 1.0)


def doan_nesterov(smoothness: float) -> optax.GradientTransformation:
    """Nesterov's method with γ_t = 2/(t + 1) and momentum β_t = 1/(2L√(t + 1)), L the smoothness.

    Rate G² log T/√T, free of the mixing rate (Doan et al., 2020). An optimiser of its own, since
    the momentum too changes with t.
    """
    _check_positive("smoothness", smoothness)
    return optax.inject_hyperparams(optax.sgd, static_args="nesterov")(
        learning_rate=lambda count: 2.0 / (count + 2.0),
        momentum=lambda count: 0.5 / (smoothness * jnp.sqrt(count + 2.0)),
        nesterov=True,
    )


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
        return  # a step size that an outer optimiser adapts or sweeps
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
