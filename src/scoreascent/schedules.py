"""Step sizes: the paper's convergence table, and moment matching's; optax counts t from zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scoreascent._structs import Config


@dataclass(frozen=True, repr=False)
class Decay(Config):
    """γ_t = min(first, t^−power), for `moment_matching`; powers in (½, 1] converge.

    >>> float(Decay(first=0.5, power=1.0)(9))
    0.10000000149011612
    """

    first: float = 0.1
    power: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.first <= 1:
            raise ValueError(f"first must lie in (0, 1], got {self.first!r}")
        if not 0 < self.power <= 1:
            raise ValueError(f"power must lie in (0, 1], got {self.power!r}")

    def __call__(self, count: Any) -> Any:
        """The rate of the step after `count` others."""
        return jnp.minimum(self.first, (count + 1.0) ** -self.power)


DECAY = Decay()


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

    >>> import scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> optimizer = doan_nesterov(smoothness=2.0)
    >>> sa.fit(target, sa.pmcsa(4), optimizer=optimizer, steps=3, progress=False).steps
    3
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
